"""The mean of trained weights: python -m training.mix NAME RUN RUN ... [--shares S S ...]

Runs of one descent lie in one valley: between a run and what it started from there are models that
keep most of what each of them can do. Writes build/NAME.pt.
"""

from __future__ import annotations

import argparse

import torch

from training import common


def main() -> None:
    """Write the mean."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--shares", type=float, nargs="+", help="equal unless given")
    args = parser.parse_args()
    shares = args.shares or [1 / len(args.runs)] * len(args.runs)
    saved = [torch.load(common.BUILD / f"{run}.pt", weights_only=True) for run in args.runs]
    mean = {
        key: sum(
            share * one["weights"][key].float() for share, one in zip(shares, saved, strict=True)
        ).half()
        for key in saved[0]["weights"]
    }
    torch.save({"layers": saved[0]["layers"], "weights": mean}, common.BUILD / f"{args.name}.pt")
    print(args.name, dict(zip(args.runs, shares, strict=True)))


if __name__ == "__main__":
    main()
