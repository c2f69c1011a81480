"""A stand-in for MiniCPM-V 2.6's remote code: its interface and its peculiarities, tiny.

An image and its slices, each of its own size; a table of positions that is not in the checkpoint;
no ``post_init``; then transformers' Qwen2.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2PreTrainedModel


class MiniCPMVConfig(Qwen2Config):  # type: ignore[misc]
    model_type = "minicpmv"

    def __init__(self, query_num: int = 3, patch_size: int = 4, **more: Any) -> None:
        self.query_num, self.patch_size = query_num, patch_size
        super().__init__(**more)


class Resampler(nn.Module):
    """Turn the patches of a slice into a few tokens."""

    def __init__(self, queries: int, width: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(queries, width))
        angles = np.outer(np.arange(64), 3.0 ** -np.arange(width // 4))
        table = torch.from_numpy(np.concatenate([np.sin(angles), np.cos(angles)], axis=1)).float()
        self.table: Any
        self.register_buffer("table", table, persistent=False)

    def forward(self, x: Any, size: Any) -> Any:
        rows, columns = (self.table[: int(n)] for n in size)
        shape = len(rows), len(columns), rows.shape[1]
        where = [rows[:, None].expand(shape), columns[None].expand(shape)]
        key = x + torch.cat(where, dim=-1).flatten(0, 1).to(x)
        return (self.query @ key.T / 4).softmax(-1) @ x


class MiniCPMV(Qwen2PreTrainedModel):  # type: ignore[misc]
    config_class = MiniCPMVConfig

    def __init__(self, config: MiniCPMVConfig) -> None:
        super().__init__(config)
        self.llm = Qwen2ForCausalLM(config)
        self.vpm = nn.Linear(3 * config.patch_size**2, config.hidden_size)
        self.resampler = Resampler(config.query_num, config.hidden_size)

    def get_vllm_embedding(self, data: dict[str, Any]) -> tuple[Any, list[Any]]:
        embedded = self.llm.model.embed_tokens(data["input_ids"])
        patch = self.config.patch_size
        seen = []
        for row, slices in enumerate(data["pixel_values"]):
            tokens = []
            for pixels, size in zip(slices, data["tgt_sizes"][row], strict=True):
                count = int(size[0] * size[1])
                assert pixels.shape == (3, patch, patch * count)
                patches = pixels.view(3, patch, count, patch).permute(2, 0, 1, 3).flatten(1)
                tokens.append(self.resampler(self.vpm(patches), size))
            seen.append(torch.stack(tokens))
            bounds = data["image_bound"][row].tolist()
            where = torch.cat([torch.arange(first, last) for first, last in bounds])
            embedded[row, where] = seen[-1].flatten(0, 1)
        return embedded, seen

    def forward(self, data: dict[str, Any], **more: Any) -> Any:
        embedded, _ = self.get_vllm_embedding(data)
        return self.llm(inputs_embeds=embedded, position_ids=data["position_ids"], **more)
