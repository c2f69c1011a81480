"""Readings: the log-probabilities that a model gave the answers, before any decoding."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discode.arrays import as_numpy, is_array
from discode.errors import InputError
from discode.prompts import Prompt
from discode.scales import Scale

Floats = NDArray[np.float64]

POSITIVE_TOLERANCE = 1e-4
"""A log-probability may exceed 0 by this much: float32 log-softmax rounds."""
SUM_TOLERANCE = 0.02
"""The answers' probabilities may exceed 1 by this much: 16-bit log-probabilities round."""

# How tokenizers mark a space or a line break at the start of a token.
_SPACE_MARKS = " \t\r\n▁ĠĊ"


@dataclass(frozen=True)
class Identity:
    """Who answered: a model, its revision, and the type it computed in."""

    model: str
    revision: str = "none"
    dtype: str = "none"


@dataclass(frozen=True)
class Origin:
    """Whom a judge asked for readings, and how, for the signature of what is made of them.

    Attributes:
        identity: The model.
        prompt: What it was asked with.
        references: Whether the pairs had references: "all", "some", "none", or "ignored" where
            the model takes none.
        trust: The decoder's weight that the model advises; None where it advises none.
    """

    identity: Identity
    prompt: Prompt
    references: str
    trust: float | None = None


@dataclass(frozen=True, eq=False)
class Readings:
    """N readings on one scale with B stems and K answers.

    All logarithms are natural and of **full-vocabulary** probabilities, so the mass that is
    missing to 1 lies off the scale. NaN, never 0, is where nothing was read.

    Attributes:
        scale: The scale that was asked for.
        answer_logp: (N, B, K) log P(answer | stem).
        stem_logp: (N, B) log P(stem), the whole stem; NaN where only one stem was read.
        lead_logp: (N, B) log P of the stem's first token alone ('0', '1'), which FLEUR's
            rule for 1.0 needs; where it is None, ``stem_logp`` is used instead.
        second_logp: (N, K) log P(second decimal), where one was generated.
        truncated: (N,) whether the source left out answers (only its top tokens were seen).
        how: (N,) "forced" (the stem was given), "generated" (the model wrote it), or "cut"
            (forced, and the caption was longer than the model reads).
        hidden: (N, D) last hidden state h_T at the answer after the likelier stem.
        head: (K, D) rows of the output head for the answers; ``bias`` (K,).
        errors: Row number to the reason why there is no reading.
        origin: Who was asked, where a judge read them.

    >>> from discode.scales import TEN
    >>> import numpy as np
    >>> readings = Readings.of(np.log(np.full(10, 0.1)), TEN)
    >>> len(readings), readings.answer_logp.shape
    (1, (1, 1, 10))
    """

    scale: Scale
    answer_logp: Floats
    stem_logp: Floats
    lead_logp: Floats | None = None
    second_logp: Floats | None = None
    truncated: NDArray[np.bool_] | None = None
    how: NDArray[np.str_] | None = None
    hidden: NDArray[np.float32] | None = None
    head: NDArray[np.float32] | None = None
    bias: NDArray[np.float32] | None = None
    errors: Mapping[int, str] = field(default_factory=dict)
    origin: Origin | None = None

    def __post_init__(self) -> None:
        scale, n = self.scale, len(self.answer_logp)
        b, k = len(scale.stems), len(scale.answers)
        for name, shape in (
            ("answer_logp", (n, b, k)),
            ("stem_logp", (n, b)),
            ("lead_logp", (n, b)),
            ("second_logp", (n, k)),
        ):
            if getattr(self, name) is not None:
                _freeze(self, name, shape, np.float64)
                _check_logp(getattr(self, name), name)
        _check_sum(self.answer_logp, "answers'")
        _check_sum(self.stem_logp[:, None], "stems'")
        if self.truncated is None:
            object.__setattr__(self, "truncated", np.zeros(n, bool))
        if self.how is None:
            object.__setattr__(self, "how", np.full(n, "forced"))
        _freeze(self, "truncated", (n,), np.bool_)
        _freeze(self, "how", (n,), np.str_)
        if self.hidden is not None:
            if self.head is None:
                raise InputError(
                    "readings with hidden states also need the head's rows of the answers"
                )
            d = self.hidden.shape[-1]
            if self.bias is None:
                object.__setattr__(self, "bias", np.zeros(k, np.float32))
            _freeze(self, "hidden", (n, d), np.float32)
            _freeze(self, "head", (k, d), np.float32)
            _freeze(self, "bias", (k,), np.float32)

    def __len__(self) -> int:
        return len(self.answer_logp)

    def take(self, rows: Sequence[int] | NDArray[np.intp]) -> Readings:
        """Return the given rows, in the given order."""
        rows = np.asarray(rows, dtype=np.intp)

        def pick(array: NDArray[Any] | None) -> Any:
            return None if array is None else array[rows]

        return Readings(
            self.scale,
            self.answer_logp[rows],
            self.stem_logp[rows],
            lead_logp=pick(self.lead_logp),
            second_logp=pick(self.second_logp),
            truncated=pick(self.truncated),
            how=pick(self.how),
            hidden=pick(self.hidden),
            head=self.head,
            bias=self.bias,
            errors={
                i: self.errors[row] for i, row in enumerate(rows.tolist()) if row in self.errors
            },
            origin=self.origin,
        )

    @classmethod
    def failed(cls, scale: Scale, reasons: Sequence[str]) -> Readings:
        """Return one NaN row per reason."""
        n, b, k = len(reasons), len(scale.stems), len(scale.answers)
        return cls(
            scale,
            np.full((n, b, k), np.nan),
            np.full((n, b), np.nan),
            errors=dict(enumerate(reasons)),
        )

    @classmethod
    def concat(
        cls, scale: Scale, parts: Sequence[Readings], origin: Origin | None = None
    ) -> Readings:
        """Join readings on one scale; what only some parts have is NaN in the others.

        Hidden states are kept when every part has them (they share one head), and so is an origin
        that all parts share; ``origin`` replaces it.
        """
        parts = [part for part in parts if len(part)]
        if not parts:
            return replace(cls.failed(scale, []), origin=origin)
        origins = {part.origin for part in parts}
        k, b = len(scale.answers), len(scale.stems)

        def join(name: str, width: int) -> Any:
            arrays = [getattr(part, name) for part in parts]
            if all(array is None for array in arrays):
                return None
            return np.concatenate(
                [
                    np.full((len(part), width), np.nan) if array is None else array
                    for part, array in zip(parts, arrays, strict=True)
                ]
            )

        starts = np.cumsum([0] + [len(part) for part in parts]).tolist()
        # A failed row has no hidden state: it is NaN, as everywhere.
        heads = [part for part in parts if part.hidden is not None]
        with_hidden = bool(heads) and all(
            part.hidden is not None or len(part.errors) == len(part) for part in parts
        )
        return cls(
            scale,
            np.concatenate([part.answer_logp for part in parts]),
            np.concatenate([part.stem_logp for part in parts]),
            lead_logp=join("lead_logp", b),
            second_logp=join("second_logp", k),
            truncated=np.concatenate([np.asarray(part.truncated) for part in parts]),
            how=np.concatenate([np.asarray(part.how) for part in parts]),
            hidden=join("hidden", len(np.asarray(heads[0].head).T)) if with_hidden else None,
            head=heads[0].head if with_hidden else None,
            bias=heads[0].bias if with_hidden else None,
            errors={
                start + row: reason
                for start, part in zip(starts, parts, strict=False)
                for row, reason in part.errors.items()
            },
            origin=origins.pop() if origin is None and len(origins) == 1 else origin,
        )

    @classmethod
    def of(cls, log_probs: Any, scale: Scale, *, missing: str = "nan") -> Readings:
        """Build readings from anyone's log-probabilities of the answers.

        ``log_probs`` is an array or tensor (K,) or (N, K), a mapping of tokens to
        log-probabilities, OpenAI's list of ``{"token": ..., "logprob": ...}``, or a sequence of
        either. On the ``unit`` scale they are the digits after "0.". Spellings of one answer
        (" 7", "▁7", "7") are added up.

        An answer that a mapping lacks makes the row NaN (``missing="nan"``), or the mass that
        the row leaves is spread evenly over the answers it lacks, none above the smallest
        probability given, and the row is flagged truncated (``missing="spread"``).

        >>> from discode.scales import FIVE
        >>> row = {"5": -0.4, " 5": -3.0, "4": -2.0, "3": -4.0, "1": -9.0, "the": -7.0}
        >>> Readings.of(row, FIVE).errors
        {0: "no log-probability for '2'; ask for more, or set missing to 'spread' to estimate it"}
        >>> readings = Readings.of(row, FIVE, missing="spread")
        >>> readings.answer_logp[0, 0].round(2).tolist(), readings.truncated.tolist()
        ([-9.0, -9.0, -4.0, -2.0, -0.33], [True])
        """
        if missing not in ("nan", "spread"):
            raise InputError(f"missing={missing!r} is not allowed; allowed: 'nan', 'spread'")
        if _is_token_row(log_probs):
            log_probs = [log_probs]
        if isinstance(log_probs, Sequence) and log_probs and _is_token_row(log_probs[0]):
            return cls._of_tokens(log_probs, scale, missing)
        try:
            if isinstance(log_probs, np.ma.MaskedArray):
                refuse_complex(log_probs)
                log_probs = np.ma.filled(log_probs.astype(np.float64), np.nan)
            elif is_array(log_probs):
                log_probs = as_numpy(log_probs)
            elif isinstance(log_probs, Sequence) and any(map(is_array, log_probs)):
                log_probs = [as_numpy(row) if is_array(row) else row for row in log_probs]
            refuse_complex(log_probs)
            rows = np.atleast_2d(np.asarray(log_probs, dtype=np.float64))
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(
                f"log-probabilities must be numbers, {len(scale.answers)} per row: {error}"
            ) from None
        if rows.size == 0:
            raise InputError("no log-probabilities given; pass at least one row")
        if rows.ndim != 2 or rows.shape[1] != len(scale.answers):
            raise InputError(
                f"log-probabilities of shape {rows.shape} do not fit scale {scale.name!r}, which "
                f"has {len(scale.answers)} answers ({scale.answers[0]} ... {scale.answers[-1]})"
            )
        return cls._after_first_stem(scale, rows)

    @classmethod
    def _of_tokens(cls, rows: Sequence[Any], scale: Scale, missing: str) -> Readings:
        logp, truncated, errors = [], [], {}
        for number, row in enumerate(rows):
            try:
                if not _is_token_row(row):
                    raise InputError(f"expected a mapping of tokens, got {type(row)}")
                values, absent = _answers_of(row, scale)
            except InputError as error:
                raise InputError(f"{_row(number, rows)}{error}") from None
            if absent and (missing == "nan" or len(absent) == len(values)):
                errors[number] = absent_answers(absent, len(values))
                values = [math.nan] * len(values)
            elif absent:
                given = np.array([_logp(token, value) for token, value in _token_items(row)])
                left = max(1 - float(np.exp(given).sum()), 0.0) / len(absent)
                fill = min(float(given.min()), math.log(left) if left else -math.inf)
                values = [fill if math.isnan(v) else v for v in values]
            logp.append(values)
            truncated.append(bool(absent))
        return cls._after_first_stem(
            scale, np.array(logp), truncated=np.array(truncated), errors=errors
        )

    @classmethod
    def _after_first_stem(cls, scale: Scale, rows: Floats, **rest: Any) -> Readings:
        n, k = rows.shape
        answers = rows[:, None, :]
        if len(scale.stems) > 1:
            answers = np.full((n, len(scale.stems), k), np.nan)
            answers[:, 0] = rows
        return cls(scale, answers, np.full((n, len(scale.stems)), np.nan), **rest)


