"""Folders of results -> one page: verdicts first, then every recipe with figure, settings and provenance."""

from spherometer.report.results.comparison import Block, Row, Side, compared
from spherometer.report.results.document import counted, results_page
from spherometer.report.results.folders import Done, read_results

__all__ = ["Block", "Done", "Row", "Side", "compared", "counted", "read_results", "results_page"]
