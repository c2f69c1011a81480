"""A module of Hugging Face's evaluate: ``compute(predictions=..., images=...)``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate

from discode.judge import load
from discode.rows import score_columns
from discode.scores import Metric

_ABOUT = "DISCODE: how well captions fit their images, by a vision-language model."
_INPUTS = "predictions: captions. images: paths or PIL images. references: lists of captions."
_CITATION = "Inoue et al., DISCODE, AAAI 2026"


class DiscodeEvaluation(evaluate.Metric):  # type: ignore[misc]  # the extra may not be installed
    """An evaluation module: ``add``, ``add_batch`` and ``compute``, alone or in ``combine``.

    ``compute`` returns the mean as "discode", each pair's score (NaN where it failed) as
    "discode_scores", the number of "failed" pairs, and the "signature".

    Args:
        judge: Who judges, or another metric; :func:`discode.load` without arguments if None.
        references: Whether it is given references, which not every model takes.
        options: Those of ``evaluate.Metric``. Inputs are kept in memory, unless several processes
            share them (``num_process``) or ``keep_in_memory=False`` says otherwise.
    """

    def __init__(
        self, judge: Metric | None = None, *, references: bool = False, **options: Any
    ) -> None:
        self.judge: Metric = load() if judge is None else judge
        self._references = references
        options.setdefault("keep_in_memory", options.get("num_process", 1) == 1)
        super().__init__(**options)

    def _info(self) -> Any:
        text = datasets.Value("string")
        # Not decoded: a broken file is one NaN, and no error of the whole table.
        features = {"predictions": text, "images": datasets.Image(decode=False)}
        if self._references:
            features["references"] = [text]
        return evaluate.MetricInfo(
            description=_ABOUT,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features(features),
        )

    def _compute(
        self,
        predictions: Sequence[str],
        images: Sequence[Any],
        references: Sequence[Sequence[str]] | None = None,
    ) -> dict[str, Any]:
        scores = score_columns(self.judge, images, predictions, references)
        return {
            "discode": scores.mean(),
            "discode_scores": scores.value.tolist(),
            "failed": len(scores.errors),
            "signature": str(scores.signature),
        }
