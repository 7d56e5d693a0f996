"""Kernels of one launch each, used on devices that have them; plain torch computes the same everywhere."""
