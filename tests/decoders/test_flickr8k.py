"""Real digit log-probabilities against human experts (Flickr8k-Expert, published protocol)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import kendalltau

import discode

# 5,664 pairs, three experts flattened to 16,992 points, τ_c in percent.
CELLS = {
    ("b6s", "raw"): 45.13,
    ("b6s", "smoothing"): 51.75,
    ("b6s", "paper"): 51.46,
    ("b6s", "discode"): 51.72,
    ("b6s", "discode:trust=9"): 51.78,
    ("a30", "raw"): 46.51,
    ("a30", "smoothing"): 52.99,
    ("a30", "paper"): 52.47,
    ("a30", "discode"): 52.95,
    ("a30", "discode:trust=9"): 53.03,
}


@pytest.mark.data
@pytest.mark.parametrize(("model", "method"), CELLS)
def test_tau_c_on_real_readings(data: Path, model: str, method: str) -> None:
    archive = np.load(data / "readings" / f"flickr8k_expert_{model}.npz")
    ratings = {}
    for line in (data / "flickr8k" / "ExpertAnnotations.txt").read_text().splitlines():
        image, caption, *votes = line.split("\t")
        ratings[image, caption] = [int(vote) for vote in votes]
    human = [ratings[pair] for pair in zip(archive["image"], archive["caption"], strict=True)]
    scores = discode.decode(archive["photo"], method, scale="ten")
    assert len(scores) == 5664
    tau = kendalltau(np.repeat(scores.value, 3), np.ravel(human), variant="c").statistic
    assert 100 * tau == pytest.approx(CELLS[model, method], abs=0.02)
