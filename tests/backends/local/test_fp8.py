"""Products of 8-bit floats: their rounding, which layers have them, and what refuses them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from discode._pairs import Pair
from discode._prompts import FLEUR
from discode._scales import UNIT
from discode.backends import read_all
from discode.backends._local.backend import Local
from discode.backends._local.gpu.fp8 import LARGEST, Fp8Linear, check_fp8, quantize_rows, use_fp8
from discode.backends._local.random_weights import random_model
from discode.errors import InputError
from tests.helpers.local_models import LOCAL_MODEL_MARKS, noise_images

pytestmark = [*LOCAL_MODEL_MARKS, pytest.mark.full]


def test_rows_are_rounded_to_three_bits() -> None:
    x = torch.randn(50, 96) * torch.logspace(-6, 6, 50)[:, None]
    x[3] = 0
    rows, scale = quantize_rows(x)
    back = rows.double() * scale
    step = x.abs().double() / 16 + scale.double() * 2.0**-10  # below 2^-6 numbers are even spaced
    assert ((back - x).abs() <= step).all()
    assert rows.float().abs().amax(1).tolist() == [0.0 if i == 3 else LARGEST for i in range(50)]


def test_a_linear_layer_and_its_shared_input() -> None:
    torch.manual_seed(0)
    one, two = torch.nn.Linear(64, 32), torch.nn.Linear(64, 48, bias=False)
    shared: list[object] = []
    layers = [Fp8Linear(each, "cpu", shared) for each in (one, two)]
    for x in (torch.randn(2, 5, 64), torch.randn(2, 5, 64)):
        for ours, theirs in zip(layers, (one, two), strict=True):
            off = (ours(x) - theirs(x)).square().mean() / theirs(x).var()
            assert 1e-4 < off < 4e-3  # two roundings of 2 to 3 % each


def test_the_language_model_only() -> None:
    loaded = random_model("tiny", "cpu", "float32")
    pairs = [Pair(noise_images((60, 40))[0], f"a dog {i}") for i in range(5)]
    exact = read_all(Local(loaded, read="forced"), pairs, FLEUR, UNIT).answer_logp
    assert use_fp8(loaded.model, "cpu") == 4 * 7
    names = {n for n, m in loaded.model.named_modules() if isinstance(m, Fp8Linear)}
    assert all("language_model.layers" in name for name in names)
    backend = Local(loaded, read="forced")
    assert backend.runner.packed
    assert 1e-4 < np.abs(read_all(backend, pairs, FLEUR, UNIT).answer_logp - exact).max() < 0.2


def test_what_cannot_have_them(llava: Path) -> None:
    with pytest.raises(InputError, match=r"needs an NVIDIA GPU .* try quantize=8bit"):
        Local(llava, device="cpu", quantize="fp8")
    with pytest.raises(InputError, match="needs an NVIDIA GPU"):
        check_fp8("cpu", "bfloat16")
