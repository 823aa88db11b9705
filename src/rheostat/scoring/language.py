"""What budgets cost a causal language model: perplexity on texts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch.nn import functional as F

from rheostat.answers import counted_answers
from rheostat.data.options import CAUSAL_LM
from rheostat.evaluation import answered, check_scored, view_at
from rheostat.model import BudgetedModel, Form
from rheostat.modes import evaluating
from rheostat.qualities import Perplexity


def perplexities(
    model: BudgetedModel,
    rows: Any,
    collator: Any,
    budgets: Sequence[float],
    *,
    form: Form = "sliced",
    batch_size: int = 16,
    progress: bool = True,
) -> list[Perplexity]:
    """Return the perplexity of each budget on rows of tokens, in eval mode; the model's mode is put back.

    Args:
        model: A budgeted causal language model.
        rows: A data set of token rows, as :func:`rheostat.data.pack_blocks` makes them.
        collator: Makes a batch of rows.
        budgets: What to evaluate.
        form: See :meth:`BudgetedModel.forward`.
        batch_size: Rows a batch.
        progress: Whether to show a bar.

    Raises:
        BudgetError: a budget that can't be reached, before anything runs.
        OptionError: no rows.
    """
    check_scored(model, rows, budgets)
    with evaluating(model):
        return [_perplexity(model, rows, collator, budget, form, batch_size, progress) for budget in budgets]


def _perplexity(
    model: BudgetedModel, rows: Any, collator: Any, budget: float, form: Form, batch_size: int, progress: bool
) -> Perplexity:
    title = f"Evaluating budget {budget:g}" if progress else None
    told: dict[str, Any] = {
        "device": model.device,
        "info": model.info,
        "batch_size": batch_size,
        "title": title,
        "use_cache": False,
    }
    total, tokens = 0.0, 0
    for batch in answered(view_at(model, budget, form), rows, collator, **told):
        logits, labels = counted_answers(CAUSAL_LM, batch.answers, batch.tensors["labels"])
        total += float(F.cross_entropy(logits.float(), labels, reduction="sum"))
        tokens += len(labels)
    loss = total / max(tokens, 1)
    return Perplexity(budget, math.exp(min(loss, 700.0)), loss, tokens)  # of more than exp(709) there is no float
