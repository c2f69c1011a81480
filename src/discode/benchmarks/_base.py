"""A benchmark: pairs to score, people's judgments of them, and its row in the table."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discode._files import sha256
from discode._pairs import Pair
from discode._preferences import comparison
from discode.errors import InputError
from discode.options import SIZE, Option, option_text
from discode.stats import credit

Floats = NDArray[np.float64]
LIMIT = Option("limit", None, "at most that many of its images, of those present", (SIZE, None))
"""The option that every benchmark has in addition to those of its protocol."""


@dataclass(frozen=True, eq=False)
class Ratings:
    """M numbers that people gave: ``pair`` (M,) into the pairs, ``value`` (M,), ``rater`` (M,)."""

    pair: NDArray[np.int64]
    value: NDArray[np.float64]
    rater: NDArray[np.int64]

    @classmethod
    def of(cls, rows: Sequence[tuple[int, float, int]]) -> Ratings:
        """Convert rows of (pair, value, rater) to columns."""
        pair, value, rater = zip(*rows, strict=True) if rows else ((), (), ())
        return cls(np.array(pair, np.int64), np.array(value, float), np.array(rater, np.int64))

    def __len__(self) -> int:
        return len(self.pair)

    @property
    def sides(self) -> dict[str, NDArray[np.int64]]:
        """The columns that point at pairs, by name."""
        return {"pair": self.pair}

    def take(self, rows: NDArray[np.bool_]) -> Ratings:
        """Select ratings by a mask ``rows`` (M,)."""
        return Ratings(self.pair[rows], self.value[rows], self.rater[rows])

    def averaged(self) -> Ratings:
        """Average the ratings of each pair, in order of first appearance."""
        pairs, first = np.unique(self.pair, return_index=True)
        pairs = pairs[np.argsort(first)]
        sums = np.bincount(self.pair, self.value)
        counts = np.bincount(self.pair)
        return Ratings(pairs, sums[pairs] / counts[pairs], np.zeros(len(pairs), np.int64))


@dataclass(frozen=True, eq=False)
class Preferences:
    """M choices between two captions: ``left``, ``right`` (M,) into the pairs, ``chosen`` (M,).

    ``chosen`` is 0 where people preferred the left caption and 1 where they preferred the right;
    ``category`` has M words, one per choice. ``group`` (M,) numbers the choices that are right
    only together, as in Winoground; None where each counts alone.
    """

    left: NDArray[np.int64]
    right: NDArray[np.int64]
    chosen: NDArray[np.int64]
    category: tuple[str, ...]
    group: NDArray[np.int64] | None = None

    @classmethod
    def of(
        cls, rows: Sequence[tuple[int, int, int, str]], group: Sequence[int] | None = None
    ) -> Preferences:
        """Convert rows of (left, right, chosen, category) to columns."""
        left, right, chosen, category = zip(*rows, strict=True) if rows else ((), (), (), ())
        if taken := {"mean", "ties", "failed"} & set(category):
            raise InputError(
                f"a category cannot be called {sorted(taken)[0]!r}: tables use that column name"
            )
        first, second, choice = (np.array(column, np.int64) for column in (left, right, chosen))
        return cls(
            first, second, choice, category, None if group is None else np.array(group, np.int64)
        )

    def __len__(self) -> int:
        return len(self.left)

    @property
    def sides(self) -> dict[str, NDArray[np.int64]]:
        """The columns that point at pairs, by name."""
        return {"left": self.left, "right": self.right}

    def take(self, rows: NDArray[np.bool_]) -> Preferences:
        """Select choices by a mask ``rows`` (M,)."""
        category = tuple(np.array(self.category)[rows].tolist())
        group = None if self.group is None else self.group[rows]
        return Preferences(self.left[rows], self.right[rows], self.chosen[rows], category, group)

    def earned(self, left: Floats, right: Floats, ties: str) -> Floats:
        """Score choices by both captions' scores (M,), as ``credit`` does; a group by its worst."""
        earned = credit(left, right, self.chosen, ties=ties)
        if self.group is None or not len(earned):
            return earned
        worst = np.ones(int(self.group.max()) + 1)
        np.minimum.at(worst, self.group, earned)
        return worst[self.group]


