"""Published coverage and width of conformal intervals of three judges, beside ours.

    python perf/conformal.py DATA        (DATA/judges has the judges' log-probabilities)

As published (Divake et al. 2026, arXiv 2604.25235): 90 % intervals from the log-probabilities of
"1" to "5", ten random halves to fit and to test on, clipped to 1-5; mean ± standard deviation of
the ten. *naive* has one width for all rows, and R2CCP, a network, adapts. Ours are ``constant`` and
``adaptive`` of ``discode.stats.fit_intervals``: first with bounds as they are computed, as the
published ones, then moved inward to the ratings that people give, which loses no rating.

A width agrees if it is within two standard deviations of a half, of theirs and of ours together;
the tables by data set have no published deviations, and ours take their place. That is lenient:
look at the signs of all rows, too.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from discode._scales import FIVE
from discode.decoders import get_decoder
from discode.decoders._preset import reading_width
from discode.readings import Readings
from discode.stats import fit_intervals

Floats = NDArray[np.float64]
HALVES = 10
PUBLISHED = "divake_published_v2"
KINDS = {"naive": False, "R2CCP": True}


class Judged(NamedTuple):
    """A judge's scores, the widths of its readings, people's ratings, and tasks (n,)."""

    score: Floats
    width: Floats
    rating: Floats
    task: NDArray[np.str_]

    def of(self, rows: NDArray[np.bool_]) -> Judged:
        """Return some rows."""
        return Judged(self.score[rows], self.width[rows], self.rating[rows], self.task[rows])


class Figures(NamedTuple):
    """Coverage and width, and their standard deviations; then those of inward bounds."""

    coverage: float
    coverage_sd: float
    width: float
    width_sd: float
    inward_coverage: float = math.nan
    inward_width: float = math.nan


def read_rows(path: Path) -> list[dict[str, str]]:
    """Read a table."""
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def read_judged(file: Path, tasks: Path | None = None) -> Judged:
    """Read log-probabilities with ratings, and the task of each row."""
    rows = [row for row in read_rows(file) if float(row["gt_score"]) >= 1]
    named = {row["sample_id"]: row["orig_dataset"] for row in read_rows(tasks)} if tasks else {}
    logp = [[float(row[f"s2_lp{answer}"]) for answer in FIVE.answers] for row in rows]
    decoded = get_decoder("smoothing").decode(Readings.of(np.array(logp), FIVE))
    return Judged(
        decoded.score, reading_width(decoded.distribution, FIVE),
        np.array([float(row["gt_score"]) for row in rows]),
        np.array([named.get(row["sample_id"], "") for row in rows]),
    )  # fmt: skip


def measure(judged: Judged, adaptive: bool) -> Figures:
    """Measure our intervals on ten random halves."""
    found = []
    for seed in range(HALVES):
        first = np.random.default_rng(seed).permutation(len(judged.rating)) % 2 == 0
        fit, test = judged.of(first), judged.of(~first)
        images = np.arange(len(fit.rating))
        ours = fit_intervals(fit.score, fit.width, fit.rating, images, adaptive=adaptive, seed=seed)
        (_, low, high), (_, least, most) = (
            each.apply(test.score, test.width) for each in (replace(ours, levels=()), ours)
        )
        inside = (low <= test.rating) & (test.rating <= high)
        moved = (least <= test.rating) & (test.rating <= most)
        found.append((inside.mean(), (high - low).mean(), moved.mean(), (most - least).mean()))
    coverage, width, moved, inward = np.array(found).T
    return Figures(
        coverage.mean(), coverage.std(), width.mean(), width.std(), moved.mean(), inward.mean()
    )


def rows_of(data: Path) -> Iterator[tuple[str, str, Figures, Figures]]:
    """Yield a data set, a method, the published figures and ours."""
    judges = data / "judges"
    whole = read_judged(judges / "divake_v2.csv", judges / "divake_v2_task_of_sample.csv")
    overall = {
        row["method"]: row for row in read_rows(judges / f"{PUBLISHED}_all_methods_results.csv")
    }
    for name, kind in (("NaiveSplitCP", "naive"), ("R2CCP", "R2CCP")):
        cells = [f"{column}_raw{sd}" for column in ("cov", "width") for sd in ("", "_std")]
        theirs = Figures(*(float(overall[name][cell]) for cell in cells))
        yield "MLLM-as-a-Judge", kind, theirs, measure(whole, KINDS[kind])
    (polaris,) = read_rows(judges / f"{PUBLISHED}_polaris_r2ccp_results.csv")
    ours = measure(read_judged(judges / "divake_v2_polaris.csv"), adaptive=True)
    yield "Polaris", "R2CCP", without_sd(polaris["cov_raw"], polaris["width_raw"], ours), ours
    for kind, part, prefix in (("naive", "naive_cp", "naive_"), ("R2CCP", "r2ccp", "")):
        for row in read_rows(judges / f"{PUBLISHED}_{part}_per_dataset.csv"):
            ours = measure(whole.of(whole.task == row["dataset"]), KINDS[kind])
            theirs = without_sd(row[f"{prefix}cov_raw"], row[f"{prefix}width_raw"], ours)
            yield row["dataset"], kind, theirs, ours


def without_sd(coverage: str, width: str, ours: Figures) -> Figures:
    """Take our deviations for published figures that have none."""
    return Figures(float(coverage), ours.coverage_sd, float(width), ours.width_sd)


def verdict(ours: float, theirs: float, *sds: float) -> str:
    """Compare two widths."""
    if abs(ours - theirs) <= 2 * math.hypot(*sds):
        return "agrees"
    return "narrower" if ours < theirs else "wider"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", type=Path)
    print(f"{'':24}{'published':>22}{'ours':>27}{'':10}{'moved inward':>16}")
    print(
        f"{'data set':18}{'method':6}{'coverage':>10}{'width':>12}{'coverage':>14}{'width':>13}"
        f"{'':10}{'coverage':>8}{'width':>8}"
    )
    tally: dict[str, int] = {}
    for name, method, theirs, ours in rows_of(parser.parse_args().data):
        covered = abs(ours.coverage - theirs.coverage) <= 2 * math.hypot(
            ours.coverage_sd, theirs.coverage_sd
        )
        found = verdict(ours.width, theirs.width, ours.width_sd, theirs.width_sd)
        tally[found] = tally.get(found, 0) + 1
        print(
            f"{name:18}{method:6}{theirs.coverage:10.3f}{theirs.width:12.3f}"
            f"{ours.coverage:8.3f}±{ours.coverage_sd:.3f}{ours.width:7.3f}±{ours.width_sd:.3f}  "
            f"{found:8}{ours.inward_coverage:8.3f}{ours.inward_width:8.3f}"
            f"{'' if covered else '  coverage differs'}"
        )
    print("widths: " + ", ".join(f"{count} {name}" for name, count in tally.items()))


if __name__ == "__main__":
    main()
