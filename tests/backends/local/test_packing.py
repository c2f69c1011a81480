"""Packed sequences and fewer kernels: layouts, masks, norms, rotations, and Llama 4."""

from __future__ import annotations

import gc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from discode._pairs import Pair
from discode._prompts import FLEUR
from discode._scales import UNIT
from discode.backends import read_all
from discode.backends._local.backend import Local
from discode.backends._local.gpu.fused import (
    ROTATIONS,
    find_rotary_modules,
    fuse_norms,
    fuse_residuals,
    split_attention,
    use_fused_rotation,
)
from discode.backends._local.packed import PackedBatch
from discode.backends._local.packing import (
    CaptionGrid,
    PackedLayout,
    find_places,
    packed_attention_mask,
    stack_continuations,
    stack_layouts,
)
from tests.helpers.local_models import LOCAL_MODEL_MARKS, largest_difference, noise_images
from tests.helpers.tiny_lvlms import FAMILIES, UNPACKED, make

pytestmark = LOCAL_MODEL_MARKS


def test_layouts_against_brute_force() -> None:
    layouts = [
        PackedLayout.of([[5, 6], [7]], [[1, 2], [3, 4]]),
        PackedLayout.of([[9]], [[1, 2], [3, 4]]),
    ]
    *rows, keep = stack_layouts(layouts)
    tokens, steps, owner, branch = torch.from_numpy(np.stack(rows))
    assert tokens.shape == (2, 11)
    one = layouts[0]
    seen = packed_attention_mask(owner, branch, steps, 3, torch.float32)[:, 0] == 0
    assert seen.shape == (2, 11, 14)
    assert seen[0, :, :3].all()
    for q in range(11):
        for k in range(11):
            same = one.owner[q] == one.owner[k] and k <= q
            allowed = same and one.branch[k] in (-1, one.branch[q])
            assert seen[0, q, 3 + k] == allowed
    assert keep[2].tolist() == [11, 12, 13, 14, 15]
    assert seen[1, 5:, 3:].sum() == 6  # padding sees itself
    mask = packed_attention_mask(owner, branch, steps, 3, torch.float32, window=2)
    # step 0 stands at 3: within a window of 2 it sees 2 and itself
    assert (mask[0, 0, 0] == 0).nonzero().flatten().tolist() == [2, 3]
    mask = packed_attention_mask(owner, branch, steps, 3, torch.float32, chunk=4)
    # steps 0 and 1 stand at 3 and 4, in different chunks of 4
    assert (mask[0, 0, 0] == 0).nonzero().flatten().tolist() == [0, 1, 2, 3]
    assert (mask[0, 0, 1] == 0).nonzero().flatten().tolist() == [4]


@pytest.mark.parametrize("continued", [False, True])
def test_attention_in_two_parts_against_one_mask(continued: bool) -> None:
    torch.manual_seed(0)
    stems = [[1, 2], [3], [1, 4, 2]]
    layouts = [
        PackedLayout.of([[5, 6, 7], [7], [8, 9]], stems),
        PackedLayout.of([[9, 9, 9, 9, 9]], stems),
    ]
    *rows, _ = stack_layouts(layouts)
    _, steps, owner, branch = rows
    last = owner.shape[1]
    if continued:  # one token more per caption and stem, as for second decimals
        _, *added = stack_continuations(layouts, branches=[0, 2], places=[2, 6])
        pairs = zip((steps, owner, branch), added, strict=True)
        steps, owner, branch = (np.concatenate(pair, axis=1) for pair in pairs)
        last = added[0].shape[1]
    prefix, count = 4, owner.shape[1]
    keys, values = torch.randn(2, 2, 3, prefix + count, 8)
    query = torch.randn(2, 6, last, 8)
    own, on, at = (torch.from_numpy(x) for x in (owner, branch, steps))
    mask = packed_attention_mask(own, on, at, prefix, torch.float32, last=last)
    whole = torch.nn.functional.scaled_dot_product_attention(
        query, keys, values, mask, scale=0.3, enable_gqa=True
    ).transpose(1, 2)
    queries, among, back = (torch.from_numpy(x) for x in find_places(owner, last))
    grid = CaptionGrid.of(queries, among, back, on, torch.float32)
    layer = SimpleNamespace(keys=keys[:, :, :prefix], values=values[:, :, :prefix])
    prefixes = SimpleNamespace(layers=[layer])
    parts, _ = split_attention(
        SimpleNamespace(layer_idx=0), query, keys[:, :, prefix:], values[:, :, prefix:], None,
        prefixes=prefixes, grid=grid, scaling=0.3,
    )  # fmt: skip
    real = torch.from_numpy(owner[:, -last:] >= 0)
    assert real.any(dim=1).all()
    torch.testing.assert_close(parts[real], whole[real])


TWO_PASSES = {"aya_vision", "gemma3", "gemma3_short_window", "gemma4", "llama4"}
"""Families whose layers see a window."""


