"""Ask a judge every question of a card, and turn its scores into figures with intervals."""

from __future__ import annotations

import hashlib
import math
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from discode._judge import Judge
from discode._pairs import Pair
from discode._probe.card import Card, Figure
from discode._probe.questions import QUESTIONS, Question, find_subjects, has_references
from discode._scores import Floats, Progress
from discode.bench._agreement import AgreementProtocol, main_measure, measure_agreement
from discode.bench._digits import SEEN, count_digits
from discode.benchmarks import LIMIT, Benchmark, Ratings
from discode.benchmarks._base import keep_images
from discode.bulk._judging import raise_if_stopped
from discode.errors import ImageError, InputError
from discode.images import ImageSource, image_digest
from discode.options import option_text
from discode.readings import Readings
from discode.stats import Interval, MeansPlan, bootstrap_all, wilson
from discode.stats._calibration import fit_calibration
from discode.stats._selection import FEWEST_IMAGES, deal_folds

_RAW = "Raw answers, in points of 100: % of readings"
_HUMPS = "Probability in a second hump, %"
_PEOPLE = "Beside people's judgments, points of 100"
_MEASURES = {"tau_b": "Kendall's τ_b", "tau_c": "Kendall's τ_c", "mean": "accuracy"}
NO_REFERENCES = "no references: questions that need them are skipped"
_GREY = -1
"""The number of the image that shows nothing."""
_Ints = NDArray[np.int64]
_Rows = list[list[int]]


@dataclass
class ProbePlan:
    """The pairs for a judge: every caption once with its image, and once with a grey one.

    Attributes:
        chosen: The benchmark with the chosen images, ``images`` of which have
            references (or, where the benchmark has none, captions that people judged).
        protocol: How intervals are made; its seed is also that of the questions.
        span: The lowest and the highest rating of the whole benchmark.
        pairs: The ``questioned`` pairs of the questions first, then the pairs that people judged.
        image: The number of the image that each pair is about, with a grey image too.
        grey: Whether it is shown with the grey image.
        rows: Per question, the pairs of each image, with the image and with the grey one.
        judged: Which of the pairs each pair of the benchmark is.
    """

    chosen: Benchmark
    protocol: AgreementProtocol
    images: int = 0
    span: tuple[float, float] = (math.nan, math.nan)
    pairs: list[Pair] = field(default_factory=list)
    image: list[int] = field(default_factory=list)
    grey: list[bool] = field(default_factory=list)
    rows: list[tuple[Question, _Rows, _Rows]] = field(default_factory=list)
    judged: list[int] = field(default_factory=list)
    questioned: int = 0
    _known: dict[tuple[int, str], int] = field(default_factory=dict)

    def ask(self, image: ImageSource, number: int, caption: str, shown: int) -> int:
        """Plan a caption about an image, and get its number; known ones are not repeated."""
        row = self._known.setdefault((shown, caption), len(self.pairs))
        if row == len(self.pairs):
            name = "grey image" if shown == _GREY else Path(str(image)).name
            self.pairs.append(Pair(image, caption, (), name))
            self.image.append(number)
            self.grey.append(shown == _GREY)
        return row

    @property
    def benchmark(self) -> str:
        """The benchmark with its options."""
        options = ",".join(f"{k}={option_text(v)}" for k, v in self.chosen.options.items())
        return f"{self.chosen.name}({options})"

    def signature(self, judge: Judge) -> str:
        """Build the signature of a judge's scores of these pairs."""
        return str(judge.signature.with_fields(references="none"))

    @property
    def digest(self) -> str:
        """The SHA-256 of all captions and of the content of the images."""
        images: dict[int, str] = {}
        lines = []
        for pair, number, grey in zip(self.pairs, self.image, self.grey, strict=True):
            shown = _GREY if grey else number
            if shown not in images:
                images[shown] = _content(pair.image)
            lines.append(f"{pair.id}\t{images[shown]}\t{pair.caption}\n")
        return hashlib.sha256("".join(lines).encode(errors="replace")).hexdigest()


def _content(image: ImageSource) -> str:
    try:
        return image_digest(image)
    except (ImageError, InputError):
        return ""


