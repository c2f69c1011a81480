"""The page of captioners: means, differences, and every caption with its score."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from discode._report.assemble import (
    IMAGE_BUDGET,
    ReportFacts,
    TextTable,
    grouping_rule,
    list_differences,
    rows_by_word,
    save_page,
    short_number,
)
from discode._report.thumbnails import make_thumbnails
from discode.bench._compare import note_few_images
from discode.bench._systems import (
    RESAMPLES,
    JoinedScores,
    SystemRow,
    compare_systems,
    explain_join,
)
from discode.errors import count_of


def write_captioners(
    path: Path,
    joined: JoinedScores,
    *,
    data: Sequence[Path] = (),
    title: str = "",
    image_budget: int = IMAGE_BUDGET,
    resamples: int = RESAMPLES,
) -> ReportFacts:
    """Write the report of captioners to ``path``, whole or not at all.

    The arguments are those of :func:`~discode._report.write_report`; ``data`` are folders in which
    the images are, where the names in the score files do not lead to them.
    """
    texts = TextTable()
    items = [
        (system, number, row)
        for number, image in enumerate(joined.images)
        for system, images in enumerate(joined.items)
        for row in images.get(image, ())
    ]
    paths = [""] * len(joined.images)
    for _, number, row in items:
        paths[number] = paths[number] or _find(row, data)
    thumbnails: dict[str, str] = {}
    differences = np.ptp(joined.value, axis=0)  # NaN where a captioner has no score
    notes = explain_join(joined) + note_few_images(int(joined.shared.sum()))
    if image_budget > 0:
        shown = [paths[number] for number in np.argsort(-differences, kind="stable").tolist()]
        thumbnails, missing = make_thumbnails([name for name in shown if name], image_budget)
        notes += missing
        if missing and not thumbnails and not data:
            notes.append("give the folder of the images with --images")
    place = {name: number for number, name in enumerate(thumbnails)}
    entry: dict[str, Any] = _summary(joined, resamples) | {
        "pairs": len(items),
        "notes": notes,
        "ids": [row.keys.get("id", joined.images[number]) for _, number, row in items],
        "image": [number for _, number, _ in items],
        "owner": [system for system, _, _ in items],
        "category": [joined.names[system] for system, _, _ in items],
        "caption": [texts.text(row.caption) for _, _, row in items],
        "references": [texts.list(())] * len(items),
        "said": [[]] * len(items),
        "thumbs": [place.get(name, -1) for name in paths],
    }
    for number in range(len(joined.names)):
        own = [row if system == number else None for system, _, row in items]
        entry["scores"].append(
            [None if row is None or math.isnan(row.score) else row.score for row in own]
        )
        entry["apart"].append(
            [None if row is None else short_number(differences[image])
             for (_, image, _), row in zip(items, own, strict=True)]
        )  # fmt: skip
        entry["flags"].append({})
        failed = [(i, row.error or "no score") for i, row in enumerate(own) if row and row.failed]
        entry["errors"].append(rows_by_word(failed))
    about: dict[str, Any] = {
        "title": title or entry["title"], "notes": [], "images": image_budget > 0,
        "captioners": True,
    }  # fmt: skip
    save_page(path, about, [entry], texts, thumbnails)
    return ReportFacts(len(items), len(thumbnails), 0, tuple(notes))


def _find(row: SystemRow, folders: Sequence[Path]) -> str:
    """Find a row's image in the first folder that has it; else return its file or name."""
    names = [Path(row.file).name, row.keys.get("image", "")]
    paths = (folder / name for folder in folders for name in names if name)
    return str(next(filter(Path.is_file, paths), row.file or names[-1]))


def _summary(joined: JoinedScores, resamples: int) -> dict[str, Any]:
    done = compare_systems(joined, resamples=resamples)
    means = {each.name: each for each in done.systems}
    return {
        "name": "captioners", "title": "Captioners", "kind": "ratings", "judgments": 0,
        "photos": done.images, "options": {"joined by": joined.by}, "checksums": {},
        "versions": {}, "runs": joined.names, "ties": "", "level": 0.95, "digits": 4,
        "main": "mean", "measures": [["mean", "mean"]], "levels": [], "data": "", "bars": [],
        "explained": [],
        "compared": grouping_rule(resamples, count_of(len(done.pairs), "pair"))
        if done.pairs
        else "",
        "differences": list_differences(done.pairs),
        "metrics": [
            {
                "label": name, "signature": "\n".join(joined.signatures),
                "group": means[name].rank, "ties": None,
                "failed": 100 * failed / max(1, rows),
                "cells": {"mean": [
                    *map(short_number, (means[name].mean, means[name].low, means[name].high)),
                    None, None,
                ]},
            }
            for name, failed, rows in zip(joined.names, joined.failed, joined.rows, strict=True)
        ],
        "scores": [], "apart": [], "flags": [], "errors": [],
    }  # fmt: skip
