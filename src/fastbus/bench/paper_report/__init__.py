"""fastbus bench report: the runs of the paper's experiments as a table in Markdown and a page with plots."""
