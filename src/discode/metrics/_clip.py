"""CLIP-S, PAC-S and PAC-S++, which are CLIP with other weights, and their reference forms.

CLIP-S(image, caption) = w · max(cos(E(image), E("A photo depicts " + caption)), 0), with w = 2.5
(Hessel et al., 2021); PAC-S (Sarto et al., 2023) and PAC-S++ (Sarto et al., 2024) have w = 2.0.
Their reference forms are the harmonic mean of that and of max(cos(caption, reference), 0), the best
of the references. PAC-S++ was trained as low-rank updates of CLIP's weights, which are added to
them once, when the file is read. No published weights are shipped, and the tests have tiny files of
the same layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discode._files import sha256
from discode._pairs import Pair
from discode._scores import Floats
from discode._signature import Signature
from discode.errors import ImageError, require
from discode.images import image_digest, open_image
from discode.metrics import _encoders as encoders
from discode.metrics._base import PairMetric, RowScores
from discode.metrics._clip_weights import (
    read_clip_weights,
    rename_openai_weights,
    replace_weights,
)
from discode.metrics._encoders import load_encoder, revision_of, shown_name, text_batches

DEFAULT_CLIP = "openai/clip-vit-base-patch32"
CLIP_PROMPT = "A photo depicts "


def clip_s(image: Floats, text: Floats, weight: float = 2.5) -> Floats:
    """Return w · max(cos, 0) of (N, D) unit vectors, row by row.

    >>> clip_s(np.array([[1.0, 0.0]]), np.array([[0.6, 0.8]])).tolist()
    [1.5]
    """
    cosine: Floats = (image * text).sum(axis=1)
    return weight * np.maximum(cosine, 0.0)


def harmonic(left: Floats, right: Floats) -> Floats:
    """Return the harmonic mean of two (N,) arrays that are not negative; 0 where either is.

    >>> harmonic(np.array([1.0, 0.0]), np.array([0.5, 0.0])).round(4).tolist()
    [0.6667, 0.0]
    """
    total = left + right
    return np.divide(2 * left * right, total, out=np.zeros_like(total), where=total > 0)


@dataclass(frozen=True, eq=False)
class ClipEncoder:
    """A CLIP that computes the vector of each image and each text once."""

    model: Any
    tokenizer: Any
    processor: Any
    name: str
    revision: str
    unit: bool = True
    """Whether vectors are scaled to length 1; Polos takes them as the model gives them."""
    _texts: dict[str, tuple[Floats, bool]] = field(default_factory=dict)
    _images: dict[str, Floats] = field(default_factory=dict)

    @classmethod
    def open(
        cls,
        name: str = DEFAULT_CLIP,
        *,
        weights: str | Path | None = None,
        low_rank: bool = False,
        device: str | None = None,
        unit: bool = True,
    ) -> ClipEncoder:
        """Load a CLIP by its hub name or folder, in float32.

        ``weights`` is a file that replaces its weights: safetensors, or a .pth, of which nothing
        but tensors is read, under OpenAI's names (as PAC-S is published) or under those of
        transformers. With ``low_rank`` it is a file of PAC-S++: OpenAI's names, and low-rank
        updates to be added (:func:`~discode.metrics._clip_weights.merge_low_rank`).
        """
        model, tokenizer, processor = load_encoder(name, _pick, device)
        revision = revision_of(name, model)
        if weights is not None:
            path = Path(weights)
            state = read_clip_weights(path, low_rank)
            replace_weights(model, rename_openai_weights(state), path.name, "CLIP")
            revision += "+" + sha256(path)[:8]
        return cls(model, tokenizer, processor, shown_name(name), revision, unit)

    def texts(self, texts: Sequence[str]) -> tuple[Floats, NDArray[np.bool_]]:
        """Return (N, D) vectors, and (N,) whether a text was longer than the model reads."""
        new = [text for text in dict.fromkeys(texts) if text not in self._texts]
        for batch, ids, mask, cut in text_batches(self.model, self.tokenizer, new):
            vectors = self._run(self.model.get_text_features, input_ids=ids, attention_mask=mask)
            self._texts.update(zip(batch, zip(vectors, cut, strict=True), strict=True))
        known = [self._texts[text] for text in texts]
        return np.array([vector for vector, _ in known]), np.array([cut for _, cut in known], bool)

    def images(self, pairs: Sequence[Pair]) -> tuple[list[Floats | None], dict[int, str]]:
        """Return a vector per pair, or None and the reason where an image cannot be opened."""
        keys: list[str] = []
        errors: dict[int, str] = {}
        opened: dict[str, Any] = {}
        for number, pair in enumerate(pairs):
            key = ""
            try:
                key = image_digest(pair.image)
                if key not in self._images and key not in opened:
                    opened[key] = open_image(pair.image)
            except ImageError as error:
                errors[number] = str(error)
            keys.append(key)
            if len(opened) == encoders.BATCH:
                self._embed(opened)
        self._embed(opened)
        return [self._images.get(key) for key in keys], errors

    def _embed(self, opened: dict[str, Any]) -> None:
        """Keep the vectors of images by their digests, and forget the images."""
        if opened:
            pixels = self.processor(images=list(opened.values()), return_tensors="pt")
            vectors = self._run(self.model.get_image_features, pixel_values=pixels["pixel_values"])
            self._images.update(zip(opened, vectors, strict=True))
            opened.clear()

    def _run(self, run: Callable[..., Any], **inputs: Any) -> Floats:
        torch = require("torch", "hf")
        device = next(self.model.parameters()).device
        with torch.inference_mode():
            output = run(**{key: value.to(device) for key, value in inputs.items()})
        output = getattr(output, "pooler_output", output)  # a tensor before transformers 5
        vectors: Floats = output.cpu().double().numpy()
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True) if self.unit else vectors


@dataclass(frozen=True)
class ClipScore(PairMetric):
    """CLIP-S and its variants: ``weight``, whether references count, the words before a caption."""

    encoder: ClipEncoder
    name: str = "clip-s"
    weight: float = 2.5
    references: bool = False
    prompt: str = CLIP_PROMPT

    @property
    def needs(self) -> frozenset[str]:
        """Images, and in the reference form references."""
        return frozenset({"image", "references"} if self.references else {"image"})

    @property
    def signature(self) -> Signature:
        """The metric, the model, its weight and prompt."""
        return Signature.of(
            metric=self.name,
            model=self.encoder.name,
            revision=self.encoder.revision,
            weight=f"{self.weight:g}",
            prompt=self.prompt.strip() or "none",
        )

    def score_rows(self, pairs: Sequence[Pair], repeats: NDArray[np.int64]) -> RowScores:
        """Score N pairs; a caption (or reference) longer than CLIP reads is cut and flagged."""
        vectors, errors = self.encoder.images(pairs)
        rows = [number for number in range(len(pairs)) if number not in errors]
        value, cut = np.full(len(pairs), np.nan), np.zeros(len(pairs), bool)
        if rows:
            texts, cut[rows] = self.encoder.texts([self.prompt + pairs[n].caption for n in rows])
            value[rows] = clip_s(np.array([vectors[n] for n in rows]), texts, self.weight)
        if rows and self.references:
            best, long = self._best_reference(texts, [pairs[row] for row in rows])
            value[rows] = harmonic(value[rows], best)
            cut[rows] |= long
        return RowScores(value, errors, cut)

    def _best_reference(
        self, texts: Floats, pairs: Sequence[Pair]
    ) -> tuple[Floats, NDArray[np.bool_]]:
        """Return max(cos, 0) of the closest reference, and whether any reference was cut, (N,)."""
        vectors, cut = self.encoder.texts([self.prompt + r for p in pairs for r in p.references])
        owner = np.repeat(np.arange(len(pairs)), [len(pair.references) for pair in pairs])
        best, long = np.zeros(len(pairs)), np.zeros(len(pairs), bool)
        np.maximum.at(best, owner, (vectors * texts[owner]).sum(axis=1))
        np.logical_or.at(long, owner, cut)
        return best, long


def _pick(transformers: Any, name: str) -> tuple[Any, ...]:
    model = transformers.CLIPModel.from_pretrained(name, use_safetensors=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(name)
    return model.float(), tokenizer, transformers.AutoImageProcessor.from_pretrained(name)
