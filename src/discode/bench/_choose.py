"""Which decoder suits your model: chosen by people's judgments, tested on images not chosen on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discode._scales import Scale
from discode._scores import Floats
from discode._version import __version__
from discode.bench._agreement import (
    TAU_C_NOTES,
    AgreementProtocol,
    agreement_statistic,
    sides_of,
)
from discode.bench._digits import led_by_second_hump
from discode.bench._layout import CellTable, TableValue
from discode.bench._learning import learn_linear
from discode.bench._results import StudyResult, file_stem
from discode.bench._run import RunProgress
from discode.benchmarks import Benchmark, Preferences, Ratings
from discode.bulk._judging import raise_if_stopped
from discode.decoders import Decoder, get_decoder
from discode.decoders._linear import Linear
from discode.decoders._preset import Calibration, Preset, preset_digest
from discode.errors import InputError
from discode.metrics import MetricFactory
from discode.options import options_text
from discode.readings import Readings
from discode.stats import Interval, bootstrap, tie_rate
from discode.stats._calibration import CalibrationError, calibration_error, fit_calibration
from discode.stats._contributions import (
    Contributions,
    accuracy_contributions,
    tau_c_contributions,
)
from discode.stats._selection import NestedChoice, choose, deal_folds

BASELINE = "smoothing"
FOLDS = 5
ALPHA = 0.05
"""A claim is made where p is at most this."""
SHOWN = 8
"""Number of the best decoders in the table."""
LINEAR_NOTE = "linear is fitted to people's judgments; each image is scored by weights of others."
MEASURES = {"tau_c": "τ_c", "mean": "accuracy"}

_NAMED = (BASELINE, "raw", "discode", "paper-adam", Linear.name)
_TRUST = (0, 1, 4, 9, 19)
_DISCODE = (
    *(f"alpha=1,tau={tau}" for tau in (0.5, 0.7, 1.4, 2)),
    *(f"trust={trust}" for trust in _TRUST[1:]),
    *(f"prior_variance=4,trust={trust}" for trust in _TRUST),
    *(f"tau={tau}" for tau in (0.5, 2)),
    *(f"sigma2=1,trust={trust}" for trust in (0, 4)),
    *(f"alpha_clip=none,tau=alpha,trust={trust}" for trust in _TRUST[1:]),
)


def candidate_decoders(scale: Scale, *, hidden: bool = False) -> dict[str, Decoder]:
    """List the decoders to choose from, keyed by their ``-m`` spelling, simple ones first.

    Smoothing, the baseline, and the raw answer; token probabilities at other temperatures,
    p ∝ L^(1/τ); the printed formula; and DISCODE with its trust λ in L, the width of its prior, σ²
    and τ: on scale unit each with three rules for the stem. With ``hidden`` also Adam steps on the
    printed loss.

    >>> from discode._scales import FIVE
    >>> list(candidate_decoders(FIVE))[:3]
    ['smoothing', 'raw', 'discode']
    """
    rules = ("", "stem=greedy", "stem=joint") if len(scale.stems) > 1 else ("",)
    methods = [(BASELINE, "", rule) for rule in rules]
    methods += [("raw", "", rule) for rule in dict.fromkeys(("", *rules[2:]))]
    methods += [(name, "", rule) for name in ("discode", "paper") for rule in rules]
    methods += [("discode", options, rule) for options in _DISCODE for rule in rules]
    if hidden:
        methods += [("paper-adam", f"steps={n}", rule) for n in (10, 30) for rule in rules[:2]]
    names = [f"{name}:{','.join(filter(None, options))}" for name, *options in methods]
    return {name.rstrip(":"): get_decoder(name) for name in names}


@dataclass(frozen=True, eq=False)
class DecoderChoice:
    """The compared decoders, the chosen one, and its gain on held-out images.

    Of the M ``specs`` the baseline is the first. ``agreement`` (M,) is that on all images: too good
    for the winner, which was chosen on them; ``measure`` is its name, "tau_c" or "mean"
    (accuracy). ``failed`` judgments have no score and are not used; ``unusable`` methods have none
    where the baseline has one, ``same`` ones give the scores of the spec they name. ``whole``
    (M, C) is what each of the C images contributes to the agreement, ``tie_rates`` the shares of
    tied pairs of scores. ``calibration`` goes from the recommended method's scores to people's
    ratings, with its held-out error and the share of tied pairs before and after. ``unit`` is what
    folds hold: "images", or "rows" where images are not known. ``learned`` is the linear decoder
    fitted on all images; its ``agreement`` is that of scores by weights fitted on other images.
    """

    specs: tuple[str, ...]
    agreement: Floats
    nested: NestedChoice
    measure: str
    images: int
    judgments: int
    failed: int
    whole: Floats
    tie_rates: tuple[float, ...]
    unusable: tuple[str, ...] = ()
    same: Mapping[str, str] = field(default_factory=dict)
    calibration: Calibration | None = None
    error: CalibrationError | None = None
    ties: tuple[float, float] = (0.0, 0.0)
    unit: str = "images"
    learned: Linear | None = None

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
    unit: str = "images",
    learn: bool = False,
) -> DecoderChoice:
    """Choose a decoder for readings (P,) of pairs, ``image`` (P,), by people's judgments of them.

    ``candidates`` are decoders by what ``-m`` calls them, the baseline first; ``learn`` adds a
    linear decoder. Ratings of a pair without a score are left out, preferences without one count
    as wrong, as everywhere.
    """
    protocol = protocol or AgreementProtocol()
    if isinstance(judgments, Ratings):
        if len(np.unique(judgments.value)) < 2:
            raise InputError("all ratings are equal: no decoder can agree with them better")
    elif calibrated:
        raise InputError("--calibrate requires ratings; choices have no scale")
    values = {spec: decoder.decode(readings).score for spec, decoder in candidates.items()}
    keep, failed = _with_scores(judgments, next(iter(values.values())))
    sides = [side[keep] for side in judgments.sides.values()]
    pairs = sides[0]
    clusters = np.unique(image[pairs], return_inverse=True)[1]
    images = int(clusters.max()) + 1
    fold = deal_folds(images, folds, protocol.seed, unit)
    learned = None
    if learn:
        by_pair = np.full(len(readings), -1)
        for side in sides:
            by_pair[side] = fold[clusters]
        learned = learn_linear(judgments, readings, by_pair, folds)
        values[Linear.name] = learned.score
    specs, unusable, same = _comparable(values)

    def contributions(value: Floats) -> Contributions:
        if isinstance(judgments, Ratings):
            return tau_c_contributions(value[pairs], judgments.value[keep], clusters, fold)
        earned = judgments.earned(*sides_of(judgments, value), protocol.ties)
        return accuracy_contributions(earned, np.array(judgments.category), clusters, fold)

    parts = {spec: contributions(values[spec]) for spec in specs}
    if learned is not None and Linear.name in parts:
        others = [contributions(score).others[k] for k, score in enumerate(learned.without)]
        parts[Linear.name] = replace(parts[Linear.name], others=np.array(others))
    nested = choose(
        [*parts.values()],
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
        specs, np.array(agreement), nested, measure, images, len(pairs), failed,
        np.array([parts[spec].whole for spec in specs]),
        tuple(_ties(values[spec][np.unique(pairs)]) for spec in specs),
        unusable, same, unit=unit,
        learned=None if learned is None else learned.decoder,
    )  # fmt: skip
    if not calibrated or not isinstance(judgments, Ratings):
        return choice
    by_fold = nested.by_fold if choice.beats_baseline else (0,) * folds
    held_out = [values[specs[number]] for number in by_fold]
    if learned is not None:
        values[Linear.name] = learned.decoder.decode(readings).score
        for k, number in enumerate(by_fold):
            if specs[number] == Linear.name:
                held_out[k] = learned.by_fold[k].decode(readings).score
    rating, score = judgments.value[keep], values[choice.recommended]
    curve = fit_calibration(score[pairs], rating)
    judged = score[np.unique(pairs)]
    return replace(
        choice,
        calibration=curve,
        error=calibration_error([value[pairs] for value in held_out], rating, fold[clusters]),
        ties=(tie_rate(judged), tie_rate(curve.apply(judged))),
    )


def _ties(score: Floats) -> float:
    return tie_rate(score[np.isfinite(score)])


def _comparable(
    values: Mapping[str, Floats],
) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, str]]:
    """Split the methods into comparable ones and those that lose scores the baseline has.

    Of methods with the same scores the first is taken; the third result maps the others to it: on
    many models no row reaches 1.0, and all rules for the stem are then one.
    """
    base = next(iter(values.values()))
    unusable = [spec for spec in values if (np.isnan(values[spec]) & np.isfinite(base)).any()]
    first = {values[spec].tobytes(): spec for spec in reversed(list(values))}
    same = {spec: first[values[spec].tobytes()] for spec in values if spec not in unusable}
    specs = tuple(spec for spec in same if same[spec] == spec)
    return specs, tuple(unusable), same


def _with_scores(judgments: Ratings | Preferences, base: Floats) -> tuple[NDArray[np.bool_], int]:
    """Determine which judgments (M,) count, and how many have no score."""
    scored = np.all([np.isfinite(base[side]) for side in judgments.sides.values()], axis=0)
    if not scored.any():
        raise InputError("no judgment has a score: every reading failed")
    keep = scored if isinstance(judgments, Ratings) else np.ones(len(judgments), bool)
    return keep, int((~scored).sum())


def describe_choice(choice: DecoderChoice) -> list[str]:
    """Describe the result in sentences."""
    measure, nested, gain = MEASURES[choice.measure], choice.nested, choice.nested.difference
    value, low, high = (
        round(100 * number, 2) + 0.0 for number in (gain.value, gain.low, gain.high)
    )
    figures = (
        f"{value:+.2f} {measure} on held-out {choice.unit} ({100 * gain.level:g} % interval "
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
            f"error (root mean square) is {error.calibrated:.3f} on held-out {choice.unit}, "
            f"that of a straight line {error.line:.3f}, that of the mean rating "
            f"{error.constant:.3f}. Tied pairs of scores: {100 * choice.ties[0]:.2f} % before, "
            f"{100 * choice.ties[1]:.2f} % after; {measure} is measured before."
        )
    if choice.unusable:
        sentences.append(
            f"Not compared, since they have no score where {choice.specs[0]} has one: "
            f"{', '.join(choice.unusable)}."
        )
    return sentences


def make_preset(
    choice: DecoderChoice, decoder: Decoder, scale: Scale, source: Mapping[str, Any], folds: int
) -> Preset:
    """Make the preset of a choice: the recommended decoder and how it was chosen.

    ``source`` names the readings and judgments it was chosen on.
    """
    nested, gain = choice.nested, choice.nested.difference
    chosen = {
        "verdict": describe_choice(choice)[0],
        "by": f"discode choose, version {__version__}",
        **source,
        choice.unit: choice.images,
        "judgments": choice.judgments,
        "without_score": choice.failed,
        "measure": choice.measure,
        "candidates": len(choice.specs),
        "folds": folds,
        "chosen_by_fold": [choice.specs[number] for number in nested.by_fold],
        f"best_on_all_{choice.unit}": choice.winner,
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
    if isinstance(decoder, Linear):
        return Preset(decoder.name, scale.unique_name, choice.calibration, chosen, decoder.weights)
    method = f"{decoder.name}:{options_text(decoder.options())}"  # every option is written out
    return Preset(method, scale.unique_name, choice.calibration, chosen)


def _short(value: float) -> float:
    return float(f"{value:.6g}")


@dataclass(frozen=True)
class JudgedReadings:
    """The data that a decoder is chosen on: readings (P,), their images, people's judgments.

    ``source`` names their origin and is kept in the preset; ``note`` lists omissions.
    ``unit`` is "rows" where images are not known, and each row counts as one. ``tasks`` names the
    task of each judgment, if the table has several.
    """

    title: str
    readings: Readings
    image: NDArray[np.int64]
    judgments: Ratings | Preferences
    source: Mapping[str, Any]
    note: str = ""
    unit: str = "images"
    tasks: tuple[str, ...] = ()


def choose_and_show(
    sets: Mapping[str, JudgedReadings],
    candidates: Callable[[Scale], dict[str, Decoder]],
    protocol: AgreementProtocol,
    *,
    folds: int = FOLDS,
    calibrated: bool = False,
    learn: bool = False,
    together: bool = False,
) -> StudyResult:
    """Choose a decoder for each set: a table, sentences, and a preset as NAME.json.

    ``together`` makes one table of all sets, with a column per decoder.
    """
    if not protocol.resamples:
        raise InputError("choose tests its choice by resampling; give --resamples 100 or more")
    tables: dict[str, CellTable] = {}
    files: dict[str, str] = {}
    findings: list[str] = []
    choices: list[DecoderChoice] = []
    for name, judged in sets.items():
        scale = judged.readings.scale
        decoders = candidates(scale)
        choice = choose_decoder(
            judged.judgments, judged.image, judged.readings, decoders, protocol=protocol,
            folds=folds, calibrated=calibrated, learn=learn, unit=judged.unit,
        )  # fmt: skip
        if choice.learned is not None:
            decoders[Linear.name] = choice.learned
        preset = make_preset(choice, decoders[choice.recommended], scale, judged.source, folds)
        files[f"{name}.json"] = preset.text()
        choices.append(choice)
        tables[name] = _table(choice, judged.title, folds)
        sentences = describe_choice(choice)
        where = f"{judged.title}: " if len(sets) > 1 else ""
        findings += [f"{where}{line}" for line in sentences]
    presets = list(files)
    if not together:
        presets = [f"{name} ({preset_digest(text.encode())})" for name, text in files.items()]
    findings.append(f"Presets for -m, written with -o FOLDER: {', '.join(presets)}.")
    if together:
        tables = {"choose": _one_table(list(sets.values()), choices, protocol)}
    problems = [
        f"{judged.title}: {choice.failed:,} of {len(judged.judgments):,} judgments have no score; "
        f"{next(iter(judged.readings.errors.values()), 'a log-probability is not a number')}"
        for judged, choice in zip(sets.values(), choices, strict=True)
        if choice.failed
    ]
    return StudyResult(tables, findings=findings, problems=problems, files=files)


def read_judged(
    judges: Mapping[str, MetricFactory],
    benchmarks: Mapping[str, Benchmark],
    *,
    hidden: bool = False,
    progress: RunProgress | None = None,
) -> dict[str, JudgedReadings]:
    """Read every benchmark with every judge, without references, by the names of their presets.

    ``hidden`` asks for hidden states, which Adam needs, and refuses models without them.
    """
    several = len(judges) * len(benchmarks) > 1
    sets = {}
    for (model, factory), (place, benchmark) in product(judges.items(), benchmarks.items()):
        judge = factory.judge
        if hidden:
            judge = judge.with_method("paper-adam")
        pairs, which = benchmark.bare_pairs()
        report = None if progress is None else partial(progress, "readings", len(pairs))
        readings = judge.read(pairs, report)
        if readings.errors:
            raise_if_stopped(judge)
        source = {
            "judge": str(judge.signature.asked),
            "benchmark": benchmark.name,
            "options": dict(benchmark.options),
            "sha256": dict(benchmark.checksums),
        }
        name = file_stem(f"decoder {model} {place}") if several else "decoder"
        sets[name] = JudgedReadings(
            f"{place}, {model}", readings.take(which), benchmark.image, benchmark.judgments, source
        )
    return sets


def _table(choice: DecoderChoice, title: str, folds: int) -> CellTable:
    measure, nested = MEASURES[choice.measure], choice.nested
    base = choice.specs[0]
    rows: list[list[TableValue]] = [
        ["held-out images"],
        ["  the best of the other folds", 100 * nested.value, nested.difference.times(100), None],
        [f"  {base}", 100 * nested.baseline, None, None],
        ["all images"],
    ]
    best = np.argsort(-choice.agreement, kind="stable").tolist()
    shown = {*best[:SHOWN], *(choice.specs.index(s) for s in _NAMED if s in choice.specs)}
    shown |= {*nested.by_fold}
    for number in best:
        if number in shown:
            times = nested.by_fold.count(number)
            value, base_value = (100 * float(choice.agreement[row]) for row in (number, 0))
            cells = value, value - base_value, f"{times} of {folds}" if times else None
            rows.append([f"  {choice.specs[number]}", *cells])
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
            *([LINEAR_NOTE] if choice.learned else []),
            *([TAU_C_NOTES["people"]] if choice.measure == "tau_c" else []),
        ],
        digits=3,
    )  # fmt: skip


def _one_table(
    sets: Sequence[JudgedReadings], choices: Sequence[DecoderChoice], protocol: AgreementProtocol
) -> CellTable:
    """Tabulate, per set, the agreement of raw and smoothing, the others' gains, and tie rates."""
    rows: list[list[TableValue]] = []
    specs = (*choices[0].same, *choices[0].unusable)
    others = [spec for spec in specs if spec not in (BASELINE, "raw")]
    for judged, choice in zip(sets, choices, strict=True):
        number = {spec: choice.specs.index(first) for spec, first in choice.same.items()}
        tau = {spec: 100 * float(choice.agreement[place]) for spec, place in number.items()}
        p = get_decoder(BASELINE).decode(judged.readings).distribution
        second = led_by_second_hump(p[np.isfinite(p).all(axis=1)])
        gains = [_gain(choice, number[spec], protocol) if spec in tau else None for spec in others]
        rows.append([judged.title, f"{choice.judgments:,}", tau.get("raw"), tau[BASELINE],
                     *gains, 100 * float(second.mean())])  # fmt: skip
        ties = [100 * choice.tie_rates[number[spec]] if spec in tau else None
                for spec in ("raw", BASELINE, *others)]  # fmt: skip
        rows.append([f"{judged.title}, ties %", None, *ties, None])
    names = [spec.replace("discode:trust=", "λ=") for spec in others]
    return CellTable(
        ["readings", "n", "raw", BASELINE, *names, "2nd hump %"],
        rows,
        "How decoders agree with people: τ_c of raw and smoothing, the others' difference to it",
        [
            *(f"{new} is {spec}" for new, spec in zip(names, others, strict=True) if new != spec),
            "ties: pairs of scores that are equal",
            "2nd hump: rows where most of the way from raw to smoothing is a second hump's",
            *([LINEAR_NOTE] if choices[0].learned else []),
            TAU_C_NOTES["people"],
            *(
                f"{judged.title}: {judged.note}"
                + (f"; without a score: {choice.failed:,}" if choice.failed else "")
                for judged, choice in zip(sets, choices, strict=True)
            ),
        ],
        digits=3,
    )


def _gain(choice: DecoderChoice, number: int, protocol: AgreementProtocol) -> Interval:
    gain = choice.whole[number] - choice.whole[0]
    interval = bootstrap(
        lambda weights: float(weights @ gain / weights.sum()), np.arange(len(gain)),
        **protocol.bootstrap,
    )  # fmt: skip
    return replace(interval, value=choice.agreement[number] - choice.agreement[0]).times(100)
