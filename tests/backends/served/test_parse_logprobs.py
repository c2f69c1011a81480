"""Every way a tokenizer may cut an answer, against probabilities worked out by hand."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

import discode
from discode.backends.served.parse_logprobs import Token, reading_from_tokens, readings_from_json
from discode.errors import InputError
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


def test_a_digit_may_begin_a_longer_answer() -> None:
    """10 as "1" and "0": how likely "1" is tells neither 1 nor 10."""
    scale = get_scale("1-10")
    p = {"9": 0.45, "1": 0.44, "8": 0.05, "7": 0.01} | {str(n): 0.005 for n in range(2, 7)}
    for listed in (p, p | {"10": 0.001}):
        position = token("9", listed)
        scores = discode.decode(reading_from_tokens([position], scale), "smoothing")
        assert scores.bound is not None
        for one in (0.0, 0.44):  # of the mass of "1", what is 1; the rest is 10
            true = listed | {"1": one, "10": 0.44 - one + listed.get("10", 0.0)}
            mean = sum(int(n) * q for n, q in true.items()) / sum(true.values())
            assert abs(scores.value[0] - mean) <= scores.bound[0] + 1e-9
        known = reading_from_tokens([position], scale, whole=True)
        assert np.exp(known.answer_logp[0, 0, 0]) == pytest.approx(0.44)
        # Where "1" is as likely as what was written, nothing is known.
        assert reading_from_tokens([token("9", listed | {"1": 0.45})], scale).errors
    # A model that writes 10 as one token, as its own list shows.
    whole = p | {"1": 0.01, "10": 0.43}
    reading = reading_from_tokens([token("9", whole)], scale)
    assert not np.asarray(reading.truncated)[0]
    np.testing.assert_allclose(
        np.exp(reading.answer_logp[0, 0]), [whole[str(n)] for n in range(1, 11)]
    )


def test_only_the_tokens_of_the_message_count() -> None:
    def reply(content: str | None, *tokens: str) -> dict[str, Any]:
        places = [position(t, FIVE_P if t in FIVE_P else {t: 0.9}) for t in tokens]
        return CHOICE | {"message": {"content": content}, "logprobs": {"content": places}}

    thinking = reply("4", "<think>", "Maybe ", "2", "</think>", "\n", "4", "<|END|>")
    cut = reply("é: 4", "bytes:\\xc3", "bytes:\\xa9", ":", " ", "4")
    other, nothing = reply("5", "4"), reply(None, "Maybe ", "4")
    for choice, place in ((thinking, (0, 1)), (cut, (2, 3))):
        found = readings_from_json({"choices": [choice]}, FIVE)
        assert found is not None
        assert found.places == (place,)
        np.testing.assert_allclose(np.exp(found.readings.answer_logp[0, 0]), list(FIVE_P.values()))
    letter = {"content": [position(t, {t: 0.5}) for t in ("E", "<|END|>")]}
    choice = {"message": {"content": "E"}, "logprobs": letter}
    found = readings_from_json({"choices": [choice]}, LETTERS, missing="spread")
    assert found is not None
    assert found.places == ((0, 1),)
    for bad in (other, nothing):
        scores = discode.decode({"choices": [bad | {"index": 1}, thinking]}, scale="five")
        assert scores.flags["failed"].tolist() == [False, True]  # by their indexes


FIVE_P = {"1": 0.05, "2": 0.05, "3": 0.1, "4": 0.5, "5": 0.25}


def position(text: str, p: dict[str, float]) -> dict[str, Any]:
    top = [{"token": t, "logprob": math.log(q), "bytes": list(t.encode())} for t, q in p.items()]
    return {"token": text, "logprob": math.log(p.get(text, 0.9)), "top_logprobs": top}


WORDS = [position(text, {text: 0.9}) for text in ("Rating", ":", " ")]
CONTENT = [*WORDS, position("4", FIVE_P), position("<end>", {"<end>": 1.0})]
OLD = {
    "tokens": [item["token"] for item in CONTENT],
    "token_logprobs": [None, *(item["logprob"] for item in CONTENT[1:])],
    "top_logprobs": [
        None,
        *({t["token"]: t["logprob"] for t in item["top_logprobs"]} for item in CONTENT[1:]),
    ],
    "text_offset": [0, 6, 7, 8, 9],
}
CHOICE = {
    "index": 0,
    "message": {"role": "assistant", "content": "Rating: 4"},
    "logprobs": {"content": CONTENT, "refusal": None},
    "finish_reason": "stop",
}
CHAT = {"id": "chatcmpl-1", "object": "chat.completion", "choices": [CHOICE], "usage": {}}
RESPONSES = {
    "id": "resp_1",
    "object": "response",
    "error": None,
    "output": [
        {"type": "reasoning", "summary": []},
        {
            "type": "message",
            "content": [{"type": "output_text", "text": "Rating: 4", "logprobs": CONTENT}],
        },
    ],
}
BATCH = {
    "id": "b",
    "custom_id": "r7",
    "response": {"status_code": 200, "body": CHAT},
    "error": None,
}


class Dumped:
    """As pydantic's models, which OpenAI's package returns."""

    def __init__(self, data: dict[str, Any]) -> None:
        self._data = data

    def model_dump(self) -> dict[str, Any]:
        return self._data


@pytest.mark.parametrize(
    ("given", "place"),
    [
        (CHAT, (3, 4)),  # the message ends before the last token
        (CHOICE, (3, 4)),
        (CHOICE["logprobs"], (3, 5)),
        (CONTENT, (3, 5)),
        ({"choices": [{"text": "Rating: 4", "logprobs": OLD}]}, (3, 4)),
        (OLD, (3, 5)),
        (RESPONSES, (3, 4)),
        (BATCH, (3, 4)),
        (Dumped(CHAT), (3, 4)),
        ([CHAT], (3, 4)),
        ([Dumped(CHAT)], (3, 4)),
        (CONTENT[3], None),
        (Dumped(CONTENT[3]), None),
    ],
)
def test_every_form_of_openai_is_the_same_reading(given: Any, place: tuple[int, int]) -> None:
    found = readings_from_json(given, FIVE)
    assert found is not None
    assert found.places == (place,)
    np.testing.assert_allclose(np.exp(found.readings.answer_logp[0, 0]), list(FIVE_P.values()))
    want = discode.decode({t: math.log(p) for t, p in FIVE_P.items()}, scale="five")
    assert discode.decode(given, scale="five").value == pytest.approx(want.value)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"choices": [CHOICE | {"logprobs": None}]}, "top_logprobs=20"),
        ({"choices": [{"text": "4", "logprobs": None}]}, "logprobs=5"),
        ({"output": [{"type": "message", "content": []}]}, "message.output_text.logprobs"),
        ({"error": {"message": "quota"}}, "quota"),
        ({"content": [{"token": "4", "logprob": "x"}]}, "not OpenAI's log-probabilities"),
        ({"content": [{"token": "4", "logprob": 3.0}]}, "not OpenAI's log-probabilities"),
        ({"content": ["4"]}, "not OpenAI's log-probabilities"),
    ],
)
def test_a_response_without_what_is_needed(given: Any, reason: str) -> None:
    with pytest.raises(InputError, match=re.escape(reason)):
        discode.decode(given, scale="five")
    scores = discode.decode([CHAT, given], scale="five")  # in a list it costs its own row
    assert reason in scores.errors[1]
    assert np.isnan(scores.value).tolist() == [False, True]


def test_several_positions_without_a_rating() -> None:
    scores = discode.decode({"content": WORDS}, scale="five")
    assert "did not answer with a rating but with 'Rating: '" in scores.errors[0]


def test_a_decimal_is_no_zero() -> None:
    unit = {
        "content": [position("0", {"0": 0.9}), position(".", {".": 0.9}), position("7", DIGITS)]
    }
    for scale in ("ten", "five"):
        assert "'unit'" in discode.decode(unit, scale=scale).errors[0]
    assert discode.decode(unit, scale="unit").errors == {}


def test_what_a_response_lacks_is_nan_or_spread() -> None:
    given = {"content": [position("4", {"4": 0.7, "5": 0.2})]}
    assert "no log-probability for '1', '2', '3'" in discode.decode(given, scale="five").errors[0]
    assert "'spread'" in discode.decode(given, scale="five").errors[0]
    spread = discode.decode(given, scale="five", missing="spread")
    assert spread.flags["truncated"].tolist() == [True]


def test_plain_log_probabilities_are_none_of_openais() -> None:
    for given in ([-1.0, -2.0], [[-1.0]], {"4": -0.1}, [{"4": -0.1}], CONTENT[3]["top_logprobs"],
                  [], np.zeros((2, 5)), {"content": -0.1, "tokens": -3.0}):  # fmt: skip
        assert readings_from_json(given, FIVE) is None


def test_a_list_may_mix_responses_and_mappings_and_each_has_its_own_reason() -> None:
    tokens = {str(score): -1.7 for score in range(1, 6)}
    top = [{"token": token, "logprob": logp} for token, logp in tokens.items()]
    position = {"token": "4", "logprob": -1.7, "top_logprobs": top}
    chat = {"choices": [{"message": {}, "logprobs": {"content": [position]}}]}
    bad = {
        "an error, not an answer: x": {"error": {"message": "x"}},
        "no log-probabilities; ask for logprobs=True": {
            "choices": [{"message": {}, "logprobs": None}]
        },
        "the response has no choices": {"choices": []},
        "token '4' has 3; log-probabilities are at most 0": {**tokens, "4": 3},
    }
    want = discode.decode(tokens, scale="five").value[0]
    for reason, given in bad.items():
        with pytest.raises(InputError, match=re.escape(reason)):
            discode.decode(given, scale="five")
        scores = discode.decode([tokens, given, chat], scale="five")
        assert np.array_equal(scores.value, [want, np.nan, want], equal_nan=True)
        assert reason in scores.errors[1]
        assert "row 0" not in scores.errors[1]
