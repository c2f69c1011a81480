"""The report: one page, made from run logs, that needs nothing else to be read."""

from discode.report.assemble import PAGE, ReportFacts, render_explorer, write_report
from discode.report.gather import gather_runs

__all__ = ["PAGE", "ReportFacts", "gather_runs", "render_explorer", "write_report"]
