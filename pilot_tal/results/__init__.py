"""Studies of runs, and their report: tables, plots, HTML pages, and a summary for the terminal."""

from pilot_tal.results.build import build_report
from pilot_tal.results.grouping import load_study
from pilot_tal.results.summary import print_summary

__all__ = ["build_report", "load_study", "print_summary"]
