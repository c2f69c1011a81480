"""Readings: the log-probabilities that a model gave the answers, before any decoding."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from discode._arrays import as_numpy, is_array
from discode._prompts import Prompt
from discode._scales import Scale
from discode.errors import InputError

Floats = NDArray[np.float64]

POSITIVE_TOLERANCE = 1e-4
"""A log-probability may exceed 0 by this much: float32 log-softmax rounds."""
SUM_TOLERANCE = 0.02
"""The answers' probabilities may exceed 1 by this much: 16-bit log-probabilities round."""

# How tokenizers mark a space or a line break at the start of a token.
_SPACE_MARKS = " \t\r\n▁ĠĊ"


class ReadingColumn(NamedTuple):
    """One column of readings: its name, its axes, its type, and what stands where nothing is.

    The axes are "n" (rows), "b" (stems), "k" (answers) and "d" (the width of hidden states).
    """

    name: str
    axes: str
    dtype: type[np.generic]
    empty: object = math.nan
    optional: bool = False


COLUMNS = (
    ReadingColumn("answer_logp", "nbk", np.float64),
    ReadingColumn("stem_logp", "nb", np.float64),
    ReadingColumn("lead_logp", "nb", np.float64, optional=True),
    ReadingColumn("second_logp", "nk", np.float64, optional=True),
    ReadingColumn("truncated", "n", np.bool_, False),
    ReadingColumn("how", "n", np.str_, "forced"),
    ReadingColumn("hidden", "nd", np.float32, optional=True),
    ReadingColumn("head", "kd", np.float32, optional=True),
    ReadingColumn("bias", "k", np.float32, optional=True),
)
"""The columns of readings, in the order in which they are stored."""
ROW_COLUMNS = tuple(column for column in COLUMNS if column.axes[0] == "n")
"""Those that have a value for each reading."""


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
        by: What was asked about: "caption", "sentence", or sentences where needed ("auto").
    """

    identity: Identity
    prompt: Prompt
    references: str
    by: str
    samples: int = 0


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
        how: (N,) "forced" (read directly after the prompt or a given stem), "generated" (the model
            wrote the rating itself, or words before it), or "cut" (forced, and the caption was
            longer than the model reads).
        hidden: (N, D) last hidden state h_T at the answer after the likelier stem.
        head: (K, D) rows of the output head for the answers; ``bias`` (K,).
        errors: Row number to the reason why there is no reading.
        origin: Who was asked, where a judge read them.
        sentences: Row number to the readings of the caption's sentences, where it is judged by
            them; :class:`~discode.Scores` are made of those then. The row itself is the reading
            of the whole caption, cut, or has none.

    >>> from discode._scales import TEN
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
    sentences: Mapping[int, SentenceReadings] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sizes = {"n": len(self.answer_logp), **_sizes(self.scale)}
        if self.hidden is None:
            object.__setattr__(self, "head", None)
            object.__setattr__(self, "bias", None)
        else:
            if self.head is None:
                raise InputError(
                    "readings with hidden states also need the head's rows of the answers"
                )
            sizes["d"] = self.hidden.shape[-1]
            if self.bias is None:
                object.__setattr__(self, "bias", np.zeros(sizes["k"], np.float32))
        for column in COLUMNS:
            array = getattr(self, column.name)
            if array is None and column.optional:
                continue
            shape = tuple(sizes[axis] for axis in column.axes)
            # A read-only copy: what was checked stays as it was.
            array = np.full(shape, column.empty) if array is None else np.array(array, column.dtype)
            if array.shape != shape:
                raise InputError(
                    f"{column.name} has shape {array.shape}; scale {self.scale.name!r} needs "
                    f"{shape}"
                )
            array.setflags(write=False)
            object.__setattr__(self, column.name, array)
            if column.name.endswith("_logp"):
                _check_logp(array, column.name)
        _check_sum(self.answer_logp, "answers'")
        _check_sum(self.stem_logp[:, None], "stems'")

    @classmethod
    def _trusted(
        cls,
        scale: Scale,
        columns: Mapping[str, NDArray[Any] | None],
        errors: Mapping[int, str],
        origin: Origin | None = None,
        sentences: Mapping[int, SentenceReadings] | None = None,
    ) -> Readings:
        """Return readings made of checked ones, which are not checked again."""
        readings = object.__new__(cls)
        for array in columns.values():
            if array is not None:
                array.setflags(write=False)
        more = {"errors": errors, "origin": origin, "sentences": sentences or {}}
        readings.__dict__.update(columns, scale=scale, **more)
        return readings

    def __len__(self) -> int:
        return len(self.answer_logp)

    def take(self, rows: Sequence[int] | NDArray[np.intp]) -> Readings:
        """Return the given rows, in the given order."""
        rows = np.asarray(rows, dtype=np.intp)
        columns = {column.name: getattr(self, column.name) for column in COLUMNS}
        for column in ROW_COLUMNS:
            if columns[column.name] is not None:
                columns[column.name] = columns[column.name][rows]
        known, places = self.sentences, list(enumerate(rows.tolist()))
        errors = {place: self.errors[row] for place, row in places if row in self.errors}
        sentences = {place: known[row] for place, row in places if row in known}
        return self._trusted(self.scale, columns, errors, self.origin, sentences)

    @classmethod
    def failed(cls, scale: Scale, reasons: Sequence[str]) -> Readings:
        """Return one NaN row per reason."""
        sizes = {"n": len(reasons), **_sizes(scale)}
        columns = {
            column.name: None
            if column.optional
            else np.full([sizes[axis] for axis in column.axes], column.empty)
            for column in COLUMNS
        }
        return cls._trusted(scale, columns, dict(enumerate(reasons)))

    @classmethod
    def concat(
        cls, scale: Scale, parts: Sequence[Readings], origin: Origin | None = None
    ) -> Readings:
        """Join readings on one scale; what only some parts have is NaN in the others.

        Hidden states are kept when every part has them (they share one head), and so is an origin
        that all parts share; ``origin`` replaces it.
        """
        parts = [part for part in parts if len(part)] or [cls.failed(scale, [])]
        if origin is None and len({part.origin for part in parts}) == 1:
            origin = parts[0].origin
        # A failed row has no hidden state: it is NaN, as everywhere.
        heads = [part for part in parts if part.hidden is not None]
        if any(part.hidden is None and len(part.errors) < len(part) for part in parts):
            heads = []
        columns: dict[str, NDArray[Any] | None] = {
            column.name: getattr(heads[0], column.name) if heads else None for column in COLUMNS
        }
        for column in ROW_COLUMNS:
            if column.name == "hidden" and not heads:
                continue
            arrays = [getattr(part, column.name) for part in parts]
            shape = next((array.shape[1:] for array in arrays if array is not None), None)
            columns[column.name] = None
            if shape is not None:
                columns[column.name] = np.concatenate(
                    [
                        np.full((len(part), *shape), np.nan, column.dtype)
                        if array is None
                        else array
                        for part, array in zip(parts, arrays, strict=True)
                    ]
                )
        starts = np.cumsum([0] + [len(part) for part in parts]).tolist()
        errors, sentences = dict[int, str](), dict[int, SentenceReadings]()
        for start, part in zip(starts, parts, strict=False):
            errors |= {start + row: reason for row, reason in part.errors.items()}
            sentences |= {start + row: known for row, known in part.sentences.items()}
        return cls._trusted(scale, columns, errors, origin, sentences)

    @classmethod
    def of(cls, log_probs: Any, scale: Scale, *, missing: str = "nan") -> Readings:
        """Build readings from anyone's log-probabilities of the answers.

        ``log_probs`` is an array or tensor (K,) or (N, K), a mapping of tokens to
        log-probabilities, OpenAI's list of ``{"token": ..., "logprob": ...}``, or a sequence of
        either. On the ``unit`` scale they are the digits after "0.". Spellings of one answer
        (" 7", "▁7", "7") are added up.

        An answer missing from a mapping makes the row NaN (``missing="nan"``), or the remaining
        mass of the row is spread evenly over its missing answers, none above the smallest
        probability given, and the row is flagged truncated (``missing="spread"``).

        >>> from discode._scales import FIVE
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
                sent = np.array([_logp(token, value) for token, value in _token_items(row)])
                left = max(1 - float(np.exp(sent).sum()), 0.0) / len(absent)
                fill = min(float(sent.min()), math.log(left) if left else -math.inf)
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


