"""Reading publishers' files: what is missing or broken is named by file, line and field."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from discode.benchmarks.facts import FACTS
from discode.errors import InputError
from discode.files import parse_json


def form_of(name: str, folder: Path, forms: Sequence[Sequence[str]] = ()) -> dict[str, Path]:
    """Return the files of the first form that is complete, by name.

    What is missing is named together with where to fetch it.
    """
    facts = FACTS[name]
    forms = forms or facts.forms
    for form in forms:
        if all((folder / file).is_file() for file in form):
            return {file: folder / file for file in form}
    if folder.is_file():
        raise InputError(f"{name}: {folder} is a file; give the folder it lies in")
    if not folder.exists():
        raise InputError(f"{name}: no such folder: {folder}; {facts.fetch}")
    # The form that lacks the least is the one that was meant.
    form = min(forms, key=lambda form: sum(not (folder / file).is_file() for file in form))
    absent = [file for file in form if not (folder / file).is_file()]
    other = "; or ".join(" and ".join(each) for each in forms if each is not form)
    also = f" (or {other})" if other and len(absent) == len(form) else ""
    raise InputError(f"{name}: {' and '.join(absent)} not in {folder}{also}; {facts.fetch}")


def table(path: Path, fields: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
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


def json_file(path: Path) -> Any:
    """Return what a JSON file holds."""
    return parse_json(_text(path), path.name)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from error


def text(row: Mapping[str, Any], name: str, where: str) -> str:
    """Return a field that must be text with something in it."""
    value = get(row, name, where)
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{where}: {name} must be text, not {shown(value)}")
    return value


def get(row: Any, name: str, where: str) -> Any:
    """Return a field of a row, or say that it is not there."""
    if not isinstance(row, Mapping):
        raise InputError(f"{where} is no object with fields but {type(row).__name__}")
    if name not in row:
        raise InputError(
            f"{where} has no {name!r}; it has: {', '.join(map(str, row)) or 'nothing'}"
        )
    return row[name]


def texts(value: Any, name: str, where: str) -> tuple[str, ...]:
    """Return a field that must be a list of texts, white space made single."""
    if not isinstance(value, list) or not all(isinstance(x, str) and x.strip() for x in value):
        raise InputError(f"{where}: {name} must be a list of texts, not {shown(value)}")
    return tuple(" ".join(item.split()) for item in value)


def number(value: Any, name: str, where: str, low: float, high: float) -> float:
    """Return a field that must be a number on a scale."""
    try:
        found = float(value) if not isinstance(value, bool) else float("nan")
    except (TypeError, ValueError, OverflowError):
        found = float("nan")
    if not low <= found <= high:
        raise InputError(
            f"{where}: {name} must be a number from {low:g} to {high:g}, not {shown(value)}"
        )
    return found


def whole(value: Any, name: str, where: str, low: int, high: int) -> int:
    """Return a field that must be a whole number on a scale."""
    found = number(value, name, where, low, high)
    if found != int(found):
        raise InputError(f"{where}: {name} must be a whole number, not {shown(value)}")
    return int(found)


def shown(value: Any) -> str:
    """Return a value for a message, cut to a length that leaves it one line.

    >>> shown("x" * 100)
    "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx..."
    """
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:37]}..."


def letters(caption: str) -> str:
    """Return a caption's letters and digits, lower case: what is left when only marks differ.

    >>> letters("A boy in a T-shirt .") == letters("a boy in a t shirt")
    True
    """
    return re.sub(r"[\W_]+", "", caption.lower())
