"""Inputs for large runs, and a Ray to run them on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.helpers.samples import write_table

ROOT = Path(__file__).parents[2]


@pytest.fixture
def lines(tmp_path: Path) -> Callable[[int], Path]:
    def make(n: int, name: str = "set.jsonl") -> Path:
        from tests.helpers.instant import rows

        return write_table(tmp_path / name, rows(n))

    return make


@pytest.fixture(scope="package")
def cluster() -> Iterator[None]:
    """A real Ray on two cores of this machine."""
    ray = pytest.importorskip("ray", reason="Ray is tested with discode-eval[ray]")
    with pytest.MonkeyPatch.context() as patch:
        # Workers import what the driver does.
        patch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else it warns
        ray.init(
            num_cpus=2, num_gpus=0, include_dashboard=False, log_to_driver=False,
            logging_level="ERROR",
        )  # fmt: skip
        yield
        ray.shutdown()
