"""The paper's tables and figures, and what else is worth knowing of a judge, one row each."""

from __future__ import annotations

from discode.studies import cost, dataset, digits, examples, shift
from discode.studies.base import Study, StudyResult, StudySetup
from discode.studies.paper import PAPER_STUDIES

__all__ = ["STUDIES", "Study", "StudyResult", "StudySetup"]

_OWN = (cost.STUDY, digits.STUDY, examples.STUDY, dataset.STUDY, shift.STUDY)
STUDIES: dict[str, Study] = {row.name: row for row in (*PAPER_STUDIES, *_OWN)}
"""The studies by name, in the order of the documentation."""
