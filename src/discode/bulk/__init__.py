"""Inputs of any size: read in bounded memory, scored into a file or shards, safe to kill."""

from __future__ import annotations

from discode.bulk.chunks import SHARD_ROWS, Share
from discode.bulk.folder import score_to_folder
from discode.bulk.inputs import Inputs, find_inputs
from discode.bulk.judging import MethodTotals, Totals
from discode.bulk.plan import RunPlan, plan_run

__all__ = [
    "SHARD_ROWS", "Inputs", "MethodTotals", "RunPlan", "Share", "Totals", "find_inputs",
    "plan_run", "score_to_folder",
]  # fmt: skip
