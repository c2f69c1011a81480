"""A backend that answers by a fixed rule, and random readings for tests without a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from discode._pairs import Pair
from discode._prompts import FLEUR, Prompt
from discode._scales import UNIT, Scale
from discode.backends import Backend, Blocks
from discode.readings import Identity, Readings

CAPTION = "a close up of a brown striped cat with green eyes"


def random_logp(rng: np.random.Generator, n: int, k: int, gap: float = 8.0) -> np.ndarray:
    """Random log-probabilities (n, k) with some mass off the scale."""
    logits = rng.uniform(-gap, 0, size=(n, k))
    logp: np.ndarray = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    return logp + np.log(rng.uniform(0.5, 1.0, size=(n, 1)))


@dataclass
class FakeModel(Backend):
    """A backend that answers by the caption's length and keeps a list of what it was asked."""

    name: str = "fake"
    capabilities: frozenset[str] = frozenset()
    prompt: Prompt = FLEUR
    scale: Scale = UNIT
    asked: list[str] = field(default_factory=list)
    rejects: str = "\0"

    @property
    def identity(self) -> Identity:  # type: ignore[override]  # tests rename it
        return Identity(self.name, "r1", "float32")

    def read(
        self, pairs: Sequence[Pair], prompt: Prompt, scale: Scale, *, hidden: bool = False
    ) -> Blocks:
        yield range(len(pairs)), self.answer(pairs, prompt, scale, hidden=hidden)

    def answer(
        self, pairs: Sequence[Pair], prompt: Prompt, scale: Scale, *, hidden: bool = False
    ) -> Readings:
        self.asked += [pair.caption for pair in pairs]
        return Readings.concat(
            scale,
            [
                Readings.failed(scale, ["rejected"])
                if self.rejects in pair.caption
                else self.answer_to(pair.caption, scale, hidden=hidden)
                for pair in pairs
            ],
        )

    def answer_to(self, caption: str, scale: Scale, *, hidden: bool) -> Readings:
        rng = np.random.default_rng(len(caption))
        b, k = len(scale.stems), len(scale.answers)
        return Readings(
            scale,
            random_logp(rng, b, k)[None],
            np.log(np.array([[0.7, 0.2][:b]])),
            hidden=rng.normal(size=(1, 6)).astype(np.float32) if hidden else None,
            head=np.eye(k, 6, dtype=np.float32) if hidden else None,
        )


def sure_of(answer: int, scale: Scale) -> Readings:
    """The reading of a model that is sure of an answer, by its number, after the first stem."""
    logp = np.full((1, len(scale.stems), len(scale.answers)), -np.inf)
    logp[..., answer] = 0.0
    return Readings(scale, logp, np.log([[1.0, 1e-300][: len(scale.stems)]]))


class OneByOne(FakeModel):
    """A model that judges one caption at a time."""

    takes_references = False
