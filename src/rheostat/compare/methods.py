"""What is compared: each method as the plans of its models, all trained by :func:`rheostat.pipeline.train`.

Every plan starts from the dense model of its seed, but for fewer layers, which start from the pretrained encoder, and
the linear model, which starts from nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rheostat.recipe import TrainOptions

SOFT_EPOCHS = 0.25  # for methods that learn gates where the recipe learns none


@dataclass(frozen=True)
class Plan:
    """One model to train and the points to read from it.

    Attributes:
        name: Of the model, a folder name.
        options: How it is trained.
        budgets: Points to read; empty for the full model alone.
        start: ``dense``, ``pretrained``, or ``layers`` (the first ``layers`` layers of the pretrained encoder).
        layers: See ``start``.
        form: ``sliced``, or ``soft`` for the soft checkpoint.
        reads_full: Whether budget 1.0 is a point of its own.
    """

    name: str
    options: TrainOptions
    budgets: tuple[float, ...] = ()
    start: str = "dense"
    layers: int | None = None
    form: str = "sliced"
    reads_full: bool = False

    @property
    def points(self) -> tuple[float, ...]:
        """Return what is read of the model, largest first."""
        return ((1.0, *self.budgets) if self.reads_full else self.budgets) or (1.0,)


@dataclass(frozen=True)
class Method:
    """One row group of the table.

    Attributes:
        about: What it is, in one line.
        plans: (options of the run, budgets, layers of the encoder and the share of each count) -> plans.
    """

    about: str
    plans: Callable[[TrainOptions, Sequence[float], Sequence[float]], list[Plan]]


def total_epochs(options: TrainOptions) -> float:
    """Return the passes over the rows that the budgeted model takes in all."""
    return options.warm_epochs + further_epochs(options)


def further_epochs(options: TrainOptions) -> float:
    """Return the passes that the budgeted model takes after its dense warm start."""
    return options.soft_epochs + options.adapt_epochs


def _further(options: TrainOptions, **changes: object) -> TrainOptions:
    """Return the options of a model that starts from the dense one."""
    return replace(options, **{"warm_epochs": 0.0, **changes})  # type: ignore[arg-type]


def dense_options(options: TrainOptions) -> TrainOptions:
    """Return the options of the dense model."""
    return replace(options, soft_epochs=0.0, adapt="none", budgets=(1.0,))


# All that decides the dense model.
_DENSE_FIELDS = (
    "warm_epochs", "learning_rate", "batch_size", "accumulation", "max_length", "weight_decay", "class_weighting",
    "max_train_rows", "precision",
)  # fmt: skip


def dense_key(options: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what two sets of options must have in common to share their dense model."""
    return tuple(options[name] for name in _DENSE_FIELDS)


def _dense(options: TrainOptions, budgets: Sequence[float], shares: Sequence[float]) -> list[Plan]:
    return [Plan("dense", dense_options(options), start="pretrained")]


def _dense_equal(options: TrainOptions, budgets: Sequence[float], shares: Sequence[float]) -> list[Plan]:
    return [Plan("dense-equal", replace(dense_options(options), warm_epochs=further_epochs(options)))]


def _post_hoc(options: TrainOptions, budgets: Sequence[float], shares: Sequence[float]) -> list[Plan]:
    chosen = _further(options, soft_epochs=0.0, adapt="none", calibration_split="validation", selection="nested")
    return [Plan("post-hoc", chosen, tuple(budgets))]


def _recovered(options: TrainOptions, budgets: Sequence[float], shares: Sequence[float]) -> list[Plan]:
    chosen = _further(
        options, soft_epochs=0.0, adapt="sandwich", adapt_epochs=1.0, calibration_split="validation", selection="nested"
    )
    return [Plan(f"recovered-{b:g}", replace(chosen, train_budgets=(b,)), (b,)) for b in budgets]


def _static(options: TrainOptions, budgets: Sequence[float], shares: Sequence[float]) -> list[Plan]:
    chosen = _further(
        options,
        soft_epochs=options.soft_epochs or SOFT_EPOCHS,
        soft_learning_rate=options.soft_learning_rate or options.learning_rate,
        adapt="sandwich",
    )
    return [Plan(f"static-{b:g}", replace(chosen, train_budgets=(b,)), (b,)) for b in budgets]


