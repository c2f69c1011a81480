"""Parse publishers' files; errors name the file, the line and the field."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from discode._columns import reference_list
from discode._files import parse_json, reading
from discode.errors import InputError, shortened


@dataclass(frozen=True)
class Entry:
    """A row of a file, whose fields are checked when they are read; ``where`` begins messages."""

    fields: Any
    where: str

    def get(self, name: str) -> Any:
        """Read a field; the error for a missing one lists those that exist."""
        if not isinstance(self.fields, Mapping):
            kind = type(self.fields).__name__
            raise InputError(f"{self.where} must be an object with fields, not {kind}")
        if name not in self.fields:
            known = ", ".join(map(str, self.fields)) or "nothing"
            raise InputError(f"{self.where} has no {name!r}; it has: {known}")
        return self.fields[name]

    def text(self, name: str) -> str:
        """Read a field that must be text and not empty."""
        value = self.get(name)
        if not isinstance(value, str) or not value.strip():
            raise self.error(name, "text")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """Read a field that must be a list of texts; runs of white space become one space."""
        value = self.get(name)
        if not isinstance(value, list) or not all(isinstance(x, str) and x.strip() for x in value):
            raise self.error(name, "a list of texts")
        return tuple(" ".join(item.split()) for item in value)

    def optional(self, name: str) -> str:
        """Read a field as text, "" where it is missing or empty; 0 is not empty."""
        value = self.fields.get(name)
        return "" if value is None else str(value)

    def references(self) -> tuple[str, ...]:
        """Read "references", a list or a cell of them, () where there are none."""
        if not (cell := self.fields.get("references")):
            return ()
        return Entry({"references": reference_list(cell, self.where)}, self.where).texts(
            "references"
        )

    def two_texts(self, name: str) -> tuple[str, str]:
        """Read a field that must be a list of two texts."""
        texts = self.texts(name)
        if len(texts) != 2:
            raise self.error(name, "two texts")
        return texts[0], texts[1]

    def number(self, name: str, low: float, high: float) -> float:
        """Read a field that must be a number from ``low`` to ``high``."""
        value = self.get(name)
        try:
            number = float(value) if not isinstance(value, bool) else math.nan
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not low <= number <= high or math.isinf(number):
            bounds = "" if low == -math.inf and high == math.inf else f" from {low:g} to {high:g}"
            raise self.error(name, f"a number{bounds}")
        return number

    def whole(self, name: str, low: int, high: int) -> int:
        """Read a field that must be a whole number from ``low`` to ``high``."""
        number = self.number(name, low, high)
        if number != int(number):
            raise self.error(name, "a whole number")
        return int(number)

    def entries(self, name: str, kind: str) -> list[Entry]:
        """Read a field that must be a list of entries, called ``kind`` in messages."""
        value = self.get(name)
        if not isinstance(value, list):
            raise self.error(name, "a list")
        return [Entry(fields, f"{self.where} {kind} {i}") for i, fields in enumerate(value)]

    def error(self, name: str, wanted: str) -> InputError:
        """Make the error for a field with a wrong value."""
        return InputError(f"{self.where}: {name} must be {wanted}, not {shortened(self.get(name))}")

    def check_new(self, key: Hashable, known: Container[Hashable]) -> None:
        """Raise if a key that must be unique is known already."""
        if key in known:
            raise InputError(f"{self.where}: {key!r} is a duplicate; it must be unique")


def read_tsv(path: Path, fields: Sequence[str]) -> Iterator[Entry]:
    """Yield the rows of a tab-separated file without a header."""
    # Not splitlines(): it also splits at letters that a caption may hold.
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path.name} line {number}"
        cells = line.rstrip("\r").split("\t")
        if len(cells) != len(fields):
            raise InputError(
                f"{where} has {len(cells)} tab-separated fields; expected {len(fields)}: "
                f"{', '.join(fields)}"
            )
        yield Entry(dict(zip(fields, cells, strict=True)), where)


def read_object(path: Path) -> Entry:
    """Read a JSON file that must be an object with entries."""
    content = parse_json(_text(path), path.name)
    if not isinstance(content, dict) or not content:
        raise InputError(f"{path.name} must be an object with entries")
    return Entry(content, path.name)


def _text(path: Path) -> str:
    with reading(path, UnicodeDecodeError):
        return path.read_text(encoding="utf-8-sig")


def letters_and_digits(caption: str) -> str:
    """Reduce a caption to lower-case letters and digits, to ignore punctuation.

    >>> letters_and_digits("A boy in a T-shirt .") == letters_and_digits("a boy in a t shirt")
    True
    """
    return re.sub(r"[\W_]+", "", caption.lower())
