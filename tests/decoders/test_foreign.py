"""What a decoder of a plug-in returns is checked: numbers (N,), finite, inside the scale."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

import discode
from discode.decoders import Decoded, get_decoder
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
    ],
)
def test_a_wrong_result_is_refused_by_name(decoder: Foreign) -> None:
    with pytest.raises(InputError, match=r"foreign|Foreign|test_foreign"):
        discode.decode(LOGP, decoder)


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
