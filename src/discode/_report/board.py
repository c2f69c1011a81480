"""A leaderboard: judges across benchmarks, with intervals, groups, speed, and their cards."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from discode._files import without_nan
from discode._probe.card import Card, cards_table
from discode._version import __version__
from discode.bench._layout import CellTable, ColumnTitle, TableValue
from discode.bench._runlog import MetricResult, RunLog

SPEED_NOTE = (
    "pairs/s: over all benchmarks. Judges of one model share its readings: the one that ran first "
    "has the model's time, and readings from a store take next to none."
)


def name_judges(runs: Mapping[str, RunLog]) -> dict[str, RunLog]:
    """Add the model to labels that several models have, and its revision where that is not enough.

    Rows of a table over several benchmarks are then judges, whichever run has them.
    """
    who: dict[str, set[tuple[str, str]]] = {}
    for log in runs.values():
        for label, result in log.results.items():
            who.setdefault(label, set()).add(_model(result))

    def named(label: str, result: MetricResult) -> str:
        model, revision = _model(result)
        if len(who[label]) == 1 or not model:
            return label
        short = model.rpartition("/")[2]
        alike = {each for each in who[label] if each[0].rpartition("/")[2] == short}
        if len({name for name, _ in alike}) > 1:
            short = model
        several = len({each[1] for each in alike if each[0] == model}) > 1
        return f"{label}, {short}" + (f"@{revision}" if several else "")

    return {
        name: replace(log, results={named(x, each): each for x, each in log.results.items()})
        for name, log in runs.items()
    }


def _model(result: MetricResult) -> tuple[str, str]:
    return result.signature.get("model"), result.signature.get("revision")


def rank_judges(benchmarks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rank judges by their mean place over benchmarks; those that miss one follow the others.

    ``benchmarks`` are entries of the page. Each judge gets its cells by benchmark, its mean place
    from 0 (the best of all) to 1, its seconds and its pairs per second.
    """
    judges: dict[str, dict[str, Any]] = {}
    for entry in benchmarks:
        values = [_bound(entry, metric, 0) for metric in entry["metrics"]]
        known = [value for value in values if not math.isnan(value)]
        for metric, value in zip(entry["metrics"], values, strict=True):
            row = judges.setdefault(
                metric["label"], {"label": metric["label"], "cells": {}, "seconds": 0.0, "pairs": 0}
            )
            place = sum(other > value for other in known) / max(1, len(known) - 1)
            row["cells"][entry["name"]] = {
                "value": value,
                "low": _bound(entry, metric, 1),
                "high": _bound(entry, metric, 2),
                "group": metric["group"],
                "place": math.nan if math.isnan(value) else place,
                "signature": metric["signature"],
            }
            if "metric:scorefile" not in metric["signature"]:  # whose scores took time elsewhere
                row["seconds"] += metric["seconds"]
                row["pairs"] += entry["pairs"]
    for row in judges.values():
        places = [cell["place"] for cell in row["cells"].values()]
        places = [place for place in places if not math.isnan(place)]
        row["benchmarks"] = len(places)
        row["place"] = sum(places) / len(places) if places else math.nan
        row["pairs_per_second"] = row["pairs"] / row["seconds"] if row["seconds"] else math.nan
    return sorted(
        judges.values(),
        key=lambda row: (-row["benchmarks"], math.isnan(row["place"]), row["place"]),
    )


def _bound(entry: Mapping[str, Any], metric: Mapping[str, Any], which: int) -> float:
    """Return the value of the benchmark's main measure, or a bound of it; NaN if it has none."""
    found = metric["cells"].get(entry["main"], [None] * 3)[which]
    return math.nan if found is None else float(found)


def board_tables(
    benchmarks: Sequence[Mapping[str, Any]], cards: Mapping[str, Card]
) -> list[CellTable]:
    """Lay out the leaderboard, and the cards of judges side by side."""
    titles: list[ColumnTitle] = ["judge"]
    for entry in benchmarks:
        symbol = dict(entry["measures"]).get(entry["main"], entry["main"])
        titles += [(entry["title"], title) for title in (symbol, "95 %", "group")]
    rows: list[Sequence[TableValue]] = []
    for judge in rank_judges(benchmarks):
        cells: list[TableValue] = []
        for entry in benchmarks:
            cell = judge["cells"].get(entry["name"])
            if cell is None:
                cells += [None] * 3
                continue
            known = not math.isnan(cell["low"])
            cells += [
                "undefined" if math.isnan(cell["value"]) else f"{cell['value']:.2f}",
                f"{cell['low']:.1f} to {cell['high']:.1f}" if known else None,
                None if cell["group"] is None else str(cell["group"]),
            ]
        speed = judge["pairs_per_second"]
        rows.append(
            [judge["label"], *cells, f"{judge['seconds']:.1f}" if judge["pairs"] else "",
             "" if math.isnan(speed) else f"{speed:.3g}" if speed < 1000 else f"{speed:,.0f}"]
        )  # fmt: skip
    notes = [
        "Judges that all benchmarks have come first, by their mean place.",
        SPEED_NOTE,
        *(f"{entry['title']}: {entry['compared']}" for entry in benchmarks),
    ]
    tables = [CellTable([*titles, "seconds", "pairs/s"], rows, "Leaderboard", notes)]
    if cards:
        tables.append(replace(cards_table(cards, full=False), title="Cards"))
    return tables


def board_json(
    benchmarks: Sequence[Mapping[str, Any]], cards: Mapping[str, Card]
) -> dict[str, Any]:
    """Collect the leaderboard: benchmarks with their comparisons, judges in order, and cards."""
    kept = ("name", "title", "kind", "main", "level", "pairs", "judgments", "photos", "compared",
            "differences", "runs", "checksums", "options")  # fmt: skip
    content = {
        "discode": __version__,
        "benchmarks": [{name: entry[name] for name in kept} for entry in benchmarks],
        "judges": rank_judges(benchmarks),
        "cards": {label: asdict(card) for label, card in cards.items()},
    }
    return dict(without_nan(content))
