"""Folders with remote code, as a user would download them: code, settings, tokenizer, weights."""

from __future__ import annotations

import json
import shutil
import zlib
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.helpers.tiny_parts import CHATML_TURN, TEXT, llama3_tokenizer, rope, tokenizer
from tests.helpers.tiny_planted import plant
from tests.helpers.tiny_remote.modeling_cogvlm import CogVLMConfig, CogVLMForCausalLM
from tests.helpers.tiny_remote.modeling_minicpmv import MiniCPMV, MiniCPMVConfig

PACKED = {"cogvlm": False, "minicpmv": True}
MARKS = [f"<{slash}{mark}>" for mark in ("image", "slice", "image_id") for slash in ("", "/")]


def cogvlm(folder: Path) -> Any:
    """CogVLM2: no processor, no chat template, and no model type."""
    tok = llama3_tokenizer("")
    tok.chat_template = None
    tok.save_pretrained(folder)
    settings: dict[str, Any] = {"vocab_size": len(tok)}
    auto = {"AutoConfig": "CogVLMConfig", "AutoModelForCausalLM": "CogVLMForCausalLM"}
    _settings(folder, "modeling_cogvlm", "CogVLMForCausalLM", auto, settings)
    return CogVLMForCausalLM(CogVLMConfig(**settings))


def minicpmv(folder: Path) -> Any:
    """MiniCPM-V 2.6: a processor of its own, a chat template that knows text alone."""
    before, after, reply = CHATML_TURN
    tok = tokenizer(
        "qwen",
        ["<|im_start|>", *MARKS, "<unk>"],
        eos="<|im_end|>",
        pad="<|endoftext|>",
        template="{% for m in messages %}" + before + "{{ m.content }}" + after + "{% endfor %}"
        "{% if add_generation_prompt %}" + reply + "{% endif %}",
    )
    tok.save_pretrained(folder)
    auto = {"AutoProcessor": "MiniCPMVProcessor", "AutoImageProcessor": "MiniCPMVImageProcessor"}
    named = {key: f"processing_minicpmv.{name}" for key, name in auto.items()}
    image_settings = {"image_processor_type": "MiniCPMVImageProcessor", "version": 2.6}
    image_settings |= {"processor_class": "MiniCPMVProcessor"}
    (folder / "preprocessor_config.json").write_text(
        json.dumps(image_settings | {"auto_map": named})
    )
    settings = TEXT | rope() | {"vocab_size": len(tok), "tie_word_embeddings": False}
    settings |= {"eos_token_id": tok.eos_token_id, "model_type": "minicpmv", "version": 2.6}
    auto = {"AutoConfig": "MiniCPMVConfig", "AutoModel": "MiniCPMV"}
    _settings(folder, "modeling_minicpmv", "MiniCPMV", auto, settings)
    return MiniCPMV(MiniCPMVConfig(**settings))


def make(family: str, folder: Path, *, answers: bool = False, begins: str = "number") -> Path:
    """Write the folder; with ``answers`` the model mostly says "0." or "1." and a digit."""
    folder.mkdir(parents=True)
    for path in Path(__file__).parent.glob(f"*_{family}.py"):
        shutil.copy(path, folder)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(zlib.crc32(family.encode()))
        model = {"cogvlm": cogvlm, "minicpmv": minicpmv}[family](folder)
        for weight in model.parameters():
            weight.normal_(std=0.15)
            if weight.ndim == 1:
                weight.add_(1)
        if answers:
            _plant(model, folder, begins)
    save_file(model.state_dict(), folder / "model.safetensors", {"format": "pt"})
    return folder


def _plant(model: Any, folder: Path, begins: str) -> None:
    made = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = made["model"]["vocab"]
    eos = next(
        t["id"] for t in made["added_tokens"] if t["content"] in ("<|eot_id|>", "<|im_end|>")
    )
    family = model.llm if hasattr(model, "llm") else model
    last = vocabulary["Ċ" if family is not model else ":"]
    plant(family.model.embed_tokens.weight, family.lm_head.weight, vocabulary, last, eos, begins)


def _settings(
    folder: Path, module: str, name: str, auto: dict[str, str], settings: dict[str, Any]
) -> None:
    named = {key: f"{module}.{value}" for key, value in auto.items()}
    whole = settings | {"architectures": [name], "auto_map": named}
    (folder / "config.json").write_text(json.dumps(whole))
