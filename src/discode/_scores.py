"""Scores with everything that explains them, and the protocol of metrics."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NamedTuple, Protocol, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discode._pairs import Pair
from discode._sentences import sentence_weights
from discode._signature import Signature
from discode.decoders import Decoder
from discode.decoders._base import decode_checked, greedy_stem
from discode.decoders._bounds import truncation_bound, undrawn_bound
from discode.decoders._sampling import standard_error
from discode.errors import InputError, count_of, require
from discode.readings import Readings, SentenceReadings
from discode.readings._sampled import SAMPLED
from discode.stats import ClusteredMean, Interval

Floats = NDArray[np.float64]

Progress = Callable[[int], None]
"""Called with the number of pairs just done."""


@dataclass(frozen=True)
class SentenceScores:
    """The sentences of a caption that is judged by them, and their scores; NaN for a failed one."""

    texts: tuple[str, ...]
    value: tuple[float, ...]

    @property
    def lowest(self) -> tuple[str, float] | tuple[None, None]:
        """The sentence with the lowest score, and that score; nothing where a sentence failed."""
        if any(map(math.isnan, self.value)):
            return None, None
        score = min(self.value)
        return self.texts[self.value.index(score)], score


@dataclass(frozen=True, eq=False)
class Scores:
    """N scores in the order of the input.

    They behave as their values do: ``len``, a loop, ``scores[0]`` (a number), ``max``,
    ``np.asarray``. A slice, a mask or a list of row numbers gives the ``Scores`` of those rows.
    Compute with ``scores.value``: ``scores[scores.value > 0.5]``.

    Attributes:
        value: (N,) the scores; NaN where a pair could not be judged.
        signature: How they were made.
        raw: (N,) the model's own answer, where the metric asks a model.
        smoothing: (N,) the mean of its answers under their probabilities, without a prior.
        distribution: (N, K) over ``answers``, likewise; NaN for captions judged by sentences.
        plain: (N, K) the same without a prior: the model's own probabilities, renormalised.
        answers: K names.
        flags: Name to (N,) booleans: "failed", "truncated", "generated", "bimodal", ...
        errors: Row number to the reason of its NaN.
        bound: (N,) how wrong a score may be because a server left answers out, or because answers
            were never drawn; NaN for rows that are neither truncated nor sampled, None if all are.
        stderr: (N,) the standard errors of scores of sampled answers, likewise.
        people: (N,) the mean rating that people give captions of such a score, by a file of
            ``discode calibrate``; ``low`` and ``high`` (N,) bound its interval.
        other: (N,) for "bimodal" rows the score that a change of the log-probabilities by 0.05
            could make of theirs; NaN for the others.
        images: What each image is called, "" where it has no name; None where that is not known.
        captions: The captions, likewise.
        sentences: For each caption its sentences with their scores, of which ``value``, ``raw`` and
            ``smoothing`` are the means (what follows the 32nd is judged as one text, and weighs as
            many as it holds), or None where it was judged whole; None where all were.
        stem: (N,) the number of the scale's stem that is the likelier one; -1 where not known.
        ids, sources, numbers: The rows of an input that these are: their ids, files (None for the
            command line) and numbers in them; None for pairs in memory.
        names: The images as the input names them, likewise.
        signatures: How each row's own score was made, where rows differ.
    """

    value: Floats
    signature: Signature
    raw: Floats | None = None
    distribution: Floats | None = None
    answers: tuple[str, ...] = ()
    flags: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    errors: Mapping[int, str] = field(default_factory=dict)
    bound: Floats | None = None
    images: tuple[str, ...] | None = None
    captions: tuple[str, ...] | None = None
    smoothing: Floats | None = None
    sentences: tuple[SentenceScores | None, ...] | None = None
    other: Floats | None = None
    plain: Floats | None = None
    stem: NDArray[np.intp] | None = None
    ids: tuple[str, ...] | None = None
    sources: tuple[str | None, ...] | None = None
    numbers: tuple[int, ...] | None = None
    names: tuple[str | None, ...] | None = None
    signatures: tuple[str, ...] | None = None
    stderr: Floats | None = None
    people: Floats | None = None
    low: Floats | None = None
    high: Floats | None = None

    @classmethod
    def build(
        cls,
        decoder: Decoder,
        readings: Readings,
        signature: Signature,
        flags: Mapping[str, NDArray[np.bool_]] | None = None,
        pairs: Sequence[Pair] | None = None,
    ) -> Scores:
        """Decode readings, and join the result with the flags and errors of readings and pairs."""
        decoded, infinite = decode_checked(decoder, readings)
        if pairs is not None and len(pairs) != len(decoded.score):
            raise InputError(f"{len(decoded.score)} readings are not those of {len(pairs)} pairs")
        sampled = np.char.startswith(np.asarray(readings.how), SAMPLED)
        truncated, bound = np.asarray(readings.truncated), None
        for rows, compute in ((truncated, truncation_bound), (sampled, undrawn_bound)):
            error = compute(decoder, readings) if rows.any() else None
            if error is not None:
                bound = np.where(rows, error, math.nan if bound is None else bound)
        failed = np.isnan(decoded.score)
        errors = {**infinite, **readings.errors}
        for row in set(np.flatnonzero(failed).tolist()).difference(readings.sentences):
            one_stem = np.isnan(readings.stem_logp[row]).sum() == 1
            why = "only one stem was read; a served model reads both with read=forced"
            empty = "the reading holds NaN, or no mass on any answer"
            errors.setdefault(row, why if one_stem and len(readings.scale.stems) > 1 else empty)
        scores = cls(
            decoded.score,
            signature,
            decoded.raw,
            decoded.distribution,
            decoded.answers,
            {
                "failed": failed,
                "truncated": truncated,
                "generated": np.asarray(readings.how) == "generated",
                "cut": np.asarray(readings.how) == "cut",
                "sampled": sampled,
                "degenerate": decoded.degenerate,
                "bimodal": np.zeros(len(failed), bool)
                if decoded.other is None
                else np.isfinite(decoded.other),
                **(flags or {}),
            },
            errors,
            bound,
            None
            if pairs is None
            else tuple(
                str(pair.image) if isinstance(pair.image, str | os.PathLike) else ""
                for pair in pairs
            ),
            None if pairs is None else tuple(pair.caption for pair in pairs),
            decoded.smoothing,
            other=decoded.other,
            plain=decoded.plain,
            stem=greedy_stem(readings),
            stderr=standard_error(decoder, readings) if sampled.any() else None,
            people=decoded.people,
            low=decoded.low,
            high=decoded.high,
        )
        if not readings.sentences:
            return scores
        parts = Readings.concat(readings.scale, [p.readings for p in readings.sentences.values()])
        return scores._by_sentence(readings.sentences, cls.build(decoder, parts, signature))

    def _by_sentence(self, parts: Mapping[int, SentenceReadings], scores: Scores) -> Scores:
        """Return these rows with the means of their sentences, whose ``scores`` follow each other.

        A sentence that failed fails its caption: the mean of the others would be another number.
        """
        means: dict[str, Any] = {
            name: None if getattr(self, name) is None else np.array(getattr(self, name))
            for name in ("value", "raw", "smoothing", "bound")
        }
        # Answers after "0." and after "1." do not add up, nor is it known which sentences' scores
        # a small change would move.
        emptied: dict[str, Any] = {
            name: None if getattr(self, name) is None else np.array(getattr(self, name))
            for name in ("distribution", "plain", "other", "stderr", "people", "low", "high")
        }
        for column in emptied.values():
            if column is not None:
                column[[*parts]] = np.nan
        if means["bound"] is None and scores.bound is not None:
            means["bound"] = np.full(len(self), np.nan)
        if scores.stderr is not None and emptied["stderr"] is None:
            emptied["stderr"] = np.full(len(self), np.nan)
        flags = {name: np.array(marks) for name, marks in self.flags.items()}
        errors = dict(self.errors)
        sentences: list[SentenceScores | None] = [None] * len(self)
        start = 0
        for row, (texts, _) in parts.items():
            rows = np.arange(start, start + len(texts))
            start += len(texts)
            weights = sentence_weights(texts)
            for name, column in means.items():
                if column is not None:
                    values = getattr(scores, name)
                    values = np.full(len(rows), np.nan) if values is None else values[rows]
                    if name == "bound" and not np.isnan(values).all():
                        values = np.nan_to_num(values)  # of sentences that are not truncated
                    column[row] = np.average(values, weights=weights)
            if scores.stderr is not None:  # of a weighted mean of independent scores
                shares = np.asarray(weights) / np.sum(weights)
                emptied["stderr"][row] = np.linalg.norm(shares * scores.stderr[rows])
            for name, marks in scores.flags.items():
                flags[name][row] = marks[rows].any()
            sentences[row] = SentenceScores(texts, tuple(scores.value[rows].tolist()))
            for number, place in enumerate(rows.tolist(), 1):
                if place in scores.errors and row not in errors:
                    reason = scores.errors[place]
                    errors[row] = f"sentence {number} of {len(texts)}: {reason}"
        return replace(
            self, **means, **emptied, flags=flags, errors=errors, sentences=tuple(sentences)
        )

    def __len__(self) -> int:
        return len(self.value)

    def __float__(self) -> float:
        """Return the score of a single pair."""
        if len(self) != 1:
            raise InputError(f"float() needs one score, these are {len(self)}; use .value")
        return float(self.value[0])

    def __iter__(self) -> Iterator[float]:
        yield from self.value.tolist()

    @overload
    def __getitem__(self, rows: int) -> float: ...
    @overload
    def __getitem__(self, rows: slice | ArrayLike) -> Scores: ...
    def __getitem__(self, rows: int | slice | ArrayLike) -> float | Scores:
        """Return the score of a row, or the scores of some: a slice, a mask, or row numbers."""
        if isinstance(rows, slice):
            return self._take(np.arange(len(self))[rows])
        try:
            return float(self.value[operator.index(rows)])  # type: ignore[arg-type]  # or raises
        except TypeError:
            chosen = np.asarray(rows)
        if chosen.ndim != 1 or (len(chosen) and chosen.dtype.kind not in "biu"):
            raise InputError(
                f"rows are a number, a slice, a mask or a list of numbers, not {rows!r}"
            )
        if chosen.dtype.kind == "b" and len(chosen) != len(self):
            raise InputError(f"a mask of {len(chosen)} rows does not fit {len(self)} scores")
        return self._take(np.arange(len(self))[chosen if len(chosen) else []])

    def _take(self, rows: NDArray[np.int64]) -> Scores:
        columns: dict[str, Any] = {}
        for name in EMPTY:
            if isinstance(column := getattr(self, name), tuple):
                columns[name] = tuple(column[row] for row in rows.tolist())
            elif column is not None:
                columns[name] = column[rows]
        flags = {name: marks[rows] for name, marks in self.flags.items()}
        errors = {
            new: self.errors[old] for new, old in enumerate(rows.tolist()) if old in self.errors
        }
        return replace(self, **columns, flags=flags, errors=errors)

    @staticmethod
    def join(parts: Sequence[Scores]) -> Scores:
        """Return the rows of several, a part after another; what one part lacks is NaN or None.

        >>> from discode._signature import Signature
        >>> one, two = (Scores(np.array(v), Signature(())) for v in ([0.1, 0.3], [0.2]))
        >>> Scores.join([one, two]).value.tolist()
        [0.1, 0.3, 0.2]
        """
        errors, start = dict[int, str](), 0
        for part in parts:
            errors |= {start + row: why for row, why in part.errors.items()}
            start += len(part)

        def joined(columns: list[Any], empty: Any) -> Any:
            known = next((column for column in columns if column is not None), None)
            if known is None:
                return None
            shape = np.shape(known)[1:] if isinstance(known, np.ndarray) else ()
            rows = [
                np.full((len(part), *shape), empty) if column is None else column
                for part, column in zip(parts, columns, strict=True)
            ]
            return np.concatenate(rows) if isinstance(known, np.ndarray) else tuple(chain(*rows))

        columns = {n: joined([getattr(p, n) for p in parts], empty) for n, empty in EMPTY.items()}
        names = dict.fromkeys(chain(*(part.flags for part in parts)))
        flags = {name: joined([part.flags.get(name) for part in parts], False) for name in names}
        return replace(parts[0], **columns, flags=flags, errors=errors)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.value, dtype) if copy else np.asarray(self.value, dtype)

    def __repr__(self) -> str:
        values = [f"{value:.4g}" for value in self.value[:6].tolist()]
        shown = ", ".join([*values, "..."] if len(self) > len(values) else values)
        return f"Scores([{shown}], {self.summary()}, {self.signature.short})"

    def summary(self) -> str:
        """Return how many there are, their mean, and how many are bimodal or failed."""
        failed = int(np.isnan(self.value).sum())
        words = [count_of(len(self), "score"), f"mean {self.mean():.4g}"]
        if near_ties := self.counts().get("bimodal"):
            words.append(f"{near_ties} bimodal")
        return ", ".join([*words, f"{failed} failed"] if failed else words)

    def _repr_html_(self) -> str:
        from discode._scores_html import scores_table  # here: only notebooks show it

        return scores_table(self)

    def mean(self, axis: int | None = None, dtype: None = None, out: None = None) -> float:
        """Return the mean over the pairs that could be judged; NaN if none could.

        ``np.mean`` passes the arguments; only their defaults are allowed.
        """
        if axis not in (None, 0, -1) or dtype is not None or out is not None:
            raise InputError(
                "the mean of scores takes no axis, dtype or out; use scores.value.mean(...)"
            )
        judged = self.value[~np.isnan(self.value)]
        return float(judged.mean()) if judged.size else math.nan

    def interval(
        self,
        images: Sequence[str] | None = None,
        *,
        resamples: int = 5000,
        seed: int = 0,
        level: float = 0.95,
    ) -> Interval:
        """Return the mean with its bootstrap interval over images.

        Captions of one image are not independent: whole images are resampled. ``images`` (N,)
        names each row's image, by default ``self.images``; a row without a name is an image by
        itself. Below 30 images the interval is too narrow, and below three its bounds are NaN.

        >>> from discode._signature import Signature
        >>> scores = Scores(np.array([0.25, 0.5, 0.75, 0.5]), Signature(()))
        >>> found = scores.interval(["a.jpg", "b.jpg", "c.jpg", "c.jpg"])
        >>> found.value, 0.25 <= found.low < found.high <= 0.75
        (0.5, True)
        """
        names = self.images if images is None else images
        if names is not None and len(names) != len(self):
            raise InputError(f"{len(names)} images do not fit {len(self)} scores; give one a score")
        mean = ClusteredMean()
        mean.add(self.value, [None] * len(self) if names is None else names)
        return mean.interval(resamples=resamples, seed=seed, level=level)

    def counts(self) -> dict[str, int]:
        """Return how many rows carry each flag."""
        return {name: int(np.count_nonzero(marks)) for name, marks in self.flags.items()}

    def columns(self) -> dict[str, list[Any]]:
        """Return the :data:`COLUMNS` of scores as JSON-ready lists, None where a row has nothing.

        A column that no row has is left out: ``raw``, ``smoothing`` and ``distribution`` where no
        model was asked, ``bound`` where no row is truncated, ``other_score`` where none is bimodal,
        and those of sentences where no caption was judged by them.
        """
        return self._taken(name for name, column in COLUMNS.items() if column.scored)

    def _taken(self, names: Iterable[str]) -> dict[str, Any]:
        taken = {name: COLUMNS[name].take(self) for name in names}
        return {name: values for name, values in taken.items() if values is not None}

    def rows(self, ids: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
        """Yield one JSON-ready dictionary per row: an id, and :meth:`columns`."""
        columns = {"id": list(map(str, range(len(self)))) if ids is None else ids, **self.columns()}
        for values in zip(*columns.values(), strict=True):
            yield dict(zip(columns, values, strict=True))

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame`` with the columns of a score file that are known.

        docs/output.md describes them; every row has its signature.
        """
        known = {
            name: np.array(values, float) if COLUMNS[name].kind == "number" else values
            for name, values in self._taken(COLUMNS).items()
        }
        return require("pandas", "pandas").DataFrame(known, index=range(len(self)))


