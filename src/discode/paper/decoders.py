"""Which decoder suits your model: chosen by people's judgments, tested on images not chosen on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from discode.bench.agreement import AgreementProtocol, agreement_statistic
from discode.bench.layout import CellTable, TableValue
from discode.benchmarks import Benchmark, Preferences, Ratings
from discode.bulk.judging import raise_if_stopped
from discode.decoders import METHODS, Decoder, get_decoder, options_of
from discode.decoders.preset import Calibration, Preset, preset_digest
from discode.errors import InputError
from discode.judge import Judge
from discode.metrics import MetricFactory
from discode.options import SIZE, Option, options_text
from discode.paper.base import Study, StudyResult, StudySetup, bare_pairs, file_stem
from discode.paper.calibration import CalibrationError, calibration_error, fit_calibration
from discode.paper.selection import NestedChoice, choose, deal_folds
from discode.readings import Readings
from discode.scales import Scale
from discode.scores import Floats
from discode.stats import Interval, credit, tie_rate
from discode.stats.contributions import (
    Contributions,
    accuracy_contributions,
    tau_c_contributions,
)
from discode.version import __version__

BASELINE = "smoothing"
FOLDS = 5
ALPHA = 0.05
"""A claim is made where p is at most this."""
SHOWN = 8
"""So many of the best decoders stand in the table."""
MEASURES = {"tau_c": "τ_c", "mean": "accuracy"}

_NAMED = (BASELINE, "raw", "discode", "paper-adam")
TRUST = (0, 1, 4, 9, 19)
# Written out, so that the candidates stay what they are if a default changes.
_DISCODE = (
    *(f"alpha=1,tau={tau},trust=0" for tau in (0.5, 0.7, 1.4, 2)),
    *(f"tau=1,trust={trust},prior_variance={width}" for width in (1, 4) for trust in TRUST),
    *(f"tau={tau},trust=0" for tau in (0.5, 2)),
    *(f"tau=1,trust={trust},sigma2=1" for trust in (0, 4)),
    *(f"tau=alpha,alpha_clip=none,trust={trust}" for trust in TRUST[1:]),
)


def candidate_decoders(
    scale: Scale, *, default: Decoder | None = None, hidden: bool = False
) -> dict[str, Decoder]:
    """Return the decoders to choose from by what ``-m`` calls them, simple ones first.

    Smoothing, the baseline, and the raw answer; token probabilities at other temperatures,
    p ∝ L^(1/τ); and DISCODE with its trust λ in L, the width of its prior, σ² and τ: on scale unit
    each with all three rules for the stem. ``default`` is what "discode" means to the model, if it
    advises a weight of its own. With ``hidden`` also Adam steps on the printed loss.

    >>> from discode.scales import FIVE
    >>> list(candidate_decoders(FIVE))[:3]
    ['smoothing', 'raw', 'discode']
    """
    stems = ("graded", "greedy", "joint") if len(scale.stems) > 1 else ("graded",)
    candidates: dict[str, Decoder] = {}

    def add(method: str, options: str = "", allowed: Sequence[str] = stems) -> None:
        for stem in allowed:
            decoder = get_decoder(f"{method}:{options}", stem=stem)
            candidates[_shortest(method, decoder)] = decoder

    add(BASELINE)
    add("raw", allowed=stems[1:] or ("greedy",))
    candidates["discode"] = get_decoder("discode") if default is None else default
    for options in _DISCODE:
        add("discode", options)
    for steps in (10, 30) if hidden else ():
        add("paper-adam", f"steps={steps}", stems[:2])
    return candidates


def _shortest(method: str, decoder: Decoder) -> str:
    """Return a decoder as ``-m`` takes it, without the options that the method has anyway.

    >>> _shortest("discode", get_decoder("discode:sigma2=0.1,tau=2,trust=0"))
    'discode:tau=2,trust=0'
    """
    row = METHODS[method]
    usual = {known.name: known.default for known in options_of(row.make)} | dict(row.options)
    other = {name: value for name, value in decoder.options().items() if value != usual[name]}
    return f"{method}:{options_text(other)}".removesuffix(":")


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
    candidates: Mapping[str, Decoder],
    *,
    protocol: AgreementProtocol | None = None,
    folds: int = FOLDS,
    calibrated: bool = False,
) -> DecoderChoice:
    """Choose a decoder for readings (P,) of pairs, ``image`` (P,), by people's judgments of them.

    ``candidates`` are decoders by what ``-m`` calls them, the baseline first. Ratings of a pair
    without a score are left out, preferences without one count as wrong, as everywhere.
    """
    protocol = protocol or AgreementProtocol()
    if calibrated and len(np.unique(judgments.value if isinstance(judgments, Ratings) else ())) < 2:
        raise InputError("--calibrate needs ratings that differ; choices have no scale")
    values = {spec: decoder.decode(readings).score for spec, decoder in candidates.items()}
    specs, unusable = _comparable(values)
    keep, failed = _with_scores(judgments, values[specs[0]])
    pairs = (judgments.pair if isinstance(judgments, Ratings) else judgments.left)[keep]
    clusters = np.unique(image[pairs], return_inverse=True)[1]
    images = int(clusters.max()) + 1
    fold = deal_folds(images, folds, protocol.seed)

    def contributions(value: Floats) -> Contributions:
        if isinstance(judgments, Ratings):
            return tau_c_contributions(value[pairs], judgments.value[keep], clusters, fold)
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
    measure = "tau_c" if isinstance(judgments, Ratings) else "mean"  # what the choice was made by
    ones = np.ones(len(pairs), np.int64)
    agreement = [
        agreement_statistic(judgments, values[spec], measure, protocol.ties, keep)(ones)
        for spec in specs
    ]
    choice = DecoderChoice(
        specs, np.array(agreement), nested, measure, images, len(pairs), failed, unusable
    )
    if not calibrated or not isinstance(judgments, Ratings):
        return choice
    return _calibrate(choice, values, pairs, judgments.value[keep], fold[clusters])


def _comparable(values: Mapping[str, Floats]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the methods to choose from, and those without a score where the baseline has one.

    Of methods that give the same scores the first is taken: on many models no row reaches 1.0, and
    all rules for the stem are then one.
    """
    base = next(iter(values.values()))
    unusable = [spec for spec in values if (np.isnan(values[spec]) & np.isfinite(base)).any()]
    first = {values[spec].tobytes(): spec for spec in reversed(list(values))}
    specs = [s for s in values if s not in unusable and first[values[s].tobytes()] == s]
    return tuple(specs), tuple(unusable)


