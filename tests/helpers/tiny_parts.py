"""What tiny checkpoints have in common: small tokenizers, chat templates, settings.

Four kinds of tokenizer, learnt in a few milliseconds from the few lines of text below:

- ``qwen``: byte-level BPE, every digit a token of its own;
- ``llama3``: byte-level BPE with numbers of two digits, so that "0.85" is ``0 . 85``;
- ``llama2``: SentencePiece with a space in front of the text, so that "7" alone is ``▁ 7``;
- ``gemma``: SentencePiece without that space, line breaks as tokens.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

WORDS = """
Your task is to evaluate and rate the caption on a scale of based on the given Grading Criteria.
(Print Real Number Score ONLY) Grading Criteria: The caption does not describe the image at all.
The caption accurately and clearly describes the image. Caption: Reference Captions: Candidate
Score(Choose a rating from to): user assistant system model User Assistant You are helpful
a dog runs on the beach a cat sleeps in a red box two men and a woman with a ball in the park
"""
WORD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PRINTABLE = [chr(code) for code in range(33, 127)]
CHATML = ["<|im_start|>", "<|im_end|>"]
CHATML_TURN = "<|im_start|>{{ m.role }}\n", "<|im_end|>\n", "<|im_start|>assistant\n"
LLAMA3 = ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|reserved_special_token_0|>"]
LLAMA3_HEAD = "<|start_header_id|>%s<|end_header_id|>\n\n"
TEXT: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
}
VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 4,
}
SIGLIP = VISION | {"model_type": "siglip_vision_model", "vision_use_head": False}
SQUARE = {"height": 16, "width": 16}
SLIDING = ["sliding_attention", "full_attention"]
HELPFUL = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"


@functools.cache
def vocabulary(kind: str) -> str:
    """A tokenizer of this kind without special tokens, as JSON."""
    if kind in ("qwen", "llama3"):
        number = r"\p{N}" if kind == "qwen" else r"\p{N}{1,3}"
        tokenizer = Tokenizer(models.BPE())
        split = pre_tokenizers.Split(Regex(f"{WORD}|{number}|{REST}"), "isolated")
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
        tokenizer.decoder = decoders.ByteLevel()
        alphabet, first = pre_tokenizers.ByteLevel.alphabet(), []
    else:
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
        first = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
        alphabet = ["▁", *PRINTABLE]
        if kind == "gemma":
            alphabet.append("\n")
    trainer = trainers.BpeTrainer(
        vocab_size=len(first) + len(alphabet) + (198 if kind == "llama3" else 196),
        initial_alphabet=alphabet,
        special_tokens=first,
        show_progress=False,
    )
    tokenizer.train_from_iterator(WORDS.split("\n"), trainer)
    made = json.loads(tokenizer.to_str())
    model, made["added_tokens"] = made["model"], []
    digits = "0123456789"
    pairs = {  # as in the real ones, a full stop and the line breaks after it are one token
        "qwen": [("Ċ", "Ċ"), (".", "ĊĊ"), (":", "ĊĊ")],
        "llama3": [("Ċ", "Ċ"), (".", "ĊĊ"), (":", "ĊĊ"), *((a, b) for a in digits for b in digits)],
        "llama2": [],
        "gemma": [("▁", "▁"), ("\n", "\n")],
    }[kind]
    space = "Ġ" if kind in ("qwen", "llama3") else "▁"
    pairs += [(space, letter) for letter in "ABCDE"]
    pairs += [("N", "o"), ("Y", "es")]
    if kind != "llama3":  # there " Yes" is two tokens
        pairs += [(space, "No"), (space, "Yes")]
    for left, right in pairs:
        model["vocab"].setdefault(left + right, len(model["vocab"]))
        model["merges"].append([left, right])
    return json.dumps(made)


def tokenizer(
    kind: str,
    special: Sequence[str],
    *,
    bos: str | None = None,
    eos: str,
    pad: str,
    prefix: bool = True,
    template: str,
    **named: str,
) -> Any:
    """A tokenizer of this kind with special tokens; with ``prefix``, ``bos`` begins every text.

    ``named`` are special tokens that the processor asks for by name (``image_token`` ...).
    """
    made = Tokenizer.from_str(vocabulary(kind))
    back = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if kind == "llama2":
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        made.decoder = decoders.Sequence([*back, decoders.Strip(" ", 1, 0)])
    elif kind == "gemma":
        made.normalizer = normalizers.Replace(" ", "▁")
        made.pre_tokenizer = None
        made.decoder = decoders.Sequence(back)
    tokens = dict.fromkeys(t for t in (bos, eos, pad, *special, *named.values()) if t)
    made.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in tokens])
    if prefix and bos:
        made.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"],
            pair=[bos, "$A", "$B:1"],
            special_tokens=[(bos, made.token_to_id(bos))],
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token=bos,
        eos_token=eos,
        pad_token=pad,
        unk_token="<unk>" if kind in ("llama2", "gemma") else None,
        extra_special_tokens=dict(named),
        chat_template=template,
    )


def chat(
    before: str, image: str, after: str, reply: str, *, start: str = "", text: str = ""
) -> str:
    """A chat template: ``start``, the turns between ``before`` and ``after``, then ``reply``.

    All are pieces of Jinja in which ``m`` is the message; ``text`` renders a piece of text ``c``.
    """
    return (
        start
        + "{% for m in messages %}"
        + before
        + "{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}"
        + "{% if c.type == 'image' %}"
        + image
        + "{% else %}"
        + (text or "{{ c.text }}")
        + "{% endif %}{% endfor %}{% endif %}"
        + after
        + "{% endfor %}{% if add_generation_prompt %}"
        + reply
        + "{% endif %}"
    )


def llama2_tokenizer(template: str) -> Any:
    ends: dict[str, Any] = {"bos": "<s>", "eos": "</s>", "pad": "<pad>"}
    return tokenizer("llama2", [], **ends, template=template, image_token="<image>")


def llama3_tokenizer(image: str, *special: str, **named: Any) -> Any:
    turn = LLAMA3_HEAD % "{{ m.role }}", image, "<|eot_id|>", LLAMA3_HEAD % "assistant"
    return tokenizer(
        "llama3",
        [*LLAMA3, *special],
        bos="<|begin_of_text|>",
        eos="<|eot_id|>",
        pad="<|reserved_special_token_0|>",
        template=chat(*turn, start="{{ bos_token }}"),
        **named,
    )


def chatml_tokenizer(image: str, *special: str, start: str = "", **named: Any) -> Any:
    before, after, reply = CHATML_TURN
    return tokenizer(
        "qwen",
        [*CHATML, *special],
        eos="<|im_end|>",
        pad="<|endoftext|>",
        template=chat(before, image, after, reply, start=start),
        **named,
    )


def gemma_tokenizer(*special: str, template: str, **named: Any) -> Any:
    ends: dict[str, Any] = {"bos": "<bos>", "eos": "<eos>", "pad": "<pad>"}
    return tokenizer("gemma", special, **ends, template=template, **named)


class Parts(NamedTuple):
    """What a checkpoint is made of."""

    config: Any
    processor: Any


def text(tok: Any, **more: Any) -> dict[str, Any]:
    """A text model's settings; like the real ones it has more rows than the tokenizer tokens."""
    ids = {f"{name}_token_id": getattr(tok, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    return TEXT | ids | {"vocab_size": -(-len(tok) // 64) * 64} | more


def rope(theta: float = 100.0, **more: Any) -> dict[str, Any]:
    """Rotary positions that turn visibly within a short prompt, in every dimension."""
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta} | more}
