"""The nested choice: against the definition in plain loops, and by simulation."""

from __future__ import annotations

import numpy as np
import pytest

from discode.errors import InputError
from discode.stats._contributions import Contributions
from discode.stats._selection import choose, deal_folds


def normal_candidates(
    seed: int, images: int, candidates: int, gain: float = 0.0
) -> list[Contributions]:
    """Contributions of images as independent numbers; those of the second are better by ``gain``.

    The candidates' scales differ a hundredfold, as those of real decoders do.
    """
    rng = np.random.default_rng(seed)
    fold = deal_folds(images)
    values = rng.normal(size=(candidates, images)) * np.geomspace(0.01, 1, candidates)[:, None]
    values[0] = 0
    values[1] += gain * values[1].std() / np.sqrt(images)
    outside = fold[None] != np.arange(5)[:, None]
    return [Contributions(row, row, np.where(outside, row, 0.0)) for row in values + 0.5]


def test_each_fold_gets_the_best_of_the_others() -> None:
    parts, fold = normal_candidates(3, 60, 6), deal_folds(60)
    done = choose(parts, fold, resamples=99)
    held_out = np.empty(60)
    for k in range(5):
        best = max(range(6), key=lambda m: parts[m].others[k][fold != k].mean())
        assert done.by_fold[k] == best
        held_out[fold == k] = parts[best].apart[fold == k]
    assert done.value == pytest.approx(held_out.mean())
    assert done.baseline == pytest.approx(0.5)
    assert done.difference.value == pytest.approx(held_out.mean() - 0.5)
    assert done.winner == max(range(6), key=lambda m: parts[m].whole.mean())


def test_what_an_image_says_does_not_choose_its_own_candidate() -> None:
    """A candidate that is superb on one fold alone is never held out on that fold."""
    fold = deal_folds(50)
    flat, superb = np.zeros(50), np.where(fold == 2, 1.0, -0.1)
    outside = fold[None] != np.arange(5)[:, None]
    parts = [Contributions(v, v, np.where(outside, v, 0.0)) for v in (flat, superb)]
    done = choose(parts, fold, resamples=99)
    assert done.by_fold[2] == 0
    assert done.difference.value <= 0 < superb.mean()
    assert done.p == 1.0


def test_no_better_candidate_is_claimed_in_five_percent() -> None:
    """Forty candidates of pure noise: 300 sets, within three standard errors of 5 %.

    That 40 candidates look better by chance is what the test has to allow for: the best of them on
    all images would be "significant" by a plain test nearly always.
    """
    choices = [
        choose(normal_candidates(s, 80, 40), deal_folds(80), resamples=199) for s in range(300)
    ]
    claims = np.mean([choice.p <= 0.05 for choice in choices])
    assert claims <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 300)
    assert 0.3 < np.mean([choice.p <= 0.5 for choice in choices]) < 0.7


def test_a_better_candidate_is_found() -> None:
    choices = [
        choose(normal_candidates(s, 80, 3, gain=6.0), deal_folds(80), resamples=199)
        for s in range(40)
    ]
    assert np.mean([choice.p <= 0.05 for choice in choices]) > 0.3
    assert all(
        choice.difference.low <= choice.difference.value <= choice.difference.high
        for choice in choices
    )


def test_one_candidate_alone_wins_nothing() -> None:
    done = choose(normal_candidates(0, 30, 2)[:1], deal_folds(30), resamples=99)
    assert (done.winner, done.p, done.difference.value) == (0, 1.0, 0.0)
    with pytest.raises(InputError):
        choose([], deal_folds(30))


@pytest.mark.parametrize(("images", "folds", "words"), [(19, 5, "19 images"), (90, 1, "folds=1")])
def test_too_few_images_or_folds(images: int, folds: int, words: str) -> None:
    with pytest.raises(InputError, match=words):
        deal_folds(images, folds)
