"""Random losses minimised twice: by the package, and by scipy from the paper's definitions.

The losses are written here again, over p = softmax(z), with their gradients; scipy knows nothing of
closed forms. Then rows as servers truncate them: the score of the whole row must lie within the
``bound`` of the truncated one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize

import discode
from discode.decoders import METHODS, get_decoder
from discode.readings import Readings
from discode.scales import get_scale
from perf.attack.harness import Report

SCALES = ("ten", "five", "1-7")
STALLED = 1e-9
"""Loss above ours, relative, at which scipy counts as stalled; its score says nothing then."""
ROWS = 50
"""Rows that share random options."""
METHODS_OF_SCIPY: tuple[tuple[str, dict[str, float]], ...] = (
    ("L-BFGS-B", {"ftol": 1e-15, "gtol": 1e-9, "maxiter": 2000}),
    ("BFGS", {"gtol": 1e-10, "maxiter": 1000}),
    ("CG", {"gtol": 1e-10, "maxiter": 500}),
)
Loss = Callable[[np.ndarray], tuple[float, np.ndarray]]


def attack(count: int, rng: np.random.Generator, folder: Path) -> Report:
    """Minimise ``count`` losses, and truncate as many rows."""
    report = Report(f"minimise: {count:,} random losses, against scipy")
    score: dict[str, float] = {}
    lower: dict[str, float] = {}
    stalled: Counter[str] = Counter()
    worse = []
    solved = 0
    while solved < count:
        scale = get_scale(SCALES[rng.integers(len(SCALES))])
        options = _options(rng)
        name = options["divergence"]
        logp = _rows(rng, min(ROWS, count - solved), len(scale.answers))
        solved += len(logp)
        decoded = get_decoder("discode", **options).decode(Readings.of(logp, scale))
        values = np.asarray(scale.values)
        for row, p, mean in zip(logp, np.asarray(decoded.distribution), decoded.score, strict=True):
            loss = _loss(row, values, options)
            q = _minimiser(loss, p)
            ours, theirs = loss(np.maximum(p, 1e-300))[0], loss(q)[0]
            gain = (ours - theirs) / max(1.0, abs(theirs))
            lower[name] = max(lower.get(name, 0.0), gain)
            if gain < -STALLED:
                stalled[name] += 1
            else:
                score[name] = max(score.get(name, 0.0), abs(float(mean - q @ values)))
            if not gain < 1e-9:
                worse.append(f"{options}: loss higher by {gain:.1e}")
    for name in sorted(score):
        report.say(f"  {name}: largest difference of scores", f"{score[name]:.1e}")
        report.say(f"  {name}: scipy's loss is lower by at most", f"{lower[name]:.1e}")
    report.promise("no loss of scipy's is lower", worse)
    far = [f"{name}: {most:.1e}" for name, most in score.items() if most > 1e-4]
    report.promise("where scipy gets as far, scores agree to 1e-4", far)
    report.say("scipy stalls above the minimum", sum(stalled.values()))
    _bounds(report, count, rng)
    return report


def _rows(rng: np.random.Generator, n: int, k: int) -> np.ndarray:
    logits = rng.uniform(-rng.choice([2.0, 8.0, 16.0]), 0, (n, k))
    logp = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    return np.asarray(logp + np.log(rng.uniform(0.5, 1, (n, 1))))


def _options(rng: np.random.Generator) -> dict[str, Any]:
    name = str(rng.choice(["weighted-kl", "weighted-kl", "kl", "jensen-shannon", "beta", "renyi"]))
    options: dict[str, Any] = {"divergence": name, "prior_variance": float(rng.uniform(0.3, 4))}
    if name in ("weighted-kl", "kl"):
        options["trust"] = float(rng.choice([0.0, rng.uniform(0, 20)]))
        options["cross_entropy"] = bool(rng.random() < 0.8)
    else:
        options["solver"] = "exact"
    if name == "weighted-kl":
        options["tau"] = float(rng.uniform(0.1, 2))
        if rng.random() < 0.5:
            options["alpha"] = float(rng.uniform(0, 1))
        else:
            options["sigma2"] = float(10 ** rng.uniform(-2, 1))
    if name in ("beta", "renyi"):
        low, high = (1.2, 3.0) if name == "beta" else (0.2, 0.8)
        options["order"] = float(rng.uniform(low, high))
    return options


def _loss(logp: np.ndarray, values: np.ndarray, options: dict[str, Any]) -> Loss:
    """Return the loss of p and its gradient, by the definitions of the paper and docs/paper.md."""
    raw = values[np.argmax(logp)]
    q = np.exp(-((values - raw) ** 2) / (2 * options["prior_variance"]))
    q /= q.sum()
    logq = np.log(q)
    name, trust = options["divergence"], options.get("trust", 0.0)
    entropy = options.get("cross_entropy", True)
    alpha = options.get("alpha")
    if alpha is None:
        sigma2 = options.get("sigma2", 0.1)
        density = math.exp(-((raw - values.mean()) ** 2) / (2 * sigma2))
        alpha = min(1.0, density / math.sqrt(2 * math.pi * sigma2))

    def divergence(p: np.ndarray) -> tuple[float, np.ndarray]:
        logs = np.log(p)
        if name == "weighted-kl":
            tau = options["tau"]
            value = -(1 - alpha) * p @ logq + tau * p @ logs
            return float(value), -(1 - alpha) * logq + tau * (logs + 1)
        if name == "kl":
            return float(0.5 * p @ (logs - logq)), 0.5 * (logs + 1 - logq)
        if name == "jensen-shannon":
            m = (p + q) / 2
            value = 0.5 * p @ np.log(p / m) + 0.5 * q @ np.log(q / m)
            return float(value), 0.5 * np.log(p / m)
        order = options["order"]
        if name == "beta":
            value = (p**order / (order * (order - 1)) + q**order / order).sum()
            value -= (p * q ** (order - 1)).sum() / (order - 1)
            return float(value), (p ** (order - 1) - q ** (order - 1)) / (order - 1)
        total = (p**order * q ** (1 - order)).sum()
        slope = order * p ** (order - 1) * q ** (1 - order) / total / (order - 1)
        return float(np.log(total) / (order - 1)), slope

    def loss(p: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = divergence(p)
        value += -entropy * p @ logp + trust * p @ (np.log(p) - logp)
        return float(value), slope - entropy * logp + trust * (np.log(p) + 1 - logp)

    return loss


def _minimiser(loss: Loss, ours: np.ndarray) -> np.ndarray:
    """Return scipy's best: far from the minimum softmax is flat, and one method may stall there."""
    best, lowest = ours, math.inf
    zeros = np.zeros(len(ours))
    for method, options in METHODS_OF_SCIPY:
        found = minimize(
            partial(_over_logits, loss), zeros, jac=True, method=method, options=options
        )
        if found.fun < lowest:
            best, lowest = np.exp(found.x - np.logaddexp.reduce(found.x)), found.fun
        if lowest - loss(np.maximum(ours, 1e-300))[0] < STALLED / 10:
            break
    return best


