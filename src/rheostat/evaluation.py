"""Run a model over tokenized rows at one budget or many: logits, and what they score."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.progress import track

from rheostat.answers import answers_of, model_inputs
from rheostat.calibration import expected_calibration_error
from rheostat.checkpoint import CheckpointInfo, task_of
from rheostat.console import stderr
from rheostat.data import length_buckets
from rheostat.errors import OptionError
from rheostat.model import BudgetedModel, Form
from rheostat.modes import evaluating
from rheostat.quality import Quality, quality_at

Forward = Callable[..., Any]
NO_ROWS = "rows to evaluate must not be empty; got none. Check the data file"


def collect_logits(
    forward: Forward,
    rows: Any,
    collator: Any,
    *,
    device: torch.device,
    info: CheckpointInfo | None = None,
    batch_size: int = 64,
    title: str | None = None,
) -> NDArray[np.float32]:
    """Return the logits of every row, (N, C), in the order of the rows; of an embedding model the vectors.

    Args:
        forward: Maps the inputs of a batch to a model output; the caller has put the model in eval mode.
        rows: A data set of tokenized rows with a ``length`` column.
        collator: Makes a batch of rows.
        device: Where the model is.
        info: What the model is for; by default a classifier.
        batch_size: Rows a batch; rows of similar length go together.
        title: Shown beside a progress bar; None shows none.
    """
    logits: NDArray[np.float32] | None = None
    for batch in answered(forward, rows, collator, device=device, info=info, batch_size=batch_size, title=title):
        found = batch.answers.float().cpu().numpy()  # (B, C)
        if logits is None:
            logits = np.empty((len(rows), found.shape[1]), dtype=np.float32)
        logits[batch.ids] = found
    if logits is None:
        raise OptionError(NO_ROWS)
    return logits


@dataclass(frozen=True)
class AnsweredBatch:
    """Some rows and what a model answered.

    Attributes:
        ids: Their places.
        columns: Their columns, as the data set has them.
        tensors: What the collator made of them, on the model's device.
        answers: See :func:`rheostat.answers.answers_of`.
    """

    ids: list[int]
    columns: dict[str, list[Any]]
    tensors: dict[str, torch.Tensor]
    answers: torch.Tensor


def answered(
    forward: Forward,
    rows: Any,
    collator: Any,
    *,
    device: torch.device,
    info: CheckpointInfo | None = None,
    batch_size: int = 64,
    title: str | None = None,
    **options: Any,
) -> Iterator[AnsweredBatch]:
    """Yield the batches of rows with their answers; for the arguments see :func:`collect_logits`.

    Rows of similar length go together, those of one length in their order. ``options`` are given to ``forward`` too.
    """
    batches = length_buckets(rows["length"], batch_size)
    shows_bar = title is not None and stderr.is_terminal  # elsewhere it would leave an empty line
    shown = track(batches, str(title), console=stderr, transient=True) if shows_bar else batches
    for ids in shown:
        columns = rows[ids]
        batch = collator([{name: values[i] for name, values in columns.items()} for i in range(len(ids))])
        tensors = {name: tensor.to(device) for name, tensor in batch.items()}
        inputs = model_inputs(tensors)
        with torch.inference_mode():
            answers = answers_of(forward(**inputs, **options), inputs, info or CheckpointInfo())
        yield AnsweredBatch(ids, columns, tensors, answers)


def view_at(model: BudgetedModel, budget: float, form: Form) -> torch.nn.Module:
    """Return the view of a budget for reading; soft gates are computed with their graph, as in training."""
    with nullcontext() if form == "soft" else torch.inference_mode():
        return model.at(budget, form=form)


def check_scored(model: BudgetedModel, rows: Any, budgets: Sequence[float]) -> None:
    """Refuse what can't be scored, before anything runs.

    Raises:
        BudgetError: a budget that can't be reached.
        OptionError: no rows.
    """
    for budget in budgets:
        model.subnet(budget)
    if not len(rows):
        raise OptionError(NO_ROWS)


def budget_logits(
    model: BudgetedModel,
    rows: Any,
    collator: Any,
    budget: float,
    *,
    form: Form = "sliced",
    batch_size: int = 64,
    title: str | None = None,
) -> NDArray[np.float32]:
    """Return the logits of every row at a budget, (N, C), in eval mode; the model's mode is put back."""
    with evaluating(model):
        return collect_logits(
            view_at(model, budget, form),
            rows,
            collator,
            device=model.device,
            info=model.info,
            batch_size=batch_size,
            title=title,
        )


def class_predictions(task: str, logits: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return class ids (N,), or zeros and ones (N, C) for multi-label."""
    if task == "multi-label":
        return (logits > 0).astype(np.int64)
    return np.asarray(logits.argmax(axis=1), dtype=np.int64)


def evaluate_budgets(
    model: BudgetedModel,
    rows: Any,
    collator: Any,
    budgets: Sequence[float],
    *,
    form: Form = "sliced",
    batch_size: int = 64,
    progress: bool = True,
) -> list[Quality]:
    """Return what each budget scores on labelled rows, with its drop below budget 1.0 and the paired interval.

    Budget 1.0 is evaluated even if it is not asked for, but then not returned.

    Raises:
        BudgetError: a budget that can't be reached, before anything runs.
    """
    logits = grid_logits(model, rows, collator, budgets, form=form, batch_size=batch_size, progress=progress)
    return score_budgets(model.info, logits, rows["labels"], budgets)


def grid_logits(
    model: BudgetedModel,
    rows: Any,
    collator: Any,
    budgets: Sequence[float],
    *,
    form: Form = "sliced",
    batch_size: int = 64,
    progress: bool = True,
) -> dict[float, NDArray[np.float32]]:
    """Return the logits (N, C) of budget 1.0 and of every other budget.

    Raises:
        BudgetError: a budget that can't be reached, before anything runs.
    """
    check_scored(model, rows, budgets)
    return {
        budget: budget_logits(
            model,
            rows,
            collator,
            budget,
            form=form,
            batch_size=batch_size,
            title=f"Evaluating budget {budget:g}" if progress else None,
        )
        for budget in dict.fromkeys([1.0, *budgets])
    }


def score_budgets(
    info: CheckpointInfo,
    logits: Mapping[float, NDArray[np.float32]],
    labels: Any,
    budgets: Sequence[float],
    *,
    full: NDArray[np.float32] | None = None,
) -> list[Quality]:
    """Return what the logits (N, C) of each budget score, beside those of the full model.

    Args:
        info: Task, label names and temperatures.
        logits: By budget.
        labels: (N,) class ids, or (N, C) zeros and ones.
        budgets: Budgets to report.
        full: Logits of the full model; by default those of budget 1.0.
    """
    task, wanted = task_of(info), np.asarray(labels)
    classes = np.arange(len(info.labels)) if info.labels else None
    reference = class_predictions(task, logits[1.0] if full is None else full)
    qualities = []
    for budget in budgets:
        found = class_predictions(task, logits[budget])
        quality = quality_at(budget, found, wanted, full_predictions=reference, label_set=classes)
        raw, calibrated = (
            expected_calibration_error(logits[budget], wanted, task, temperature=temperature)
            for temperature in (1.0, info.temperature_at(budget))
        )
        qualities.append(replace(quality, calibration_error=calibrated, calibration_error_raw=raw))
    return qualities
