"""Engines: who carries the work of a large run, where one process is not enough."""
