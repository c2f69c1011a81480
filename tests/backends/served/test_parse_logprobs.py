"""Every way a tokenizer may cut an answer, against probabilities worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from discode.backends.served.client import Token
from discode.backends.served.parse_logprobs import reading_from_tokens
from discode.scales import FIVE, LETTERS, UNIT, get_scale

P = [0.01, 0.01, 0.02, 0.03, 0.05, 0.08, 0.2, 0.5, 0.06, 0.03]
DIGITS = {str(n): p for n, p in enumerate(P)}


def token(text: str, p: dict[str, float]) -> Token:
    return Token(text, {t: math.log(q) for t, q in p.items()}, math.log(p.get(text, 1.0)))


def front(before: str, p: dict[str, float] = DIGITS, scale: float = 1.0) -> dict[str, float]:
    return {before + text: scale * q for text, q in p.items()}


ZERO, DOT = token("0", {"0": 0.8, "1": 0.2}), token(".", {".": 0.9, "5": 0.1})
SEVEN = token("7", DIGITS)


@pytest.mark.parametrize(
    ("tokens", "stem"),
    [
        ([ZERO, DOT, SEVEN], 0.72),
        ([token(" ", {" ": 0.5}), ZERO, DOT, SEVEN], 0.72),
        ([token("Score", {}), token(":", {}), token(" 0", {" 0": 0.8}), DOT, SEVEN], 0.72),
        ([token("▁0", {"▁0": 0.8, "▁1": 0.2}), DOT, SEVEN], 0.72),
        ([token("0.", {"0.": 0.8, "1.": 0.2}), SEVEN], 0.8),
        ([ZERO, DOT, SEVEN, token("<eos>", {"<eos>": 1.0})], 0.72),
        ([ZERO, token(".7", front("."))], 0.8 * sum(P)),
        ([token(" 0.7", front(" 0.", scale=0.9) | {" 1.0": 0.1})], 0.9 * sum(P)),
    ],
)
def test_unit(tokens: list[Token], stem: float) -> None:
    reading = reading_from_tokens(tokens, UNIT)
    assert not reading.errors
    assert not np.asarray(reading.truncated).any()
    whole = 1.0 if tokens[-1].text in ("7", "<eos>") else sum(P)
    np.testing.assert_allclose(np.exp(reading.answer_logp[0, 0]), np.array(P) / whole)
    np.testing.assert_allclose(np.exp(reading.stem_logp[0, 0]), stem)


def test_numbers_of_two_digits() -> None:
    top = DIGITS | {"75": 0.004, "71": 0.002, "85": 0.001, "7th": 0.0005}
    reading = reading_from_tokens([ZERO, DOT, token("75", top)], UNIT)
    assert np.exp(reading.answer_logp[0, 0, 7]) == pytest.approx(0.5065)
    assert np.exp(reading.answer_logp[0, 0, 8]) == pytest.approx(0.061)
    assert reading.second_logp is None


def test_a_second_decimal() -> None:
    reading = reading_from_tokens([ZERO, DOT, SEVEN, token("5", DIGITS)], UNIT)
    assert reading.second_logp is not None
    np.testing.assert_allclose(np.exp(reading.second_logp[0]), P)


def test_one_point_zero() -> None:
    one = token("1", {"0": 0.3, "1": 0.6})
    reading = reading_from_tokens([one, DOT, token("0", {"0": 0.97, "5": 0.01})], UNIT)
    assert np.isnan(reading.answer_logp[0, 0]).all()
    assert np.exp(reading.answer_logp[0, 1, 0]) == pytest.approx(0.97)
    assert reading.lead_logp is not None
    np.testing.assert_allclose(np.exp(reading.lead_logp[0]), [0.3, 0.6])
    assert np.asarray(reading.truncated)[0]
    # In one token: "1.0" is the likeliest, but 0.x together are likelier.
    whole = reading_from_tokens([token("1.0", front("0.", scale=0.6) | {"1.0": 0.4})], UNIT)
    assert whole.stem_logp[0].argmax() == 0
    assert np.exp(whole.stem_logp[0, 1]) == pytest.approx(0.4)


def test_what_is_missing_is_bounded() -> None:
    sent = {text: p for text, p in DIGITS.items() if p >= 0.05} | {"the": 0.04}
    reading = reading_from_tokens([ZERO, DOT, token("7", sent)], UNIT)
    assert np.asarray(reading.truncated).tolist() == [True]
    left = (1 - sum(sent.values())) / 5
    np.testing.assert_allclose(
        np.exp(reading.answer_logp[0, 0]), [p if p >= 0.05 else min(left, 0.04) for p in P]
    )


def test_scales_without_stems() -> None:
    top = {" A": 0.2, " B": 0.5, "B": 0.1, "B)": 0.05, "Because": 0.1, "C": 0.01, "D": 0.01}
    reading = reading_from_tokens([token(" B", top)], LETTERS)
    np.testing.assert_allclose(np.exp(reading.answer_logp[0, 0, :4]), [0.2, 0.65, 0.01, 0.01])
    assert np.asarray(reading.truncated)[0]
    five = {"4": 0.5, "45": 0.1, "5": 0.2, "1": 0.01, "2": 0.01, "3": 0.01}
    reading = reading_from_tokens([token("4", five), token(".", {}), token("5", {})], FIVE)
    np.testing.assert_allclose(np.exp(reading.answer_logp[0, 0]), [0.01, 0.01, 0.01, 0.5, 0.2])


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        ([], "but with ''"),
        ([token("I", {}), token(" cannot", {})], "but with 'I cannot'"),
        ([token("10", {}), DOT, SEVEN], "but with '10.7'"),
        ([ZERO], "but with '0'"),
        ([ZERO, token(",", {}), SEVEN], "but with '0,7'"),
    ],
)
def test_no_rating(tokens: list[Token], reason: str) -> None:
    reading = reading_from_tokens(tokens, UNIT)
    assert reason in reading.errors[0]
    assert np.isnan(reading.answer_logp).all()


def test_an_answer_in_several_tokens() -> None:
    reading = reading_from_tokens([token("8", DIGITS), token("5", DIGITS)], get_scale("0-100"))
    assert "'85' in several tokens" in reading.errors[0]
