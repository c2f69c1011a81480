"""Counters of the service in the format that Prometheus reads."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class ServiceCounters:
    """Counters of one service, in a registry of their own: a process may hold several."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "discode_requests", "Answers of POST requests", ["status"], registry=self.registry
        )
        self.seconds = Histogram(
            "discode_request_seconds", "From the request's head to its answer",
            buckets=_SECONDS, registry=self.registry,
        )  # fmt: skip
        self.pairs = Counter(
            "discode_pairs", "Captions scored or explained", registry=self.registry
        )
        self.failed = Counter(
            "discode_failed_pairs", "Captions that got no score, or not all of their words",
            registry=self.registry,
        )  # fmt: skip
        self.batch = Histogram(
            "discode_batch_pairs", "Captions the judge got at once, variants included",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256), registry=self.registry,
        )  # fmt: skip
        self.judge = Histogram(
            "discode_judge_seconds", "Time of the judge per batch",
            buckets=_SECONDS, registry=self.registry,
        )  # fmt: skip
        self.active = Gauge(
            "discode_requests_inside", "Requests being worked on", registry=self.registry
        )

    def text(self) -> bytes:
        return generate_latest(self.registry)
