"""Packed sequences: their layout, their masks, and Llama 4."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from discode.pairs import Pair
from discode.prompts import FLEUR
from discode.scales import UNIT

pytest.importorskip("torch", reason="local models need discode[hf]")
pytest.importorskip("transformers", reason="local models need discode[hf]")
pytest.importorskip("torchvision", reason="the image processors of most models need it")

import torch

from discode.backends.local.backend import Local
from discode.backends.local.packing import PackedLayout, packed_attention_mask, stack_layouts
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


def test_llama4_counts_places_in_the_sequence(tmp_path: Path) -> None:
    backend = Local(make("llama4", tmp_path / "llama4"), device="cpu", read="forced")
    config = backend.runner.model.config.get_text_config()
    assert config.attn_temperature_tuning  # its scale changes every floor_scale places
    image = noise_images((60, 40))[0]
    pairs = [Pair(image, f"a dog runs {'far ' * (i % 3)}") for i in range(40)]
    packed = backend.read(pairs, FLEUR, UNIT).answer_logp
    backend.runner.packed = False
    assert np.abs(packed - backend.read(pairs, FLEUR, UNIT).answer_logp).max() < 1e-5
