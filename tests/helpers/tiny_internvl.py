"""A tiny InternVL-2.5 in its original layout, and what its published code computes with it.

``make(folder, language)`` writes what a person would download from ``OpenGVLab/InternVL2_5-*``:
config.json, model.safetensors, the tokenizer's own files and preprocessor_config.json. Names and
shapes of the weights are those of ``modeling_internvl_chat.py``, ``modeling_intern_vit.py`` and
``modeling_internlm2.py`` of github.com/OpenGVLab/InternVL. ``Oracle`` is their forward pass in
plain torch on these very names: nothing in it knows transformers' InternVL. It was compared once
with the published layers themselves, which took the weights under these names; logits agreed to
2e-6.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from tests.helpers.tiny_parts import vocabulary

D, FFN, PATCH, SIDE, VISION_HEADS = 32, 64, 4, 16, 2
E, TEXT_FFN, HEADS, GROUPS, LAYERS = 32, 48, 4, 2, 2
HEAD = E // HEADS
THETA = 100.0
IMAGES = ["<img>", "</img>", "<IMG_CONTEXT>", "<quad>", "</quad>", "<ref>", "</ref>"]
CHAT = ["<|im_end|>", "<|im_start|>"]


def make(folder: Path, language: str, *, six_billion: bool = False) -> Path:
    """Write a checkpoint with ``language`` "internlm2" (2B, 8B, 26B) or "qwen2" (the other sizes).

    With ``six_billion`` its vision tower is built like InternViT-6B, that of 26B, 38B and 78B:
    normalised queries and keys, RMS norms, no bias before the attention.
    """
    folder.mkdir(parents=True)
    tokens = _write_internlm2(folder) if language == "internlm2" else _write_qwen2(folder)
    rows = -(-tokens // 64) * 64
    (folder / "config.json").write_text(json.dumps(_config(language, rows, six_billion)))
    images = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
    (folder / "preprocessor_config.json").write_text(json.dumps({"size": SIDE} | images))
    generator = torch.Generator().manual_seed(7)
    weights = {
        name: torch.randn(shape, generator=generator) * 0.15 + (1.0 if len(shape) == 1 else 0.0)
        for name, shape in _shapes(language, rows, six_billion).items()
    }
    save_file(weights, folder / "model.safetensors")
    return folder


def _shapes(language: str, rows: int, six_billion: bool) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}

    def linear(name: str, out: int, given: int, bias: bool = True) -> None:
        shapes[f"{name}.weight"] = (out, given)
        if bias:
            shapes[f"{name}.bias"] = (out,)

    shapes["vision_model.embeddings.class_embedding"] = (1, 1, D)
    shapes["vision_model.embeddings.position_embedding"] = (1, 1 + (SIDE // PATCH) ** 2, D)
    shapes["vision_model.embeddings.patch_embedding.weight"] = (D, 3, PATCH, PATCH)
    shapes["vision_model.embeddings.patch_embedding.bias"] = (D,)
    for i in range(LAYERS):
        layer = f"vision_model.encoder.layers.{i}"
        linear(f"{layer}.attn.qkv", 3 * D, D, bias=not six_billion)
        linear(f"{layer}.attn.proj", D, D)
        linear(f"{layer}.mlp.fc1", FFN, D)
        linear(f"{layer}.mlp.fc2", D, FFN)
        for norm in ("norm1", "norm2"):
            shapes[f"{layer}.{norm}.weight"] = (D,)
            if not six_billion:
                shapes[f"{layer}.{norm}.bias"] = (D,)
        for scale in ("ls1", "ls2"):
            shapes[f"{layer}.{scale}"] = (D,)
        if six_billion:
            shapes[f"{layer}.attn.q_norm.weight"] = shapes[f"{layer}.attn.k_norm.weight"] = (D,)
    shapes["mlp1.0.weight"] = shapes["mlp1.0.bias"] = (4 * D,)
    linear("mlp1.1", E, 4 * D)
    linear("mlp1.3", E, E)
    for i in range(LAYERS):
        layer = f"language_model.model.layers.{i}"
        if language == "internlm2":
            linear(f"{layer}.attention.wqkv", (HEADS + 2 * GROUPS) * HEAD, E, bias=False)
            linear(f"{layer}.attention.wo", E, E, bias=False)
            linear(f"{layer}.feed_forward.w1", TEXT_FFN, E, bias=False)
            linear(f"{layer}.feed_forward.w3", TEXT_FFN, E, bias=False)
            linear(f"{layer}.feed_forward.w2", E, TEXT_FFN, bias=False)
            shapes[f"{layer}.attention_norm.weight"] = shapes[f"{layer}.ffn_norm.weight"] = (E,)
        else:
            linear(f"{layer}.self_attn.q_proj", HEADS * HEAD, E)
            linear(f"{layer}.self_attn.k_proj", GROUPS * HEAD, E)
            linear(f"{layer}.self_attn.v_proj", GROUPS * HEAD, E)
            linear(f"{layer}.self_attn.o_proj", E, E, bias=False)
            linear(f"{layer}.mlp.gate_proj", TEXT_FFN, E, bias=False)
            linear(f"{layer}.mlp.up_proj", TEXT_FFN, E, bias=False)
            linear(f"{layer}.mlp.down_proj", E, TEXT_FFN, bias=False)
            for norm in ("input_layernorm", "post_attention_layernorm"):
                shapes[f"{layer}.{norm}.weight"] = (E,)
    shapes["language_model.model.norm.weight"] = (E,)
    internlm2 = language == "internlm2"
    shapes[f"language_model.model.{'tok_embeddings' if internlm2 else 'embed_tokens'}.weight"] = (
        rows,
        E,
    )
    shapes[f"language_model.{'output' if internlm2 else 'lm_head'}.weight"] = (rows, E)
    return shapes


def _config(language: str, rows: int, six_billion: bool) -> dict[str, Any]:
    text: dict[str, Any] = {
        "vocab_size": rows, "hidden_size": E, "intermediate_size": TEXT_FFN, "hidden_act": "silu",
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": GROUPS,
        "rms_norm_eps": 1e-5, "rope_theta": THETA, "max_position_embeddings": 32768,
        "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16", "temperature": 1.0,
    }  # fmt: skip
    if language == "internlm2":
        text |= {
            "architectures": ["InternLM2ForCausalLM"],
            "model_type": "internlm2",
            "bias": False,
        }
        text |= {"rope_scaling": {"factor": 2.0, "type": "dynamic"}}
        text |= {"auto_map": {"AutoModelForCausalLM": "modeling_internlm2.InternLM2ForCausalLM"}}
    else:
        text |= {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "rope_scaling": None}
        text |= {"use_sliding_window": False, "sliding_window": None, "max_window_layers": 70}
    vision = {
        "architectures": ["InternVisionModel"], "model_type": "intern_vit_6b", "hidden_size": D,
        "intermediate_size": FFN, "num_hidden_layers": LAYERS, "image_size": SIDE,
        "num_attention_heads": VISION_HEADS, "patch_size": PATCH, "hidden_act": "gelu",
        "layer_norm_eps": 1e-6, "norm_type": "rms_norm" if six_billion else "layer_norm",
        "qk_normalization": six_billion, "qkv_bias": not six_billion, "use_flash_attn": True,
    }  # fmt: skip
    return {
        "architectures": ["InternVLChatModel"],
        "model_type": "internvl_chat",
        "auto_map": {"AutoConfig": "configuration_internvl_chat.InternVLChatConfig"},
        "llm_config": text,
        "vision_config": vision,
        "downsample_ratio": 0.5,
        "dynamic_image_size": True,
        "force_image_size": SIDE,
        "max_dynamic_patch": 12,
        "min_dynamic_patch": 1,
        "pad2square": False,
        "ps_version": "v2",
        "select_layer": -1,
        "template": "internvl2_5",
        "use_backbone_lora": 0,
        "use_llm_lora": 0,
        "use_thumbnail": True,
    }


def _added(tokens: dict[int, str]) -> dict[str, Any]:
    return {str(i): {"content": token, "special": True} for i, token in tokens.items()}


def _write_internlm2(folder: Path) -> int:
    """Write ``tokenizer.model``, a SentencePiece model whose last pieces are unused names."""
    learnt = json.loads(vocabulary("gemma"))["model"]["vocab"]
    words = [token for token in learnt if not token.startswith("<")]
    words += [f"{number}" for number in range(10, 100)]
    pieces = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    pieces += [(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)]
    pieces += [(word, -float(rank), 1) for rank, word in enumerate(words)]
    pieces += [(f"[UNUSED_TOKEN_{i}]", 0.0, 4) for i in range(4)]
    count = len(pieces)
    message = b""
    for text, score, kind in pieces:
        name = text.encode()
        body = (
            bytes([10, len(name)]) + name + b"\x15" + struct.pack("<f", score) + bytes([24, kind])
        )
        message += bytes([10, len(body)]) + body
    (folder / "tokenizer.model").write_bytes(message)
    special = {0: "<unk>", 1: "<s>", 2: "</s>", count - 2: CHAT[0], count - 1: CHAT[1]}
    special |= {count + i: token for i, token in enumerate(IMAGES)}
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>", "unk_token": "<unk>"}
    settings = names | {
        "added_tokens_decoder": _added(special),
        "tokenizer_class": "InternLM2Tokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_internlm2.InternLM2Tokenizer", None]},
        "chat_template": "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return count + len(IMAGES)


def _write_qwen2(folder: Path) -> int:
    model = json.loads(vocabulary("qwen"))["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = [" ".join(merge) for merge in model["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    count = len(model["vocab"])
    special = {count + i: t for i, t in enumerate(["<|endoftext|>", *reversed(CHAT), *IMAGES])}
    settings = {
        "added_tokens_decoder": _added(special),
        "additional_special_tokens": [*CHAT, *IMAGES],
        "tokenizer_class": "Qwen2Tokenizer",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "add_bos_token": False,
        "chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return count + len(special)


class Oracle:
    """The forward pass of the published code, for the layers that a checkpoint has."""

    def __init__(self, folder: Path) -> None:
        self.weights = load_file(folder / "model.safetensors")
        self.config = json.loads((folder / "config.json").read_text())

    def linear(self, name: str, given: Any) -> Any:
        return F.linear(given, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def norm(self, name: str, given: Any, eps: float) -> Any:
        """LayerNorm where there is a bias, RMSNorm where there is none."""
        weight, bias = self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias")
        if bias is not None:
            return F.layer_norm(given, weight.shape, weight, bias, eps)
        return weight * given * torch.rsqrt(given.pow(2).mean(-1, keepdim=True) + eps)

    def image_features(self, pixels: Any) -> Any:
        """The embeddings (T, tokens, E) of tiles (T, 3, SIDE, SIDE): ``extract_feature``."""
        w = self.weights
        patches = F.conv2d(
            pixels,
            w["vision_model.embeddings.patch_embedding.weight"],
            w["vision_model.embeddings.patch_embedding.bias"],
            stride=PATCH,
        )
        patches = patches.flatten(2).transpose(1, 2)
        first = w["vision_model.embeddings.class_embedding"].expand(len(pixels), 1, -1)
        x = torch.cat([first, patches], 1) + w["vision_model.embeddings.position_embedding"]
        for i in range(LAYERS):
            layer = f"vision_model.encoder.layers.{i}"
            q, k, v = self.linear(f"{layer}.attn.qkv", self.norm(f"{layer}.norm1", x, 1e-6)).split(
                D, -1
            )
            if self.config["vision_config"]["qk_normalization"]:
                q = self.norm(f"{layer}.attn.q_norm", q, 1e-6)
                k = self.norm(f"{layer}.attn.k_norm", k, 1e-6)
            q, k, v = (t.unflatten(-1, (VISION_HEADS, -1)).transpose(1, 2) for t in (q, k, v))
            weight = (q @ k.transpose(-1, -2) / (D // VISION_HEADS) ** 0.5).softmax(-1)
            mixed = (weight @ v).transpose(1, 2).flatten(-2)
            x = x + w[f"{layer}.ls1"] * self.linear(f"{layer}.attn.proj", mixed)
            inner = F.gelu(self.linear(f"{layer}.mlp.fc1", self.norm(f"{layer}.norm2", x, 1e-6)))
            x = x + w[f"{layer}.ls2"] * self.linear(f"{layer}.mlp.fc2", inner)
        side = SIDE // PATCH
        grid = x[:, 1:].reshape(len(x), side, side, D)
        # pixel_shuffle, version 2: four neighbours become one token, rows before columns
        blocks = grid.reshape(len(x), side // 2, 2, side // 2, 2, D)
        shuffled = blocks.permute(0, 1, 3, 2, 4, 5).flatten(3).flatten(1, 2)
        made = self.linear("mlp1.1", self.norm("mlp1.0", shuffled, 1e-5))
        return self.linear("mlp1.3", F.gelu(made))

    def logits(self, ids: Any, pixels: Any, image_token: int) -> Any:
        """The logits (L, V) of one prompt (L,) with its tiles."""
        w, internlm2 = self.weights, "language_model.output.weight" in self.weights
        embedding = "tok_embeddings" if internlm2 else "embed_tokens"
        x = w[f"language_model.model.{embedding}.weight"][ids].clone()
        x[ids == image_token] = self.image_features(pixels).flatten(0, 1)
        length = len(ids)
        turn = 1.0 / THETA ** (torch.arange(0, HEAD, 2) / HEAD)
        angle = torch.outer(torch.arange(length).float(), turn).repeat(1, 2)[:, None]

        def rotated(t: Any) -> Any:
            half = torch.cat([-t[..., HEAD // 2 :], t[..., : HEAD // 2]], -1)
            return t * angle.cos() + half * angle.sin()

        unseen = torch.full((length, length), -torch.inf).triu(1)
        for i in range(LAYERS):
            layer = f"language_model.model.layers.{i}"
            names = (
                ("attention_norm", "attention.wo", "ffn_norm")
                if internlm2
                else ("input_layernorm", "self_attn.o_proj", "post_attention_layernorm")
            )
            h = self.norm(f"{layer}.{names[0]}", x, 1e-5)
            if internlm2:  # "(h gs d)" in its code: queries of a group, then its key and value
                fused = self.linear(f"{layer}.attention.wqkv", h).view(length, GROUPS, -1, HEAD)
                q = fused[:, :, :-2].reshape(length, HEADS, HEAD)
                k, v = fused[:, :, -2], fused[:, :, -1]
            else:
                q, k, v = (
                    self.linear(f"{layer}.self_attn.{c}_proj", h).view(length, -1, HEAD)
                    for c in "qkv"
                )
            k, v = (t.repeat_interleave(HEADS // GROUPS, 1) for t in (rotated(k), v))
            scores = torch.einsum("ihd,jhd->hij", rotated(q), k) / HEAD**0.5 + unseen
            mixed = torch.einsum("hij,jhd->ihd", scores.softmax(-1), v).reshape(length, E)
            x = x + self.linear(f"{layer}.{names[1]}", mixed)
            h = self.norm(f"{layer}.{names[2]}", x, 1e-5)
            gate, up, down = (
                ("feed_forward.w1", "feed_forward.w3", "feed_forward.w2")
                if internlm2
                else ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
            )
            inner = F.silu(self.linear(f"{layer}.{gate}", h)) * self.linear(f"{layer}.{up}", h)
            x = x + self.linear(f"{layer}.{down}", inner)
        head = "output" if internlm2 else "lm_head"
        return self.linear(
            f"language_model.{head}", self.norm("language_model.model.norm", x, 1e-5)
        )
