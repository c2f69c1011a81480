"""The paper's tables and figures as studies, one row each."""

from __future__ import annotations

from discode._paper import cost, dataset, digits, examples, shift
from discode._paper.base import Study, StudySetup
from discode._paper.tables import PAPER_STUDIES
from discode.bench._results import StudyResult

__all__ = ["STUDIES", "Study", "StudyResult", "StudySetup"]

STUDIES: dict[str, Study] = {
    row.name: row
    for row in (
        *PAPER_STUDIES, cost.STUDY, digits.STUDY, examples.STUDY, dataset.STUDY, shift.STUDY
    )
}  # fmt: skip
"""The studies by name, in the order of the documentation."""
