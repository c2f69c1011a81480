"""Tiny random checkpoints of the real transformers classes: two layers, 32 wide, no network.

``make(family, folder)`` writes what a user would download: config.json, model.safetensors, a
tokenizer, a processor and a chat template, to be opened by ``AutoModelForImageTextToText`` and
``AutoProcessor``. Each family has its peculiarities (grouped queries, sliding windows,
three-dimensional positions, image tokens that see each other, tiles whose number depends on the
image), its special tokens, and a tokenizer of its kind. Weights are the same every time, and
large enough that a wrong mask or position shows in the logits. The largest logits are between 15
and 30, as in real models: in bfloat16, numbers of that size are 0.125 apart.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from PIL import Image

from tests.helpers.once import SHELF
from tests.helpers.tiny_families import FAMILIES
from tests.helpers.tiny_parts import Parts
from tests.helpers.tiny_planted import plant

__all__ = ["FAMILIES", "UNPACKED", "ask", "make", "write"]
UNPACKED = {"paligemma", "lfm2_vl", "mllama", "qwen3_5"}
"""Families whose captions cannot share the computation of their image."""


def make(family: str, folder: Path, *, answers: bool = False, begins: str = "number") -> Path:
    """Put a checkpoint of ``family`` into ``folder`` and return the folder.

    It says anything at all; with ``answers`` it mostly says "0." or "1." and a digit, or ``begins``
    in another way.
    """
    name = f"{family}-{begins if answers else 'anything'}"
    return SHELF.copy(
        name,
        folder,
        lambda target: write(FAMILIES[family](), target, begins if answers else "", family),
    )


def write(parts: Parts, folder: Path, begins: str, seed: str) -> None:
    """Write a checkpoint of ``parts`` into ``folder``, which answers if ``begins`` says how."""
    config, processor = parts
    processor.chat_template = processor.tokenizer.chat_template
    config.tie_word_embeddings = config.get_text_config().tie_word_embeddings = False
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(zlib.crc32(seed.encode()))
        model = hf.AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
        for weight in model.parameters():
            if weight.numel() == 1:
                weight.fill_(0.5)  # a gate: closed, it would hide what comes before it
            elif weight.ndim > 1:
                weight.normal_(std=0.15)
            else:
                weight.add_(torch.randn_like(weight), alpha=0.15)
        prompt = ask(processor, Image.new("RGB", (16, 16)), "a dog")
        embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        if begins:
            tok, end = processor.tokenizer, int(prompt["input_ids"][0, -1])
            plant(embedding, head, tok.get_vocab(), end, tok.eos_token_id, begins)
        else:
            head.mul_(25 / model.eval()(**prompt).logits.max())
    model.save_pretrained(folder)
    processor.save_pretrained(folder)


def ask(processor: Any, image: Image.Image, text: str) -> Any:
    """An image and a text as the processor's inputs for the model, without labels."""
    content = [{"type": "image", "image": image}, {"type": "text", "text": text}]
    inputs = processor.apply_chat_template(
        [{"role": "user", "content": content}],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
    )
    inputs.pop("labels", None)  # PaliGemma's
    return inputs.to(torch.float32)  # Llama 4's pixels are bfloat16
