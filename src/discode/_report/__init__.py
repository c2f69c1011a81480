"""The report: one page, made from run logs or score files, that needs nothing else to be read."""

from discode._report.assemble import BOARDS, PAGE, ReportFacts, render_explorer, write_report
from discode._report.captioners import write_captioners
from discode._report.gather import gather_runs

__all__ = [
    "BOARDS",
    "PAGE",
    "ReportFacts",
    "gather_runs",
    "render_explorer",
    "write_captioners",
    "write_report",
]
