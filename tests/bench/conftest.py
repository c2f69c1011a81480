"""Runs of fake metrics that the tests of tables, figures and comparisons share."""

from __future__ import annotations

import pytest

from discode.bench import RunLog, run_metrics
from tests.helpers.fake_runs import QUICK, FakeFactory, FakeMetric, preferred, rated


@pytest.fixture(scope="session")
def runs() -> dict[str, RunLog]:
    """A run on ratings and one on choices: two good metrics and a bad one."""
    factory = FakeFactory(good=FakeMetric(0, 2.0), bad=FakeMetric(1, 30.0), same=FakeMetric(2, 2.0))
    labels = {"cider": "good", "bleu-4": "bad", "other": "same"}
    return {
        "ratings": run_metrics(rated(), labels, factory, QUICK)[0],
        "choices": run_metrics(preferred(), labels, factory, QUICK)[0],
    }
