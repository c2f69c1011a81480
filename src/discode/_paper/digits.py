"""The paper's Fig. "observation": the digits that a model prefers on a benchmark."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from discode._paper.base import Study, StudySetup, run_each
from discode.bench._digits import SEEN, DigitCounts, count_digits
from discode.bench._figures import BEFORE, BLUE, INK, RED, empty_figure, save_figure
from discode.bench._layout import CellTable, TableValue
from discode.bench._results import StudyResult
from discode.benchmarks import Benchmark
from discode.stats import Interval


def _count(setup: StudySetup, place: str, benchmark: Benchmark) -> StudyResult:
    (factory,) = setup.judges.values()
    judge = factory.judge
    pairs, which = benchmark.bare_pairs()
    name = f"{judge.backend.identity.model} {place}"
    report = setup.progress and partial(setup.progress, name, len(pairs))
    readings = judge.read(pairs, report)
    images = np.zeros(len(pairs), np.int64)
    images[which] = benchmark.image
    digits = count_digits(readings, images, setup.protocol)
    table, profile = _tables(name, digits)
    return StudyResult(
        {"digits": table, "digits-profile": profile},
        {"digits": partial(draw_digits, digits, name)},
        findings=[_finding(name, digits)],
        problems=[f"{name}: {digits.failed:,} pairs without a reading"] if digits.failed else [],
    )


def _tables(name: str, digits: DigitCounts) -> tuple[CellTable, CellTable]:
    rows: list[list[TableValue]] = [
        [answer, f"{digits.counts[k]:,}", *(column[k].times(100) for column in
         (digits.frequency, digits.probability, digits.bias))]
        for k, answer in enumerate(digits.answers)
    ]  # fmt: skip
    rows.append(["all", f"{digits.pairs:,}", None, None, digits.total.times(100)])
    notes = [
        "raw: how often each answer is the likeliest; probability: its mean token probability; "
        "bias: the mean probability of it that no hump around the likeliest answer explains",
    ]
    if digits.top:
        notes.append(f"{digits.top:,} pairs with the highest rating by its stem are left out")
    columns = ("answer", "pairs", "raw %", "probability %", "bias %")
    return CellTable(columns, rows, f"Answers of {name}", notes, 3), CellTable(
        ("raw", *(("mean token probability, %", answer) for answer in digits.answers)),
        [[answer, *(100 * digits.profile[k]).tolist()]
         for k, answer in enumerate(digits.answers) if digits.counts[k]],
        f"Token probabilities by raw answer, {name}", digits=1,
    )  # fmt: skip


def _finding(name: str, digits: DigitCounts) -> str:
    most = int(np.argmax([share.value for share in digits.frequency]))
    worst = int(np.argmax([bias.value for bias in digits.bias]))
    total, humps = digits.total.times(100), digits.humps.times(100)
    return (
        f"{name}: {100 * digits.frequency[most].value:.1f} % of the raw answers are "
        f"{digits.answers[most]}, which has {100 * digits.probability[most].value:.1f} % of the "
        f"probability. {total.value:.2f} % of the probability ({_range(total)}) lies above one "
        f"hump, most of it on {digits.answers[worst]}; {humps.value:.1f} % of the pairs "
        f"({_range(humps)}) have a second hump of more than {100 * SEEN:g} %."
    )


def _range(interval: Interval) -> str:
    return "no interval" if np.isnan(interval.low) else f"{interval.low:.2f} to {interval.high:.2f}"


def draw_digits(digits: DigitCounts, name: str, out: Path) -> None:
    """Draw how often each answer is given, and the token probabilities for each raw answer."""
    figure = empty_figure(11, 6.4)
    k, across = len(digits.answers), 5
    down = -(-k // across)
    grid = figure.add_gridspec(1 + down, across, height_ratios=(1.2, *[1.0] * down))
    wide = figure.add_subplot(grid[0, :])
    ticks = np.arange(k)
    for shift, column, colour, label in (
        (-0.2, digits.frequency, BLUE, "raw answers"),
        (0.2, digits.probability, BEFORE, "token probabilities, mean"),
    ):
        values = np.array([100 * share.value for share in column])
        bounds = np.array([[100 * share.low, 100 * share.high] for share in column])
        error = None if np.isnan(bounds).any() else np.abs(bounds.T - values)
        wide.bar(ticks + shift, values, 0.4, color=colour, label=label, yerr=error, ecolor=INK,
                 error_kw={"lw": 0.8})  # fmt: skip
    wide.set_xticks(ticks, digits.answers)
    wide.set_ylabel("%")
    wide.set_title(f"{name}: {digits.pairs:,} pairs", fontsize=10, color=INK, parse_math=False)
    wide.legend(frameon=False, fontsize=8.5)
    highest = float(np.nanmax(digits.profile))
    for answer in range(k):
        axis = figure.add_subplot(grid[1 + answer // across, answer % across])
        axis.set_title(
            f"raw answer {digits.answers[answer]}: {digits.counts[answer]:,}",
            fontsize=8.5,
            color=INK,
        )
        axis.set_ylim(0, 105 * highest)
        axis.set_xticks(ticks, digits.answers)
        if digits.counts[answer]:
            p, above = 100 * digits.profile[answer], 100 * digits.excess[answer]
            colours = [BLUE if digit == answer else BEFORE for digit in range(k)]
            axis.bar(ticks, p - above, 0.8, color=colours)
            axis.bar(ticks, above, 0.8, bottom=p - above, color=RED)
        if answer % across:
            axis.tick_params(labelleft=False)
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=7.5, length=2)
    figure.supxlabel(
        "mean token probability of each answer, %, by raw answer (blue); red: above one hump",
        fontsize=9, color=INK,
    )  # fmt: skip
    save_figure(figure, out)


STUDY = Study(
    "digits",
    "which answers a model prefers whatever it judges: raw digits, token probabilities, bias",
    ("observation",),
    partial(run_each, make=_count),
    benchmarks=("flickr8k-expert", "flickr8k-cf", "composite", "pascal50s", "mceval"),
)
