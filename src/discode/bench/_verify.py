"""Published numbers, checked cell by cell from what their authors released."""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from discode._files import read_rows, reading
from discode._scales import FIVE
from discode.bench._agreement import AgreementProtocol
from discode.bench._layout import CellTable, TableValue
from discode.bench._published import find_cell, published_cell
from discode.bench._run import RunProgress, run_metrics
from discode.bench._runlog import RunLog
from discode.benchmarks import BENCHMARKS, Benchmark, Preferences, find_folder
from discode.benchmarks._parsing import read_object
from discode.decoders import get_decoder
from discode.decoders._base import Floats
from discode.decoders._preset import reading_width
from discode.errors import InputError
from discode.metrics import METRICS, MetricFactory
from discode.readings import Readings
from discode.stats import accuracy, fit_intervals

TEXT = ("bleu-1", "bleu-4", "rouge-l", "meteor", "cider")
"""The text metrics that are computed here."""
PRINTED = 0.1
"""How far ours may be from a number with one decimal: values at its edge are rounded either way."""
DRAWN = {"mean": 0.7}
"""As above for metrics that see Pascal-50S's references, of which the published draw is unknown."""
CONFORMAL = "arXiv:2604.25235"
HALVES = 10
"""Random halves to fit intervals on and to test them on, as published."""
_JUDGES = "divake_v2"
_FLEUR = "fleur@LLaVA-1.5-13B"


@dataclass(frozen=True)
class VerifiedCell:
    """A published number and ours; they agree if they are at most ``within`` apart."""

    column: str
    metric: str
    published: float
    ours: float
    within: float
    source: str
    expected: bool = True
    """Whether it is known to hold."""
    note: str = ""

    @property
    def holds(self) -> bool:
        """Whether the number is reproduced, to half a unit of its last digit."""
        return abs(self.ours - self.published) <= self.within * (1 + 1e-9)

    @property
    def verdict(self) -> str:
        """Whether it holds, and, where it does not, whether that is new."""
        found = "holds" if self.holds else "differs" if self.expected else "differs (known)"
        return found + (self.note and f", {self.note}")


def verify(
    benchmark: Benchmark,
    data: Path,
    metrics: Mapping[str, str],
    progress: RunProgress | None = None,
) -> Iterator[VerifiedCell]:
    """Compare a benchmark's published numbers with ours.

    ``metrics`` are computed here; scores that authors released are read where ``data`` has them.
    """
    released: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for label, rows in _released(benchmark.name, data).items():
            path = Path(folder) / f"{len(released)}.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
            released[label] = f"scorefile:{path}"
        if not any(pair.references for pair in benchmark.pairs):
            metrics = {label: m for label, m in metrics.items() if m not in METRICS}
        log, problems = run_metrics(
            benchmark, {**metrics, **released}, MetricFactory(),
            AgreementProtocol(resamples=0, tau_m="scipy"), progress=progress,
        )  # fmt: skip
    for label, problem in problems.items():
        raise InputError(f"{benchmark.name}, {label}: {problem}")
    yield from _cells(log)


def _cells(log: RunLog) -> Iterator[VerifiedCell]:
    for label, result in log.results.items():
        drawn = label in TEXT and isinstance(log.judgments, Preferences)
        for measure, ours in result.measures.items():
            cell = published_cell(log, label, measure)
            if cell is not None:
                within = DRAWN.get(measure, 1.5) if drawn else PRINTED
                yield VerifiedCell(
                    cell.column, label, cell.value, 100 * ours.value, within, cell.source
                )


