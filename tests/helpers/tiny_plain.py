"""Tiny models that treat image tokens like text: plain positions and masks."""

from __future__ import annotations

from typing import Any

import transformers as hf

from tests.helpers.tiny_parts import (
    CHATML,
    HELPFUL,
    SIGLIP,
    SLIDING,
    SQUARE,
    VISION,
    Parts,
    chat,
    chatml_tokenizer,
    llama3_tokenizer,
    rope,
    text,
    tokenizer,
)

TILES = [[16, 32], [32, 16], [32, 32], [48, 16], [16, 48]]
IDEFICS = ["<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>"]
IDEFICS += [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
IDEFICS_SIZES = {"size": {"longest_edge": 32}, "max_image_size": {"longest_edge": 16}}
IDEFICS_TURN = (
    "{{ m.role | capitalize }}{{ ':' if m.content[0].type == 'image' else ': ' }}",
    "<image>",
    "<end_of_utterance>\n",
    "Assistant:",
)


def llava() -> Parts:
    """LLaVA-1.5: Vicuna's prompt, no tiles."""
    tok = tokenizer(
        "llama2",
        [],
        bos="<s>",
        eos="</s>",
        pad="<pad>",
        prefix=["<s>"],
        template=chat("{{ m.role | upper }}: ", "<image>\n", " ", "ASSISTANT:"),
        image_token="<image>",
    )
    config = hf.LlavaConfig(
        text_config=text(tok, model_type="llama", **rope()),
        vision_config=VISION | {"model_type": "clip_vision_model", "projection_dim": 32},
        image_token_index=tok.image_token_id,
    )
    processor = hf.LlavaProcessor(
        hf.CLIPImageProcessor(size={"shortest_edge": 16}, crop_size=SQUARE),
        tok,
        patch_size=4,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )
    return Parts(config, processor)


def llava_next(tok: Any, text_config: dict[str, Any]) -> Parts:
    images = hf.LlavaNextImageProcessor(
        size={"shortest_edge": 16}, crop_size=SQUARE, image_grid_pinpoints=TILES
    )
    config = hf.LlavaNextConfig(
        text_config=text_config,
        vision_config=VISION | {"model_type": "clip_vision_model", "projection_dim": 32},
        image_token_index=tok.image_token_id,
        image_grid_pinpoints=TILES,
    )
    processor = hf.LlavaNextProcessor(
        images,
        tok,
        patch_size=4,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )
    return Parts(config, processor)


def llava_next_llama() -> Parts:
    tok = llama3_tokenizer("<image>\n", image_token="<image>")
    return llava_next(tok, text(tok, model_type="llama", **rope()))


def llama2_tokenizer(template: str) -> Any:
    return tokenizer(
        "llama2",
        [],
        bos="<s>",
        eos="</s>",
        pad="<pad>",
        prefix=["<s>"],
        template=template,
        image_token="<image>",
    )


def llava_next_vicuna() -> Parts:
    tok = llama2_tokenizer(chat("{{ m.role | upper }}: ", "<image>\n", " ", "ASSISTANT:"))
    return llava_next(tok, text(tok, model_type="llama", **rope()))


def llava_next_mistral() -> Parts:
    # [INST] is plain text in this tokenizer
    tok = llama2_tokenizer(chat("[INST] ", "<image>\n", " [/INST]", ""))
    return llava_next(tok, text(tok, model_type="mistral", sliding_window=None, **rope()))


def llava_next_qwen2() -> Parts:
    tok = chatml_tokenizer("<image>\n", start=HELPFUL, image_token="<image>")
    return llava_next(tok, text(tok, model_type="qwen2", **rope()))


def llava_onevision() -> Parts:
    tok = chatml_tokenizer("<image>\n", image_token="<image>", video_token="<video>")
    config = hf.LlavaOnevisionConfig(
        text_config=text(tok, model_type="qwen2", **rope()),
        vision_config=SIGLIP,
        image_token_index=tok.image_token_id,
        video_token_index=tok.video_token_id,
        image_grid_pinpoints=[[16, 16], *TILES],
    )
    processor = hf.LlavaOnevisionProcessor(
        hf.LlavaOnevisionImageProcessor(size=SQUARE, image_grid_pinpoints=[[16, 16], *TILES]),
        tok,
        hf.LlavaOnevisionVideoProcessor(size=SQUARE),
        num_image_tokens=16,
        vision_feature_select_strategy="full",
    )
    return Parts(config, processor)


def internvl() -> Parts:
    tok = chatml_tokenizer(
        "<IMG_CONTEXT>\n",
        start_image_token="<img>",
        end_image_token="</img>",
        context_image_token="<IMG_CONTEXT>",
        video_token="<video>",
    )
    config = hf.InternVLConfig(
        text_config=text(tok, model_type="qwen2", **rope()),
        vision_config=VISION,
        image_token_id=tok.context_image_token_id,
        image_seq_length=4,
        tie_word_embeddings=False,
    )
    processor = hf.InternVLProcessor(
        hf.GotOcr2ImageProcessor(size=SQUARE, max_patches=4),
        tok,
        hf.InternVLVideoProcessor(size=SQUARE),
        image_seq_length=4,
    )
    return Parts(config, processor)


def idefics(name: str, tok: Any, images: Any, *video: Any) -> Parts:
    config = getattr(hf, f"{name}Config")(
        text_config=text(tok, model_type="llama", **rope()),
        vision_config=VISION,
        image_token_id=tok.convert_tokens_to_ids("<image>"),
        pad_token_id=tok.pad_token_id,
        scale_factor=2,
    )
    processor = getattr(hf, f"{name}Processor")(images, tok, *video, image_seq_len=4)
    return Parts(config, processor)


def idefics3() -> Parts:
    tok = tokenizer(
        "llama3",
        IDEFICS,
        bos="<|begin_of_text|>",
        eos="<|end_of_text|>",
        pad="<|reserved_special_token_0|>",
        prefix=["<|begin_of_text|>"],
        template=chat(*IDEFICS_TURN, start="<|begin_of_text|>"),
    )
    return idefics("Idefics3", tok, hf.Idefics3ImageProcessor(**IDEFICS_SIZES))


def smolvlm() -> Parts:
    tok = tokenizer(
        "qwen",
        [*CHATML, *IDEFICS],
        bos="<|im_start|>",
        eos="<end_of_utterance>",
        pad="<|im_end|>",
        template=chat(*IDEFICS_TURN, start="<|im_start|>"),
    )
    images = hf.SmolVLMImageProcessor(**IDEFICS_SIZES)
    return idefics("SmolVLM", tok, images, hf.SmolVLMVideoProcessor(**IDEFICS_SIZES))


def mistral3() -> Parts:
    tok = tokenizer(
        "qwen",
        ["[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[IMG_BREAK]", "[IMG_END]"],
        bos="<s>",
        eos="</s>",
        pad="<pad>",
        prefix=["<s>"],
        template=chat(
            "[INST]",
            "[IMG]",
            "[/INST]",
            "",
            start="{{ bos_token }}[SYSTEM_PROMPT]You are helpful[/SYSTEM_PROMPT]",
        ),
        image_token="[IMG]",
    )
    config = hf.Mistral3Config(
        text_config=text(tok, model_type="mistral", head_dim=16, sliding_window=None, **rope()),
        vision_config=VISION | {"model_type": "pixtral", "image_size": 32},
        image_token_index=tok.image_token_id,
        tie_word_embeddings=False,
    )
    images = hf.PixtralImageProcessor(
        size={"longest_edge": 32}, patch_size={"height": 4, "width": 4}
    )
    return Parts(config, hf.PixtralProcessor(images, tok, patch_size=4, spatial_merge_size=2))


def aya_vision() -> Parts:
    turn, end = "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>"
    parts = ["START_OF_IMG", "END_OF_IMG", "IMG_LINE_BREAK", "IMG_PATCH", "START_RESPONSE"]
    roles = ["<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|SYSTEM_TOKEN|>"]
    tok = tokenizer(
        "qwen",
        [turn, *roles, *(f"<|{part}|>" for part in parts), "<image>", "TILE", "TILE_GLOBAL"],
        bos="<BOS_TOKEN>",
        eos=end,
        pad="<PAD>",
        prefix=["<BOS_TOKEN>"],
        template=chat(
            turn + "<|{{ 'CHATBOT' if m.role == 'assistant' else m.role | upper }}_TOKEN|>",
            "<image>",
            end,
            f"{turn}<|CHATBOT_TOKEN|><|START_RESPONSE|>",
            start="{{ bos_token }}",
        ),
    )
    config = hf.AyaVisionConfig(
        text_config=text(
            tok, model_type="cohere2", layer_types=SLIDING, sliding_window=512, logit_scale=0.25
        ),
        vision_config=SIGLIP,
        image_token_index=tok.convert_tokens_to_ids("<|IMG_PATCH|>"),
        adapter_layer_norm_eps=1e-6,
    )
    images = hf.GotOcr2ImageProcessor(size=SQUARE, crop_to_patches=True, max_patches=4)
    return Parts(config, hf.AyaVisionProcessor(images, tok, 4, 16, downsample_factor=2))


def lfm2_vl() -> Parts:
    tiles = [f"<|img_row_{row}_col_{column}|>" for row in range(1, 5) for column in range(1, 5)]
    tok = chatml_tokenizer(
        "<image>",
        *tiles,
        start="{{ bos_token }}",
        bos="<|startoftext|>",
        prefix=["<|startoftext|>"],
        image_token="<image>",
        image_start_token="<|image_start|>",
        image_end_token="<|image_end|>",
        image_thumbnail_token="<|img_thumbnail|>",
    )
    config = hf.Lfm2VlConfig(
        text_config=text(
            tok, layer_types=["conv", "full_attention"], block_auto_adjust_ff_dim=False, **rope()
        ),
        vision_config=VISION | {"num_patches": 16, "vision_use_head": False},
        image_token_id=tok.image_token_id,
        projector_hidden_size=32,
    )
    images = hf.Lfm2VlImageProcessor(
        size=SQUARE,
        tile_size=16,
        encoder_patch_size=4,
        max_tiles=4,
        min_image_tokens=4,
        max_image_tokens=8,
    )
    return Parts(config, hf.Lfm2VlProcessor(images, tok))


def llama4() -> Parts:
    marks = ["image_start", "image_end", "tile_x_separator", "tile_y_separator", "finetune_pad"]
    head = "<|header_start|>%s<|header_end|>\n\n"
    tok = tokenizer(
        "llama3",
        ["<|header_start|>", "<|header_end|>", *(f"<|{mark}|>" for mark in marks)],
        bos="<|begin_of_text|>",
        eos="<|eot|>",
        pad="<|finetune_pad|>",
        prefix=["<|begin_of_text|>"],
        template=chat(
            head % "{{ m.role }}",
            "<|image|>",
            "<|eot|>",
            head % "assistant",
            start="{{ bos_token }}",
        ),
        image_token="<|image|>",
        patch_token="<|patch|>",
    )
    layers = {"no_rope_layers": [1, 0], "attention_chunk_size": 512, "floor_scale": 512}
    config = hf.Llama4Config(
        text_config=text(
            tok, head_dim=8, num_local_experts=4, intermediate_size_mlp=64, **layers, **rope()
        ),
        vision_config=VISION
        | {"intermediate_size": 128, "vision_output_dim": 32}
        | {"projector_input_dim": 32, "projector_output_dim": 32},
        boi_token_index=tok.convert_tokens_to_ids("<|image_start|>"),
        eoi_token_index=tok.convert_tokens_to_ids("<|image_end|>"),
        image_token_index=tok.patch_token_id,
    )
    images = hf.Llama4ImageProcessor(size=SQUARE, max_patches=4)
    return Parts(config, hf.Llama4Processor(images, tok, patch_size=4))


def mllama() -> Parts:
    tok = llama3_tokenizer("<|image|>", "<|python_tag|>", image_token="<|image|>")
    config = hf.MllamaConfig(
        text_config=text(tok, cross_attention_layers=[1], **rope())
        | {"vocab_size": tok.image_token_id},  # the image token has an embedding but no logit
        vision_config=VISION
        | {"num_global_layers": 1, "attention_heads": 2}
        | {"intermediate_layers_indices": [0, 1], "vision_output_dim": 96},
        image_token_index=tok.image_token_id,
    )
    images = hf.MllamaImageProcessor(size=SQUARE, max_image_tiles=4)
    return Parts(config, hf.MllamaProcessor(images, tok))
