"""The processors beside :mod:`modeling_minicpmv`."""

from __future__ import annotations

import re
from typing import Any, ClassVar

import numpy as np
import torch
from transformers import AutoImageProcessor
from transformers.image_processing_utils import BaseImageProcessor, BatchFeature
from transformers.processing_utils import ProcessorMixin


class MiniCPMVImageProcessor(BaseImageProcessor):  # type: ignore[misc]
    model_input_names: ClassVar = ["pixel_values"]

    def __init__(self, patch_size: int = 4, scale_resolution: int = 16, **more: Any) -> None:
        super().__init__(**more)
        self.patch_size, self.scale_resolution = patch_size, scale_resolution
        self.image_feature_size = more.pop("image_feature_size", 3)
        self.version = more.pop("version", 2.6)

    def fitted(self, image: Any) -> Any:
        """The image at about the scale's area, its sides multiples of the patch."""
        shrink = min(1.0, self.scale_resolution / (image.width * image.height) ** 0.5)
        sides = (max(1, round(n * shrink / self.patch_size)) for n in image.size)
        return image.resize([min(n, 48) * self.patch_size for n in sides])

    def slices(self, image: Any) -> list[Any]:
        """The whole image, and its halves if it is large."""
        width, height = image.size
        if width * height <= 4 * self.scale_resolution**2:
            return [self.fitted(image)]
        halves = (
            [(0, 0, width // 2, height), (width // 2, 0, width, height)]
            if width > height
            else [(0, 0, width, height // 2), (0, height // 2, width, height)]
        )
        return [self.fitted(image), *(self.fitted(image.crop(half)) for half in halves)]

    def preprocess(self, images: list[list[Any]], **more: Any) -> dict[str, Any]:
        pixels, sizes, counts = [], [], []
        for row in images:
            parts = [part for image in row for part in self.slices(image)]
            counts.append([len(self.slices(image)) for image in row])
            shapes = [[part.height, part.width] for part in parts]
            sizes.append(torch.tensor(shapes) // self.patch_size)
            pixels.append([self.patches(part) for part in parts])
        return {"pixel_values": pixels, "tgt_sizes": sizes, "counts": counts}

    def patches(self, image: Any) -> Any:
        """The patches of a slice in one row (3, p, p·n)."""
        x = torch.from_numpy(np.asarray(image, np.float32) / 127.5 - 1).permute(2, 0, 1)
        p = self.patch_size
        return x.unfold(1, p, p).unfold(2, p, p).permute(0, 3, 1, 2, 4).reshape(3, p, -1)


AutoImageProcessor.register("MiniCPMVImageProcessor", MiniCPMVImageProcessor, exist_ok=True)


class MiniCPMVProcessor(ProcessorMixin):  # type: ignore[misc]
    attributes: ClassVar = ["image_processor", "tokenizer"]
    image_processor_class = "AutoImageProcessor"
    tokenizer_class = "AutoTokenizer"

    def __init__(self, image_processor: Any = None, tokenizer: Any = None) -> None:
        super().__init__(image_processor, tokenizer)
        self.version = image_processor.version

    def __call__(
        self,
        text: list[str],
        images: list[list[Any]],
        max_length: int | None = None,
        return_tensors: str = "pt",
    ) -> Any:
        made = self.image_processor.preprocess(images)
        blank = "<unk>" * self.image_processor.image_feature_size
        rows, bounds = [], []
        for string, counts in zip(text, made.pop("counts"), strict=True):
            chunks = re.split(r"\(<image>./</image>\)", string)
            assert len(chunks) == len(counts) + 1
            whole = chunks[0]
            for number, (count, chunk) in enumerate(zip(counts, chunks[1:], strict=True)):
                whole += f"<image_id>{number}</image_id><image>{blank}</image>"
                whole += f"<slice>{blank}</slice>" * (count - 1) + chunk
            ids = torch.tensor(self.tokenizer.encode(whole)[:max_length], dtype=torch.int32)
            first, last = (
                torch.isin(ids, torch.tensor(self.tokenizer.convert_tokens_to_ids(marks)))
                for marks in (["<image>", "<slice>"], ["</image>", "</slice>"])
            )
            bounds.append(torch.stack([first.nonzero()[:, 0] + 1, last.nonzero()[:, 0]], dim=1))
            rows.append(ids)
        ids = torch.stack(rows)
        mask = torch.ones_like(ids, dtype=torch.bool)
        return BatchFeature(
            {"input_ids": ids, "attention_mask": mask, "image_bound": bounds, **made}
        )