class ReadingsCollector:
    """Collects readings that come in blocks and in any order, and returns them in row order.

    >>> from discode.scales import TEN
    >>> collector = ReadingsCollector(TEN, 3)
    >>> collector.add(Readings.failed(TEN, ["late"]), [[2]])
    >>> collector.add(Readings.failed(TEN, ["twice"]), [[0, 1]])
    >>> collector.readings().errors
    {0: 'twice', 1: 'twice', 2: 'late'}
    """

    def __init__(self, scale: Scale, rows: int, origin: Origin | None = None) -> None:
        self._scale, self._blocks, self._filled = scale, list[Readings](), 0
        self._origin = origin
        self._place = np.zeros(rows, np.intp)

    def add(self, block: Readings, owners: Sequence[int | Sequence[int]]) -> None:
        """Take a block; its row i is for the row, or for the rows, ``owners[i]``."""
        for row, numbers in enumerate(owners):
            self._place[numbers] = self._filled + row
        self._blocks.append(block)
        self._filled += len(block)

    def readings(self) -> Readings:
        """Return all rows in order."""
        return Readings.concat(self._scale, self._blocks, self._origin).take(self._place)


def absent_answers(absent: Sequence[str], answers: int) -> str:
    """Return why a row that lacks some of a scale's answers has no reading."""
    names = ", ".join(map(repr, absent))
    if len(absent) == answers:
        return f"none of the answers {names} is among the tokens given"
    return (
        f"no log-probability for {names}; ask for more, or set missing to 'spread' to estimate it"
    )


