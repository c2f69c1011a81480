"""How many requests are let through, by a clock of our own."""

from __future__ import annotations

import asyncio
import pickle

import pytest

from discode.backends.served import throttle as throttles
from discode.backends.served.throttle import RequestThrottle
from discode.errors import StoppedError


def test_it_finds_the_limit_of_a_server() -> None:
    async def run() -> None:
        now = [0.0]
        throttle = RequestThrottle(concurrency=64, clock=lambda: now[0])
        for _ in range(4):
            await throttle.acquire()
        for _ in range(40):  # answers come: it grows
            throttle.release("done")
            await throttle.acquire()
            await throttle.acquire()
        assert throttle.limit == 44
        for _ in range(12):  # 44 in flight, 12 refused: the server holds 32
            throttle.release("refused", wait=1.0)
        assert throttle.limit == 32
        for _ in range(100):
            throttle.release("done")
            await throttle.acquire()
        assert throttle.limit == 32
        now[0] = 60.0  # much later one more is tried
        throttle.release("done")
        assert throttle.limit == 33
        throttle.stop("enough")
        with pytest.raises(StoppedError, match="not asked: enough") as stopped:
            await throttle.acquire()
        assert pickle.loads(pickle.dumps(stopped.value)).reason == "enough"  # from a worker of Ray

    asyncio.run(run())


def test_those_who_wait_are_let_through_in_turn_and_may_be_cancelled() -> None:
    async def run() -> None:
        throttle = RequestThrottle(concurrency=1)
        await throttle.acquire()
        order: list[int] = []

        async def ask(number: int) -> None:
            await throttle.acquire()
            order.append(number)

        waiting = [asyncio.create_task(ask(number)) for number in range(4)]
        await asyncio.sleep(0)
        waiting[0].cancel()  # the first in the queue
        for following in waiting[1:3]:
            throttle.release("done")
            await following
        assert order == [1, 2]
        throttle.stop("enough")
        with pytest.raises(StoppedError):
            await waiting[3]

    asyncio.run(run())


def test_it_stops_for_a_while_or_for_good() -> None:
    async def run() -> None:
        now = [0.0]
        throttle = RequestThrottle(max_requests=1, clock=lambda: now[0])
        throttle.stop("later", 300.0)
        now[0] += 299
        with pytest.raises(StoppedError, match="later"):
            await throttle.acquire()
        now[0] += 1
        await throttle.acquire()
        assert not throttle.stopped
        with pytest.raises(StoppedError, match="max_requests=1"):
            await throttle.acquire()

    asyncio.run(run())


def test_a_fork_has_a_loop_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    throttle = RequestThrottle(concurrency=1)

    async def run() -> None:
        await throttle.acquire()
        waiting = asyncio.create_task(throttle.acquire())
        await asyncio.sleep(0)
        throttle.release("done")
        await waiting

    asyncio.run(run())
    monkeypatch.setattr("os.getpid", lambda: -1)
    asyncio.run(run())
    assert throttle.sent == 4


def test_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    async def wait(event: object, seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(throttles, "_wait_for", wait)

    async def run() -> None:
        throttle = RequestThrottle(rate=50, clock=lambda: now[0])
        for _ in range(20):
            await throttle.acquire()
            throttle.release("done")

    asyncio.run(run())
    assert now[0] == pytest.approx(19 / 50)
