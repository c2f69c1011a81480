"""Readings: what a model said about pairs, and the store that keeps it."""

from discode.readings.base import Identity, Origin, Readings, ReadingsCollector

__all__ = ["Identity", "Origin", "Readings", "ReadingsCollector"]