def _freeze(readings: Readings, name: str, shape: tuple[int, ...], dtype: Any) -> None:
    """Check an array's shape and keep a read-only copy: what was checked stays as it was."""
    array = np.array(getattr(readings, name), dtype=None if dtype is np.str_ else dtype)
    if array.shape != shape:
        raise InputError(
            f"{name} has shape {array.shape}; scale {readings.scale.name!r} needs {shape}"
        )
    array.setflags(write=False)
    object.__setattr__(readings, name, array)


def _check_logp(array: Floats, name: str) -> None:
    if array.size and np.fmax.reduce(array, axis=None) > POSITIVE_TOLERANCE:
        row = int(np.argwhere(array > POSITIVE_TOLERANCE)[0][0])
        worst = float(np.nanmax(array[row]))
        raise InputError(
            f"{_row(row, array)}{name} contains {worst:.4g}; log-probabilities are at most 0 "
            "(take log_softmax of logits, the logarithm of probabilities)"
        )


def _check_sum(logp: Floats, whose: str) -> None:
    total = np.zeros(logp.shape[:2])
    for k in range(logp.shape[2]):
        total += np.exp(logp[:, :, k])
    if logp.size and np.fmax.reduce(total, axis=None) > 1 + SUM_TOLERANCE:
        row = int(np.argwhere(total > 1 + SUM_TOLERANCE)[0][0])
        most = float(np.nanmax(total[row]))
        raise InputError(
            f"{_row(row, total)}the {whose} probabilities add up to {most:.4g}, more "
            "than 1 (take log_softmax over the whole vocabulary, natural logarithm)"
        )


