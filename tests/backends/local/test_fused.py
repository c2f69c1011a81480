"""Norms, rotations and attention in fewer kernels give the same numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from discode.backends.local.backend import Local
from discode.backends.local.fused import (
    find_rotary_modules,
    fuse_norms,
    grouped_attention,
    rotate,
    use_fused_rotation,
)
from tests.helpers.local_models import LOCAL_MODEL_MARKS
from tests.helpers.tiny_lvlms import make

pytestmark = LOCAL_MODEL_MARKS


@pytest.mark.parametrize("family", ["llava_next_llama", "aya_vision", "gemma3"])
def test_fused_norms_and_rotations(family: str, tmp_path: Path) -> None:
    model = Local(make(family, tmp_path / family), device="cpu").runner.model
    norms = [m for m in model.modules() if type(m).__name__.endswith("RMSNorm")]
    for norm in norms:
        torch.nn.init.normal_(norm.weight)
    given = [torch.randn(2, 3, len(norm.weight)) for norm in norms]
    before = [norm(x) for norm, x in zip(norms, given, strict=True)]
    # Gemma multiplies by one plus the weight, Cohere turns neighbours: the probe finds out
    assert fuse_norms(model) == (0 if family == "gemma3" else len(norms))
    for norm, x, old in zip(norms, given, before, strict=True):
        torch.testing.assert_close(norm(x), old)
    owners = find_rotary_modules(model)
    assert bool(owners) == (family != "aya_vision")
    with use_fused_rotation(owners), use_fused_rotation(owners):
        assert all(owner.apply_rotary_pos_emb is rotate for owner in owners)
    assert all(owner.apply_rotary_pos_emb is own for owner, own in owners.items())


def test_grouped_heads_are_not_copied() -> None:
    q, k = torch.randn(2, 6, 5, 8), torch.randn(2, 3, 9, 8)
    v, mask = torch.randn(2, 3, 9, 8), torch.randn(2, 1, 5, 9)
    whole = torch.nn.functional.scaled_dot_product_attention(
        q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), mask, scale=0.3
    )
    ours, _ = grouped_attention(None, q, k, v, mask, scaling=0.3)
    torch.testing.assert_close(ours, whole.transpose(1, 2))
