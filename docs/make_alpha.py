"""Make the tables and the plot of alpha.md.

    python docs/make_alpha.py [FOLDER [STORE]]        (after pip install 'discode-eval[dev]')

Prints the tables and writes images/alpha.png. FOLDER is a Flickr8k-Expert set-up: a folder
with ``flickr8k/`` and ``fleur/`` as published and ``readings/flickr8k_expert_*.npz``; with it the
tables of correlations and of ties at 1.0 are computed, too. STORE keeps what the embedded judge
says about ``flickr8k/``: the file ``RUN.json.readings.db`` beside a run of ``discode bench run``,
or a new one, for which the judge takes some minutes.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import kendalltau

import discode
from discode import Readings
from discode.benchmarks import load_benchmark
from discode.benchmarks.base import Ratings
from discode.decoders.discode import log_alpha
from discode.scales import UNIT
from discode.stats import AccuracyPlan, KendallPlan, credit, paired_bootstrap, tie_rate

METHODS = {
    "raw": "raw",
    "smoothing": "smoothing",
    "printed: digit α, τ = α (`paper`)": "paper",
    "unit α, τ = α (`paper-unit`)": "paper-unit",
    "α = ½, τ = α (`no-adaptive-alpha`)": "no-adaptive-alpha",
    "digit α in [0, 1], τ = 1 (`full-prior`)": "full-prior",
}


def alpha_table() -> None:
    """Print α for every raw digit and both scales."""
    digits = np.arange(10.0)
    printed = np.exp(log_alpha(digits))
    unit = np.exp(log_alpha(0.1 * digits))
    print("| s_raw | " + " | ".join(f"{d:.0f}" for d in digits) + " |")
    print("| --- " * 11 + "|")
    for name, alpha in (("α, digits", printed), ("α, unit scale", unit)):
        print(f"| {name} | " + " | ".join(f"{a:.2g}" for a in alpha) + " |")


def expert_ratings(folder: Path) -> dict[tuple[str, str], list[int]]:
    """Return the three ratings of each pair of Flickr8k-Expert, by image and caption."""
    ratings = {}
    for line in (folder / "flickr8k/ExpertAnnotations.txt").read_text().splitlines():
        image, caption, *votes = line.split("\t")
        ratings[image, caption] = [int(vote) for vote in votes]
    return ratings


def correlations(folder: Path) -> None:
    """Print τ_c of every form of α on Flickr8k-Expert."""
    ratings = expert_ratings(folder)
    print("| model | domain | " + " | ".join(METHODS) + " |")
    print("| --- " * (len(METHODS) + 2) + "|")
    for path in sorted((folder / "readings").glob("flickr8k_expert_*.npz"), reverse=True):
        data: Any = np.load(path)
        human = [ratings[key] for key in zip(data["image"], data["caption"], strict=True)]
        for domain in data.files[2:]:
            taus = []
            for method in METHODS.values():
                score = discode.decode(data[domain], method).value
                taus.append(kendalltau(np.repeat(score, 3), np.ravel(human), variant="c")[0])
            model = path.stem.rpartition("_")[2]
            print(f"| {model} | {domain} | " + " | ".join(f"{100 * t:.2f}" for t in taus) + " |")


class Agreement:
    """How scores (N,) agree with ratings (N, 3): τ_c, τ_b, and the better caption of an image.

    People prefer, of two captions of one image, the one with the higher mean rating.
    """

    def __init__(self, human: Any, image: Any) -> None:
        self.human, self.image = np.asarray(human), np.unique(image, return_inverse=True)[1]
        mean = self.human.mean(axis=1)
        pairs = [
            (a, b)
            for rows in (np.flatnonzero(self.image == i) for i in range(self.image.max() + 1))
            for a in rows
            for b in rows
            if mean[a] > mean[b]
        ]
        self.better, self.worse = np.array(pairs).T

    def plans(self, score: Any) -> list[Any]:
        """Return the statistics of scores, as functions of how often each row counts."""
        points, people = np.repeat(score, 3), self.human.ravel()
        earned = credit(score[self.better], score[self.worse], np.zeros(len(self.better)))
        return [
            KendallPlan(points, people, variant="c"),
            KendallPlan(points, people, variant="b"),
            AccuracyPlan(earned),
        ]

    def cells(self, score: Any, base: Any) -> list[str]:
        """Return each statistic in percent, with its difference from that of ``base`` (N,)."""
        if score is not base and np.array_equal(score, base):
            return ["the same"] * 3
        rows = np.repeat(self.image, 3)
        cells = []
        for a, b, clusters in zip(
            self.plans(score),
            self.plans(base),
            (rows, rows, self.image[self.better]),
            strict=True,
        ):
            cell = f"{100 * a(np.ones(len(clusters), int)):.2f}"
            if score is not base:
                d = paired_bootstrap(a, b, clusters).difference
                cell += f" ({100 * d.value:+.2f}, {100 * d.low:+.2f} to {100 * d.high:+.2f})"
            cells.append(cell)
        return cells


def generous(digits: Any, lowest: int) -> Readings:
    """Return digits (N, 10) as a more generous judge would give them: from ``lowest`` on, "1.0"."""
    p = np.exp(digits.astype(np.float64))
    stems = np.stack([p[:, :lowest].sum(axis=1), p[:, lowest:].sum(axis=1)], axis=1)
    answers = np.zeros((len(p), 2, 10))
    answers[:, 0, :lowest] = p[:, :lowest] / stems[:, :1]
    answers[:, 1, 0] = 1.0
    with np.errstate(divide="ignore"):
        return Readings(UNIT, np.log(answers), np.minimum(np.log(stems), 0.0))


def after_one(readings: Readings) -> Any:
    """Return the rows (N,) whose likelier stem is "1."."""
    return readings.stem_logp[:, 1] > readings.stem_logp[:, 0]


MIXED = "joint after 1."
"""A rule that was considered and is not an option: joint in the rows after "1." alone."""


def score_after(readings: Readings, method: str, stem: str) -> Any:
    """Return the scores (N,) of a method with one rule for the stem, or with the mixed one."""
    if stem == MIXED:
        greedy, joint = (score_after(readings, method, each) for each in ("greedy", "joint"))
        return np.where(after_one(readings), joint, greedy)
    return discode.decode(readings, f"{method}:stem={stem}" if stem else method).value


def ties_at_the_top(folder: Path, store: str | None) -> None:
    """Print what each rule does with rows after "1.": every method, then every domain."""
    ratings = expert_ratings(folder)
    recorded: dict[str, Any] = {
        path.stem.rpartition("_")[2]: np.load(path)
        for path in sorted((folder / "readings").glob("flickr8k_expert_*.npz"), reverse=True)
    }
    judged: dict[str, Agreement] = {}
    sources: dict[str, tuple[Readings, Agreement]] = {}
    for model, data in recorded.items():
        human = [ratings[key] for key in zip(data["image"], data["caption"], strict=True)]
        judged[model] = Agreement(human, data["image"])
        sources[f"{model}, 7 to 9 as 1.0"] = generous(data["photo"], 7), judged[model]
    if store is not None:
        expert = load_benchmark("flickr8k-expert", folder / "flickr8k")
        people = expert.judgments
        if not isinstance(people, Ratings):
            raise TypeError("Flickr8k-Expert has ratings")
        values = people.value[np.argsort(people.pair, kind="stable")].reshape(-1, 3)
        pairs = [replace(pair, references=()) for pair in expert.pairs]
        readings = discode.load("embedded", store=store).read(pairs)
        sources["embedded"] = readings, Agreement(values, expert.image)

    said = (folder / "fleur/fleur_flickr8k_expert.txt").read_text()
    ones, rows = said.count("model score : 1.0"), said.count("model score : ")
    print(f"\nFLEUR's own file: {ones} of {rows} raw scores are 1.0.")
    counts = {name: len(agreement.better) for name, (_, agreement) in sources.items()}
    print(f"Preferences: {counts}.\n")
    stems_of = {"raw": ("greedy", "joint"), "fleur": ("",)}
    print('| photo | after "1." | method | stem | ties | τ_c | τ_b | preferences |')
    print("| --- " * 8 + "|")
    for name, (readings, agreement) in sources.items():
        share = f"{100 * after_one(readings).mean():.1f} %"
        for method in ("raw", "smoothing", "full-prior", "paper", "fleur"):
            base = None
            for stem in stems_of.get(method, ("greedy", "graded", MIXED, "joint")):
                score = score_after(readings, method, stem)
                base = score if base is None else base
                row = [name, share, method, stem, f"{100 * tie_rate(score):.2f}"]
                print(f"| {' | '.join(row + agreement.cells(score, base))} |", flush=True)

    head = " | ".join(f"{r}: τ_c | preferences" for r in ("graded", "joint"))
    print(f'\n| `full-prior` | as 1.0 | after "1." | {head} |')
    print("| --- " * 7 + "|")
    for model, data in recorded.items():
        for domain in data.files[2:]:
            for lowest in (9, 7, 5) if domain == "photo" else (7,):
                readings = generous(data[domain], lowest)
                share = f"{100 * after_one(readings).mean():.1f} %"
                base = score_after(readings, "full-prior", "greedy")
                row = [f"{model}, {domain}", "9" if lowest == 9 else f"{lowest} to 9", share]
                for stem in ("graded", "joint"):
                    score = score_after(readings, "full-prior", stem)
                    tau_c, _, right = judged[model].cells(score, base)
                    row += [cell.partition(" (")[2].strip(")") or cell for cell in (tau_c, right)]
                print(f"| {' | '.join(row)} |", flush=True)


def plot(path: Path) -> None:
    """Draw the same distribution, with a bump at 0, under every form of α."""
    p = np.array([0.22, 0.05, 0.02, 0.02, 0.03, 0.05, 0.09, 0.26, 0.2, 0.06])
    figure, axes = plt.subplots(2, 4, figsize=(13, 5), sharey=True, layout="constrained")
    for row, (axis_row, peak) in enumerate(zip(axes, (7, 5), strict=True)):
        # The second row moves the peak to 5, the middle, where the printed α is 0.36.
        shifted = p.copy() if row == 0 else np.r_[p[0], p[3:], p[1:3]]
        assert shifted.argmax() == peak
        for axis, (name, method) in zip(
            axis_row,
            [item for item in METHODS.items() if item[1] not in ("raw", "smoothing")],
            strict=True,
        ):
            scores = discode.decode(np.log(shifted), method)
            assert scores.distribution is not None
            axis.bar(np.arange(10), shifted, 0.85, color="#c9d1d9", label="tokens")
            axis.bar(np.arange(10), scores.distribution[0], 0.45, color="#d1495b", label="after")
            axis.set_title(f"{name.split(' (')[0]}\nscore {float(scores):.2f}", fontsize=10)
            axis.set_xticks(range(10))
            axis.spines[["top", "right"]].set_visible(False)
        axis_row[0].set_ylabel(f"s_raw = {peak}")
    axes[0, 0].legend(frameon=False)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    alpha_table()
    plot(Path(__file__).parent / "images" / "alpha.png")
    if len(sys.argv) > 1:
        correlations(Path(sys.argv[1]))
        ties_at_the_top(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
