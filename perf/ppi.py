"""Coverage of prediction-powered intervals: simulated ratings whose true mean is known.

    python perf/ppi.py [--runs 2000]

Of 1,000 images n are rated. Ratings are 1 to 5 and rise with a quality that the judge sees with the
correlation r, or bend: e^x plus noise, where the judge sees x. Printed are the shares of 90 % and
95 % intervals that contain the mean, of people alone and with the judge, the ratio of their widths,
the bias in standard errors, and how often an interval is wider than people's.
"""

from __future__ import annotations

import argparse
import math

import numpy as np

from discode.stats import ppi_mean

IMAGES = 1000


def simulate(rated: int, r: float, runs: int, seed: int = 0) -> list[float]:
    """Return coverages of people and with judge at 90 and 95 %, width ratio, bias, wider."""
    rng = np.random.default_rng(seed)
    inside = np.zeros((2, 2))
    width, values, wider = np.zeros(2), [], 0
    for _ in range(runs):
        score = rng.normal(size=IMAGES)
        if math.isnan(r):
            rating, truth = np.exp(score) + rng.normal(size=IMAGES), math.exp(0.5)
        else:
            quality = r * score + math.sqrt(1 - r * r) * rng.normal(size=IMAGES)
            rating, truth = np.clip(np.round(3 + quality), 1, 5), 3.0
        rating[rated:] = np.nan
        for i, level in enumerate((0.9, 0.95)):
            done = ppi_mean(rating, score, level=level)
            both = done.people, done.mean
            inside[:, i] += [each.low <= truth <= each.high for each in both]
        width += [each.high - each.low for each in both]
        wider += both[1].high - both[1].low > (both[0].high - both[0].low) * (1 + 1e-12)
        values.append(done.mean.value - truth)
    bias = float(np.mean(values) / np.std(values))
    return [*(100 * inside.ravel() / runs), float(width[1] / width[0]), bias, wider]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=2000)
    runs = parser.parse_args().runs
    print("               people          with judge    width    bias  wider")
    print("    n     r   90 %   95 %      90 %   95 %   ratio")
    for r in (0.0, 0.5, 0.9, math.nan):
        for rated in (20, 50, 200):
            *shares, ratio, bias, wider = simulate(rated, r, runs)
            name = "bent" if math.isnan(r) else f"{r:.1f}"
            print(
                f"{rated:5d}{name:>6}{shares[0]:7.1f}{shares[1]:7.1f}{shares[2]:10.1f}"
                f"{shares[3]:7.1f}{ratio:8.2f}{bias:8.2f}{wider:7.0f}"
            )


if __name__ == "__main__":
    main()
