"""Objectives as plain functions: task loss, distillation, the price of gates, and their sum over budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from rheostat.answers import PER_TOKEN, answers_of, counted_answers, model_inputs
from rheostat.checkpoint import task_of
from rheostat.data.batches import NOT_COUNTED
from rheostat.data.options import CAUSAL_LM, EMBEDDING, MULTI_LABEL, REGRESSION, SINGLE_LABEL, TASKS
from rheostat.errors import OptionError

if TYPE_CHECKING:
    from rheostat.model import BudgetedModel, Form


def task_losses(task: str, logits: Tensor, labels: Tensor, class_weights: Tensor | None = None) -> Tensor:
    """Return the loss of every row, shape (B,).

    Args:
        task: One of :data:`rheostat.data.TASKS` with labels.
        logits: (B, C); of tokens (B, S, C).
        labels: (B,) class ids; (B, C) zeros and ones for multi-label; (B,) or (B, 1) numbers for regression; (B, S) of
            tokens, whose row is the mean over those that are counted: for causal-lm those that follow another.
        class_weights: (C,) for the classifications.

    Raises:
        OptionError: a task without labels, or an unknown one.
    """
    logits = logits.float()
    if task == SINGLE_LABEL:
        return F.cross_entropy(logits, labels, weight=class_weights, reduction="none")
    if task == MULTI_LABEL:
        losses = F.binary_cross_entropy_with_logits(logits, labels.float(), weight=class_weights, reduction="none")
        return losses.mean(dim=-1)
    if task == REGRESSION:
        return F.mse_loss(logits[:, 0], labels.float().reshape(-1), reduction="none")
    if task in PER_TOKEN:
        if task == CAUSAL_LM:
            logits, labels = logits[:, :-1], labels[:, 1:]
        counted = (labels != NOT_COUNTED).float()  # (B, S)
        losses = F.cross_entropy(logits.transpose(1, 2), labels, weight=class_weights, reduction="none")
        return (losses * counted).sum(dim=-1) / counted.sum(dim=-1).clamp(min=1.0)
    known = ", ".join(name for name in TASKS if name != EMBEDDING)
    raise OptionError(f"task must be one of {known}; got {task!r}. Set it in the model's info")


def sensitivity_losses(vectors: Tensor, seed: int = 0) -> Tensor:
    """Return ``r . v`` of every vector (B, E) with one normal r a row, (B,): importance where there are no labels.

    Its gradient by a gate has the mean size ``sqrt(2 / pi) * ||dv/dg||``, how far the vector moves as the gate closes;
    the distance to the full model's vector itself has no gradient there.
    """
    generator = torch.Generator().manual_seed(seed)
    probes = torch.randn(vectors.shape, generator=generator).to(vectors)
    return (vectors * probes).sum(dim=-1)


def distillation_loss(logits: Tensor, teacher_logits: Tensor, *, task: str, temperature: float = 2.0) -> Tensor:
    """Return how far the student is from the teacher, a scalar; 0 when their logits are equal.

    Single-label: ``T^2 * KL(softmax(teacher / T) || softmax(student / T))`` (Hinton et al. 2015). Multi-label: the
    same for every class as a pair of outcomes. Regression: mean squared error. Embedding: 1 - cosine.

    Args:
        logits: (B, C) of the student; vectors (B, E) for embedding.
        teacher_logits: (B, C) of the teacher for the same rows; vectors (B, E).
        task: see :func:`task_losses`.
        temperature: T.
    """
    student, teacher = logits.float(), teacher_logits.float()
    if task == REGRESSION:
        return F.mse_loss(student, teacher)
    if task == EMBEDDING:
        return (1.0 - F.cosine_similarity(student, teacher, dim=-1)).mean()
    if task == MULTI_LABEL:
        student, teacher = (torch.stack([x, torch.zeros_like(x)], dim=-1) for x in (student, teacher))
    log_p = F.log_softmax(student / temperature, dim=-1).flatten(0, -2)
    log_q = F.log_softmax(teacher / temperature, dim=-1).flatten(0, -2)
    return F.kl_div(log_p, log_q, log_target=True, reduction="batchmean") * temperature**2


def mixed_loss(
    logits: Tensor,
    batch: Mapping[str, Tensor],
    *,
    task: str,
    teacher_logits: Tensor | None = None,
    distill_weight: float = 0.7,
    temperature: float = 2.0,
    class_weights: Tensor | None = None,
) -> Tensor:
    """Return ``(1 - w) * task loss + w * distillation``, a scalar; without teacher logits the task loss alone.

    Of tokens every one that is counted counts the same, whatever row it is in. An embedding model has no task loss.

    Raises:
        OptionError: an embedding model without teacher vectors.
    """
    if task == EMBEDDING:
        if teacher_logits is None:
            raise OptionError("teacher_logits must be the full model's vectors for an embedding model; got none")
        return distillation_loss(logits, teacher_logits, task=task)
    labels = batch["labels"]
    if task in PER_TOKEN:
        if teacher_logits is not None:
            teacher_logits, _ = counted_answers(task, teacher_logits, labels)
        logits, labels = counted_answers(task, logits, labels)
        if not len(labels):
            return logits.sum() * 0.0  # a batch of empty rows
        task = SINGLE_LABEL
    own = task_losses(task, logits, labels, class_weights).mean()
    if teacher_logits is None or distill_weight == 0.0:
        return own
    distilled = distillation_loss(logits, teacher_logits, task=task, temperature=temperature)
    return (1.0 - distill_weight) * own + distill_weight * distilled


def gate_penalty(model: BudgetedModel, budget: float, *, gate_weight: float, over_weight: float) -> Tensor:
    """Return ``gate_weight * cost-weighted mean(g) + over_weight * relu(share(g) - budget)^2``, a scalar."""
    over = torch.relu(model.soft_share(budget) - budget)
    return gate_weight * model.mean_gate(budget) + over_weight * over.square()


def budget_loss(
    model: BudgetedModel,
    batch: Mapping[str, Tensor],
    *,
    budgets: Sequence[float],
    form: Form = "sliced",
    teacher_logits: Tensor | None = None,
    distill_weight: float = 0.7,
    temperature: float = 2.0,
    class_weights: Tensor | None = None,
) -> Tensor:
    """Return the mean loss over budgets, a scalar with gradient, for one's own training loop.

    Args:
        model: A budgeted model; put it in train mode first.
        batch: Inputs (B, S), ``labels``, and ``teacher_logits`` (B, C) if they were computed beforehand. Of tokens
            labels are (B, S), logits (B, S, C); a causal language model's labels are its tokens. An embedding model has
            no labels, and its vectors (B, E) in the place of logits.
        budgets: Budgets of this step, for example 1.0 and a random one.
        form: See :meth:`rheostat.model.BudgetedModel.forward`.
        teacher_logits: (B, C) of the teacher; by default those of the batch, if any.
        distill_weight: Weight of distillation against the task loss, in [0, 1].
        temperature: Of the distillation.
        class_weights: (C,).

    Raises:
        OptionError: no budget.
        BudgetError: a budget that can't be reached.
    """
    if not budgets:
        raise OptionError("budgets must not be empty; got none. Pass for example budgets=(1.0, 0.5)")
    teacher = batch.get("teacher_logits") if teacher_logits is None else teacher_logits
    inputs: dict[str, Any] = dict(model_inputs(batch))
    if model.spec.causal:
        inputs["use_cache"] = False  # the keys and values of a step are of no use to another
    losses = [
        mixed_loss(
            answers_of(model(**inputs, budget=budget, form=form), batch, model.info),
            batch,
            task=task_of(model.info),
            teacher_logits=teacher,
            distill_weight=distill_weight,
            temperature=temperature,
            class_weights=class_weights,
        )
        for budget in budgets
    ]
    return torch.stack(losses).mean()
