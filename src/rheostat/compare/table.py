"""From the rows that every model has right to one table: mean over seeds, difference to dense with its interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rheostat.compare.readings import Reading
from rheostat.quality import paired_bootstrap

# Two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom; the last one serves more.
STUDENT_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
HEADER = ("method", "budget", "cost", "accuracy", "below dense", "epochs", "minutes", "models", "in all")


@dataclass(frozen=True)
class Line:
    """One line of the table; accuracies in percent, differences in points.

    Attributes:
        method: Name of the method.
        budget: See :class:`Reading`.
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


def lines_of(readings: Sequence[Reading]) -> list[Line]:
    """Return a line for each method and point, in the order of the readings; ``dense`` must be there for every seed."""
    dense = {r.seed: r for r in readings if r.method == "dense"}
    groups: dict[tuple[str, str, float | None], list[Reading]] = {}
    for reading in readings:
        groups.setdefault((reading.method, reading.model, reading.budget), []).append(reading)
    totals = {method: _total([r for r in readings if r.method == method]) for method, _, _ in groups}
    lines = []
    for (method, model, budget), found in groups.items():
        accuracies = tuple(float(100 * r.right.mean()) for r in found)
        deviation, low, high = spread(accuracies)
        lines.append(
            Line(
                method,
                budget,
                float(np.mean([r.share for r in found])),
                tuple(r.seed for r in found),
                accuracies,
                float(np.mean(accuracies)),
                deviation,
                low,
                high,
                *below([dense[r.seed] for r in found], found),
                float(np.mean([r.epochs for r in found])),
                float(np.mean([r.seconds for r in found])) / 60,
                *totals[method],
                model,
            )
        )
    return lines


def _total(readings: Sequence[Reading]) -> tuple[int, float, float]:
    """Return models, epochs and minutes of a method, mean over seeds; what its models inherit counts once."""
    seeds = {r.seed for r in readings}
    models = {(r.seed, r.model): r for r in readings}.values()
    epochs = sum(r.epochs - r.inherited_epochs for r in models)
    seconds = sum(r.seconds - r.inherited_seconds for r in models)
    for seed in seeds:
        epochs += max(r.inherited_epochs for r in models if r.seed == seed)
        seconds += max(r.inherited_seconds for r in models if r.seed == seed)
    return len({r.model for r in readings}), epochs / len(seeds), seconds / len(seeds) / 60


def below(first: Sequence[Reading], second: Sequence[Reading]) -> tuple[float, float, float]:
    """Return how many points ``second`` is below ``first``, a reading a seed each, and the interval.

    See :func:`difference`.
    """
    return difference([r.right for r in first], [r.right for r in second], [r.rows for r in first])


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
