"""Make the tables and the plot of reading-of-alpha.md.

    python docs/make_alpha.py [FOLDER]        (after pip install 'discode[dev]')

Prints the tables and writes images/alpha.png. FOLDER is a Flickr8k-Expert set-up: a folder
with ``flickr8k/ExpertAnnotations.txt`` and ``readings/flickr8k_expert_*.npz``; with it the
table of correlations is computed, too.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import kendalltau

import discode
from discode.decoders.discode import log_alpha

METHODS = {
    "raw": "raw",
    "smoothing": "smoothing",
    "printed: digit α, τ = α (`paper`)": "paper",
    "unit α, τ = α (`paper-unit`)": "paper-unit",
    "α = ½, τ = α (`no-adaptive-alpha`)": "no-adaptive-alpha",
    "digit α in [0, 1], τ = 1 (`discode`)": "discode",
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


def correlations(folder: Path) -> None:
    """Print τ_c of every reading on Flickr8k-Expert."""
    ratings = {}
    for line in (folder / "flickr8k/ExpertAnnotations.txt").read_text().splitlines():
        image, caption, *votes = line.split("\t")
        ratings[image, caption] = [int(vote) for vote in votes]
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


def plot(path: Path) -> None:
    """Draw the same distribution, with a bump at 0, under every reading of α."""
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
