"""What a run has learnt, as a page for people and as numbers for programs; drawings of chains and beliefs."""

from fastbus.report.write import write_report

__all__ = ["write_report"]
