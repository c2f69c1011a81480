"""Parse publishers' files: what is missing or broken is named by file, line and field."""

from __future__ import annotations

import re
from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from discode.errors import InputError, shortened
from discode.files import parse_json


def read_tsv(path: Path, fields: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield (where, cells) of a tab-separated file without a header."""
    # Not splitlines(): it also splits at letters that a caption may hold.
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path.name} line {number}"
        cells = line.rstrip("\r").split("\t")
        if len(cells) != len(fields):
            why = "cut short, or not separated by tabs" if len(cells) < len(fields) else "too many"
            raise InputError(
                f"{where} has {len(cells)} fields, not the {len(fields)} "
                f"({', '.join(fields)}): {why}"
            )
        yield where, cells


def read_object(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file that must be an object with entries."""
    content = read_json_file(path)
    if not isinstance(content, dict) or not content:
        raise InputError(f"{path.name} must be an object with entries")
    return content


def check_new(key: Hashable, known: Container[Hashable], where: str) -> None:
    """Raise if a key that must be unique is known already."""
    if key in known:
        raise InputError(f"{where}: {key!r} was there before; it must be unique")


def read_json_file(path: Path) -> Any:
    """Return the content of a JSON file."""
    return parse_json(_text(path), path.name)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from error


def get_field(row: Any, name: str, where: str) -> Any:
    """Return a field of a row, or raise an error that says which fields it has."""
    if not isinstance(row, Mapping):
        raise InputError(f"{where} is not an object with fields but {type(row).__name__}")
    if name not in row:
        raise InputError(
            f"{where} has no {name!r}; it has: {', '.join(map(str, row)) or 'nothing'}"
        )
    return row[name]


def get_text(row: Any, name: str, where: str) -> str:
    """Return a field of a row that must be text and not empty."""
    value = get_field(row, name, where)
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{where}: {name} must be text, not {shortened(value)}")
    return value


def get_list(row: Any, name: str, where: str) -> list[Any]:
    """Return a field of a row that must be a list."""
    value = get_field(row, name, where)
    if not isinstance(value, list):
        raise InputError(f"{where}: {name} must be a list, not {shortened(value)}")
    return value


def as_texts(value: Any, name: str, where: str) -> tuple[str, ...]:
    """Return a value that must be a list of texts, each run of white space as one space."""
    if not isinstance(value, list) or not all(isinstance(x, str) and x.strip() for x in value):
        raise InputError(f"{where}: {name} must be a list of texts, not {shortened(value)}")
    return tuple(" ".join(item.split()) for item in value)


def as_number(value: Any, name: str, where: str, low: float, high: float) -> float:
    """Return a value that must be a number from ``low`` to ``high``."""
    try:
        number = float(value) if not isinstance(value, bool) else float("nan")
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if not low <= number <= high:
        raise InputError(
            f"{where}: {name} must be a number from {low:g} to {high:g}, not {shortened(value)}"
        )
    return number


def as_whole_number(value: Any, name: str, where: str, low: int, high: int) -> int:
    """Return a value that must be a whole number from ``low`` to ``high``."""
    number = as_number(value, name, where, low, high)
    if number != int(number):
        raise InputError(f"{where}: {name} must be a whole number, not {shortened(value)}")
    return int(number)


def letters_and_digits(caption: str) -> str:
    """Return a caption's letters and digits in lower case, to compare beyond punctuation.

    >>> letters_and_digits("A boy in a T-shirt .") == letters_and_digits("a boy in a t shirt")
    True
    """
    return re.sub(r"[\W_]+", "", caption.lower())
