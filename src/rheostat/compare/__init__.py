"""Strong baselines beside the budgeted model: equal data, counted epochs, one table with intervals."""

from rheostat.compare.methods import METHODS, Method
from rheostat.compare.readings import Answers, Outcome, Reading, readings_of
from rheostat.compare.runner import Comparison, compare
from rheostat.compare.table import Line, below, difference, lines_of, to_markdown

__all__ = [
    "METHODS", "Answers", "Comparison", "Line", "Method", "Outcome", "Reading", "below", "compare", "difference",
    "lines_of", "readings_of", "to_markdown",
]  # fmt: skip
