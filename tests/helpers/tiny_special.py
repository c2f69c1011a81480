"""Tiny models with positions in three dimensions, or whose image tokens see each other."""

from __future__ import annotations

from typing import Any

import transformers as hf

from tests.helpers.tiny_parts import (
    HELPFUL,
    SIGLIP,
    SLIDING,
    SQUARE,
    Parts,
    chat,
    chatml_tokenizer,
    gemma_tokenizer,
    rope,
    text,
    tokenizer,
)

QWEN_VISION = {"depth": 2, "num_heads": 2, "patch_size": 4, "intermediate_size": 64}


def qwen(name: str, vision: dict[str, Any], text_config: dict[str, Any], start: str) -> Parts:
    tok = chatml_tokenizer(
        "<|vision_start|><|image_pad|><|vision_end|>",
        start=start,
        image_token="<|image_pad|>",
        video_token="<|video_pad|>",
        vision_start_token="<|vision_start|>",
        vision_end_token="<|vision_end|>",
    )
    config = getattr(hf, f"{name}Config")(
        text_config=text(tok, **text_config),
        vision_config=QWEN_VISION | vision,
        image_token_id=tok.image_token_id,
        video_token_id=tok.video_token_id,
        vision_start_token_id=tok.vision_start_token_id,
        vision_end_token_id=tok.vision_end_token_id,
    )
    settings = {"patch_size": 4, "size": {"shortest_edge": 64, "longest_edge": 1024}}
    video = hf.Qwen3VLVideoProcessor if name == "Qwen3VL" else hf.Qwen2VLVideoProcessor
    processor = getattr(hf, f"{name}Processor")(
        hf.Qwen2VLImageProcessor(**settings), tok, video(**settings)
    )
    return Parts(config, processor)


def qwen2_vl() -> Parts:
    vision = {"embed_dim": 32, "hidden_size": 32}
    return qwen("Qwen2VL", vision, rope(mrope_section=[2, 1, 1]), HELPFUL)


def qwen2_5_vl() -> Parts:
    vision: dict[str, Any] = {"hidden_size": 32, "out_hidden_size": 32, "window_size": 16}
    vision |= {"fullatt_block_indexes": [1]}
    return qwen("Qwen2_5_VL", vision, rope(mrope_section=[2, 1, 1]), HELPFUL)


def qwen3_vl() -> Parts:
    vision: dict[str, Any] = {
        "hidden_size": 32,
        "out_hidden_size": 32,
        "num_position_embeddings": 16,
    }
    vision |= {"deepstack_visual_indexes": [0, 1]}
    positions = rope(mrope_section=[4, 2, 2], mrope_interleaved=True)
    return qwen("Qwen3VL", vision, {"head_dim": 16, **positions}, "")


def glm4v() -> Parts:
    marks = [f"<|{edge}_of_{kind}|>" for kind in ("image", "video") for edge in ("begin", "end")]
    tok = tokenizer(
        "qwen",
        ["[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|system|>", *marks],
        eos="<|endoftext|>",
        pad="<|endoftext|>",
        template=chat(
            "<|{{ m.role }}|>\n",
            "<|begin_of_image|><|image|><|end_of_image|>",
            "",
            "<|assistant|>\n",
            start="[gMASK]<sop>",
        ),
        image_token="<|image|>",
        video_token="<|video|>",
    )
    positions = rope(mrope_section=[2, 1, 1], partial_rotary_factor=0.5)
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    ids = {
        f"{kind}_{name}_token_id": tok.convert_tokens_to_ids(f"<|{edge}_of_{kind}|>")
        for kind in ("image", "video")
        for name, edge in (("start", "begin"), ("end", "end"))
    }
    config = hf.Glm4vConfig(
        text_config=text(tok) | heads | positions,
        vision_config=QWEN_VISION | {"hidden_size": 32, "image_size": 16, "out_hidden_size": 32},
        image_token_id=tok.image_token_id,
        video_token_id=tok.video_token_id,
        **ids,
    )
    settings = {"patch_size": 4, "size": {"shortest_edge": 64, "longest_edge": 2048}}
    images, videos = hf.Glm4vImageProcessor(**settings), hf.Glm4vVideoProcessor(**settings)
    return Parts(config, hf.Glm4vProcessor(images, tok, videos))


def gemma3(window: int = 512) -> Parts:
    tok = gemma_tokenizer(
        "<start_of_turn>",
        "<end_of_turn>",
        template=chat(
            "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n",
            "<start_of_image>",
            "<end_of_turn>\n",
            "<start_of_turn>model\n",
            start="{{ bos_token }}",
            text="{{ c.text | trim }}",
        ),
        boi_token="<start_of_image>",
        eoi_token="<end_of_image>",
        image_token="<image_soft_token>",
    )
    layers = {"layer_types": SLIDING, "sliding_window": window}
    config = hf.Gemma3Config(
        text_config=text(tok, head_dim=8, query_pre_attn_scalar=8, **layers),
        vision_config=SIGLIP,
        mm_tokens_per_image=4,
        boi_token_index=tok.boi_token_id,
        eoi_token_index=tok.eoi_token_id,
        image_token_index=tok.image_token_id,
    )
    images = hf.Gemma3ImageProcessor(size=SQUARE)
    return Parts(config, hf.Gemma3Processor(images, tok, image_seq_length=4))


def gemma3_short_window() -> Parts:
    """Gemma 3 with a window shorter than its prompt."""
    return gemma3(window=16)


def paligemma() -> Parts:
    tok = gemma_tokenizer(  # the real ones have no template: image, then text
        template=chat("", "<image>", "", ""), image_token="<image>"
    )
    extra = [f"<loc{i:0>4}>" for i in range(1024)] + [f"<seg{i:0>3}>" for i in range(128)]
    tok.add_tokens(extra)  # the processor adds them when it is opened
    config = hf.PaliGemmaConfig(
        text_config=text(tok, model_type="gemma", head_dim=8) | {"num_key_value_heads": 1},
        vision_config=SIGLIP,
        image_token_index=tok.image_token_id,
        projection_dim=32,
        hidden_size=32,
    )
    images = hf.SiglipImageProcessor(size=SQUARE)
    images.image_seq_length = 16
    return Parts(config, hf.PaliGemmaProcessor(images, tok))
