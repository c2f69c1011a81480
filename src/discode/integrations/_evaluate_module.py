"""A module of Hugging Face's evaluate: ``compute(predictions=..., images=...)``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate

from discode._judge import load
from discode._pairs import pair_up
from discode._rows import score_columns
from discode._scores import Metric
from discode.errors import InputError

_ABOUT = "DISCODE: how well captions fit their images, by a vision-language model."
_INPUTS = "predictions: captions. images: paths or PIL images. references: lists of captions."
_CITATION = "Inoue et al., DISCODE, AAAI 2026"


class DiscodeEvaluation(evaluate.Metric):  # type: ignore[misc]  # the extra may not be installed
    """An evaluation module: ``add``, ``add_batch`` and ``compute``, alone or in ``combine``.

    ``compute`` returns the mean as "discode", each pair's score (NaN where it failed) as
    "discode_scores", the number of "failed" pairs, and the "signature". Inputs are paired, or
    refused, as :meth:`discode.Judge.score` does; references may be left out.

    Args:
        judge: Who judges, or another metric; :func:`discode.load` without arguments if None.
        options: Those of ``evaluate.Metric``. Inputs are kept in memory, unless several processes
            share them (``num_process``) or ``keep_in_memory=False`` is given.
    """

    def __init__(self, judge: Metric | None = None, **options: Any) -> None:
        self.judge: Metric = load() if judge is None else judge
        options.setdefault("keep_in_memory", options.get("num_process", 1) == 1)
        super().__init__(**options)

    def _info(self) -> Any:
        text = datasets.Value("string")
        # Not decoded: a broken file is one NaN, and no error of the whole table.
        images = datasets.Image(decode=False)
        features = {"predictions": text, "images": images, "references": [text]}
        return evaluate.MetricInfo(
            description=_ABOUT,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features(features),
        )

    def compute(self, *, predictions: Any = None, **columns: Any) -> Any:
        """Return the scores of what is given, after what was added before."""
        if predictions is not None or columns:
            self.add_batch(predictions=predictions, **columns)
        return super().compute()

    def add(self, *, predictions: Any = None, prediction: Any = None, **columns: Any) -> None:
        """Add a caption with its image, and its references if it has some."""
        self.add_batch(predictions=predictions if prediction is None else prediction, **columns)

    def add_batch(
        self, *, predictions: Any = None, images: Any = None, references: Any = None
    ) -> None:
        """Add captions with their images, and references if there are some."""
        for name, column in (("predictions", predictions), ("images", images)):
            if column is None:
                raise InputError(f"{name} are missing; give predictions=... and images=...")
        rows = pair_up(images, predictions, references)
        super().add_batch(
            predictions=[caption for _, caption, _ in rows],
            images=[image for image, _, _ in rows],
            references=[list(group) for _, _, group in rows],
        )

    def _compute(
        self,
        predictions: Sequence[str],
        images: Sequence[Any],
        references: Sequence[Sequence[str]],
    ) -> dict[str, Any]:
        scores = score_columns(self.judge, images, predictions, references)
        return {
            "discode": scores.mean(),
            "discode_scores": scores.value.tolist(),
            "failed": len(scores.errors),
            "signature": str(scores.signature),
        }
