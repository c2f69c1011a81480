"""What a judge is asked: captions made by hand-checked rules."""

from __future__ import annotations

import random

import numpy as np
import pytest

from discode._pairs import Pair
from discode._probe import QUESTIONS, Subject
from discode._probe.questions import AFTER, _Alike, find_subjects
from discode._probe.wrong_words import KINDS, WORDS, swap
from discode.benchmarks import Benchmark, Preferences
from discode.benchmarks._base import keep_images
from discode.errors import InputError
from training.wrong_words import PENALTY

ASK = {question.name: question.ask for question in QUESTIONS}
DOG = Subject("dog.jpg", 0, "dog.jpg", ("A dog runs", "one red dog", "A very big dog"), "cats", "x")


def benchmark(*references: tuple[str, ...]) -> Benchmark:
    pairs = [Pair(f"{i}.jpg", "a", texts, str(i)) for i, texts in enumerate(references)]
    none = Preferences.of([])
    return Benchmark("mine", {}, tuple(pairs), none, np.arange(len(pairs)), {})


def test_a_wrong_word_is_wrong() -> None:
    rng = random.Random(0)
    references = ["a brown dog runs on the beach", "two dogs play near the ocean"]
    caption = "two small brown dogs running on the beach"
    for kind in PENALTY:
        swapped = swap(caption, references, rng, kind)
        assert swapped is not None
        text, found = swapped
        assert found == kind
        changed = set(text.split()) - set(caption.split())
        assert len(changed) == 1
        assert not changed & {word for r in references for word in r.split()}
    assert swap("nothing to see", references, rng) is None
    assert set(WORDS) == set(KINDS)


def test_a_swapped_word_stands_as_the_former_one_did() -> None:
    colours = [word for word in WORDS["colour"] if word != "blue"]
    for seed in range(30):  # of all colours but blue, which is said, orange and its likes
        text, _ = (
            swap("An Orange cat, asleep.", ["BLUE sky"], random.Random(seed), "colour") or ("",) * 2
        )
        article, colour, rest = text.split(maxsplit=2)
        assert (article, rest) == ("An" if colour[0] in "aeiou" else "A", "cat, asleep.")
        assert colour in colours
    assert swap("Two dogs", ["two dogs", "four five six seven three one several"],
                random.Random(0), "number") is None  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
def test_captions_of_the_questions(seed: int) -> None:
    def ask(name: str, image: Subject = DOG) -> tuple[str, ...]:
        return ASK[name](image, random.Random(seed))

    assert ask("another image's, at random") == ("A dog runs", "cats")
    assert ask("another's, nearest by words") == ("A dog runs", "x")
    own, wrong = ask("one wrong action")
    assert own == "A dog runs"
    assert wrong.removeprefix("A dog ") in {*WORDS["does"]} - {"runs", "walks", "plays", "jumps"}
    own, wrong = ask("one wrong colour")
    assert (own, wrong.split()[0], wrong.split()[2]) == ("one red dog", "one", "dog")
    assert ask("one wrong number") == ()  # "three red dog" is wrong of any image
    assert sorted(ask("its words shuffled")[1].split()) == ["A", "dog", "runs"]
    lone = Subject("a.jpg", 1, "a.jpg", ("dog",), "cats", "x")
    assert ask("its words shuffled", lone) == ()
    assert ask("standard deviation of an image's references", lone) == ()
    assert ask("its longest reference, not its shortest", lone) == ()
    assert ask("its longest reference, not its shortest") == ("A dog runs", "A very big dog")
    assert ask("scores") == (*DOG.references, "cats", "x")
    for words in AFTER:
        assert ask(f'"{words}" after a wrong one') == ("cats", f"cats. {words}")
    assert ask('"..., as can be seen here"') == ("A dog runs", "A dog runs, as can be seen here")
    assert ask('"In this picture: ..."') == ("A dog runs", "In this picture: A dog runs")


def test_others_and_the_nearest_are_of_other_images() -> None:
    whole = benchmark(
        ("A dog runs on grass .", "A dog runs on grass"),  # one text, but for its end
        ("a dog runs on sand", "A dog runs on grass."),  # the second is the first image's, too
        ("a man sleeps", "the man"),
        (),
    )
    subjects = find_subjects(whole, whole, 0)
    assert [subject.name for subject in subjects] == ["0.jpg", "1.jpg", "2.jpg"]
    assert subjects[0].references == ("A dog runs on grass",)
    # "dog" and "runs" are in two captions of four, and "grass" in none of another image.
    assert subjects[0].near == "a dog runs on sand"
    for subject, texts in zip(subjects, (1, 2, 2), strict=True):
        assert len(subject.references) == texts
        assert not {subject.other, subject.near} & {*subject.references}
    few = keep_images(whole, 1)
    (one,) = find_subjects(whole, few, 0)
    assert one in subjects  # the same, though fewer are asked about
    with pytest.raises(InputError, match="mine"):
        find_subjects(benchmark(("a dog",), ()), benchmark(("a dog",), ()), 0)


def test_the_nearest_caption_does_not_depend_on_the_order_of_a_set() -> None:
    words = [f"w{i}" for i in range(40)]
    captions = [" ".join(random.Random(i).sample(words, 12)) for i in range(30)]
    alike = _Alike(captions)
    order = random.Random(0)
    for _ in range(5):
        shuffled = order.sample(words, 40)
        assert alike._shared(shuffled).tolist() == alike._shared(words).tolist()
