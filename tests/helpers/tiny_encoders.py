"""Tiny checkpoints of the real classes, with random weights: CLIP, BERT, RoBERTa."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertModel,
    BertTokenizer,
    CLIPConfig,
    CLIPImageProcessor,
    CLIPModel,
    CLIPProcessor,
    CLIPTokenizer,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaModel,
)

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def _stir(model: torch.nn.Module, seed: int) -> None:
    """Give every weight a size that matters: initial ones make all texts look alike."""
    torch.manual_seed(seed)
    for name, weight in model.named_parameters():
        if name != "logit_scale":
            torch.nn.init.normal_(weight, mean=float("norm" in name), std=0.25)


def clip_model(seed: int = 0) -> CLIPModel:
    model = CLIPModel(
        CLIPConfig(
            text_config={
                **SIZES, "vocab_size": 54, "max_position_embeddings": 32, "eos_token_id": 53,
                "bos_token_id": 52, "projection_dim": 16, "hidden_act": "quick_gelu",
            },
            vision_config={
                **SIZES, "image_size": 16, "patch_size": 8, "projection_dim": 16,
                "hidden_act": "quick_gelu",
            },
            projection_dim=16,
        )
    )  # fmt: skip
    _stir(model, seed)
    return model.eval()


def save_clip(folder: Path, seed: int = 0) -> Path:
    """A CLIP that reads letters, 32 tokens at most."""
    ends = ["<|startoftext|>", "<|endoftext|>"]
    letters = [*LETTERS, *(f"{letter}</w>" for letter in LETTERS), *ends]
    tokenizer = CLIPTokenizer(vocab={text: n for n, text in enumerate(letters)}, merges=[])
    images = CLIPImageProcessor(size={"shortest_edge": 16}, crop_size=16)
    CLIPProcessor(image_processor=images, tokenizer=tokenizer).save_pretrained(folder)
    clip_model(seed).save_pretrained(folder)
    return folder


def save_bert(folder: Path, seed: int = 0) -> Path:
    """A BERT that reads a few words and any letters, 24 tokens at most."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "dog", "cat", "the", "runs", *LETTERS]
    words += [f"##{letter}" for letter in LETTERS]
    tokenizer = BertTokenizer(vocab={w: n for n, w in enumerate(words)}, model_max_length=24)
    tokenizer.save_pretrained(folder)
    model = BertModel(BertConfig(**SIZES, vocab_size=len(words), max_position_embeddings=24))
    _stir(model, seed)
    model.save_pretrained(folder)
    return folder


def save_roberta(folder: Path, seed: int = 0) -> Path:
    """A RoBERTa over bytes, 40 at most, which only its 42 positions tell."""
    ends = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = [*ends, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    rules = Tokenizer(models.BPE({text: n for n, text in enumerate(alphabet)}, []))
    rules.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    rules.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    PreTrainedTokenizerFast(
        tokenizer_object=rules, bos_token="<s>", eos_token="</s>", cls_token="<s>",
        sep_token="</s>", pad_token="<pad>", unk_token="<unk>", mask_token="<mask>",
    ).save_pretrained(folder)  # fmt: skip
    model = RobertaModel(
        RobertaConfig(**SIZES, vocab_size=len(alphabet), max_position_embeddings=42, pad_token_id=1)
    )
    _stir(model, seed)
    model.save_pretrained(folder)
    return folder