def plan_probe(
    benchmark: Benchmark, protocol: AgreementProtocol, limit: int | None = None
) -> ProbePlan:
    """Plan the questions about ``limit`` images of a benchmark, or all of them."""
    LIMIT.convert(limit)
    chosen = benchmark if limit is None else keep_images(benchmark, limit)
    subjects = find_subjects(benchmark, chosen, protocol.seed)
    if rated_only := not has_references(benchmark):
        chosen = replace(chosen, notes=(*chosen.notes, NO_REFERENCES))
    plan, people = ProbePlan(chosen, protocol, len(subjects)), benchmark.judgments
    if isinstance(people, Ratings) and len(people):
        plan.span = float(people.value.min()), float(people.value.max())
    nothing = Image.new("RGB", (336, 336), (128, 128, 128))
    for question in QUESTIONS:
        if question.references and rated_only:
            continue
        with_image, with_grey = _Rows(), _Rows()
        for s in subjects:
            rng = random.Random(f"{protocol.seed} {s.name} {question.name}")
            if texts := question.ask(s, rng):
                with_image.append([plan.ask(s.image, s.number, text, s.number) for text in texts])
                with_grey.append([plan.ask(nothing, s.number, text, _GREY) for text in texts])
        plan.rows.append((question, with_image, with_grey))
    plan.questioned = len(plan.pairs)
    for number, pair in zip(chosen.image.tolist(), chosen.pairs, strict=True):
        plan.judged.append(plan.ask(pair.image, number, pair.caption, number))
    return plan


def make_card(judge: Judge, plan: ProbePlan, progress: Progress | None = None) -> Card:
    """Read the planned pairs with a judge, and make its card.

    Raises:
        StoppedError: A served model's cap was reached, or its server refused for good. What it
            read is in the judge's store.
    """
    readings = judge.read(plan.pairs, progress)
    scores = judge.decode(plan.pairs, readings)
    if scores.errors:
        raise_if_stopped(judge)  # captions that were not asked about are not a result
    if np.isnan(scores.value[~np.array(plan.grey)]).all():
        reason = next(scores.errors[row] for row in scores.errors if not plan.grey[row])
        raise InputError(f"no image could be judged: {reason}")
    low, high = judge.scale.minimum, judge.scale.maximum
    value = 100 * (scores.value - low) / (high - low)
    raw = value if scores.raw is None else 100 * (scores.raw - low) / (high - low)
    figures = [
        _figure(question, raw if question.raw else value, with_image, with_grey, plan.protocol)
        for question, with_image, with_grey in plan.rows
    ]
    figures += _answers(plan, readings, raw)
    figures += _people(plan, value[plan.judged])
    return Card(
        scores.signature["model"], str(scores.signature), plan.benchmark, plan.protocol,
        plan.chosen.checksums, plan.digest,
        plan.images, len(plan.pairs), dict(Counter(scores.errors.values())), tuple(figures),
    )  # fmt: skip


def _means(values: Floats, clusters: _Ints, protocol: AgreementProtocol) -> list[Interval]:
    """Average columns (n, K), with intervals over resampled images."""
    if len(values) and protocol.resamples and not np.isnan(values).any():
        return bootstrap_all(MeansPlan(values), clusters, **protocol.bootstrap)
    means = values.mean(axis=0) if len(values) else np.full(values.shape[1], math.nan)
    return [Interval.point(mean, protocol.level) for mean in means.tolist()]


def _mean(values: Floats, clusters: _Ints, protocol: AgreementProtocol) -> Interval:
    return _means(values[:, None], clusters, protocol)[0]


def _figure(
    question: Question, value: Floats, seen: _Rows, unseen: _Rows, protocol: AgreementProtocol
) -> Figure:
    """Make a question's row: the share of images for yes or no, the mean for numbers."""

    def measured(images: _Rows) -> tuple[Interval, int]:
        scores = (value[rows] for rows in images)
        answers = np.array([question.answer(each) for each in scores if np.isfinite(each).all()])
        if answers.dtype == bool:
            share = wilson(int(answers.sum()), len(answers), protocol.level)
            return share.times(100), len(answers)
        return _mean(answers, np.arange(len(answers)), protocol), len(answers)

    (figure, n), (grey, grey_n) = measured(seen), measured(unseen)
    return Figure(question.section, question.name, figure, n, len(seen) - n, grey, grey_n)


