"""examples/discode_in_40_lines.py is the package, written a second time: they must agree."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

from discode._scales import FIVE, TEN, Scale
from discode.decoders import get_decoder
from discode.readings import Readings

FILE = Path(__file__).parents[2] / "examples" / "discode_in_40_lines.py"
discode = runpy.run_path(str(FILE))["discode"]


@pytest.mark.parametrize("scale", [TEN, FIVE], ids=lambda scale: scale.name)
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("discode", {}),
        ("discode:trust=9", {"trust": 9.0}),
        ("smoothing", {"trust": np.inf}),
        ("paper", {"printed": True}),
        ("paper:sigma2=0.5", {"printed": True, "sigma2": 0.5}),
        ("no-cross-entropy", {"printed": True, "cross_entropy": False}),
        ("no-adaptive-alpha", {"printed": True, "alpha": 0.5}),
    ],
)
def test_forty_lines_and_the_package_agree(
    method: str, options: dict[str, object], scale: Scale
) -> None:
    logp = np.random.default_rng(0).normal(0, 6, (500, len(scale.answers)))
    logp -= np.logaddexp.reduce(logp, axis=1, keepdims=True)
    decoded = get_decoder(method).decode(Readings.of(logp, scale))
    scores, distributions = discode(logp, **options)
    np.testing.assert_allclose(distributions, decoded.distribution, rtol=0, atol=1e-12)
    # The package keeps an order that plain sums round away.
    near = 1e-3 if "printed" in options else 1e-6
    np.testing.assert_allclose(scores + scale.values[0], decoded.score, rtol=0, atol=near)


def test_it_is_short_and_needs_numpy_alone() -> None:
    lines = [line for line in FILE.read_text().splitlines() if line.strip()]
    assert len(lines) <= 48
    assert [line for line in lines if line.startswith(("import", "from"))] == ["import numpy as np"]
