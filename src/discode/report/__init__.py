"""The report: one page, made from run logs or score files, that needs nothing else to be read."""

from discode.report.assemble import PAGE, ReportFacts, render_explorer, write_report
from discode.report.captioners import write_captioners
from discode.report.gather import gather_runs

__all__ = [
    "PAGE",
    "ReportFacts",
    "gather_runs",
    "render_explorer",
    "write_captioners",
    "write_report",
]