EMPTY: dict[str, Any] = {
    **dict.fromkeys(
        (
            "value",
            "raw",
            "smoothing",
            "distribution",
            "plain",
            "bound",
            "other",
            "stderr",
            "people",
            "low",
            "high",
        ),
        math.nan,
    ),
    "stem": -1,
    **dict.fromkeys(("images", "captions", "ids", "signatures"), ""),
    **dict.fromkeys(("sentences", "sources", "numbers", "names"), None),
}
"""The fields of scores with a value per row, and the value of a row that has none."""


class ScoreColumn(NamedTuple):
    """A column of tables with scores.

    Attributes:
        about: What it means.
        take: Takes it from scores: a JSON-ready value per row, or None where no row has one.
        kind: "text", "word" (a text that many rows share), "whole", "number", "texts", "numbers".
        scored: Whether it describes the score, rather than the row of an input.
    """

    about: str
    take: Callable[[Scores], Sequence[Any] | None]
    kind: str = "text"
    scored: bool = True


def _file_names(scores: Scores) -> list[str | None] | None:
    if scores.names is None or scores.images is None:
        return None
    return [
        file if file and not file.endswith(name or "") else None
        for file, name in zip(scores.images, scores.names, strict=True)
    ]


def _flags(scores: Scores) -> list[list[str]]:
    flags: list[list[str]] = [[] for _ in range(len(scores))]
    for name, marks in scores.flags.items():
        for row in np.flatnonzero(marks).tolist():
            flags[row].append(name)
    return flags


