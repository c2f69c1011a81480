"""Rows in bounded memory: blocks that become output shards, cut into chunks that fit.

Row r of a file belongs to block r // size; block b of file k becomes the output shard
``part-k-b``. Nothing has to be counted first, so any process can tell its own rows from another's
and a finished block from an unfinished one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from discode.errors import InputError
from discode.pairs import Pair

T = TypeVar("T")

BLOCK_ROWS = 10_000
"""Rows an output shard."""
CHUNK_ROWS = 1024
"""Rows in memory at a time,"""
CHUNK_BYTES = 64 << 20
"""or fewer, where their pictures are in memory, too."""


@dataclass(frozen=True, slots=True)
class Block:
    """Block ``number`` of file ``file``, both counted from 0.

    >>> Block(0, 12).name
    'part-00000-00012'
    """

    file: int
    number: int

    @property
    def name(self) -> str:
        """The name of its output shard, without a suffix; names sort as the input does."""
        return f"part-{self.file:05d}-{self.number:05d}"

    @classmethod
    def of(cls, name: str) -> Block | None:
        """Return the block that a file's name speaks of, if any.

        >>> Block.of(".part-00000-00012.jsonl.x7.part")
        Block(file=0, number=12)
        """
        match = re.match(r"\.?part-(\d{5,})-(\d{5,})\.", name)
        return None if match is None else cls(int(match[1]), int(match[2]))


@dataclass(frozen=True, slots=True)
class Shard:
    """Share ``index`` of ``count`` equal processes.

    With at least ``count`` files, file k goes whole to share k mod count, so that no process
    reads what is not its own. With fewer, block b of file k goes to share (k + b) mod count.

    >>> Shard.parse("3/8")
    Shard(index=3, count=8)
    """

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if self.count < 1 or not 0 <= self.index < self.count:
            raise InputError(
                f"shard {self.index}/{self.count} is not allowed; "
                "give I/N with I from 0 to N-1, such as 0/8"
            )

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read "I/N"."""
        match = re.fullmatch(r"\s*(\d{1,9})\s*/\s*(\d{1,9})\s*", text)
        if match is None:
            raise InputError(
                f"shard {text!r} is not allowed; give I/N with I from 0 to N-1, such as 0/8"
            )
        return cls(int(match[1]), int(match[2]))

    def reads(self, file: int, files: int) -> bool:
        """Return whether any row of a file may be this share's."""
        return files < self.count or file % self.count == self.index

    def owns(self, block: Block, files: int) -> bool:
        """Return whether a block is this share's."""
        if files >= self.count:
            return block.file % self.count == self.index
        return (block.file + block.number) % self.count == self.index


@dataclass(frozen=True)
class Cut:
    """How a file is cut: rows a block, which blocks are wanted, and how large a chunk may be."""

    size: int = BLOCK_ROWS
    wanted: Callable[[int], bool] = lambda number: True
    rows: int = CHUNK_ROWS
    bytes: int = CHUNK_BYTES

    def __post_init__(self) -> None:
        if not isinstance(self.size, int) or self.size < 1:
            raise InputError(f"shard size {self.size} is not allowed; give 1 or more rows")


@dataclass(frozen=True)
class Piece:
    """Where a chunk stands, and whether its block and its file end with it."""

    block: Block
    start: int
    ends_block: bool
    ends_file: bool


@dataclass(frozen=True)
class Chunk:
    """Some rows of one block: pairs, or the reasons why there is none.

    Attributes:
        piece: Where they stand.
        ids: A name each.
        pairs: A pair each, None where the row cannot be used.
        errors: Place in the chunk to the reason.
        raw: The rows as they came, for those who write them again; None if nobody will.
    """

    piece: Piece
    ids: Sequence[str]
    pairs: Sequence[Pair | None]
    errors: Mapping[int, str]
    raw: Any = None

    def __len__(self) -> int:
        return len(self.pairs)


def cut(
    items: Iterable[T], file: int, how: Cut, weigh: Callable[[T], int] | None = None
) -> Iterator[tuple[Piece, list[T]]]:
    """Cut a file's items into pieces; no piece crosses a block, unwanted blocks are passed over.

    >>> [(p.start, part, p.ends_file) for p, part in cut("abcde", 0, Cut(2, lambda b: b != 1))]
    [(0, ['a', 'b'], False), (4, ['e'], True)]
    """
    # One item is looked ahead: whether a block is the last one is known when it ends.
    part: list[T] = []
    start = weight = 0
    number = -1
    block = -1
    take = False
    for number, item in enumerate(items):
        if number // how.size != block:
            if part:
                yield Piece(Block(file, block), start, True, False), part
            part, start, weight = [], number, 0
            block = number // how.size
            take = how.wanted(block)
        elif len(part) == how.rows or weight > how.bytes:
            yield Piece(Block(file, block), start, False, False), part
            part, start, weight = [], number, 0
        if take:
            part.append(item)
            if weigh is not None:
                weight += weigh(item)
    if part:
        yield Piece(Block(file, block), start, True, True), part
