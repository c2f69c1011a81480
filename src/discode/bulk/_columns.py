"""The columns of scores on disk: one list with a version, whatever the input, output and engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from discode._scores import SENTENCE_COLUMNS, Scores
from discode.errors import InputError

VERSION = 5
"""Version of the list of columns: in the manifest of a run, and in the metadata of Parquet."""

COLUMNS: dict[str, str] = {
    "id": "the row's `id`, COCO's `image_id`, a tar's key, or the row's number (with several "
    "files, after the file's name)",
    "source": "the input file; null for an image given on the command line",
    "row": "the row's number in that file, from 0",
    "image": "the image as named in the input",
    "file": "the image file that was opened, if `image` is an id or another name",
    "caption": "the caption",
    "method": "the decoder, as given; each of several has its own row",
    "score": "the score",
    "raw": "the answer of greedy decoding",
    "smoothing": "the mean of the answers under the model's probabilities",
    "bound": "for a truncated row, the largest possible error of the score",
    "other_score": "for a bimodal row, the score that a change of the log-probabilities by 0.05 "
    "could give it",
    "distribution": "probabilities of the scale's answers, lowest first, unless judged by sentence",
    "sentences": "the number of sentences, if judged by sentence: score, raw and smoothing are "
    "then means (text after the 32nd is judged as one and weighted by its number of sentences)",
    "lowest_sentence": "the sentence with the lowest score",
    "lowest_score": "the score of that sentence",
    "flags": "a list: failed, truncated, generated, cut, degenerate, bimodal, defused",
    "error": "the reason for a missing score",
    "signature": "model, prompt, decoder and options of this score",
}
"""Name to meaning. JSON lines, CSV and Parquet have all of them, in this order."""


def holds_scores(names: Iterable[str]) -> bool:
    """Whether a table with these columns is a file of scores.

    >>> holds_scores(COLUMNS), holds_scores(["id", "image", "caption", "score"])
    (True, False)
    """
    return {"method", "score", "raw", "flags", "signature"} <= set(names)


def markdown_table() -> str:
    """Return the list as a table for the documentation."""
    rows = (f"| `{name}` | {meaning} |" for name, meaning in COLUMNS.items())
    return "\n".join(["| column | meaning |", "| --- | --- |", *rows])


@dataclass(frozen=True)
class ScoredRows:
    """Rows with their scores and signatures by every method.

    They follow each other in one source from ``start``, unless ``places`` says where each is.
    """

    source: str | None
    start: int  # the number of the first row
    ids: Sequence[str]
    images: Sequence[str | None]  # what the input calls each
    captions: Sequence[str | None]
    scores: Mapping[str, Scores]
    signatures: Mapping[str, Sequence[str]]  # of each row
    places: Sequence[tuple[str | None, int]] = ()  # the source of each and its number in it

    @classmethod
    def without_images(
        cls, source: str | None, ids: Sequence[str], scores: Mapping[str, Scores], start: int = 0
    ) -> ScoredRows:
        """Return the rows of scores that were decoded from log-probabilities."""
        nothing = [None] * len(ids)
        signatures = {name: [str(each.signature)] * len(ids) for name, each in scores.items()}
        return cls(source, start, ids, nothing, nothing, scores, signatures)

    def __len__(self) -> int:
        return len(self.ids)

    @staticmethod
    def join(parts: Sequence[ScoredRows], order: Sequence[int]) -> ScoredRows:
        """Return some rows of several parts; ``order`` has their numbers, part after part."""

        def joined(columns: Iterable[Sequence[Any]]) -> list[Any]:
            rows = list(chain.from_iterable(columns))
            return [rows[number] for number in order]

        first, numbers = parts[0], range(sum(map(len, parts)))
        return ScoredRows(
            first.source,
            first.start,
            joined(part.ids for part in parts),
            joined(part.images for part in parts),
            joined(part.captions for part in parts),
            {
                name: Scores.join([part.scores[name] for part in parts], numbers)[order]
                for name in first.scores
            },
            {name: joined(part.signatures[name] for part in parts) for name in first.signatures},
            joined(part.places or part.consecutive for part in parts),
        )

    @staticmethod
    def lowest(parts: Sequence[ScoredRows], by: str, top: int | None = None) -> ScoredRows:
        """Return the rows with the lowest values of the first method, those without one last.

        ``by`` is the score, or what else is known of a reading: raw or smoothing.
        """
        values = [
            getattr(next(iter(part.scores.values())), "value" if by == "score" else by)
            for part in parts
        ]
        if any(value is None for value in values):
            raise InputError(f"cannot sort by {by}: this method has no such column")
        return ScoredRows.join(
            parts, np.argsort(np.concatenate(values), kind="stable")[:top].tolist()
        )

    @property
    def consecutive(self) -> list[tuple[str | None, int]]:
        """Where rows are that follow each other."""
        return [(self.source, self.start + number) for number in range(len(self))]

    def columns(self) -> dict[str, list[Any]]:
        """Return every column of :data:`COLUMNS`, a row per item and method, None for nothing."""
        methods = [self._of_method(name) for name in self.scores]
        return {
            name: list(chain.from_iterable(zip(*(m[name] for m in methods), strict=True)))
            if len(methods) > 1
            else list(methods[0][name])
            for name in COLUMNS
        }

    def _of_method(self, name: str) -> dict[str, Sequence[Any]]:
        scores, n = self.scores[name], len(self)
        places = self.places or self.consecutive
        columns: dict[str, Sequence[Any]] = {
            "id": self.ids,
            "source": [source for source, _ in places],
            "row": [row for _, row in places],
            "image": self.images,
            "file": scores.files(self.images),
            "caption": self.captions,
            "method": [name] * n,
            **dict.fromkeys(
                ("raw", "smoothing", "bound", "other_score", "distribution"), [None] * n
            ),
            **dict.fromkeys(SENTENCE_COLUMNS, [None] * n),
            **scores.columns(),
            "signature": self.signatures[name],
        }
        if scores.bound is not None:  # of other rows it would tell what else is in the batch
            marks = scores.flags["truncated"].tolist()
            columns["bound"] = [
                bound if mark else None for bound, mark in zip(columns["bound"], marks, strict=True)
            ]
        return columns