def _number(name: str) -> Callable[[Scores], list[float | None] | None]:
    def take(scores: Scores) -> list[float | None] | None:
        values = getattr(scores, name)
        return None if values is None else or_none(values)

    return take


def _of_sentences(
    take: Callable[[SentenceScores], Any],
) -> Callable[[Scores], list[Any] | None]:
    def taken(scores: Scores) -> list[Any] | None:
        if scores.sentences is None:
            return None
        return [None if each is None else take(each) for each in scores.sentences]

    return taken


COLUMNS: dict[str, ScoreColumn] = {
    "id": ScoreColumn(
        "the row's `id`, COCO's `image_id`, a tar's key, or the row's number (with several files, "
        "after the file's name)",
        lambda scores: scores.ids, scored=False,
    ),
    "source": ScoreColumn(
        "the input file; null for an image given on the command line",
        lambda scores: scores.sources, "word", scored=False,
    ),
    "row": ScoreColumn(
        "the row's number in that file, from 0", lambda scores: scores.numbers, "whole",
        scored=False,
    ),
    "image": ScoreColumn(
        "the image as named in the input",
        lambda scores: scores.images if scores.names is None else scores.names, scored=False,
    ),
    "file": ScoreColumn(
        "the image file that was opened, if `image` is an id or another name",
        _file_names, scored=False,
    ),
    "caption": ScoreColumn("the caption", lambda scores: scores.captions, scored=False),
    "method": ScoreColumn(
        "the decoder, as given; each of several has its own row",
        lambda scores: None, "word", scored=False,
    ),
    "score": ScoreColumn("the score", _number("value"), "number"),
    "raw": ScoreColumn(
        "the answer of greedy decoding",
        _number("raw"), "number",
    ),
    "smoothing": ScoreColumn(
        "the mean of the answers under the model's probabilities",
        _number("smoothing"), "number",
    ),
    "bound": ScoreColumn(
        "the largest possible error of the score: for a truncated row, because of missing answers; "
        "for a sampled row, because of answers that were never drawn (95 %)",
        _number("bound"), "number",
    ),
    "stderr": ScoreColumn(
        "for a sampled row, the standard error of the score", _number("stderr"), "number"
    ),
    "people": ScoreColumn(
        "with `--calibration`, the mean rating that people give captions with such a score",
        lambda scores: None if scores.people is None else or_none(scores.people), "number",
    ),
    "low": ScoreColumn(
        "the lower bound of the interval of a person's rating",
        lambda scores: None if scores.low is None else or_none(scores.low), "number",
    ),
    "high": ScoreColumn(
        "its upper bound",
        lambda scores: None if scores.high is None else or_none(scores.high), "number",
    ),
    "other_score": ScoreColumn(
        "for a bimodal row, the score that a change of the log-probabilities by 0.05 could give it",
        lambda s: or_none(s.other) if s.other is not None and s.flags["bimodal"].any() else None,
        "number",
    ),
    "distribution": ScoreColumn(
        "probabilities of the scale's answers, lowest first, unless judged by sentence",
        lambda s: None if s.distribution is None else lists_or_none(s.distribution), "numbers",
    ),
    "sentences": ScoreColumn(
        "the number of sentences, if judged by sentence: score, raw and smoothing are then means "
        "(text after the 32nd is judged as one and weighted by its number of sentences)",
        _of_sentences(lambda each: len(each.texts)), "whole",
    ),
    "lowest_sentence": ScoreColumn(
        "the sentence with the lowest score",
        _of_sentences(lambda each: each.lowest[0]),
    ),
    "lowest_score": ScoreColumn(
        "the score of that sentence", _of_sentences(lambda each: each.lowest[1]), "number"
    ),
    "flags": ScoreColumn(
        "a list: failed, truncated, generated, cut, sampled, degenerate, bimodal, defused",
        _flags, "texts",
    ),
    "error": ScoreColumn(
        "the reason for a missing score",
        lambda scores: [scores.errors.get(row) for row in range(len(scores))],
    ),
    "signature": ScoreColumn(
        "model, prompt, decoder and options of this score",
        lambda scores: scores.signatures or [str(scores.signature)] * len(scores), "word",
        scored=False,
    ),
}  # fmt: skip
"""Every column, in the order of score files. Files have all of them."""