def _over_logits(loss: Loss, z: np.ndarray) -> tuple[float, np.ndarray]:
    p = np.maximum(np.exp(z - np.logaddexp.reduce(z)), 1e-300)
    value, slope = loss(p)
    return value, p * (slope - p @ slope)


def _bounds(report: Report, count: int, rng: np.random.Generator) -> None:
    """Truncate rows as a server does, and compare the score with that of the whole row."""
    methods = [name for name in METHODS if name not in ("paper-adam", "fleur")]
    checked, closest = 0, 0.0
    outside, without = [], set()
    size = max(1, count // len(methods))
    for name in methods:
        scale = get_scale(SCALES[rng.integers(len(SCALES))])
        k = len(scale.answers)
        logp = np.concatenate([_rows(rng, 1, k + 3) for _ in range(size)])
        sent = []
        for row in logp:
            keep = np.argsort(-row)[: rng.integers(2, k + 1)]
            tokens = [*scale.answers, "the", "a", "It"]
            if not any(i < k for i in keep):
                keep = np.array([*keep, int(np.argmax(row[:k]))])
            sent.append({tokens[i]: float(row[i]) for i in keep})
        cut = discode.decode(sent, name, scale, missing="spread")
        whole = discode.decode(logp[:, :k], name, scale)
        if cut.bound is None:
            without.add(name)
            continue
        wrong = np.abs(cut.value - whole.value)
        checked += int((cut.bound > 0).sum())
        closest = max(closest, float(np.max(wrong / np.maximum(cut.bound, 1e-12), initial=0.0,
                                            where=cut.bound > 1e-9)))  # fmt: skip
        for i in np.flatnonzero(~(wrong <= cut.bound + 1e-9))[:3]:
            outside.append(f"{name} {scale.name} {sent[i]}: {wrong[i]:.3g} > {cut.bound[i]:.3g}")
    report.say("truncated rows with a bound", checked)
    report.say("the error is at most this share of it", f"{closest:.3f}")
    report.say("methods that give none", ", ".join(sorted(without)) or "none")
    report.promise("the whole row's score lies within the bound", outside)
