"""Put the page together: data as JSON that cannot end its script, styles and scripts inside."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from discode._files import replacing, without_nan
from discode._http.static import ICON, SHARED
from discode._probe.card import Card
from discode._report.bars import MetricBars, find_bars
from discode._report.board import board_json, board_tables, name_judges
from discode._report.charts import chart_metric, rating_levels
from discode._report.disagreement import disagreement
from discode._report.gather import GatheredRun, gather_runs
from discode._report.thumbnails import make_thumbnails
from discode._scores import Floats, or_none
from discode._version import __version__
from discode.bench._agreement import main_measure, note_ties
from discode.bench._compare import GROUP_RULE, Difference, MetricComparison, compare_metrics
from discode.bench._layout import layout_texts, write_table
from discode.bench._runlog import RunLog
from discode.bench._tables import (
    MEASURE_SYMBOLS,
    TableCell,
    benchmark_title,
    note_tau_c,
    table_cells,
    table_measures,
    with_one_m,
)
from discode.benchmarks import Ratings
from discode.errors import InputError, count_of
from discode.explain import Explanation
from discode.stats import UndefinedWarning

PAGE = Path(__file__).parent / "page"
BOARDS = (".md", ".json")
"""Suffixes of a leaderboard without a page."""
IMAGE_BUDGET = 12 << 20
"""Bytes of the page that images may take by default."""


@dataclass(frozen=True)
class ReportFacts:
    """Numbers of items, images and distributions in a report, and notes on omissions."""

    items: int
    images: int
    bars: int
    notes: tuple[str, ...]


def write_report(
    path: Path,
    runs: Mapping[str, RunLog],
    *,
    data: Sequence[Path] = (),
    stores: Sequence[Path] = (),
    title: str = "",
    image_budget: int = IMAGE_BUDGET,
    resamples: int = 1000,
    cards: Mapping[str, Card] = MappingProxyType({}),
    progress: Callable[[str], None] = lambda step: None,
) -> ReportFacts:
    """Write the report of runs, given by name, to ``path``, whole or not at all.

    A page has a leaderboard if there are several metrics or ``cards``; a ``path`` that ends in .md
    or .json receives only that.

    Args:
        path: The HTML file.
        runs: Logs by name, as for :func:`~discode.bench._tables.table_cells`.
        data: Folders with the benchmarks' files; without them the explorer has ids and scores.
        stores: Readings of the judges, for the bars before and after decoding.
        title: Of the page; the benchmarks' names if empty.
        image_budget: Bytes that images may take; 0 for a page without images.
        resamples: Of the tests that group the metrics.
        cards: Cards of judges, by what they are called.
        progress: Called with a description of each step.
    """
    runs = name_judges(with_one_m(runs))
    gathered = gather_runs(runs, data)
    cells = table_cells(runs)
    if path.suffix.lower() in BOARDS:
        return _write_board(path, [_entry(run, cells, resamples) for run in gathered], cards)
    texts = TextTable()
    notes: list[str] = []
    thumbnails: dict[str, str] = {}
    benchmarks: list[dict[str, Any]] = []
    apart = [{label: disagreement(g.log, label) for label in g.log.results} for g in gathered]
    with_bars = items = 0
    for run, distances in zip(gathered, apart, strict=True):
        if run.data:
            notes.append(f"{run.name}: {run.data}")
        bars: dict[str, MetricBars] = {}
        if run.pairs and stores:
            progress(f"decoding the readings of {run.name}")
            bars = find_bars(run.pairs, run.log.results, stores, notes.append)
            drawn = [np.isfinite(metric.before).any(axis=1) for metric in bars.values()]
            with_bars += int(np.any(drawn, axis=0).sum())
        progress(f"comparing the metrics of {run.name}")
        entry = _entry(run, cells, resamples)
        benchmarks.append(entry | _items(run, distances, texts) | _bars_json(run, bars))
        items += len(run.log.ids if entry["kind"] == "ratings" else run.log.judgments)
    if image_budget > 0:
        progress("making thumbnails")
        thumbnails, missing = make_thumbnails(_by_interest(gathered, apart), image_budget)
        notes += missing
    for entry, run in zip(benchmarks, gathered, strict=True):
        entry["thumbs"] = _thumbs(run, [*thumbnails])
    notes = list(dict.fromkeys(notes))  # several benchmarks may have one store
    progress("writing the page")
    title = title or " · ".join(dict.fromkeys(entry["title"] for entry in benchmarks))
    about: dict[str, Any] = {"title": title, "notes": notes, "images": image_budget > 0}
    if cards or len({metric["label"] for entry in benchmarks for metric in entry["metrics"]}) > 1:
        about["board"] = [layout_texts(table) for table in board_tables(benchmarks, cards)]
    save_page(path, about, benchmarks, texts, thumbnails)
    return ReportFacts(items, len(thumbnails), with_bars, tuple(notes))


def _write_board(
    path: Path, benchmarks: Sequence[Mapping[str, Any]], cards: Mapping[str, Card]
) -> ReportFacts:
    with replacing(path) as temp:
        if path.suffix.lower() == ".json":
            text = json.dumps(board_json(benchmarks, cards), ensure_ascii=False, indent=1)
        else:
            tables = board_tables(benchmarks, cards)
            text = "\n\n".join(write_table(table, "markdown") for table in tables)
        temp.write_text(f"{text}\n", encoding="utf-8")
    items = sum(
        entry["pairs" if entry["kind"] == "ratings" else "judgments"] for entry in benchmarks
    )
    return ReportFacts(items, 0, 0, ())


def save_page(
    path: Path,
    about: Mapping[str, Any],
    benchmarks: Sequence[Mapping[str, Any]],
    texts: TextTable,
    thumbnails: Mapping[str, str],
) -> None:
    """Write the page of ``benchmarks``, whole or not at all; ``about`` is its title and notes."""
    content = {
        "version": __version__, **about, "benchmarks": benchmarks,
        "texts": [*texts.texts], "lists": [*texts.lists],
    }  # fmt: skip
    with replacing(path) as temp:
        page = render_page(content, [*thumbnails.values()])
        temp.write_text(page, encoding="utf-8", newline="\n")


def render_page(content: Mapping[str, Any], images: Sequence[str]) -> str:
    """Render the page as HTML.

    Its policy allows the very styles and scripts that are written here, by their hashes, and
    images inside the page; nothing is fetched, and no text of the data can become a script.
    """
    style = (PAGE / "report.css").read_text(encoding="utf-8")
    scripts = (*SHARED, PAGE / "report.js")
    script = "".join(path.read_text(encoding="utf-8") for path in scripts)
    return _fill_template(
        TITLE=escape(str(content["title"])),
        POLICY=f"script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:",
        STYLE=f"<style>{style}</style>",
        SCRIPT=f"<script>{script}</script>",
        DATA=script_json(content),
        IMAGES=script_json(images),
    )


def render_explorer(style: str, scripts: Sequence[str]) -> str:
    """Render the page without data, for a server that has its styles and scripts at these paths.

    One of the scripts, before report.js, must fill in the data.
    """
    return _fill_template(
        TITLE="Explorer",
        POLICY="script-src 'self'; style-src 'self'; img-src 'self' data:",
        STYLE=f'<link rel="stylesheet" href="{style}">',
        SCRIPT="".join(f'<script src="{path}"></script>' for path in scripts),
        DATA="",
        IMAGES="",
    )


def _fill_template(**parts: str) -> str:
    icon = base64.b64encode(ICON.read_bytes()).decode("ascii")
    parts["ICON"] = f"data:image/svg+xml;base64,{icon}"
    template = (PAGE / "report.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda name: parts[name[1]], template)


def script_json(value: object) -> str:
    r"""Encode JSON so that it is safe inside a script element.

    >>> script_json(["</script>", float("nan")])
    '["\\u003c/script\\u003e",null]'
    """
    text = json.dumps(without_nan(value), ensure_ascii=False, separators=(",", ":"))
    return re.sub("[<>&\u2028\u2029\ud800-\udfff]", lambda letter: f"\\u{ord(letter[0]):04x}", text)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


class TextTable:
    """Texts, and lists of texts, each kept once and known by its number."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}
        self.lists: dict[tuple[int, ...], int] = {}

    def text(self, text: str) -> int:
        """Number a text."""
        return self.texts.setdefault(text, len(self.texts))

    def list(self, texts: tuple[str, ...]) -> int:
        """Number a list of texts."""
        return self.lists.setdefault(tuple(map(self.text, texts)), len(self.lists))


