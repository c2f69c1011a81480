"""Models in bfloat16 and float16 whose logits are as large as those of real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from discode._pairs import Pair
from discode._prompts import FLEUR
from discode._scales import UNIT
from discode.backends import read_all
from discode.backends._local.backend import Local
from discode.backends._local.load import LocalOptions, open_model
from discode.readings import Readings
from tests.helpers.local_models import LOCAL_MODEL_MARKS, noise_images
from tests.helpers.tiny_lvlms import FAMILIES, UNPACKED, make

pytestmark = LOCAL_MODEL_MARKS
DTYPES = ("bfloat16", "float16")
PAIRS = [
    Pair(image, caption)
    for image in noise_images((90, 60), (50, 120))
    for caption in ("a dog runs", "x", "two men on a boat near the long wharf " * 4)
]


def last_logits(backend: Local) -> tuple[Any, Any]:
    """The state after a prompt and the logits (V,) there, as the backend computes them."""
    runner = backend.runner
    tokenized = runner.vocabulary.tokenize_prompt(FLEUR, UNIT, references=False)
    opened = noise_images((90, 60))[0]
    with torch.inference_mode():
        ids, inputs = runner.process(tokenized.render("a dog runs", ()), opened)
        inputs = {
            name: value.to(runner.dtype) if value.is_floating_point() else value
            for name, value in inputs.items()
        }
        states, logits = runner.run(ids, inputs, None, keep=1)
    return states[0, -1], logits[0, -1]


def wide_product(backend: Local, state: Any) -> Any:
    """The head's product with a state, in float64."""
    head = backend.runner.model.get_output_embeddings()
    product = head.weight.double() @ state.double()
    return product if head.bias is None else product + head.bias.double()


def rms(one: Readings, other: Readings) -> float:
    return float(np.sqrt(((one.answer_logp - other.answer_logp) ** 2).mean()))


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_plain_and_float32_agree_within_rounding(family: str, tmp_path: Path) -> None:
    folder = make(family, tmp_path / family, answers=True)
    exact = read_all(Local(folder, device="cpu", read="forced"), PAIRS, FLEUR, UNIT)
    spread = float(exact.answer_logp.std())
    for dtype in DTYPES:
        backend = Local(folder, device="cpu", dtype=dtype, read="forced")
        state, logits = last_logits(backend)
        assert state.dtype == getattr(torch, dtype)
        assert 15 < float(logits.max()) < 30
        scale = backend.runner.logit_scale
        assert scale
        torch.testing.assert_close(
            logits.double(), scale * wide_product(backend, state), atol=1e-4, rtol=1e-5
        )
        packed = read_all(backend, PAIRS, FLEUR, UNIT)
        few, backend.runner.one_pass_tokens = [0, 1, 3, 4], 4096
        at_once = read_all(backend, [PAIRS[i] for i in few], FLEUR, UNIT)
        assert backend.runner.packed == (family not in UNPACKED)
        backend.runner.packed = False
        plain = read_all(backend, PAIRS, FLEUR, UNIT)
        assert not packed.errors
        assert not plain.errors
        # Two layers have four blocks, each of which rounds what it adds: sqrt(4) · eps, and the
        # vision tower's share.
        rounding = 6 * float(torch.finfo(backend.runner.dtype).eps) * spread
        for one, other in ((packed, plain), (packed, exact), (plain, exact)):
            assert rms(one, other) < rounding
        assert rms(at_once, plain.take(few)) < rounding


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_bias_and_a_soft_cap_are_those_of_the_model(dtype: str, tmp_path: Path) -> None:
    folder = make("qwen2_vl", tmp_path / "qwen2_vl", answers=True)
    backend = Local(folder, device="cpu", dtype=dtype, read="forced")
    model = backend.runner.model
    head = model.get_output_embeddings()
    torch.manual_seed(0)
    head.bias = torch.nn.Parameter(torch.randn(len(head.weight)).to(backend.runner.dtype))

    def cap(_model: Any, _inputs: Any, out: Any) -> Any:
        out.logits = 30 * torch.tanh(out.logits / 30)  # as Gemma's code has it
        return out

    model.register_forward_hook(cap)
    state, logits = last_logits(backend)
    expected = 30 * torch.tanh(wide_product(backend, state) / 30)
    torch.testing.assert_close(logits.double(), expected, atol=1e-4, rtol=1e-5)
    readings = read_all(backend, PAIRS, FLEUR, UNIT)
    assert not readings.errors


def test_a_head_that_accelerate_fetches_for_each_pass(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate", reason="it comes with discode-eval[hf]")
    folder = make("llava_next_llama", tmp_path / "llava", answers=True)
    plain = Local(folder, device="cpu", dtype="bfloat16", read="forced")
    loaded = open_model(str(folder), LocalOptions(device="cpu", dtype="bfloat16"))
    accelerate.cpu_offload(loaded.model.get_output_embeddings(), execution_device="cpu")
    fetched = Local(loaded, read="forced")
    assert fetched.runner.model.get_output_embeddings().weight.is_meta
    said, expected = (read_all(each, PAIRS, FLEUR, UNIT) for each in (fetched, plain))
    np.testing.assert_array_equal(said.answer_logp, expected.answer_logp)
