"""The cost table: every decoder is timed, with the spread of its runs, and shapes add up."""

from __future__ import annotations

import math

import pytest

from discode.backends import open_backend
from discode.errors import InputError
from discode.images import demo_path
from discode.paper.cost import TIMED, Cost, RunTime, measure


@pytest.mark.usefixtures("shipped")
def test_the_closed_form_is_cheaper_than_adam() -> None:
    pytest.importorskip("torch", reason="Adam wants discode-eval[adam]")
    backend = open_backend("embedded")
    for rows in measure(backend, backend.prompt, [demo_path() / "cat.jpg"], captions=2, runs=2):
        assert [row.method for row in rows] == list(TIMED)
        by_name = {row.method: row for row in rows}
        assert 0 < by_name["DISCODE"].scoring.mean < by_name["DISCODE by Adam"].scoring.mean
        assert all(row.backbone.mean > 0 and row.backbone.spread >= 0 for row in rows)
    with pytest.raises(InputError, match="nowhere"):
        measure(backend, backend.prompt, [demo_path() / "nowhere.jpg"], captions=1)


def test_overhead_is_a_share_of_the_backbone() -> None:
    assert Cost("x", RunTime(2.0, 0.0), RunTime(0.01, 0.0)).overhead == pytest.approx(0.5)


def test_the_spread_of_one_run_is_unknown() -> None:
    assert math.isnan(RunTime.of([1.0]).spread)
    assert str(RunTime.of([1.0])) == "1.000"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # transformers warns a lot
def test_the_shapes_are_those_of_the_papers_models() -> None:
    """Counted on the meta device, so that none of 73 billion weights is made."""
    for module in ("torch", "transformers"):
        pytest.importorskip(module, reason="local models want discode-eval[hf]")
    from discode.backends.local.catalog import CATALOG
    from discode.paper.random_weights import count_parameters

    sizes = {row.paper: row.billions for row in CATALOG if row.paper}
    for size in ("8B", "13B", "34B", "72B"):
        counted = count_parameters(f"llava-next-{size.lower()}") / 1e9
        assert counted == pytest.approx(sizes[f"LLaVA-NeXT-{size}"], rel=0.01), size
