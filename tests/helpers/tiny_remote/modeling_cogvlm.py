"""A stand-in for CogVLM2's remote code: its interface and its peculiarities, two layers of it.

Weights of their own for image tokens, one position for the inside of an image, an additive
mask made inside, a cache of tuples, a head that runs on every position, and a table of
frequencies that is not in the checkpoint.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast


class CogVLMConfig(PretrainedConfig):  # type: ignore[misc]
    _auto_class = "AutoConfig"

    def __init__(self, vocab_size: int = 512, **more: Any) -> None:
        self.vocab_size, self.hidden_size = vocab_size, 32
        self.num_hidden_layers = self.num_attention_heads = 2
        self.vision_config = {"image_size": 16, "patch_size": 4}
        super().__init__(**more)


def positions(types: Any) -> Any:
    """Count text tokens and the image's two ends; all between them share one position."""
    inner = types == 1
    first = inner & ~nn.functional.pad(inner, (1, 0))[:, :-1]
    last = inner & ~nn.functional.pad(inner, (0, 1))[:, 1:]
    inner = inner & ~first & ~last
    step = ~inner | (inner & ~nn.functional.pad(inner, (1, 0))[:, :-1])
    return step.long().cumsum(-1) - 1


class Rotary(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        frequencies = 1 / (100.0 ** (torch.arange(0, width, 2).float() / width))
        self.register_buffer("inv_freq", frequencies, persistent=False)

    def forward(self, x: Any, where: Any) -> Any:
        angle = (where[..., None].float() * self.inv_freq)[:, None]
        one, two = x.chunk(2, dim=-1)
        cos, sin = angle.cos().to(x), angle.sin().to(x)
        return torch.cat([one * cos - two * sin, two * cos + one * sin], dim=-1)


class Expert(nn.Module):
    """Two layers, one for text and one for what is inside an image."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.language = nn.Linear(before, after, bias=False)
        self.vision = nn.Linear(before, after, bias=False)

    def forward(self, x: Any, types: Any) -> Any:
        inner = torch.zeros_like(types, dtype=torch.bool)
        inner[:, :-1] = (types[:, :-1] == 1) & (types[:, 1:] == 1)
        return torch.where(inner[..., None], self.vision(x), self.language(x))


class Layer(nn.Module):
    def __init__(self, config: CogVLMConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.heads = config.num_attention_heads
        self.rotary = Rotary(width // self.heads)
        self.mix, self.dense = Expert(width, 3 * width), Expert(width, width)
        self.up, self.down = Expert(width, 2 * width), Expert(2 * width, width)
        self.norm, self.norm_2 = nn.RMSNorm(width), nn.RMSNorm(width)

    def forward(self, x: Any, types: Any, where: Any, mask: Any, past: Any) -> Any:
        batch, length, width = x.shape
        mixed = self.mix(self.norm(x), types).view(batch, length, 3, self.heads, -1)
        query, key, value = mixed.permute(2, 0, 3, 1, 4)
        query, key = self.rotary(query, where), self.rotary(key, where)
        if past is not None:
            key, value = torch.cat([past[0], key], dim=2), torch.cat([past[1], value], dim=2)
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5 + mask
        seen = (scores.softmax(-1) @ value).transpose(1, 2).reshape(batch, length, width)
        x = x + self.dense(seen, types)
        x = x + self.down(nn.functional.silu(self.up(self.norm_2(x), types)), types)
        return x, (key, value)


class CogVLMPreTrainedModel(PreTrainedModel):  # type: ignore[misc]
    config_class = CogVLMConfig
    base_model_prefix = "model"

    def _init_weights(self, module: nn.Module) -> None:
        """Leave everything as it is: a checkpoint has all there is, except for buffers."""


class CogVLMModel(CogVLMPreTrainedModel):
    def __init__(self, config: CogVLMConfig) -> None:
        super().__init__(config)
        size, patch = config.vision_config["image_size"], config.vision_config["patch_size"]
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size)
        self.vision = nn.Conv2d(3, config.hidden_size, patch, patch)
        self.ends = nn.Parameter(torch.zeros(2, config.hidden_size))
        self.places = nn.Parameter(torch.zeros((size // patch) ** 2, config.hidden_size))
        self.post_init()

    def forward(
        self, input_ids: Any, images: Any, types: Any, mask: Any, where: Any, past: Any
    ) -> Any:
        x = self.embed_tokens(input_ids)
        if past is None:
            assert len(images) == len(input_ids)
            seen = self.vision(torch.stack([image for row in images for image in row]))
            seen = seen.flatten(2).transpose(1, 2) + self.places
            ends = self.ends.expand(len(x), 2, -1)
            seen = torch.cat([ends[:, :1], seen, ends[:, 1:]], dim=1)
            x = x.index_put([types == 1], seen.flatten(0, 1))
        assert mask.ndim == 2, "a mask of one's own is not provided for"
        before = 0 if past is None else past[0][0].shape[2]
        assert mask.shape[1] == before + x.shape[1]
        hidden = torch.full((x.shape[1], mask.shape[1]), torch.finfo(x.dtype).min)
        hidden = hidden.triu(1 + before).to(x)
        kept = []
        for number, layer in enumerate(self.layers):
            x, cache = layer(x, types, where, hidden, None if past is None else past[number])
            kept.append(cache)
        return self.norm(x), tuple(kept)


class CogVLMForCausalLM(CogVLMPreTrainedModel):
    _auto_class = "AutoModelForCausalLM"

    def __init__(self, config: CogVLMConfig) -> None:
        super().__init__(config)
        self.model = CogVLMModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def forward(
        self,
        input_ids: Any = None,
        images: Any = None,
        token_type_ids: Any = None,
        attention_mask: Any = None,
        position_ids: Any = None,
        past_key_values: Any = None,
        use_cache: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        if position_ids is None:
            position_ids = positions(token_type_ids)
        states, cache = self.model(
            input_ids, images, token_type_ids, attention_mask, position_ids, past_key_values
        )
        return CausalLMOutputWithPast(
            logits=self.lm_head(states).float(), past_key_values=cache if use_cache else None
        )

    def prepare_inputs_for_generation(
        self,
        input_ids: Any,
        token_type_ids: Any,
        images: Any = None,
        past_key_values: Any = None,
        attention_mask: Any = None,
        **more: Any,
    ) -> dict[str, Any]:
        where = positions(token_type_ids)
        if past_key_values:
            input_ids, token_type_ids = input_ids[:, -1:], token_type_ids[:, -1:]
            where = where[:, -1:]
        return {
            "input_ids": input_ids,
            "token_type_ids": token_type_ids,
            "images": images,
            "position_ids": where,
            "past_key_values": past_key_values,
            "use_cache": more.get("use_cache"),
            "attention_mask": attention_mask,
        }

    def build_conversation_input_ids(
        self,
        tokenizer: Any,
        *,
        query: str,
        history: list[tuple[str, str]] | None = None,
        images: list[Any] | None = None,
        template_version: str | None = None,
    ) -> dict[str, Any]:
        assert template_version == "chat"
        assert not history
        text = tokenizer.encode(f"Question: {query} Answer:", add_special_tokens=False)
        ids, count, pixels = [tokenizer.bos_token_id], 0, None
        if images is not None and len(images) == 1:
            size = self.config.vision_config["image_size"]
            shades = np.asarray(images[0].resize((size, size)), np.float32) / 127.5 - 1
            pixels = torch.from_numpy(shades).permute(2, 0, 1)
            count = (size // self.config.vision_config["patch_size"]) ** 2 + 2
        ids += [tokenizer.pad_token_id] * count + text
        return {
            "input_ids": torch.tensor(ids),
            "token_type_ids": torch.tensor([0] + [1] * count + [0] * len(text)),
            "attention_mask": torch.ones(len(ids), dtype=torch.long),
            "images": [pixels],
        }