@pytest.mark.parametrize("family", sorted({*FAMILIES} - UNPACKED))
def test_few_captions_take_one_pass_with_their_image(family: str, tmp_path: Path) -> None:
    backend = Local(make(family, tmp_path / family), device="cpu", read="forced")
    runner, images = backend.runner, noise_images((80, 60), (80, 60), (50, 120))
    runner.one_pass_tokens = 4096
    captions = ["a dog runs", "x", "two men on a boat"]
    pairs = [Pair(image, text) for image in images for text in captions][:-1]
    passes: list[int] = []
    embed = runner.model.get_input_embeddings()
    hook = embed.register_forward_hook(lambda _, ids, out: passes.append(1))
    first = read_all(backend, pairs, FLEUR, UNIT, hidden=True)
    hook.remove()
    assert runner.one_pass == (family not in TWO_PASSES)
    assert len(passes) <= 2 or not runner.one_pass  # one for each shape of images
    runner.one_pass = False
    second = read_all(backend, pairs, FLEUR, UNIT, hidden=True)
    runner.packed = False
    plain = read_all(backend, pairs, FLEUR, UNIT, hidden=True)
    for packed in (first, second):
        assert largest_difference(packed, plain) < 1e-4
        np.testing.assert_allclose(packed.hidden, plain.hidden, atol=1e-4)  # type: ignore[arg-type]
        np.testing.assert_allclose(packed.second_logp, plain.second_logp, atol=1e-4)  # type: ignore[arg-type]


def test_many_captions_take_passes_of_their_own(llava: Path) -> None:
    backend = Local(llava, device="cpu", read="forced")
    runner, image, seen = backend.runner, noise_images((80, 60))[0], list[int]()
    start, runner.one_pass_tokens = PackedBatch.at_once, 1024

    def count(batch: PackedBatch) -> Any:
        seen.append(len(batch.groups[0].rows))
        return start(batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PackedBatch, "at_once", count)
        for many in (1, 3, 40):
            read_all(backend, [Pair(image, f"a dog {i}") for i in range(many)], FLEUR, UNIT)
    assert seen == [1, 3]


def test_a_read_leaves_no_tensor_behind(llava: Path) -> None:
    """Nothing waits for the garbage collector: a cache of prefixes is gigabytes."""
    backend = Local(llava, device="cpu", read="forced")
    pairs = [Pair(image, "a dog") for image in noise_images((60, 40), (40, 60))]
    read_all(backend, pairs, FLEUR, UNIT)

    def alive() -> int:
        return sum(isinstance(thing, torch.Tensor) for thing in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = alive()
        read_all(backend, pairs, FLEUR, UNIT)
        assert alive() == before
    finally:
        gc.enable()


@pytest.mark.full
def test_llama4_counts_places_in_the_sequence(tmp_path: Path) -> None:
    backend = Local(make("llama4", tmp_path / "llama4"), device="cpu", read="forced")
    config = backend.runner.model.config.get_text_config()
    assert config.attn_temperature_tuning  # its scale changes every floor_scale places
    image = noise_images((60, 40))[0]
    pairs = [Pair(image, f"a dog runs {'far ' * (i % 3)}") for i in range(40)]
    packed = read_all(backend, pairs, FLEUR, UNIT).answer_logp
    backend.runner.packed = False
    assert np.abs(packed - read_all(backend, pairs, FLEUR, UNIT).answer_logp).max() < 1e-4


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
        assert all(getattr(*place) is ROTATIONS[place[1]] for place in owners)
    assert all(getattr(*place) is own for place, own in owners.items())


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_rotations_of_patches_are_fused(family: str, tmp_path: Path) -> None:
    backend = Local(make(family, tmp_path / family), device="cpu", read="forced")
    owners = find_rotary_modules(backend.runner.model)
    assert {name for _, name in owners} >= {"apply_rotary_pos_emb_vision"}
    pairs = [Pair(image, "a dog") for image in noise_images((60, 40))]
    before = read_all(backend, pairs, FLEUR, UNIT)
    backend.runner._rotary_modules = owners  # only a GPU gains by them
    assert largest_difference(read_all(backend, pairs, FLEUR, UNIT), before) < 1e-4


@pytest.mark.parametrize(
    ("family", "fused"), [("llava_next_llama", True), ("qwen2_vl", True), ("gemma3", False)]
)
def test_residuals_within_products(family: str, fused: bool, tmp_path: Path) -> None:
    backend = Local(make(family, tmp_path / family), device="cpu", read="forced")
    pairs = [Pair(image, text) for image in noise_images((60, 40)) for text in ("a dog", "a red x")]
    before = read_all(backend, pairs, FLEUR, UNIT)
    layers = backend.runner.text_config.num_hidden_layers
    decoder = backend.runner.model.get_decoder()
    assert fuse_residuals(decoder) == layers * fused
    assert fuse_residuals(decoder) == 0
    assert largest_difference(read_all(backend, pairs, FLEUR, UNIT), before) < 1e-5


def test_residuals_that_are_scaled_are_left_alone() -> None:
    """Granite's layers have the parts of others, and add less than they compute."""
    config = transformers.GraniteConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        vocab_size=9, residual_multiplier=0.5,
    )  # fmt: skip
    model = transformers.GraniteModel(config)
    ids = torch.tensor([[1, 2, 3]])
    before = model(ids).last_hidden_state
    assert fuse_residuals(model) == 0
    torch.testing.assert_close(model(ids).last_hidden_state, before)
