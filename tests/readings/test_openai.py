"""Every way a tokenizer may cut an answer, against probabilities worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import discode
from discode._scales import FIVE, LETTERS, UNIT, Scale, get_scale
from discode.errors import InputError
from discode.readings import Readings
from discode.readings._openai import readings_from_json
from discode.readings._stems import reading_from_paths, reading_from_tokens, stem_paths
from discode.readings._tokens import Token

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


@pytest.mark.parametrize("glued", ["", "."])
def test_what_begins_with_a_digit_may_be_missing(glued: str) -> None:
    """Of "80" ... "99" the list has the first ten; 0.3 is outside, and may be any digit's."""
    listed = {f"8{n}": 0.05 for n in range(10)} | {str(n): 0.02 for n in range(10)}
    tokens = [ZERO, *([] if glued else [DOT]), token(f"{glued}85", front(glued, listed))]
    assert not np.asarray(reading_from_tokens(tokens, UNIT, every=True).truncated)[0]
    reading = reading_from_tokens(tokens, UNIT)
    assert np.asarray(reading.truncated)[0]
    for method in ("smoothing", "raw", "discode"):
        scores = discode.decode(reading, method)
        assert scores.bound is not None
        for digit in range(10):
            true = np.full(10, 0.02) + 0.5 * (np.arange(10) == 8) + 0.3 * (np.arange(10) == digit)
            if method == "smoothing":
                mean = float(true @ np.arange(10) / true.sum() / 10)
            else:
                rows = np.log(true)[None]
                mean = float(discode.decode(Readings.of(rows, UNIT), method).value[0])
            assert abs(scores.value[0] - mean) <= scores.bound[0] + 1e-9
            assert scores.bound[0] < 0.5


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
    ("tokens", "scale"),
    [
        ([], UNIT),
        ([token("I", {}), token(" cannot", {})], UNIT),
        ([token("10", {}), DOT, SEVEN], UNIT),
        ([ZERO], UNIT),
        ([ZERO, token(",", {}), SEVEN], UNIT),
        ([ZERO, DOT, SEVEN], FIVE),
        ([token("8", DIGITS), token("5", DIGITS)], get_scale("0-100")),  # in several tokens
    ],
)
def test_no_rating(tokens: list[Token], scale: Scale) -> None:
    reading = reading_from_tokens(tokens, scale)
    assert repr("".join(token.text for token in tokens)) in reading.errors[0]
    assert np.isnan(reading.answer_logp).all()


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
        parsed = readings_from_json({"choices": [choice]}, FIVE)
        assert parsed is not None
        assert parsed[1] == [place]
        np.testing.assert_allclose(np.exp(parsed[0].answer_logp[0, 0]), list(FIVE_P.values()))
    letter = {"content": [position(t, {t: 0.5}) for t in ("E", "<|END|>")]}
    choice = {"message": {"content": "E"}, "logprobs": letter}
    parsed = readings_from_json({"choices": [choice]}, LETTERS, missing="spread")
    assert parsed is not None
    assert parsed[1] == [(0, 1)]
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
        (CONTENT[3], None),
    ],
)
def test_every_form_of_openai_is_the_same_reading(given: Any, place: tuple[int, int]) -> None:
    parsed = readings_from_json(given, FIVE)
    assert parsed is not None
    assert parsed[1] == [place]
    np.testing.assert_allclose(np.exp(parsed[0].answer_logp[0, 0]), list(FIVE_P.values()))
    want = discode.decode({t: math.log(p) for t, p in FIVE_P.items()}, scale="five")
    assert discode.decode(given, scale="five").value == pytest.approx(want.value)


TOKENS = {str(score): -1.7 for score in range(1, 6)}


@pytest.mark.parametrize(
    "given",
    [
        {"choices": [CHOICE | {"logprobs": None}]},
        {"choices": []},
        {"output": [{"type": "message", "content": []}]},
        {"error": {"message": "quota"}},
        {"content": [{"token": "4", "logprob": 3.0}]},
        {"content": ["4"]},
        TOKENS | {"4": 3},
    ],
)
def test_a_response_without_what_is_needed(given: Any) -> None:
    """Alone it is refused; in a list, among responses and mappings, it costs its own row."""
    with pytest.raises(InputError) as caught:
        discode.decode(given, scale="five")
    scores = discode.decode([TOKENS, given, CHAT], scale="five")
    assert np.isnan(scores.value).tolist() == [False, True, False]
    assert scores.errors == {1: str(caught.value)}
    assert scores.value[0] == discode.decode(TOKENS, scale="five").value[0]


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


def path_of(*places: tuple[str, dict[str, float]]) -> Readings:
    """What is read along both stems through an answer that was written at once."""
    paths = stem_paths([token(text, p) for text, p in places], UNIT, forced=True)
    paths[1].follow([Token(".", {".": math.log(0.5)}), Token("0", {"0": math.log(0.8)})])
    return reading_from_paths(paths)


@pytest.mark.parametrize("one_token", [False, True])
def test_the_second_decimal_of_a_begun_answer(one_token: bool) -> None:
    lead, point = ("0", {"0": 0.6, "1": 0.3}), (".", {".": 0.9})
    if one_token:  # P(5 | 8) = 0.3 / 0.5
        decimals = [("85", {"85": 0.3, "81": 0.1, "8": 0.1, "7": 0.2, "71": 0.1})]
    else:
        decimals = [("8", {"8": 0.5, "7": 0.3}), ("5", {"5": 0.6, "1": 0.2})]
    readings = path_of(lead, point, *decimals)
    answers = np.exp(readings.answer_logp[0, 0])
    assert answers[[7, 8]].tolist() == pytest.approx([0.3, 0.5])
    assert readings.second_logp is not None
    assert np.exp(readings.second_logp[0, [1, 5]]).tolist() == pytest.approx([0.2, 0.6])
    assert np.exp(readings.stem_logp[0]).tolist() == pytest.approx([0.54, 0.15])
    assert np.asarray(readings.truncated).all()  # digits are missing


def test_numbers_that_end_have_no_second_decimal() -> None:
    lead, point = ("0", {"0": 0.6, "1": 0.3}), (".", {".": 0.9})
    assert path_of(lead, point, ("8", {"8": 0.9}), ("<eos>", {"<eos>": 0.9})).second_logp is None
    one = token("1", {"0": 0.1, "1": 0.8})
    zero = token("0", {"0": 0.9})
    paths = stem_paths([one, DOT, zero, zero], UNIT, forced=False)
    assert (paths[0].complete, paths[0].begun, paths[1].complete) == (False, "0", True)
    assert reading_from_paths(paths).second_logp is None


def test_a_stem_that_is_not_in_the_list_is_not_read() -> None:
    tokens = [Token("0", {"0": -0.1}), Token(".", {".": -0.1}), Token("7", {"7": -0.3})]
    reading = reading_from_paths(stem_paths(tokens, UNIT, forced=False))
    assert np.isnan(reading.stem_logp[0]).tolist() == [False, True]
    assert reading_from_paths(stem_paths([Token("the", {"the": -0.1})], UNIT, forced=True)).errors
    assert stem_paths([Token("the", {"the": -0.1, "0": -3.0})], UNIT, forced=False) == []
