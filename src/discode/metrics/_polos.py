"""Polos: a network trained on people's ratings, over features of CLIP and of a RoBERTa.

For a caption c, a reference r and an image v (Wada et al., 2024), with sentence vectors s of a
RoBERTa (SimCSE, D = 768) and vectors e of CLIP ViT-B/32 (C = 512, not scaled to length 1):

    x = [s_r, s_c, |s_c - s_r|, s_c s_r, e_v, e_c, |e_v - e_c|, e_v e_c, |e_r - e_c|, e_r e_c]
    Polos(v, c, r) = sigmoid(W3 tanh(W2 tanh(W1 x + b1) + b2) + b3),   x of 4 D + 6 C = 6144 numbers

and of several references the best counts. CLIP reads texts after "A photo depicts ", the RoBERTa as
they are. s is the first token's vector in a mixture of the embedding and all layers:
s = γ Σ_k softmax(w)_k (h_k - μ_k) / sqrt(σ²_k + 1e-12), with the mean μ_k and the variance σ²_k
over all numbers of layer k.

The authors take μ_k and σ²_k over all texts of a batch, so their scores depend on which pairs are
scored together; and of a batch's pairs only so many references count as the poorest has. Here each
text is normalised by itself and every reference counts, as with the authors' code at one pair per
batch. No published weights are shipped: the layout was read from the authors' code, and the tests
have tiny checkpoints in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discode._files import sha256
from discode._pairs import Pair
from discode._scores import Floats
from discode._signature import Signature
from discode.errors import InputError, require
from discode.metrics import _encoders as encoders
from discode.metrics._base import PairMetric, RowScores
from discode.metrics._clip import CLIP_PROMPT, DEFAULT_CLIP, ClipEncoder
from discode.metrics._clip_weights import (
    read_checkpoint,
    rename_openai_weights,
    replace_weights,
    weights_of,
)
from discode.metrics._encoders import load_encoder, shown_name, text_batches

DEFAULT_POLOS_TEXT = "princeton-nlp/sup-simcse-roberta-base"
# What the published checkpoint was trained with, as far as it changes the formula.
_SETTINGS = {
    "model": "PolosEstimator",
    "layer": "mix",
    "pool": "cls",
    "activations": "Tanh",
    "final_activation": "False",
}


def polos_features(
    reference: Floats, caption: Floats, clip_reference: Floats, clip_caption: Floats, image: Floats
) -> Floats:
    """Return x, (N, 4 D + 6 C), from sentence vectors (N, D) and CLIP's (N, C).

    >>> one, two = np.ones((1, 1)), 2 * np.ones((1, 1))
    >>> polos_features(one, two, one, two, 3 * one).tolist()
    [[1.0, 2.0, 1.0, 2.0, 3.0, 2.0, 1.0, 6.0, 1.0, 2.0]]
    """
    return np.concatenate(
        [
            reference,
            caption,
            np.abs(caption - reference),
            caption * reference,
            image,
            clip_caption,
            np.abs(image - clip_caption),
            image * clip_caption,
            np.abs(clip_reference - clip_caption),
            clip_reference * clip_caption,
        ],
        axis=1,
    )


@dataclass(frozen=True, eq=False)
class PolosHead:
    """The part of Polos beyond its encoders: the weights of the layers, and the network.

    Attributes:
        mixture: (K,) γ softmax(w), the weight of the embedding and of each layer.
        layers: W (O, I) and b (O,) of each layer of the network, the last with O = 1.
    """

    mixture: Floats
    layers: tuple[tuple[Floats, Floats], ...]

    @classmethod
    def from_weights(cls, state: Mapping[str, Any], shown: str) -> PolosHead:
        """Take ``scalar_mix.*`` and ``ff.0.ff.linear_*`` out of a state dict."""

        def take(name: str) -> Floats:
            if name not in state:
                raise InputError(f"{shown} is not a checkpoint of Polos: it has no {name}")
            tensor: Floats = state[name].double().numpy()
            return tensor

        layers = sum(name.startswith("scalar_mix.scalar_parameters.") for name in state)
        places = [f"scalar_mix.scalar_parameters.{n}" for n in range(max(layers, 1))]
        logits = np.concatenate([take(name).reshape(-1) for name in places])
        weights = np.exp(logits - logits.max())
        depth = sum(name.startswith("ff.0.ff.") and name.endswith(".weight") for name in state)
        network = tuple(
            (take(f"ff.0.ff.linear_{n}.weight"), take(f"ff.0.ff.linear_{n}.bias"))
            for n in range(1, max(depth, 1) + 1)
        )
        return cls(take("scalar_mix.gamma") * weights / weights.sum(), network)

    def __call__(self, features: Floats) -> Floats:
        """Return the scores (N,) of features (N, I)."""
        for weight, bias in self.layers[:-1]:
            features = np.tanh(features @ weight.T + bias)
        weight, bias = self.layers[-1]
        score: Floats = (1 + np.tanh((features @ weight.T + bias) / 2)) / 2  # the sigmoid, stable
        return score[:, 0]


@dataclass(frozen=True, eq=False)
class Polos(PairMetric):
    """Polos of captions against an image and references; :meth:`open` loads its parts.

    ``clip`` gives vectors as the model does, ``text_model`` is the RoBERTa of the checkpoint,
    ``head`` its other learnt parts, ``revision`` a digest of the checkpoint.
    """

    clip: ClipEncoder
    text_model: Any
    tokenizer: Any
    text_name: str
    head: PolosHead
    revision: str
    _sentences: dict[str, tuple[Floats, bool]] = field(default_factory=dict)

    name = "polos"
    needs = frozenset({"image", "references"})

    @classmethod
    def open(
        cls,
        weights: str | Path,
        *,
        clip_model: str = DEFAULT_CLIP,
        text_model: str = DEFAULT_POLOS_TEXT,
        device: str | None = None,
    ) -> Polos:
        """Load the published checkpoint (reprod.ckpt, a file of Lightning).

        The file has the weights of both encoders: ``clip.*`` under OpenAI's names and
        ``encoder.model.*`` under those of transformers. ``clip_model`` and ``text_model``, hub
        names or folders, are the models they belong to: their configuration, tokenizer and image
        processor are used. Of the file, tensors and plain values are read, never code.
        """
        path = Path(weights)
        checkpoint = read_checkpoint(path)
        _check_settings(checkpoint.get("hyper_parameters"), path.name)
        state = weights_of(checkpoint, path.name)
        head = PolosHead.from_weights(state, path.name)
        clip = ClipEncoder.open(clip_model, device=device, unit=False)
        replace_weights(clip.model, rename_openai_weights(_part(state, "clip.")), path.name, "CLIP")
        encoder, tokenizer = load_encoder(text_model, _pick, device, with_weights=False)
        replace_weights(encoder, _part(state, "encoder.model."), path.name, "text encoder")
        width = 4 * encoder.config.hidden_size + 6 * clip.model.config.projection_dim
        sizes = encoder.config.num_hidden_layers + 1, width
        if (stored := (len(head.mixture), head.layers[0][0].shape[1])) != sizes:
            raise InputError(
                f"{path.name} mixes {stored[0]} layers and scores {stored[1]} features; these "
                f"encoders have {sizes[0]} and {sizes[1]}"
            )
        revision = sha256(path)[:8]
        return cls(clip, encoder, tokenizer, shown_name(text_model), head, revision)

    @property
    def signature(self) -> Signature:
        """The two encoders, the checkpoint, and over what the layers are normalised."""
        return Signature.of(
            metric=self.name, model=self.clip.name, text=self.text_name, revision=self.revision,
            prompt=CLIP_PROMPT.strip(), normalised="text",
        )  # fmt: skip

    def score_rows(self, pairs: Sequence[Pair], repeats: NDArray[np.int64]) -> RowScores:
        """Score N pairs; a text longer than either encoder reads is cut and flagged."""
        images, errors = self.clip.images(pairs)
        rows = [number for number in range(len(pairs)) if number not in errors]
        value, cut = np.full(len(pairs), np.nan), np.zeros(len(pairs), bool)
        asked = [(row, text) for row in rows for text in pairs[row].references]
        for start in range(0, len(asked), encoders.BATCH):
            batch = asked[start : start + encoders.BATCH]
            owners = [row for row, _ in batch]
            captions = [pairs[row].caption for row in owners]
            references = [text for _, text in batch]
            caption, clip_caption, long = self._embed(captions)
            reference, clip_reference, longer = self._embed(references)
            shown = np.array([images[row] for row in owners])
            scores = self.head(
                polos_features(reference, caption, clip_reference, clip_caption, shown)
            )
            np.fmax.at(value, owners, scores)
            np.logical_or.at(cut, owners, long | longer)
        return RowScores(value, errors, cut)

    def _embed(self, texts: Sequence[str]) -> tuple[Floats, Floats, NDArray[np.bool_]]:
        """Return sentence vectors (N, D), CLIP's (N, C), and (N,) whether either cut the text."""
        self._read([text for text in dict.fromkeys(texts) if text not in self._sentences])
        vectors, long = zip(*(self._sentences[text] for text in texts), strict=True)
        clip, cut = self.clip.texts([CLIP_PROMPT + text for text in texts])
        return np.array(vectors), clip, cut | np.array(long)

    def _read(self, texts: Sequence[str]) -> None:
        torch = require("torch", "hf")
        for batch, ids, mask, cut in text_batches(self.text_model, self.tokenizer, texts):
            total: Any = 0.0
            with torch.inference_mode():
                states = self.text_model(ids, attention_mask=mask, output_hidden_states=True)
                here = mask[:, :, None]
                for weight, layer in zip(self.head.mixture, states.hidden_states, strict=True):
                    count = mask.sum(dim=1) * layer.shape[-1]
                    mean = (layer * here).sum(dim=(1, 2)) / count
                    spread = ((layer - mean[:, None, None]) * here).square().sum(dim=(1, 2)) / count
                    first = (layer[:, 0] - mean[:, None]) / (spread + 1e-12).sqrt()[:, None]
                    total = total + float(weight) * first
            vectors = total.cpu().double().numpy()
            self._sentences.update(zip(batch, zip(vectors, cut, strict=True), strict=True))


def _check_settings(settings: object, shown: str) -> None:
    """Raise if a checkpoint was trained as another model than the published one."""
    for name, wanted in _SETTINGS.items():
        setting = str(settings.get(name, wanted)) if isinstance(settings, Mapping) else wanted
        if setting != wanted:
            raise InputError(
                f"{shown} was trained with {name}={setting}; the published Polos has {wanted}"
            )


def _part(state: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in state.items()
        if name.startswith(prefix) and not name.endswith("position_ids")
    }


def _pick(transformers: Any, name: str) -> tuple[Any, ...]:
    config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
    model = transformers.AutoModel.from_config(config)
    return model.float(), transformers.AutoTokenizer.from_pretrained(name)
