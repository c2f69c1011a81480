"""Models of a known architecture with random weights, for timing without a checkpoint.

The shapes, the prompt and the number of tokens are those of the real model; the answers are
meaningless.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from discode._extras import require_transformers
from discode._prompts import FLEUR
from discode._scales import UNIT
from discode.backends._local.load import OpenedModel, choose_device_and_dtype
from discode.errors import lookup, require


@dataclass(frozen=True)
class Architecture:
    """The shapes of a model's language model and of its vision tower."""

    text: tuple[int, ...]
    """The values of ``_TEXT``."""
    vision: dict[str, Any]
    family: str = "llama"
    """llama and vicuna are LLaVA-NeXT; vicuna's prompt ends in "ASSISTANT:", so answers may begin
    with a space. qwen2-vl and qwen2.5-vl: tokens have three positions, and their number depends on
    the size of the image. internvl: 256 tokens per tile of the image."""


_TEXT = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "intermediate_size", "vocab_size",
)  # fmt: skip
_VISION = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "image_size",
    "projection_dim", "patch_size",
)  # fmt: skip
_CLIP = dict(zip(_VISION, (1024, 4096, 24, 16, 336, 768, 14), strict=True))
_SMALL = dict(zip(_VISION, (64, 128, 2, 2, 56, 64, 14), strict=True))
_QWEN = {"embed_dim": 1280, "depth": 32, "num_heads": 16}
_SMALL_QWEN = {"embed_dim": 64, "depth": 2, "num_heads": 2}
_QWEN_2_5 = {"hidden_size": 1280, "intermediate_size": 3420, "depth": 32, "num_heads": 16}
_SMALL_QWEN_2_5 = {"hidden_size": 64, "intermediate_size": 128, "depth": 2, "num_heads": 2}
_WINDOWS = {"window_size": 112, "tokens_per_second": 2}
_INTERN = dict(zip(_VISION[:4], (1024, 4096, 24, 16), strict=True))
_SMALL_INTERN = dict(zip(_VISION[:4], (64, 128, 2, 2), strict=True))
ARCHITECTURES = {
    "llava-next-8b": Architecture((4096, 32, 32, 8, 14336, 128320), _CLIP),
    "llava-next-13b": Architecture((5120, 40, 40, 40, 13824, 32064), _CLIP, "vicuna"),
    "llava-next-34b": Architecture((7168, 60, 56, 8, 20480, 64064), _CLIP),
    "llava-next-72b": Architecture((8192, 80, 64, 64, 24576, 152064), _CLIP),
    "qwen2-vl-7b": Architecture((3584, 28, 28, 4, 18944, 152064), _QWEN, "qwen2-vl"),
    "qwen2.5-vl-7b": Architecture(
        (3584, 28, 28, 4, 18944, 152064),
        _QWEN_2_5 | _WINDOWS | {"fullatt_block_indexes": [7, 15, 23, 31]},
        "qwen2.5-vl",
    ),
    "internvl-2.5-8b": Architecture((4096, 32, 32, 8, 14336, 92553), _INTERN, "internvl"),
    "tiny": Architecture((128, 4, 4, 2, 256, 4096), _SMALL),
    "tiny-qwen2-vl": Architecture((128, 4, 4, 2, 256, 4096), _SMALL_QWEN, "qwen2-vl"),
    "tiny-qwen2.5-vl": Architecture(
        (128, 4, 4, 2, 256, 4096),
        _SMALL_QWEN_2_5 | _WINDOWS | {"fullatt_block_indexes": [1]},
        "qwen2.5-vl",
    ),
    "tiny-internvl": Architecture((128, 4, 4, 2, 256, 4096), _SMALL_INTERN, "internvl"),
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
    """Train a tokenizer with about one token per English word, and one per digit."""
    transformers, tokenizers = require_transformers(), require("tokenizers", "hf")
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
        special_tokens=["<|start|>", "<|end|>", "<image>", "<video>"],
    )
    core.train_from_iterator(text, trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|end|>",
        pad_token="<|end|>",
        extra_special_tokens={
            "image_token": "<image>",
            "video_token": "<video>",
            "start_image_token": "<|start|>",
            "end_image_token": "<|end|>",
            "context_image_token": "<image>",
        },
        chat_template=template,
    )


