"""The paper's tables and figures, and what else is worth knowing of a judge, one row each."""

from __future__ import annotations

from discode.paper import cost, dataset, decoders, digits, examples, shift
from discode.paper.base import Study, StudyResult, StudySetup
from discode.paper.studies import PAPER_STUDIES

__all__ = ["STUDIES", "Study", "StudyResult", "StudySetup"]

_OWN = (cost.STUDY, digits.STUDY, examples.STUDY, dataset.STUDY, shift.STUDY, decoders.STUDY)
STUDIES: dict[str, Study] = {row.name: row for row in (*PAPER_STUDIES, *_OWN)}
"""The studies by name, in the order of the documentation."""