def _with_scores(judgments: Ratings | Preferences, base: Floats) -> tuple[NDArray[np.bool_], int]:
    """Return which judgments (M,) count, and how many have no score."""
    if isinstance(judgments, Ratings):
        keep = scored = np.isfinite(base[judgments.pair])
    else:
        keep = np.ones(len(judgments), bool)
        scored = np.isfinite(base[judgments.left] + base[judgments.right])
    if not scored.any():
        raise InputError("no judgment has a score: every reading failed")
    return keep, int((~scored).sum())


def _calibrate(
    choice: DecoderChoice,
    values: Mapping[str, Floats],
    pairs: NDArray[np.int64],
    rating: Floats,
    fold: NDArray[np.int64],
) -> DecoderChoice:
    """Add the recommended method's map from scores to the ratings (n,) of pairs (n,)."""
    by_fold = choice.nested.by_fold if choice.beats_baseline else (0,) * (int(fold.max()) + 1)
    score = values[choice.recommended]
    curve = fit_calibration(score[pairs], rating)
    judged = score[np.unique(pairs)]
    return replace(
        choice,
        calibration=curve,
        error=calibration_error([values[choice.specs[m]][pairs] for m in by_fold], rating, fold),
        ties=(tie_rate(judged), tie_rate(curve.apply(judged))),
    )


def write_method(decoder: Decoder) -> str:
    """Return a decoder as ``-m`` takes it, with every option written out.

    >>> write_method(get_decoder("smoothing:stem=joint"))
    'smoothing:stem=joint'
    """
    return f"{decoder.name}:{options_text(decoder.options())}"


