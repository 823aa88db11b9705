"""What budgets cost a causal language model: perplexity on texts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from rich.progress import track
from torch.nn import functional as F

from rheostat.answers import counted_answers, model_inputs
from rheostat.console import stderr
from rheostat.data.options import CAUSAL_LM
from rheostat.errors import OptionError
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
    for budget in budgets:
        model.subnet(budget)
    if not len(rows):
        raise OptionError("rows to evaluate must not be empty; got none. Check the data file")
    with evaluating(model):
        return [_perplexity(model, rows, collator, budget, form, batch_size, progress) for budget in budgets]


def _perplexity(
    model: BudgetedModel, rows: Any, collator: Any, budget: float, form: Form, batch_size: int, progress: bool
) -> Perplexity:
    starts: Any = range(0, len(rows), batch_size)
    if progress and stderr.is_terminal:
        starts = track(starts, f"Evaluating budget {budget:g}", console=stderr, transient=True)
    total, tokens = 0.0, 0
    with nullcontext() if form == "soft" else torch.inference_mode():
        view = model.at(budget, form=form)
    with torch.inference_mode():
        for start in starts:
            chosen = range(start, min(start + batch_size, len(rows)))
            batch = {name: tensor.to(model.device) for name, tensor in collator(list(rows.select(chosen))).items()}
            output = view(**model_inputs(batch), use_cache=False)
            logits, labels = counted_answers(CAUSAL_LM, output.logits, batch["labels"])
            total += float(F.cross_entropy(logits.float(), labels, reduction="sum"))
            tokens += len(labels)
    loss = total / max(tokens, 1)
    return Perplexity(budget, math.exp(min(loss, 700.0)), loss, tokens)  # of more than exp(709) there is no float
