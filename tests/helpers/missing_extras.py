"""A plugin of pytest: tests that need a package which is not installed are skipped, and say so."""

from __future__ import annotations

import doctest
from collections.abc import Generator
from importlib.util import find_spec
from typing import Any

import pytest

# If one of them is missing, that is a mistake and no extra.
OURS = {"discode", "mceval", "tests", "training", "perf"}


def missing_package(error: BaseException | None) -> str | None:
    """The package that an error names because it is not installed, if it is none of ours."""
    if isinstance(error, doctest.UnexpectedException):
        error = error.exc_info[1]
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and error.name:
            name = error.name.partition(".")[0]
            if name not in OURS and find_spec(name) is None:
                return name
        error = error.__cause__ or error.__context__
    return None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, Any]:
    """Skip a file that imports what an extra installs, where that is missing."""
    report = yield
    if report.failed and (name := missing_package(report.call.excinfo.value)):
        report.outcome = "skipped"
        report.longrepr = (report.nodeid, 0, f"Skipped: {name} is not installed")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    """Skip a test that uses what an extra installs, where that is missing."""
    try:
        return (yield)
    except Exception as error:
        if name := missing_package(error):
            pytest.skip(f"{name} is not installed")
        raise
