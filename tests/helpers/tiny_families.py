"""The families of tiny models: tokenizer, settings and processor of each."""

from __future__ import annotations

from collections.abc import Mapping
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
    gemma_tokenizer,
    llama2_tokenizer,
    llama3_tokenizer,
    rope,
    text,
    tokenizer,
)

TILES = [[16, 32], [32, 16], [32, 32], [48, 16], [16, 48]]
CLIP = VISION | {"model_type": "clip_vision_model", "projection_dim": 32}
CLIP_PATCHES: dict[str, Any] = {
    "patch_size": 4, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1,
}  # fmt: skip
VICUNA = chat("{{ m.role | upper }}: ", "<image>\n", " ", "ASSISTANT:")
IDEFICS = ["<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>"]
IDEFICS += [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
IDEFICS_SIZES = {"size": {"longest_edge": 32}, "max_image_size": {"longest_edge": 16}}
IDEFICS_TURN = (
    "{{ m.role | capitalize }}{{ ':' if m.content[0].type == 'image' else ': ' }}",
    "<image>",
    "<end_of_utterance>\n",
    "Assistant:",
)
QWEN_VISION = {"depth": 2, "num_heads": 2, "patch_size": 4, "intermediate_size": 64}
MROPE = rope(mrope_section=[2, 1, 1])


def family(
    name: str,
    tok: Any,
    text_config: Mapping[str, Any],
    vision_config: Mapping[str, Any],
    config: Mapping[str, Any],
    *images: Any,
    of: str = "",
    **processor: Any,
) -> Parts:
    """The classes of this name: ``images`` and ``processor`` are for the processor.

    The processor may be that ``of`` another model.
    """
    first, *videos = images
    return Parts(
        getattr(hf, f"{name}Config")(
            text_config=text(tok, **text_config), vision_config=vision_config, **config
        ),
        getattr(hf, f"{of or name}Processor")(first, tok, *videos, **processor),
    )


def ids(tok: Any, suffix: str, **tokens: str) -> dict[str, int]:
    """The ids of tokens under the names that a configuration has for them."""
    return {f"{name}_{suffix}": tok.convert_tokens_to_ids(token) for name, token in tokens.items()}


def llava() -> Parts:
    """LLaVA-1.5: Vicuna's prompt, no tiles."""
    tok = llama2_tokenizer(VICUNA)
    images = hf.CLIPImageProcessor(size={"shortest_edge": 16}, crop_size=SQUARE)
    index = ids(tok, "token_index", image="<image>")
    return family("Llava", tok, {"model_type": "llama", **rope()}, CLIP, index, images,
                  **CLIP_PATCHES)  # fmt: skip


def llava_next(tok: Any, model_type: str, **more: Any) -> Parts:
    images = hf.LlavaNextImageProcessor(
        size={"shortest_edge": 16}, crop_size=SQUARE, image_grid_pinpoints=TILES
    )
    config = ids(tok, "token_index", image="<image>") | {"image_grid_pinpoints": TILES}
    text_config = {"model_type": model_type, **more, **rope()}
    return family("LlavaNext", tok, text_config, CLIP, config, images, **CLIP_PATCHES)


def llava_next_llama() -> Parts:
    return llava_next(llama3_tokenizer("<image>\n", image_token="<image>"), "llama")


def llava_next_vicuna() -> Parts:
    return llava_next(llama2_tokenizer(VICUNA), "llama")


def llava_next_mistral() -> Parts:
    # [INST] is plain text in this tokenizer
    tok = llama2_tokenizer(chat("[INST] ", "<image>\n", " [/INST]", ""))
    return llava_next(tok, "mistral", sliding_window=None)


def llava_next_qwen2() -> Parts:
    tok = chatml_tokenizer("<image>\n", start=HELPFUL, image_token="<image>")
    return llava_next(tok, "qwen2")


def llava_onevision() -> Parts:
    tok = chatml_tokenizer("<image>\n", image_token="<image>", video_token="<video>")
    tiles = {"image_grid_pinpoints": [[16, 16], *TILES]}
    config = ids(tok, "token_index", image="<image>", video="<video>") | tiles
    images = hf.LlavaOnevisionImageProcessor(size=SQUARE, **tiles)
    video = hf.LlavaOnevisionVideoProcessor(size=SQUARE)
    return family("LlavaOnevision", tok, {"model_type": "qwen2", **rope()}, SIGLIP, config, images,
                  video, num_image_tokens=16, vision_feature_select_strategy="full")  # fmt: skip


def internvl(language: str = "qwen2", **layers: Any) -> Parts:
    tok = chatml_tokenizer(
        "<IMG_CONTEXT>\n",
        start_image_token="<img>",
        end_image_token="</img>",
        context_image_token="<IMG_CONTEXT>",
        video_token="<video>",
    )
    config = ids(tok, "token_id", image="<IMG_CONTEXT>")
    config |= {"image_seq_length": 4, "tie_word_embeddings": False}
    images = hf.GotOcr2ImageProcessor(size=SQUARE, max_patches=4)
    text_config = {"model_type": language, **layers, **rope()}
    return family("InternVL", tok, text_config, VISION, config, images,
                  hf.InternVLVideoProcessor(size=SQUARE), image_seq_length=4)  # fmt: skip


def internvl3_5() -> Parts:
    return internvl("qwen3", head_dim=16)


def idefics(name: str, tok: Any, *images: Any) -> Parts:
    config = ids(tok, "token_id", image="<image>")
    config |= {"pad_token_id": tok.pad_token_id, "scale_factor": 2}
    text_config = {"model_type": "llama", **rope()}
    return family(name, tok, text_config, VISION, config, *images, image_seq_len=4)


def idefics3() -> Parts:
    tok = tokenizer(
        "llama3",
        IDEFICS,
        bos="<|begin_of_text|>",
        eos="<|end_of_text|>",
        pad="<|reserved_special_token_0|>",
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
        prefix=False,
        template=chat(*IDEFICS_TURN, start="<|im_start|>"),
    )
    images = hf.SmolVLMImageProcessor(**IDEFICS_SIZES)
    return idefics("SmolVLM", tok, images, hf.SmolVLMVideoProcessor(**IDEFICS_SIZES))


def mistral3() -> Parts:
    start = "{{ bos_token }}[SYSTEM_PROMPT]You are helpful[/SYSTEM_PROMPT]"
    tok = tokenizer(
        "qwen",
        ["[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[IMG_BREAK]", "[IMG_END]"],
        bos="<s>",
        eos="</s>",
        pad="<pad>",
        template=chat("[INST]", "[IMG]", "[/INST]", "", start=start),
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
    marks = ["START_OF_IMG", "END_OF_IMG", "IMG_LINE_BREAK", "IMG_PATCH", "START_RESPONSE"]
    roles = ["<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|SYSTEM_TOKEN|>"]
    tok = tokenizer(
        "qwen",
        [turn, *roles, *(f"<|{mark}|>" for mark in marks), "<image>", "TILE", "TILE_GLOBAL"],
        bos="<BOS_TOKEN>",
        eos=end,
        pad="<PAD>",
        template=chat(
            turn + "<|{{ 'CHATBOT' if m.role == 'assistant' else m.role | upper }}_TOKEN|>",
            "<image>",
            end,
            f"{turn}<|CHATBOT_TOKEN|><|START_RESPONSE|>",
            start="{{ bos_token }}",
        ),
    )
    text_config = {"model_type": "cohere2", "layer_types": SLIDING, "sliding_window": 512}
    config = ids(tok, "token_index", image="<|IMG_PATCH|>") | {"adapter_layer_norm_eps": 1e-6}
    images = hf.GotOcr2ImageProcessor(size=SQUARE, crop_to_patches=True, max_patches=4)
    return family("AyaVision", tok, text_config | {"logit_scale": 0.25}, SIGLIP, config, images,
                  patch_size=4, img_size=16, downsample_factor=2)  # fmt: skip


def lfm2_vl() -> Parts:
    tiles = [f"<|img_row_{row}_col_{column}|>" for row in range(1, 5) for column in range(1, 5)]
    tok = chatml_tokenizer(
        "<image>",
        *tiles,
        start="{{ bos_token }}",
        bos="<|startoftext|>",
        image_token="<image>",
        image_start_token="<|image_start|>",
        image_end_token="<|image_end|>",
        image_thumbnail_token="<|img_thumbnail|>",
    )
    layers = {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}
    vision = VISION | {"num_patches": 16, "vision_use_head": False}
    config = ids(tok, "token_id", image="<image>") | {"projector_hidden_size": 32}
    images = hf.Lfm2VlImageProcessor(
        size=SQUARE, tile_size=16, encoder_patch_size=4, max_tiles=4, min_image_tokens=4,
        max_image_tokens=8,
    )  # fmt: skip
    return family("Lfm2Vl", tok, layers | rope(), vision, config, images)


def llama4() -> Parts:
    marks = ["image_start", "image_end", "tile_x_separator", "tile_y_separator", "finetune_pad"]
    head = "<|header_start|>%s<|header_end|>\n\n"
    turn = head % "{{ m.role }}", "<|image|>", "<|eot|>", head % "assistant"
    tok = tokenizer(
        "llama3",
        ["<|header_start|>", "<|header_end|>", *(f"<|{mark}|>" for mark in marks)],
        bos="<|begin_of_text|>",
        eos="<|eot|>",
        pad="<|finetune_pad|>",
        template=chat(*turn, start="{{ bos_token }}"),
        image_token="<|image|>",
        patch_token="<|patch|>",
    )
    layers = {"no_rope_layers": [1, 0], "attention_chunk_size": 512, "floor_scale": 512}
    layers |= {"head_dim": 8, "num_local_experts": 4, "intermediate_size_mlp": 64}
    vision = VISION | {"intermediate_size": 128, "vision_output_dim": 32}
    vision |= {"projector_input_dim": 32, "projector_output_dim": 32}
    index = {"boi": "<|image_start|>", "eoi": "<|image_end|>", "image": "<|patch|>"}
    images = hf.Llama4ImageProcessor(size=SQUARE, max_patches=4)
    return family("Llama4", tok, layers | rope(), vision, ids(tok, "token_index", **index), images,
                  patch_size=4)  # fmt: skip


def mllama() -> Parts:
    tok = llama3_tokenizer("<|image|>", "<|python_tag|>", image_token="<|image|>")
    # The image token has an embedding but no logit.
    text_config = {"cross_attention_layers": [1], "vocab_size": tok.image_token_id, **rope()}
    vision = VISION | {"num_global_layers": 1, "attention_heads": 2}
    vision |= {"intermediate_layers_indices": [0, 1], "vision_output_dim": 96}
    images = hf.MllamaImageProcessor(size=SQUARE, max_image_tiles=4)
    index = ids(tok, "token_index", image="<|image|>")
    return family("Mllama", tok, text_config, vision, index, images)


def qwen(name: str, vision: dict[str, Any], text_config: dict[str, Any], start: str) -> Parts:
    named = {"image": "<|image_pad|>", "video": "<|video_pad|>"}
    named |= {"vision_start": "<|vision_start|>", "vision_end": "<|vision_end|>"}
    tok = chatml_tokenizer(
        "<|vision_start|><|image_pad|><|vision_end|>",
        start=start,
        **{f"{key}_token": token for key, token in named.items()},
    )
    settings = {"patch_size": 4, "size": {"shortest_edge": 64, "longest_edge": 1024}}
    video = hf.Qwen3VLVideoProcessor if name.startswith("Qwen3") else hf.Qwen2VLVideoProcessor
    images = hf.Qwen2VLImageProcessor(**settings), video(**settings)
    config = ids(tok, "token_id", **named)
    processor = "Qwen3VL" if name == "Qwen3_5" else name
    return family(name, tok, text_config, QWEN_VISION | vision, config, *images, of=processor)


def qwen2_vl() -> Parts:
    return qwen("Qwen2VL", {"embed_dim": 32, "hidden_size": 32}, MROPE, HELPFUL)


def qwen2_5_vl() -> Parts:
    vision: dict[str, Any] = {"hidden_size": 32, "out_hidden_size": 32, "window_size": 16}
    return qwen("Qwen2_5_VL", vision | {"fullatt_block_indexes": [1]}, MROPE, HELPFUL)


def qwen3_vl() -> Parts:
    vision: dict[str, Any] = {"hidden_size": 32, "out_hidden_size": 32}
    # As in real ones, no image is added after the last layer of text.
    vision |= {"num_position_embeddings": 16, "deepstack_visual_indexes": [0]}
    positions = rope(mrope_section=[4, 2, 2], mrope_interleaved=True)
    return qwen("Qwen3VL", vision, {"head_dim": 16, **positions}, "")


def qwen3_5() -> Parts:
    """Qwen3.5: every other layer is linear attention, which carries state."""
    vision: dict[str, Any] = {"hidden_size": 32, "out_hidden_size": 32}
    vision |= {"num_position_embeddings": 16}
    layers = {"layer_types": ["linear_attention", "full_attention"], "head_dim": 16}
    layers |= {f"linear_{part}_head_dim": 8 for part in ("key", "value")}
    layers |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
    positions = rope(mrope_section=[2, 1, 1], mrope_interleaved=True, partial_rotary_factor=0.5)
    return qwen("Qwen3_5", vision, layers | positions, "")


def glm4v() -> Parts:
    marks = [f"<|{edge}_of_{kind}|>" for kind in ("image", "video") for edge in ("begin", "end")]
    image = "<|begin_of_image|><|image|><|end_of_image|>"
    tok = tokenizer(
        "qwen",
        ["[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|system|>", *marks],
        eos="<|endoftext|>",
        pad="<|endoftext|>",
        template=chat("<|{{ m.role }}|>\n", image, "", "<|assistant|>\n", start="[gMASK]<sop>"),
        image_token="<|image|>",
        video_token="<|video|>",
    )
    text_config = rope(mrope_section=[2, 1, 1], partial_rotary_factor=0.5)
    text_config |= {"num_attention_heads": 2, "num_key_value_heads": 1}
    names = ("image_start", "image_end", "video_start", "video_end")
    config = ids(tok, "token_id", image="<|image|>", video="<|video|>")
    config |= ids(tok, "token_id", **dict(zip(names, marks, strict=True)))
    vision = QWEN_VISION | {"hidden_size": 32, "image_size": 16, "out_hidden_size": 32}
    settings = {"patch_size": 4, "size": {"shortest_edge": 64, "longest_edge": 2048}}
    images = hf.Glm4vImageProcessor(**settings), hf.Glm4vVideoProcessor(**settings)
    return family("Glm4v", tok, text_config, vision, config, *images)


def gemma3(window: int = 512) -> Parts:
    named = {"boi": "<start_of_image>", "eoi": "<end_of_image>", "image": "<image_soft_token>"}
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
        **{f"{key}_token": token for key, token in named.items()},
    )
    layers = {"layer_types": SLIDING, "sliding_window": window}
    layers |= {"head_dim": 8, "query_pre_attn_scalar": 8}
    config = ids(tok, "token_index", **named) | {"mm_tokens_per_image": 4}
    images = hf.Gemma3ImageProcessor(size=SQUARE)
    return family("Gemma3", tok, layers, SIGLIP, config, images, image_seq_length=4)


def gemma4() -> Parts:
    """Gemma 4: every layer kind has its own rotary positions; image tokens of any shape."""
    named = {"boi": "<|image>", "eoi": "<image|>", "image": "<|image|>"}
    sound = {"boa": "<|audio>", "eoa": "<audio|>", "audio": "<|audio|>"}
    tok = gemma_tokenizer(
        "<|turn>",
        "<turn|>",
        "<|video|>",
        template=chat(
            "<|turn>{{ 'model' if m.role == 'assistant' else m.role }}\n",
            "<|image|>",
            "<turn|>\n",
            "<|turn>model\n",
            start="{{ bos_token }}",
            text="{{ c.text | trim }}",
        ),
        **{f"{key}_token": token for key, token in (named | sound).items()},
    )
    layers: dict[str, Any] = {"layer_types": SLIDING, "sliding_window": 512, "head_dim": 8}
    layers |= {"global_head_dim": 16, "hidden_size_per_layer_input": 0}
    layers |= {"use_bidirectional_attention": "vision", "final_logit_softcapping": None}
    vision = {**VISION, "head_dim": 16, "num_key_value_heads": 2, "pooling_kernel_size": 2}
    vision |= {"position_embedding_size": 64}
    config = ids(tok, "token_id", **{key: named[key] for key in ("boi", "eoi", "image")})
    config |= ids(tok, "token_id", boa="<|audio>", audio="<|audio|>", video="<|video|>")
    images = hf.Gemma4ImageProcessor(patch_size=4, max_soft_tokens=70, pooling_kernel_size=2)
    video = hf.Gemma4VideoProcessor(patch_size=4, max_soft_tokens=70, pooling_kernel_size=2)
    return Parts(
        hf.Gemma4Config(
            text_config=text(tok, **layers), vision_config=vision, audio_config=None, **config
        ),
        hf.Gemma4Processor(hf.Gemma4AudioFeatureExtractor(), images, tok, video),
    )


def gemma3_short_window() -> Parts:
    """Gemma 3 with a window shorter than its prompt."""
    return gemma3(window=16)


def paligemma() -> Parts:
    tok = gemma_tokenizer(  # the real ones have no template: image, then text
        template=chat("", "<image>", "", ""), image_token="<image>"
    )
    extra = [f"<loc{i:0>4}>" for i in range(1024)] + [f"<seg{i:0>3}>" for i in range(128)]
    tok.add_tokens(extra)  # the processor adds them when it is opened
    text_config = {"model_type": "gemma", "head_dim": 8, "num_key_value_heads": 1}
    config = ids(tok, "token_index", image="<image>") | {"projection_dim": 32, "hidden_size": 32}
    images = hf.SiglipImageProcessor(size=SQUARE)
    images.image_seq_length = 16
    return family("PaliGemma", tok, text_config, SIGLIP, config, images)


FAMILIES = {
    make.__name__: make
    for make in (
        llava, llava_next_llama, llava_next_vicuna, llava_next_mistral, llava_next_qwen2,
        llava_onevision, internvl, internvl3_5, qwen2_vl, qwen2_5_vl, qwen3_vl, qwen3_5, gemma3,
        gemma3_short_window, gemma4, idefics3, smolvlm, mistral3, glm4v, aya_vision, paligemma,
        lfm2_vl, llama4, mllama,
    )
}  # fmt: skip