def _fleur(*paths: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of FLEUR's output: image, caption, score, and in choices the label."""
    for path in paths:
        row: dict[str, Any] = {}
        with reading(path, UnicodeDecodeError):
            lines = path.read_text(encoding="utf-8").splitlines()
        for line in lines:
            field, _, text = line.partition(" : ")
            if field == "image file":
                row = {"image": Path(text).name}  # their folders are not the publishers'
            elif field in ("caption", "label"):
                row[field] = text
            elif field == "our score":
                yield {**row, "score": float(text)}


def verify_choices(data: Path) -> Iterator[VerifiedCell]:
    """Compare FLEUR's accuracies on Pascal-50S with those of its output, by the labels in it.

    In 35 of the 4,000 choices they differ from those of its annotations, which give 83.35.
    """
    files = {kind: data / "fleur" / f"fleur_pascal_{kind}.txt" for kind in ("HC", "HI", "HM", "MM")}
    if not all(path.is_file() for path in files.values()):
        return
    ours = {}
    for kind, path in files.items():
        rows = list(_fleur(path))
        scores = np.array([row["score"] for row in rows])
        chosen = np.array([int(row["label"]) for row in rows[::2]])
        ours[kind] = accuracy(scores[::2], scores[1::2], chosen)
    ours["mean"] = float(np.mean([*ours.values()]))
    for measure, value in ours.items():
        cell = find_cell(f"pascal50s {measure}", _FLEUR)
        yield VerifiedCell(cell.column, _FLEUR, cell.value, 100 * value, PRINTED, cell.source)


def _tifa(data: Path) -> dict[str, list[dict[str, Any]]]:
    """Read the scores that TIFA's authors published with people's."""
    names = {"bleu": "bleu-4", "rouge": "rouge-l", "clipscore_vitb32": "clip-s"}
    row = BENCHMARKS["tifa160"]
    (path,) = row.find_files(find_folder(row, data)).values()
    items = read_object(path).fields.items()
    columns = [c for c, value in next(iter(items))[1].items() if isinstance(value, float)]
    return {
        names.get(column, column): [{"id": key, "score": item[column]} for key, item in items]
        for column in columns
        if column != "human_avg"
    }


def _released(name: str, data: Path) -> dict[str, list[dict[str, Any]]]:
    """Read the scores per pair that authors released, by metric, as rows of a score file."""
    if name == "tifa160":
        return _tifa(data)
    path = data / "fleur" / f"fleur_{name.replace('-', '_')}.txt"
    return {_FLEUR: list(_fleur(path))} if path.is_file() else {}


class _Judged(NamedTuple):
    """A judge's scores, the widths of its readings, people's ratings, and data sets (n,)."""

    score: Floats
    width: Floats
    rating: Floats
    name: NDArray[np.str_]

    def of(self, rows: NDArray[np.bool_]) -> _Judged:
        return _Judged(self.score[rows], self.width[rows], self.rating[rows], self.name[rows])


def verify_intervals(data: Path) -> Iterator[VerifiedCell]:
    """Compare published conformal intervals of judges with ours, where ``data`` has ``judges``.

    90 % intervals from the log-probabilities of "1" to "5", fitted and tested on ten random halves
    and clipped to 1-5. *naive* has one width for all rows, and R2CCP, a network, adapts; ours are
    ``constant`` and ``adaptive`` of :func:`~discode.stats.fit_intervals`, before bounds are moved
    inward to the ratings that people give. Two numbers agree if they are within two standard
    deviations of their difference; where none is published, ours counts twice.
    """
    judges = data / "judges"
    if not (judges / f"{_JUDGES}.csv").is_file():
        return
    sets = judges / f"{_JUDGES}_task_of_sample.csv"
    names = {row["sample_id"]: row["orig_dataset"] for _, row in read_rows(sets)}
    whole = _judged(judges / f"{_JUDGES}.csv", names)
    published = {
        part: [row for _, row in read_rows(judges / f"divake_published_v2_{part}.csv")]
        for part in (
            "all_methods_results", "polaris_r2ccp_results", "naive_cp_per_dataset",
            "r2ccp_per_dataset",
        )
    }  # fmt: skip
    methods = {row["method"]: row for row in published["all_methods_results"]}
    for method, kind in (("NaiveSplitCP", "naive"), ("R2CCP", "r2ccp")):
        row = methods[method]
        yield from _compare("mllm-judge", kind, whole, row)
    (row,) = published["polaris_r2ccp_results"]
    yield from _compare("polaris", "r2ccp", _judged(judges / f"{_JUDGES}_polaris.csv", {}), row)
    for kind, part in (("naive", "naive_cp"), ("r2ccp", "r2ccp")):
        for row in published[f"{part}_per_dataset"]:
            rows = whole.of(whole.name == row["dataset"])
            yield from _compare(f"mllm-judge {row['dataset']}", kind, rows, row)


def _judged(path: Path, names: Mapping[str, str]) -> _Judged:
    rows = [row for _, row in read_rows(path) if float(row["gt_score"]) >= 1]
    logp = [[float(row[f"s2_lp{answer}"]) for answer in FIVE.answers] for row in rows]
    decoded = get_decoder("smoothing").decode(Readings.of(np.array(logp), FIVE))
    return _Judged(
        decoded.score, reading_width(decoded.distribution, FIVE),
        np.array([float(row["gt_score"]) for row in rows]),
        np.array([names.get(row["sample_id"], "") for row in rows]),
    )  # fmt: skip


def _compare(
    name: str, kind: str, judged: _Judged, row: Mapping[str, str]
) -> Iterator[VerifiedCell]:
    found = []
    for seed in range(HALVES):
        first = np.random.default_rng(seed).permutation(len(judged.rating)) % 2 == 0
        fit, test = judged.of(first), judged.of(~first)
        ours = fit_intervals(
            fit.score, fit.width, fit.rating, np.arange(len(fit.rating)),
            adaptive=kind == "r2ccp", seed=seed,
        )  # fmt: skip
        _, low, high = replace(ours, levels=()).apply(test.score, test.width)
        _, least, most = ours.apply(test.score, test.width)
        inside = (low <= test.rating) & (test.rating <= high)
        found.append((inside.mean(), (high - low).mean(), (most - least).mean()))
    values = np.array(found)
    for place, measure in enumerate(("cov", "width")):
        column = next(c for c in row if re.fullmatch(f"(naive_)?{measure}_raw", c))
        spread = float(values[:, place].std())
        theirs = float(row.get(f"{column}_std") or spread)
        metric = f"{'constant' if kind == 'naive' else 'adaptive'} ({kind})"
        yield VerifiedCell(
            f"{name} {'coverage' if measure == 'cov' else 'width'}", metric, float(row[column]),
            float(values[:, place].mean()), 2 * math.hypot(spread, theirs), CONFORMAL,
            (name, kind, measure) not in _KNOWN,
            f"{values[:, 2].mean():.3f} inward" if measure == "width" else "",
        )  # fmt: skip


_KNOWN = {("mllm-judge mm-vet", "r2ccp", "width")}
"""Numbers that ours have never reproduced: there R2CCP covers 0.845 instead of 0.9."""


def verified_table(cells: Sequence[VerifiedCell]) -> CellTable:
    """Lay out published numbers beside ours."""
    rows: list[list[TableValue]] = [
        [
            *cell.column.rsplit(" ", 1), cell.metric, f"{cell.published:g}", f"{cell.ours:.3f}"
            if cell.source == CONFORMAL else f"{cell.ours:.2f}",
            f"{cell.ours - cell.published:+.3f}", cell.verdict, cell.source,
        ]
        for cell in cells
    ]  # fmt: skip
    held = sum(cell.holds for cell in cells)
    notes = [f"{held} of {len(cells)} published numbers reproduced"]
    if any(cell.note for cell in cells):
        notes.append(
            "inward: the width once bounds are moved to the ratings inside them, as discode "
            "calibrate does"
        )
    columns = ("benchmark", "measure", "metric", "published", "ours", "difference", "verdict",
               "source")  # fmt: skip
    return CellTable(columns, rows, notes=notes)
