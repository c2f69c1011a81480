"""The paper's figures of examples: where two metrics disagree most, and whom people side with.

The rule of selection, the same for every benchmark, so that nothing is picked by its looks:

1. A *case* is two captions of one image of which people clearly prefer one: a choice between
   them, or ratings (the mean over raters) at least a quarter of the ratings' range apart.
2. Scores are divided by the metric's standard deviation over all pairs; the *margin* of a metric is
   its score of the preferred caption minus its score of the other.
3. Only cases where one metric has a positive margin and the other one has not are shown: one metric
   sides with people. They are ranked by the difference of the two margins, the largest first; equal
   ones by the number of the case.
4. An image is shown once. Half of the cases are those where the first metric is right, half those
   where the second is; categories (domains) take turns.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from discode.bench.layout import CellTable, TableValue
from discode.bench.runlog import RunLog
from discode.benchmarks import Benchmark, Ratings
from discode.decoders import get_decoder, without_prior
from discode.decoders.base import Floats
from discode.errors import ImageError, InputError, lookup
from discode.images import open_image
from discode.metrics import METRICS, MetricFactory
from discode.metrics.judge_metric import JudgeMetric
from discode.metrics.registry import asks_judge
from discode.options import SIZE, TEXT, Option
from discode.paper.base import Study, StudyResult, StudySetup, run_methods
from discode.paper.drawing import (
    BEFORE,
    BLUE,
    GREEN,
    GREY,
    INK,
    PALE,
    RED,
    empty_figure,
    save_figure,
)

CLEAR = 0.25
"""People clearly prefer a caption whose mean rating is this share of the ratings' range higher."""


@dataclass(frozen=True)
class ExampleCase:
    """Two captions of an image, and how two metrics stand to people's preference.

    Attributes:
        better: The number of the pair that people prefer.
        worse: The number of the other pair.
        category: The choice's category; "" for ratings.
        margins: By both metrics, in standard deviations; positive where it sides with people.
        people: What people gave both pairs: mean ratings, or None for a choice.
    """

    better: int
    worse: int
    category: str
    margins: tuple[float, float]
    people: tuple[float, float] | None

    @property
    def right(self) -> int:
        """Which metric sides with people, 0 or 1."""
        return 0 if self.margins[0] > 0 else 1

    @property
    def distance(self) -> float:
        """How far the two metrics are apart."""
        return abs(self.margins[0] - self.margins[1])


