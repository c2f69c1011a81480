"""Shares, shards and chunks: how the rows of an input are divided, without counting them.

A *shard* is an output file and the rows it holds: row r of file k is in shard r // size of that
file, ``part-k-b`` on disk. A *chunk* is some rows of a shard in memory. A *share* is one process's
part of a run: some of the shards. Nothing has to be counted first, so any process can tell its
rows from another's, and a finished shard from an unfinished one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from discode._pairs import Pair
from discode.errors import InputError

T = TypeVar("T")

MANIFEST = "_run.json"
"""The file in an output folder that describes the run."""
SCORES = "scores.jsonl"
"""The file in a folder of scores that were not written in shards."""
SHARD_ROWS = 10_000
"""Rows of a shard."""
CHUNK_ROWS = 1024
"""The most rows of a chunk, where a model is not asked about more at once."""
CHUNK_BYTES = 64 << 20
"""The most bytes of images in a chunk, where images are in memory, too."""


@dataclass(frozen=True, slots=True, order=True)
class Shard:
    """Shard ``number`` of file ``file``, both counted from 0.

    >>> Shard(0, 12).name
    'part-00000-00012'
    """

    file: int
    number: int

    @property
    def name(self) -> str:
        """The name of its files, without a suffix; names sort as the input does."""
        return f"part-{self.file:05d}-{self.number:05d}"

    @classmethod
    def of(cls, name: str) -> Shard | None:
        """Return the shard that a file belongs to by its name; None for other files.

        >>> Shard.of(".part-00000-00012.jsonl.x7.part")
        Shard(file=0, number=12)
        """
        match = re.match(r"\.?part-(\d{5,})-(\d{5,})\.", name)
        return None if match is None else cls(int(match[1]), int(match[2]))


@dataclass(frozen=True, slots=True)
class Share:
    """Share ``index`` of ``count`` equal processes.

    With at least ``count`` files, file k goes whole to share k mod count, so that no process
    reads what is not its own. With fewer, shard b of file k goes to share (k + b) mod count.

    >>> Share.parse("3/8")
    Share(index=3, count=8)
    """

    index: int = 0
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Share:
        """Read "I/N"."""
        match = re.fullmatch(r"\s*(\d{1,9})\s*/\s*(\d{1,9})\s*", text)
        if match is None or int(match[1]) >= int(match[2]):
            raise InputError(
                f"shard {text!r} is not allowed; give I/N with 0 <= I < N, such as 0/8"
            )
        return cls(int(match[1]), int(match[2]))

    def reads(self, file: int, files: int) -> bool:
        """Whether any row of a file may belong to this share."""
        return files < self.count or file % self.count == self.index

    def owns(self, shard: Shard, files: int) -> bool:
        """Whether a shard belongs to this share."""
        if files >= self.count:
            return shard.file % self.count == self.index
        return (shard.file + shard.number) % self.count == self.index


@dataclass(frozen=True)
class ChunkPlan:
    """How a file is divided: rows per shard, which shards are wanted, and the limits of a chunk."""

    shard_rows: int = SHARD_ROWS
    wanted: Callable[[int], bool] = lambda number: True
    max_rows: int = CHUNK_ROWS
    max_bytes: int = CHUNK_BYTES

    def __post_init__(self) -> None:
        if not isinstance(self.shard_rows, int) or self.shard_rows < 1:
            raise InputError(f"shard size {self.shard_rows} is not allowed; give 1 or more rows")

    def wants(self, rows: range) -> bool:
        """Whether a wanted shard holds any of these rows."""
        first, last = rows.start // self.shard_rows, (rows.stop - 1) // self.shard_rows
        return any(map(self.wanted, range(first, last + 1)))


@dataclass(frozen=True)
class ChunkPlace:
    """Where a chunk is: its shard, its first row, and whether shard and file end with it."""

    shard: Shard = Shard(0, 0)
    start: int = 0
    ends_shard: bool = True
    ends_file: bool = True


@dataclass(frozen=True)
class PairChunk:
    """Some rows of one shard; the pair of a row that cannot be used has a ``problem``."""

    place: ChunkPlace
    source: str | None  # the name of their file; None for the command line
    pairs: Sequence[Pair]
    images: Sequence[str | None]  # what the input calls them; None for those without a name
    captions: Sequence[str | None]
    samples: Sequence[Any] = ()  # the rows as they were read, to be written again

    def __len__(self) -> int:
        return len(self.pairs)

    def take(self, rows: Sequence[int]) -> PairChunk:
        """Return some of its rows as a chunk; its place is that of the whole."""

        def taken(column: Sequence[Any]) -> list[Any]:
            return [column[row] for row in rows] if column else []

        return replace(
            self,
            pairs=taken(self.pairs),
            images=taken(self.images),
            captions=taken(self.captions),
            samples=taken(self.samples),
        )


def split(
    items: Iterable[T], file: int, plan: ChunkPlan, weigh: Callable[[T], int] | None = None
) -> Iterator[tuple[ChunkPlace, list[T]]]:
    """Divide a file's items into chunks; none crosses a shard, unwanted shards are left out.

    >>> plan = ChunkPlan(2, lambda shard: shard != 1)
    >>> [(place.start, rows, place.ends_file) for place, rows in split("abcde", 0, plan)]
    [(0, ['a', 'b'], False), (4, ['e'], True)]
    """
    # Looks one item ahead: whether a shard is the last one is known when it ends.
    rows: list[T] = []
    start = weight = 0
    shard = -1
    take = False
    for number, item in enumerate(items):
        if number // plan.shard_rows != shard:
            if rows:
                yield ChunkPlace(Shard(file, shard), start, True, False), rows
            rows, start, weight = [], number, 0
            shard = number // plan.shard_rows
            take = plan.wanted(shard)
        elif len(rows) == plan.max_rows or weight > plan.max_bytes:
            yield ChunkPlace(Shard(file, shard), start, False, False), rows
            rows, start, weight = [], number, 0
        if take:
            rows.append(item)
            if weigh is not None:
                weight += weigh(item)
    if rows:
        yield ChunkPlace(Shard(file, shard), start, True, True), rows
