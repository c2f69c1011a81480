"""Load the encoders of CLIP-S, PAC-S, BERTScore and Polos from the hub or from a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from discode._extras import require_transformers
from discode.backends._local import hub
from discode.backends._local.load import (
    check_folder,
    check_name,
    choose_device_and_dtype,
    folder_digest,
    in_one_line,
    quiet,
)

BATCH = 64
"""Texts or images that an encoder gets at a time."""


def load_encoder(
    name: str,
    pick: Callable[[Any, str], tuple[Any, ...]],
    device: str | None,
    *,
    with_weights: bool = True,
) -> tuple[Any, ...]:
    """Return what ``pick(transformers, name)`` loads, with the model first and on ``device``.

    ``name`` is a hub name or a folder, which has .safetensors, or any files where ``pick`` takes no
    weights from it.
    """
    transformers = require_transformers()
    device, _ = choose_device_and_dtype(device, "float32")
    check_name(name, None)
    if not Path(name).is_dir():
        hub.must_use_cache(name, None)  # raises where it can be had from nowhere
    elif with_weights:
        check_folder(Path(name), trust_remote_code=False)
    with in_one_line(name), quiet("huggingface_hub"):
        model, *rest = pick(transformers, name)
    return (model.to(device).eval().requires_grad_(False), *rest)


def revision_of(name: str, model: Any) -> str:
    """Return a digest of a model's folder, or the commit of the hub."""
    folder = Path(name)
    if folder.is_dir():
        return folder_digest(folder)
    return str(getattr(model.config, "_commit_hash", None) or "main")[:12]


def shown_name(name: str) -> str:
    """Return what signatures call a model: its hub name, or the name of its folder."""
    return Path(name).name if Path(name).is_dir() else name


def text_batches(
    model: Any, tokenizer: Any, texts: Sequence[str]
) -> Iterator[tuple[Sequence[str], Any, Any, list[bool]]]:
    """Yield texts in batches: the texts, their token ids and mask, and whether each was cut."""
    device, longest = next(model.parameters()).device, _longest_text(model, tokenizer)
    for start in range(0, len(texts), BATCH):
        batch = list(texts[start : start + BATCH])
        encoded = tokenizer(
            batch, padding=True, truncation=True, max_length=longest, return_tensors="pt"
        )
        cut = [bool(encoding.overflowing) for encoding in encoded.encodings]
        yield batch, encoded["input_ids"].to(device), encoded["attention_mask"].to(device), cut


def _longest_text(model: Any, tokenizer: Any) -> int:
    """Return how many tokens a text encoder reads; some tokenizers claim 10^30."""
    config = getattr(model.config, "text_config", model.config)
    positions = getattr(config, "max_position_embeddings", 512)
    if "roberta" in config.model_type:  # its first position comes after that of padding
        positions -= config.pad_token_id + 1
    return int(min(tokenizer.model_max_length, positions))
