"""Captioners with some ratings: the mean rating of each, and of their differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from discode._image_index import ImageIndex
from discode.bench._systems import JoinedScores, SystemRow
from discode.benchmarks import Benchmark, Ratings
from discode.errors import InputError, count_of
from discode.stats._ppi import FEW_FOR_JUDGE, PoweredMean, ppi_mean
from discode.stats._resampling import FEWEST

RATED_TITLES = (
    "rating of", "rated", "people", "95 %", "with judge", "95 % with judge", "λ", "worth"
)  # fmt: skip


@dataclass(frozen=True)
class RatedMeans:
    """Mean ratings of systems, and of the differences of two, by name ("A - B").

    ``unmatched`` ratings are of no caption in the files.
    """

    means: dict[str, PoweredMean]
    unmatched: int


def rate_systems(
    joined: JoinedScores, benchmark: Benchmark, folder: Path, *, level: float = 0.95
) -> RatedMeans:
    """Estimate mean ratings from the ratings of some captions and the scores of all.

    A rating belongs to the row of its image and caption, or to that of its id where the files are
    joined by ids. An image counts once, with its mean rating, and only if every system has a score
    for it. The rated captions are assumed to be drawn at random. ``folder`` is that of the ratings,
    from which their images are named.
    """
    if not isinstance(benchmark.judgments, Ratings):
        raise InputError("--ratings has choices between captions; give ratings")
    judged = benchmark.judgments.averaged()
    value = np.full(len(benchmark.pairs), np.nan)
    value[judged.pair] = judged.value
    numbers = _RatedPairs(benchmark, folder, joined.images if joined.by == "image" else ())
    ratings = np.full(joined.value.shape, np.nan)
    used: set[int] = set()
    for s, system in enumerate(joined.items):
        for i, image in enumerate(joined.images):
            found = [n for row in system.get(image, ()) for n in numbers.of(row, image, joined.by)]
            used.update(found)
            if found:
                ratings[s, i] = value[found].mean()
    keep = joined.shared
    means = {
        name: ppi_mean(y, f, level=level)
        for name, y, f in zip(joined.names, ratings[:, keep], joined.value[:, keep], strict=True)
    }
    if lacking := [name for name, each in means.items() if not each.rated]:
        raise InputError(
            f"no rating is of a caption of {lacking[0]}; ratings need its images and captions"
            + (", or its ids" if joined.by == "id" else "")
        )
    for i, j in combinations(range(len(joined.names)), 2):
        apart = (each[i, keep] - each[j, keep] for each in (ratings, joined.value))
        means[f"{joined.names[i]} - {joined.names[j]}"] = ppi_mean(*apart, level=level)
    return RatedMeans(means, len(judged) - len(used))


class _RatedPairs:
    """Finds the rated pairs of a row, by its id, or by its image and caption."""

    def __init__(self, benchmark: Benchmark, folder: Path, images: Sequence[str]) -> None:
        self._by_id: dict[str, list[int]] = {}
        self._by_text: dict[tuple[str, str], list[int]] = {}
        names = [_name(Path(str(pair.image)), folder) for pair in benchmark.pairs]
        for number, (pair, name) in enumerate(zip(benchmark.pairs, names, strict=True)):
            self._by_id.setdefault(pair.id, []).append(number)
            self._by_text.setdefault((name, pair.caption.strip()), []).append(number)
        self._rated = ImageIndex((name, name) for name in dict.fromkeys(names))
        # Either side may name images with more folders than the other.
        scored = ImageIndex((image, image) for image in images)
        found = {name: scored.find(name) for name in dict.fromkeys(names)}
        self._names = {image[0]: name for name, image in found.items() if len(image) == 1}

    def of(self, row: SystemRow, image: str, by: str) -> Sequence[int]:
        if row.failed:
            return ()
        if by == "id":
            return self._by_id.get(row.keys["id"], ())
        names = [self._names[image]] if image in self._names else self._rated.find(image)
        caption = row.caption.strip()
        return self._by_text.get((names[0], caption), ()) if len(names) == 1 else ()


def _name(image: Path, folder: Path) -> str:
    return str(image.relative_to(folder) if image.is_relative_to(folder) else image)


def describe_rated(done: RatedMeans) -> list[str]:
    """Describe how the means were made, one line per fact."""
    first = next(iter(done.means.values()))
    lines = [
        f"with judge: corrected by the scores of all {count_of(first.images, 'image')} "
        "(prediction-powered inference); λ is their weight",
        "worth: how many ratings alone would give as narrow an interval",
        "rated captions must be a random part of a captioner's",
    ]
    least = min(each.rated for each in done.means.values())
    if least < FEW_FOR_JUDGE:
        lines.append(
            f"with fewer than {FEW_FOR_JUDGE} rated images the judge has no weight, and with fewer "
            f"than {FEWEST} there is no interval"
        )
    if done.unmatched:
        lines.append(f"{count_of(done.unmatched, 'rated caption')} in none of the files")
    return lines


def rated_rows(done: RatedMeans) -> list[tuple[str, ...]]:
    """Format the means for a table: name, rated, people alone, with judge, λ, worth."""
    rows = []
    for name, each in done.means.items():
        sign = "+" if " - " in name else ""
        cells = []
        for found in (each.people, each.mean):
            texts = [format(x, f"{sign}.3f") for x in (found.low, found.high)]
            interval = "no interval" if np.isnan(found.low) else " to ".join(texts)
            cells += [format(found.value, f"{sign}.3f"), interval]
        worth = "" if np.isnan(each.worth) else f"{each.worth:.0f}"
        rows.append((name, f"{each.rated}", *cells, f"{each.weight:.3g}", worth))
    return rows
