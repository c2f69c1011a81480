"""discode choose --samples: the study of sampled answers."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import kendalltau

from tests.helpers.command_line import call, refused


def table(folder: Path, rows: int = 300) -> Path:
    """Log-probabilities of ratings around the people's, in a file."""
    rng = np.random.default_rng(0)
    human = rng.integers(1, 6, rows)
    logits = -0.5 * (np.arange(1, 6) - human[:, None] - rng.normal(0, 1.5, (rows, 1))) ** 2
    logp = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    path = folder / "readings.jsonl"
    lines = [
        {"log_probs": row.tolist(), "human": int(h)} for row, h in zip(logp, human, strict=True)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_many_draws_agree_like_the_log_probabilities(tmp_path: Path) -> None:
    path = table(tmp_path)
    done = call("choose", "--readings", path, "--rating-column", "human", "--scale", "five",
                "--samples", "2,20000", "-o", tmp_path / "out/")  # fmt: skip
    assert done.returncode == 0, done.stderr
    with (tmp_path / "out" / "samples.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    (smoothing,) = (row for row in rows if row[0].endswith("/ smoothing"))
    few, many, exact = float(smoothing[1]), float(smoothing[4]), float(smoothing[-1])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    score = [float(np.exp(row["log_probs"]) @ np.arange(1, 6)) for row in lines]
    people = [row["human"] for row in lines]
    assert exact == pytest.approx(100 * kendalltau(score, people, variant="c")[0], abs=0.2)
    assert few < many
    assert many == pytest.approx(exact, abs=1)
    assert (tmp_path / "out" / "samples_readings.jsonl.png").stat().st_size > 5000


@pytest.mark.parametrize("given", ["0", "5,x", "-3", ""])
def test_samples_that_are_no_numbers_are_refused(tmp_path: Path, given: str) -> None:
    path = table(tmp_path, 10)
    refused(
        call("choose", "--readings", path, "--rating-column", "human", "--scale", "five",
             f"--samples={given}"),
        "--samples",
    )  # fmt: skip


def test_samples_are_of_the_usual_decoders(tmp_path: Path) -> None:
    done = ("choose", "--readings", table(tmp_path, 10), "--rating-column", "human", "--scale",
            "five", "--samples", "5")  # fmt: skip
    for option in ("--learn", "--calibrate"):
        refused(call(*done, option), "--samples", option)
