"""FLEUR's published scores against the experts of Flickr8k: the numbers of its own output."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from discode.stats import KendallPlan, bootstrap, permutation_tests, tie_rate

Columns = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def fleur(data: Path) -> Columns:
    """Image, raw and smoothed score, and rating: 5,664 pairs times three experts."""
    lines = (data / "flickr8k" / "Flickr8k.token.txt").read_text().splitlines()
    captions = dict(line.split("\t") for line in lines)
    text = (data / "fleur" / "fleur_flickr8k_expert.txt").read_text()
    number = r"([\d.eE+-]+)"
    scored = re.findall(
        rf"image file : \S*?/(\S+)\ncaption : (.*)\nmodel score : {number}\nour score : {number}",
        text,
    )
    ratings = []
    for line in (data / "flickr8k" / "ExpertAnnotations.txt").read_text().splitlines():
        image, caption, *votes = line.split("\t")
        if not caption.startswith(image):  # not one of the image's own references
            ratings.append((image, captions[caption].strip(), [int(vote) for vote in votes]))
    assert len(scored) == len(ratings) == 5664
    pairs = [(image, caption.strip()) for image, caption, _, _ in scored]
    assert pairs == [(image, caption) for image, caption, _ in ratings]
    raw, smoothed = np.array([row[2:] for row in scored], dtype=np.float64).T
    images = np.array([image for image, _ in pairs])
    human = np.array([votes for _, _, votes in ratings])
    return (
        np.repeat(images, 3),
        np.repeat(raw, 3),
        np.repeat(smoothed, 3),
        human.ravel().astype(np.float64),
    )


@pytest.mark.data
def test_published_correlations(fleur: Columns) -> None:
    _, raw, smoothed, human = fleur
    assert len(human) == 16_992
    ones = np.ones(len(human), int)
    taus = [KendallPlan(s, human, variant=v)(ones) for s in (smoothed, raw) for v in "cb"]
    np.testing.assert_allclose(100 * np.array(taus), [53.03, 52.67, 34.91, 56.08], atol=0.006)
    assert tie_rate(raw[::3]) == pytest.approx(0.62, abs=0.005)


@pytest.mark.data
def test_interval_and_test(fleur: Columns) -> None:
    image, raw, smoothed, human = fleur
    interval = bootstrap(KendallPlan(smoothed, human, variant="c"), image, resamples=500)
    assert interval.high - interval.low == pytest.approx(0.04, abs=0.01)  # about ±2 points
    done = permutation_tests([smoothed, raw], human, clusters=image, resamples=199)[0, 1]
    assert done.difference == pytest.approx(0.1812, abs=0.0002)
    assert done.p == 1 / 200
