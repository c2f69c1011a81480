"""Served models: any server that returns log-probabilities."""
