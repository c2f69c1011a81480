"""Every exception of the package, and the helpers that word the commonest of them.

The command line prints the message of any of them on one line and exits with code 2::

    DiscodeError
    ├── InputError (ValueError)
    │   ├── UnknownNameError
    │   ├── BadDataError
    │   └── NotAllowedError
    ├── ImageError (ValueError)
    ├── BackendError (RuntimeError)
    │   ├── RejectedError
    │   ├── UnreachableError
    │   └── StoppedError
    ├── HttpError
    ├── StoreError (RuntimeError)
    └── MissingExtraError (ImportError)
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class DiscodeError(Exception):
    """Base of everything this package raises on purpose."""


class InputError(DiscodeError, ValueError):
    """Input that cannot be used; the message names what is allowed."""


class UnknownNameError(InputError):
    """A name that no table contains."""


class BadDataError(InputError):
    """A caption or image that is missing, or pixels that are NaN: the data's fault, not the call's.

    A judge makes a failed row of it; functions for a single pair or image raise it.
    """


class NotAllowedError(InputError):
    """Something that a person of a campaign may not do, or no longer."""


class ImageError(DiscodeError, ValueError):
    """An image that cannot be found or decoded."""


class BackendError(DiscodeError, RuntimeError):
    """A model that could not read a batch of pairs."""


class RejectedError(BackendError):
    """A server rejected the request itself (400, 422): retrying is useless.

    ``complaint`` is its message, without the address.
    """

    def __init__(self, message: str, complaint: str = "") -> None:
        super().__init__(message)
        self.complaint = complaint


class UnreachableError(BackendError):
    """Nobody answers at a server's address."""


class StoppedError(BackendError):
    """Nothing more is sent: a cap was reached, or the server refused for good.

    ``reason`` says which; as the message of a row that was not sent, "not asked" precedes it.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"not asked: {self.reason}"


class HttpError(DiscodeError):
    """A request to us that gets a status other than 200, a code for programs and one line."""

    def __init__(
        self, status: int, code: str, message: str, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers or {}


class StoreError(DiscodeError, RuntimeError):
    """A reading store that cannot be used."""


class MissingExtraError(DiscodeError, ImportError):
    """An optional dependency that is not installed."""


def suggest(name: str, allowed: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" when ``name`` is a near miss, else "".

    >>> suggest("discod", ["discode", "raw"])
    "; did you mean 'discode'?"
    >>> suggest("nope", ["openai"])
    ''
    """
    close = difflib.get_close_matches(name, list(allowed), n=1, cutoff=0.61)
    return f"; did you mean {close[0]!r}?" if close else ""


def shortened(value: object) -> str:
    """Return a value for a message, short enough for one line.

    >>> shortened("x" * 100)
    "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx..."
    """
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:37]}..."


def count_of(count: int, thing: str) -> str:
    """Return a number of things in words.

    >>> count_of(1, "row"), count_of(2, "row")
    ('1 row', '2 rows')
    """
    return f"{count} {thing}{'' if count == 1 else 's'}"


def lookup(table: Mapping[str, T], name: str, what: str, also: str = "") -> T:
    """Return ``table[name]`` or say what the table holds, and what ``also`` would do.

    >>> lookup({"raw": 1}, "row", "method")
    Traceback (most recent call last):
        ...
    discode.errors.UnknownNameError: unknown method 'row'; did you mean 'raw'? Known: raw
    """
    try:
        return table[name]
    except KeyError:
        hint = suggest(name, table)
        known = f"{hint} Known" if hint else "; known"
        raise UnknownNameError(
            f"unknown {what} {name!r}{known}: {', '.join(table)}{also}"
        ) from None


def install_hint(extra: str = "") -> str:
    """Return how to install the package from its checkout, with an extra if one is named.

    Every message takes it from here: the distribution is not on PyPI yet.

    >>> install_hint("hf")
    'run in a checkout of discode: pip install ".[hf]"'
    """
    target = f'".[{extra}]"' if extra else "."  # double quotes work in cmd.exe, too
    return f"run in a checkout of discode: pip install {target}"


def require(module: str, extra: str) -> Any:
    """Import an optional dependency, or name the extra that brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{module.split('.')[0]} is not installed; {install_hint(extra)}"
        ) from error