def _entry(run: GatheredRun, cells: Sequence[TableCell], resamples: int) -> dict[str, Any]:
    return _summary(run, [cell for cell in cells if cell.benchmark == run.name], resamples)


def _summary(run: GatheredRun, cells: Sequence[TableCell], resamples: int) -> dict[str, Any]:
    log = run.log
    compared, why = _compare(log, resamples)
    group = {} if compared is None else {
        label: number for number, names in enumerate(compared.groups, 1) for label in names
    }  # fmt: skip
    rated = isinstance(log.judgments, Ratings)
    measures = table_measures(log)
    if rated:
        ties = {label: 100 * result.measures["ties"].value for label, result in log.results.items()}
        why += f" {'; '.join([*note_tau_c([log]), *note_ties(ties)])}."
    metrics = []
    for label, result in log.results.items():
        by_measure = {cell.measure: cell for cell in cells if cell.metric == label}
        metrics.append(
            {
                "label": label,
                "signature": str(result.signature),
                "group": group.get(label),
                "seconds": result.seconds,
                "counts": dict(result.counts),
                "ties": 100 * result.measures["ties"].value,
                "failed": 100 * result.measures["failed"].value,
                "cells": {
                    name: [
                        short_number(v)
                        for v in (c.value, c.interval.low, c.interval.high, c.paper, c.difference)
                    ]
                    for name, c in by_measure.items()
                },
                "charts": chart_metric(log, label),
            }
        )
    return {
        "name": run.name,
        "title": benchmark_title(run.name),
        "kind": "ratings" if rated else "preferences",
        "pairs": len(log.ids),
        "judgments": len(log.judgments),
        "photos": len(np.unique(log.image)),
        "options": dict(log.options),
        "checksums": dict(log.checksums),
        "notes": list(log.notes),
        "versions": dict(log.versions),
        "runs": list(run.sources),
        "ties": log.protocol.ties,
        "level": log.protocol.level,
        "main": main_measure(log.benchmark, log.judgments),
        "measures": [[name, MEASURE_SYMBOLS.get(name, name)] for name in measures],
        "levels": rating_levels(log.judgments.value)[0] if isinstance(log.judgments, Ratings)
        else [],
        "compared": why,
        "differences": [] if compared is None else list_differences(compared.pairs),
        "metrics": metrics,
        "data": run.data,
    }  # fmt: skip


