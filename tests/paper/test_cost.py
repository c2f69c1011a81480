"""The cost table: every decoder is timed, with the spread of its runs, and shapes add up."""

from __future__ import annotations

import pytest

from discode._paper.cost import TIMED, measure
from discode.backends import open_backend
from discode.errors import InputError
from discode.images import demo_path


@pytest.mark.usefixtures("shipped")
def test_the_closed_form_is_cheaper_than_adam() -> None:
    pytest.importorskip("torch", reason="Adam wants discode-eval[adam]")
    backend = open_backend("embedded")
    for rows in measure(backend, [demo_path() / "cat.jpg"], captions=2, runs=2):
        assert [row.method for row in rows] == list(TIMED)
        by_name = {row.method: row for row in rows}
        closed, adam = by_name["DISCODE"], by_name["DISCODE by Adam"]
        assert 0 < sum(closed.scoring) < sum(adam.scoring)
        share = sum(closed.scoring) / sum(closed.backbone)
        assert closed.overhead == pytest.approx(100 * share)
    with pytest.raises(InputError, match="nowhere"):
        measure(backend, [demo_path() / "nowhere.jpg"], captions=1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # transformers warns a lot
def test_the_shapes_are_those_of_the_papers_models() -> None:
    """Counted on the meta device, so that none of 73 billion weights is made."""
    for module in ("torch", "transformers"):
        pytest.importorskip(module, reason="local models want discode-eval[hf]")
    import torch
    from transformers import AutoModelForImageTextToText

    from discode.backends._local.catalog import CATALOG
    from discode.backends._local.random_weights import (
        ARCHITECTURES,
        _configuration,
        stand_in_tokenizer,
    )

    sizes = {row.paper: row.billions for row in CATALOG if row.paper}
    for size in ("8B", "13B", "34B", "72B"):
        shape = ARCHITECTURES[f"llava-next-{size.lower()}"]
        with torch.device("meta"):
            config = _configuration(shape, stand_in_tokenizer())
            model = AutoModelForImageTextToText.from_config(config)
        counted = sum(weight.numel() for weight in model.parameters()) / 1e9
        assert counted == pytest.approx(sizes[f"LLaVA-NeXT-{size}"], rel=0.01), size
