"""Packed sequences: their layout, their masks, and Llama 4."""

from __future__ import annotations

import gc
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers

from discode.backends import read_all
from discode.backends.local.backend import Local
from discode.backends.local.gpu.fused import grouped_attention, split_attention
from discode.backends.local.packing import (
    CaptionGrid,
    PackedLayout,
    find_places,
    packed_attention_mask,
    stack_continuations,
    stack_layouts,
)
from discode.pairs import Pair
from discode.prompts import FLEUR
from discode.scales import UNIT
from tests.helpers.local_models import LOCAL_MODEL_MARKS, noise_images
from tests.helpers.tiny_lvlms import make

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
    assert keep[1].tolist() == [[0, 1, 2, 3, 4]]
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
    whole, _ = grouped_attention(None, query, keys, values, mask, scaling=0.3)
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


def test_a_prefix_ends_with_its_last_keys_and_values(llava: Path) -> None:
    runner = Local(llava, device="cpu").runner
    tokenized = runner.vocabulary.tokenize_prompt(FLEUR, UNIT, references=False)
    image = runner.process_image(noise_images((60, 40))[0], tokenized)
    called: list[str] = []
    layer = runner.model.get_decoder().layers[-1]
    for name, module in layer.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(lambda *_, name=name: called.append(name))
    with torch.inference_mode():
        cache = runner.run_prefixes([image])
        assert sorted(called) == ["self_attn.k_proj", "self_attn.q_proj", "self_attn.v_proj"]
        whole = transformers.DynamicCache()
        runner.run(image.ids, runner.model_inputs([image]), whole, keep=1)
    for ours, theirs in zip(cache.layers, whole.layers, strict=True):
        torch.testing.assert_close(ours.keys, theirs.keys)
        torch.testing.assert_close(ours.values, theirs.values)


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