def _compare(log: RunLog, resamples: int) -> tuple[MetricComparison | None, str]:
    """Group a run's metrics, and describe the method, or the reason if there are no groups."""
    if len(log.results) < 2:
        return None, "There is only one metric."
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UndefinedWarning)
            done = compare_metrics(log, [], resamples=resamples)
    except InputError as error:
        return None, f"Not compared: {error}."
    left_out = (
        f" {done.left_out} judgments are left out: not every metric has a score for them."
        if done.left_out
        else ""
    )
    silent = f" Without any score: {', '.join(done.silent)}." if done.silent else ""
    differs = done.pairs[0].measure == "tau_c" and log.protocol.tau_m != "people"
    rule = ", with people's m" if differs else ""
    return done, (
        grouping_rule(resamples, count_of(len(done.pairs), "pair"), rule) + left_out + silent
    )


def _items(run: GatheredRun, apart: Mapping[str, Floats], texts: TextTable) -> dict[str, Any]:
    log, judged = run.log, run.log.judgments
    columns: dict[str, Any] = {
        "ids": list(log.ids),
        "image": log.image.tolist(),
        "caption": [texts.text(pair.caption) for pair in run.pairs],
        "references": [texts.list(pair.references) for pair in run.pairs],
        "scores": [or_none(r.value) for r in log.results.values()],
        "errors": [rows_by_word(r.errors.items()) for r in log.results.values()],
        "apart": [[_points(v) for v in apart[label].tolist()] for label in log.results],
    }
    if isinstance(judged, Ratings):
        said: list[list[float]] = [[] for _ in log.ids]
        for pair, value in zip(judged.pair.tolist(), judged.value.tolist(), strict=True):
            said[pair].append(float(f"{value:.4g}"))
        return columns | {"said": said}
    return columns | {
        "left": judged.left.tolist(), "right": judged.right.tolist(),
        "chosen": judged.chosen.tolist(), "category": list(judged.category),
    }  # fmt: skip


def rows_by_word(pairs: Iterable[tuple[int, str]]) -> dict[str, list[int]]:
    """Group the numbers of pairs by a word that many share: a reason or a flag."""
    rows: dict[str, list[int]] = {}
    for row, word in pairs:
        rows.setdefault(word, []).append(row)
    return rows


