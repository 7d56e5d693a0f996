"""What the learned network adds to exact inference: `fastbus bench ablation`."""
