"""Read published weights (PAC-S, PAC-S++, Polos: OpenAI's names) for models of transformers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from discode.backends._local.load import short_message
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


class _Ignored:
    """Placeholder for every class other than tensors: accepts any arguments and does nothing."""

    def __new__(cls, *_: object) -> _Ignored:
        return super().__new__(cls)

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read safetensors, or what torch saved: tensors and plain values, never code.

    Training frameworks save other classes with the tensors (Lightning its callbacks). They
    are not imported: an empty class takes the place of each.
    """
    if not path.is_file():
        raise InputError(f"no weights at {path}")
    try:
        if path.suffix == ".safetensors":
            return dict(require("safetensors.torch", "hf").load_file(path))
        torch = require("torch", "hf")
        ignored = [(_Ignored, name) for name in _foreign_classes(torch, path)]
        with torch.serialization.safe_globals(ignored):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a broken file may raise anything
        # torch's first line advises to run the file's code; the reason comes later.
        reason = re.search(r"WeightsUnpickler error:\s*(.+)|^(Trying to .+)", str(error), re.M)
        why = (reason[1] or reason[2]) if reason else short_message(error)
        raise InputError(
            f"cannot read {path.name}: {why}; only tensors are loaded, never code"
        ) from None
    return dict(content) if isinstance(content, Mapping) else {}


def _foreign_classes(torch: Any, path: Path) -> list[str]:
    try:
        return list(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    except ValueError:  # not a zip file: the format before torch 1.6, or no checkpoint at all
        return []


def weights_of(checkpoint: Mapping[str, Any], shown: str) -> dict[str, Any]:
    """Return the tensors of a checkpoint, or raise: it holds none, or other things among them."""
    state = checkpoint.get("state_dict", checkpoint)
    torch = require("torch", "hf")
    if not isinstance(state, Mapping) or not state or not all(map(torch.is_tensor, state.values())):
        raise InputError(f"{shown} is not a state dict: names to tensors")
    return dict(state)


def replace_weights(model: Any, state: Mapping[str, Any], shown: str, kind: str) -> None:
    """Put tensors with the names of transformers into a model, all of them or none.

    Errors call the file ``shown`` and the model ``kind``.
    """
    expected = model.state_dict()
    missing = [key for key in expected if key not in state and "position_ids" not in key]
    foreign = [key for key in state if key not in expected]
    if missing or foreign:
        raise InputError(
            f"{shown} does not fit this {kind}: {len(missing)} tensors are missing, "
            f"{len(foreign)} unknown (e.g. {(missing + foreign)[0]})"
        )
    try:
        model.load_state_dict(state, strict=False)
    except RuntimeError as error:
        lines = str(error).strip().splitlines()
        why = lines[1].strip() if len(lines) > 1 else short_message(error)
        raise InputError(f"{shown} does not fit this {kind}: {why}") from None


_LOW_RANK = re.compile(r"(?P<owner>.+?)(?:\.|_)lora_[AB]")
# The authors' layers count these as merged when the checkpoint is read, so that their evaluation
# multiplies by the stored weight alone, whatever the low-rank tensors next to it are.
_STORED_MERGED = (".mlp.c_fc", ".mlp.c_proj")


def read_clip_weights(path: Path, low_rank: bool) -> dict[str, Any]:
    """Read PAC-S's weights, or with ``low_rank`` PAC-S++'s; neither takes the other's file."""
    state = weights_of(read_checkpoint(path), path.name)
    if any(map(_LOW_RANK.fullmatch, state)) != low_rank:
        raise InputError(
            f"{path.name} is for {'pac-s' if low_rank else 'pac-s++'}: PAC-S++ is published with "
            "low-rank tensors (lora_A, lora_B), PAC-S without"
        )
    return merge_low_rank(state, path.name) if low_rank else state


def merge_low_rank(state: Mapping[str, Any], shown: str) -> dict[str, Any]:
    """Return OpenAI's tensors with PAC-S++'s low-rank updates added: W + B A / r.

    Beside a weight W (O, I) lie A (r, I) and B (O, r): ``X.lora_A`` of ``X.weight``, and
    ``X.attn.in_proj_weight_lora_A`` of query, key and value in one. The patch embedding, a
    convolution of k x k pixels, has A (r k, I k) and B (O k, r k), and B A gets its shape. The
    published files have r = 4. The perceptrons' stored weights are taken as they are, which is what
    the authors' evaluation does.
    """
    merged = {name: tensor for name, tensor in state.items() if not _LOW_RANK.fullmatch(name)}
    owners = dict.fromkeys(match["owner"] for match in map(_LOW_RANK.fullmatch, state) if match)
    for owner in owners:
        weight, link = (owner, "_") if owner in merged else (f"{owner}.weight", ".")
        pair = [state[name] for a in "AB" if (name := f"{owner}{link}lora_{a}") in state]
        if weight not in merged or [part.ndim for part in pair] != [2, 2]:
            raise InputError(f"{shown}: the low-rank tensors of {owner} are not a pair A, B")
        down, up = (part.float() for part in pair)
        base = merged[weight].float()
        size = base.shape[-1] if base.ndim == 4 else 1
        if up.shape[1] != len(down) or len(up) * down.shape[1] != base.numel() or len(down) < size:
            raise InputError(
                f"{shown}: the low-rank tensors of {owner}, {tuple(up.shape)} and "
                f"{tuple(down.shape)}, do not fit its weight, {tuple(base.shape)}"
            )
        if not owner.endswith(_STORED_MERGED):
            merged[weight] = base + (up @ down).view(base.shape) / (len(down) // size)
    return merged


def rename_openai_weights(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``state`` with the names of transformers; tensors that have them keep them."""
    renamed: dict[str, Any] = {}
    for name, tensor in state.items():
        name = name.removeprefix("module.")
        block = _BLOCK.fullmatch(name)
        if name in _SIZES or name.endswith("position_ids"):
            continue
        if name in _TRANSPOSED and tensor.ndim == 2:
            renamed[_TRANSPOSED[name]] = tensor.T
        elif block:
            tower = "vision_model" if block[1] else "text_model"
            renamed |= _inner(f"{tower}.encoder.layers.{block[2]}", block[3], tensor)
        else:
            renamed[_OUTER.get(name, name)] = tensor
    return {name: tensor.float() for name, tensor in renamed.items()}


def _inner(layer: str, name: str, tensor: Any) -> dict[str, Any]:
    part, _, kind = name.rpartition(".")
    if part == "attn" and kind.startswith("in_proj_"):  # query, key and value in one
        kind = kind.removeprefix("in_proj_")
        parts = zip("qkv", tensor.chunk(3), strict=True)
        return {f"{layer}.self_attn.{letter}_proj.{kind}": third for letter, third in parts}
    return {f"{layer}.{_INNER.get(part, part)}.{kind}": tensor}
