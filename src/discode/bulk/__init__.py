"""Inputs of any size: read in bounded memory, scored into shards, safe to kill."""

from __future__ import annotations

from discode.bulk.chunks import BLOCK_ROWS, Shard
from discode.bulk.inputs import Inputs, find_inputs, is_many
from discode.bulk.judging import Totals
from discode.bulk.run import score_stream, score_to_file

__all__ = [
    "BLOCK_ROWS", "Inputs", "Shard", "Totals", "find_inputs", "is_many", "score_stream",
    "score_to_file",
]  # fmt: skip
