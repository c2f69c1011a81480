"""What holds for every decoder and every reading."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discode._scales import SCALES, Scale, get_scale
from discode.decoders import METHODS, get_decoder
from discode.readings import Readings

ALONE = [name for name in METHODS if not get_decoder(name).requires]
"""Methods that need nothing but readings; test_adam.py has the others."""
OWN_SCALE = {"fleur": ("unit",), "p-yes": ("yes-no",)}
"""Methods that are defined on one scale, and whose distributions are not normalised."""
NORMALISED = [name for name in ALONE if name not in OWN_SCALE]


@st.composite
def readings(draw: st.DrawFn, scales: tuple[str, ...] = (*SCALES, "1-7", "E-A")) -> Readings:
    scale: Scale = get_scale(draw(st.sampled_from(scales)))
    n, b, k = draw(st.integers(1, 12)), len(scale.stems), len(scale.answers)
    gap = draw(st.sampled_from([1e-6, 1.0, 10.0, 700.0, 1e5]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    logits = rng.uniform(-gap, 0, size=(n, b, k))
    if draw(st.booleans()):  # ties
        logits = np.round(logits, 1)
    answers = logits - np.logaddexp.reduce(logits, axis=2, keepdims=True)
    stems = np.log(rng.dirichlet(np.ones(b + 1), size=n)[:, :b])
    return Readings(scale, answers - draw(st.sampled_from([0.0, 2.0])), stems)


@pytest.mark.parametrize("method", ALONE)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_distributions_and_scores(method: str, data: st.DataObject) -> None:
    read = data.draw(readings(OWN_SCALE.get(method, (*SCALES, "1-7", "E-A"))))
    decoder = get_decoder(method)
    decoded = decoder.decode(read)
    total = decoded.distribution.sum(axis=1)
    if method in OWN_SCALE:
        assert (total <= 1 + 1e-12).all()
    else:
        assert np.abs(total - 1).max() < 1e-12
    assert (decoded.distribution >= 0).all()
    scale = read.scale
    for name in ("raw", "smoothing"):  # to the bit what those methods give
        np.testing.assert_array_equal(getattr(decoded, name), get_decoder(name).decode(read).score)
    for score in (decoded.score, decoded.raw):
        assert np.isfinite(score).all()
        assert (score >= scale.minimum).all()
        stem = "graded" if score is decoded.raw else decoder.options().get("stem")
        assert (
            score <= (1.9 if (scale.name, stem) == ("unit", "printed") else scale.maximum)
        ).all()

    order = np.random.default_rng(0).permutation(len(read))
    assert np.array_equal(decoder.decode(read.take(order)).score, decoded.score[order])

    singles = [decoder.decode(read.take([i])) for i in range(len(read))]
    assert np.array_equal(np.concatenate([one.score for one in singles]), decoded.score)
    assert np.array_equal(
        np.concatenate([one.distribution for one in singles]), decoded.distribution
    )


@settings(max_examples=40, deadline=None)
@given(read=readings(("unit",)), method=st.sampled_from(NORMALISED))
def test_joint_has_eleven_values(read: Readings, method: str) -> None:
    decoded = get_decoder(method, stem="joint").decode(read)
    assert decoded.distribution.shape == (len(read), 11)
    assert np.abs(decoded.distribution.sum(axis=1) - 1).max() < 1e-12
    assert ((decoded.score >= 0) & (decoded.score <= 1)).all()


GRADED = [name for name in NORMALISED if name != "raw"]


def after_one(odds: list[float], digits: Readings) -> Readings:
    """Return rows whose log-odds of "1." against "0." are given, with the first row's digits."""
    first = -np.log1p(np.exp(odds))
    stems = np.stack([first, first + odds], axis=1)
    return Readings(digits.scale, np.tile(digits.answer_logp[:1], (len(odds), 1, 1)), stems)


@settings(max_examples=60, deadline=None)
@given(
    digits=readings(("unit",)),
    odds=st.lists(st.integers(-5000, 25000).map(lambda n: n / 1000 + 5e-4), min_size=1, max_size=9),
    method=st.sampled_from(GRADED).map("{}:stem=graded".format),
)
def test_grading_breaks_ties_and_nothing_else(
    digits: Readings, odds: list[float], method: str
) -> None:
    read = after_one(sorted(odds), digits)
    decoder = get_decoder(method)
    decoded = decoder.decode(read)
    flat = get_decoder(method.replace("graded", "greedy")).decode(read)
    top = np.array(sorted(odds)) > 0
    assert np.array_equal(decoded.score[~top], flat.score[~top])
    assert np.array_equal(decoded.raw, flat.raw)
    assert np.array_equal(decoded.distribution, flat.distribution)
    assert (flat.score[top] == 1.0).all()
    # On the scale, above whatever follows "0.", and higher the surer the model is of "1.".
    assert ((decoded.score[top] > 0.9) & (decoded.score[top] <= 1.0)).all()
    assert (np.diff(decoded.score) >= 0).all()
    assert len(set(decoded.score[top])) == len({odd for odd in odds if odd > 0})
    singles = [decoder.decode(read.take([i])).score for i in range(len(read))]
    assert np.array_equal(np.concatenate(singles), decoded.score)


@settings(max_examples=40, deadline=None)
@given(read=readings(("unit",)), method=st.sampled_from(GRADED))
def test_no_preference_is_lost_by_grading(read: Readings, method: str) -> None:
    """Whatever was ordered stays ordered: accuracy with ties as wrong can only rise."""
    graded = get_decoder(method, stem="graded").decode(read).score
    greedy = get_decoder(method, stem="greedy").decode(read).score
    assert not ((greedy[:, None] > greedy) & ~(graded[:, None] > graded)).any()


@settings(max_examples=60, deadline=None)
@given(
    read=readings(),
    sigma2=st.floats(1e-4, 10),
    tau=st.one_of(st.just("alpha"), st.floats(1e-3, 100)),
    unit=st.sampled_from(["digit", "unit"]),
    clip=st.sampled_from([None, (0.0, 1.0), (0.05, 0.95)]),
    variance=st.floats(1e-3, 100),
)
def test_every_option_keeps_a_distribution(
    read: Readings,
    sigma2: float,
    tau: float | str,
    unit: str,
    clip: tuple[float, float] | None,
    variance: float,
) -> None:
    decoder = get_decoder(
        "discode",
        sigma2=sigma2,
        tau=tau,
        alpha_scale=unit,
        alpha_clip=clip,
        prior_variance=variance,
    )
    decoded = decoder.decode(read)
    assert np.abs(decoded.distribution.sum(axis=1) - 1).max() < 1e-12
    assert np.isfinite(decoded.score).all()


def test_large_batch_equals_rows_across_blocks() -> None:
    """More rows than a block, so that block borders are crossed."""
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(9000, 10)) * 4
    logp = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    read = Readings.of(logp, get_scale("ten"))
    for method in NORMALISED:
        decoder = get_decoder(method)
        whole = decoder.decode(read).score
        rows = rng.choice(9000, 50, replace=False)
        assert np.array_equal(
            whole[rows], np.concatenate([decoder.decode(read.take([r])).score for r in rows])
        )
