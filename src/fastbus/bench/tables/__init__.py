"""Real small data sets under their usual protocols: ours beside trivial baselines, peers and published figures."""
