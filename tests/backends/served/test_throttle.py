"""How many requests are let through, by a clock of our own."""

from __future__ import annotations

import asyncio
import pickle

import pytest

from discode.backends._served import throttle as throttles
from discode.backends._served.throttle import RequestThrottle
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
        for _ in range(24):  # 44 in flight, 24 refused: the server holds 20
            throttle.release("refused", wait=1.0)
        assert throttle.limit == 20
        now[0] = 1.1
        for _ in range(100):
            throttle.release("done")
            await throttle.acquire()
        assert throttle.limit == 20
        now[0] = 60.0  # much later one more is tried
        throttle.release("done")
        assert throttle.limit == 21
        throttle.stop("enough")
        with pytest.raises(StoppedError, match="not asked: enough") as stopped:
            await throttle.acquire()
        assert pickle.loads(pickle.dumps(stopped.value)).reason == "enough"  # from a worker of Ray

    asyncio.run(run())


def test_answers_that_come_together_make_room_each() -> None:
    async def run() -> None:
        throttle = RequestThrottle(concurrency=64, initial=8, clock=lambda: 0.0)
        for _ in range(8):
            await throttle.acquire()
        waiting = asyncio.create_task(throttle.acquire())
        await asyncio.sleep(0)
        for _ in range(8):
            throttle.release("done")
        assert throttle.limit == 16
        await waiting

    asyncio.run(run())


@pytest.mark.parametrize(("outcome", "every"), [("failed", 2), ("refused", 6)])
def test_failures_and_refusals_at_random_do_not_lower_the_limit(outcome: str, every: int) -> None:
    async def run() -> None:
        throttle = RequestThrottle(concurrency=64, clock=lambda: 0.0)
        for number in range(2000):
            while throttle._in_flight < throttle.limit:
                await throttle.acquire()
            throttle.release("done" if number % every else outcome)
        assert throttle.limit == 64

    asyncio.run(run())


def test_a_small_limit_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        throttle = RequestThrottle(concurrency=64, clock=lambda: 0.0)
        for _ in range(8):
            await throttle.acquire()
        for _ in range(8):
            throttle.release("refused")
        assert throttle.limit <= 4
        assert f"{throttle.limit} of at most 64" in throttle.usage()

    asyncio.run(run())
    assert len(caplog.records) == 1


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
