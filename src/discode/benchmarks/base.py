"""What a benchmark is: pairs to score, and what people said of them."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from discode.benchmarks.facts import Facts
from discode.errors import InputError, lookup
from discode.pairs import Pair


@dataclass(frozen=True, eq=False)
class Ratings:
    """M numbers that people gave: ``pair`` (M,) into the pairs, ``value`` (M,), ``rater`` (M,)."""

    pair: NDArray[np.int64]
    value: NDArray[np.float64]
    rater: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.pair)


@dataclass(frozen=True, eq=False)
class Preferences:
    """M choices between two captions: ``left``, ``right`` (M,) into the pairs, ``chosen`` (M,).

    ``chosen`` is 0 where people preferred the left caption and 1 where the right; ``category``
    has M words, one a choice.
    """

    left: NDArray[np.int64]
    right: NDArray[np.int64]
    chosen: NDArray[np.int64]
    category: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.left)


@dataclass(frozen=True, eq=False)
class Benchmark:
    """Pairs (P), each of which is scored once, and judgments that point at them.

    ``protocol`` holds the options it was loaded with, for signatures; ``image`` (P,) the number of
    each pair's image, the clusters of a bootstrap; ``checksums`` the SHA-256 of each file that was
    read; ``notes`` what was dropped, and what is missing.
    """

    name: str
    protocol: Mapping[str, str]
    pairs: tuple[Pair, ...]
    judgments: Ratings | Preferences
    image: NDArray[np.int64]
    checksums: Mapping[str, str]
    notes: tuple[str, ...] = ()

    def repeats(self) -> NDArray[np.int64]:
        """Return how often each pair stands in the flattened judgments, (P,).

        CIDEr's document frequencies count a caption as often as it was judged.
        """
        judged = self.judgments
        if isinstance(judged, Ratings):
            return np.bincount(judged.pair, minlength=len(self.pairs))
        both = np.concatenate([judged.left, judged.right])
        return np.bincount(both, minlength=len(self.pairs))


@dataclass(frozen=True)
class Option:
    """A choice in a protocol: its default and what else is allowed."""

    default: str
    about: str
    values: tuple[str, ...] = ()
    pattern: str = ""
    """Instead of ``values``: a regular expression, and ``allowed`` in words."""
    allowed: str = ""

    def check(self, name: str, value: str) -> str:
        """Return ``value``, or say what is allowed."""
        if not isinstance(value, str):
            raise InputError(f"option {name}={value!r} must be text")
        fits = re.fullmatch(self.pattern, value) if self.pattern else value in self.values
        if not fits:
            words = self.allowed or ", ".join(self.values)
            raise InputError(f"option {name}={value!r} is not allowed; allowed: {words}")
        return value


def integer(default: int, about: str, *, low: int) -> Option:
    """Return an option that is a whole number."""
    digits = r"\d{1,9}" if low == 0 else r"[1-9]\d{0,8}"
    return Option(str(default), about, pattern=digits, allowed=f"a whole number from {low}")


@dataclass(frozen=True)
class Row:
    """A benchmark in the table: who reads it, with which options, and the facts about it.

    ``load`` takes the benchmark's own folder (or file) and the value of every option.
    """

    load: Callable[[Path, Mapping[str, str]], Benchmark]
    facts: Facts
    options: Mapping[str, Option] = field(default_factory=dict)


def resolve(options: Mapping[str, str] | None, table: Mapping[str, Option]) -> dict[str, str]:
    """Return the value of every option of a benchmark, the defaults filled in.

    >>> resolve({"draws": "2"}, {"draws": integer(5, "how many", low=1)})
    {'draws': '2'}
    """
    given = dict(options or {})
    for name in given:
        lookup(table, name, "option") if table else _no_options(name)
    return {name: row.check(name, given.get(name, row.default)) for name, row in table.items()}


def _no_options(name: str) -> None:
    raise InputError(f"unknown option {name!r}; this benchmark has none")


class Builder:
    """Collects pairs, each once, and finds their pictures.

    ``roots`` are the folders that pictures may lie in, below ``folder``.
    """

    def __init__(self, folder: Path, roots: Sequence[str]) -> None:
        self.folder = folder
        places = [Path(os.path.normpath(folder / root)) for root in roots]
        self.roots = [place for place in places if place.is_dir()]
        self.default = self.roots[0] if self.roots else places[0]
        self.pairs: list[Pair] = []
        self.images: list[int] = []
        self._known: dict[tuple[str, str, tuple[str, ...]], int] = {}
        self._ids: set[str] = set()
        self._paths: dict[str, tuple[int, str]] = {}
        self._missing = 0

    def add(
        self, image: str, caption: str, references: Sequence[str], name: str, where: str = ""
    ) -> int:
        """Return the number of a pair; one that is known already keeps its first ``name``."""
        key = (image, caption, tuple(references))
        if key in self._known:
            return self._known[key]
        if name in self._ids:
            prefix = f"{where}: " if where else ""
            raise InputError(f"{prefix}id {name!r} names two different pairs; ids must be unique")
        self._ids.add(name)
        if image not in self._paths:
            self._paths[image] = (len(self._paths), self._find(image))
        number, path = self._paths[image]
        self._known[key] = len(self.pairs)
        self.pairs.append(Pair(path, caption, key[2], name))
        self.images.append(number)
        return self._known[key]

    def _find(self, image: str) -> str:
        """Return where a picture lies, or where it should."""
        for part in (image, Path(image).name):  # publishers' folders are seldom those of the user
            for root in self.roots:
                if _is_file(root / part):
                    return str(root / part)
        self._missing += 1
        return str(self.default / image)

    def notes(self) -> list[str]:
        """Return a line on pictures that are not there, if any."""
        if not self._missing:
            return []
        total = len(self._paths)
        return [f"{self._missing} of {total} images missing, sought in {self.default}"]

    def build(
        self,
        name: str,
        protocol: Mapping[str, str],
        judgments: Ratings | Preferences,
        files: Sequence[Path],
        notes: Sequence[str] = (),
    ) -> Benchmark:
        """Return the benchmark of what was added."""
        return Benchmark(
            name,
            dict(protocol),
            tuple(self.pairs),
            judgments,
            np.array(self.images, np.int64),
            {file.name: sha256(file) for file in files},
            (*notes, *self.notes()),
        )


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that the system does not take
        return False


def ratings(rows: Sequence[tuple[int, float, int]]) -> Ratings:
    """Return rows of (pair, value, rater) as arrays."""
    pair, value, rater = zip(*rows, strict=True) if rows else ((), (), ())
    return Ratings(np.array(pair, np.int64), np.array(value, float), np.array(rater, np.int64))


def preferences(rows: Sequence[tuple[int, int, int, str]]) -> Preferences:
    """Return rows of (left, right, chosen, category) as arrays."""
    left, right, chosen, category = zip(*rows, strict=True) if rows else ((), (), (), ())
    if taken := {"mean", "ties", "failed"} & set(category):
        raise InputError(
            f"a category cannot be called {sorted(taken)[0]!r}: tables have a column of that name"
        )
    return Preferences(
        np.array(left, np.int64), np.array(right, np.int64), np.array(chosen, np.int64), category
    )


def averaged(judged: Ratings) -> Ratings:
    """Return one rating a pair, the mean of its raters, in the order of first appearance."""
    pairs, first = np.unique(judged.pair, return_index=True)
    pairs = pairs[np.argsort(first)]
    sums = np.bincount(judged.pair, judged.value)
    counts = np.bincount(judged.pair)
    return Ratings(pairs, sums[pairs] / counts[pairs], np.zeros(len(pairs), np.int64))


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    return digest.hexdigest()
