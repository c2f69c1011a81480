"""On a GPU: fused kernels, chunk sizes and locks give what plain passes give."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from discode._pairs import Pair
from discode._prompts import FLEUR
from discode._scales import UNIT
from discode.backends import read_all
from discode.backends._local import head
from discode.backends._local.backend import Local
from discode.backends._local.calibrate import packing_error
from discode.backends._local.gpu import fused
from discode.backends._local.gpu.fp8 import Fp8Linear, quantize_rows
from discode.backends._local.packed import PackedBatch
from discode.backends._local.packing import CaptionGrid, PackedLayout, find_places, stack_layouts
from discode.backends._local.random_weights import random_model
from tests.helpers.local_models import LOCAL_MODEL_MARKS, noise_images

pytestmark = [
    *LOCAL_MODEL_MARKS,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def close(ours: Any, exact: Any) -> bool:
    """Whether a bfloat16 result is within one rounding of its relative size (or a small sum's)."""
    return bool(torch.allclose(ours.double(), exact, rtol=2**-8, atol=2**-8))


def draw(*shape: int) -> Any:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


@pytest.fixture(scope="module")
def backend() -> Iterator[Local]:
    backend = Local(random_model("tiny", "cuda", "bfloat16"), read="forced")
    yield backend
    del backend
    torch.cuda.empty_cache()


def read(backend: Local, pairs: list[Pair]) -> Any:
    return read_all(backend, pairs, FLEUR, UNIT).answer_logp


@pytest.fixture(scope="module")
def pairs() -> list[Pair]:
    sizes = [(90, 60)] * 5 + [(60, 90)] * 2
    return [
        Pair(image, f"a dog runs {'far ' * (i % 5)}{number}")
        for number, image in enumerate(noise_images(*sizes))
        for i in range(number + 1)
    ]


def test_activations_round_once() -> None:
    kernels = fused.find_kernels()
    gate, up = draw(3, 1001, 7), draw(3, 1001, 7)
    exact = gate.double() * gate.double().sigmoid()
    assert close(kernels.gate_and_multiply(gate, up), exact * up.double())
    exact = gate.double() * (1.702 * gate.double()).sigmoid()
    assert close(kernels.quick_gelu(gate), exact)


@pytest.mark.parametrize(("heads", "size"), [(32, 128), (5, 24)])
def test_rotation(heads: int, size: int) -> None:
    q, k = draw(2, 37, heads, size).transpose(1, 2), draw(2, 37, 1, size).transpose(1, 2)
    angles = torch.rand(1, 37, size // 2, device="cuda").repeat(1, 1, 2) * 6
    cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()
    for ours, given in zip(fused.rotate(q, k, cos, sin), (q, k), strict=True):
        first, second = given.double().chunk(2, dim=-1)
        turned = torch.cat([-second, first], dim=-1)
        assert close(ours, given.double() * cos[:, None].double() + turned * sin[:, None].double())


def test_rotation_of_patches() -> None:
    q, k, _ = draw(37, 3, 5, 24).unbind(1)
    angles = torch.rand(37, 12, device="cuda").repeat(1, 2) * 6
    cos, sin = angles.cos(), angles.sin()
    for ours, given in zip(fused.rotate_patches(q, k, cos, sin), (q, k), strict=True):
        first, second = given.double().chunk(2, dim=-1)
        turned = torch.cat([-second, first], dim=-1)
        assert close(ours, given.double() * cos[:, None].double() + turned * sin[:, None].double())


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_attention_with_its_softmax_sums(dtype: str, masked: bool) -> None:
    q, k, v = (draw(2, heads, 40, 64).to(getattr(torch, dtype)) for heads in (8, 2, 2))
    mask = torch.zeros(2, 1, 40, 40, device="cuda", dtype=q.dtype)
    mask[..., torch.ones(40, 40, dtype=torch.bool).triu(1)] = torch.finfo(q.dtype).min
    out, sums = fused.attend(q, k, v, mask if masked else None, 0.125)
    k, v = (x.repeat_interleave(4, 1).double() for x in (k, v))
    scores = q.double() @ k.transpose(2, 3) / 8 + (mask.double() if masked else 0)
    assert torch.allclose(sums.double(), scores.logsumexp(-1), atol=1e-3)
    assert torch.allclose(out.double(), scores.softmax(-1) @ v, atol=2e-2)


@pytest.mark.parametrize("many", [False, True])
def test_attention_to_prefix_and_caption(many: bool) -> None:
    """One kernel, after either attention to the prefix, against float64 on the CPU."""
    lengths = [[90, 30] * 20, [70]] if many else [[5, 30], [70]]
    layouts = [
        PackedLayout.of([[1] * n for n in some], [[1, 2], [3]], {0: [7, 8]}) for some in lengths
    ]
    _, _, owner, branch, _ = stack_layouts(layouts)
    batch, width = owner.shape
    assert (batch * width >= fused.PLANNED_QUERIES) == many
    where, to, back = (torch.from_numpy(x) for x in find_places(owner, width))
    tree = torch.from_numpy(branch)
    q, k, v, *front = (
        draw(batch, length, heads, 64).transpose(1, 2)
        for length, heads in ((width, 8), (width, 2), (width, 2), (99, 2), (99, 2))
    )
    exact = CaptionGrid.of(where, to, back, tree, torch.float64)
    grid = CaptionGrid.of(where.cuda(), to.cuda(), back.cuda(), tree.cuda(), torch.bfloat16)
    for _ in range(fused.PLANNED_USES + 1):  # the last one is by cuDNN where there are many
        ours = fused._attend_to_both(q, k, v, (front[0], front[1]), grid, 0.125).cpu()
    q, k, v, *front = (x.cpu().double() for x in (q, k, v, *front))
    wanted = fused._attend_to_both(q, k, v, (front[0], front[1]), exact, 0.125)
    inside = torch.from_numpy(owner >= 0)
    assert torch.allclose(ours.double()[inside], wanted[inside], atol=2e-2)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_products_in_float32(dtype: str) -> None:
    """Logits near 20 are not rounded to 16 bits, whether torch multiplies that way or not."""
    linear = torch.nn.Linear(4096, 5000, device="cuda", dtype=getattr(torch, dtype))
    states = draw(1, 37, 4096).to(linear.weight.dtype)
    exact = states.double() @ linear.weight.double().T + linear.bias.double()
    head.widen_head(linear)
    for wide in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            if not wide:
                patch.setattr(head, "has_wide_products", lambda _: False)
            assert torch.allclose(linear(states).double(), exact, rtol=1e-4, atol=1e-4)
    if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 8):
        assert fused.has_wide_products(linear.weight.dtype)


@pytest.mark.parametrize("rows", [1, 37])
def test_products_of_8_bit_floats(rows: int) -> None:
    linear = torch.nn.Linear(96, 48, device="cuda", dtype=torch.bfloat16)
    x, last = draw(rows, 96), list[Any]()
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("the GPU has no products of 8-bit floats")
    ours = Fp8Linear(linear, "cuda", last)(x)
    (q, s), (w, t) = ([y.cpu().double() for y in quantize_rows(y)] for y in (x, linear.weight))
    assert ((q * s - x.cpu().double()).abs() <= x.cpu().double().abs() / 16 + s / 100).all()
    exact = (q * s) @ (w * t).T + linear.bias.cpu().double()
    assert torch.allclose(ours.cpu().double(), exact, rtol=2**-7, atol=2**-7)


def test_everything_is_fused(backend: Local) -> None:
    model = backend.runner.model
    layers = model.config.get_text_config().num_hidden_layers
    replaced = [type(m).__name__ for m in model.modules() if "forward" in vars(m)]
    assert replaced.count("LlamaRMSNorm") == 2 * layers + 1
    assert replaced.count("LlamaMLP") == layers
    assert replaced.count("LlamaDecoderLayer") == layers
    assert replaced.count("QuickGELUActivation") == model.config.vision_config.num_hidden_layers


def test_fused_against_float64_on_the_cpu(pairs: list[Pair]) -> None:
    """The float32 model, fused on the GPU, against itself in float64, unfused on the CPU."""
    ours = read(Local(random_model("tiny", "cuda", "float32"), read="forced"), pairs[:6])
    loaded = random_model("tiny", "cuda", "float32")
    loaded.model.to("cpu", torch.float64)
    loaded = replace(loaded, device=torch.device("cpu"), dtype="float64")
    exact = read(Local(loaded, read="forced", packing="off"), pairs[:6])
    assert np.abs(ours - exact).max() < 1e-3


def test_one_pass_and_two(backend: Local, pairs: list[Pair]) -> None:
    runner, few = backend.runner, pairs[::4]
    assert runner.one_pass
    once = read(backend, few)
    runner.one_pass = False
    twice = read(backend, few)
    runner.packed, runner.one_pass = False, True
    plain = read(backend, few)
    runner.packed = True
    for packed in (once, twice):
        apart, allowed = packing_error(runner, packed, plain)
        assert apart <= allowed


@pytest.mark.parametrize("size", [1, 2, 5, None])
def test_chunk_sizes(backend: Local, pairs: list[Pair], size: int | None) -> None:
    runner = backend.runner
    runner.packed = False
    plain = read(backend, pairs)
    runner.packed, runner.batch_captions = True, size
    try:
        apart, allowed = packing_error(runner, read(backend, pairs), plain)
    finally:
        runner.batch_captions = None
    assert apart <= allowed


def test_short_of_memory(
    backend: Local, pairs: list[Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks that do not fit are halved, and nothing is lost."""
    runner, run = backend.runner, PackedBatch._run_packed
    whole = read(backend, pairs)

    def limited(batch: PackedBatch, tokens: Any, *rest: Any) -> Any:
        if tokens.shape[1] > 150:
            torch.empty(1 << 42, dtype=torch.uint8, device="cuda")
        return run(batch, tokens, *rest)

    monkeypatch.setattr(runner, "one_pass", False)
    monkeypatch.setattr(PackedBatch, "_run_packed", limited)
    halved = read(backend, pairs)
    assert runner.batch_captions is not None
    runner.batch_captions = None
    apart, allowed = packing_error(runner, halved, whole)
    assert apart <= allowed


def test_threads_take_turns(backend: Local, pairs: list[Pair]) -> None:
    alone = read(backend, pairs)
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(lambda _: read(backend, pairs), range(8)))
    assert all(np.array_equal(alone, other) for other in together)


def test_attention_is_planned_for_shapes_that_recur(backend: Local) -> None:
    """cuDNN plans for 50 ms for every new shape: photographs of many sizes would wait for it."""
    pairs = [Pair(noise_images((301, 203))[0], f"a dog {i}") for i in range(2)]

    def kernels() -> set[str]:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
            read_all(backend, pairs, FLEUR, UNIT)
            torch.cuda.synchronize()
        return {event.name for event in seen.events() if "cudnn" in event.name}

    first = read_all(backend, pairs, FLEUR, UNIT)
    assert not kernels()
    for _ in range(fused.PLANNED_USES):
        again = read_all(backend, pairs, FLEUR, UNIT)
    assert np.abs(again.answer_logp - first.answer_logp).max() < 0.3
