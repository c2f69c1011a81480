"""What a model said about pairs, and where it is kept."""

from discode.readings.base import Gather, Identity, Readings

__all__ = ["Gather", "Identity", "Readings"]
