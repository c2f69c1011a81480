"""Which decoder suits your model: chosen by people's judgments, tested on images not chosen on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from discode.bench.agreement import AgreementProtocol, agreement_statistic, main_measure
from discode.benchmarks import Preferences, Ratings
from discode.decoders import Decoder, get_decoder
from discode.decoders.preset import Calibration
from discode.errors import InputError
from discode.readings import Readings
from discode.scales import Scale
from discode.scores import Floats
from discode.stats import credit, tie_rate
from discode.stats.contributions import (
    Contributions,
    accuracy_contributions,
    tau_c_contributions,
)
from discode.studies.calibration import CalibrationError, calibrate, calibration_error
from discode.studies.selection import NestedChoice, choose, deal_folds

BASELINE = "smoothing"
FOLDS = 5
ALPHA = 0.05
"""A claim is made where p is at most this."""

TRUST = (0, 1, 4, 9, 19)
# Written out, so that the candidates stay what they are if a default changes.
_OPTIONS = (
    *(f"alpha=1,tau={tau},trust=0" for tau in (0.5, 0.7, 1.4, 2)),
    *(f"tau=1,trust={trust},prior_variance={width}" for width in (1, 4) for trust in TRUST),
    *(f"tau={tau},trust=0" for tau in (0.5, 2)),
    *(f"tau=1,trust={trust},sigma2=1" for trust in (0, 4)),
    *(f"tau=alpha,alpha_clip=none,trust={trust}" for trust in TRUST[1:]),
)


def candidate_decoders(scale: Scale, *, hidden: bool = False) -> dict[str, Decoder]:
    """Return the decoders to choose from by what ``-m`` calls them, simple ones first.

    Smoothing, the baseline, and the raw answer; token probabilities at other temperatures,
    p ∝ L^(1/τ); and DISCODE with its trust λ in L, the width of its prior, σ² and τ: on scale unit
    each in all three readings. With ``hidden`` also the paper's Adam steps.

    >>> from discode.scales import FIVE
    >>> list(candidate_decoders(FIVE))[:3]
    ['smoothing', 'raw', 'discode']
    """
    readings = ("graded", "greedy", "joint") if len(scale.stems) > 1 else ("graded",)
    specs = [_in_reading(BASELINE, reading) for reading in readings]
    specs += [_in_reading("raw", reading) for reading in readings if reading != "graded"] or ["raw"]
    for spec in ("discode", *(f"discode:{options}" for options in _OPTIONS)):
        specs += [_in_reading(spec, reading) for reading in readings]
    if hidden:
        specs += [
            _in_reading(f"paper:solver=adam,steps={steps}", reading)
            for steps in (10, 30)
            for reading in readings
            if reading != "joint"
        ]
    return {spec: get_decoder(spec) for spec in specs}


def _in_reading(spec: str, reading: str) -> str:
    """Return a method in a reading; the default one is not written."""
    if reading == ("greedy" if spec == "raw" else "graded"):
        return spec
    return f"{spec}{',' if ':' in spec else ':'}reading={reading}"


@dataclass(frozen=True, eq=False)
class DecoderChoice:
    """The decoders that were compared, which was chosen, and what that is worth.

    Attributes:
        specs: M methods, the baseline first.
        agreement: (M,) on all images: too good for the winner, since it was chosen on them.
        nested: The choice and its held-out figures.
        measure: What agreement means: "tau_c", or "mean" (accuracy).
        images: How many there are.
        judgments: How many of people's judgments were used.
        failed: How many were not, for want of a score.
        unusable: Methods that have no score where the baseline has one.
        calibration: From the recommended method's scores to people's ratings.
        error: Its held-out error.
        ties: Share of tied pairs of scores, before and after calibration.
    """

    specs: tuple[str, ...]
    agreement: Floats
    nested: NestedChoice
    measure: str
    images: int
    judgments: int
    failed: int
    unusable: tuple[str, ...] = ()
    calibration: Calibration | None = None
    error: CalibrationError | None = None
    ties: tuple[float, float] = (0.0, 0.0)

    @property
    def winner(self) -> str:
        """The method that agrees best with people on all images."""
        return self.specs[self.nested.winner]

    @property
    def beats_baseline(self) -> bool:
        """Whether the choice was shown to be better than the baseline on held-out images."""
        return self.nested.winner != 0 and self.nested.p <= ALPHA

    @property
    def recommended(self) -> str:
        """The winner if it was shown to be better than the baseline, else the baseline."""
        return self.winner if self.beats_baseline else self.specs[0]


def choose_decoder(
    judgments: Ratings | Preferences,
    image: NDArray[np.int64],
    readings: Readings,
    candidates: Sequence[str],
    *,
    protocol: AgreementProtocol | None = None,
    folds: int = FOLDS,
    calibrated: bool = False,
) -> DecoderChoice:
    """Choose a decoder for readings (P,) of pairs, ``image`` (P,), by people's judgments of them.

    ``candidates`` are methods, the baseline first. Ratings of a pair without a score are left out,
    preferences without one count as wrong, as everywhere.
    """
    protocol = protocol or AgreementProtocol()
    if calibrated and not isinstance(judgments, Ratings):
        raise InputError("--calibrate needs ratings: choices between captions have no scale")
    if calibrated and len(np.unique(judgments.value)) < 2:  # type: ignore[union-attr]  # ratings
        raise InputError("--calibrate needs ratings that differ")
    values = {spec: get_decoder(spec).decode(readings).score for spec in candidates}
    base = values[candidates[0]]
    unusable = [spec for spec in candidates if (np.isnan(values[spec]) & np.isfinite(base)).any()]
    # On many models no row reaches 1.0, and two readings are then one.
    first = {values[spec].tobytes(): spec for spec in reversed(candidates)}
    specs = [s for s in candidates if s not in unusable and first[values[s].tobytes()] == s]
    pairs = judgments.pair if isinstance(judgments, Ratings) else judgments.left
    keep = np.ones(len(judgments), bool)
    if isinstance(judgments, Ratings):
        keep = np.isfinite(base[judgments.pair])
        failed = int((~keep).sum())
    else:
        failed = int((~np.isfinite(base[judgments.left] + base[judgments.right])).sum())
    if failed == len(judgments):
        raise InputError("no judgment has a score: every reading failed")
    clusters = np.unique(image[pairs[keep]], return_inverse=True)[1]
    images = int(clusters.max()) + 1
    fold = deal_folds(images, folds, protocol.seed)

    def contributions(value: Floats) -> Contributions:
        if isinstance(judgments, Ratings):
            x, y = value[judgments.pair][keep], judgments.value[keep]
            return tau_c_contributions(x, y, clusters, fold)
        left, right = value[judgments.left], value[judgments.right]
        earned = credit(left, right, judgments.chosen, ties=protocol.ties)
        return accuracy_contributions(earned, np.array(judgments.category), clusters, fold)

    nested = choose(
        [contributions(values[spec]) for spec in specs],
        fold,
        resamples=protocol.resamples,
        seed=protocol.seed,
        level=protocol.level,
    )
    measure, ones = main_measure(judgments), np.ones(int(keep.sum()), np.int64)
    agreement = [
        agreement_statistic(judgments, values[spec], measure, protocol.ties, keep)(ones)
        for spec in specs
    ]
    choice = DecoderChoice(
        tuple(specs), np.array(agreement), nested, measure, images, int(keep.sum()), failed,
        tuple(unusable),
    )  # fmt: skip
    if not calibrated or not isinstance(judgments, Ratings):
        return choice
    rows, rating = judgments.pair[keep], judgments.value[keep]
    taken = nested.by_fold if choice.beats_baseline else (0,) * folds
    score = values[choice.recommended]
    curve = calibrate(score[rows], rating)
    judged = np.unique(rows)
    return replace(
        choice,
        calibration=curve,
        error=calibration_error([values[specs[m]][rows] for m in taken], rating, fold[clusters]),
        ties=(tie_rate(score[judged]), tie_rate(curve.apply(score[judged]))),
    )
