"""Dataset statistics: counted by hand on small data, and the paper's numbers on the real data."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from discode._pairs import Pair
from discode._paper import STUDIES, StudySetup
from discode._paper.dataset import count_dataset
from discode.benchmarks import BENCHMARKS, load_benchmark
from discode.benchmarks._base import Benchmark, Preferences, Ratings, keep_images

PAIRS = (
    Pair("a.jpg", "A dog runs .", ("A dog", "One brown dog"), "0"),
    Pair("a.jpg", "Cats", ("A dog", "One brown dog"), "1"),
    Pair("b.jpg", "A boat", ("A ship at sea",), "2"),
)
IMAGE = np.array([0, 0, 1])


def test_ratings_by_hand() -> None:
    judged = Ratings.of([(0, 4.0, 0), (0, 3.0, 1), (1, 1.0, 0), (2, 2.0, 0)])
    counts = count_dataset(Benchmark("mine", {}, PAIRS, judged, IMAGE, {}))
    assert (counts.captions, counts.pairs, counts.images, counts.judgments) == (3, 3, 2, 4)
    assert counts.words == pytest.approx((4 + 1 + 2) / 3)  # the full stop is a word
    assert counts.reference_words == pytest.approx((2 + 3 + 4) / 3)  # each once per image
    assert counts.raters == 2
    assert counts.categories == ()


def test_choices_by_hand() -> None:
    judged = Preferences.of([(0, 1, 0, "real"), (1, 0, 1, "sketch")])
    bare = tuple(Pair(pair.image, pair.caption, (), pair.id) for pair in PAIRS[:2])
    counts = count_dataset(Benchmark("mine", {}, bare, judged, IMAGE[:2], {}))
    assert (counts.captions, counts.pairs, counts.judgments) == (4, 2, 2)
    assert counts.words == pytest.approx(2.5)
    assert math.isnan(counts.reference_words)
    assert counts.raters is None
    assert counts.categories == ("real", "sketch")


def test_published_numbers_stand_beside_the_whole_data_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judged = Ratings.of([(0, 4.0, 0), (1, 1.0, 0), (2, 2.0, 0)])
    whole = Benchmark("composite", {}, PAIRS, judged, IMAGE, {})
    row = replace(BENCHMARKS["composite"], published_sizes=lambda options: ((2, 3),))
    monkeypatch.setitem(BENCHMARKS, "composite", row)
    for benchmark, printed in ((whole, ["13,146", 11.58]), (keep_images(whole, 1), [None, None])):
        result = STUDIES["dataset"].run(StudySetup({"composite": benchmark}))
        table = result.tables["dataset"]
        assert [table.rows[0][2], table.rows[0][4]] == printed
        assert bool(result.findings) == (benchmark is whole)


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "captions", "words"),
    [("flickr8k-expert", 5664, 11.91), ("flickr8k-cf", 47830, 11.35)],
)
def test_the_papers_numbers(name: str, captions: int, words: float, data: Path) -> None:
    counts = count_dataset(load_benchmark(name, data))
    assert counts.captions == captions
    assert math.floor(100 * counts.words) / 100 == words  # cut, not rounded


@pytest.mark.data
def test_the_papers_words_of_pascal_are_those_of_the_references(data: Path) -> None:
    pytest.importorskip("scipy", reason="the references are in a MATLAB file: discode-eval[bench]")
    drawn = count_dataset(load_benchmark("pascal50s", data))
    assert (drawn.captions, drawn.judgments) == (8000, 4000)
    assert drawn.words == pytest.approx(10.41, abs=0.005)
    assert drawn.reference_words == pytest.approx(8.75, abs=0.005)
