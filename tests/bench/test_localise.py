"""Whether explanations point at the wrong word, where it is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from discode._judge import Judge, load
from discode._pairs import Pair
from discode._scales import Scale
from discode.bench._agreement import AgreementProtocol
from discode.bench._localise import changed_words, measure_localisation
from discode.benchmarks import Benchmark, Preferences, load_benchmark
from discode.decoders import get_decoder
from discode.errors import InputError
from discode.explain import Explanation
from discode.images import demo_path
from discode.readings import Readings
from tests.helpers.fake_model import FakeModel, sure_of

CAT = demo_path() / "cat.jpg"


class DislikesBeds(FakeModel):
    """Gives 0.9, and 0.2 to a caption with a bed in it."""

    def answer_to(self, caption: str, scale: Scale, *, hidden: bool) -> Readings:
        return sure_of(2 if "bed" in caption else 9, scale)


def judge(rejects: str = "\0") -> Judge:
    return Judge(DislikesBeds(rejects=rejects), get_decoder("raw"))


def foil(*choices: tuple[str, str]) -> Benchmark:
    """Right captions with their foils, each about an image of its own number."""
    pairs = [Pair(str(CAT), text, (), str(i)) for i, text in enumerate(sum(choices, ()))]
    rows = [(2 * i, 2 * i + 1, 0, "foil") for i in range(len(choices))]
    return Benchmark("foil", {}, tuple(pairs), Preferences.of(rows), np.arange(len(pairs)) // 2, {})


def test_shares_by_hand() -> None:
    measured = measure_localisation(
        judge(),
        foil(
            ("a dog on a table", "a dog on a bed"),  # found, one word of two
            ("a big dog", "a big cat"),  # all words alike: the first is blamed, which is right
            ("a red bed on a floor", "a red table on a floor"),  # the right one is suspected
        ),
        AgreementProtocol(resamples=0),
    )
    assert measured.first.value == pytest.approx(1 / 3)
    assert measured.chance == pytest.approx((1 / 2 + 1 / 2 + 1 / 3) / 3)
    assert measured.marked.value == pytest.approx(1 / 3)
    assert measured.suspected.value == pytest.approx(1 / 3)
    assert (measured.wrong, measured.right, measured.errors) == (3, 3, {})
    assert measured.signature["model"] == "fake"


def test_what_cannot_be_judged_is_left_out_and_named() -> None:
    two = foil(("a dog on a table", "a dog on a bed"), ("a cat on a mat", "a pig on a mat"))
    measured = measure_localisation(judge("pig"), two, AgreementProtocol(resamples=0))
    assert measured.errors == {"3": "rejected"}
    assert (measured.wrong, measured.right) == (1, 2)
    assert measured.first.value == 1.0
    with pytest.raises(InputError):
        measure_localisation(judge("a"), two)


def test_other_benchmarks_are_refused() -> None:
    pairs = (Pair(str(CAT), "a"), Pair(str(CAT), "b"))
    other = Benchmark(
        "mine", {}, pairs, Preferences.of([(0, 1, 0, "x")]), np.zeros(2, np.int64), {}
    )
    with pytest.raises(InputError, match="mine"):
        measure_localisation(judge(), other)


def test_changed_words_wherever_they_are() -> None:
    def changed(right: str, wrong: str) -> list[str]:
        (explanation,) = judge().explain(CAT, wrong)
        assert isinstance(explanation, Explanation)
        return [span.text for span in changed_words(right, explanation)]

    assert changed("A dog and a dog.", "A dog and a cat.") == ["cat"]
    assert changed("beef and broccoli on broccolis", "beef and carrot on carrots") == [
        "carrot",
        "carrots",
    ]
    assert changed("a dog", "a small dog") == ["small"]
    assert changed("a dog", "a dog") == []


@pytest.mark.slow
@pytest.mark.usefixtures("shipped")
def test_the_shipped_judge_finds_more_than_half_of_the_foils(data: Path) -> None:
    benchmark = load_benchmark("foil:limit=60", data)
    if not any(Path(str(pair.image)).is_file() for pair in benchmark.pairs):
        pytest.skip("FOIL's photographs are not there")
    measured = measure_localisation(load("embedded"), benchmark)
    assert measured.first.value > 0.5 > 2 * measured.chance
    assert measured.suspected.value < 0.2
