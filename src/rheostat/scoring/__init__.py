"""What budgets score on rows, whatever the model is for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rheostat.checkpoint import task_of
from rheostat.data import CAUSAL_LM, EMBEDDING, REGRESSION, TOKEN_CLASSIFICATION
from rheostat.evaluation import evaluate_budgets
from rheostat.model import BudgetedModel, Form
from rheostat.qualities import AnyQuality
from rheostat.scoring.language import perplexities
from rheostat.scoring.regressions import regression_qualities
from rheostat.scoring.tags import tag_qualities
from rheostat.scoring.vectors import similarities

Scorer = Callable[..., Sequence[AnyQuality]]

# Tasks whose answers are no classes of a text; all others are scored as those are.
_SCORERS: dict[str, Scorer] = {
    REGRESSION: regression_qualities,
    TOKEN_CLASSIFICATION: tag_qualities,
    CAUSAL_LM: perplexities,
    EMBEDDING: similarities,
}


def score_rows(
    model: BudgetedModel, rows: Any, collator: Any, budgets: Sequence[float], *, form: Form = "sliced"
) -> list[AnyQuality]:
    """Return what each budget scores on rows as the model's task has them.

    Raises:
        BudgetError: a budget that can't be reached, before anything runs.
        OptionError: no rows.
    """
    scorer: Scorer = _SCORERS.get(task_of(model.info), evaluate_budgets)
    return list(scorer(model, rows, collator, budgets, form=form))