def _answers(plan: ProbePlan, readings: Readings, raw: Floats) -> Iterator[Figure]:
    """Yield how often each raw answer (N,) is given, in points, and how often there are two humps.

    A second hump is looked for where there is a digit to choose: a stem may settle it (1.0).
    """
    grey, image = np.array(plan.grey[: plan.questioned]), np.array(plan.image)
    names = [(_RAW, f"near {10 * tenth}") for tenth in range(11)]
    names += [(_HUMPS, f"readings with more than {100 * SEEN:g} % in it"), (_HUMPS, "mean of all")]
    figures: list[list[tuple[Interval, int, int]]] = []
    for shown in (~grey, grey):
        rows = np.flatnonzero(shown)
        given = rows[np.isfinite(raw[rows])]
        tenth = np.floor(raw[given] / 10 + 0.5).astype(np.int64)
        shares = _means(np.eye(11)[tenth], image[given], plan.protocol)
        column = [(share, len(given), len(rows) - len(given)) for share in shares]
        try:
            counted = count_digits(readings.take(rows), image[rows], plan.protocol)
        except InputError:  # no digits to choose
            column += [(Interval.point(math.nan, plan.protocol.level), 0, 0)] * 2
        else:
            humps = (counted.humps, counted.total)
            column += [(each, counted.pairs, counted.failed) for each in humps]
        figures.append(column)
    for (section, name), (seen, n, failed), (unseen, m, _) in zip(names, *figures, strict=True):
        yield Figure(section, name, seen.times(100), n, failed, unseen.times(100), m)


def _people(plan: ProbePlan, value: Floats) -> Iterator[Figure]:
    """Yield agreement with people, and the distance of scores (P,) from ratings.

    Scores are compared as they are, and mapped by isotonic regression on other images.
    """
    people, image, protocol = plan.chosen.judgments, plan.chosen.image, plan.protocol
    name = main_measure(plan.chosen.name, people)
    measures = measure_agreement(people, image, value, protocol)
    failed = round(measures["failed"].value * len(people)) if len(people) else 0
    yield Figure(_PEOPLE, _MEASURES[name], measures[name].times(100), len(people) - failed, failed)
    lowest, highest = plan.span
    if not isinstance(people, Ratings) or not lowest < highest:
        return
    mean = people.averaged()
    score, rating = value[mean.pair], 100 * (mean.value - lowest) / (highest - lowest)
    keep = np.isfinite(score)
    score, rating, clusters = score[keep], rating[keep], image[mean.pair][keep]
    n, failed = len(score), int((~keep).sum())
    yield Figure(
        _PEOPLE, "score - rating, mean", _mean(score - rating, clusters, protocol), n, failed
    )
    guesses = {
        "error of the scores (root mean square)": score,
        "  mapped to ratings on other images": _mapped(score, rating, clusters),
        "  of the mean rating alone": np.full(n, rating.mean() if n else math.nan),
    }
    for title, guess in guesses.items():
        squares = _mean((guess - rating) ** 2, clusters, protocol)
        root, low, high = map(math.sqrt, (squares.value, squares.low, squares.high))
        yield Figure(_PEOPLE, title, Interval(root, low, high, protocol.level), n, failed)


def _mapped(score: Floats, rating: Floats, image: _Ints) -> Floats:
    """Map scores (n,) to ratings, fitted on other images; NaN if there are too few."""
    numbers, code = np.unique(image, return_inverse=True)
    guess = np.full(len(score), math.nan)
    if len(numbers) >= FEWEST_IMAGES:
        fold = deal_folds(len(numbers))[code]
        for k in range(int(fold.max()) + 1):
            inside = fold == k
            guess[inside] = fit_calibration(score[~inside], rating[~inside]).apply(score[inside])
    return guess
