"""How many requests are let through, by a clock of our own."""

from __future__ import annotations

import pickle

import pytest

from discode.backends.served.throttle import RequestThrottle
from discode.errors import StoppedError


def test_it_finds_the_limit_of_a_server() -> None:
    now = [0.0]
    throttle = RequestThrottle(concurrency=64, clock=lambda: now[0])
    for _ in range(4):
        throttle.acquire()
    for _ in range(40):  # answers come: it grows
        throttle.release("done")
        throttle.acquire()
        throttle.acquire()
    assert throttle.limit == 44
    for _ in range(12):  # 44 in flight, 12 refused: the server holds 32
        throttle.release("refused", wait=1.0)
    assert throttle.limit == 32
    for _ in range(100):
        throttle.release("done")
        throttle.acquire()
    assert throttle.limit == 32
    now[0] = 60.0  # much later one more is tried
    throttle.release("done")
    assert throttle.limit == 33
    throttle.stop("enough")
    with pytest.raises(StoppedError, match="not asked: enough") as stopped:
        throttle.acquire()
    assert pickle.loads(pickle.dumps(stopped.value)).reason == "enough"  # from a worker of Ray


def test_it_stops_for_a_while_or_for_good() -> None:
    now = [0.0]
    throttle = RequestThrottle(max_requests=1, clock=lambda: now[0])
    throttle.stop("later", 300.0)
    now[0] += 299
    with pytest.raises(StoppedError, match="later"):
        throttle.acquire()
    now[0] += 1
    throttle.acquire()
    assert not throttle.stopped
    with pytest.raises(StoppedError, match="max_requests=1"):
        throttle.acquire()


def test_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    throttle = RequestThrottle(rate=50, clock=lambda: now[0])

    def wait(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(throttle._changed, "wait", wait)
    for _ in range(20):
        throttle.acquire()
        throttle.release("done")
    assert now[0] == pytest.approx(19 / 50)
