"""What a decoder of a plug-in returns is checked: numbers (N,), finite, inside the scale."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

import discode
from discode.decoders import Decoded, DistributionDecoder, get_decoder
from discode.decoders._base import Alternatives
from discode.errors import InputError
from discode.readings import Readings
from tests.helpers.fake_model import random_logp

LOGP = random_logp(np.random.default_rng(0), 3, 10)


@dataclass(frozen=True)
class Foreign:
    """Smoothing, whose result ``change`` changes."""

    change: Callable[[Decoded], Any]
    name: str = "foreign"
    requires: frozenset[str] = frozenset()
    stem: dict[str, object] = field(default_factory=dict)

    def options(self) -> dict[str, object]:
        return self.stem

    def decode(self, readings: Readings) -> Any:
        return self.change(get_decoder("smoothing").decode(readings))


def with_score(change: Callable[[Any], Any]) -> Foreign:
    return Foreign(lambda decoded: replace(decoded, score=change(decoded.score)))


def stop(score: Any) -> Any:
    raise StopIteration


@pytest.mark.parametrize(
    "decoder",
    [
        with_score(lambda score: score[:, None]),
        with_score(lambda score: score[:2]),
        with_score(lambda score: score.astype(str)),
        with_score(lambda score: 100 * score),
        with_score(lambda score: score - 10),
        with_score(stop),
        Foreign(lambda decoded: decoded.score),
        Foreign(lambda decoded: replace(decoded, distribution=decoded.raw)),
        Foreign(lambda decoded: replace(decoded, answers=None)),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_result_is_refused_by_name(decoder: Foreign) -> None:
    with pytest.raises(InputError, match=r"foreign|Foreign|test_foreign"):
        discode.decode(LOGP, decoder)


@dataclass(frozen=True, kw_only=True)
class Prepared(DistributionDecoder):
    """A distribution decoder whose solver is ``solver(call number, log-probabilities)``."""

    solver: Any = None
    name = "prepared"

    def prepare(self, seen: Alternatives, readings: Readings) -> Any:
        calls = itertools.count()
        solver = self.solver
        return solver and (lambda rows, logp, raw: solver(next(calls), logp))


@pytest.mark.parametrize(
    "solver",
    [
        None,
        lambda call, logp: None,
        lambda call, logp: logp * np.nan,
        lambda call, logp: logp + np.inf,
        lambda call, logp: logp[:-1],
        lambda call, logp: np.exp(logp),
        lambda call, logp: None if call else logp,  # asked again, with the runner-up as the answer
    ],
)
def test_a_wrong_solver_is_refused_by_name(solver: Any) -> None:
    near_tie = np.log([0.3, 0.02, 0.01, 0.01, 0.01, 0.01, 0.04, 0.3, 0.25, 0.05])
    with pytest.raises(InputError, match=rf"prepared.* of {__name__}"):
        discode.decode(near_tie, Prepared(solver=solver))


@pytest.mark.parametrize("name", ["raw", "smoothing", "distribution", "other", "plain"])
def test_other_infinite_numbers_are_missing(name: str) -> None:
    wide = name in ("distribution", "plain")
    wrong: dict[str, Any] = {name: np.full((3, 10) if wide else 3, np.inf)}
    infinite = Foreign(lambda decoded: replace(decoded, **wrong))
    scores = discode.decode(LOGP, infinite)
    assert np.isnan(getattr(scores, name)).all()
    assert np.isfinite(scores.value).all()


def test_an_infinite_score_is_a_failed_row() -> None:
    scores = discode.decode(LOGP, with_score(lambda score: np.array([score[0], np.inf, -np.inf])))
    assert np.isnan(scores.value).tolist() == [False, True, True]
    assert scores.counts()["failed"] == 2
    assert [*scores.errors] == [1, 2]
    assert all("foreign" in why for why in scores.errors.values())


def test_any_float_becomes_float64_and_printed_may_pass_one() -> None:
    single = discode.decode(LOGP, with_score(lambda score: score.astype(np.float32)))
    assert single.value.dtype == np.float64
    above = with_score(lambda score: 0 * score + 1.5)
    printed = discode.decode(LOGP, replace(above, stem={"stem": "printed"}), scale="unit")
    assert printed.value.tolist() == [1.5] * 3
    with pytest.raises(InputError):
        discode.decode(LOGP, above, scale="unit")
