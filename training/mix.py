"""The mean of trained weights: python -m training.mix NAME RUN RUN ... [--shares S S ...]

Runs of one descent lie in one valley: between a run and what it started from there are models that
keep most of what each of them can do. Writes build/NAME.pt.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

from training import common


def mean(runs: list[str], shares: list[float] | None = None) -> tuple[int, dict[str, Tensor]]:
    """Return how many layers trained runs have, and the mean of their weights."""
    saved = [
        torch.load(common.BUILD / f"{run}.pt", weights_only=True, map_location="cpu")
        for run in runs
    ]
    shares = shares or [1 / len(runs)] * len(runs)
    weights = {
        key: torch.stack(
            [share * one["weights"][key].float() for share, one in zip(shares, saved, strict=True)]
        ).sum(0)
        for key in saved[0]["weights"]
    }
    return saved[0]["layers"], weights


def write(name: str, runs: list[str], shares: list[float] | None = None) -> None:
    """Write the mean as a run."""
    layers, weights = mean(runs, shares)
    half = {key: value.half() for key, value in weights.items()}
    torch.save({"layers": layers, "weights": half}, common.BUILD / f"{name}.pt")


def main() -> None:
    """Write the mean."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--shares", type=float, nargs="+", help="equal unless given")
    args = parser.parse_args()
    write(args.name, args.runs, args.shares)
    print(args.name, "is the mean of", *args.runs)


if __name__ == "__main__":
    main()
