"""Scores with everything that explains them, and the protocol of whatever makes them."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discode._pairs import Pair
from discode._sentences import sentence_weights
from discode._signature import Signature
from discode.decoders import Decoder
from discode.decoders._base import decode_checked
from discode.decoders._bounds import truncation_bound
from discode.errors import InputError, count_of, require
from discode.readings import Readings, SentenceReadings
from discode.stats import ClusteredMean, Interval

Floats = NDArray[np.float64]

LISTS = ("images", "captions", "sentences")
"""The columns of scores that are no numbers."""
SENTENCE_COLUMNS = ("sentences", "lowest_sentence", "lowest_score")
"""What a table says of captions that were judged by their sentences."""
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
        bound: (N,) how wrong a score may be because a server left answers out; None where no
            row is truncated.
        other: (N,) for "bimodal" rows the score that a change of the log-probabilities by 0.05
            could make of theirs; NaN for the others.
        images: What each image is called, "" where it has no name; None where that is not known.
        captions: The captions, likewise.
        sentences: For each caption its sentences with their scores, of which ``value``, ``raw`` and
            ``smoothing`` are the means (what follows the 32nd is judged as one text, and weighs as
            many as it holds), or None where it was judged whole; None where all were.
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

    @classmethod
    def build(
        cls,
        decoder: Decoder,
        readings: Readings,
        signature: Signature,
        flags: Mapping[str, NDArray[np.bool_]] | None = None,
        pairs: Sequence[Pair] | None = None,
    ) -> Scores:
        """Join what a decoder makes with what the readings, and the pairs, tell about each row."""
        decoded, infinite = decode_checked(decoder, readings)
        if pairs is not None and len(pairs) != len(decoded.score):
            raise InputError(f"{len(decoded.score)} readings are not those of {len(pairs)} pairs")
        failed = np.isnan(decoded.score)
        errors = {**infinite, **readings.errors}
        for row in np.flatnonzero(failed).tolist():
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
                "truncated": np.asarray(readings.truncated),
                "generated": np.asarray(readings.how) == "generated",
                "cut": np.asarray(readings.how) == "cut",
                "degenerate": decoded.degenerate,
                "bimodal": np.zeros(len(failed), bool)
                if decoded.other is None
                else np.isfinite(decoded.other),
                **(flags or {}),
            },
            errors,
            truncation_bound(decoder, readings) if np.any(readings.truncated) else None,
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
            for name in ("distribution", "plain", "other")
        }
        for column in emptied.values():
            if column is not None:
                column[[*parts]] = np.nan
        if means["bound"] is None and scores.bound is not None:
            means["bound"] = np.zeros(len(self))
        flags = {name: np.array(marks) for name, marks in self.flags.items()}
        errors = {row: reason for row, reason in self.errors.items() if row not in parts}
        sentences: list[SentenceScores | None] = [None] * len(self)
        start = 0
        for row, (texts, _) in parts.items():
            rows = np.arange(start, start + len(texts))
            start += len(texts)
            weights = sentence_weights(texts)
            for name, column in means.items():
                if column is not None:
                    values = getattr(scores, name)
                    column[row] = (
                        0.0 if values is None else np.average(values[rows], weights=weights)
                    )
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
        errors = {
            new: self.errors[old] for new, old in enumerate(rows.tolist()) if old in self.errors
        }
        return self._moved(lambda column, empty: column[rows], errors)

    def _moved(self, move: Callable[[Any, Any], Any], errors: Mapping[int, str]) -> Scores:
        """Return what ``move(column, empty)`` makes of every column; ``empty`` is for new rows."""

        def moved(column: Any, empty: Any = math.nan) -> Any:
            return None if column is None else move(column, empty)

        def listed(column: tuple[Any, ...] | None, empty: str | None = "") -> Any:
            return None if column is None else tuple(move(np.array(column, object), empty))

        return replace(
            self,
            value=moved(self.value),
            raw=moved(self.raw),
            distribution=moved(self.distribution),
            flags={name: move(marks, name == "failed") for name, marks in self.flags.items()},
            errors=errors,
            bound=moved(self.bound),
            other=moved(self.other),
            plain=moved(self.plain),
            images=listed(self.images),
            captions=listed(self.captions),
            smoothing=moved(self.smoothing),
            sentences=listed(self.sentences, None),
        )

    def spread(self, places: Sequence[int], count: int, errors: Mapping[int, str]) -> Scores:
        """Return ``count`` rows, these at their ``places``; the others failed, with ``errors``."""

        def put(column: Any, empty: Any) -> Any:
            whole = np.full((count, *column.shape[1:]), empty, column.dtype)
            whole[np.asarray(places, np.intp)] = column
            return whole

        failed = {places[row]: why for row, why in self.errors.items()}
        return self._moved(put, {**errors, **failed})

    @staticmethod
    def join(parts: Sequence[Scores], places: Sequence[int]) -> Scores:
        """Return the rows of several in one; ``places`` are where they go, one part after another.

        >>> from discode._signature import Signature
        >>> one, two = (Scores(np.array(v), Signature(())) for v in ([0.1, 0.3], [0.2]))
        >>> Scores.join([one, two], [0, 2, 1]).value.tolist()
        [0.1, 0.2, 0.3]
        """
        errors, start = dict[int, str](), 0
        for part in parts:
            errors |= {start + row: why for row, why in part.errors.items()}
            start += len(part)

        def joined(name: str) -> Any:
            columns = [getattr(part, name) for part in parts]
            if all(column is None for column in columns):
                return None
            # A bound, and sentences, are there where they are needed.
            rows = zip(columns, map(len, parts), strict=True)
            if name in LISTS:
                return sum(((None,) * n if column is None else column for column, n in rows), ())
            empty = 0.0 if name == "bound" else math.nan
            return np.concatenate(
                [np.full(n, empty) if column is None else column for column, n in rows]
            )

        names = ("value", "raw", "smoothing", "distribution", "plain", "bound", "other", *LISTS)
        flags = {
            name: np.concatenate([part.flags[name] for part in parts]) for name in parts[0].flags
        }
        columns = {name: joined(name) for name in names}
        return replace(parts[0], **columns, flags=flags, errors=errors)._take(np.argsort(places))

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

        The arguments are those with which ``np.mean`` calls it, and say nothing.
        """
        if axis not in (None, 0, -1) or dtype is not None or out is not None:
            raise InputError("scores have one axis, and a float for a mean; use scores.value")
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
        names each row's image, by default ``self.images``; a row without a name counts as an image
        of its own. Below 30 images the interval is too narrow, and below three its bounds are NaN.

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
        """Return the rows as JSON-ready columns, None where a row has nothing.

        A metric that asks no model has neither ``raw`` nor ``smoothing`` nor ``distribution``,
        ``bound`` is there where a row is truncated, ``other_score`` where one is bimodal, and
        ``sentences``, ``lowest_sentence`` and
        ``lowest_score`` where one was judged by sentences; ``score``, ``flags`` and ``error``
        always are.
        """
        columns: dict[str, list[Any]] = {"score": or_none(self.value)}
        for name, values in (("raw", self.raw), ("smoothing", self.smoothing)):
            if values is not None:
                columns[name] = or_none(values)
        if self.distribution is not None:
            columns["distribution"] = lists_or_none(self.distribution)
        if self.bound is not None:
            columns["bound"] = or_none(self.bound)
        if self.other is not None and self.flags["bimodal"].any():
            columns["other_score"] = or_none(self.other)
        if self.sentences is not None:
            rows = [(each and len(each.texts), *(each.lowest if each else (None, None)))
                    for each in self.sentences]  # fmt: skip
            columns |= {name: [row[k] for row in rows] for k, name in enumerate(SENTENCE_COLUMNS)}
        flags: list[list[str]] = [[] for _ in range(len(self))]
        for name, marks in self.flags.items():
            for row in np.flatnonzero(marks).tolist():
                flags[row].append(name)
        return columns | {"flags": flags, "error": [self.errors.get(i) for i in range(len(self))]}

    def files(self, names: Sequence[str | None]) -> list[str | None]:
        """Return the image files that were opened; None where ``names`` (N,) name them already."""
        return [
            file if file and not file.endswith(name or "") else None
            for file, name in zip(self.images or [""] * len(self), names, strict=True)
        ]

    def rows(self, ids: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
        """Yield one JSON-ready dictionary per row: an id, and :meth:`columns`."""
        columns = {"id": list(map(str, range(len(self)))) if ids is None else ids, **self.columns()}
        for values in zip(*columns.values(), strict=True):
            yield dict(zip(columns, values, strict=True))

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame``: image and caption where known, and the columns of rows.

        The names are those of a score file (docs/output.md); every row has its signature.
        """
        columns: dict[str, Any] = {"image": self.images, "caption": self.captions}
        columns |= self.columns() | {"score": self.value, "signature": str(self.signature)}
        columns |= {"raw": self.raw, "smoothing": self.smoothing, "bound": self.bound}
        known = {name: column for name, column in columns.items() if column is not None}
        return require("pandas", "pandas").DataFrame(known, index=range(len(self)))


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
