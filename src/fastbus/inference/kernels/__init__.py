"""Kernels of one launch each, used on devices that have them; plain torch computes the same everywhere."""

WIDEST_PAIRS = 4096  # classes that a program of pairs on a GPU can hold; known also where Triton is not
