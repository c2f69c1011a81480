"""The paper's figures of examples: where two metrics disagree most, and which people agree with.

The rule of selection, the same for every benchmark, so that nothing is picked by its looks:

1. A *case* is two captions of one image of which people prefer one: a choice between them, or
   ratings that prefer one clearly, with means at least half of the ratings' range apart. Where
   three people said yes or no, that is two votes.
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discode._judge import Judge
from discode._paper.base import Study, StudySetup, run_each, run_methods
from discode.bench._figures import (
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
from discode.bench._layout import CellTable, TableValue
from discode.bench._results import StudyResult
from discode.benchmarks import Benchmark, Ratings
from discode.decoders import get_decoder
from discode.decoders._base import Floats
from discode.errors import ImageError, InputError, lookup
from discode.images import ImageSource, open_image
from discode.metrics import METRICS, MetricFactory
from discode.metrics._registry import asks_judge
from discode.options import TEXT, Numbers, Option

CLEAR = 0.5
"""A preference is clear if mean ratings differ by at least this share of the ratings' range."""


@dataclass(frozen=True)
class ExampleCase:
    """Two pairs of an image, and whether two metrics agree with people's preference.

    ``margins`` are positive where a metric sides with people; ``people`` are the mean ratings of
    both pairs, None for a choice.
    """

    better: int
    worse: int
    category: str
    margins: tuple[float, float]
    people: tuple[float, float] | None

    @property
    def right(self) -> int | None:
        """The only metric that agrees with people, 0 or 1; None if both or neither do."""
        first, second = (margin > 0 for margin in self.margins)
        return None if first == second else int(second)


def find_cases(benchmark: Benchmark, first: Floats, second: Floats) -> list[ExampleCase]:
    """List the cases for which both metrics have scores; the score arrays are (P,)."""
    scaled = [_standardised(scores) for scores in (first, second)]
    cases = []
    for better, worse, category, people in _preferences(benchmark):
        left, right = (float(scores[better] - scores[worse]) for scores in scaled)
        if np.isfinite(left + right):
            cases.append(ExampleCase(better, worse, category, (left, right), people))
    return cases