def or_none(values: Floats) -> list[float | None]:
    """Return (N,) numbers as a list, with None for NaN."""
    numbers: list[float | None] = values.tolist()
    for row in np.flatnonzero(np.isnan(values)).tolist():
        numbers[row] = None
    return numbers


def lists_or_none(values: Floats) -> list[list[float | None] | None]:
    """Return (N, K) numbers as lists, with None for NaN and for a row of nothing else."""
    rows: list[list[float | None] | None] = values.tolist()
    missing = np.isnan(values)
    for row in np.flatnonzero(missing.any(axis=1)).tolist():
        rows[row] = None if missing[row].all() else or_none(values[row])
    return rows


class Metric(Protocol):
    """Anything that scores pairs: a judge, or another metric."""

    @property
    def signature(self) -> Signature:
        """How its numbers are made."""

    @property
    def needs(self) -> frozenset[str]:
        """What it needs of a pair: "image", "references"."""

    def score_pairs(
        self,
        pairs: Sequence[Pair],
        *,
        repeats: Sequence[int] | None = None,
        progress: Progress | None = None,
    ) -> Scores:
        """Score N pairs, in order.

        Args:
            pairs: The pairs, each once.
            repeats: (N,) how often each was judged, for a metric that counts words over the whole
                set (CIDEr); once if None.
            progress: Called with the number of pairs just done.
        """
