"""Options: declared once by their owner; help, checks and signatures follow from that.

    sigma2: float = option(0.1, "variance σ² in α = N(s_raw; μ, σ²)", POSITIVE)

is a field of a dataclass. It is read from a command line ("0.1") as from Python (0.1), checked,
listed where options are listed, described in the class's docstring, and written into signatures.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any, Protocol, TypeVar

from discode.errors import InputError, UnknownNameError, suggest

C = TypeVar("C", bound=type)

_FLAGS = {True: ("true", "yes", "1", "on"), False: ("false", "no", "0", "off")}


class ValueRange(Protocol):
    """Values too many to list, e.g. numbers above 0."""

    @property
    def text(self) -> str:
        """What the values are called in messages."""

    def convert(self, value: object) -> object:
        """Return the value in the type that is computed with; None if it is outside."""


@dataclass(frozen=True)
class Numbers:
    """Finite numbers that ``holds`` accepts; ``whole`` asks for integers."""

    text: str
    holds: Callable[[float], bool]
    whole: bool = False

    def convert(self, value: object) -> float | int | None:
        """Return ``value`` as a float or an int (numpy's numbers included); None if outside."""
        try:
            if isinstance(value, str):
                value = int(value) if self.whole else float(value)
            if isinstance(value, bool) or not isinstance(value, Integral if self.whole else Real):
                return None
            number = int(value) if isinstance(value, Integral) and self.whole else float(value)
        except (OverflowError, ValueError):
            return None
        return number if math.isfinite(number) and self.holds(number) else None


class _LowHigh:
    """A pair (low, high) with 0 <= low <= high, on a command line 0:1."""

    text = "low:high with 0 <= low <= high"

    def convert(self, value: object) -> tuple[float, float] | None:
        """Return ``value`` as a pair of floats; None if it is something else."""
        if isinstance(value, str):
            value = tuple(value.split(":"))
        if not isinstance(value, tuple) or len(value) != 2:
            return None
        low, high = (NUMBER.convert(bound) for bound in value)
        return (low, high) if low is not None and high is not None and 0 <= low <= high else None


class _Text:
    """Any text that is not empty: a path, a name, an address; of a list, its items with commas."""

    text = "text"

    def convert(self, value: object) -> str | None:
        """Return ``value`` as text; None if it is something else."""
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if isinstance(value, list | tuple):
            value = ",".join(map(str, value))
        return value if isinstance(value, str) and value.strip() else None


NUMBER = Numbers("a number", lambda x: True)
POSITIVE = Numbers("a number above 0", lambda x: x > 0)
NON_NEGATIVE = Numbers("a number from 0", lambda x: x >= 0)
FRACTION = Numbers("a number from 0 to 1", lambda x: 0 <= x <= 1)
COUNT = Numbers("a whole number from 0", lambda x: x >= 0, whole=True)
SIZE = Numbers("a whole number from 1", lambda x: x >= 1, whole=True)
LOW_HIGH = _LowHigh()
TEXT = _Text()

Allowed = str | bool | ValueRange | None
"""A word, True or False, None, or a range."""


@dataclass(frozen=True)
class Option:
    """What is known about one option.

    Attributes:
        name: The field's name.
        default: Its value where none is given.
        about: What it does, in one line.
        allowed: The words, True, False, None and ranges that it accepts.
        when: The option counts only where these other options have one of these values.
        affects_published: Whether another value than the default makes other numbers than those
            that the paper prints.
    """

    name: str
    default: object
    about: str
    allowed: tuple[Allowed, ...]
    when: Mapping[str, tuple[object, ...]] = field(default_factory=dict, hash=False)
    affects_published: bool = True

    @property
    def allowed_text(self) -> str:
        """The values it accepts, as they are typed, without None."""
        return ", ".join(
            option_text(value) if isinstance(value, str | bool | None) else value.text
            for value in self.allowed
        )

    @property
    def required(self) -> bool:
        """Whether there is no default: it is None, which is not allowed."""
        return self.default is None and None not in self.allowed

    def convert(self, value: object) -> object:
        """Return ``value`` as it is kept, or say what is allowed."""
        words = [word for word in self.allowed if isinstance(word, str)]
        if isinstance(value, str) and value in words:
            return value
        for allowed in self.allowed:
            if value is allowed:
                return value
            if isinstance(allowed, bool):
                if isinstance(value, str) and value.lower() in _FLAGS[allowed]:
                    return allowed
            elif allowed is None:
                if isinstance(value, str) and value.lower() == "none":
                    return None
            elif not isinstance(allowed, str):
                converted = allowed.convert(value)
                if converted is not None:
                    return converted
        shown, hint = (
            (value, suggest(value, words)) if isinstance(value, str) else (repr(value), "")
        )
        raise InputError(
            f"{self.name}={shown} is not allowed{hint or ';'} allowed: {self.allowed_text}"
        )


def option(
    default: object,
    about: str,
    *allowed: Allowed,
    when: Mapping[str, tuple[object, ...]] | None = None,
    affects_published: bool = True,
) -> Any:
    """Declare an option: the field of a dataclass; see :class:`Option`."""
    metadata = {"about": about, "allowed": allowed, "when": when or {}}
    return field(default=default, metadata=metadata | {"affects_published": affects_published})


def options_of(declaring: Any) -> tuple[Option, ...]:
    """Return the options that a dataclass declares.

    >>> from discode.decoders import Discode
    >>> first = options_of(Discode)[0]
    >>> first.name, first.default, first.allowed_text
    ('stem', 'graded', 'graded, printed, greedy, joint')
    """
    return tuple(
        Option(declared.name, declared.default, **declared.metadata)
        for declared in fields(declaring)
        if "about" in declared.metadata
    )


def with_options_documented(declaring: C) -> C:
    """Add what its options say about themselves to the docstring of a class."""
    lines = [
        f"        {row.name}: {row.about} ({row.allowed_text}; default {option_text(row.default)})."
        for row in options_of(declaring)
    ]
    declaring.__doc__ = "\n".join([(declaring.__doc__ or "").rstrip(), "", "    Options:", *lines])
    return declaring


class Configurable:
    """A dataclass whose fields are options: checked when it is made, listed for signatures."""

    def __post_init__(self) -> None:
        """Check every option, and keep each in the type that is computed with."""
        for row in options_of(type(self)):
            value = getattr(self, row.name)
            if value is not row.default:
                object.__setattr__(self, row.name, row.convert(value))
        self.check_together()

    def check_together(self) -> None:  # most options go with all others
        """Raise where options exclude each other."""
        return

    def options(self) -> dict[str, object]:
        """Return every option that shapes the result, for the signature."""
        declared = options_of(type(self))
        values = {row.name: getattr(self, row.name) for row in declared}
        return {
            row.name: values[row.name]
            for row in declared
            if all(values[other] in wanted for other, wanted in row.when.items())
        }


def read_options(
    declared: Iterable[Option], values: Mapping[str, object], whose: str
) -> dict[str, Any]:
    """Return values in their types; a name that is not declared is an error.

    ``whose`` names the owner of the options in messages ("method 'discode'").

    >>> read_options([Option("draws", 5, "how many", (SIZE,))], {"draws": "2"}, "pascal50s")
    {'draws': 2}
    """
    known = {row.name: row for row in declared}
    for name in values:
        if name not in known:
            hint = suggest(name, known) or f"; it has: {', '.join(known) or 'none'}"
            raise UnknownNameError(f"{whose} has no option {name!r}{hint}")
    return {name: known[name].convert(value) for name, value in values.items()}


def fill_options(
    declared: Sequence[Option], values: Mapping[str, object], whose: str
) -> dict[str, Any]:
    """Return the value of every option, as :func:`read_options`, with defaults for the rest.

    >>> fill_options([Option("draws", 5, "how many", (SIZE,))], {}, "pascal50s")
    {'draws': 5}
    """
    read = read_options(declared, values, whose)
    for row in declared:
        if row.required and row.name not in read:
            raise InputError(f"{whose} needs {row.name}=...: {row.about}")
    return {row.name: read.get(row.name, row.default) for row in declared}


def split_spec(spec: str) -> tuple[str, dict[str, str]]:
    """Return the name and the options of ``name:key=value,key=value``.

    >>> split_spec("discode:tau=alpha,alpha_clip=0:1")
    ('discode', {'tau': 'alpha', 'alpha_clip': '0:1'})
    """
    name, _, text = spec.partition(":")
    return name, parse_options(filter(None, text.split(",")), spec)


def parse_options(items: Iterable[str], where: str) -> dict[str, str]:
    """Return the options of items ``KEY=VALUE``; ``where`` is where they stand.

    >>> parse_options(["device=cuda", "batch-captions=4"], "-M")
    {'device': 'cuda', 'batch_captions': '4'}
    """
    values: dict[str, str] = {}
    for item in items:
        key, equals, value = (part.strip() for part in item.partition("="))
        key = key.replace("-", "_")
        if not equals or not key:
            raise InputError(f"{where}: {item!r} is not of the form KEY=VALUE")
        if values.get(key, value) != value:
            raise InputError(f"{where}: {key} is given twice, with different values")
        values[key] = value
    return values


def options_text(options: Mapping[str, object]) -> str:
    """Return options as ``key=value,...``, sorted: what :func:`split_spec` reads.

    >>> options_text({"tau": 1.0, "alpha_clip": (0.0, 1.0), "order": None})
    'alpha_clip=0:1,order=none,tau=1'
    """
    return ",".join(f"{name}={text}" for name, text in option_texts(options))


def option_texts(options: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return the names of options with their values as they are typed, sorted by name."""
    return [(name, option_text(value)) for name, value in sorted(options.items())]


def option_text(value: object) -> str:
    """Return an option's value as it is typed.

    >>> option_text((0.0, 1.0)), option_text(None), option_text(0.001)
    ('0:1', 'none', '0.001')
    """
    if isinstance(value, tuple):
        return ":".join(map(option_text, value))
    if isinstance(value, bool | None):
        return str(value).lower()
    return f"{value:.12g}" if isinstance(value, float) else str(value)
