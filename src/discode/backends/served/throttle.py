"""How many requests may be under way: the server's own pace, found out, and what may be spent.

The number starts low and grows while answers come. A server that refuses (429, 503) shows where its
limit is: what is still under way then is what it holds. Above that only one request more is tried
now and then. Where it refuses all, everything waits as long as it asks for.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from discode.errors import InputError, StoppedError

FIRST = 8
"""Requests at a time in the beginning."""
_SOONEST, _LATEST = 1.0, 30.0  # seconds from one trial of a higher limit to the next


@dataclass
class Gate:
    """Lets requests through; every ``enter`` is followed by one ``leave``, in any thread.

    Attributes:
        most: Requests at a time, at most.
        rate: Requests a second, at most.
        max_requests: Requests in all; retries count, since servers count them.
        max_cost: What may be spent, in the unit of the prices.
        dearest: The cost of one request, estimated until answers tell.

    >>> gate = Gate(max_requests=1)
    >>> gate.enter()
    >>> gate.leave("done", cost=0.25)
    >>> gate.enter()
    Traceback (most recent call last):
    discode.errors.StoppedError: not asked: max_requests=1 is reached
    """

    most: int = 64
    rate: float | None = None
    max_requests: int | None = None
    max_cost: float | None = None
    dearest: float = 0.0
    clock: Callable[[], float] = time.monotonic

    limit: int = field(default=FIRST, init=False)
    sent: int = field(default=0, init=False)
    spent: float = field(default=0.0, init=False)
    resting: int = field(default=0, init=False)
    """Requests that wait before they are tried again."""

    def __post_init__(self) -> None:
        for name in ("most", "rate", "max_requests", "max_cost"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"{name}={value} is not allowed; give a number above 0")
        self.limit = min(FIRST, self.most)
        self._ceiling, self._step, self._period = self.most, 1, _SOONEST
        self._flying = self._refused = 0
        self._tried = self._until = self._next = 0.0
        self._stopped, self._reopens, self._over = "", math.inf, threading.Event()
        self._changed = threading.Condition()

    def enter(self) -> None:
        """Wait for a place; raise :class:`StoppedError` where nothing more is to be sent."""
        with self._changed:
            while True:
                if self._stopped and self.clock() >= self._reopens:
                    self._stopped = ""
                    self._over.clear()
                affordable = self._affordable()
                if self.max_requests is not None and self.sent >= self.max_requests:
                    self._end(f"not asked: max_requests={self.max_requests} is reached")
                elif not affordable and not self._flying:
                    spent = f"{self.spent:.4g} spent"
                    self._end(f"not asked: max_cost={self.max_cost:g} is reached ({spent})")
                if self._stopped:
                    raise StoppedError(self._stopped)
                wait = max(self._until, self._next) - self.clock()
                if wait <= 0 and self._flying < self.limit and affordable:
                    break
                self._changed.wait(wait if wait > 0 else None)
            self.sent += 1
            self._flying += 1
            if self.rate is not None:
                self._next = max(self._next, self.clock()) + 1 / self.rate

    def _affordable(self) -> bool:
        """Whether what is under way and one more stay below the cap at the dearest price seen."""
        if self.max_cost is None:
            return True
        return self.spent + (self._flying + 1) * self.dearest <= self.max_cost

    def leave(self, outcome: str, *, cost: float = 0.0, wait: float = 0.0) -> None:
        """Give the place back: "done", "refused" (``wait`` seconds are asked for) or "failed"."""
        with self._changed:
            busy = self._flying >= self.limit
            self._flying -= 1
            self.spent += max(cost, 0.0)
            self.dearest = max(self.dearest, cost)
            now = self.clock()
            if outcome == "done":
                self._refused = 0
                if busy:
                    self._grow(now)
            elif outcome == "refused":
                self._refused += 1
                # One that goes on serving others has shown its limit; one that refuses all may soon
                # have room again.
                self._period = _LATEST if self._flying > self.limit // 2 else _SOONEST
                self._ceiling = max(1, min(self._ceiling, max(self._flying, self.limit // 2)))
                self.limit = min(self.limit, self._ceiling)
                self._step, self._tried = 1, now
                if self._refused > self.limit:  # it refuses all
                    self._until = max(self._until, now + wait)
            # No more than can go on: a hundred threads that wake for nothing cost more than asking.
            self._changed.notify(max(1, self.limit - self._flying))

    def _grow(self, now: float) -> None:
        if self.limit >= self._ceiling and now - self._tried >= self._period:
            self._ceiling = min(self.most, self._ceiling + self._step)
            self._step, self._tried = 2 * self._step, now
        self.limit = min(self.limit + 1, self._ceiling)

    def rest(self, seconds: float) -> None:
        """Sleep before a request is tried again; not on where nothing more is sent."""
        with self._changed:
            self.resting += 1
        self._over.wait(seconds)
        with self._changed:
            self.resting -= 1

    @property
    def stopped(self) -> str:
        """Why nothing more is let through; empty while something is."""
        return self._stopped

    def stop(self, reason: str, seconds: float = math.inf) -> None:
        """Let nothing more through, or nothing for some time: a service may outlive a long wait."""
        with self._changed:
            self._end(reason, seconds)

    def _end(self, reason: str, seconds: float = math.inf) -> None:
        if not self._stopped:
            self._stopped, self._reopens = reason, self.clock() + seconds
            self._over.set()
            self._changed.notify_all()
