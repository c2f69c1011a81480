"""Real tokenizers of the families that the paper's models belong to, in their chat templates.

The files are in the folder of the benchmark data, under ``tokenizers``. They are read here as
transformers does, but without sentencepiece and tiktoken.
"""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import transformers as hf
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers.convert_slow_tokenizer import bytes_to_unicode, import_protobuf
from transformers.tokenization_utils_base import generate_merges

LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Family:
    """Where a family's tokenizer is, and what surrounds a text in its template."""

    folder: str
    before: str
    after: str
    natural_start: str
    """How "0.85" begins after the prompt, as tokens; with a bar where both ways are natural."""
    spaced: bool
    """Whether the prompt ends so that an answer may begin with a space."""
    longer: int
    """How many tokens of several digits begin with each digit."""
    more: tuple[str, ...] = ()
    """Control tokens that are not in the tokenizer's own files."""


def _chatml(image: str, system: str = "") -> tuple[str, str]:
    start = f"<|im_start|>system\n{system}<|im_end|>\n" if system else ""
    return f"{start}<|im_start|>user\n{image}", "<|im_end|>\n<|im_start|>assistant\n"


_LLAMA3_HEAD = "<|start_header_id|>%s<|end_header_id|>\n\n"
_HELPFUL = "You are a helpful assistant."
_QWEN_IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
FAMILIES = {
    "LLaVA-NeXT-8B": Family(
        "llama3",
        f"<|begin_of_text|>{_LLAMA3_HEAD % 'user'}<image>\n",
        f"<|eot_id|>{_LLAMA3_HEAD % 'assistant'}",
        "0 . 85",
        False,
        110,
        ("<image>",),
    ),
    "LLaVA-NeXT-13B, LLaVA-1.5": Family(
        "llama2_vicuna", "USER: <image>\n", " ASSISTANT:", "▁ 0 . 8 5", True, 0, ("<image>",)
    ),
    "LLaVA-NeXT-Mistral": Family(
        "mistral", "[INST] <image>\n", " [/INST]", "▁ 0 . 8 5", True, 0, ("<image>",)
    ),
    "LLaVA-NeXT-34B": Family(
        "yi", *_chatml("<image>\n", "Answer the questions."), "0 . 8 5", False, 0, ("<image>",)
    ),
    "LLaVA-NeXT-72B": Family(
        "qwen1_5", *_chatml("<image>\n", _HELPFUL), "0 . 8 5", False, 0, ("<image>",)
    ),
    "Qwen2-VL": Family("qwen2_vl", *_chatml(_QWEN_IMAGE, _HELPFUL), "0 . 8 5", False, 0),
    "Qwen2.5-VL": Family("qwen2_5_vl", *_chatml(_QWEN_IMAGE, _HELPFUL), "0 . 8 5", False, 0),
    "InternVL-78B": Family(
        "internvl3_qwen", *_chatml("<IMG_CONTEXT>\n"), "0 . 8 5", False, 0, ("<IMG_CONTEXT>",)
    ),
    "InternVL-8B": Family("internlm2", *_chatml("<IMG_CONTEXT>\n"), "0 . 85", False, 110),
    "MiniCPM-V-2.6": Family(
        "minicpmv2_6", *_chatml("(<image>./</image>)\n", _HELPFUL), "0 . 8 5", False, 0
    ),
    "Idefics3": Family(
        "llama3",
        "<|begin_of_text|>User:<image>",
        "<end_of_utterance>\nAssistant:",
        "Ġ 0 . 85",
        True,
        110,
        ("<image>", "<fake_token_around_image>", "<end_of_utterance>"),
    ),
    "CogVLM2": Family("llama3", "Question: ", " Answer:", "0 . 85 | Ġ 0 . 85", True, 110),
}


class RealProcessor:
    """What :class:`discode.backends._local.vocabulary.Vocabulary` uses of a processor."""

    def __init__(self, family: Family, tokenizer: Any) -> None:
        self.family, self.tokenizer = family, tokenizer

    def apply_chat_template(
        self, conversation: list[dict[str, Any]], *, add_generation_prompt: bool, tokenize: bool
    ) -> str:
        text = conversation[0]["content"][1]["text"]
        return f"{self.family.before}{text}{self.family.after}"


def real_processor(name: str, data: Path) -> RealProcessor:
    """A family's tokenizer in its template; skips where the files are missing."""
    family, root = FAMILIES[name], data / "tokenizers"
    if not (root / family.folder).is_dir():
        pytest.skip(f"there is no {root / family.folder}")
    tokenizer = _tokenizer(root, family.folder, family.more)
    return RealProcessor(family, tokenizer)


@functools.cache
def _tokenizer(root: Path, name: str, more: tuple[str, ...]) -> Any:
    folder = root / name
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    rows = settings.get("added_tokens_decoder", {}).values()
    special = [row["content"] for row in rows if row["special"]] + list(more)
    if name == "llama3":
        return _from_tiktoken(folder / "tokenizer.model", special)
    if (folder / "tokenizer.model").exists():
        vocabulary, merges = _sentencepiece(folder / "tokenizer.model")
        make: Callable[..., Any] = hf.LlamaTokenizer
        named = {"legacy": settings.get("legacy", True)}
    else:  # all of Qwen's vocabularies are equal
        lines = (root / "qwen2_vl" / "merges.txt").read_text().splitlines()
        merges = [tuple(line.split(" ")) for line in lines if not line.startswith("#version")]
        vocabulary = json.loads((root / "qwen2_vl" / "vocab.json").read_text())
        make, named = hf.Qwen2Tokenizer, {}
    for key in ("bos_token", "eos_token", "unk_token"):
        value = settings.get(key)
        named[key] = value["content"] if isinstance(value, dict) else value
    made = make(vocab=vocabulary, merges=merges, **named)
    made.add_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    return made


def _sentencepiece(path: Path) -> tuple[dict[str, int], list[Any]]:
    model = import_protobuf().ModelProto()
    model.ParseFromString(path.read_bytes())
    vocabulary = {piece.piece: number for number, piece in enumerate(model.pieces)}
    return vocabulary, generate_merges(vocabulary)


@functools.cache
def _tiktoken(path: Path) -> tuple[dict[str, int], list[tuple[str, str]]]:
    spelled = bytes_to_unicode()
    ranks = {
        "".join(spelled[byte] for byte in base64.b64decode(token)): int(rank)
        for token, rank in (line.split() for line in path.read_bytes().splitlines() if line)
    }

    merges: list[tuple[str, str]] = []
    for token in ranks:  # in ascending order of their ranks
        splits = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        known = [pair for pair in splits if pair[0] in ranks and pair[1] in ranks]
        merges += sorted(known, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
    return ranks, merges


def _from_tiktoken(path: Path, special: list[str]) -> Any:
    made = Tokenizer(models.BPE(*_tiktoken(path), ignore_merges=True))
    split = pre_tokenizers.Split(Regex(LLAMA3_WORDS), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in special])
    start = "<|begin_of_text|>"
    made.post_processor = processors.TemplateProcessing(
        single=[start, "$A"],
        pair=[start, "$A", "$B:1"],
        special_tokens=[(start, made.token_to_id(start))],
    )
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token=start, eos_token="<|eot_id|>"
    )
