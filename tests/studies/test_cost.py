"""The cost table: every decoder is timed, and the closed form is cheaper than Adam."""

from __future__ import annotations

import pytest

from discode.backends import open_backend
from discode.images import demo_path
from discode.studies.cost import METHODS, Cost, measure


@pytest.mark.usefixtures("shipped")
def test_the_closed_form_is_cheaper_than_adam() -> None:
    pytest.importorskip("torch", reason="Adam wants discode[adam]")
    backend = open_backend("embedded")
    rows = measure(backend, backend.prompt, [demo_path() / "cat.jpg"], captions=2, repeats=2)
    assert [row.method for row in rows] == list(METHODS)
    by_name = {row.method: row for row in rows}
    closed, adam = by_name["DISCODE"], by_name["DISCODE by Adam"]
    assert 0 < closed.scoring < adam.scoring
    assert 0 < closed.scoring_batch < adam.scoring_batch
    assert all(row.backbone > 0 for row in rows)


def test_overhead_is_a_share_of_the_backbone() -> None:
    row = Cost("x", backbone=2.0, scoring=0.01, backbone_batch=0.5, scoring_batch=0.001)
    assert row.overhead == pytest.approx(0.5)
    assert row.overhead_batch == pytest.approx(0.2)
