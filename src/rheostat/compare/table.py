"""From what every model answered to one table: mean over seeds, difference to the dense model with its interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rheostat.evaluation import class_predictions
from rheostat.quality import paired_bootstrap

# Two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom; the last one serves more.
STUDENT_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
HEADER = ("method", "budget", "cost", "accuracy", "below dense", "epochs", "minutes", "models", "in all")


@dataclass(frozen=True)
class Answers:
    """The rows of one seed that every method is read on.

    Attributes:
        task: ``single-label`` or ``multi-label``.
        rows: Identity of the texts.
        labels: (N,) or (N, C).
        rows_of: ``test`` or ``validation``.
    """

    task: str
    rows: str
    labels: NDArray[np.int64]
    rows_of: str = "test"


@dataclass(frozen=True)
class Outcome:
    """What one model answered at one point.

    Attributes:
        method: Name of the method.
        model: Name of the model among those of its seed.
        seed: Of everything random.
        budget: The budget that was asked for; None for a model of one size.
        share: What it costs, as a share of the dense model.
        epochs: Passes over the training rows in all, the dense warm start included.
        seconds: Their wall time.
        logits: (N, C).
        inherited_epochs: Those of the epochs that a dense model spent which others start from too.
        inherited_seconds: The same of the seconds.
    """

    method: str
    model: str
    seed: int
    budget: float | None
    share: float
    epochs: float
    seconds: float
    logits: NDArray[np.float32]
    inherited_epochs: float = 0.0
    inherited_seconds: float = 0.0


@dataclass(frozen=True)
class Line:
    """One line of the table; accuracies in percent, differences in points.

    Attributes:
        method: Name of the method.
        budget: See :class:`Outcome`.
        share: Mean over seeds.
        seeds: Which seeds.
        accuracies: One a seed.
        mean: Of the accuracies.
        deviation: Their standard deviation; None for one seed.
        seeds_low: Lower end of the 95 % interval of the mean over seeds (Student); None for one seed.
        seeds_high: Its upper end.
        below_dense: Dense accuracy less this one, over the same seeds and rows.
        below_low: Lower end of its 95 % paired bootstrap interval over rows.
        below_high: Its upper end.
        epochs: Of one model, mean over seeds.
        minutes: Of one model, mean over seeds.
        models: How many models the method needs for all its budgets.
        total_epochs: Of all its models, a dense model that they start from counted once.
        total_minutes: The same in minutes.
        model: Name of the model.
    """

    method: str
    budget: float | None
    share: float
    seeds: tuple[int, ...]
    accuracies: tuple[float, ...]
    mean: float
    deviation: float | None
    seeds_low: float | None
    seeds_high: float | None
    below_dense: float
    below_low: float
    below_high: float
    epochs: float
    minutes: float
    models: int
    total_epochs: float
    total_minutes: float
    model: str

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain JSON values."""
        return asdict(self)


def lines_of(outcomes: Sequence[Outcome], answers: Mapping[int, Answers]) -> list[Line]:
    """Return a line for each method and point, in the order of the outcomes.

    Args:
        outcomes: Those of ``dense`` among them, for every seed.
        answers: By seed.
    """
    correct = {(o.method, o.model, o.budget, o.seed): right_rows(o, answers[o.seed]) for o in outcomes}
    groups: dict[tuple[str, str, float | None], list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.method, outcome.model, outcome.budget), []).append(outcome)
    totals = {method: _total([o for o in outcomes if o.method == method]) for method, _, _ in groups}
    lines = []
    for (method, model, budget), found in groups.items():
        own = [correct[method, model, budget, o.seed] for o in found]
        dense = [correct["dense", "dense", None, o.seed] for o in found]
        below = difference(dense, own, [answers[o.seed].rows for o in found])
        accuracies = tuple(float(100 * rows.mean()) for rows in own)
        deviation, low, high = spread(accuracies)
        lines.append(
            Line(
                method,
                budget,
                float(np.mean([o.share for o in found])),
                tuple(o.seed for o in found),
                accuracies,
                float(np.mean(accuracies)),
                deviation,
                low,
                high,
                *below,
                float(np.mean([o.epochs for o in found])),
                float(np.mean([o.seconds for o in found])) / 60,
                *totals[method],
                model,
            )
        )
    return lines


