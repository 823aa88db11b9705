"""Strong baselines beside the budgeted model: equal data, counted epochs, one table with intervals."""

from rheostat.compare.methods import METHODS, Method
from rheostat.compare.runner import Comparison, compare
from rheostat.compare.table import Answers, Line, Outcome, difference, lines_of, right_rows, to_markdown

__all__ = [
    "METHODS", "Answers", "Comparison", "Line", "Method", "Outcome", "compare", "difference", "lines_of", "right_rows",
    "to_markdown",
]  # fmt: skip
