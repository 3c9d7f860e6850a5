"""Studies of runs, and their report: tables, plots, HTML pages, and a summary for the terminal."""

from pilot_tal.results.build import build_report, print_summary
from pilot_tal.results.grouping import load_study

__all__ = ["build_report", "load_study", "print_summary"]
