"""Models of a known architecture with random weights, for timing without a checkpoint.

The shapes, the prompt and the number of tokens are those of the real model; its answers mean
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from discode.backends.local.load import LoadedModel, choose_device_and_dtype
from discode.errors import lookup, require
from discode.prompts import FLEUR
from discode.scales import UNIT


@dataclass(frozen=True)
class Architecture:
    """A LLaVA-NeXT: its language model's shapes and its vision tower."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    feed: int
    vocabulary: int
    vision: dict[str, int]
    side: int
    vicuna: bool = False
    """Whether the prompt ends in "ASSISTANT:", so that answers may begin with a space."""


_CLIP = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
    "projection_dim": 768,
}
_SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 56,
    "patch_size": 14,
    "projection_dim": 64,
}
ARCHITECTURES = {
    "llava-next-8b": Architecture(4096, 32, 32, 8, 14336, 128320, _CLIP, 336),
    "llava-next-13b": Architecture(5120, 40, 40, 40, 13824, 32064, _CLIP, 336, vicuna=True),
    "llava-next-34b": Architecture(7168, 60, 56, 8, 20480, 64064, _CLIP, 336),
    "llava-next-72b": Architecture(8192, 80, 64, 64, 24576, 152064, _CLIP, 336),
    "tiny": Architecture(128, 4, 4, 2, 256, 4096, _SMALL, 56),
}

_TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{% for c in m.content %}"
    "{% if c.type == 'image' %}<image>\n{% else %}{{ c.text }}{% endif %}{% endfor %}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
_VICUNA = (
    "{% for m in messages %}{{ m.role | upper }}: {% for c in m.content %}"
    "{% if c.type == 'image' %}<image>\n{% else %}{{ c.text }}{% endif %}{% endfor %} "
    "{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)


def stand_in_tokenizer(template: str = _TEMPLATE) -> Any:
    """Return a tokenizer that takes about one token per English word, and one per digit."""
    transformers, tokenizers = require("transformers", "hf"), require("tokenizers", "hf")
    words = "a man in red shirt is riding bike down hill dog runs on the beach two people near"
    text = [FLEUR.render(words, (), UNIT)] * 3 + [f" {word}" for word in words.split()] * 3
    core = tokenizers.Tokenizer(tokenizers.models.BPE())
    pieces = tokenizers.pre_tokenizers
    core.pre_tokenizer = pieces.Sequence(
        [pieces.Digits(individual_digits=True), pieces.ByteLevel(add_prefix_space=False)]
    )
    core.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=2000,
        show_progress=False,
        initial_alphabet=pieces.ByteLevel.alphabet(),
        special_tokens=["<|start|>", "<|end|>", "<image>"],
    )
    core.train_from_iterator(text, trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|end|>",
        pad_token="<|end|>",
        extra_special_tokens={"image_token": "<image>"},
        chat_template=template,
    )


def random_model(name: str, device: str | None = None, dtype: str | None = None) -> LoadedModel:
    """Return a model of a named architecture with random weights."""
    torch, transformers = require("torch", "hf"), require("transformers", "hf")
    shape = lookup(ARCHITECTURES, name, "architecture")
    device, dtype = choose_device_and_dtype(device, dtype or "auto")
    words = stand_in_tokenizer(_VICUNA if shape.vicuna else _TEMPLATE)
    config = _configuration(shape, words)
    images = transformers.LlavaNextImageProcessor(
        size={"shortest_edge": shape.side},
        crop_size={"height": shape.side, "width": shape.side},
        image_grid_pinpoints=config.image_grid_pinpoints,
    )
    processor = transformers.LlavaNextProcessor(
        images,
        words,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=words.chat_template,
    )
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(0)
        model = transformers.AutoModelForImageTextToText.from_config(
            config, dtype=getattr(torch, dtype), attn_implementation="sdpa"
        )
    model = model.to(device).eval().requires_grad_(False)
    model.generation_config.eos_token_id = None  # random weights must not stop early
    return LoadedModel(model, processor, f"random-{name}", "random", dtype, torch.device(device))


def count_parameters(name: str) -> int:
    """Return how many weights an architecture has; none are made."""
    torch, transformers = require("torch", "hf"), require("transformers", "hf")
    config = _configuration(lookup(ARCHITECTURES, name, "architecture"), stand_in_tokenizer())
    with torch.device("meta"):
        model = transformers.AutoModelForImageTextToText.from_config(config)
    return sum(weight.numel() for weight in model.parameters())


def _configuration(shape: Architecture, words: Any) -> Any:
    """Return a LLaVA-NeXT's configuration; ``words`` is its tokenizer."""
    side = shape.side
    tiles = [[side, 2 * side], [2 * side, side], [2 * side, 2 * side], [3 * side, side]]
    return require("transformers", "hf").LlavaNextConfig(
        text_config={
            "model_type": "llama",
            "hidden_size": shape.width,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "intermediate_size": shape.feed,
            "vocab_size": shape.vocabulary,
            "max_position_embeddings": 8192,
            "eos_token_id": words.eos_token_id,
            "pad_token_id": words.pad_token_id,
        },
        vision_config=shape.vision | {"model_type": "clip_vision_model"},
        image_token_index=words.convert_tokens_to_ids("<image>"),
        image_grid_pinpoints=[*tiles, [side, 3 * side]],
    )