class SentenceReadings(NamedTuple):
    """The sentences of a caption, and the reading of each."""

    texts: tuple[str, ...]
    readings: Readings


class ReadingsCollector:
    """Collects readings that come in blocks and in any order, and returns them in row order.

    >>> from discode._scales import TEN
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

    def add(self, block: Readings, owners: Sequence[int] | Sequence[Sequence[int]]) -> None:
        """Take a block; its row i is for the row, or for the rows, ``owners[i]``."""
        rows = np.arange(self._filled, self._filled + len(owners))
        if len(owners) and isinstance(owners[0], Sequence):
            groups = cast("Sequence[Sequence[int]]", owners)
            self._place[list(chain.from_iterable(groups))] = rows.repeat(list(map(len, groups)))
        else:
            self._place[np.asarray(owners, np.intp)] = rows
        self._blocks.append(block)
        self._filled += len(block)

    def readings(self) -> Readings:
        joined = Readings.concat(self._scale, self._blocks, self._origin)
        in_order = np.array_equal(self._place, np.arange(len(joined)))
        return joined if in_order else joined.take(self._place)


def absent_answers(absent: Sequence[str], answers: int) -> str:
    names = ", ".join(map(repr, absent))
    if len(absent) == answers:
        return f"none of the answers {names} is among the tokens given"
    return (
        f"no log-probability for {names}; ask for more, or set missing to 'spread' to estimate it"
    )


def _sizes(scale: Scale) -> dict[str, int]:
    return {"b": len(scale.stems), "k": len(scale.answers)}


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
    spellings: dict[str, list[float]] = {answer: [] for answer in scale.answers}
    for token, value in _token_items(row):
        if (answer := str(token).strip(_SPACE_MARKS)) in spellings:
            spellings[answer].append(_logp(token, value))
    with np.errstate(invalid="ignore"):  # NaN stays NaN
        values = [
            float(np.logaddexp.reduce(logps)) if logps else math.nan for logps in spellings.values()
        ]
    return values, [answer for answer, logps in spellings.items() if not logps]
