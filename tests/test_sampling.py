"""A judge that draws answers: what it asks for, keeps, adds up and writes beside a score."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import discode
from discode import Pair, Prompt, Readings, Scale
from discode.backends import Backend, Blocks
from discode.decoders import get_decoder
from discode.decoders._bounds import undrawn_bound
from discode.images import demo_path
from discode.readings import Identity
from discode.readings._sampled import counts_of, draws_of, from_counts

P = np.array([0.05, 0.1, 0.2, 0.5, 0.1])
"""Of the answers; 0.05 have no rating."""


class Dice(Backend):
    """Draws ratings on scale five, and counts what it was asked for."""

    identity = Identity("dice", "sampled")
    scale = Scale("five", tuple("12345"), (1.0, 2.0, 3.0, 4.0, 5.0), "1", "5", unit=0.2)

    def __init__(self, samples: int, log: list[tuple[int, int]] | None = None) -> None:
        self.samples = samples
        self.log = [] if log is None else log

    def sampling(self, samples: int) -> Dice:
        return Dice(samples, self.log)

    def read(
        self, pairs: Sequence[Pair], prompt: Prompt, scale: Scale, *, hidden: bool = False
    ) -> Blocks:
        self.log.append((self.samples, len(pairs)))
        rng = np.random.default_rng(len(self.log))
        counts = rng.multinomial(self.samples, [*P, 1 - P.sum()], size=len(pairs))[:, None, :-1]
        yield range(len(pairs)), from_counts(scale, counts, np.full(len(pairs), self.samples))


def judge(samples: int, store: Path | None = None, log: list[tuple[int, int]] | None = None):  # type: ignore[no-untyped-def]  # a Judge
    return discode.load(Dice(samples, log), scale="five", store=store)


CAPTIONS = ["a cat", "a dog"]
CAT = demo_path() / "cat.jpg"


def test_scores_have_standard_errors_and_bounds() -> None:
    scores = judge(20).score(CAT, CAPTIONS)
    assert scores.stderr is not None
    assert scores.bound is not None
    assert (scores.stderr > 0).all()
    assert (scores.bound >= 0).all()  # 0 where each answer was drawn
    assert scores.flags["sampled"].all()
    assert not scores.flags["truncated"].any()
    assert "|samples:20|" in str(scores.signature)
    row = next(scores.rows())
    assert row["stderr"] == scores.stderr[0]
    assert "sampled" in row["flags"]


def test_more_samples_later_are_added_to_the_stored_ones(tmp_path: Path) -> None:
    log: list[tuple[int, int]] = []
    store = tmp_path / "store.db"
    first = judge(10, store, log).read([(CAT, caption) for caption in CAPTIONS])
    again = judge(10, store, log).read([(CAT, caption) for caption in CAPTIONS])
    assert log == [(10, 2)]
    assert np.array_equal(counts_of(first), counts_of(again))
    more = judge(25, store, log).read([(CAT, c) for c in [*CAPTIONS, "a bird"]])
    assert sorted(log[1:]) == [(15, 2), (25, 1)]
    assert draws_of(more).tolist() == [25, 25, 25]
    assert (counts_of(more)[:2] >= counts_of(first)).all()
    fewer = judge(10, store, log).read([(CAT, caption) for caption in CAPTIONS])
    assert len(log) == 3
    assert np.array_equal(counts_of(fewer), counts_of(more)[:2])


def test_failed_draws_leave_the_stored_ones_alone(tmp_path: Path) -> None:
    log: list[tuple[int, int]] = []
    store = tmp_path / "store.db"
    judge(10, store, log).read([(CAT, "a cat")])

    class Broken(Dice):
        def sampling(self, samples: int) -> Dice:
            return Broken(samples, self.log)

        def read(self, pairs, prompt, scale, *, hidden=False):  # type: ignore[no-untyped-def]  # as Dice
            yield range(len(pairs)), Readings.failed(scale, ["gone"] * len(pairs))

    broken = discode.load(Broken(20), scale="five", store=store).score(CAT, "a cat")
    assert np.isnan(broken.value).all()
    assert broken.errors == {0: "gone"}
    assert draws_of(judge(10, store, log).read([(CAT, "a cat")])).tolist() == [10]


def test_undrawn_answers_are_within_the_bound() -> None:
    """However their share, at most 1 - 0.05^(1/n), is dealt out."""
    counts = np.array([[[0, 0, 0, 12, 8]], [[3, 0, 9, 0, 0]]])
    readings = from_counts(judge(1).scale, counts, np.array([20, 12]))
    for name in ("raw", "smoothing", "discode"):
        decoder = get_decoder(name)
        bound = undrawn_bound(decoder, readings)
        assert bound is not None
        here = decoder.decode(readings).score
        rng = np.random.default_rng(0)
        for _ in range(200):
            logp = np.array(readings.answer_logp)
            for row, n in enumerate((20, 12)):
                absent = np.flatnonzero(counts[row, 0] == 0)
                most = 1 - 0.05 ** (1 / n)
                share = rng.dirichlet(np.full(len(absent), 0.2)) * most * rng.random()
                with np.errstate(divide="ignore"):
                    logp[row, 0, absent] = np.log(share)
            varied = decoder.decode(Readings(readings.scale, logp - 0.2, readings.stem_logp)).score
            assert (np.abs(varied - here) <= bound + 2e-6).all()
    assert undrawn_bound(get_decoder("discode:tau=2"), readings) is None


def test_a_sampled_score_file_has_the_column(tmp_path: Path) -> None:
    frame = pytest.importorskip("pandas").DataFrame({"image": [CAT] * 2, "caption": CAPTIONS})
    scored = judge(20).score_frame(frame)
    assert (scored["stderr"] > 0).all()
