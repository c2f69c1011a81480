"""What people say: ratings of dev images as the scale of the pseudo ratings, and to choose by.

Crisscrossed Captions has people's ratings, 0 to 5, of captions of other, similar images. Some dev
images' ratings tell what a similarity S to so many references is worth, and how S and the teachers'
opinions are best weighed (a few numbers each); the others' are for choosing models.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from discode.backends._embedded.tokenizer import normalise
from training import common, parts, statements
from training.labels import References
from training.sources import MOST, Item

RATED = "rated"
"""The source of the dev images that are trained with: no figure is measured on them."""
CALIBRATES = 3
"""Every third rated dev image sets the scale; models are chosen by the others."""
RANDOM = 0.2
"""What people would give, of 10, to a random caption."""
PLAIN = [[-1.0, 10.0, 0.0]] * (MOST + 1)
"""The scale where there are no ratings."""


def rated(names: list[str]) -> list[tuple[int, str, float]]:
    """Return (number of the dev image, caption, rating on 0 ... 10) of the graded pairs."""
    number = {name: i for i, name in enumerate(names)}
    return [
        (number[name], normalise(row["caption"]), 2 * row["score"])
        for name, row in statements.read("ratings_dev")
        if row["method"] == "c2i_intrasim" and name in number
    ]


def trained(items: Sequence[Item]) -> list[Item]:
    """Return those of the images whose captions people rated, with the ratings, to train with."""
    rows = rated([item.path.name for item in items])
    pairs: dict[int, list[tuple[str, float]]] = {}
    for image, text, rating in rows:
        pairs.setdefault(image, []).append((text, rating))
    return [replace(items[image], rated=tuple(some)) for image, some in pairs.items()]


def chooses(image: int) -> bool:
    """Say whether a dev image's ratings are for choosing, not for the scale."""
    return image % CALIBRATES != 0


def calibrating(names: list[str]) -> list[tuple[int, str, float]]:
    """Return the rated pairs that set the scale, and as many with random captions."""
    rows = [row for row in rated(names) if not chooses(row[0])]
    texts = [row[1] for row in rows]
    random.Random(0).shuffle(texts)
    return rows + [(row[0], text, RANDOM) for row, text in zip(rows, texts, strict=True)]


def meaning_of(rows: list[tuple[int, str, float]], device: str) -> Tensor:
    """Return the meanings of the captions (n, 384)."""
    return torch.from_numpy(parts.sentence_embeddings([row[1] for row in rows])).to(device)


def features(
    references: References, rows: list[tuple[int, str, float]], meaning: Tensor, limit: int
) -> np.ndarray:
    """Return 1, S and S² of pairs held to at most so many references (n, 3)."""
    image = torch.tensor([row[0] for row in rows], device=references.device)
    s = references.likeness(image, meaning, limit)[0].cpu().numpy()
    return np.stack([np.ones_like(s), s, s**2], axis=1)


def fit(known: np.ndarray, people: np.ndarray) -> np.ndarray:
    """Return the weights of the features, by least squares; the first is constant.

    A trifle of a ridge keeps two teachers that agree from cancelling each other.
    """
    ridge = 1e-3 * len(known) * np.diag(np.arange(known.shape[1]) > 0)
    return np.asarray(np.linalg.solve(known.T @ known + ridge, known.T @ people))


def write_scale(device: str) -> None:
    """Write people.json: what S is worth, by the number of references."""
    rows = calibrating(common.load_json("images.json")["dev"])
    scale: list[Any] = PLAIN
    if rows:
        references, meaning = References("dev", device), meaning_of(rows, device)
        ratings = np.array([row[2] for row in rows])
        scale = [
            fit(features(references, rows, meaning, max(1, n)), ratings).tolist()
            for n in range(MOST + 1)
        ]
        print("people say of S:", [[round(w, 2) for w in row] for row in scale])
    common.save_json("people.json", {"scale": scale})
