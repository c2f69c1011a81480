"""The report: one page, made from run logs, that needs nothing else to be read."""

from discode.report.assemble import ReportFacts, write_report
from discode.report.gather import gather_runs

__all__ = ["ReportFacts", "gather_runs", "write_report"]