def _total(outcomes: Sequence[Outcome]) -> tuple[int, float, float]:
    """Return models, epochs and minutes of a method, mean over seeds; what its models inherit counts once."""
    seeds = {o.seed for o in outcomes}
    models = {(o.seed, o.model): o for o in outcomes}.values()
    epochs = sum(o.epochs - o.inherited_epochs for o in models)
    seconds = sum(o.seconds - o.inherited_seconds for o in models)
    for seed in seeds:
        epochs += max(o.inherited_epochs for o in models if o.seed == seed)
        seconds += max(o.inherited_seconds for o in models if o.seed == seed)
    return len({o.model for o in outcomes}), epochs / len(seeds), seconds / len(seeds) / 60


def right_rows(outcome: Outcome, answers: Answers) -> NDArray[np.bool_]:
    """Return which rows were answered correctly, (N,); for multi-label in every class."""
    found = class_predictions(answers.task, outcome.logits) == answers.labels
    return np.asarray(found.reshape(len(found), -1).all(axis=1))


def difference(
    first: Sequence[NDArray[np.bool_]], second: Sequence[NDArray[np.bool_]], rows: Sequence[str]
) -> tuple[float, float, float]:
    """Return mean accuracy of ``first`` less that of ``second`` in points, and its 95 % interval over rows.

    Seeds that were read on the same rows are averaged a row at a time before rows are drawn, since a hard row is hard
    for every seed; other rows are laid end to end.

    Args:
        first: Which rows were right, (N,) a seed.
        second: The same of the other model.
        rows: Identity of each seed's rows.
    """
    join = np.stack if len(set(rows)) == 1 else np.concatenate
    interval = paired_bootstrap(join(list(first)), join(list(second)))
    return interval.value, interval.low, interval.high


def spread(values: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Return standard deviation and the 95 % interval of the mean (Student); three times None for one value."""
    if len(values) < 2:
        return None, None, None
    deviation = float(np.std(values, ddof=1))
    half = STUDENT_T[min(len(values) - 1, len(STUDENT_T)) - 1] * deviation / len(values) ** 0.5
    mean = float(np.mean(values))
    return deviation, mean - half, mean + half


def to_markdown(lines: Sequence[Line], rows_of: str = "test") -> str:
    """Return the table as Markdown, with what its columns mean below it; ``rows_of`` says which rows were read."""
    rows = [HEADER, tuple("---:" if name != "method" else "---" for name in HEADER), *map(_cells, lines)]
    seeds = sorted({seed for line in lines for seed in line.seeds})
    note = (
        f"Accuracy in percent on {rows_of} rows, mean ± standard deviation over seeds {', '.join(map(str, seeds))}; "
        "points below the dense model of the same seeds with the 95 % paired bootstrap interval over rows; cost as a "
        "share of the dense model's; epochs and minutes of training for one model, its dense warm start included; "
        "models for all budgets, and epochs and minutes of them all, a shared warm start counted once."
    )
    return "\n".join([*("| " + " | ".join(row) + " |" for row in rows), "", note]) + "\n"


def _cells(line: Line) -> tuple[str, ...]:
    below = "" if line.method == "dense" else f"{line.below_dense:.2f} [{line.below_low:.2f}, {line.below_high:.2f}]"
    return (
        line.method,
        "" if line.budget is None else f"{line.budget:g}",
        "" if line.method == "linear" else f"{line.share:.3f}",
        f"{line.mean:.2f}" + ("" if line.deviation is None else f" ± {line.deviation:.2f}"),
        below,
        f"{line.epochs:g}",
        f"{line.minutes:.1f}",
        str(line.models),
        f"{line.total_epochs:g}, {line.total_minutes:.1f} min",
    )
