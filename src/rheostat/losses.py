"""Objectives as plain functions: task loss, distillation, the price of gates, and their sum over budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from rheostat.data.options import CAUSAL_LM, SINGLE_LABEL
from rheostat.errors import OptionError

if TYPE_CHECKING:
    from rheostat.model import BudgetedModel, Form

# Entries of a batch that are not inputs of the model.
TARGETS = ("labels", "teacher_logits")
NOT_COUNTED = -100  # the label of a token that is not to be predicted, as transformers has it


def model_inputs(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the entries of a batch that the model takes."""
    return {name: tensor for name, tensor in batch.items() if name not in TARGETS}


def task_losses(task: str, logits: Tensor, labels: Tensor, class_weights: Tensor | None = None) -> Tensor:
    """Return the loss of every row, shape (B,).

    Args:
        task: ``single-label``, ``multi-label``, ``regression`` or ``causal-lm``.
        logits: (B, C); of tokens (B, S, C) for causal-lm.
        labels: (B,) class ids; (B, C) zeros and ones for multi-label; (B,) or (B, 1) numbers for regression; (B, S)
            tokens for causal-lm, whose row is the mean over those that follow another.
        class_weights: (C,) for the two classifications.

    Raises:
        OptionError: unknown task.
    """
    logits = logits.float()
    if task == "single-label":
        return F.cross_entropy(logits, labels, weight=class_weights, reduction="none")
    if task == "multi-label":
        losses = F.binary_cross_entropy_with_logits(logits, labels.float(), weight=class_weights, reduction="none")
        return losses.mean(dim=-1)
    if task == "regression":
        return F.mse_loss(logits[:, 0], labels.float().reshape(-1), reduction="none")
    if task == CAUSAL_LM:
        counted = (labels[:, 1:] != NOT_COUNTED).float()  # (B, S - 1)
        losses = F.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none")
        return (losses * counted).sum(dim=-1) / counted.sum(dim=-1).clamp(min=1.0)
    raise OptionError(
        f"task must be single-label, multi-label, regression or causal-lm; got {task!r}. Set it in the model's info"
    )


def next_tokens(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits (N, C) and labels (N,) of the N tokens that follow another: logits (B, S, C), labels (B, S)."""
    counted = labels[:, 1:] != NOT_COUNTED  # (B, S - 1)
    return logits[:, :-1][counted], labels[:, 1:][counted]


def distillation_loss(logits: Tensor, teacher_logits: Tensor, *, task: str, temperature: float = 2.0) -> Tensor:
    """Return how far the student is from the teacher, a scalar; 0 when their logits are equal.

    Single-label: ``T^2 * KL(softmax(teacher / T) || softmax(student / T))`` (Hinton et al. 2015). Multi-label: the
    same for every class as a pair of outcomes. Regression: mean squared error.

    Args:
        logits: (B, C) of the student.
        teacher_logits: (B, C) of the teacher for the same rows.
        task: see :func:`task_losses`.
        temperature: T.
    """
    student, teacher = logits.float(), teacher_logits.float()
    if task == "regression":
        return F.mse_loss(student, teacher)
    if task == "multi-label":
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

    Of causal-lm every token counts the same, whatever row it is in.
    """
    labels = batch["labels"]
    if task == CAUSAL_LM:
        if teacher_logits is not None:
            teacher_logits, _ = next_tokens(teacher_logits, labels)
        logits, labels = next_tokens(logits, labels)
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
        batch: Inputs (B, S), ``labels``, and ``teacher_logits`` (B, C) if they were computed beforehand; a causal
            language model's labels are its tokens (B, S), and its logits (B, S, C).
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
            model(**inputs, budget=budget, form=form).logits,
            batch,
            task=model.info.task or "single-label",
            teacher_logits=teacher,
            distill_weight=distill_weight,
            temperature=temperature,
            class_weights=class_weights,
        )
        for budget in budgets
    ]
    return torch.stack(losses).mean()
