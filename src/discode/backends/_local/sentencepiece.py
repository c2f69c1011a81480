"""Read the ``tokenizer.model`` of SentencePiece without its library.

The file is a protocol buffer: field 1 contains the pieces, field 3 the normalizer's settings.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

NORMAL_PIECE = 1
"""The type of ordinary pieces; others are control tokens, bytes and unused pieces."""


def read_pieces(model: bytes) -> Iterator[tuple[str, float, int]]:
    """Yield text, score and type of the pieces; raises ValueError if the file is something else.

    >>> list(read_pieces(bytes([10, 8, 10, 1, 97, 21, 0, 0, 128, 191])))
    [('a', -1.0, 1)]
    """
    for number, value in protobuf_fields(model):
        if number != 1:
            continue
        piece = dict(protobuf_fields(value)) if isinstance(value, bytes) else {}
        text, score, kind = piece.get(1), piece.get(2, bytes(4)), piece.get(3, NORMAL_PIECE)
        if not isinstance(text, bytes) or not isinstance(score, bytes) or isinstance(kind, bytes):
            raise ValueError("it is not a SentencePiece model")
        yield text.decode(), struct.unpack("<f", score)[0], kind


def merges_by_score(scores: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """Yield the merges of a BPE model, best first: all ways to split its pieces into two.

    >>> list(merges_by_score({"a": 0.0, "b": -1.0, "ab": -2.0, "aab": -3.0}))
    [('a', 'b'), ('a', 'ab')]
    """
    for piece in sorted(scores, key=lambda piece: -scores[piece]):
        for cut in range(1, len(piece)):
            if piece[:cut] in scores and piece[cut:] in scores:
                yield piece[:cut], piece[cut:]


def protobuf_fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the numbers and values of a protocol buffer's fields; raises ValueError or IndexError.

    >>> list(protobuf_fields(bytes([8, 150, 1, 18, 2, 104, 105])))
    [(1, 150), (2, b'hi')]
    """
    place = 0

    def integer() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = message[place]
            place += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while place < len(message):
        number, kind = divmod(integer(), 8)
        if kind == 0:
            yield number, integer()
            continue
        if kind not in (1, 2, 5):
            raise ValueError(f"field {number} is of kind {kind}")
        length = integer() if kind == 2 else {1: 8, 5: 4}[kind]
        place += length
        if place > len(message):
            raise ValueError(f"field {number} is cut short")
        yield number, message[place - length : place]