def _bars_json(run: GatheredRun, bars: Mapping[str, MetricBars]) -> dict[str, Any]:
    """Encode flags, words and distributions (base64 of 16-bit numbers); shared ones once.

    A metric of the token probabilities as they are (smoothing) has ``after`` null, and so has one
    whose decoder leaves a single answer (raw), marked ``alone``.
    """
    labels = list(run.log.results)
    entries: list[dict[str, Any]] = []
    for label, metric in bars.items():
        rows = np.flatnonzero(np.isfinite(metric.before).all(axis=1))
        before, after = metric.before[rows], metric.after[rows]
        single = bool((after.max(axis=1, initial=0) > 1 - 1e-9).all())
        same = bool(np.allclose(before, after, atol=1e-9))
        entries.append(
            {
                "metric": labels.index(label),
                "labels": metric.labels,
                "rows": rows.tolist(),
                "before": _packed(before),
                "after": None if same or single else _packed(after),
                "alone": single and not same,
            }
        )
    for number, entry in enumerate(entries):
        for earlier, other in enumerate(entries[:number]):
            if all(entry[key] == other[key] for key in ("labels", "rows", "before")):
                entry |= {"rows": None, "before": None, "like": earlier}
                break
    known = [bars.get(label) for label in labels]
    return {
        "bars": entries,
        "flags": [
            rows_by_word((row, name) for row, names in its.flags.items() for name in names)
            if its
            else {}
            for its in known
        ],
        "explained": [
            {row: _words(each) for row, each in its.explained.items()} if its else {}
            for its in known
        ],
    }


def _words(explanation: Explanation) -> list[list[Any]]:
    """List the words of a caption: position, effect on the score, whether marked."""
    return [
        [span.start, span.end, short_number(span.effect), span.marked, span.error]
        for span in explanation.spans
    ]


def _packed(p: Floats) -> str:
    whole = np.round(np.nan_to_num(p).clip(0, 1) * 65535).astype("<u2")
    return base64.b64encode(whole.tobytes()).decode("ascii")


def _by_interest(
    gathered: Sequence[GatheredRun], apart: Sequence[Mapping[str, Floats]]
) -> list[str]:
    """Sort the paths of images, those with the greatest disagreements first."""
    most: dict[str, float] = {}
    for run, columns in zip(gathered, apart, strict=True):
        judged = run.log.judgments
        owner = np.arange(len(run.log.ids)) if isinstance(judged, Ratings) else judged.left
        signed = np.stack([np.nan_to_num(column) for column in columns.values()])
        # Preferences below 0 agree with people.
        far = (np.abs(signed) if isinstance(judged, Ratings) else signed).max(axis=0)
        for pair, value in zip(owner.tolist() if run.pairs else (), far.tolist(), strict=False):
            path = str(run.pairs[pair].image)
            most[path] = max(most.get(path, -math.inf), value)
    return sorted(most, key=lambda path: -most[path])


def _thumbs(run: GatheredRun, paths: Sequence[str]) -> list[int]:
    place = {path: number for number, path in enumerate(paths)}
    numbers = [-1] * (int(run.log.image.max(initial=-1)) + 1)
    for pair, image in zip(run.pairs, run.log.image.tolist(), strict=False):
        numbers[image] = place.get(str(pair.image), -1)
    return numbers


def _points(value: float) -> int | None:
    """Round points to a whole number; only ties become 0, so the sign is kept."""
    if math.isnan(value):
        return None
    return round(value) or (value > 0) - (value < 0)


def list_differences(pairs: Iterable[Difference]) -> list[list[Any]]:
    """Convert comparisons to rows for the page: both names, difference, interval, Holm's p."""
    return [
        [d.a, d.b, *map(short_number, (d.difference, d.low, d.high, d.adjusted))] for d in pairs
    ]


def grouping_rule(resamples: int, pairs: str, rule: str = "") -> str:
    """Describe how the page's groups were found, over so many ``pairs``."""
    return (
        f"Groups by {resamples} permutations that swap whole images, p adjusted by Holm's method "
        f"over {pairs}, 5 %{rule}; {GROUP_RULE}."
    )


def short_number(value: float) -> float | None:
    """Round to five digits, which keeps the page small."""
    return None if math.isnan(value) else float(f"{value:.5g}")
