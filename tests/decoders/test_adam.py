"""Ten Adam steps in torch against Adam written out by hand in numpy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import discode
from discode._scales import TEN
from discode.decoders import get_decoder
from discode.decoders._adam import starting_bias
from discode.decoders._discode import log_alpha, log_prior
from discode.errors import InputError
from discode.readings import Readings
from tests.helpers.att_loss import att_loss

pytest.importorskip("torch", reason="the Adam solver needs discode-eval[adam]")


def readings_with_head(n: int = 6, d: int = 16, seed: int = 0) -> Readings:
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(n, d)).astype(np.float32)
    head = (rng.normal(size=(10, d)) * 0.5).astype(np.float32)
    bias = (rng.normal(size=10) * 0.1).astype(np.float32)
    logits = hidden.astype(np.float64) @ head.T + bias
    logp = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    return Readings(
        TEN, logp[:, None], np.full((n, 1), np.nan), hidden=hidden, head=head, bias=bias
    )


def by_hand(readings: Readings, row: int, steps: int, lr: float) -> np.ndarray:
    """Adam (β 0.9, 0.999, ε 1e-8) with the analytic gradient of the weighted-KL loss, τ = α."""
    assert readings.hidden is not None
    assert readings.head is not None
    assert readings.bias is not None
    h = readings.hidden[row].astype(np.float64)
    logp = readings.answer_logp[row, 0]
    s = int(logp.argmax())
    alpha = float(np.exp(log_alpha(np.arange(10.0)))[s])
    logq = log_prior(np.arange(10.0))[s]
    x = np.column_stack([readings.head.astype(np.float64), readings.bias])  # (K, D + 1)
    h1 = np.append(h, 1.0)
    m, v = np.zeros_like(x), np.zeros_like(x)

    def softmax(x: np.ndarray) -> np.ndarray:
        e = np.exp(x @ h1 - (x @ h1).max())
        return np.asarray(e / e.sum())

    for t in range(1, steps + 1):
        z = softmax(x)
        # dL/dz_k, then through the softmax: z_i (g_i - Σ g_k z_k)
        g = -logp - (1 - alpha) * logq + alpha * (np.log(z) + 1)
        grad = np.outer(z * (g - (g * z).sum()), h1)
        m = 0.9 * m + 0.1 * grad
        v = 0.999 * v + 0.001 * grad**2
        x = x - lr * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return softmax(x)


@pytest.mark.parametrize("steps", [0, 1, 10])
def test_adam_matches_adam_by_hand(steps: int) -> None:
    readings = readings_with_head()
    scores = discode.decode(readings, "paper", solver="adam", steps=steps)
    assert scores.distribution is not None
    for row in range(len(readings)):
        want = by_hand(readings, row, steps, 1e-3)
        assert np.abs(scores.distribution[row] - want).max() < 2e-5


@pytest.mark.parametrize(
    ("name", "order"),
    [("weighted-kl", None), ("kl", None), ("jensen-shannon", None), ("beta", 2.0), ("renyi", 0.5)],
)
def test_many_steps_reach_the_exact_minimiser(name: str, order: float | None) -> None:
    readings = readings_with_head(n=4)
    options: dict[str, Any] = {"divergence": name, "order": order}
    if name == "weighted-kl":
        options |= {"alpha": 0.5, "tau": "alpha"}
    exact = discode.decode(readings, "discode", solver="exact", **options).distribution
    few = discode.decode(readings, "discode", solver="adam", **options).distribution
    many = discode.decode(
        readings, "discode", solver="adam", steps=600, learning_rate=0.02, **options
    ).distribution
    assert exact is not None
    assert few is not None
    assert many is not None
    assert np.abs(many - exact).max() < 5e-3
    assert np.abs(few - exact).max() > np.abs(many - exact).max()


def test_ten_steps_lower_the_loss_and_stay_near_the_head() -> None:
    readings = readings_with_head()
    logp = readings.answer_logp[:, 0]
    s = logp.argmax(axis=1)
    alpha = np.exp(log_alpha(np.arange(10.0)))[s]
    logq = log_prior(np.arange(10.0))[s]
    after = discode.decode(readings, "paper", solver="adam").distribution
    assert after is not None
    before = np.exp(logp)
    assert (
        att_loss(after, logp, logq, alpha, alpha) < att_loss(before, logp, logq, alpha, alpha)
    ).all()
    assert np.abs(after - before).max() < 0.2


def test_it_starts_at_the_answers_that_were_read() -> None:
    """An answer may be several tokens, of which the head has one; each row lacks other mass."""
    whole = readings_with_head()
    rng = np.random.default_rng(1)
    more = whole.answer_logp[:, 0] + rng.uniform(-2, 2, (len(whole), 10))
    more -= np.logaddexp.reduce(more, axis=1, keepdims=True)
    groups = replace(whole, answer_logp=more[:, None])
    for readings in (whole, groups):
        before = discode.decode(readings, "discode", solver="adam", steps=0).distribution
        assert before is not None
        assert np.abs(before - np.exp(readings.answer_logp[:, 0])).max() < 1e-6
    assert whole.hidden is not None
    assert whole.head is not None
    assert whole.bias is not None
    kept = starting_bias(whole.hidden, whole.head, whole.bias, whole.answer_logp[:, 0])
    assert (kept == whole.bias).all()  # rounding is no reason to touch it


def test_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = readings_with_head(n=7)
    whole = discode.decode(readings, "discode", solver="adam").value
    monkeypatch.setattr("discode.decoders._adam.PARAMETERS_AT_ONCE", 1)
    assert np.abs(discode.decode(readings, "discode", solver="adam").value - whole).max() < 1e-6


def test_adam_without_hidden_states_says_what_to_do() -> None:
    with pytest.raises(InputError, match="use solver 'exact'"):
        discode.decode(np.log(np.full(10, 0.1)), solver="adam")


def test_the_papers_own_solver_is_a_preset() -> None:
    options = dict(get_decoder("paper-adam").options())
    assert options == get_decoder("paper:solver=adam").options()
    assert (options["steps"], options["learning_rate"], options["tau"]) == (10, 1e-3, "alpha")
