"""A scorer with pycocoevalcap's interface: captions by image in, a mean and an array out."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from discode._judge import load
from discode._rows import score_columns
from discode._scores import Floats, Metric, Scores
from discode.errors import InputError
from discode.images import ImageSource

Captions = Mapping[Any, Sequence[Any]]
"""Image id to texts, or to COCO's annotations: ``{"caption": text}``."""


class CocoScorer:
    """A scorer for lists that also hold pycocoevalcap's ``Cider()``.

    Args:
        images: The image of each id: a mapping, or a folder in which COCO's image numbers are found
            (``COCO_val2014_000000000042.jpg`` is 42). If None, an id is the path of its image.
        judge: Who judges, or another metric; :func:`discode.load` without arguments if None.
        references: Whether it sees the references, which not every model takes.

    Attributes:
        scores: The scores of the last call, with flags, errors and signature.

    Hand it captions as they were written: what ``PTBTokenizer`` leaves of them has no capitals and
    no punctuation, and a judge reads both.

    >>> from discode.images import demo_path
    >>> scorer = CocoScorer(demo_path())
    >>> mean, each = scorer.compute_score({"cat.jpg": ["a cat"]}, {"cat.jpg": ["a striped cat"]})
    >>> mean > 0.5, each.shape
    (True, (1,))
    """

    def __init__(
        self,
        images: Mapping[Any, ImageSource] | str | os.PathLike[str] | None = None,
        judge: Metric | None = None,
        *,
        references: bool = False,
    ) -> None:
        self.judge: Metric = load() if judge is None else judge
        self.scores: Scores | None = None
        self._images = images
        self._references = references

    def method(self) -> str:
        """Return the name that tables show."""
        return "DISCODE"

    def compute_score(self, gts: Captions, res: Captions) -> tuple[float, Floats]:
        """Return the mean, and the score of each image in the order of ``gts``.

        Args:
            gts: The references of each image.
            res: The one caption of each image.

        An image that cannot be judged is NaN in the array and is not part of the mean; a warning on
        the logger ``discode`` counts them.
        """
        if set(gts) != set(res):
            odd = next(iter(set(gts) ^ set(res)))
            raise InputError(f"gts and res must have the same images; {odd!r} is in one of them")
        captions = []
        for name in gts:
            if isinstance(res[name], str) or len(res[name]) != 1:
                raise InputError(f"res[{name!r}] must be a list of one caption, not {res[name]!r}")
            captions.append(_text(res[name][0]))
        groups = [list(map(_text, gts[name])) for name in gts] if self._references else None
        folder = None if isinstance(self._images, Mapping) else self._images
        images = [self._image(name) for name in gts]
        scores = score_columns(self.judge, images, captions, groups, folder, numbered=True)
        if scores.errors:
            row, reason = next(iter(sorted(scores.errors.items())))
            logging.getLogger("discode").warning(
                "%d of %d images were not judged; the mean is that of the others (image %r: %s)",
                len(scores.errors), len(scores), list(gts)[row], reason,
            )  # fmt: skip
        self.scores = scores
        return scores.mean(), scores.value

    def _image(self, name: Any) -> Any:
        if not isinstance(self._images, Mapping):
            return name
        if name not in self._images:
            raise InputError(f"images has no {name!r}, which gts and res have")
        return self._images[name]


def _text(caption: Any) -> Any:
    return caption["caption"] if isinstance(caption, Mapping) else caption
