"""The arena: strengths, flips and disagreements recounted from single comparisons."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from discode import InputError, Pair, load
from discode.bench._arena import ArenaPlan, hold_arena
from discode.images import demo_path
from discode.stats import bradley_terry
from tests.helpers.chat_servers import compared, comparer, expected, served, serving
from tests.helpers.command_line import call, refused
from tests.helpers.fake_model import FakeModel, OneByOne

IMAGES = [str(demo_path() / f"{name}.jpg") for name in ("cat", "coffee", "city", "chart")]
CAPTIONS = {
    "long": ["a striped cat with eyes", "coffee", "a city beside the water", "a bar chart"],
    "mid": ["a cat that sits", "a cup of coffee", "a city", "a chart"],
    "short": ["cat", "a cup with a spoon", "city", "chart, drawn"],
}


def pairs_of(captions: list[str]) -> list[Pair]:
    return [Pair(image, text) for image, text in zip(IMAGES, captions, strict=True)]


SYSTEMS = {name: pairs_of(captions) for name, captions in CAPTIONS.items()}


def test_it_is_the_ranking_of_single_comparisons() -> None:
    plan = ArenaPlan.of(SYSTEMS)
    with serving(answers=comparer) as server:
        judge = load(served(server), method="smoothing")
        done = hold_arena(judge, plan, resamples=200)
        asked = sum(compared(body) is not None for body in server.asked)
        score = {name: judge.score_pairs(pairs).value for name, pairs in SYSTEMS.items()}
    assert asked == 2 * 3 * 4
    names = [*CAPTIONS]
    wins = np.zeros((3, 3))
    flips, against = [], []
    for i, j in combinations(range(3), 2):
        for k in range(4):
            a, b = CAPTIONS[names[i]][k], CAPTIONS[names[j]][k]
            p, flip = expected(a, b)
            wins[i, j] += p
            wins[j, i] += 1 - p
            first, second = p + flip / 2, p - flip / 2
            flips.append((first - 0.5) * (second - 0.5) < 0)
            apart = score[names[i]][k] - score[names[j]][k]
            if apart and abs(p - 0.5) > 1e-9:
                against.append(apart * (p - 0.5) < 0)
    truth = dict(zip(names, bradley_terry(wins), strict=True))
    for each in done.systems:
        assert each.mean == pytest.approx(truth[each.name])
        assert each.low <= each.mean <= each.high
        row = names.index(each.name)
        assert each.preferred == pytest.approx(wins[row].sum() / 8)
        assert each.score == pytest.approx(score[each.name].mean())
    assert [each.name for each in done.systems] == sorted(truth, key=lambda n: -truth[n])
    assert done.flipped == pytest.approx(np.mean(flips))
    assert done.disagree.value == pytest.approx(np.mean(against))
    for pair in done.pairs:
        i, j = names.index(pair.a), names.index(pair.b)
        assert pair.preferred.value == pytest.approx(wins[i, j] / 4)
    assert (done.images, done.left_out, done.comparisons) == (4, 0, 12)


def test_scores_in_the_place_of_comparisons_do_not_disagree() -> None:
    done = hold_arena(load(OneByOne(), scale="ten"), ArenaPlan.of(SYSTEMS), resamples=100)
    assert done.signature["preference"] == "scores"
    assert np.isnan(done.disagree.value)
    assert all(np.isnan(pair.disagree) and pair.flipped == 0 for pair in done.pairs)


def test_a_captioner_that_always_wins_has_no_strength() -> None:
    judge = load(OneByOne(), scale="ten", method="smoothing")
    texts = [f"{'x' * n} {n}" for n in range(9)]
    order = np.argsort(judge.score(IMAGES[0], texts).value)
    worst, best = texts[order[0]], texts[order[-1]]
    systems = {"a": pairs_of([best] * 4), "b": pairs_of([worst] * 4)}
    done = hold_arena(judge, ArenaPlan.of(systems), resamples=100)
    assert done.undefined
    assert all(np.isnan(each.mean) for each in done.systems)
    assert [each.preferred for each in done.systems] == [1, 0]
    mixed = {"a": pairs_of([best, best, best, worst]), "b": pairs_of([worst, worst, worst, best])}
    done = hold_arena(judge, ArenaPlan.of(mixed), resamples=100)
    assert np.isfinite(done.systems[0].mean)
    assert "of 100 resamples" in done.undefined[0]


def test_several_captions_count_as_one_image() -> None:
    """With their mean preference; an image that one captioner lacks is left out."""
    judge = load(OneByOne(), scale="ten", method="smoothing")
    texts = [f"{'x' * n} {n}" for n in range(1, 5)]
    values = judge.score(IMAGES[0], texts).value
    several = [Pair(IMAGES[0], text) for text in texts[:3]]
    one = [Pair(IMAGES[0], texts[3]), Pair(IMAGES[1], "alone")]
    done = hold_arena(judge, ArenaPlan.of({"a": several, "b": one}), resamples=100)
    better = np.mean((values[:3] > values[3]) + (values[:3] == values[3]) / 2)
    (pair,) = done.pairs
    assert pair.preferred.value == pytest.approx(better)
    assert (done.images, done.left_out, done.comparisons) == (1, 1, 3)


def test_images_with_a_failure_are_left_out() -> None:
    systems = {**SYSTEMS, "odd": pairs_of(["a", "rejected", "b", "c"])}
    done = hold_arena(load(FakeModel(rejects="rejected")), ArenaPlan.of(systems), resamples=100)
    assert (done.images, done.left_out) == (3, 1)
    assert done.errors == ((IMAGES[1], "rejected"),) * 3
    every = {name: pairs_of(["rejected"] * 4) for name in "ab"}
    with pytest.raises(InputError, match="rejected"):
        hold_arena(load(FakeModel(rejects="rejected")), ArenaPlan.of(every))


def test_the_command(tmp_path: Path) -> None:
    files = []
    for name, captions in CAPTIONS.items():
        files.append(tmp_path / f"{name}.jsonl")
        rows = zip(IMAGES, captions, strict=True)
        files[-1].write_text(
            "".join(json.dumps({"image": Path(i).name, "caption": c}) + "\n" for i, c in rows)
        )
    command = ("arena", *files, "--images", demo_path(), "--resamples", 100)
    with serving(answers=comparer) as server:
        here = ("--model", "endpoint:tiny", "--base-url", server.url)
        priced = call(*command, *here, "--dry-run")
        assert "36 requests" in priced.stdout  # twelve captions, twelve comparisons in two orders
        assert not server.asked
        kept = ("--store", tmp_path / "kept.db")
        done = call(*command, *here, *kept)
        assert done.returncode == 0, done.stderr
        for word in ("strength", "flip", "disagree", "long", "short"):
            assert word in done.stdout
        asked = len(server.asked)
        content = json.loads(call(*command, *here, *kept, "--json").stdout)
        assert len(server.asked) == asked + 1  # the trial
    assert content["systems"][0]["name"] == "long"
    assert content["disagree"]["value"] is not None
    assert "preference:orders" in content["signature"]
    renamed = call("arena", f"x={files[0]}", f"y={files[1]}", *command[4:], "--format", "markdown",
                   "--model", "embedded")  # fmt: skip
    assert renamed.returncode == 0, renamed.stderr
    assert "| x |" in renamed.stdout


def test_input_that_is_refused(tmp_path: Path) -> None:
    for name, image in (("a", "x.jpg"), ("b", "y.jpg")):
        (tmp_path / f"{name}.csv").write_text(f"image,caption\n{image},a dog\n")
    a, b = tmp_path / "a.csv", tmp_path / "b.csv"
    refused(call("arena", a), "two captioners")
    refused(call("arena", a, b), "x.jpg", "y.jpg")
    (tmp_path / "empty.csv").write_text("image,caption\n")
    refused(call("arena", a, tmp_path / "empty.csv"), "empty")
    refused(call("arena", a, a), "duplicate")
    refused(call("arena", a, tmp_path / "c.csv"), "c.csv")
    refused(call("arena", a, b, "--json", "--format", "latex"), "--json")
    refused(call("arena", a, b, "--dry-run"), "--dry-run")
    refused(call("arena", a, f"b={a}", "--resamples", "0"), "resamples=0")
    refused(call("arena", a, b, "--images", tmp_path / "no"), "--images")
