"""How near the vectors of budgets are to the full model's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rheostat.evaluation import budget_logits
from rheostat.model import BudgetedModel, Form
from rheostat.qualities import Similarity

FULL_VECTORS = "teacher_logits"  # the column that holds what the full model said before it was trained


def similarities(
    model: BudgetedModel,
    rows: Any,
    collator: Any,
    budgets: Sequence[float],
    *,
    form: Form = "sliced",
    batch_size: int = 64,
    progress: bool = True,
) -> list[Similarity]:
    """Return how near the vectors of each budget are to those of the full model.

    Args:
        model: A budgeted embedding model.
        rows: A data set of tokenized rows; a column ``teacher_logits`` holds the vectors to compare with, else they are
            those of budget 1.0.
        collator: Makes a batch of rows.
        budgets: What to evaluate.
        form: See :meth:`BudgetedModel.forward`.
        batch_size: Rows a batch.
        progress: Whether to show a bar.

    Raises:
        BudgetError: a budget that can't be reached, before anything runs.
        OptionError: no rows.
    """
    for budget in budgets:
        model.subnet(budget)

    def vectors(budget: float, chosen: Form) -> NDArray[np.float32]:
        title = f"Evaluating budget {budget:g}" if progress else None
        return budget_logits(model, rows, collator, budget, form=chosen, batch_size=batch_size, title=title)

    own = FULL_VECTORS not in rows.column_names
    full = vectors(1.0, "sliced") if own else np.asarray(rows[FULL_VECTORS], np.float32)
    return [
        similarity(budget, full if own and budget == 1.0 and form == "sliced" else vectors(budget, form), full)
        for budget in budgets
    ]


def similarity(budget: float, vectors: NDArray[np.float32], full: NDArray[np.float32]) -> Similarity:
    """Return how near vectors (N, E) are to those of the full model, (N, E)."""
    sizes = np.linalg.norm(vectors, axis=1) * np.linalg.norm(full, axis=1)
    cosines = (vectors * full).sum(axis=1) / np.maximum(sizes, 1e-12)
    return Similarity(float(budget), len(cosines), float(cosines.mean()), float(np.quantile(cosines, 0.05)))
