"""Cards of judges whose answers are known, so that every figure is known as well."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from discode._judge import Judge
from discode._pairs import Pair
from discode._probe import Card, Figure, make_card, plan_probe
from discode._probe.wrong_words import WORDS
from discode._prompts import Prompt
from discode._scales import Scale, get_scale
from discode.bench._agreement import TAU_C_NOTES, AgreementProtocol
from discode.benchmarks import Benchmark, Preferences, Ratings
from discode.decoders import get_decoder
from discode.errors import InputError
from discode.images import open_image
from discode.readings import Readings
from discode.readings._store import ReadingStore
from discode.stats import wilson
from tests.helpers.fake_model import FakeModel, sure_of

NOUNS = WORDS["who"]
PROTOCOL = AgreementProtocol(resamples=200)


class Sees(FakeModel):
    """Gives the last answer but one to captions with the noun of the image, 2 to others."""

    def answer(
        self, pairs: Sequence[Pair], prompt: Prompt, scale: Scale, *, hidden: bool = False
    ) -> Readings:
        self.asked += [pair.caption for pair in pairs]
        return Readings.concat(scale, [self._look(pair, scale) for pair in pairs])

    def _look(self, pair: Pair, scale: Scale) -> Readings:
        red = open_image(pair.image).getpixel((0, 0))[0]  # type: ignore[index]
        shown = NOUNS[red // 10] if red != 128 else "nothing"
        if self.rejects in pair.caption:
            return Readings.failed(scale, ["rejected"])
        return sure_of(9 if shown in pair.caption.split() else 2, scale)


class CountsWords(FakeModel):
    """Looks at no image: as many tenths as the caption has words."""

    def answer_to(self, caption: str, scale: Scale, *, hidden: bool) -> Readings:
        return sure_of(min(9, len(caption.split())), scale)


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Benchmark:
    """An image per noun, known by its red; a caption of it rated 5, and another rated 1."""
    folder = tmp_path_factory.mktemp("zoo")
    pairs: list[Pair] = []
    rated: list[tuple[int, float, int]] = []
    for number, noun in enumerate(NOUNS):
        image = str(folder / f"{number}.png")
        Image.new("RGB", (8, 8), (10 * number + 1, 0, 0)).save(image)
        references = (f"The {noun} runs .", f"a very wet {noun} is here")
        for caption, rating in ((f"my {noun}", 5.0), ("something else", 1.0)):
            rated.append((len(pairs), rating, 0))
            pairs.append(Pair(image, caption, references, f"{number} {rating}"))
    numbers = np.arange(len(pairs)) // 2
    return Benchmark("zoo", {}, tuple(pairs), Ratings.of(rated), numbers, {})


def judge(model: FakeModel, store: ReadingStore | None = None) -> Judge:
    return Judge(model, get_decoder("raw"), scale=model.scale, store=store, batch_size=16)


def figures(card: Card) -> dict[str, Figure]:
    return {f"{figure.section.split(',')[0]}: {figure.name}": figure for figure in card.figures}


SEEN = "Own caption above the other: "
NOTHING = "Words that say nothing new: change of the score: "
SCALE = "Use of the scale: "


def test_a_judge_that_sees_the_noun_and_nothing_else(zoo: Benchmark) -> None:
    card = make_card(judge(Sees()), plan_probe(zoo, PROTOCOL))
    found, n = figures(card), len(NOUNS)
    for name in ("another image's, at random", "another's, nearest by words", "one wrong noun"):
        figure = found[SEEN + name]
        assert (figure.value, figure.n, figure.failed) == (wilson(n, n).times(100), n, 0)
        assert figure.grey is not None
        assert figure.grey.value == 0  # with nothing to see all captions tie
    for name in ("one wrong action", "its words shuffled"):
        assert (found[SEEN + name].value.value, found[SEEN + name].n) == (0, n)
    for name in ("one wrong colour", "one wrong number"):  # no caption has any
        assert math.isnan(found[SEEN + name].value.value)
        assert found[SEEN + name].n == 0
    for name, figure in found.items():
        if name.startswith(NOTHING):
            assert figure.value.value == pytest.approx(0)
    assert found[SCALE + "mean of references"].value.value == pytest.approx(90)
    assert found[SCALE + "mean of references"].grey.value == pytest.approx(20)  # type: ignore[union-attr]
    assert found[SCALE + "mean of other images' captions"].value.value == pytest.approx(20)
    assert found[SCALE + "standard deviation of an image's references"].value.value == 0
    # Two references tie, and so do other captions, be they two or one: 2 of 6 couples, 1 of 3.
    ties = [figure.value.value for name, figure in found.items() if name.startswith("Tied")]
    assert ties == pytest.approx([100 / 3, 100 / 3])
    raw = {f.name: f.value.value for f in card.figures if f.section.startswith("Raw")}
    assert sum(raw.values()) == pytest.approx(100)
    assert {name for name, share in raw.items() if share} == {"near 90", "near 20"}
    assert all(f.value.value == 0 for f in card.figures if "second hump" in f.section)


def test_scores_beside_ratings(zoo: Benchmark) -> None:
    card = make_card(judge(Sees()), plan_probe(zoo, PROTOCOL))
    people = {f.name.strip(): f for f in card.figures if f.section.startswith("Beside")}
    # 90 points where people give all of their scale, 20 where they give none of it.
    assert people["Kendall's τ_c"].value.value == pytest.approx(100)
    assert people["score - rating, mean"].value.value == pytest.approx(5)
    assert (people["score - rating, mean"].n, people["Kendall's τ_c"].n) == (48, 48)
    error = people["error of the scores (root mean square)"].value
    assert error.value == pytest.approx(math.sqrt((10**2 + 20**2) / 2))
    assert error.low <= error.value <= error.high
    assert people["mapped to ratings on other images"].value.value == pytest.approx(0)
    assert people["of the mean rating alone"].value.value == pytest.approx(50)
    few = make_card(judge(Sees()), plan_probe(zoo, PROTOCOL, 19))  # too few to fit and to test on
    (mapped,) = [f for f in few.figures if "mapped" in f.name]
    assert math.isnan(mapped.value.value)
    chosen = Preferences.of([(2 * i, 2 * i + 1, i % 2, "all") for i in range(len(NOUNS))])
    other = Benchmark("zoo", {}, zoo.pairs, chosen, zoo.image, {})
    (accuracy,) = [
        f
        for f in make_card(judge(Sees()), plan_probe(other, PROTOCOL)).figures
        if f.section.startswith("Beside")
    ]
    assert (accuracy.name, accuracy.value.value, accuracy.n) == ("accuracy", 50, len(NOUNS))


@pytest.mark.parametrize("scale", ["unit", "ten"])
def test_a_judge_that_counts_words_answers_a_grey_image_alike(zoo: Benchmark, scale: str) -> None:
    plan = plan_probe(zoo, PROTOCOL)
    card = make_card(judge(CountsWords(scale=get_scale(scale))), plan)
    for (question, *_), figure in zip(plan.rows, card.figures, strict=False):
        assert (figure.section, figure.name) == (question.section, question.name)
        assert repr(figure.value) == repr(figure.grey)  # NaN is not itself
    found = figures(card)
    word = 100 / (10 if scale == "unit" else 9)  # points of the scale for each
    for text, words in (("Score: 1.0", 2), ("Excellent!", 1), ("That is all.", 3)):
        lift = found[NOTHING + f'"{text}" after a wrong one'].value.value
        assert lift == pytest.approx(words * word)
    assert found[NOTHING + '"In this picture: ..."'].value.value == pytest.approx(3 * word)
    lengths = found[NOTHING + "its longest reference, not its shortest"].value
    assert lengths.value == pytest.approx(3 * word)  # six words, not three
    assert found[SCALE + "mean of references"].value.value == pytest.approx(4.5 * word)
    spread = found[SCALE + "standard deviation of an image's references"].value
    assert spread.value == pytest.approx(np.std([3, 6], ddof=1) * word)


def test_what_fails_is_counted_and_left_out(zoo: Benchmark) -> None:
    card = make_card(judge(Sees(rejects="wet kitten")), plan_probe(zoo, PROTOCOL))
    figure = figures(card)[SCALE + "mean of references"]
    assert (figure.n, figure.failed) == (len(NOUNS) - 1, 1)
    assert figure.value.value == pytest.approx(90)
    assert card.errors.keys() == {"rejected"}
    assert card.errors["rejected"] >= 2  # with its image, and with the grey one
    with pytest.raises(InputError, match="rejected"):
        make_card(judge(Sees(rejects="")), plan_probe(zoo, PROTOCOL, 2))


def test_more_images_only_add_questions_and_nothing_is_asked_twice(
    zoo: Benchmark, tmp_path: Path
) -> None:
    model = Sees()
    with ReadingStore(tmp_path / "readings.db") as store:
        few = plan_probe(zoo, PROTOCOL, 5)
        first = make_card(judge(model, store), few)
        assert len(model.asked) == first.readings == len(few.pairs)
        again = make_card(judge(model, store), plan_probe(zoo, PROTOCOL, 5))
        assert len(model.asked) == first.readings
        assert repr(again) == repr(first)  # NaN is not itself
        every = plan_probe(zoo, PROTOCOL)
        make_card(judge(model, store), every)
        assert len(model.asked) == len(every.pairs)
    assert few.digest != every.digest
    assert few.digest != plan_probe(zoo, AgreementProtocol(seed=1), 5).digest


def test_a_card_is_kept_as_it_is(zoo: Benchmark, tmp_path: Path) -> None:
    card = make_card(judge(Sees()), plan_probe(zoo, PROTOCOL, 5))
    card.save(tmp_path / "card.json")
    for path in (tmp_path, tmp_path / "card.json"):
        assert repr(Card.load(path)) == repr(card)


def test_a_card_says_which_m_its_tau_c_has(zoo: Benchmark, tmp_path: Path) -> None:
    card = make_card(judge(Sees()), plan_probe(zoo, PROTOCOL, 5))
    assert TAU_C_NOTES["people"] in card.notes()
    card.save(tmp_path / "card.json")
    data = json.loads((tmp_path / "card.json").read_text())
    del data["protocol"]["tau_m"]  # a card from before it was recorded
    (tmp_path / "card.json").write_text(json.dumps(data))
    assert TAU_C_NOTES["scipy"] in Card.load(tmp_path).notes()
