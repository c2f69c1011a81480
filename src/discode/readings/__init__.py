"""Readings: what a model said about pairs, and the store that keeps it."""

from discode.readings.base import Identity, Readings, ReadingsCollector

__all__ = ["Identity", "Readings", "ReadingsCollector"]
