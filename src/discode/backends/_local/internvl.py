"""InternVL-2.5 and InternVL3 as the hub has them, opened with transformers' own InternVL classes.

``OpenGVLab/InternVL2_5-8B`` and related models contain their own code, in a layout that
transformers does not read. That code is not run: the settings, the tokenizer, the prompt and the
names of the weights are translated (:data:`RENAMED`). Two weights are split: ``attn.qkv`` of the
vision tower, (3·D, D), and InternLM2's ``attention.wqkv``, ((H+2·G)·d, E): per group H/G queries, a
key, a value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from discode._extras import require_transformers
from discode.backends._local import memory
from discode.backends._local.sentencepiece import read_model
from discode.errors import InputError, require

ARCHITECTURE = "InternVLChatModel"
"""The first of ``architectures`` in the config.json of an original checkpoint."""
LANGUAGE_MODELS = {"InternLM2ForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2"}
"""transformers' model type by the language model's class: InternLM2 computes the same as Llama."""
TEMPLATE = "internvl2_5"
SYSTEM_MESSAGE = (
    "你是书生·万象，英文名是InternVL，是由上海人工智能实验室、清华大学及多家合作单位联合开发的"
    "多模态大语言模型。"
)
"""The system message of ``internvl2_5`` in ``conversation.py``."""
IMAGE, IMAGE_START, IMAGE_END, VIDEO = "<IMG_CONTEXT>", "<img>", "</img>", "<video>"
FILES = ("*.json", "*.model", "merges.txt")
"""The files of a checkpoint that are needed besides its weights."""
_VISION, _PROJECTOR = "model.vision_tower.", "model.multi_modal_projector."
RENAMED = (
    ("vision_model.embeddings.class_embedding", f"{_VISION}embeddings.cls_token"),
    (
        "vision_model.embeddings.patch_embedding.",
        f"{_VISION}embeddings.patch_embeddings.projection.",
    ),
    ("vision_model.embeddings.position_embedding", f"{_VISION}embeddings.position_embeddings"),
    ("vision_model.encoder.layers.", f"{_VISION}encoder.layer."),
    (".attn.proj.", ".attention.projection_layer."),
    (".attn.", ".attention."),
    (".norm1.", ".layernorm_before."),
    (".norm2.", ".layernorm_after."),
    (".ls1", ".lambda_1"),
    (".ls2", ".lambda_2"),
    ("mlp1.0.", f"{_PROJECTOR}layer_norm."),
    ("mlp1.1.", f"{_PROJECTOR}linear_1."),
    ("mlp1.3.", f"{_PROJECTOR}linear_2."),
    ("language_model.lm_head.", "lm_head."),
    ("language_model.output.", "lm_head."),
    ("language_model.model.tok_embeddings.", "language_model.model.embed_tokens."),
    (".attention.wo.", ".self_attn.o_proj."),
    (".attention.wqkv.", ".self_attn.qkv."),
    (".attention_norm.", ".input_layernorm."),
    (".ffn_norm.", ".post_attention_layernorm."),
    (".feed_forward.w1.", ".mlp.gate_proj."),
    (".feed_forward.w2.", ".mlp.down_proj."),
    (".feed_forward.w3.", ".mlp.up_proj."),
    ("language_model.model.", "model.language_model."),
)
"""Parts of the original names and their replacements, applied in order."""
_TEXT_SETTINGS = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "hidden_act", "max_position_embeddings", "rms_norm_eps", "bos_token_id",
    "use_sliding_window", "sliding_window", "max_window_layers",
)  # fmt: skip
_VISION_SETTINGS = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "hidden_act",
    "image_size", "patch_size", "norm_type", "layer_norm_eps", "qkv_bias", "qk_normalization",
)  # fmt: skip
_VISION_NAMES = {"qkv_bias": "attention_bias", "qk_normalization": "use_qk_norm"}


def is_original(settings: Mapping[str, Any]) -> bool:
    """Whether a config.json describes an InternVL in its original layout."""
    return ARCHITECTURE in (settings.get("architectures") or ())


def open_original(name: str, folder: Path, settings: Mapping[str, Any]) -> tuple[Any, Any]:
    try:
        _check(name, settings)
        tokenizer = read_tokenizer(folder, settings["llm_config"]["architectures"][0])
        return _configuration(settings, tokenizer), _processor(folder, settings, tokenizer)
    except KeyError as error:
        raise InputError(f"{name} has no setting {error}") from None


def _check(name: str, settings: Mapping[str, Any]) -> None:
    """Raise if transformers' classes would compute something else."""
    language, vision = settings["llm_config"], settings["vision_config"]
    eps = vision["layer_norm_eps"] if vision.get("qk_normalization") else 1e-6
    for what, value, allowed in (
        ("language model", language["architectures"][0], tuple(LANGUAGE_MODELS)),
        ("template", settings.get("template"), (TEMPLATE,)),
        ("ps_version", settings.get("ps_version"), ("v2",)),
        ("use_backbone_lora", settings.get("use_backbone_lora", 0), (0,)),
        ("use_llm_lora", settings.get("use_llm_lora", 0), (0,)),
        ("layer_norm_eps", eps, (1e-6,)),
        ("rope_type", _rope(language)["rope_type"], ("default", "dynamic", "linear")),
    ):
        if value not in allowed:
            raise InputError(
                f"{name} cannot be opened: its {what} is {value!r}; allowed: "
                f"{', '.join(map(str, allowed))}"
            )


