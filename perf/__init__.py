"""Speed and endurance: scripts that print what docs/BENCHMARKS.md shows."""