def describe_choice(choice: DecoderChoice, measure: str) -> list[str]:
    """Return what was found, in sentences; ``measure`` is what agreement is called."""
    nested, gain = choice.nested, choice.nested.difference
    value, low, high = (
        round(100 * number, 2) + 0.0 for number in (gain.value, gain.low, gain.high)
    )
    figures = (
        f"{value:+.2f} {measure} on held-out images ({100 * gain.level:g} % interval "
        f"{low:+.2f} to {high:+.2f}, p = {nested.p:.3f})"
    )
    if choice.beats_baseline:
        sentences = [f"{choice.winner} beats {choice.specs[0]}: {figures}."]
    elif nested.winner == 0:
        sentences = [f"{choice.specs[0]} itself agrees best; choosing another is worth {figures}."]
    else:
        sentences = [
            f"No decoder was shown to beat {choice.specs[0]}: choosing one is worth {figures}. "
            f"The preset is {choice.specs[0]}."
        ]
    if choice.calibration is not None and choice.error is not None:
        knots, error = choice.calibration, choice.error
        sentences.append(
            f"Calibrated to people's ratings, {knots.rating[0]:.3g} to {knots.rating[-1]:.3g}: the "
            f"error (root mean square) is {error.calibrated:.3f} on held-out images, that of a "
            f"straight line {error.line:.3f}, that of the mean rating {error.constant:.3f}. Tied "
            f"pairs of scores: {100 * choice.ties[0]:.2f} % before, {100 * choice.ties[1]:.2f} % "
            f"after; {measure} is measured before."
        )
    if choice.unusable:
        sentences.append(
            f"Not compared, since they have no score where {choice.specs[0]} has one: "
            f"{', '.join(choice.unusable)}."
        )
    return sentences


def make_preset(
    choice: DecoderChoice, decoder: Decoder, judge: Judge, benchmark: Benchmark, folds: int
) -> Preset:
    """Return the preset of a choice: the recommended method's decoder, and how it was chosen."""
    nested, gain = choice.nested, choice.nested.difference
    chosen = {
        "verdict": describe_choice(choice, MEASURES[choice.measure])[0],
        "by": f"discode choose, version {__version__}",
        "judge": str(judge.signature.asked),
        "benchmark": benchmark.name,
        "options": dict(benchmark.options),
        "sha256": dict(benchmark.checksums),
        "images": choice.images,
        "judgments": choice.judgments,
        "without_score": choice.failed,
        "measure": choice.measure,
        "candidates": len(choice.specs),
        "folds": folds,
        "chosen_by_fold": [choice.specs[number] for number in nested.by_fold],
        "best_on_all_images": choice.winner,
        "held_out": {
            "chosen": _short(nested.value),
            choice.specs[0]: _short(nested.baseline),
            "difference": _short(gain.value),
            "interval": [_short(gain.low), _short(gain.high)],
            "level": gain.level,
            "p": _short(nested.p),
        },
    }
    if choice.error is not None:
        chosen["calibration"] = {
            "held_out_rmse": _short(choice.error.calibrated),
            "of_a_straight_line": _short(choice.error.line),
            "of_the_mean_rating": _short(choice.error.constant),
            "tied_pairs_before": _short(choice.ties[0]),
            "tied_pairs_after": _short(choice.ties[1]),
        }
    return Preset(write_method(decoder), judge.scale.unique_name, choice.calibration, chosen)


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def run_decoders(setup: StudySetup) -> StudyResult:
    """Choose a decoder for each judge on each benchmark: the study ``decoders``."""
    if not setup.benchmarks or not setup.judges:
        raise InputError("decoders needs --ratings FILE, or -b BENCHMARK and --data FOLDER")
    if not setup.protocol.resamples:
        raise InputError("decoders tests its choice by resampling; give --resamples 100 or more")
    folds, hidden = setup.options["folds"], setup.options["adam"]
    tables: dict[str, CellTable] = {}
    files: dict[str, str] = {}
    findings: list[str] = []
    several = len(setup.judges) * len(setup.benchmarks) > 1
    for model, factory in setup.judges.items():
        for place, benchmark in setup.benchmarks.items():
            name = file_stem(f"decoder {model} {place}") if several else "decoder"
            judge, readings = _read(setup, factory, benchmark, hidden=hidden)
            decoders = candidate_decoders(
                readings.scale, default=factory.judge.decoder, hidden=hidden
            )
            choice = choose_decoder(
                benchmark.judgments, benchmark.image, readings, decoders,
                protocol=setup.protocol, folds=folds,
                calibrated=setup.options["calibrate"],
            )  # fmt: skip
            preset = make_preset(choice, decoders[choice.recommended], judge, benchmark, folds)
            files[f"{name}.json"] = preset.text()
            tables[name] = _table(choice, f"{place}, {model}", folds)
            sentences = describe_choice(choice, MEASURES[choice.measure])
            sentences.append(
                f"Preset {preset_digest(preset.text().encode())}, written with -o FOLDER: "
                f"discode score -m FOLDER/{name}.json."
            )
            findings += (
                [f"{place}, {model}: {line}" for line in sentences] if several else sentences
            )
    return StudyResult(tables, findings=findings, files=files)


