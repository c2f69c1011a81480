"""Apply another threshold to a finished run, by joining its scores to the input."""

from __future__ import annotations

import math
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from discode._files import read_table, replacing
from discode.bulk._chunks import MANIFEST
from discode.bulk._folder import check_finished
from discode.bulk._inputs import find_inputs
from discode.bulk._plan import read_chunks, read_manifest
from discode.bulk._writers import FILE_WRITERS, TEXT_WRITERS, open_table, select
from discode.errors import InputError


def filter_run(folder: Path, min_score: float, out: Path) -> tuple[int, int]:
    """Write the samples of a finished run that reach a threshold; return how many, of how many.

    Args:
        folder: Output folder of a run with one method.
        min_score: The threshold.
        out: A folder that exists; it gets a file per shard, in the input's format.
    """
    if not math.isfinite(min_score):
        raise InputError(f"min_score={min_score} is not allowed; give a number of the scale")
    if not (folder / MANIFEST).exists():
        raise InputError(f"{folder} has no {MANIFEST}; give the output folder of discode score")
    check_finished(folder)
    begun = read_manifest(folder)
    if len(begun["signatures"]) != 1:
        raise InputError(f"{folder} has scores of several methods; a threshold requires one")
    try:
        inputs = find_inputs(begun["input"])
    except InputError as error:
        raise InputError(f"{error}; run this in the folder where {folder} was begun") from error
    if inputs.digest != begun["files_sha256"]:
        raise InputError(f"the input of {folder} has changed; run discode score on it again")
    if inputs.format not in (*TEXT_WRITERS, *FILE_WRITERS):
        raise InputError("COCO results cannot be filtered; convert them to JSON lines")
    passed = rows = 0
    for file in range(len(inputs.files)):
        scores, current = np.zeros(0), None
        with ExitStack() as stack:
            table = None
            for chunk in read_chunks(
                inputs, file, images=begun["images"], annotations=begun["annotations"],
                shard_size=begun["shard_size"], keep=True,
            ):  # fmt: skip
                shard = chunk.place.shard
                if shard != current:
                    stack.close()
                    current, table = shard, None
                    scores = _scores_of(folder / f"{shard.name}.{begun['format']}")
                first = chunk.place.start - shard.number * begun["shard_size"]
                found = scores[first : first + len(chunk)]
                if len(found) < len(chunk):
                    raise InputError(
                        f"{folder}/{shard.name} is incomplete; run discode score again"
                    )
                rows += len(chunk)
                chosen = np.flatnonzero(found >= min_score).tolist()  # NaN passes no threshold
                if not chosen:
                    continue
                passed += len(chosen)
                if table is None:
                    path = stack.enter_context(replacing(out / f"{shard.name}.{inputs.format}"))
                    table = stack.enter_context(open_table(path, inputs.format))
                table.write(select(chunk.samples, chosen, found[chosen]))
    return passed, rows


def _scores_of(path: Path) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the scores of a shard in the order of its rows; NaN where there is none."""
    values = []
    for where, row in read_table(path):
        if not isinstance(row, dict):
            raise InputError(f"{where}: {row}")
        value = row.get("score")
        values.append(math.nan if value is None else float(value))
    return np.array(values, float)
