"""The paper's experiments on images: a grid of cells, the runs that fill it, and what they need."""
