"""The paper's tables and figures as studies, one row each, and its printed numbers beside ours."""

from __future__ import annotations

from discode.paper import cost, dataset, digits, examples, shift
from discode.paper.base import Study, StudyResult, StudySetup
from discode.paper.published import PaperMatch, PublishedCell, match_published, published_cells
from discode.paper.run_tables import TableCell, plot_runs, render_table, table_cells
from discode.paper.studies import PAPER_STUDIES

__all__ = [
    "STUDIES",
    "PaperMatch",
    "PublishedCell",
    "Study",
    "StudyResult",
    "StudySetup",
    "TableCell",
    "match_published",
    "plot_runs",
    "published_cells",
    "render_table",
    "table_cells",
]

STUDIES: dict[str, Study] = {
    row.name: row
    for row in (
        *PAPER_STUDIES, cost.STUDY, digits.STUDY, examples.STUDY, dataset.STUDY, shift.STUDY
    )
}  # fmt: skip
"""The studies by name, in the order of the documentation."""
