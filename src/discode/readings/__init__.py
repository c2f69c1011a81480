"""Readings of pairs by a model, and the store that keeps them."""

from discode.readings._base import (
    COLUMNS,
    Identity,
    Origin,
    Readings,
    ReadingsCollector,
    SentenceReadings,
)

__all__ = ["COLUMNS", "Identity", "Origin", "Readings", "ReadingsCollector", "SentenceReadings"]
