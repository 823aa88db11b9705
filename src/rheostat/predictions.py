"""From logits to answers, without torch: probabilities at the budget's temperature, and the names of the classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from rheostat.calibration import probabilities
from rheostat.checkpoint import CheckpointInfo


@dataclass(frozen=True)
class Prediction:
    """The answer for one text.

    Attributes:
        label: The class as it was written in the training data; several for multi-label; None for regression.
        score: Probability of the label (the smallest of several), or the predicted value for regression.
        probabilities: Probability of every class, calibrated where the checkpoint holds temperatures; empty for
            regression.
        budget: The budget that answered.
    """

    label: str | tuple[str, ...] | None
    score: float
    probabilities: dict[str, float]
    budget: float

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        return asdict(self)


def interpret(logits: ArrayLike, info: CheckpointInfo, budget: float) -> list[Prediction]:
    """Return the predictions that logits (B, C) of ``budget`` mean: its temperature divides them first."""
    values = np.asarray(logits, dtype=np.float64)
    names = info.labels or tuple(f"LABEL_{i}" for i in range(values.shape[-1]))
    if info.task == "regression":
        return [Prediction(None, value, {}, budget) for value in values[:, 0].tolist()]
    multi = info.task == "multi-label"
    rows = probabilities(values / info.temperature_at(budget), "multi-label" if multi else "single-label").tolist()
    return [_classified(names, row, multi, budget) for row in rows]


def _classified(names: Sequence[str], row: Sequence[float], multi: bool, budget: float) -> Prediction:
    table = dict(zip(names, row, strict=True))
    if multi:
        chosen = tuple(name for name, p in table.items() if p > 0.5)
        return Prediction(chosen, min((table[name] for name in chosen), default=1.0 - max(row)), table, budget)
    best = max(range(len(row)), key=row.__getitem__)
    return Prediction(names[best], row[best], table, budget)
