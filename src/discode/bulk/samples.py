"""The samples that reach a threshold, to be written again in the format they came in.

Tables get one more column, ``discode_score``; tars hold the original files, byte for byte.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discode.errors import require

SCORE = "discode_score"
"""Name of the column with the score."""


def select(samples: Any, rows: NDArray[np.intp], scores: NDArray[np.float64]) -> Any:
    """Return some rows of a chunk's samples, with their scores where they are rows of a table.

    Samples are rows of a table, files of a tar, or an Arrow batch; ``scores`` are of those rows.
    """
    if not isinstance(samples, list):
        return _add_column(samples.take(rows), scores)
    chosen = [samples[row] for row in rows.tolist()]
    return [
        {**sample, SCORE: score} if isinstance(sample, dict) else sample
        for sample, score in zip(chosen, scores.tolist(), strict=True)
    ]


def _add_column(batch: Any, scores: NDArray[np.float64]) -> Any:
    pa = require("pyarrow", "parquet")
    table = pa.Table.from_batches([batch])
    if SCORE in table.column_names:  # filtered before: the new score replaces the old
        table = table.drop_columns([SCORE])
    table = table.append_column(SCORE, pa.array(scores, pa.float64()))
    return table.replace_schema_metadata(_with_score(table.schema.metadata))


def _with_score(metadata: dict[bytes, bytes] | None) -> dict[bytes, bytes] | None:
    """Add the new column to the notes of `datasets`, which refuses a table with any other."""
    notes = dict(metadata or {})
    try:
        info = json.loads(notes[b"huggingface"])
        info["info"]["features"][SCORE] = {"dtype": "float64", "_type": "Value"}
    except (KeyError, ValueError, TypeError):  # no notes, or not written by `datasets`
        return metadata
    return notes | {b"huggingface": json.dumps(info).encode()}
