"""The paper's tables and figures, and what else is worth knowing of a judge, one row each."""

from __future__ import annotations

from discode.studies import cost, decoders
from discode.studies.base import Study, StudyResult, StudySetup
from discode.studies.paper import PAPER_STUDIES

__all__ = ["STUDIES", "Study", "StudyResult", "StudySetup"]

STUDIES: dict[str, Study] = {row.name: row for row in (*PAPER_STUDIES, cost.STUDY, decoders.STUDY)}
"""The studies by name, in the order of the documentation."""
