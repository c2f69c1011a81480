"""Calibrate: fit intervals of people's ratings to a judge's readings, tested on other images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from discode._version import __version__
from discode.bench._choose import JudgedReadings
from discode.bench._layout import CellTable, TableValue
from discode.benchmarks import Ratings
from discode.decoders import Decoder
from discode.decoders._base import decode_checked
from discode.decoders._preset import Preset, PresetDecoder, asked_of, reading_width
from discode.errors import InputError, lookup
from discode.options import options_text
from discode.stats import Coverage, fit_intervals, held_out_intervals, measure_coverage

WIDTHS = {"adaptive": True, "constant": False}
"""Whether intervals depend on how wide a reading is."""


def calibrate_judge(
    judged: JudgedReadings,
    decoder: Decoder,
    *,
    level: float = 0.9,
    kind: str = "adaptive",
    folds: int = 5,
    resamples: int = 1000,
    seed: int = 0,
) -> tuple[Preset, CellTable]:
    """Fit intervals of both kinds, test them on images of other folds, and keep one.

    Returns the preset with the intervals of the chosen ``kind``, and the table of coverage and
    width, by task if there are several.
    """
    adaptive = lookup(WIDTHS, kind, "kind of intervals")
    ratings, readings = judged.judgments, judged.readings
    if not isinstance(ratings, Ratings):
        raise InputError("intervals need ratings: a choice between two captions has no scale")
    if isinstance(decoder, PresetDecoder):
        raise InputError("a preset file cannot be calibrated; give the method that is in it")
    decoded, _ = decode_checked(decoder, readings)
    score = decoded.score
    width = reading_width(decoded.distribution, readings.scale)
    keep = np.isfinite(score + width)[ratings.pair]
    if not keep.any():
        raise InputError(
            "no rating has a score: "
            + next(iter(readings.errors.values()), "the readings have no distribution")
        )
    pair, rating = ratings.pair[keep], ratings.value[keep]
    columns = score[pair], width[pair], rating, judged.image[pair]
    options: dict[str, Any] = {"level": level, "seed": seed}
    fitted = fit_intervals(*columns, adaptive=adaptive, **options)
    tasks = np.array(judged.tasks or [""] * len(ratings))[keep]
    names = np.unique(tasks).tolist()
    parts = {"all": np.ones(len(rating), bool)}
    parts |= {f"  {name}": tasks == name for name in names if len(names) > 1}
    tested: dict[str, dict[str, Coverage]] = {}
    for each, adapts in WIDTHS.items():
        low, high = held_out_intervals(*columns, adaptive=adapts, folds=folds, **options)
        tested[each] = {
            part: measure_coverage(
                low[rows], high[rows], rating[rows], columns[3][rows], resamples=resamples,
                seed=seed,
            )
            for part, rows in parts.items()
        }  # fmt: skip
    asked = {} if readings.origin is None else asked_of(readings.origin)
    preset = Preset(
        f"{decoder.name}:{options_text(decoder.options())}",
        readings.scale.unique_name,
        chosen={
            "by": f"discode calibrate, version {__version__}",
            **judged.source,
            judged.unit: len(np.unique(columns[3])),
            "judgments": len(rating),
            "without_score": int((~keep).sum()),
            "folds": folds,
            "kind": kind,
            "held_out": _figures(tested[kind]["all"]),
        },
        intervals=replace(fitted, asked=asked),
    )
    return preset, _table(judged, tested, level, folds, int((~keep).sum()))


def _figures(done: Coverage) -> dict[str, list[float]]:
    return {
        name: [float(f"{x:.6g}") for x in (each.value, each.low, each.high)]
        for name, each in (("coverage", done.coverage), ("width", done.width))
    }


def _table(
    judged: JudgedReadings,
    tested: Mapping[str, Mapping[str, Coverage]],
    level: float,
    folds: int,
    lost: int,
) -> CellTable:
    rows: list[list[TableValue]] = []
    for part in tested["adaptive"]:
        cells = [each[part] for each in tested.values()]
        rows.append(
            [part, f"{cells[0].ratings:,}"]
            + [value for each in cells for value in (each.coverage, each.width)]
        )
    return CellTable(
        ["ratings", "n", *((kind, title) for kind in tested for title in ("coverage", "width"))],
        rows,
        f"{judged.title}: {100 * level:g} % intervals, tested on the {judged.unit} of other folds",
        [
            f"{folds} folds of {judged.unit}; below each figure its 95 % interval over them",
            "adaptive: wider for readings that spread over more answers; constant: all the same",
            *([f"without a score: {lost:,}"] if lost else []),
            *([judged.note] if judged.note else []),
        ],
        digits=3,
    )
