"""Options of decoders: each is declared once, and all that is said about it follows from that.

    sigma2: float = option(0.1, "variance σ² in α = N(s_raw; μ, σ²)", POSITIVE)

is checked when a decoder is made, listed by ``discode methods``, described in the class's
docstring, and written into signatures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any, Protocol, TypeVar

from discode.errors import InputError, suggest

C = TypeVar("C", bound=type)


class ValueRange(Protocol):
    """Values too many to list, e.g. numbers above 0."""

    @property
    def text(self) -> str:
        """What the values are called in messages."""

    def convert(self, value: object) -> object:
        """Return the value in the type that the decoder computes with; None if it is outside."""


@dataclass(frozen=True)
class Numbers:
    """Finite numbers that ``holds`` accepts; ``whole`` asks for integers."""

    text: str
    holds: Callable[[float], bool]
    whole: bool = False

    def convert(self, value: object) -> float | int | None:
        """Return ``value`` as a float or an int (numpy's numbers included); None if outside."""
        if isinstance(value, bool) or not isinstance(value, Integral if self.whole else Real):
            return None
        try:
            number = int(value) if isinstance(value, Integral) and self.whole else float(value)
        except OverflowError:
            return None
        return number if math.isfinite(number) and self.holds(number) else None


class _LowHigh:
    """A pair (low, high) with 0 <= low <= high."""

    text = "low:high with 0 <= low <= high"

    def convert(self, value: object) -> tuple[float, float] | None:
        """Return ``value`` as a pair of floats; None if it is something else."""
        if not isinstance(value, tuple) or len(value) != 2:
            return None
        low, high = (NUMBER.convert(bound) for bound in value)
        return (low, high) if low is not None and high is not None and 0 <= low <= high else None


NUMBER = Numbers("a number", lambda x: True)
POSITIVE = Numbers("a number above 0", lambda x: x > 0)
NON_NEGATIVE = Numbers("a number from 0", lambda x: x >= 0)
FRACTION = Numbers("a number from 0 to 1", lambda x: 0 <= x <= 1)
COUNT = Numbers("a whole number from 0", lambda x: x >= 0, whole=True)
LOW_HIGH = _LowHigh()


@dataclass(frozen=True)
class DecoderOption:
    """What is known about one option of a decoder.

    Attributes:
        name: The field's name.
        default: Its value where none is given.
        about: What it does, in one line.
        allowed: The words, True, False, None and ranges that it accepts.
        when: The option counts only where these other options have one of these values.
    """

    name: str
    default: object
    about: str
    allowed: tuple[str | bool | ValueRange | None, ...]
    when: Mapping[str, tuple[object, ...]] = field(hash=False)

    @property
    def allowed_text(self) -> str:
        """The values it accepts, as they are written after a method's name."""
        return ", ".join(
            option_text(value) if isinstance(value, str | bool | None) else value.text
            for value in self.allowed
        )

    def convert(self, value: object) -> object:
        """Return ``value`` as the decoder keeps it, or say what is allowed."""
        words = [word for word in self.allowed if isinstance(word, str)]
        if isinstance(value, str) and value in words:
            return value
        for allowed in self.allowed:
            if value is allowed:
                return value
            if not isinstance(allowed, str | bool | None):
                converted = allowed.convert(value)
                if converted is not None:
                    return converted
        if value is None and "none" in words:  # the word "none", as parse_options reads it
            return "none"
        hint = suggest(value, words) if isinstance(value, str) else ""
        raise InputError(
            f"{self.name}={value!r} is not allowed{hint or ';'} allowed: {self.allowed_text}"
        )


def option(
    default: object,
    about: str,
    *allowed: str | bool | ValueRange | None,
    when: Mapping[str, tuple[object, ...]] | None = None,
) -> Any:
    """Declare a decoder's option: the field of a dataclass; see :class:`DecoderOption`."""
    return field(default=default, metadata={"about": about, "allowed": allowed, "when": when or {}})


def options_of(decoder: type | object) -> tuple[DecoderOption, ...]:
    """Return the options of a decoder, or of a class of decoders.

    >>> from discode.decoders import Discode
    >>> first = options_of(Discode)[0]
    >>> first.name, first.default, first.allowed_text
    ('reading', 'graded', 'graded, greedy, joint')
    """
    return tuple(
        DecoderOption(declared.name, declared.default, **declared.metadata)
        for declared in fields(decoder)  # type: ignore[arg-type]  # decoders are dataclasses
        if "about" in declared.metadata
    )


def with_options_documented(decoder: C) -> C:
    """Add what its options say about themselves to the docstring of a class of decoders."""
    lines = [
        f"        {row.name}: {row.about} ({row.allowed_text}; default {option_text(row.default)})."
        for row in options_of(decoder)
    ]
    decoder.__doc__ = "\n".join([(decoder.__doc__ or "").rstrip(), "", "    Options:", *lines])
    return decoder


class Configurable:
    """A dataclass whose fields are options: checked when it is made, listed for signatures."""

    def __post_init__(self) -> None:
        """Check every option, and keep each in the type that the decoder computes with."""
        for row in options_of(self):
            given = getattr(self, row.name)
            converted = row.convert(given)
            if converted is not given:
                object.__setattr__(self, row.name, converted)

    def options(self) -> dict[str, object]:
        """Return every option that shapes the result, for the signature."""
        values = {row.name: getattr(self, row.name) for row in options_of(self)}
        return {
            row.name: values[row.name]
            for row in options_of(self)
            if all(values[other] in wanted for other, wanted in row.when.items())
        }


def parse_options(text: str) -> dict[str, Any]:
    """Parse ``key=value,key=value``; ``0:1`` is a pair, ``none`` is None.

    >>> parse_options("tau=alpha,alpha_clip=0:1,cross_entropy=false")
    {'tau': 'alpha', 'alpha_clip': (0.0, 1.0), 'cross_entropy': False}
    """
    options = {}
    for item in filter(None, text.split(",")):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not key:
            raise InputError(f"option {item!r} is not of the form key=value")
        if key in options:
            raise InputError(f"option {key!r} is given twice in {text!r}")
        options[key] = _parse_value(value)
    return options


def _parse_value(text: str) -> Any:
    words = {"none": None, "true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    try:
        if ":" in text:
            return tuple(float(part) for part in text.split(":"))
        return int(text) if text.isdigit() else float(text)
    except ValueError:
        return text


def options_text(options: Mapping[str, object]) -> str:
    """Return options as ``key=value,...``, sorted: what :func:`parse_options` reads.

    >>> options_text({"tau": 1.0, "alpha_clip": (0.0, 1.0), "order": None})
    'alpha_clip=0:1,order=none,tau=1'
    """
    return ",".join(f"{name}={option_text(value)}" for name, value in sorted(options.items()))


def option_text(value: object) -> str:
    """Return an option's value as it is written after a method's name.

    >>> option_text((0.0, 1.0)), option_text(None), option_text(0.001)
    ('0:1', 'none', '0.001')
    """
    if isinstance(value, tuple):
        return ":".join(map(option_text, value))
    return f"{value:.12g}" if isinstance(value, float) else str(value).lower()
