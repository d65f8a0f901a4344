"""The demo's results: a table for the terminal, and a page that needs no network."""

from inline.report.page import write_report
from inline.report.results import RunResult, collect_results
from inline.report.table import compare_detection, format_table, write_csv

__all__ = ['RunResult', 'collect_results', 'compare_detection', 'format_table', 'write_csv', 'write_report']
