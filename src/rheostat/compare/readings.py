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
class Reading:
    """Which rows one model answered correctly at one point: all that tables need, small enough to be kept in one.

    Attributes:
        method: See :class:`Outcome`, as all that follow but for the last three.
        model: As there.
        seed: As there.
        budget: As there.
        share: As there.
        epochs: As there.
        seconds: As there.
        inherited_epochs: As there.
        inherited_seconds: As there.
        rows: Identity of the texts; readings of the same rows can be paired.
        rows_of: ``test`` or ``validation``.
        right: (N,).
    """

    method: str
    model: str
    seed: int
    budget: float | None
    share: float
    epochs: float
    seconds: float
    inherited_epochs: float
    inherited_seconds: float
    rows: str
    rows_of: str
    right: NDArray[np.bool_]

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain JSON values, the rows as bits in base64."""
        bits = base64.b64encode(np.packbits(self.right).tobytes()).decode("ascii")
        return {**vars(self), "right": bits, "rows_read": len(self.right)}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Reading:
        """Rebuild a reading from :meth:`to_json`."""
        fields = {name: value for name, value in record.items() if name != "rows_read"}
        bits = np.frombuffer(base64.b64decode(record["right"]), dtype=np.uint8)
        return cls(**{**fields, "right": np.unpackbits(bits, count=record["rows_read"]).astype(bool)})


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