def _specialist(options: TrainOptions, budgets: Sequence[float], shares: Sequence[float]) -> list[Plan]:
    chosen = _further(options, adapt="sandwich")
    return [Plan(f"specialist-{b:g}", replace(chosen, train_budgets=(b,)), (b,)) for b in budgets]


def _fewer_layers(options: TrainOptions, budgets: Sequence[float], shares: Sequence[float]) -> list[Plan]:
    """Return a model for each number of layers that is the largest within some budget."""
    counts = {sum(share <= budget for share in shares) for budget in budgets}
    # "macs": a certified cost is that of models with all layers
    chosen = replace(dense_options(options), warm_epochs=total_epochs(options), cost="macs")
    return [
        Plan(f"layers-{count}", chosen, start="layers", layers=count)
        for count in sorted(counts, reverse=True)
        if 0 < count < len(shares)
    ]


def _sandwich(options: TrainOptions, budgets: Sequence[float], shares: Sequence[float]) -> list[Plan]:
    return [Plan("sandwich", _further(options, adapt="sandwich"), tuple(budgets), reads_full=True)]


def _straight_through(options: TrainOptions, budgets: Sequence[float], shares: Sequence[float]) -> list[Plan]:
    chosen = _further(options, adapt="straight-through", soft_epochs=options.soft_epochs or SOFT_EPOCHS)
    return [Plan("straight-through", chosen, tuple(budgets), reads_full=True)]


def _soft(options: TrainOptions, budgets: Sequence[float], shares: Sequence[float]) -> list[Plan]:
    chosen = _further(options, adapt="none", soft_epochs=options.soft_epochs or SOFT_EPOCHS)
    return [Plan("soft", chosen, tuple(budgets), form="soft")]


def _scratch(options: TrainOptions, budgets: Sequence[float], shares: Sequence[float]) -> list[Plan]:
    """Return a budgeted model without a dense warm start: gates and weights from the first step, as many epochs."""
    chosen = replace(
        options,
        warm_epochs=0.0,
        soft_epochs=options.warm_epochs + (options.soft_epochs or SOFT_EPOCHS),
        soft_learning_rate=options.learning_rate,
        distill_weight=0.0,  # there is no teacher
    )
    return [Plan("scratch", replace(chosen, adapt="sandwich"), tuple(budgets), start="pretrained", reads_full=True)]


def _scratch_soft(options: TrainOptions, budgets: Sequence[float], shares: Sequence[float]) -> list[Plan]:
    (hard,) = _scratch(options, budgets, shares)
    return [Plan("scratch-soft", replace(hard.options, adapt="none"), tuple(budgets), start="pretrained", form="soft")]


def _linear(options: TrainOptions, budgets: Sequence[float], shares: Sequence[float]) -> list[Plan]:
    return []  # no model of ours; see rheostat.compare.linear


METHODS: dict[str, Method] = {
    "dense": Method("the encoder, fine-tuned", _dense),
    "dense-equal": Method("the same, trained for as many epochs in all as the budgeted model", _dense_equal),
    "post-hoc": Method("units of the dense model cut by importance on validation rows, nothing trained", _post_hoc),
    "recovered": Method("the same and one epoch more, a model a budget", _recovered),
    "static": Method("gates and weights for one fixed budget, then its subnet, a model a budget", _static),
    "specialist": Method("the budgeted recipe at one budget alone, a model a budget", _specialist),
    "fewer-layers": Method("the first layers of the encoder, fine-tuned for as many epochs in all", _fewer_layers),
    "linear": Method("logistic regression on TF-IDF of words and word pairs", _linear),
    "sandwich": Method("one budgeted model, subnets trained as slices", _sandwich),
    "straight-through": Method("one budgeted model, subnets trained through hard gates (the paper)", _straight_through),
    "scratch": Method("one budgeted model without a dense warm start", _scratch),
    "scratch-soft": Method("the same with soft gates", _scratch_soft),
    "soft": Method("one budgeted model with soft gates: an estimated cost, nothing is faster", _soft),
}
