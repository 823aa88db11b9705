"""What models answered on the rows of a comparison: as logits, and as the rows that were right."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rheostat.evaluation import class_predictions


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
class Point:
    """One model at one point, and what it cost.

    Attributes:
        method: Name of the method.
        model: Name of the model among those of its seed.
        seed: Of everything random.
        budget: The budget that was asked for; None for a model of one size.
        share: What it costs, as a share of the dense model.
        epochs: Passes over the training rows in all, the dense warm start included.
        seconds: Their wall time.
    """

    method: str
    model: str
    seed: int
    budget: float | None
    share: float
    epochs: float
    seconds: float


@dataclass(frozen=True)
class Outcome(Point):
    """What one model answered at one point.

    Attributes:
        logits: (N, C).
        inherited_epochs: Those of the epochs that a dense model spent which others start from too.
        inherited_seconds: The same of the seconds.
    """

    logits: NDArray[np.float32]
    inherited_epochs: float = 0.0
    inherited_seconds: float = 0.0


@dataclass(frozen=True)
class Reading(Point):
    """Which rows one model answered correctly at one point: all that tables need, small enough to be kept in one.

    Attributes:
        inherited_epochs: See :class:`Outcome`.
        inherited_seconds: As there.
        rows: Identity of the texts; readings of the same rows can be paired.
        rows_of: ``test`` or ``validation``.
        right: (N,).
    """

    inherited_epochs: float
    inherited_seconds: float
    rows: str
    rows_of: str
    right: NDArray[np.bool_]

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain JSON values, the rows as bits in base64."""
        return {**vars(self), "right": packed(self.right[None]), "rows_read": len(self.right)}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Reading:
        """Rebuild a reading from :meth:`to_json`."""
        fields = {name: value for name, value in record.items() if name != "rows_read"}
        return cls(**{**fields, "right": unpacked(record["right"], record["rows_read"])[0]})


def packed(right: NDArray[np.bool_]) -> str:
    """Return which rows are right, (K, N) for K models or points, as bits in base64."""
    return base64.b64encode(np.packbits(right, axis=1).tobytes()).decode("ascii")


def unpacked(text: str, rows: int) -> NDArray[np.bool_]:
    """Return what :func:`packed` wrote, (K, ``rows``)."""
    bits = np.frombuffer(base64.b64decode(text), dtype=np.uint8).reshape(-1, (rows + 7) // 8)
    return np.unpackbits(bits, axis=1, count=rows).astype(bool)


def readings_of(outcomes: Sequence[Outcome], answers: Mapping[int, Answers]) -> list[Reading]:
    """Return which rows each outcome has right; ``answers`` are the right ones by seed."""
    found = []
    for outcome in outcomes:
        known = {name: value for name, value in vars(outcome).items() if name != "logits"}
        own = answers[outcome.seed]
        found.append(Reading(**known, rows=own.rows, rows_of=own.rows_of, right=right_rows(outcome, own)))
    return found


def right_rows(outcome: Outcome, answers: Answers) -> NDArray[np.bool_]:
    """Return which rows were answered correctly, (N,); for multi-label in every class."""
    found = class_predictions(answers.task, outcome.logits) == answers.labels
    return np.asarray(found.reshape(len(found), -1).all(axis=1))
