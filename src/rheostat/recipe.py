"""Everything that decides the result of training, with the reasons of the defaults."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rheostat.budget import DEFAULT_BUDGETS, check_budget, descending
from rheostat.cost import CostTable, check_cost_model
from rheostat.errors import OptionError
from rheostat.model import SELECTIONS
from rheostat.subnet import DEFAULT_NEURON_BLOCK

ADAPT_METHODS = ("sandwich", "straight-through", "corrections", "none")


@dataclass(frozen=True)
class TrainOptions:
    """Everything that decides the result of :func:`train`, with the reasons of the defaults.

    Attributes:
        warm_epochs: Dense fine-tuning; 0 for a model that is fine-tuned already.
        soft_epochs: Learning the gates with the weights frozen: otherwise weights grow back what gates take. 0,
            because gates learned on top of the importance were no better than the importance alone; the paper's
            method needs some.
        adapt: ``sandwich`` (slices, so that a step costs what its budgets cost), ``straight-through`` (the
            paper), ``corrections`` (no weight is trained, but for every budget of the table vectors of its own: see
            :mod:`rheostat.corrections`), or ``none``.
        adapt_epochs: Passes of the adapt stage, for ``corrections`` the mean of the budgets. Every budget gains from
            more; with two budgets a step four cost little more than four dense ones.
        train_budgets: Budgets that gates and subnets are trained at instead of the whole range: a specialist; for
            ``corrections`` instead of those of the table.
        adapt_dropout: Whether dropout is active in the adapt stage; the subnets regularize enough, and without it a
            step takes a sixth less.
        learning_rate: Of the warm start.
        adapt_learning_rate: Of the adapt stage; larger than the warm start's, because most subnets start far from
            their optimum. Twice as much costs the full model half a point; half as much gains nothing.
        correction_learning_rate: Of corrections, which begin at 0; three times as much leaves more of the loss on R8.
        gate_learning_rate: Of the gates; 1,000 times that of the weights.
        soft_learning_rate: Of the weights in the soft stage; 0 freezes them, the paper trains them.
        batch_size: Rows a step.
        accumulation: Batches a step.
        cost: What a budget is a share of: ``macs``, ``heads``, or the table of a certificate (time).
        sequence_length: Tokens a sequence for ``macs``; None takes the median of the training rows.
        max_length: Longest input in tokens; None takes what tokenizer and model allow.
        min_budget: Smallest budget that is trained.
        neuron_block: Neurons a unit; 16 to 64 are alike in accuracy, and kernels run multiples of 32 at full speed.
        min_heads_per_layer: What every layer keeps. 1: on AG News it makes no difference, and on R8 the order of one
            run left the last two layers without heads at 0.12, which 600 steps could not make good (12 points).
        min_neurons_per_layer: The same for neurons.
        selection: ``nested``, or ``top-k``, which is no better and can't be served as views.
        distill_weight: Distillation against the task loss. Without it every budget loses on AG News, and none on 20
            Newsgroups with its half-trained teacher; with nothing else the full model loses.
        temperature: Of the distillation.
        gate_weight: Price of the cost-weighted mean gate while gates are learned; the budget already bounds it.
        over_weight: Price of the squared excess of the soft share over the budget.
        weight_decay: Of matrices.
        random_budgets: Random budgets of a sandwich step, beside the largest or the smallest in turn, drawn to the low
            end. One is worth a quarter of a point at every budget of AG News over steps of one budget in turn (0), for
            1.6 times their time.
        class_weighting: Whether rare classes weigh more in the task loss.
        calibration_rows: Rows that importance is measured on.
        calibration_split: ``train``, or ``validation`` as post-hoc pruning does.
        max_train_rows: Rows to train on at most; None for all.
        max_validation_rows: Rows that the table and the temperatures are read on at most; None for all.
        budgets: Budgets of the table.
        seed: Of everything random.
        precision: ``fp32``, ``bf16`` or ``fp16`` of training; the table is read in float32. On CPUs with bfloat16
            matrix units a ``bf16`` step takes about a third.
        save_every: Steps between states that a killed run resumes from.
        report_to: Where the Trainer logs: ``none``, ``tensorboard`` (in the run's ``.partial`` folder), ...
    """

    warm_epochs: float = 3.0
    soft_epochs: float = 0.0
    adapt: str = "sandwich"
    adapt_epochs: float = 4.0
    train_budgets: tuple[float, ...] = ()
    adapt_dropout: bool = False
    learning_rate: float = 5e-5
    adapt_learning_rate: float = 1e-4
    correction_learning_rate: float = 1e-2
    gate_learning_rate: float = 5e-2
    soft_learning_rate: float = 0.0
    batch_size: int = 32
    accumulation: int = 1
    cost: str | CostTable = "macs"
    sequence_length: int | None = None
    max_length: int | None = None
    min_budget: float = 0.1
    neuron_block: int = DEFAULT_NEURON_BLOCK
    min_heads_per_layer: int = 1
    min_neurons_per_layer: int = 0
    selection: str = "nested"
    distill_weight: float = 0.7
    temperature: float = 2.0
    gate_weight: float = 0.0
    over_weight: float = 100.0
    weight_decay: float = 0.01
    random_budgets: int = 1
    class_weighting: bool = False
    calibration_rows: int = 512
    calibration_split: str = "train"
    max_train_rows: int | None = None
    max_validation_rows: int | None = None
    budgets: tuple[float, ...] = DEFAULT_BUDGETS
    seed: int = 0
    precision: str = "fp32"
    save_every: int = 100
    report_to: str = "none"

    @property
    def trains_head(self) -> bool:
        """Return whether a classifier that is new gets trained before it is a teacher or is cut."""
        return self.warm_epochs > 0 or (self.soft_epochs > 0 and self.soft_learning_rate > 0)

    @property
    def distills(self) -> bool:
        """Return whether some stage learns from the dense model's logits."""
        adapts = self.adapt in ("sandwich", "corrections") and self.adapt_epochs > 0
        return self.distill_weight > 0 and (self.soft_epochs > 0 or adapts)

    def __post_init__(self) -> None:
        """Refuse what can't be used before anything long starts."""
        if not isinstance(self.cost, CostTable):
            check_cost_model(self.cost)
        check_budget(self.min_budget)
        descending(self.budgets)
        for budget in self.train_budgets:
            check_budget(budget)
        _one_of("adapt", self.adapt, ADAPT_METHODS)
        _one_of("calibration_split", self.calibration_split, ("train", "validation"))
        _one_of("selection", self.selection, SELECTIONS)
        _one_of("precision", self.precision, ("fp32", "bf16", "fp16"))
        for name in ("warm_epochs", "soft_epochs", "adapt_epochs", "learning_rate", "adapt_learning_rate"):
            _at_least(name, getattr(self, name), 0)
        for name in ("gate_weight", "over_weight", "weight_decay", "random_budgets"):
            _at_least(name, getattr(self, name), 0)
        for name in ("gate_learning_rate", "soft_learning_rate", "correction_learning_rate", "seed"):
            _at_least(name, getattr(self, name), 0)
        for name in ("batch_size", "accumulation", "calibration_rows", "neuron_block", "save_every"):
            _at_least(name, getattr(self, name), 1)
        for name in ("sequence_length", "max_length", "max_train_rows", "max_validation_rows"):
            if getattr(self, name) is not None:
                _at_least(name, getattr(self, name), 1)
        self._check_rates()
        if self.min_budget == 1.0:
            raise OptionError("min_budget must be below 1, so that there is something to train; got 1.0. Try 0.1")
        if not 0.0 < self.temperature < math.inf:
            raise OptionError(f"temperature must be above 0; got {self.temperature!r}. The default is 2")
        if not 0.0 <= self.distill_weight <= 1.0:
            raise OptionError(f"distill_weight must be in [0, 1]; got {self.distill_weight!r}. The default is 0.7")

    def _check_rates(self) -> None:
        """Refuse a stage that would train nothing."""
        stages = {
            "learning_rate": self.warm_epochs > 0 and not self.learning_rate,
            "gate_learning_rate": self.soft_epochs > 0 and not (self.gate_learning_rate or self.soft_learning_rate),
        }
        if self.adapt != "none":
            name = "correction_learning_rate" if self.adapt == "corrections" else "adapt_learning_rate"
            stages[name] = self.adapt_epochs > 0 and not getattr(self, name)
        for name, trains_nothing in stages.items():
            if trains_nothing:
                raise OptionError(f"{name} must be above 0 in a stage with epochs; got 0. Set the epochs to 0 instead")


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise OptionError(f"{name} must be one of {', '.join(known)}; got {value!r}. The default is {known[0]}")


def _at_least(name: str, value: float, least: float) -> None:
    if not least <= value < math.inf:
        raise OptionError(f"{name} must be at least {least}; got {value!r}. See rheostat train --help")
