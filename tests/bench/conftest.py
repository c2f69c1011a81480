"""The runs of fake metrics that several test files share."""

from __future__ import annotations

import pytest

from discode.bench import RunLog
from tests.helpers.fake_runs import fake_runs


@pytest.fixture
def runs() -> dict[str, RunLog]:
    """A run on ratings and one on choices."""
    return fake_runs()