def random_model(name: str, device: str | None = None, dtype: str | None = None) -> OpenedModel:
    torch, transformers = require("torch", "hf"), require_transformers()
    config, processor = configuration_and_processor(name)
    device, dtype = choose_device_and_dtype(device, dtype or "auto")
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(0)
        model = transformers.AutoModelForImageTextToText.from_config(
            config, dtype=getattr(torch, dtype), attn_implementation="sdpa"
        )
    model = model.to(device).eval().requires_grad_(False)
    model.generation_config.eos_token_id = None  # random weights must not stop early
    return OpenedModel(
        lambda: model, processor, f"random-{name}", "random", dtype, torch.device(device)
    )


def configuration_and_processor(name: str) -> tuple[Any, Any]:
    transformers, shape = require_transformers(), lookup(ARCHITECTURES, name, "architecture")
    words = stand_in_tokenizer(_VICUNA if shape.family == "vicuna" else _TEMPLATE)
    config = _configuration(shape, words)
    if shape.family.startswith("qwen"):
        parts = transformers.Qwen2VLImageProcessor(), words, transformers.Qwen2VLVideoProcessor()
        old = shape.family == "qwen2-vl"
        kind = transformers.Qwen2VLProcessor if old else transformers.Qwen2_5_VLProcessor
        return config, kind(*parts, chat_template=words.chat_template)
    if shape.family == "internvl":
        side = {"height": 448, "width": 448}
        processor = transformers.InternVLProcessor(
            transformers.GotOcr2ImageProcessor(size=side, crop_to_patches=True, max_patches=12),
            words,
            transformers.InternVLVideoProcessor(size=side),
            image_seq_length=256,
            chat_template=words.chat_template,
        )
        return config, processor
    side = shape.vision["image_size"]
    images = transformers.LlavaNextImageProcessor(
        size={"shortest_edge": side},
        crop_size={"height": side, "width": side},
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
    return config, processor


def _configuration(shape: Architecture, words: Any) -> Any:
    transformers = require_transformers()
    text = {
        **dict(zip(_TEXT, shape.text, strict=True)),
        "max_position_embeddings": 8192,
        "eos_token_id": words.eos_token_id,
        "pad_token_id": words.pad_token_id,
    }
    image_id = words.convert_tokens_to_ids("<image>")
    if shape.family == "internvl":
        return transformers.InternVLConfig(
            architectures=["InternVLForConditionalGeneration"],
            text_config=text | {"model_type": "llama"},
            vision_config=shape.vision,
            image_token_id=image_id,
        )
    if shape.family.startswith("qwen"):
        size = text["hidden_size"] // text["num_attention_heads"] // 2  # pairs that rotate
        turns = [size - 2 * (3 * size // 8), 3 * size // 8, 3 * size // 8]
        rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": turns}
        name, wide = "Qwen2VL", "hidden_size"
        if shape.family == "qwen2.5-vl":
            name, wide = "Qwen2_5_VL", "out_hidden_size"
        return getattr(transformers, f"{name}Config")(
            architectures=[f"{name}ForConditionalGeneration"],
            text_config=text | {"rope_parameters": rope, "bos_token_id": None},
            vision_config=shape.vision | {wide: text["hidden_size"]},
            image_token_id=image_id,
            video_token_id=words.convert_tokens_to_ids("<video>"),
        )
    side = shape.vision["image_size"]
    tiles = [[side, 2 * side], [2 * side, side], [2 * side, 2 * side], [3 * side, side]]
    return transformers.LlavaNextConfig(
        architectures=["LlavaNextForConditionalGeneration"],
        text_config=text | {"model_type": "llama"},
        vision_config=shape.vision | {"model_type": "clip_vision_model"},
        image_token_index=image_id,
        image_grid_pinpoints=[*tiles, [side, 3 * side]],
    )
