"""How wrong a truncated score may be, against the scores of what was left out."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import discode
from discode._scales import FIVE, TEN, UNIT, Scale
from discode.decoders import METHODS, get_decoder
from discode.decoders._bounds import truncation_bound
from discode.readings import Readings

UNBOUNDED = ("jensen-shannon", "beta", "renyi", "paper-adam", "fleur", "p-yes")
BOUNDED = [name for name in METHODS if name not in UNBOUNDED]
SPECS = [*BOUNDED, "paper:trust=3", "discode:trust=0", "no-cross-entropy:trust=0.5"]


@settings(deadline=None, max_examples=150)
@given(seed=st.integers(0, 2**32 - 1), top=st.integers(2, 12), method=st.sampled_from(SPECS))
def test_the_truth_lies_within(seed: int, top: int, method: str) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=14) * rng.uniform(0.5, 4)
    p = np.exp(logits) / np.exp(logits).sum()
    p[:10] += 1e-12
    tokens = dict(zip([*"0123456789", "the", "a", "I", "\n"], np.log(p).tolist(), strict=True))
    best = max("0123456789", key=lambda digit: tokens[digit])
    listed = sorted(tokens, key=lambda token: -tokens[token])[:top]
    if best not in listed:
        return
    sent = {token: min(tokens[token], 0.0) for token in listed}
    readings = Readings.of(sent, TEN, missing="spread")
    decoder = get_decoder(method)
    true = float(decoder.decode(Readings.of(np.log(p[:10]).clip(max=0), TEN)).score[0])
    bound = truncation_bound(decoder, readings)
    if bound is None:
        assert all(digit in listed for digit in "0123456789")
        return
    assert abs(float(decoder.decode(readings).score[0]) - true) <= bound[0] + 1e-6


def completions(sent: dict[str, float], scale: Scale, levels: int) -> np.ndarray:
    """Return every row (M, K) that a server may have cut to ``sent``, on a grid of levels.

    By definition: an answer left out is no likelier than any token sent, and together they have no
    more than the mass that is left.
    """
    left = max(1 - sum(math.exp(value) for value in sent.values()), 0.0)
    ceiling = min(left, *(math.exp(value) for value in sent.values()))
    absent = [answer for answer in scale.answers if answer not in sent]
    grid = ceiling * np.linspace(0, 1, levels) ** 2
    rows = []
    for masses in itertools.product(grid, repeat=len(absent)):
        if sum(masses) <= left * (1 + 1e-12):
            filled = dict(zip(absent, masses, strict=True))
            rows.append([math.exp(sent[a]) if a in sent else filled[a] for a in scale.answers])
    with np.errstate(divide="ignore"):
        return np.log(rows)


@pytest.mark.parametrize("scale", [FIVE, UNIT], ids=lambda scale: scale.name)
@settings(deadline=None, max_examples=120)
@given(
    seed=st.integers(0, 2**32 - 1),
    method=st.sampled_from(SPECS),
    equal=st.booleans(),
)
def test_no_completion_lies_outside(scale: Scale, seed: int, method: str, equal: bool) -> None:
    """Brute force over all that may have been left out, also where answers tie."""
    rng = np.random.default_rng(seed)
    k = len(scale.answers)
    lacking = int(rng.integers(1, 5))
    shown = sorted(rng.choice(k, k - lacking, replace=False))
    mass = rng.dirichlet(np.full(len(shown) + 1, rng.choice([0.3, 1.0, 5.0])))
    if equal:  # what was sent ties, hence what was not may tie with it
        mass[:-1] = mass[:-1].mean()
    sent = {scale.answers[i]: math.log(m) for i, m in zip(shown, mass[:-1], strict=True) if m > 0}
    if len(sent) < len(shown):
        return
    readings = Readings.of(sent, scale, missing="spread")
    decoder = get_decoder(method)
    here = float(decoder.decode(readings).score[0])
    bound = truncation_bound(decoder, readings)
    assert bound is not None
    rows = completions(sent, scale, 5 if lacking > 2 else 9)
    scores = decoder.decode(Readings.of(rows.clip(max=0), scale)).score
    assert np.abs(scores - here).max() <= bound[0] + 1e-9


@pytest.mark.parametrize("method", ["jensen-shannon", "beta", "renyi"])
def test_no_bound_is_given_where_none_is_known(method: str) -> None:
    """A full row may lie outside what the extreme cases span (beta: 1.151 for 1.265 ± 0.048)."""
    scores = discode.decode({"1": -1.1535, "5": -1.45085}, method, "five", missing="spread")
    assert scores.flags["truncated"].tolist() == [True]
    assert scores.bound is None


def test_only_truncated_rows() -> None:
    whole = {str(n): math.log(0.1) for n in range(10)}
    part = {"7": math.log(0.6), "8": math.log(0.3), "the": math.log(0.05)}
    scores = discode.decode([whole, part], missing="spread")
    assert scores.bound is not None
    assert np.isnan(scores.bound[0])
    assert scores.bound[1] > 0
    assert [row["bound"] for row in scores.rows()] == [None, scores.bound[1]]
    assert discode.decode([whole]).bound is None
    assert "bound" not in next(discode.decode([whole]).rows())


@pytest.mark.parametrize("method", ["smoothing", "discode"])
def test_a_grade_that_could_not_be_given_counts(method: str) -> None:
    """After "1." the digits do not matter, but what was left out may be the "0" that grades it."""
    answers = np.full((4, 2, 10), np.nan)
    answers[:, 1] = np.log([0.9] + [0.01] * 9)
    stems = np.log([[np.nan, 0.7], [np.nan, 0.7], [np.nan, 0.4], [0.2, 0.7]])
    lead = np.log([[np.nan, 0.75], [0.2, 0.75], [np.nan, 0.4], [0.2, 0.7]])
    readings = Readings(UNIT, answers, stems, lead_logp=lead, truncated=np.ones(4, bool))
    decoder = get_decoder(method)
    bound = truncation_bound(decoder, readings)
    assert bound is not None
    assert decoder.decode(readings).score[[0, 2]].tolist() == [1.0, 1.0]
    assert bound == pytest.approx([0.1 * 0.25, 0.0, 0.1 * 0.5, 0.0])
    for zero in np.linspace(1e-6, 0.25, 50):  # all that "0" may have been beside 0.75
        full = Readings(UNIT, answers[:1], stems[:1], lead_logp=np.log([[zero, 0.75]]))
        assert 1.0 - decoder.decode(full).score[0] <= bound[0] + 1e-12
    flat = truncation_bound(get_decoder(f"{method}:stem=greedy"), readings)
    assert flat is not None
    assert flat.tolist() == [0.0] * 4


def test_joint_has_the_answers_after_the_first_stem() -> None:
    """Where "1." is the likelier stem, too."""
    answers = np.log(np.full((1, 2, 10), 0.01))
    answers[0, 0, 2:] = np.log([0.3, 0.2, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05])
    stems = np.log([[0.4, 0.6]])
    readings = Readings(UNIT, answers, stems, truncated=np.array([True]))
    decoder = get_decoder("smoothing:stem=joint")
    bound = truncation_bound(decoder, readings)
    assert bound is not None
    here = decoder.decode(readings).score[0]
    for first, second in itertools.product((0.0, 0.005, 0.02), repeat=2):
        varied = answers.copy()
        with np.errstate(divide="ignore"):
            varied[0, 0, :2] = np.log([first, second])
        there = decoder.decode(Readings(UNIT, varied, stems)).score[0]
        assert abs(there - here) <= bound[0]


def test_the_second_decimal_counts_for_fleur() -> None:
    answers = np.full((1, 2, 10), np.nan)
    answers[0, 0] = np.log([0.01] * 7 + [0.9, 0.01, 0.01])
    second = np.log([[0.5] + [0.05] * 9])
    readings = Readings(
        UNIT, answers, np.array([[-0.1, np.nan]]), second_logp=second, truncated=np.array([True])
    )
    more = truncation_bound(get_decoder("fleur"), readings)
    less = truncation_bound(get_decoder("smoothing"), readings)
    assert more is not None
    assert less is not None
    # smoothing does not look at it: only FLEUR's sum of 0.01·d·p can change, by nine times 0.45
    assert more[0] > 0.01 * sum(range(1, 10)) * 0.4
    assert less[0] == pytest.approx(truncation_bound(get_decoder("smoothing"), readings), abs=0)


@settings(deadline=None, max_examples=100)
@given(seed=st.integers(0, 2**32 - 1), method=st.sampled_from(SPECS))
def test_what_is_left_may_be_any_answer_after_a_stem(seed: int, method: str) -> None:
    """Tokens such as "85" may be missing of every digit, also where each digit was sent."""
    rng = np.random.default_rng(seed)
    sent = rng.dirichlet(np.full(10, rng.choice([0.3, 1.0, 5.0]))) * rng.uniform(0.5, 1)
    answers = np.full((1, 2, 10), np.nan)
    with np.errstate(divide="ignore"):
        answers[0, 0] = np.log(sent)
        left = (1 - sent.sum()) * rng.uniform(0, 1, (60, 1)) * rng.dirichlet(np.full(10, 0.2), 60)
        left[:10] = (1 - sent.sum()) * np.eye(10)
        rows = np.log(sent + left).clip(max=0)
    readings = Readings(UNIT, answers, np.full((1, 2), np.nan), truncated=np.array([True]))
    decoder = get_decoder(method)
    bound = truncation_bound(decoder, readings)
    assert bound is not None
    scores = decoder.decode(Readings.of(rows, UNIT)).score
    assert np.abs(scores - decoder.decode(readings).score[0]).max() <= bound[0] + 1e-9