def _rope(language: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the settings of rotary positions for transformers.

    >>> _rope({"rope_theta": 1e6, "rope_scaling": {"type": "dynamic", "factor": 2.0}})
    {'rope_type': 'dynamic', 'rope_theta': 1000000.0, 'factor': 2.0}
    """
    scaling = language.get("rope_scaling") or {}
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    rope = {"rope_type": kind, "rope_theta": float(language["rope_theta"])}
    return rope | ({"factor": scaling["factor"]} if "factor" in scaling else {})


def _configuration(settings: Mapping[str, Any], tokenizer: Any) -> Any:
    transformers = require_transformers()
    language, vision = settings["llm_config"], settings["vision_config"]
    kind = LANGUAGE_MODELS[language["architectures"][0]]
    text = {key: language[key] for key in _TEXT_SETTINGS if key in language}
    if kind == "llama":
        text["attention_bias"] = language.get("bias", True)
    text |= {
        "rope_parameters": _rope(language),
        "tie_word_embeddings": False,
        "eos_token_id": tokenizer.convert_tokens_to_ids("<|im_end|>"),
        "pad_token_id": tokenizer.pad_token_id,
    }
    return transformers.InternVLConfig(
        text_config=transformers.AutoConfig.for_model(kind, **text),
        vision_config={
            _VISION_NAMES.get(key, key): vision[key] for key in _VISION_SETTINGS if key in vision
        },
        image_token_id=tokenizer.convert_tokens_to_ids(IMAGE),
        image_seq_length=_tokens_per_tile(settings),
        downsample_ratio=settings["downsample_ratio"],
        vision_feature_layer=settings.get("select_layer", -1),
        tie_word_embeddings=False,
        architectures=["InternVLForConditionalGeneration"],
    )


def _tile_size(settings: Mapping[str, Any]) -> int:
    return int(settings.get("force_image_size") or settings["vision_config"]["image_size"])


def _tokens_per_tile(settings: Mapping[str, Any]) -> int:
    side = _tile_size(settings) // int(settings["vision_config"]["patch_size"])
    return int(side**2 * settings["downsample_ratio"] ** 2)


def _processor(folder: Path, settings: Mapping[str, Any], tokenizer: Any) -> Any:
    """Build the processor: tiles of 448 pixels, and one of the whole image after them."""
    transformers = require_transformers()
    stored = memory.read_settings(folder / "preprocessor_config.json")
    side = _tile_size(settings)
    common = {
        "size": {"height": side, "width": side},
        "image_mean": stored["image_mean"],
        "image_std": stored["image_std"],
    }
    tiled = settings.get("dynamic_image_size", False)
    images = transformers.GotOcr2ImageProcessor(
        **common,
        min_patches=settings["min_dynamic_patch"] if tiled else 1,
        max_patches=settings["max_dynamic_patch"] if tiled else 1,
    )
    system = settings.get("system_message") or SYSTEM_MESSAGE
    return transformers.InternVLProcessor(
        images,
        tokenizer,
        transformers.InternVLVideoProcessor(**common),
        image_seq_length=_tokens_per_tile(settings),
        chat_template=_chat_template(system),
    )


def _chat_template(system: str) -> str:
    """Write the original ``chat`` format as a Jinja template."""
    start = "{{ " + json.dumps(f"<|im_start|>system\n{system}<|im_end|>\n", ensure_ascii=False)
    return (
        start + " }}{% for message in messages %}"
        "{{ '<|im_start|>' + message['role'] + '\\n' }}"
        "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
        "{% for part in message['content'] %}"
        "{% if part['type'] == 'image' %}{{ '" + IMAGE + "\\n' }}{% else %}{{ part['text'] }}"
        "{% endif %}{% endfor %}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    )


def read_tokenizer(folder: Path, architecture: str) -> Any:
    """Open the tokenizer of an original checkpoint: Qwen2's files, or InternLM2's model."""
    transformers = require_transformers()
    named = {
        "start_image_token": IMAGE_START,
        "end_image_token": IMAGE_END,
        "context_image_token": IMAGE,
        "video_token": VIDEO,
    }
    if LANGUAGE_MODELS[architecture] == "qwen2":
        tokenizer = transformers.Qwen2Tokenizer.from_pretrained(folder, extra_special_tokens=named)
    elif (folder / "tokenizer.json").is_file():
        fast = transformers.PreTrainedTokenizerFast
        tokenizer = fast.from_pretrained(folder, extra_special_tokens=named)
    else:
        tokenizer = _internlm2_tokenizer(folder, named)
    for token in (IMAGE, IMAGE_START, IMAGE_END, "<|im_start|>", "<|im_end|>"):
        if token not in tokenizer.get_vocab():
            raise InputError(f"the tokenizer in {folder} has no token {token}")
    return tokenizer


def _internlm2_tokenizer(folder: Path, named: dict[str, str]) -> Any:
    """Build a tokenizer from ``tokenizer.model``, as InternLM2's own code does for its fast one.

    The special tokens of ``tokenizer_config.json`` replace unused pieces, or follow them.
    """
    tokenizers, transformers = require("tokenizers", "hf"), require_transformers()
    settings = memory.read_settings(folder / "tokenizer_config.json")
    added = {int(i): token["content"] for i, token in settings["added_tokens_decoder"].items()}
    try:
        pieces = read_model(folder / "tokenizer.model").pieces
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {folder / 'tokenizer.model'}: {error}") from None
    vocab = {added.get(i, piece.piece): i for i, piece in enumerate(pieces)}
    scores = {piece.piece: piece.score for piece in pieces if piece.type == piece.NORMAL}
    merges = transformers.tokenization_utils_base.generate_merges(scores, scores)
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = tokenizers.normalizers.Replace(" ", "▁")
    decoders = tokenizers.decoders
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    for i in sorted(added):  # those after the pieces take the next ids
        special = tokenizers.AddedToken(added[i], normalized=False, special=True)
        tokenizer.add_special_tokens([special])
    for i, token in added.items():
        if tokenizer.token_to_id(token) != i:
            raise InputError(f"{token} is not token {i} of the tokenizer in {folder}")
    first = settings["bos_token"]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=[first, "$A"],
        pair=[first, "$A", "$B:1"],
        special_tokens=[(first, tokenizer.token_to_id(first))],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=first,
        eos_token=settings["eos_token"],
        pad_token=settings["pad_token"],
        unk_token=settings["unk_token"],
        extra_special_tokens=named,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )


def load_original(name: str, folder: Path, config: Any, options: Mapping[str, Any]) -> Any:
    """Load the weights of an original checkpoint into transformers' class; all must match."""
    transformers, safetensors = require_transformers(), require("safetensors.torch", "hf")
    stored: dict[str, Any] = {}
    for path in memory.weight_files(folder):
        stored |= translate_weights(safetensors.load_file(path).items(), config)
    model, report = transformers.InternVLForConditionalGeneration.from_pretrained(
        None, config=config, state_dict=stored, output_loading_info=True, **options
    )
    for what in ("missing", "unexpected"):
        if keys := report[f"{what}_keys"]:
            weights = ", ".join(sorted(keys))
            raise InputError(f"{name} is not an InternVL checkpoint: {what} weights: {weights}")
    return model


def translate_weights(weights: Iterable[tuple[str, Any]], config: Any) -> dict[str, Any]:
    """Rename tensors for transformers' InternVL, and split fused ones."""
    text = config.text_config
    groups = text.num_key_value_heads
    translated: dict[str, Any] = {}
    for key, tensor in weights:
        name = key
        for old, new in RENAMED:
            name = name.replace(old, new)
        if ".self_attn.qkv." in name:  # per group: queries, a key, a value
            rest = tensor.shape[1:]
            each = tensor.view(groups, text.num_attention_heads // groups + 2, -1, *rest)
            parts = [each[:, :-2], each[:, -2], each[:, -1]]
            parts = [part.reshape(-1, *rest) for part in parts]
        elif ".attention.qkv." in name:
            parts = list(tensor.chunk(3))
        else:
            translated[name] = tensor
            continue
        for letter, part in zip("qkv", parts, strict=True):
            translated[re.sub(r"\.qkv\.", f".{letter}_proj.", name)] = part
    return translated
