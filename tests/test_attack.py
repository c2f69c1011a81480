"""The attacks of ``perf/attack``, in small: what they promise holds."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the service wants discode-eval[serve]")

from discode.backends.embedded import SHIPPED
from perf.attack.__main__ import ATTACKS
from tests.helpers.shipped import NO_MODEL

COUNTS = {
    "images": 40, "captions": 15, "kill": 3, "store": 6, "addresses": 49, "requests": 20,
    "minimise": 60,
}  # fmt: skip
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not SHIPPED.is_file(), reason=NO_MODEL),
]


def test_every_attack_is_tried() -> None:
    assert COUNTS.keys() == ATTACKS.keys()


@pytest.mark.parametrize("name", COUNTS)
def test_promises(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISCODE_DATA", str(tmp_path))  # real tokenizers take long to open
    attack = import_module(f"perf.attack.{name}").attack
    report = attack(COUNTS[name], np.random.default_rng(0), tmp_path)
    assert not report.broken, report.lines()