def _row(number: int, array: Floats | Sequence[Any]) -> str:
    return f"row {number}: " if len(array) > 1 else ""


def _is_token_row(row: Any) -> bool:
    if isinstance(row, Mapping):
        return True
    return (
        isinstance(row, Sequence)
        and not isinstance(row, str)
        and len(row) > 0
        and all(isinstance(item, Mapping) and {"token", "logprob"} <= item.keys() for item in row)
    )


def _token_items(row: Any) -> list[tuple[Any, Any]]:
    """Return a row's tokens and log-probabilities; OpenAI's list form included."""
    if isinstance(row, Mapping):
        return list(row.items())
    return [(item["token"], item["logprob"]) for item in row]


def refuse_complex(values: Any) -> None:
    """Raise TypeError for complex numbers of numpy, which would lose their imaginary part.

    >>> refuse_complex(np.array([1j]))
    Traceback (most recent call last):
    TypeError: complex numbers
    """
    if isinstance(values, np.ndarray | np.generic | Sequence) and np.iscomplexobj(values):
        raise TypeError("complex numbers")


def _logp(token: Any, value: Any) -> float:
    try:
        number = as_numpy(value) if is_array(value) else value
        refuse_complex(number)
        logp = float(number)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"token {token!r}: {value!r} is not a log-probability") from None
    if logp > POSITIVE_TOLERANCE:
        raise InputError(f"token {token!r} has {logp:.4g}; log-probabilities are at most 0")
    return logp


def _answers_of(row: Any, scale: Scale) -> tuple[list[float], list[str]]:
    """Return the answers' log-probabilities (NaN where absent) and the absent answers."""
    found: dict[str, list[float]] = {answer: [] for answer in scale.answers}
    for token, value in _token_items(row):
        if (answer := str(token).strip(_SPACE_MARKS)) in found:
            found[answer].append(_logp(token, value))
    with np.errstate(invalid="ignore"):  # NaN stays NaN
        values = [
            float(np.logaddexp.reduce(logps)) if logps else math.nan for logps in found.values()
        ]
    return values, [answer for answer, logps in found.items() if not logps]
