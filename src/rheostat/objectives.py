"""What each training stage minimizes, as modules that the Trainer can wrap, save and distribute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rheostat.answers import answers_of, model_inputs
from rheostat.errors import OptionError
from rheostat.losses import budget_loss, gate_penalty
from rheostat.model import BudgetedModel, Form


@dataclass(frozen=True)
class LossOptions:
    """Weights of the terms of a stage's loss.

    Attributes:
        distill_weight: Distillation against the task loss, in [0, 1].
        temperature: Of the distillation.
        gate_weight: Price of the cost-weighted mean gate.
        over_weight: Price of the squared excess of the soft share over the budget.
        class_weights: One a class, or None.
    """

    # 0.7 at temperature 2 is what the prototypes used; the teacher knows more about small subnets than the labels do.
    distill_weight: float = 0.7
    temperature: float = 2.0
    gate_weight: float = 0.0
    # The excess is a share, so its square is at most 1; 100 makes an excess of 0.1 cost as much as a loss of 1.
    over_weight: float = 100.0
    class_weights: tuple[float, ...] | None = None


@dataclass(frozen=True)
class BudgetSampler:
    """Which budgets a step trains: a function of the step alone, so that all ranks and a resumed run agree.

    Attributes:
        stage: ``dense`` (1.0), ``soft`` and ``straight-through`` (one random budget, 1.0 now and then), ``sandwich``
            (the largest, the smallest and random ones), or ``corrections`` (one of ``only`` a step, drawn with chances
            that are inverse to the budgets: small ones need more steps, and each of them costs less).
        low: Smallest budget.
        random_budgets: Random budgets of a sandwich step, beside the largest or the smallest in turn; 0 trains one
            budget a step: in turn the largest, a random one, the smallest, a random one. They are
            ``low + (1 - low) * u**2`` with ``u`` uniform, since small budgets need training most and cost least.
        full_share: Share of soft and straight-through steps at budget 1.0, a point of its own.
        only: Budgets that every step trains instead: a specialist; for ``corrections`` the points.
        seed: Of the draws.
    """

    stage: str
    low: float
    random_budgets: int = 0
    full_share: float = 0.1
    only: tuple[float, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse an unknown stage."""
        if self.stage not in STAGES:
            raise OptionError(f"stage must be one of {', '.join(STAGES)}; got {self.stage!r}")

    def __call__(self, step: int, part: int = 0) -> tuple[float, ...]:
        """Return the budgets of optimizer step ``step``, batch ``part`` of it under accumulation."""
        if self.stage == "dense":
            return (1.0,)
        draws = np.random.default_rng([self.seed, step, part])
        if self.stage == "corrections":
            chances = 1.0 / np.array(self.only)
            return (float(draws.choice(self.only, p=chances / chances.sum())),)
        if self.only:
            return self.only
        if self.stage != "sandwich":
            full = draws.random() < self.full_share
            return (1.0 if full else float(draws.uniform(self.low, 1.0)),)
        between = [self.low + (1.0 - self.low) * float(u) ** 2 for u in draws.random(size=self.random_budgets or 1)]
        if not self.random_budgets:
            return ((1.0, between[0], self.low, between[0])[(step + part) % 4],)
        return (1.0 if (step + part) % 2 == 0 else self.low, *between)


STAGES = ("dense", "soft", "straight-through", "sandwich", "corrections")


class Objective(nn.Module):
    """The loss of a stage over budgets: ``objective(budgets=..., **batch)`` -> scalar.

    One forward holds every budget of a step, so that DistributedDataParallel sees one forward and one backward.

    Attributes:
        model: The budgeted model that is trained.
        stage: See :class:`BudgetSampler`.
    """

    def __init__(
        self,
        model: BudgetedModel,
        stage: str,
        options: LossOptions | None = None,
        teacher: BudgetedModel | None = None,
        *,
        dense: bool = False,
    ) -> None:
        """Train ``model`` in ``stage``.

        Args:
            model: Trained in place.
            stage: See :class:`BudgetSampler`.
            options: Weights of the terms.
            teacher: A frozen soft checkpoint, asked at the budget of each forward, for ``straight-through``.
            dense: Whether it is asked once a batch instead, at budget 1.0: for logits that are too many to keep.
        """
        super().__init__()
        self.model = model
        self.stage, self.dense = stage, dense
        self.options = options or LossOptions()
        # Not a submodule: it is neither trained nor saved nor given to DistributedDataParallel.
        self.__dict__["teacher"] = None if teacher is None else teacher.eval().requires_grad_(False)

    def forward(self, budgets: Sequence[float], **batch: Tensor) -> Tensor:
        """Return the loss of one batch, averaged over ``budgets``."""
        options = self.options
        form: Any = {"soft": "soft", "straight-through": "straight-through"}.get(self.stage, "sliced")
        weights = options.class_weights
        dense = self._teacher_logits(batch, 1.0, "sliced") if self.dense else None
        loss = torch.stack(
            [
                budget_loss(
                    self.model,
                    batch,
                    budgets=(budget,),
                    form=form,
                    teacher_logits=self._teacher_logits(batch, budget, "soft") if dense is None else dense,
                    distill_weight=options.distill_weight,
                    temperature=options.temperature,
                    class_weights=None if weights is None else torch.tensor(weights, device=batch["labels"].device),
                )
                for budget in budgets
            ]
        ).mean()
        if self.stage == "soft":
            for budget in budgets:
                loss = loss + gate_penalty(
                    self.model, budget, gate_weight=options.gate_weight, over_weight=options.over_weight
                ) / len(budgets)
        return loss

    def _teacher_logits(self, batch: dict[str, Tensor], budget: float, form: Form) -> Tensor | None:
        """Return the teacher's logits at a budget, or None for those of the batch."""
        teacher: BudgetedModel | None = self.__dict__["teacher"]
        if teacher is None:
            return None
        with torch.no_grad():
            # not a submodule, so nobody else moves it; a second time this does nothing
            output = teacher.to(self.model.device)(**model_inputs(batch), budget=budget, form=form)
        return answers_of(output, batch, teacher.info)

    def gradient_checkpointing_enable(self, **kwargs: Any) -> None:
        """Recompute layers in the backward pass."""
        self.model.gradient_checkpointing_enable(**kwargs)

    def activation_checkpointing_enable(self, **kwargs: Any) -> None:
        """Do the same under the name that newer versions of transformers call."""
        self.model.activation_checkpointing_enable(**kwargs)
