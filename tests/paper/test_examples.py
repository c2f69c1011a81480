"""Examples: the rule of selection by brute force, and captions that try to break the sheet."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from discode._pairs import Pair
from discode._paper import STUDIES, StudySetup
from discode._paper.examples import (
    ExampleCase,
    ExampleRow,
    draw_sheet,
    find_cases,
    plain_lines,
    select_examples,
)
from discode.benchmarks._base import Benchmark, Preferences, Ratings
from discode.metrics import MetricFactory
from tests.helpers.fake_model import FakeModel
from tests.helpers.fake_runs import QUICK, preferred
from tests.helpers.fake_runs import rated as fake_rated
from tests.helpers.hostile_captions import HOSTILE


def rated(values: list[list[float]]) -> Benchmark:
    """One image per list, one rating per caption."""
    pairs: list[Pair] = []
    rows: list[tuple[int, float, int]] = []
    image: list[int] = []
    for number, ratings in enumerate(values):
        for rating in ratings:
            rows.append((len(pairs), rating, 0))
            pairs.append(Pair(f"{number}.jpg", f"caption {len(pairs)}", (), str(len(pairs))))
            image.append(number)
    return Benchmark("mine", {}, tuple(pairs), Ratings.of(rows), np.array(image), {})


def select(benchmark: Benchmark, one: np.ndarray, two: np.ndarray, n: int) -> list[ExampleCase]:
    return select_examples(find_cases(benchmark, one, two), benchmark.image, n)


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4), min_size=2, max_size=6),
    st.integers(0, 2**32 - 1),
    st.integers(2, 8),
)
def test_the_rule_by_brute_force(values: list[list[float]], seed: int, count: int) -> None:
    benchmark = rated(values)
    rng = np.random.default_rng(seed)
    one, two = rng.normal(size=(2, len(benchmark.pairs)))
    a, b = (x / (x.std() or np.inf) for x in (one, two))
    flat = [r for ratings in values for r in ratings]
    apart = (max(flat) - min(flat)) / 2
    best: list[dict[int, float]] = [{}, {}]  # by image, for each side
    for i in range(len(flat)):
        for j in range(len(flat)):
            same = benchmark.image[i] == benchmark.image[j]
            if not same or flat[i] <= flat[j] or flat[i] - flat[j] < apart:
                continue
            x, y = a[i] - a[j], b[i] - b[j]
            if (x > 0) == (y > 0):
                continue
            side, image = int(y > 0), int(benchmark.image[i])
            best[side][image] = max(best[side].get(image, 0.0), abs(x - y))
    first = sorted(best[0].values(), reverse=True)[: count - count // 2]
    cases = select(benchmark, one, two, count)
    gaps = [abs(np.subtract(*case.margins)) for case in cases if case.right == 0]
    assert gaps == pytest.approx(first)
    images = [int(benchmark.image[case.better]) for case in cases]
    assert len(set(images)) == len(images)
    for case in cases:
        assert flat[case.better] > flat[case.worse]
        assert case.people == (flat[case.better], flat[case.worse])
        assert (case.margins[0] > 0) != (case.margins[1] > 0)
    assert sum(case.right == 1 for case in cases) <= count // 2


def test_choices_take_turns_by_category() -> None:
    pairs = tuple(Pair(f"{i // 2}.jpg", f"caption {i}", (), str(i)) for i in range(12))
    left = np.arange(0, 12, 2)
    judged = Preferences(left, left + 1, np.zeros(6, int), ("x", "x", "x", "y", "y", "z"))
    benchmark = Benchmark("mine", {}, pairs, judged, np.arange(12) // 2, {})
    one, two = np.zeros(12), np.zeros(12)
    one[left] = [9, 8, 7, 3, 2, 1]  # the first metric is right everywhere, the second nowhere
    cases = select(benchmark, one, two, 10)
    assert [case.category for case in cases] == ["x", "y", "z", "x", "y"]
    assert [case.better // 2 for case in cases] == [0, 3, 5, 1, 4]
    assert all(case.people is None for case in cases)


def test_a_choice_with_other_references_is_one_case() -> None:
    pairs = tuple(Pair("a.jpg", text, (f"r{i}",), f"{text}{i}") for i in (0, 1) for text in "xy")
    judged = Preferences.of([(0, 1, 0, "c"), (2, 3, 0, "c")])
    benchmark = Benchmark("mine", {}, pairs, judged, np.zeros(4, int), {})
    assert len(select(benchmark, np.array([1.0, 0, 1, 0]), np.zeros(4), 8)) == 1


def test_one_vote_of_three_is_no_clear_preference() -> None:
    shares = [0, 1 / 3, 2 / 3, 1]  # of three people who said yes or no
    benchmark = rated([shares])
    scores = np.arange(4.0)
    told = {case.people for case in find_cases(benchmark, scores, -scores)}
    assert told == {(a, b) for a in shares for b in shares if a - b > 0.5}  # two votes or three


@pytest.mark.parametrize("kind", ["clearly prefer (mean ratings at least 50 %", "chose;"])
def test_people_prefer_clearly_or_choose(kind: str) -> None:
    benchmark = fake_rated() if kind.startswith("clearly") else preferred()
    setup = StudySetup(
        {"b": benchmark}, {"fake": MetricFactory(model=FakeModel())}, protocol=QUICK,
        options={"first": "raw", "second": "discode", "count": 2},
    )  # fmt: skip
    result = STUDIES["examples"].run(setup)
    assert f"+ is the caption that people {kind}" in result.tables["examples"].notes[0]
    assert ("clear" in result.findings[0]) == kind.startswith("clearly")


def test_failed_and_constant_scores_are_on_nobodys_side() -> None:
    benchmark = rated([[1, 4], [1, 4]])
    nan = np.full(4, np.nan)
    assert select(benchmark, nan, nan, 4) == []
    one = np.array([0.0, 1.0, np.nan, 1.0])
    assert [case.better for case in select(benchmark, one, np.zeros(4), 4)] == [1]


def test_lines_have_a_limit() -> None:
    for text in HOSTILE:
        lines = plain_lines(text, 20, 3).split("\n")
        assert len(lines) <= 3
        assert max(map(len, lines)) <= 20
        assert not any(ord(letter) < 32 for letter in "".join(lines))


def sheet(captions: list[str], image: Path | Image.Image, out: Path) -> np.ndarray:
    bars = dict.fromkeys(("before", "after"), np.full((2, 10), 0.1))
    numbers = {"people": 3.0}
    rows = [ExampleRow(image, t, (t, t), (numbers, numbers), bars) for t in captions]
    draw_sheet(rows, "0123456789", captions[0], out)
    with Image.open(out) as drawn:
        return np.asarray(drawn.convert("RGB"))


def test_no_caption_moves_or_hides_what_is_beside_it(tmp_path: Path) -> None:
    """The image, the bars and the other rows are the same pixels whatever the captions say."""
    pytest.importorskip("matplotlib", reason="figures want discode-eval[plot]")
    photo = Image.new("RGB", (40, 30), "blue")
    plain = sheet(["a dog"] * len(HOSTILE), photo, tmp_path / "plain.png")
    hostile = sheet(HOSTILE, photo, tmp_path / "hostile.png")
    assert hostile.shape == plain.shape
    dpi = 110
    for number in range(len(HOSTILE)):
        top = int((0.7 + 2.55 * number) * dpi)
        image = np.s_[top + int(0.3 * dpi) : top + int(2.3 * dpi), int(0.3 * dpi) : int(2.8 * dpi)]
        bars = np.s_[top + int(1.1 * dpi) : top + int(2.5 * dpi), int(3.1 * dpi) :]
        assert (hostile[image] == plain[image]).all(), number
        assert (hostile[bars] == plain[bars]).all(), number
    assert sheet(["a dog"], tmp_path / "nowhere.jpg", tmp_path / "lost.png").std() > 0
