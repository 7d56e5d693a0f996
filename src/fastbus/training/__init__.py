"""Training: views, moving averages, checkpoints and the fit loop."""