@dataclass(frozen=True, eq=False)
class Benchmark:
    """Pairs (P), each of which is scored once, and judgments that point at them.

    ``options`` are those it was loaded with, ``image`` (P,) is the number of each pair's image (the
    bootstrap resamples images), ``checksums`` has the SHA-256 of each file that was read,
    ``notes`` describe dropped rows and missing files, and ``missing`` has the numbers of the
    images whose files were not found.
    """

    name: str
    options: Mapping[str, Any]
    pairs: tuple[Pair, ...]
    judgments: Ratings | Preferences
    image: NDArray[np.int64]
    checksums: Mapping[str, str]
    notes: tuple[str, ...] = ()
    missing: frozenset[int] = frozenset()

    def repeats(self) -> NDArray[np.int64]:
        """Count how often each pair was judged, (P,).

        CIDEr's document frequencies count a caption as often as it was judged.
        """
        judged = np.concatenate([*self.judgments.sides.values()])
        return np.bincount(judged, minlength=len(self.pairs))

    def bare_pairs(self) -> tuple[list[Pair], NDArray[np.int64]]:
        """Strip references: the distinct pairs, and (P,) the number of each pair among them."""
        number: dict[tuple[str, str], int] = {}
        which: list[int] = []
        bare: list[Pair] = []
        for pair in self.pairs:
            which.append(number.setdefault((str(pair.image), pair.caption), len(bare)))
            if which[-1] == len(bare):
                bare.append(replace(pair, references=()) if pair.references else pair)
        return bare, np.array(which, np.int64)

    def comparisons(self) -> tuple[list[Pair], NDArray[np.int64], NDArray[np.bool_]]:
        """List the distinct comparisons of preferences, each with its other caption as reference.

        Also (M,) the number of each choice's comparison, and whether its left caption is the other.
        """
        judged = self.judgments
        if isinstance(judged, Ratings):
            raise InputError(f"metric 'prefer' requires preferences; {self.name} has ratings")
        number: dict[tuple[str, str, frozenset[str]], int] = {}
        which: list[int] = []
        asked: list[Pair] = []
        swapped: list[bool] = []
        for left, right in zip(judged.left.tolist(), judged.right.tolist(), strict=True):
            pair, other = self.pairs[left], self.pairs[right]
            captions = frozenset((pair.caption, other.caption))
            key = str(pair.image), str(other.image), captions
            which.append(number.setdefault(key, len(asked)))
            if which[-1] == len(asked):
                asked.append(comparison(pair, other))
            swapped.append(asked[which[-1]].caption != pair.caption)
        return asked, np.array(which, np.int64), np.array(swapped, bool)


def keep_images(benchmark: Benchmark, count: int) -> Benchmark:
    """Keep ``count`` images of a benchmark and their judgments.

    They are chosen among the images that are present; where none is, as for text metrics, among
    all. Which ones is decided by the SHA-256 of their names, so they are spread over the data,
    and a larger count only adds images: earlier readings can be reused.
    """
    first: dict[int, str] = {}
    for number, pair in zip(benchmark.image.tolist(), benchmark.pairs, strict=True):
        first.setdefault(number, Path(str(pair.image)).name)
    present = [image for image in first if image not in benchmark.missing] or list(first)
    order = sorted(present, key=lambda image: hashlib.sha256(first[image].encode()).hexdigest())
    chosen = order[:count]
    if len(chosen) == len(first):
        return benchmark
    kept = np.isin(benchmark.image, chosen)
    place = np.cumsum(kept) - 1
    judged = benchmark.judgments
    some = judged.take(np.all([kept[side] for side in judged.sides.values()], axis=0))
    moved: Any = {name: place[side] for name, side in some.sides.items()}
    return replace(
        benchmark,
        pairs=tuple(pair for pair, keep in zip(benchmark.pairs, kept, strict=True) if keep),
        image=benchmark.image[kept],
        judgments=replace(some, **moved),
        options={**benchmark.options, LIMIT.name: count},
        notes=(
            *benchmark.notes,
            f"{len(chosen)} of {len(present)} images, by the SHA-256 of their names",
        ),
        missing=benchmark.missing.intersection(chosen),
    )


@dataclass(frozen=True)
class DataFile:
    """A publisher's file: the SHA-256 of the version that is known, and who distributes it."""

    sha256: str = ""
    origin: str = ""


