"""What budgets score on rows with a number each: rank correlation and squared error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rheostat.evaluation import grid_logits
from rheostat.model import BudgetedModel, Form
from rheostat.qualities import RegressionQuality
from rheostat.quality import score

SAMPLES = 500  # of the bootstrap; each ranks all rows anew
Numbers = NDArray[np.float64]


def regression_qualities(
    model: BudgetedModel,
    rows: Any,
    collator: Any,
    budgets: Sequence[float],
    *,
    form: Form = "sliced",
    batch_size: int = 64,
    progress: bool = True,
) -> list[RegressionQuality]:
    """Return what each budget scores on rows with a number each, with its drop below budget 1.0 and the interval.

    Args:
        model: A budgeted model with one output.
        rows: A data set of tokenized rows with labels.
        collator: Makes a batch of rows.
        budgets: What to evaluate; 1.0 is run even if it is not asked for, but then not returned.
        form: See :meth:`BudgetedModel.forward`.
        batch_size: Rows a batch.
        progress: Whether to show a bar.

    Raises:
        BudgetError: a budget that can't be reached, before anything runs.
        OptionError: no rows.
    """
    found = grid_logits(model, rows, collator, budgets, form=form, batch_size=batch_size, progress=progress)
    numbers = {budget: values[:, 0].astype(np.float64) for budget, values in found.items()}
    targets = np.asarray(rows["labels"], np.float64)
    return [regression_quality(budget, numbers[budget], numbers[1.0], targets) for budget in budgets]


def regression_quality(budget: float, numbers: Numbers, full: Numbers, targets: Numbers) -> RegressionQuality:
    """Return what numbers (N,) of a budget score beside the full model's, (N,), and the targets, (N,)."""
    spearman, mse = _scores(numbers, targets)
    drop = 100.0 * (_scores(full, targets)[0] - spearman)
    rng = np.random.default_rng(0)
    drops = []
    for _ in range(SAMPLES):
        drawn = rng.integers(0, len(targets), len(targets))
        first, second = (_scores(values[drawn], targets[drawn])[0] for values in (full, numbers))
        drops.append(100.0 * (first - second))
    low, high = np.quantile(drops, [0.025, 0.975])
    return RegressionQuality(
        float(budget), len(targets), spearman, mse, drop, min(float(low), drop), max(float(high), drop)
    )


def _scores(numbers: Numbers, targets: Numbers) -> tuple[float, float]:
    found = score("regression", numbers, targets)
    return float(found["spearman"] or 0.0), float(found["mse"] or 0.0)
