"""Inputs of any size: read in bounded memory, scored into a file or shards, safe to kill."""

from __future__ import annotations

from discode.bulk._chunks import SHARD_ROWS, Share
from discode.bulk._folder import score_to_folder
from discode.bulk._inputs import Inputs, find_inputs
from discode.bulk._judging import MethodTotals, Totals
from discode.bulk._plan import RunPlan, plan_run
from discode.bulk._ray import score_with_ray

__all__ = [
    "SHARD_ROWS", "Inputs", "MethodTotals", "RunPlan", "Share", "Totals", "find_inputs",
    "plan_run", "score_to_folder", "score_with_ray",
]  # fmt: skip
