"""CLIP-S, RefCLIP-S, and PAC-S, which is CLIP with other weights.

CLIP-S(image, caption) = w · max(cos(E(image), E("A photo depicts " + caption)), 0), with w = 2.5
(Hessel et al., 2021); PAC-S has w = 2.0 (Sarto et al., 2023). Their reference forms are the
harmonic mean of that and of max(cos(caption, reference), 0), the best of the references.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discode.backends.local.load import short_message
from discode.errors import ImageError, InputError, require
from discode.images import image_digest, open_image
from discode.metrics.base import (
    NO_REFERENCES,
    make_scores,
    report_progress,
)
from discode.metrics.clip_weights import read_weights, rename_openai_weights
from discode.metrics.encoders import load_encoder, revision_of
from discode.pairs import Pair
from discode.scores import Floats, Progress, Scores
from discode.signature import Signature

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
    """A CLIP that computes the unit vector of each image and each text once."""

    model: Any
    tokenizer: Any
    processor: Any
    name: str
    revision: str
    batch_size: int = 64
    _texts: dict[str, tuple[Floats, bool]] = field(default_factory=dict)
    _images: dict[str, Floats] = field(default_factory=dict)

    @classmethod
    def open(
        cls,
        name: str = DEFAULT_CLIP,
        *,
        weights: str | Path | None = None,
        device: str | None = None,
        batch_size: int = 64,
    ) -> ClipEncoder:
        """Load a CLIP by its hub name or folder, in float32.

        ``weights`` is a file that replaces its weights: safetensors, or a .pth that holds nothing
        but tensors, under OpenAI's names (as PAC-S is published) or under those of transformers.
        """
        if batch_size < 1:
            raise InputError(f"batch_size={batch_size} is not allowed; give 1 or more")
        model, tokenizer, processor = load_encoder(name, "CLIP model", _pick, device)
        revision = revision_of(name, model)
        if weights is not None:
            path = Path(weights)
            _replace(model, path)
            revision += "+" + hashlib.sha256(path.read_bytes()).hexdigest()[:8]
        shown = Path(name).name if Path(name).is_dir() else name
        return cls(model, tokenizer, processor, shown, revision, batch_size)

    def texts(self, texts: Sequence[str]) -> tuple[Floats, NDArray[np.bool_]]:
        """Return (N, D) unit vectors, and (N,) whether a text was longer than the model reads."""
        new = [text for text in dict.fromkeys(texts) if text not in self._texts]
        longest = int(self.model.config.text_config.max_position_embeddings)
        for start in range(0, len(new), self.batch_size):
            batch = new[start : start + self.batch_size]
            encoded = self.tokenizer(
                batch, padding=True, truncation=True, max_length=longest, return_tensors="pt"
            )
            cut = [bool(encoding.overflowing) for encoding in encoded.encodings]
            vectors = self._unit(
                self.model.get_text_features,
                input_ids=encoded["input_ids"],
                attention_mask=encoded["attention_mask"],
            )
            self._texts.update(zip(batch, zip(vectors, cut, strict=True), strict=True))
        found = [self._texts[text] for text in texts]
        return np.array([vector for vector, _ in found]), np.array([cut for _, cut in found], bool)

    def images(self, pairs: Sequence[Pair]) -> tuple[list[Floats | None], dict[int, str]]:
        """Return a unit vector per pair, or None and the reason where an image cannot be opened."""
        keys: list[str | None] = []
        errors: dict[int, str] = {}
        wanted: dict[str, Any] = {}
        broken: dict[str, str] = {}
        for number, pair in enumerate(pairs):
            try:
                key = image_digest(pair.image)
                if key not in self._images and key not in broken:
                    wanted[key] = pair.image
                if len(wanted) == self.batch_size:
                    broken |= self._embed(wanted)
                keys.append(key)
            except ImageError as error:
                errors[number] = str(error)
                keys.append(None)
        broken |= self._embed(wanted)
        errors |= {n: broken[key] for n, key in enumerate(keys) if key in broken}
        return [self._images.get(key) if key else None for key in keys], errors

    def _embed(self, wanted: dict[str, Any]) -> dict[str, str]:
        """Embed the images in ``wanted`` and empty it; return those that cannot be decoded."""
        opened, broken = {}, {}
        for key, image in wanted.items():
            try:
                opened[key] = open_image(image)
            except ImageError as error:
                broken[key] = str(error)
        wanted.clear()
        if opened:
            pixels = self.processor(images=list(opened.values()), return_tensors="pt")
            vectors = self._unit(self.model.get_image_features, pixel_values=pixels["pixel_values"])
            self._images.update(zip(opened, vectors, strict=True))
        return broken

    def _unit(self, run: Callable[..., Any], **inputs: Any) -> Floats:
        torch = require("torch", "hf")
        device = next(self.model.parameters()).device
        with torch.inference_mode():
            found = run(**{key: value.to(device) for key, value in inputs.items()})
        found = getattr(found, "pooler_output", found)  # a tensor before transformers 5
        vectors = found.double().cpu().numpy()
        unit: Floats = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return unit


@dataclass(frozen=True)
class ClipScore:
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

    def score_pairs(
        self,
        pairs: Sequence[Pair],
        *,
        repeats: Sequence[int] | None = None,
        progress: Progress | None = None,
    ) -> Scores:
        """Score N pairs; a caption (or reference) longer than CLIP reads is cut and flagged."""
        vectors, errors = self.encoder.images(pairs)
        if self.references:
            errors |= {n: NO_REFERENCES for n, pair in enumerate(pairs) if not pair.references}
        rows = [number for number in range(len(pairs)) if number not in errors]
        value, cut = np.full(len(pairs), np.nan), np.zeros(len(pairs), bool)
        if rows:
            texts, cut[rows] = self.encoder.texts([self.prompt + pairs[n].caption for n in rows])
            value[rows] = clip_s(np.array([vectors[n] for n in rows]), texts, self.weight)
        if rows and self.references:
            best, long = self._best_reference(texts, [pairs[row] for row in rows])
            value[rows] = harmonic(value[rows], best)
            cut[rows] |= long
        report_progress(progress, len(pairs))
        return make_scores(value, errors, self.signature, {"cut": cut})

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


def _replace(model: Any, path: Path) -> None:
    """Put a file's weights into a model, all of them or none."""
    state = rename_openai_weights(read_weights(path))
    expected = model.state_dict()
    missing = [key for key in expected if key not in state and "position_ids" not in key]
    foreign = [key for key in state if key not in expected]
    if missing or foreign:
        raise InputError(
            f"{path.name} does not fit this CLIP: {len(missing)} tensors are missing, "
            f"{len(foreign)} unknown (e.g. {(missing + foreign)[0]})"
        )
    try:
        model.load_state_dict(state, strict=False)
    except RuntimeError as error:
        lines = str(error).strip().splitlines()
        why = lines[1].strip() if len(lines) > 1 else short_message(error)
        raise InputError(f"{path.name} does not fit this CLIP: {why}") from None
