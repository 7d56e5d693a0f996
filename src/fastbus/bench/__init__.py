"""Runnable demonstrations and measurements; each module prints what it found."""
