"""A metric of torchmetrics: updated batch by batch, and added up over processes."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torchmetrics

from discode._arrays import widest_float
from discode._judge import load
from discode._rows import score_columns
from discode._scores import Metric
from discode.images import ImageSource

_UNIT = 1e-9


class DiscodeScore(torchmetrics.Metric):  # type: ignore[misc]  # the extra may not be installed
    """The mean score of all pairs seen, in all processes.

    Its states are sums, so that a process needs no more memory for more pairs: ``total`` of the
    scores, in units of 1e-9, ``judged`` pairs and ``failed`` ones, which are not part of the mean.
    They are whole numbers, which every device has (mps has no float64) and adds up exactly.

    Args:
        judge: Who judges, or another metric; :func:`discode.load` without arguments if None.
            Copies of this object share it.
        options: Those of ``torchmetrics.Metric``.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    total: torch.Tensor
    judged: torch.Tensor
    failed: torch.Tensor

    def __init__(self, judge: Metric | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.judge: Metric = load() if judge is None else judge
        self._reason = "in another process"
        self.add_state("total", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("judged", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("failed", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(
        self,
        images: Sequence[ImageSource],
        captions: Sequence[str],
        references: Sequence[Sequence[str]] | None = None,
    ) -> None:
        """Judge a batch: an image and a caption per pair, and references if the model takes them.

        A pair that cannot be judged is counted in ``failed``; :meth:`compute` gives the reason.
        """
        scores = score_columns(self.judge, images, captions, references)
        failed = len(scores.errors)
        if failed:
            self._reason = scores.errors[min(scores.errors)]
        self.failed += failed
        self.judged += len(scores) - failed
        self.total += round(float(np.nansum(scores.value)) / _UNIT)

    def compute(self) -> torch.Tensor:
        """Return the mean over the pairs that could be judged, as float64 (on mps float32).

        It is NaN if none could. A warning on the logger ``discode`` counts the others, with the
        reason of one.
        """
        if failed := int(self.failed):
            logging.getLogger("discode").warning(
                "%d of %d pairs were not judged; the mean is that of the others (%s)",
                failed, failed + int(self.judged), self._reason,
            )  # fmt: skip
        total, judged = int(self.total), int(self.judged)
        mean = total * _UNIT / judged if judged else math.nan
        device = self.total.device
        return torch.tensor(mean, dtype=widest_float(device), device=device)