def select_examples(
    benchmark: Benchmark, first: Floats, second: Floats, count: int
) -> list[ExampleCase]:
    """Return at most ``count`` cases by the rule above, from two metrics' scores (P,) of the pairs.

    The first half are those in which the first metric is right; if there are fewer than half, the
    others do not take their place.
    """
    scaled = [_standardised(scores) for scores in (first, second)]
    cases: list[ExampleCase] = []
    for better, worse, category, people in _cases(benchmark):
        left, right = (float(scores[better] - scores[worse]) for scores in scaled)
        if (left > 0 >= right) or (right > 0 >= left):  # never with a NaN
            cases.append(ExampleCase(better, worse, category, (left, right), people))
    cases.sort(key=lambda case: -case.distance)  # stable: equal ones stay in order
    shown: list[ExampleCase] = []
    images: set[int] = set()
    for side, room in ((0, count - count // 2), (1, count // 2)):
        shown += _in_turn([case for case in cases if case.right == side], benchmark, images, room)
    return shown


def _standardised(scores: Floats) -> Floats:
    spread = float(np.nanstd(scores)) if np.isfinite(scores).any() else 0.0
    return scores / spread if spread > 0 else scores * 0.0


def _cases(
    benchmark: Benchmark,
) -> Iterator[tuple[int, int, str, tuple[float, float] | None]]:
    """Yield the better and the worse pair of each case, its category, and what people gave."""
    judged = benchmark.judgments
    if not isinstance(judged, Ratings):
        seen: set[tuple[int, str, str]] = set()
        columns = judged.left.tolist(), judged.right.tolist(), judged.chosen.tolist()
        for left, right, chosen, category in zip(*columns, judged.category, strict=True):
            better, worse = (left, right) if chosen == 0 else (right, left)
            pairs = benchmark.pairs
            key = int(benchmark.image[left]), pairs[better].caption, pairs[worse].caption
            if key not in seen:  # Pascal-50S repeats a choice with other references
                seen.add(key)
                yield better, worse, category, None
        return
    mean = judged.averaged()
    apart = CLEAR * float(np.ptp(judged.value)) if len(judged) else 0.0
    image = benchmark.image[mean.pair]
    order = np.argsort(image, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(image[order])) + 1):
        values = mean.value[rows]
        gap = values[:, None] - values[None, :]
        for i, j in np.argwhere((gap >= apart) & (gap > 0)).tolist():
            pair = int(mean.pair[rows[i]]), int(mean.pair[rows[j]])
            yield *pair, "", (float(values[i]), float(values[j]))


def _in_turn(
    cases: Sequence[ExampleCase], benchmark: Benchmark, images: set[int], room: int
) -> list[ExampleCase]:
    """Take the first ``room`` cases of images not shown yet, the categories in turn."""
    queues: dict[str, Iterator[ExampleCase]] = {}
    for category in dict.fromkeys(case.category for case in cases):
        queues[category] = iter([case for case in cases if case.category == category])
    taken: list[ExampleCase] = []
    while queues and len(taken) < room:
        for category in list(queues):
            for case in queues[category]:
                image = int(benchmark.image[case.better])
                if image not in images:
                    images.add(image)
                    taken.append(case)
                    break
            else:
                del queues[category]
            if len(taken) == room:
                break
    return taken


@dataclass(frozen=True)
class CaptionPanel:
    """One caption of an example: its text, a line about it, and distributions by name."""

    caption: str
    line: str
    answers: tuple[str, ...]
    distributions: dict[str, Floats]
    preferred: bool


@dataclass(frozen=True)
class ExampleRow:
    """A row of the contact sheet: an image with two captions."""

    image: Any
    heading: str
    panels: tuple[CaptionPanel, CaptionPanel]


_COLOURS = (BEFORE, RED, BLUE)
_ROW, _WIDTH = 2.55, 11.0
"""Inches: the height of a row, the width of the sheet."""
_LINES, _LETTERS = 3, 52
"""A caption is shown in this many lines of this many letters; the rest is cut, with dots."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]+")


def plain_lines(text: str, width: int = _LETTERS, lines: int = _LINES) -> str:
    """Return a text as lines of a figure: no control characters, nothing wider or longer.

    >>> plain_lines("a dog\\nin the $snow$ \\x1b[31m with a very long tail", width=20, lines=2)
    'a dog in the $snow$\\n[31m with a very…'
    """
    text = _CONTROL.sub(" ", text).encode("utf-8", "replace").decode()
    parts = textwrap.wrap(text, width, drop_whitespace=True) or [""]
    if len(parts) > lines:
        parts = [*parts[: lines - 1], parts[lines - 1][: width - 1].rstrip() + "…"]
    return "\n".join(parts)


def draw_sheet(rows: Sequence[ExampleRow], title: str, out: Path) -> None:
    """Draw a contact sheet: one row per example, the image and both captions with their bars.

    Every part has a fixed place, texts are cut to it and never read as formulas, so no caption can
    move or hide what is beside it. An image that cannot be opened is a grey box that says so.
    """
    figure = empty_figure(_WIDTH, 0.75 + _ROW * max(1, len(rows)), None)
    height = figure.get_figheight()

    def place(left: float, top: float, wide: float, high: float) -> Any:
        """Add axes by inches from the left and from the top."""
        return figure.add_axes(
            (left / _WIDTH, 1 - (top + high) / height, wide / _WIDTH, high / height)
        )

    def write(axis: Any, x: float, y: float, text: str, **style: Any) -> None:
        axis.text(
            x, y, text, transform=axis.transAxes, parse_math=False, clip_on=True, va="top",
            **{"color": INK, **style},
        )  # fmt: skip

    head = place(0.25, 0.1, _WIDTH - 0.5, 0.5)
    head.set_axis_off()
    write(head, 0, 1, plain_lines(title, 150, 2), fontsize=9.5, linespacing=1.3)
    every = [p for row in rows for panel in row.panels for p in panel.distributions.values()]
    highest = max((float(np.nanmax(p)) for p in every if np.isfinite(p).any()), default=1.0)
    for number, row in enumerate(rows):
        top = 0.7 + _ROW * number
        photo = place(0.25, top + 0.22, 2.6, _ROW - 0.4)
        photo.set_axis_off()
        try:
            photo.imshow(open_image(row.image), aspect="equal")
            photo.set_anchor("NW")
        except ImageError as error:
            photo.set_facecolor("#eeeeee")
            write(photo, 0.05, 0.9, plain_lines(str(error), 34, 4), fontsize=8)
        label = place(0.25, top, _WIDTH - 0.5, 0.22)
        label.set_axis_off()
        write(label, 0, 0.95, plain_lines(row.heading, 150, 1), fontsize=8.5, color=GREY)
        for side, panel in enumerate(row.panels):
            left = 3.1 + 3.95 * side
            words = place(left, top + 0.22, 3.7, 0.74)
            words.set_axis_off()
            colour = GREEN if panel.preferred else INK
            weight = "bold" if panel.preferred else "normal"
            write(words, 0, 1, plain_lines(panel.caption), fontsize=8.5, color=colour,
                  fontweight=weight, linespacing=1.2)  # fmt: skip
            write(words, 0, 0.22, plain_lines(panel.line, 64, 1), fontsize=8)
            bars = place(left + 0.05, top + 1.0, 3.6, _ROW - 1.35)
            _bars(bars, panel, highest)
    if any(figure.axes[-1].get_legend_handles_labels()):
        figure.legend(
            *figure.axes[-1].get_legend_handles_labels(), loc="upper right", ncols=2, fontsize=8.5,
            frameon=False, bbox_to_anchor=(1 - 0.2 / _WIDTH, 1 - 0.3 / height),
        )  # fmt: skip
    save_figure(figure, out)


def _bars(axis: Any, panel: CaptionPanel, top: float) -> None:
    ticks = np.arange(len(panel.answers))
    wide = 0.8 / max(1, len(panel.distributions))
    for number, (name, p) in enumerate(panel.distributions.items()):
        shift = (number - (len(panel.distributions) - 1) / 2) * wide
        axis.bar(ticks + shift, p, wide, color=_COLOURS[number % 3], label=name)
    axis.set_xticks(ticks, panel.answers)
    axis.set_yticks([])
    axis.set_ylim(0, 1.05 * top)
    axis.tick_params(color=PALE, labelcolor=INK, labelsize=7, length=2)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.spines["bottom"].set_color(PALE)


def _distributions(
    factory: MetricFactory, names: Sequence[str], benchmark: Benchmark, numbers: Sequence[int]
) -> tuple[tuple[str, ...], dict[str, Floats]]:
    """Return the answers, and by name the distributions (N, K) of some pairs.

    The first are the token probabilities, before decoding; then come those of the metrics that ask
    the judge. Smoothing leaves the token probabilities as they are, and has no bars of its own.
    """
    pairs = [benchmark.pairs[number] for number in numbers]
    answers: tuple[str, ...] = ()
    distributions: dict[str, Floats] = {}
    for name in names:
        metric = factory.make(name)
        if not isinstance(metric, JudgeMetric):
            continue
        judge = metric.judge
        plain = replace(metric, judge=replace(judge, decoder=without_prior(judge.decoder)))
        for label, judged in (("token probabilities", plain), (name, metric)):
            scores = judged.score_pairs(pairs)  # both decode one reading
            if scores.distribution is not None and judged.judge.decoder.name != "smoothing":
                distributions[label] = scores.distribution
            elif scores.distribution is not None:
                distributions.setdefault("token probabilities", scores.distribution)
            answers = scores.answers
    return answers, distributions


def _run(setup: StudySetup) -> StudyResult:
    if not setup.benchmarks:
        raise InputError("examples needs --data: a run has no captions and no images")
    names = (setup.options["first"], setup.options["second"])
    count = setup.options["count"]
    if count < 2:
        raise InputError(f"count={count} is not allowed; give 2 or more, half for each metric")
    if names[0] == names[1]:
        raise InputError(f"{names[0]} cannot be compared with itself; give another --second")
    for name in names:  # before anything is read
        if asks_judge(name):
            get_decoder(name.removeprefix("ref-"))
        elif not name.startswith("scorefile:"):
            lookup(METRICS, name, "metric", also=", or scorefile:PATH")
    tables: dict[str, CellTable] = {}
    figures: dict[str, Callable[[Path], None]] = {}
    logs: dict[str, RunLog] = {}
    findings: list[str] = []
    problems: list[str] = []
    for model, factory in setup.judges.items():
        for place, benchmark in setup.benchmarks.items():
            alone = replace(setup, judges={model: factory}, benchmarks={place: benchmark})
            runs = run_methods(alone, list(dict.fromkeys(names)))
            problems += runs.problems
            name, log = next(iter(runs.logs.items()))  # its own run comes first
            if log.benchmark != benchmark.name or not {*names} <= log.results.keys():
                continue
            logs[name] = log
            values = [log.results[label].value for label in names]
            cases = select_examples(benchmark, values[0], values[1], count)
            suffix = f"-{len(tables) + 1}" if tables else ""
            rows = _rows(factory, benchmark, names, values, cases)
            title = f"{name}: where {names[0]} and {names[1]} disagree most"
            tables[f"examples{suffix}"] = _table(benchmark, names, values, cases, title)
            title += "; people prefer the caption in green"
            figures[f"examples{suffix}"] = lambda out, rows=rows, title=title: draw_sheet(  # type: ignore[misc]  # bound at once
                rows, title, out
            )
            findings.append(_finding(name, benchmark, names, values))
    if not tables:
        raise InputError(next(iter(problems), "there is nothing to compare"))
    return StudyResult(tables, figures, logs, findings, tuple(dict.fromkeys(problems)))


def _rows(
    factory: MetricFactory,
    benchmark: Benchmark,
    names: Sequence[str],
    values: Sequence[Floats],
    cases: Sequence[ExampleCase],
) -> list[ExampleRow]:
    numbers = [number for case in cases for number in (case.better, case.worse)]
    answers, distributions = _distributions(factory, names, benchmark, numbers)
    rows = []
    for place, case in enumerate(cases):
        panels = []
        for side, number in enumerate((case.better, case.worse)):
            people = "" if case.people is None else f"people {case.people[side]:.2f}   "
            scores = "   ".join(
                f"{label} {value[number]:.3f}" for label, value in zip(names, values, strict=True)
            )
            bars = {label: p[2 * place + side] for label, p in distributions.items()}
            caption = benchmark.pairs[number].caption
            panels.append(CaptionPanel(caption, people + scores, answers, bars, side == 0))
        image = benchmark.pairs[case.better].image
        where = f"{case.category}, " if case.category else ""
        heading = f"{where}{Path(str(image)).name}: {names[case.right]} sides with people"
        rows.append(ExampleRow(image, heading, (panels[0], panels[1])))
    return rows


def _table(
    benchmark: Benchmark,
    names: Sequence[str],
    values: Sequence[Floats],
    cases: Sequence[ExampleCase],
    title: str,
) -> CellTable:
    rows: list[list[TableValue]] = []
    for case in cases:
        image = Path(str(benchmark.pairs[case.better].image)).name
        where = f" ({case.category})" if case.category else ""
        rows.append([plain_lines(f"{image}{where}: {names[case.right]} sides with people", 200, 1)])
        for side, number in enumerate((case.better, case.worse)):
            people = None if case.people is None else case.people[side]
            text = plain_lines(benchmark.pairs[number].caption, 60, 1)
            mark = "+" if side == 0 else "-"
            scores = [float(value[number]) for value in values]
            rows.append([f"  {mark} {text}", people, *scores])
    notes = [
        "+ is the caption that people clearly prefer; one metric sides with them, the other not. "
        "Largest difference of the two margins first, in standard deviations; half for each metric"
    ]
    columns = ["caption", "people", *names]
    if not isinstance(benchmark.judgments, Ratings):  # people chose, and gave no numbers
        columns.remove("people")
        rows = [[row[0], *row[2:]] for row in rows]
    return CellTable(columns, rows, title, notes, digits=3)


def _finding(
    name: str, benchmark: Benchmark, names: Sequence[str], values: Sequence[Floats]
) -> str:
    """Say how often the metrics differ at all, so that examples are not taken for the rule."""
    total = 0
    right = [0, 0]
    for better, worse, _, _ in _cases(benchmark):
        if not all(np.isfinite(value[[better, worse]]).all() for value in values):
            continue
        total += 1
        sides = [bool(value[better] > value[worse]) for value in values]
        if sides[0] != sides[1]:
            right[sides.index(True)] += 1
    return (
        f"{name}: of {total:,} scored cases with a clear preference of people, {sum(right):,} "
        f"divide the two: {names[0]} is right in {right[0]:,}, {names[1]} in {right[1]:,}."
    )


STUDY = Study(
    "examples",
    "images and captions on which two metrics disagree most and people side with one of them",
    ("topb", "qualitative", "rice"),
    _run,
    benchmarks=("flickr8k-expert", "flickr8k-cf", "composite", "pascal50s", "mceval"),
    options=(
        Option("first", "smoothing", "a metric", (TEXT,)),
        Option("second", "discode", "the metric to compare it with", (TEXT,)),
        Option("count", 6, "how many cases, half of them for each metric", (SIZE,)),
    ),
)
