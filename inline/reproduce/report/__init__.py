"""The demo's results: a table for the terminal, a CSV file and an HTML report."""

from inline.reproduce.report.page import write_report
from inline.reproduce.report.results import (
    RunResult,
    collect_results,
    compare_starts,
    format_table,
    write_csv,
)

__all__ = ['RunResult', 'collect_results', 'compare_starts', 'format_table', 'write_csv', 'write_report']