@dataclass(frozen=True)
class BenchmarkRow:
    """Everything about a benchmark: how it is read, and where it comes from.

    Only hf:// addresses are downloaded: the row describes the sources, and error messages quote it.

    ``name`` is what commands call it, ``title`` what tables do.

    Attributes:
        load: From the benchmark's own folder (or file) and the value of every option to the
            benchmark.
        help: How to get it, step by step, where ``source`` is not enough.
        tried: What its reading was tried on.
        forms: The sets of files it can be read from, tried in order.
        optional: Files that are used where they are present.
        folders: Names its folder goes by.
        image_folders: Where its images may be, below its folder.
        categories: The categories of its preferences in the order of tables; others follow.
        main_tau: Which Kendall's τ of its ratings metrics are compared by: "tau_b" or "tau_c".
        published_column: The column of its numbers in the paper's tables (``published.csv``), from
            the measure and the options.
        published_sizes: From the value of every option to how many images and judgments the data
            behind the paper's numbers have, and other numbers that are as good; None where the
            paper does not have the benchmark.
        published_files: The files of a benchmark that the paper does not have whose numbers others
            published.
    """

    name: str
    title: str
    about: str
    load: Callable[[Path, Mapping[str, Any]], Benchmark]
    source: str
    licence: str
    citation: str
    forms: tuple[tuple[str, ...], ...]
    files: dict[str, DataFile] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    image_folders: tuple[str, ...] = ("images", "")
    options: tuple[Option, ...] = ()
    categories: tuple[str, ...] = ()
    help: str = ""
    tried: str = "the publisher's files"
    main_tau: str = "tau_c"
    published_column: str = "{benchmark} {measure}"
    published_sizes: Callable[[Mapping[str, str]], tuple[tuple[int, int], ...]] | None = None
    published_files: tuple[str, ...] = ()

    @property
    def fetch(self) -> str:
        """Source, licence and citation."""
        return f"source: {self.source}; licence: {self.licence}; cite: {self.citation}"

    def read(self, folder: Path, options: Mapping[str, Any]) -> Benchmark:
        """Load it from its own folder, with the value of every option, ``limit`` among them."""
        own = dict(options)
        limit = own.pop(LIMIT.name, None)
        benchmark = self.load(folder, own)
        return benchmark if limit is None else keep_images(benchmark, limit)

    def option_texts(self, log: Mapping[str, str]) -> dict[str, str]:
        """Express every option as text: a log's value, or the default if the log has none."""
        return {row.name: log.get(row.name, option_text(row.default)) for row in self.options}

    def find_files(self, folder: Path, forms: Sequence[Sequence[str]] = ()) -> dict[str, Path]:
        """Find the files of the first complete form, by name.

        ``forms`` are the row's own by default. The error names the missing files and their source.
        """
        forms = forms or self.forms
        for form in forms:
            if all((folder / file).is_file() for file in form):
                return {file: folder / file for file in form}
        if folder.is_file():
            raise InputError(f"{self.name}: {folder} is a file; give the folder that holds it")
        if not folder.exists():
            raise InputError(f"{self.name}: no such folder: {folder}; {self.fetch}")
        form = likeliest_form(folder, forms)
        absent = [file for file in form if not (folder / file).is_file()]
        other = "; or ".join(" and ".join(each) for each in forms if each is not form)
        also = f" (or {other})" if other and len(absent) == len(form) else ""
        raise InputError(f"{self.name}: {' and '.join(absent)} not in {folder}{also}; {self.fetch}")


def likeliest_form(folder: Path, forms: Sequence[Sequence[str]]) -> Sequence[str]:
    """Choose the form with the fewest files missing from a folder."""
    return min(forms, key=lambda form: sum(not (folder / file).is_file() for file in form))


class BenchmarkBuilder:
    """Collects the pairs of a benchmark, each once, and finds their images below ``folder``.

    ``images`` is a folder of images given by the user, which is then the only one.
    """

    def __init__(self, row: BenchmarkRow, folder: Path, images: Path | None = None) -> None:
        self.row = row
        if images is not None and not images.is_dir():
            raise InputError(f"images={images} is not a folder")
        places = [Path(os.path.normpath(folder / place)) for place in row.image_folders]
        places = places if images is None else [images]
        self.roots = [place for place in places if place.is_dir()]
        self.default = self.roots[0] if self.roots else places[0]
        self._known: dict[tuple[str, str, tuple[str, ...]], int] = {}
        self._names: dict[str, int] = {}
        self._shown: Counter[str] = Counter()

    def add(
        self, image: str, caption: str, references: Sequence[str], name: str = "", where: str = ""
    ) -> int:
        """Add a pair and get its number; a known pair keeps its first ``name``.

        Without a name it is called by its image and its place among the image's pairs.
        """
        key = (image, caption, tuple(references))
        if key in self._known:
            return self._known[key]
        name = name or f"{image}#{self._shown[image]}"
        if name in self._names:
            prefix = f"{where}: " if where else ""
            raise InputError(f"{prefix}id {name!r} names two different pairs; ids must be unique")
        self._names[name] = self._known[key] = len(self._known)
        self._shown[image] += 1
        return self._known[key]

    def build(
        self,
        options: Mapping[str, object],
        judgments: Ratings | Preferences,
        files: Sequence[Path],
        notes: Sequence[str] = (),
    ) -> Benchmark:
        """Build the benchmark from the added pairs."""
        if not self._known:
            raise InputError(f"{files[0].name} has no judgments")
        paths = {image: self._find(image) for image in self._shown}
        number = {image: place for place, image in enumerate(paths)}
        missing = frozenset(number[image] for image, path in paths.items() if path is None)
        hint = any(option.name == "images" for option in self.row.options)
        lines = [
            f"{len(missing)} of {len(paths)} images missing, sought in {self.default}"
            + (f"; name their folder: --data and -b {self.row.name}:images=DIR" if hint else "")
        ]
        return Benchmark(
            self.row.name,
            dict(options),
            tuple(
                Pair(paths[image] or str(self.default / image), caption, references, name)
                for (image, caption, references), name in zip(self._known, self._names, strict=True)
            ),
            judgments,
            np.array([number[image] for image, _, _ in self._known], np.int64),
            {file.name: sha256(file) for file in files},
            (*notes, *lines[: bool(missing)]),
            missing,
        )

    def _find(self, image: str) -> str | None:
        for root in self.roots:
            try:
                if (root / image).is_file():
                    return str(root / image)
            except (OSError, ValueError):  # a name that the system does not take
                continue
        return None
