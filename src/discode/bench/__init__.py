"""Benchmarks scored: runs, their logs, tables, figures and comparisons."""
