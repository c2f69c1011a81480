"""Read CLIP weights with OpenAI's names, as PAC-S is published, for the CLIP of transformers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from discode.backends.local.load import short_message
from discode.errors import InputError, require

_BLOCK = re.compile(r"(visual\.)?transformer\.resblocks\.(\d+)\.(.+)")
_INNER = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "attn.out_proj": "self_attn.out_proj",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}
_OUTER = {
    "visual.class_embedding": "vision_model.embeddings.class_embedding",
    "visual.conv1.weight": "vision_model.embeddings.patch_embedding.weight",
    "visual.positional_embedding": "vision_model.embeddings.position_embedding.weight",
    "visual.ln_pre.weight": "vision_model.pre_layrnorm.weight",  # transformers' own spelling
    "visual.ln_pre.bias": "vision_model.pre_layrnorm.bias",
    "visual.ln_post.weight": "vision_model.post_layernorm.weight",
    "visual.ln_post.bias": "vision_model.post_layernorm.bias",
    "token_embedding.weight": "text_model.embeddings.token_embedding.weight",
    "positional_embedding": "text_model.embeddings.position_embedding.weight",
    "ln_final.weight": "text_model.final_layer_norm.weight",
    "ln_final.bias": "text_model.final_layer_norm.bias",
    "logit_scale": "logit_scale",
}
# OpenAI multiplies by these from the right, transformers has them as linear layers.
_TRANSPOSED = {
    "visual.proj": "visual_projection.weight",
    "text_projection": "text_projection.weight",
}
_SIZES = ("input_resolution", "context_length", "vocab_size")


def read_weights(path: Path) -> dict[str, Any]:
    """Read tensors from safetensors, or from a pickle that holds nothing but tensors."""
    if not path.is_file():
        raise InputError(f"no weights at {path}")
    try:
        if path.suffix == ".safetensors":
            return dict(require("safetensors.torch", "hf").load_file(path))
        torch = require("torch", "hf")
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a broken file raises whatever its bytes lead to
        raise InputError(
            f"cannot read {path.name}: {short_message(error)}; only tensors are loaded, never code"
        ) from None
    if isinstance(found, Mapping) and isinstance(found.get("state_dict"), Mapping):
        found = found["state_dict"]
    if not isinstance(found, Mapping) or not all(map(torch.is_tensor, found.values())):
        raise InputError(f"{path.name} is not a state dict: names to tensors")
    return dict(found)


def rename_openai_weights(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``state`` with the names of transformers; tensors that have them keep them."""
    made: dict[str, Any] = {}
    for name, tensor in state.items():
        name = name.removeprefix("module.")
        block = _BLOCK.fullmatch(name)
        if name in _SIZES or name.endswith("position_ids"):
            continue
        if name in _TRANSPOSED and tensor.ndim == 2:
            made[_TRANSPOSED[name]] = tensor.T
        elif block:
            tower = "vision_model" if block[1] else "text_model"
            made |= _inner(f"{tower}.encoder.layers.{block[2]}", block[3], tensor)
        else:
            made[_OUTER.get(name, name)] = tensor
    return {name: tensor.float() for name, tensor in made.items()}


def _inner(layer: str, name: str, tensor: Any) -> dict[str, Any]:
    part, _, kind = name.rpartition(".")
    if part == "attn" and kind.startswith("in_proj_"):  # query, key and value in one
        kind = kind.removeprefix("in_proj_")
        parts = zip("qkv", tensor.chunk(3), strict=True)
        return {f"{layer}.self_attn.{letter}_proj.{kind}": third for letter, third in parts}
    return {f"{layer}.{_INNER.get(part, part)}.{kind}": tensor}