def _read(
    setup: StudySetup, factory: MetricFactory, benchmark: Benchmark, *, hidden: bool
) -> tuple[Judge, Readings]:
    """Read the pairs once, without references, with hidden states if Adam is to have them."""
    judge = factory.judge
    if hidden:
        judge = replace(judge, decoder=get_decoder("paper-adam"))  # refuses models without them
        factory.readings.hidden = True
    pairs, which = bare_pairs(benchmark)
    readings = factory.readings.read(judge, pairs, False, setup.count_up("readings", len(pairs)))
    if readings.errors:
        raise_if_stopped(judge)
    return judge, readings.take(which)


def _table(choice: DecoderChoice, title: str, folds: int) -> CellTable:
    measure, nested = MEASURES[choice.measure], choice.nested
    gain = nested.difference
    percent = Interval(100 * gain.value, 100 * gain.low, 100 * gain.high, gain.level)
    base = choice.specs[0]
    rows: list[list[TableValue]] = [
        ["held-out images"],
        ["  the best of the other folds", 100 * nested.value, percent, None],
        [f"  {base}", 100 * nested.baseline, None, None],
        ["all images"],
    ]
    best = np.argsort(-choice.agreement, kind="stable").tolist()
    shown = {*best[:SHOWN], *(choice.specs.index(s) for s in _NAMED if s in choice.specs)}
    shown |= {*nested.by_fold}
    for number in best:
        if number in shown:
            value = 100 * float(choice.agreement[number])
            times = nested.by_fold.count(number)
            rows.append(
                [
                    f"  {choice.specs[number]}",
                    value,
                    value - 100 * float(choice.agreement[0]),
                    f"{times} of {folds}" if times else None,
                ]
            )
    kind = "ratings" if choice.measure == "tau_c" else "choices"
    lost = f", {choice.failed:,} without a score" if choice.failed else ""
    return CellTable(
        ["decoder", measure, f"- {base}", "folds"],
        rows,
        f"{title}: {choice.images:,} images, {choice.judgments:,} {kind}{lost}; "
        f"{len(choice.specs)} decoders",
        [
            "The best on all images was chosen on them; what it is worth is the held-out figure.",
            "Held-out figures are means over the folds, corrected for their size.",
            "folds: in how many a decoder was the best of the others.",
        ],
        digits=3,
    )  # fmt: skip


STUDY = Study(
    "decoders",
    "which decoder suits your model: chosen by people's judgments, tested on held-out images",
    (),
    run_decoders,
    benchmarks=("flickr8k-expert",),
    options=(
        Option(
            "calibrate",
            False,
            "also bring scores to the people's scale, by isotonic regression",
            (False, True),
        ),
        Option(
            "adam",
            False,
            "also try Adam steps on the printed loss; needs hidden states, and torch",
            (False, True),
        ),
        Option("folds", FOLDS, "into how many folds the images are dealt", (SIZE,)),
    ),
)
