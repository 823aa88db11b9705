"""Check and parse budgets: the one knob, a share of the full model's cost in (0, 1]."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from numbers import Real

from rheostat.errors import BudgetError

# The grid that tables are printed at unless somebody asks for another: dense, two mild, three strong budgets.
DEFAULT_BUDGETS: tuple[float, ...] = (1.0, 0.75, 0.5, 0.35, 0.25, 0.12)
# Those of a comparison, which trains models for each of them: few, and such as every family can be cut to.
COMPARED_BUDGETS: tuple[float, ...] = (0.5, 0.25)


def check_budget(budget: object, *, floor: float = 0.0) -> float:
    """Return ``budget`` as a float, or raise.

    Args:
        budget: A real number (Python or numpy); ``bool`` and text are not numbers here.
        floor: The share of what can't be removed; a smaller budget can't be reached.

    Raises:
        BudgetError: not a number, NaN, outside (0, 1], or below ``floor``.

    >>> check_budget(0.5)
    0.5
    """
    if isinstance(budget, bool) or not isinstance(budget, Real):
        raise BudgetError(f"budget must be a number in (0, 1]; got {budget!r}. Pass a float such as 0.5")
    value = float(budget)
    if math.isnan(value) or not 0.0 < value <= 1.0:
        raise BudgetError(f"budget must be in (0, 1]; got {budget!r}. Pass a share of the full cost such as 0.5")
    if value < floor:
        raise BudgetError(
            f"budget must be at least {math.ceil(floor * 1e6) / 1e6:.6g}, the share of what can't be removed; "
            f"got {budget!r}. Ask for a larger budget, or lower the floor (min_heads_per_layer, min_neurons_per_layer)"
        )
    return value


def parse_budget(text: str) -> float:
    """Read one budget from text, as the command line does.

    >>> parse_budget("0.25")
    0.25
    """
    try:
        value = float(text)
    except ValueError:
        raise BudgetError(f"budget must be a number in (0, 1]; got {text!r}. Pass a value such as 0.5") from None
    return check_budget(value)


def parse_budgets(text: str) -> tuple[float, ...]:
    """Read a comma-separated list of budgets, largest first and without repeats.

    >>> parse_budgets("0.25,1.0,0.5,0.5")
    (1.0, 0.5, 0.25)
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise BudgetError(f"budgets must be a comma-separated list; got {text!r}. Pass for example 1.0,0.5,0.25")
    return descending(parse_budget(part) for part in parts)


def descending(budgets: Iterable[float]) -> tuple[float, ...]:
    """Return the checked budgets, largest first and without repeats."""
    return tuple(sorted({check_budget(budget) for budget in budgets}, reverse=True))


def reachable(budgets: Sequence[float], floor: float) -> tuple[float, ...]:
    """Return those of ``budgets`` that are not below ``floor``."""
    return tuple(budget for budget in budgets if budget >= floor)
