"""Vision towers: parts of one length share a kernel, and the host waits once per pass."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from discode.backends._local.backend import Local
from discode.backends._local.gpu.vision import join_sequences, multiply_patches
from discode.backends._local.load import LocalOptions, open_model
from tests.helpers.local_models import LOCAL_MODEL_MARKS, noise_images
from tests.helpers.tiny_lvlms import make

pytestmark = LOCAL_MODEL_MARKS


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4v"])
@pytest.mark.parametrize("sizes", [[(80, 60)] * 3, [(80, 60), (50, 120), (30, 30)]])
def test_images_of_any_sizes_at_once(
    family: str, sizes: list[tuple[int, int]], tmp_path: Path
) -> None:
    folder = make(family, tmp_path / family)
    plain = open_model(str(folder), LocalOptions(device="cpu")).model
    model = Local(folder, device="cpu").runner.model
    tower = Local(folder, device="cpu").runner.processor.image_processor
    inputs = tower(images=noise_images(*sizes), return_tensors="pt")
    calls: list[int] = []
    attend = torch.nn.functional.scaled_dot_product_attention

    def count(query: torch.Tensor, *given: object, **more: object) -> torch.Tensor:
        calls.append(len(query))
        return attend(query, *given, **more)  # type: ignore[arg-type]

    with torch.inference_mode(), pytest.MonkeyPatch.context() as patch:
        before = plain.model.get_image_features(**inputs).pooler_output
        patch.setattr(torch.nn.functional, "scaled_dot_product_attention", count)
        after = model.model.get_image_features(**inputs).pooler_output
    for ours, theirs in zip(after, before, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    if len({*sizes}) == 1 and family != "qwen2_5_vl":  # windows have several lengths
        assert {*calls} == {3}
    assert join_sequences(model) == multiply_patches(model) == 0


@pytest.mark.parametrize("bias", [False, True])
def test_patches_by_a_product(bias: bool) -> None:
    layer = torch.nn.Conv3d(3, 8, (2, 4, 4), stride=(2, 4, 4), bias=bias)
    overlapping = torch.nn.Conv3d(3, 8, 4, stride=2)
    patches, clip = torch.randn(5, 3, 2, 4, 4), torch.randn(1, 3, 4, 8, 8)
    before = layer(patches), layer(clip)
    assert multiply_patches(torch.nn.ModuleList([layer, overlapping])) == 1
    torch.testing.assert_close((layer(patches), layer(clip)), before)


def test_a_tower_without_parts_is_left_alone(llava: Path) -> None:
    assert join_sequences(Local(llava, device="cpu").runner.model) == 0
