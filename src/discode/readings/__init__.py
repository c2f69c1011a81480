"""Readings: what a model said about pairs, and the store that keeps it."""

from discode.readings._base import (
    COLUMNS,
    Identity,
    Origin,
    Readings,
    ReadingsCollector,
    SentenceReadings,
)

__all__ = ["COLUMNS", "Identity", "Origin", "Readings", "ReadingsCollector", "SentenceReadings"]
