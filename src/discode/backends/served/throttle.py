"""How many requests may be in flight, how fast they may follow, and what they may cost in all.

The server's own limit is found by trying: the number of requests in flight starts low and grows
while answers come. When the server refuses one (429, 503), whatever is still in flight is what it
can take. After that, only one request more is tried now and then. Where it refuses everything, all
requests wait as long as it asks for.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from discode.errors import InputError, StoppedError

INITIAL_LIMIT = 8
"""Requests in flight at the beginning."""
_SOONEST, _LATEST = 1.0, 30.0  # seconds from one trial of a higher limit to the next


@dataclass
class RequestThrottle:
    """Lets requests through; each ``acquire`` is followed by one ``release``, in any thread.

    Attributes:
        concurrency: The most requests in flight.
        rate: The most requests per second.
        max_requests: The most requests in all; retries count, since servers count them.
        max_cost: The most that may be spent, in the unit of the prices.
        highest_cost: The highest cost of one request, estimated until answers tell.

    >>> throttle = RequestThrottle(max_requests=1)
    >>> throttle.acquire()
    >>> throttle.release("done", cost=0.25)
    >>> throttle.acquire()
    Traceback (most recent call last):
    discode.errors.StoppedError: not asked: max_requests=1 is reached
    """

    concurrency: int = 64
    rate: float | None = None
    max_requests: int | None = None
    max_cost: float | None = None
    highest_cost: float = 0.0
    clock: Callable[[], float] = time.monotonic

    limit: int = field(default=INITIAL_LIMIT, init=False)
    sent: int = field(default=0, init=False)
    spent: float = field(default=0.0, init=False)
    pausing: int = field(default=0, init=False)
    """Requests that wait before they are tried again."""

    def __post_init__(self) -> None:
        for name in ("concurrency", "rate", "max_requests", "max_cost"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"{name}={value} is not allowed; give a number above 0")
        self.limit = min(INITIAL_LIMIT, self.concurrency)
        self._ceiling, self._step, self._period = self.concurrency, 1, _SOONEST
        self._in_flight = self._refused = 0
        self._tried = self._until = self._next = 0.0
        self._stopped, self._reopens, self._over = "", math.inf, threading.Event()
        self._changed = threading.Condition()

    def acquire(self) -> None:
        """Wait until a request may be sent; raise :class:`StoppedError` if none may be any more."""
        with self._changed:
            while True:
                if self._stopped and self.clock() >= self._reopens:
                    self._stopped = ""
                    self._over.clear()
                affordable = self._affordable()
                if self.max_requests is not None and self.sent >= self.max_requests:
                    self._stop(f"max_requests={self.max_requests} is reached")
                elif not affordable and not self._in_flight:
                    spent = f"{self.spent:.4g} spent"
                    self._stop(f"max_cost={self.max_cost:g} is reached ({spent})")
                if self._stopped:
                    raise StoppedError(self._stopped)
                wait = max(self._until, self._next) - self.clock()
                if wait <= 0 and self._in_flight < self.limit and affordable:
                    break
                self._changed.wait(wait if wait > 0 else None)
            self.sent += 1
            self._in_flight += 1
            if self.rate is not None:
                self._next = max(self._next, self.clock()) + 1 / self.rate

    def _affordable(self) -> bool:
        """Whether one request more stays below the cap, if each in flight costs the highest."""
        if self.max_cost is None:
            return True
        return self.spent + (self._in_flight + 1) * self.highest_cost <= self.max_cost

    def release(self, outcome: str, *, cost: float = 0.0, wait: float = 0.0) -> None:
        """Say how a request ended: "done", "refused" (try after ``wait`` seconds) or "failed"."""
        with self._changed:
            busy = self._in_flight >= self.limit
            self._in_flight -= 1
            self.spent += max(cost, 0.0)
            self.highest_cost = max(self.highest_cost, cost)
            now = self.clock()
            if outcome == "done":
                self._refused = 0
                if busy:
                    self._grow(now)
            elif outcome == "refused":
                self._refused += 1
                # A server that still serves the others has shown its limit; one that refuses
                # everything may soon have capacity again.
                self._period = _LATEST if self._in_flight > self.limit // 2 else _SOONEST
                self._ceiling = max(1, min(self._ceiling, max(self._in_flight, self.limit // 2)))
                self.limit = min(self.limit, self._ceiling)
                self._step, self._tried = 1, now
                if self._refused > self.limit:  # it refuses everything
                    self._until = max(self._until, now + wait)
            # Wake no more threads than may send: a hundred that wake in vain cost more than asking.
            self._changed.notify(max(1, self.limit - self._in_flight))

    def _grow(self, now: float) -> None:
        if self.limit >= self._ceiling and now - self._tried >= self._period:
            self._ceiling = min(self.concurrency, self._ceiling + self._step)
            self._step, self._tried = 2 * self._step, now
        self.limit = min(self.limit + 1, self._ceiling)

    def pause(self, seconds: float) -> None:
        """Sleep before a request is tried again; wake at once when everything is stopped."""
        with self._changed:
            self.pausing += 1
        self._over.wait(seconds)
        with self._changed:
            self.pausing -= 1

    @property
    def stopped(self) -> str:
        """Why no request is let through any more; empty while they are."""
        return self._stopped

    def stop(self, reason: str, seconds: float = math.inf) -> None:
        """Let no request through any more, or none for some time: a service outlives a wait."""
        with self._changed:
            self._stop(reason, seconds)

    def _stop(self, reason: str, seconds: float = math.inf) -> None:
        if not self._stopped:
            self._stopped, self._reopens = reason, self.clock() + seconds
            self._over.set()
            self._changed.notify_all()
