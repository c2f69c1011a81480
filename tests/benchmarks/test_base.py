"""What benchmarks share: options, unique pairs, images, repeats, rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discode._pairs import Pair
from discode.benchmarks import (
    BENCHMARKS,
    Benchmark,
    Preferences,
    Ratings,
    find_benchmark,
    load_benchmark,
)
from discode.benchmarks._base import BenchmarkBuilder, BenchmarkRow, keep_images
from discode.errors import InputError, UnknownNameError
from discode.options import option_text
from tests.helpers import mini_benchmarks as mini

NUMBERS = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4), st.integers(0, 2)), max_size=30)


def builder_in(folder: Path, images: tuple[str, ...] = ("images", "")) -> BenchmarkBuilder:
    def load(folder: Path, options: Mapping[str, str]) -> Benchmark:
        raise NotImplementedError

    row = BenchmarkRow("x", "X", "a test's", load, "", "", "", (), image_folders=images)
    return BenchmarkBuilder(row, folder)


def built(folder: Path, judgments: Ratings | Preferences) -> np.ndarray:
    builder = builder_in(folder)
    for i in range(6):
        builder.add("a.jpg", f"caption {i}", (), f"a.jpg#{i}")
    return builder.build({}, judgments, []).repeats()


@given(NUMBERS)
def test_repeats_counts_judgments(rows: list[tuple[int, int, int]]) -> None:
    counts = Counter(pair for pair, _, _ in rows)
    assert built(Path(), Ratings.of(rows)).tolist() == [counts[i] for i in range(6)]
    choices = [(left, right, 0, "x") for left, _, right in rows]
    both = Counter(side for left, right, _, _ in choices for side in (left, right))
    assert built(Path(), Preferences.of(choices)).tolist() == [both[i] for i in range(6)]


@given(NUMBERS)
def test_averaged_is_the_mean_of_each_pair(rows: list[tuple[int, int, int]]) -> None:
    mean = Ratings.of(rows).averaged()
    order = list(dict.fromkeys(pair for pair, _, _ in rows))
    assert mean.pair.tolist() == order
    for pair, value in zip(order, mean.value, strict=True):
        assert value == pytest.approx(np.mean([v for p, v, _ in rows if p == pair]))


def test_pairs_are_kept_once_and_images_numbered(tmp_path: Path) -> None:
    builder = builder_in(tmp_path)
    assert builder.add("a.jpg", "x", ["r"], "1") == 0
    assert builder.add("a.jpg", "x", ["r"], "2") == 0  # known: it keeps its first id
    assert builder.add("a.jpg", "x", ["other"], "3") == 1
    assert builder.add("b.jpg", "x", ["r"], "4") == 2
    with pytest.raises(InputError, match=r"line 7: id '4' names two different pairs"):
        builder.add("b.jpg", "y", [], "4", "line 7")
    made = builder.build({}, Ratings.of([(0, 1.0, 0)]), [])
    assert made.image.tolist() == [0, 0, 1]
    assert [pair.id for pair in made.pairs] == ["1", "3", "4"]
    assert made.notes == (f"2 of 2 images missing, sought in {tmp_path}",)


def test_images_are_found_by_their_whole_path(tmp_path: Path) -> None:
    (tmp_path / "images" / "real").mkdir(parents=True)
    (tmp_path / "images" / "real" / "1.png").touch()
    (tmp_path / "images" / "2.png").touch()
    builder = builder_in(tmp_path, ("images", "", "../elsewhere"))
    for image in ("real/1.png", "sketch/1.png", "VOC/2.png"):
        builder.add(image, "x", (), image)
    images = tmp_path / "images"
    benchmark = builder.build({}, Ratings.of([]), [])
    assert [pair.image for pair in benchmark.pairs] == [
        str(images / "real" / "1.png"),
        str(images / "sketch" / "1.png"),  # not there: where it should be
        str(images / "VOC" / "2.png"),  # another folder's
    ]
    assert benchmark.notes == (f"2 of 3 images missing, sought in {images}",)
    assert benchmark.missing == {1, 2}


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_row_says_what_to_fetch(name: str, tmp_path: Path) -> None:
    row = BENCHMARKS[name]
    assert row.name == name
    assert all((row.title, row.about, row.source, row.licence, row.citation))
    assert set(row.optional) <= set(row.files)
    for option in row.options:
        assert option.convert(option_text(option.default)) == option.default
        assert option.about
    with pytest.raises(InputError) as caught:
        load_benchmark(name, tmp_path)
    for word in (row.forms[0][0], row.source, row.licence, row.citation):
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="no such folder"):
        load_benchmark(name, tmp_path / "nowhere")


def test_options_are_checked(tmp_path: Path) -> None:
    usual = {"references": "draw", "draws": 5, "seed": 0, "labels": "consensus",
             "limit": None}  # fmt: skip
    assert find_benchmark("pascal50s")[1] == usual
    assert find_benchmark("pascal50s:draws=12", {"seed": "3"})[1] == {
        **usual, "draws": 12, "seed": 3,
    }  # fmt: skip
    for spec, error, place in (
        ("pascal50s:draw=5", UnknownNameError, "draws"),
        ("pascal50s:draws=0", InputError, "draws=0"),
        ("pascal50s:seed=-1", InputError, "seed=-1"),
        ("pascal50s:references=five", InputError, "draw, given"),
        ("foil:references=2", InputError, "0, 1, 4"),
        ("custom:scale=5-1", InputError, "scale=5-1"),
        ("mceval:x=1", UnknownNameError, "mceval"),
        ("flickr8k_cf", UnknownNameError, "flickr8k-cf"),
    ):
        with pytest.raises(error, match=place):
            load_benchmark(spec, tmp_path)


def test_own_folder_and_folder_of_folders(tmp_path: Path) -> None:
    mini.flickr8k(tmp_path / "flickr8k")
    inside = load_benchmark("flickr8k-cf", tmp_path / "flickr8k")
    outside = load_benchmark("flickr8k-cf", tmp_path)
    assert inside.pairs == outside.pairs
    assert inside.checksums == outside.checksums
    assert set(inside.checksums) == {"CrowdFlowerAnnotations.txt", "Flickr8k.token.txt"}


@pytest.fixture
def rated() -> Benchmark:
    """Six images with two captions each; the rating is the number of the pair."""
    pairs = [Pair(f"{i}.png", f"{word} {i}", (), f"{i}{word}") for i in range(6) for word in "ab"]
    judged = Ratings.of([(i, float(i), 0) for i in range(12)])
    return Benchmark("mine", {"k": "v"}, tuple(pairs), judged, np.arange(12) // 2, {"f": "x"})


def test_fewer_images_keep_their_judgments(rated: Benchmark) -> None:
    few, more = keep_images(rated, 2), keep_images(rated, 4)
    assert len(few.pairs) == 4
    assert {pair.id for pair in few.pairs} < {pair.id for pair in more.pairs}
    judged = few.judgments
    assert isinstance(judged, Ratings)
    # The rating was the number of the pair.
    numbers = {pair.id: float(i) for i, pair in enumerate(rated.pairs)}
    told = {few.pairs[p].id: v for p, v in zip(judged.pair, judged.value, strict=True)}
    assert told == {pair.id: numbers[pair.id] for pair in few.pairs}
    assert few.options == {"k": "v", "limit": 2}
    assert "2 of 6 images" in few.notes[-1]
    assert keep_images(rated, 6) is rated


def test_fewer_images_are_chosen_among_those_present(rated: Benchmark) -> None:
    missing = replace(rated, missing=frozenset({0, 2, 3, 5}))
    for count in (1, 2, 3, 99):
        few = keep_images(missing, count)
        assert {*few.image.tolist()} <= {1, 4}
        assert len(np.unique(few.image)) == min(count, 2)
        assert (few.options["limit"], few.missing) == (count, frozenset())
        assert few.notes[-1].startswith(f"{min(count, 2)} of 2 images")
    none = replace(rated, missing=frozenset(range(6)))  # text metrics need no image
    few = keep_images(none, 2)
    assert [pair.id for pair in few.pairs] == [pair.id for pair in keep_images(rated, 2).pairs]
    assert few.missing == {*few.image.tolist()}


def test_fewer_images_of_choices(rated: Benchmark) -> None:
    left = np.arange(0, 12, 2)
    choices = Preferences(left, left + 1, left // 2 % 2, tuple("xyxyxy"))
    few = keep_images(Benchmark("mine", {}, rated.pairs, choices, rated.image, {}), 3)
    judged = few.judgments
    assert isinstance(judged, Preferences)
    numbers = [int(few.pairs[pair].id[0]) for pair in judged.left]
    assert [few.pairs[pair].id for pair in judged.right] == [f"{number}b" for number in numbers]
    assert judged.chosen.tolist() == [number % 2 for number in numbers]
    assert judged.category == tuple("xy"[number % 2] for number in numbers)
    assert len(judged) == 3


@pytest.mark.parametrize("name", ["flickr8k-expert", "composite"])
def test_every_benchmark_has_a_limit(name: str, tmp_path: Path) -> None:
    data = mini.several(tmp_path)
    whole, few = load_benchmark(name, data), load_benchmark(f"{name}:limit=1", data)
    assert len(np.unique(few.image)) == 1 < len(np.unique(whole.image))
    assert {pair.id for pair in few.pairs} < {pair.id for pair in whole.pairs}
    assert few.options == {**whole.options, "limit": 1}
    assert load_benchmark(name, data, {"limit": 99}).options == whole.options  # nothing was left
    with pytest.raises(InputError, match="limit=0"):
        find_benchmark(f"{name}:limit=0")
