"""Exact inference: chains, closed forms, the joint lattice and its fallbacks."""
