"""What a judge loses if answers are sampled instead of log-probabilities being read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from discode._scores import Floats
from discode.bench._agreement import TAU_C_NOTES, agreement_statistic
from discode.bench._choose import BASELINE, MEASURES, JudgedReadings
from discode.bench._figures import BLUE, GREEN, GREY, RED, empty_figure, save_figure
from discode.bench._layout import CellTable, TableValue
from discode.bench._results import StudyResult, file_stem
from discode.benchmarks import Ratings
from discode.decoders import Decoder
from discode.errors import InputError
from discode.readings import Readings
from discode.readings._sampled import draw_answers
from discode.stats import Interval

REPEATS = 20
"""Samples of each size."""


def study_samples(
    sets: Mapping[str, JudgedReadings], decoders: Mapping[str, Decoder], draws: Sequence[int]
) -> StudyResult:
    """Compare decoders on answers drawn from each set of readings, by the number of draws.

    Of ``draws`` answers per pair the agreement with people is a mean over ``REPEATS`` samples, the
    range that of 95 % of them. Rows without a drawn rating count as if they had the set's mean
    score, so that all columns have the same judgments.
    """
    if min(draws, default=0) < 1:
        raise InputError("--samples must be whole numbers from 1, such as 5,10,20,50")
    rows: list[list[TableValue]] = []
    lost: dict[str, dict[str, list[float]]] = {}
    measures = set()
    for judged in sets.values():
        measure = "tau_c" if isinstance(judged.judgments, Ratings) else "mean"
        measures.add(measure)
        agree = partial(_agreement, judged, measure)
        rows.append([f"{judged.title}, {len(judged.judgments):,}"])
        exact = {name: agree(decoder, judged.readings) for name, decoder in decoders.items()}
        drawn = np.array(
            [
                [[agree(decoder, part) for decoder in decoders.values()] for part in parts]
                for parts in ([*_samples(judged.readings, n)] for n in draws)
            ]
        )  # (draws, repeats, decoders)
        base = [*decoders].index(BASELINE)
        for number, name in enumerate(decoders):
            values, whole = drawn[:, :, number], exact[name]
            if number != base:
                values, whole = values - drawn[:, :, base], whole - exact[BASELINE]
            cells = [_interval(column) for column in values]
            label = name if number == base else f"{name} - {BASELINE}"
            rows.append([f"  {label}", *cells, whole])
            lost.setdefault(judged.title, {})[name] = [
                float(column.mean()) - exact[name] for column in drawn[:, :, number]
            ]
    shown = " or ".join(MEASURES[name] for name in sorted(measures, reverse=True))
    table = CellTable(
        ["answers drawn", *map(str, draws), "log p"],
        rows,
        f"Agreement with people ({shown}) of sampled answers; other decoders: difference",
        [
            f"means of {REPEATS} samples, with the range of 95 % of them",
            *([TAU_C_NOTES["people"]] if "tau_c" in measures else []),
        ],
    )
    figures = {
        file_stem(f"samples {title}"): partial(_draw, title, draws, by_decoder)
        for title, by_decoder in lost.items()
    }
    return StudyResult({"samples": table}, figures)


def _samples(readings: Readings, draws: int) -> list[Readings]:
    return [draw_answers(readings, draws, np.random.default_rng(seed)) for seed in range(REPEATS)]


def _agreement(judged: JudgedReadings, measure: str, decoder: Decoder, readings: Readings) -> float:
    score = np.array(decoder.decode(readings).score)
    usable = np.isfinite(judged.readings.answer_logp[:, 0]).any(axis=1)
    score[np.isnan(score) & usable] = np.nanmean(score)
    sides = judged.judgments.sides.values()
    keep = np.all([np.isfinite(score[side]) for side in sides], axis=0)
    statistic = agreement_statistic(judged.judgments, score, measure, "wrong", keep)
    return 100 * statistic(np.ones(int(keep.sum()), np.int64))


def _interval(values: Floats) -> Interval:
    low, high = np.quantile(values, [0.025, 0.975]).tolist()
    return Interval(float(values.mean()), low, high, 0.95)


def _draw(title: str, draws: Sequence[int], lost: Mapping[str, Sequence[float]], out: Path) -> None:
    figure = empty_figure(6, 3.6)
    panel = figure.subplots()
    colours = (GREY, BLUE, RED, GREEN)
    for number, (name, values) in enumerate(lost.items()):
        line = "o-" if number < len(colours) else "o--"
        panel.plot(draws, values, line, color=colours[number % len(colours)], label=name, lw=1.5)
    panel.axhline(0, color=GREY, lw=1, ls=":")
    panel.set_xscale("log")
    panel.set_xticks(draws, [*map(str, draws)])
    panel.minorticks_off()
    panel.set_xlabel("answers drawn per pair")
    panel.set_ylabel("agreement minus that of log p")
    panel.set_title(title, fontsize=10)
    panel.legend(frameon=False, fontsize=8)
    panel.spines[["top", "right"]].set_visible(False)
    save_figure(figure, out, dpi=140)
