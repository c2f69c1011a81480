"""Answers that come one by one, handed on together, but soon: what is handed on is kept."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator

from discode.readings import Readings
from discode.scales import Scale

Done = queue.SimpleQueue[tuple[list[int], Readings | BaseException]]
"""Rows with their one reading, or what went wrong with the program."""
BLOCK = 64
"""Answers that are handed on, and kept, at a time."""
KEPT_AFTER = 0.5
"""Seconds that an answer waits for others, at most: a run that is killed asks for it again."""


def in_blocks(
    done: Done,
    count: int,
    scale: Scale,
    hire: Callable[[], None],
) -> Iterator[tuple[list[int], Readings]]:
    """Yield ``count`` answers and the rows they are for, :data:`BLOCK` at a time or as time passes.

    ``hire`` is called behind each; an exception among the answers is raised.
    """
    rows: list[int] = []
    parts: list[Readings] = []
    number, oldest = 0, 0.0
    while number < count:
        late = False
        try:
            wait = max(0.0, oldest + KEPT_AFTER - time.monotonic()) if parts else None
            owners, reading = done.get(timeout=wait)
        except queue.Empty:
            late = True
        else:
            hire()
            if isinstance(reading, BaseException):
                raise reading
            oldest = oldest if parts else time.monotonic()
            rows += owners
            parts.append(reading if len(owners) == 1 else reading.take([0] * len(owners)))
            number += 1
        if late or len(parts) == BLOCK or number == count:
            yield rows, Readings.concat(scale, parts)
            rows, parts = [], []