def select_examples(
    cases: Sequence[ExampleCase], image: NDArray[np.int64], count: int
) -> list[ExampleCase]:
    """Select at most ``count`` cases by the rule above; ``image`` (P,) numbers each pair's image.

    In the first half the first metric is right; if there are too few of these, they are not
    replaced by others.
    """
    # Stable: equal ones stay in order.
    ranked = sorted(cases, key=lambda case: -abs(case.margins[0] - case.margins[1]))
    shown: list[ExampleCase] = []
    images: set[int] = set()
    for side, room in ((0, count - count // 2), (1, count // 2)):
        right = [case for case in ranked if case.right == side]
        categories = dict.fromkeys(case.category for case in right)
        queues = [iter([case for case in right if case.category == name]) for name in categories]
        end = len(shown) + room
        while queues and len(shown) < end:  # categories take turns
            queue = queues.pop(0)
            case = next((case for case in queue if int(image[case.better]) not in images), None)
            if case is not None:
                images.add(int(image[case.better]))
                shown.append(case)
                queues.append(queue)
    return shown


def _standardised(scores: Floats) -> Floats:
    spread = float(np.nanstd(scores)) if np.isfinite(scores).any() else 0.0
    return scores / spread if spread > 0 else scores * 0.0


def _preferences(
    benchmark: Benchmark,
) -> Iterator[tuple[int, int, str, tuple[float, float] | None]]:
    """Yield the better and the worse pair of each case, its category, and the mean ratings."""
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


@dataclass(frozen=True)
class ExampleRow:
    """An image with two captions, of which people prefer the first.

    ``scores`` has the people's and the metrics' numbers of each caption by name, ``distributions``
    (2, K), by name, are drawn below the captions.
    """

    image: ImageSource
    heading: str
    captions: tuple[str, str]
    scores: tuple[Mapping[str, float], Mapping[str, float]]
    distributions: Mapping[str, Floats]


_COLOURS = (BEFORE, RED, BLUE)
_ROW, _WIDTH = 2.55, 11.0
"""Inches: the height of a row, the width of the sheet."""
_LINES, _LETTERS = 3, 52
"""Lines per caption and letters per line; the rest is replaced by dots."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]+")


def plain_lines(text: str, width: int = _LETTERS, lines: int = _LINES) -> str:
    """Wrap a text for a figure: control characters removed, width and height limited.

    >>> plain_lines("a dog\\nin the $snow$ \\x1b[31m with a very long tail", width=20, lines=2)
    'a dog in the $snow$\\n[31m with a very…'
    """
    text = _CONTROL.sub(" ", text).encode("utf-8", "replace").decode()
    parts = textwrap.wrap(text, width, drop_whitespace=True) or [""]
    if len(parts) > lines:
        parts = [*parts[: lines - 1], parts[lines - 1][: width - 1].rstrip() + "…"]
    return "\n".join(parts)


def draw_sheet(rows: Sequence[ExampleRow], answers: Sequence[str], title: str, out: Path) -> None:
    """Draw a contact sheet: one row per example, the image and both captions with their bars.

    Every part has a fixed place, texts are cut to it and never read as formulas, so no caption can
    move or hide its neighbours. For an image that cannot be opened the error is shown.
    """
    figure = empty_figure(_WIDTH, 0.75 + _ROW * max(1, len(rows)), None)
    height = figure.get_figheight()

    def place(left: float, top: float, wide: float, high: float) -> Any:
        """Add axes by inches from the left and from the top."""
        return figure.add_axes(
            (left / _WIDTH, 1 - (top + high) / height, wide / _WIDTH, high / height)
        )

    def write(axis: Any, y: float, text: str, **style: Any) -> None:
        axis.set_axis_off()
        axis.text(
            0, y, text, transform=axis.transAxes, parse_math=False, clip_on=True, va="top",
            **{"color": INK, "fontsize": 8.5} | style,
        )  # fmt: skip

    write(place(0.25, 0.1, _WIDTH - 0.5, 0.5), 1, plain_lines(title, 150, 2), fontsize=9.5)
    every = [p for row in rows for p in row.distributions.values()]
    highest = max((float(np.nanmax(p)) for p in every if np.isfinite(p).any()), default=1.0)
    for number, row in enumerate(rows):
        top = 0.7 + _ROW * number
        photo = place(0.25, top + 0.22, 2.6, _ROW - 0.4)
        photo.set_axis_off()
        try:
            photo.imshow(open_image(row.image), aspect="equal")
            photo.set_anchor("NW")
        except ImageError as error:
            write(photo, 0.9, plain_lines(str(error), 34, 4))
        heading = plain_lines(row.heading, 150, 1)
        write(place(0.25, top, _WIDTH - 0.5, 0.22), 0.95, heading, color=GREY)
        for side, (caption, scores) in enumerate(zip(row.captions, row.scores, strict=True)):
            left = 3.1 + 3.95 * side
            words = place(left, top + 0.22, 3.7, 0.74)
            style = {"color": GREEN, "fontweight": "bold"} if side == 0 else {}
            write(words, 1, plain_lines(caption), linespacing=1.2, **style)
            numbers = "   ".join(f"{name} {value:.3f}" for name, value in scores.items())
            write(words, 0.22, plain_lines(numbers, 64, 1), fontsize=8)
            bars = {name: p[side] for name, p in row.distributions.items()}
            _bars(place(left + 0.05, top + 1.0, 3.6, _ROW - 1.35), bars, answers, highest)
    if every:
        figure.legend(
            *figure.axes[-1].get_legend_handles_labels(), loc="upper right", ncols=2, fontsize=8.5,
            frameon=False, bbox_to_anchor=(1 - 0.2 / _WIDTH, 1 - 0.3 / height),
        )  # fmt: skip
    save_figure(figure, out)


def _bars(
    axis: Any, distributions: Mapping[str, Floats], answers: Sequence[str], top: float
) -> None:
    ticks = np.arange(len(answers))
    wide = 0.8 / max(1, len(distributions))
    for number, (name, p) in enumerate(distributions.items()):
        shift = (number - (len(distributions) - 1) / 2) * wide
        axis.bar(ticks + shift, p, wide, color=_COLOURS[number % 3], label=name)
    axis.set_xticks(ticks, answers)
    axis.set_yticks([])
    axis.set_ylim(0, 1.05 * top)
    axis.tick_params(color=PALE, labelcolor=INK, labelsize=7, length=2)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.spines["bottom"].set_color(PALE)


def _distributions(
    factory: MetricFactory, names: Sequence[str], benchmark: Benchmark, numbers: Sequence[int]
) -> tuple[tuple[str, ...], dict[str, Floats]]:
    """Collect the answers, and the distributions (N, K) of some pairs by name.

    The first are the token probabilities, before decoding, then those of each metric of the judge.
    Smoothing does not change the token probabilities, and has no separate bars.
    """
    pairs = [benchmark.pairs[number] for number in numbers]
    answers: tuple[str, ...] = ()
    distributions: dict[str, Floats] = {}
    for name in names:
        metric = factory.make(name)
        if not isinstance(metric, Judge):
            continue
        scores = metric.decode_all(pairs, {name: metric.decoder})[name]
        answers = scores.answers
        shown = {"token probabilities": scores.plain}
        if metric.decoder.name != "smoothing":
            shown[name] = scores.distribution
        for label, distribution in shown.items():
            if distribution is not None:
                distributions.setdefault(label, distribution)
    return answers, distributions


def _run(setup: StudySetup) -> StudyResult:
    names = (setup.options["first"], setup.options["second"])
    if names[0] == names[1]:
        raise InputError(f"{names[0]} cannot be compared with itself; give another second=")
    for name in names:  # before anything is read
        if asks_judge(name):
            get_decoder(name.removeprefix("ref-"))
        elif not name.startswith("scorefile:"):
            lookup(METRICS, name, "metric", also=", or scorefile:PATH")
    return run_each(setup, partial(_compare, names=names))


def _compare(
    setup: StudySetup, place: str, benchmark: Benchmark, names: tuple[str, str]
) -> StudyResult:
    (factory,) = setup.judges.values()
    runs = run_methods(setup, names)
    name, log = next(iter(runs.logs.items()))  # the run of this benchmark comes first
    if log.benchmark != benchmark.name or not {*names} <= log.results.keys():
        return StudyResult({}, problems=runs.problems)
    values = {label: log.results[label].value for label in names}
    cases = find_cases(benchmark, *values.values())
    shown = select_examples(cases, benchmark.image, setup.options["count"])
    answers, rows = _rows(factory, benchmark, values, shown)
    title = f"{name}: where {names[0]} and {names[1]} disagree most"
    rated = isinstance(benchmark.judgments, Ratings)
    sheet = partial(draw_sheet, rows, answers, f"{title}; people prefer the caption in green")
    # The counts show that examples are exceptions.
    right = [sum(case.right == side for case in cases) for side in (0, 1)]
    kind = "cases with a clear preference" if rated else "choices"
    finding = (
        f"{name}: of {len(cases):,} scored {kind} of people, {sum(right):,} divide the two: "
        f"{names[0]} is right in {right[0]:,}, {names[1]} in {right[1]:,}."
    )
    table = _table(rows, names, title, rated=rated)
    return StudyResult(
        {"examples": table}, {"examples": sheet}, {name: log}, [finding], runs.problems
    )


def _rows(
    factory: MetricFactory,
    benchmark: Benchmark,
    values: Mapping[str, Floats],
    cases: Sequence[ExampleCase],
) -> tuple[tuple[str, ...], list[ExampleRow]]:
    """Collect the answers of the distributions and the content of each row of the sheet."""
    names = list(values)
    numbers = [number for case in cases for number in (case.better, case.worse)]
    answers, distributions = _distributions(factory, names, benchmark, numbers)
    rows = []
    for place, case in enumerate(cases):
        better, worse = (benchmark.pairs[number] for number in (case.better, case.worse))
        scores = [
            ({} if case.people is None else {"people": case.people[side]})
            | {name: float(value[number]) for name, value in values.items()}
            for side, number in enumerate((case.better, case.worse))
        ]
        where = f"{case.category}, " if case.category else ""
        heading = (
            f"{where}{Path(str(better.image)).name}: {names[case.right or 0]} sides with people"
        )
        bars = {name: p[2 * place : 2 * place + 2] for name, p in distributions.items()}
        captions = better.caption, worse.caption
        rows.append(ExampleRow(better.image, heading, captions, (scores[0], scores[1]), bars))
    return answers, rows


def _table(
    rows: Sequence[ExampleRow], names: Sequence[str], title: str, *, rated: bool
) -> CellTable:
    body: list[list[TableValue]] = []
    for row in rows:
        body.append([plain_lines(row.heading, 200, 1)])
        for mark, caption, scores in zip("+-", row.captions, row.scores, strict=True):
            body.append([f"  {mark} {plain_lines(caption, 60, 1)}", *scores.values()])
    clear = f"clearly prefer (mean ratings at least {100 * CLEAR:g} % of their range apart)"
    notes = [
        f"+ is the caption that people {clear if rated else 'chose'}; one metric sides with them, "
        "the other not. Largest difference of the two margins first, in standard deviations; half "
        "for each metric"
    ]
    columns = ["caption", *(rows[0].scores[0] if rows else names)]
    return CellTable(columns, body, title, notes, digits=3)


STUDY = Study(
    "examples",
    "images and captions on which two metrics disagree most and people side with one of them",
    ("topb", "qualitative", "rice"),
    _run,
    benchmarks=("flickr8k-expert", "flickr8k-cf", "composite", "pascal50s", "mceval"),
    options=(
        Option("first", "smoothing", "a metric", (TEXT,)),
        Option("second", "discode", "the metric to compare it with", (TEXT,)),
        Option(
            "count", 6, "how many cases, half of them for each metric",
            (Numbers("a whole number from 2", lambda x: x >= 2, whole=True),),
        ),
    ),
)  # fmt: skip
