"""Limits on requests in flight, on their rate and on their total cost.

The server's own limit is found by trial: the number of requests in flight starts low and grows as
answers arrive. When the server refuses many (429, 503), the limit falls to what is still in flight,
or to half if that is more. After that, one more request is tried from time to time. If the server
refuses everything, all requests wait as long as it asks. Other failures (500, timeouts) do not
change the limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from discode.errors import StoppedError, count_of

LOG = logging.getLogger("discode")

INITIAL_LIMIT = 8
"""Requests in flight at the start, to a service that others use, too."""
OWN_INITIAL_LIMIT = 32
"""Requests in flight at the start to an address of one's own: fewer leave its GPU waiting."""
TOLERATED = 0.3
"""Share of refusals among recent requests that leaves the limit unchanged."""
_RECENT = 64  # requests over which that share is taken, weighted by age
SMALL = 4
"""A limit of at most ``concurrency`` divided by this is logged, once."""
_SOONEST, _LATEST = 1.0, 30.0  # seconds from one trial of a higher limit to the next
COLLECTING: list[list[RequestThrottle]] = []
"""Lists to which every new throttle is appended."""


@dataclass
class RequestThrottle:
    """Lets requests of one event loop through; each ``acquire`` is followed by one ``release``.

    Attributes:
        concurrency: Maximum requests in flight.
        rate: Maximum requests per second.
        max_requests: Maximum total of requests, including retries, since servers count them.
        max_cost: Maximum total cost, in the unit of the prices.
        highest_cost: Highest cost of one request, estimated until the first answer.
        initial: Requests in flight at the start.

    >>> async def ask_twice(throttle: RequestThrottle) -> None:
    ...     await throttle.acquire()
    ...     throttle.release("done", cost=0.25)
    ...     await throttle.acquire()
    >>> asyncio.run(ask_twice(RequestThrottle(max_requests=1)))
    Traceback (most recent call last):
    discode.errors.StoppedError: not asked: max_requests=1 is reached
    """

    concurrency: int = 64
    rate: float | None = None
    max_requests: int | None = None
    max_cost: float | None = None
    highest_cost: float = 0.0
    clock: Callable[[], float] = time.monotonic
    initial: int = INITIAL_LIMIT

    limit: int = field(default=INITIAL_LIMIT, init=False)
    sent: int = field(default=0, init=False)
    spent: float = field(default=0.0, init=False)
    pairs: int = field(default=0, init=False)
    """Pairs with an answer or an error."""
    read: int = field(default=0, init=False)
    written: int = field(default=0, init=False)
    """Tokens, by the usage in answers."""
    retries: Counter[str] = field(default_factory=Counter, init=False)
    """Number of retries by reason, such as "429"."""
    stopped: str = field(default="", init=False)
    """Why requests are no longer let through; empty while they are."""

    def __post_init__(self) -> None:
        self.limit = min(self.initial, self.concurrency)
        self._ceiling, self._step, self._period = self.concurrency, 1, _SOONEST
        self._refused, self._share, self._announced = 0, 0.0, False
        self._tried = self._until = self._next = 0.0
        self._full = False  # whether a request waits for a place
        self._reopens = math.inf
        self._began = self._ended = self.clock()
        self._begin()
        for made in COLLECTING:
            made.append(self)

    def _begin(self) -> None:
        """Bind to the event loop of this process; a fork has another."""
        self._process, self._in_flight = os.getpid(), 0
        self._turn, self._changed, self._over = asyncio.Lock(), asyncio.Event(), asyncio.Event()

    async def acquire(self) -> None:
        """Wait until a request may be sent; raise :class:`StoppedError` after a stop."""
        if self._process != os.getpid():
            self._begin()
        async with self._turn:  # the first in the queue waits for a change, the others in line
            while (wait := self._seconds_to_wait()) != 0:
                self._changed.clear()
                await _wait_for(self._changed, wait)
        if not self.sent:
            self._began = self.clock()
        self.sent += 1
        self._in_flight += 1
        if self.rate is not None:
            self._next = max(self._next, self.clock()) + 1 / self.rate

    def _seconds_to_wait(self) -> float | None:
        """0 if a request may be sent now, None if another one must end first."""
        if self.stopped and self.clock() >= self._reopens:
            self.stopped = ""
            self._over.clear()
        # Each request in flight may cost as much as the most expensive one.
        reserved = self.spent + (self._in_flight + 1) * self.highest_cost
        affordable = self.max_cost is None or reserved <= self.max_cost
        if self.max_requests is not None and self.sent >= self.max_requests:
            self.stop(f"max_requests={self.max_requests} is reached")
        elif not affordable and not self._in_flight:
            self.stop(f"max_cost={self.max_cost:g} is reached ({self.spent:.4g} spent)")
        if self.stopped:
            raise StoppedError(self.stopped)
        wait = max(self._until, self._next) - self.clock()
        if wait > 0:
            return wait
        self._full = self._in_flight >= self.limit
        return 0 if affordable and not self._full else None

    def release(self, outcome: str, *, cost: float = 0.0, wait: float = 0.0) -> None:
        """Record the end of a request: "done", "refused" (retry after ``wait`` s) or "failed"."""
        busy = self._full or self._in_flight >= self.limit
        self._in_flight -= 1
        self.spent += max(cost, 0.0)
        self.highest_cost = max(self.highest_cost, cost)
        now = self._ended = self.clock()
        if outcome in ("done", "refused"):
            self._share += ((outcome == "refused") - self._share) / _RECENT
        if outcome == "done":
            self._refused = 0
            if busy:
                self._grow(now)
        elif outcome == "refused":
            self._refused += 1
            if self._share > TOLERATED or self._refused > self.limit // 2:
                self._shrink(now)
            if self._refused > self.limit:  # it refuses everything
                self._until = max(self._until, now + wait)
        self._changed.set()

    def _shrink(self, now: float) -> None:
        # A server that still serves other requests has shown its limit; one that refuses
        # everything may soon have capacity again.
        self._period = _LATEST if self._in_flight > self.limit // 2 else _SOONEST
        self._ceiling = max(1, min(self._ceiling, max(self._in_flight, self.limit // 2)))
        self.limit = min(self.limit, self._ceiling)
        self._step, self._tried = 1, now
        if self.limit <= self.concurrency // SMALL and not self._announced:
            self._announced = True
            LOG.warning("%s", self._refuses_more())

    def _refuses_more(self) -> str:
        most = f"{self._ceiling} of at most {count_of(self.concurrency, 'request')} in flight"
        return f"{most}: the server refuses more"

    def usage(self) -> str:
        """Summarise requests, retries, tokens, cost and speed.

        >>> throttle = RequestThrottle()
        >>> throttle.sent, throttle.read, throttle.written = 12, 9000, 40
        >>> throttle.retries["429"] = 2
        >>> throttle.usage()
        '12 requests (retries: 2 x 429); 9,000 tokens read, 40 written'
        """
        parts = []
        if self.pairs:
            seconds = self._ended - self._began
            rate = f", {self.pairs / seconds:.1f} pairs/s" if seconds > 0 else ""
            parts.append(f"{count_of(self.pairs, 'pair')} read in {seconds:.1f} s{rate}")
        why = ", ".join(f"{count} x {reason}" for reason, count in self.retries.most_common())
        retried = f" (retries: {why})" if why else ""
        parts.append(f"{count_of(self.sent, 'request')}{retried}")
        if self.read:
            parts.append(f"{self.read:,} tokens read, {self.written:,} written")
        if self.spent:
            parts.append(f"cost {self.spent:.4g}")
        if self._ceiling < self.concurrency:
            parts.append(self._refuses_more())
        return "; ".join(parts)

    def _grow(self, now: float) -> None:
        if self.limit >= self._ceiling and now - self._tried >= self._period:
            self._ceiling = min(self.concurrency, self._ceiling + self._step)
            self._step, self._tried = 2 * self._step, now
        self.limit = min(self.limit + 1, self._ceiling)

    async def pause(self, seconds: float) -> None:
        """Sleep before a retry; a stop wakes it at once."""
        await _wait_for(self._over, seconds)

    def stop(self, reason: str, seconds: float = math.inf) -> None:
        """Block requests for good, or for some time: a service survives a wait."""
        if not self.stopped:
            self.stopped, self._reopens = reason, self.clock() + seconds
            self._over.set()
            self._changed.set()


async def _wait_for(event: asyncio.Event, seconds: float | None) -> None:
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
