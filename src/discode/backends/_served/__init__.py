"""Models behind an address: any server that returns log-probabilities."""
