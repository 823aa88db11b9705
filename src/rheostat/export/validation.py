"""What every graph of a bundle scores on labelled rows, read and tokenized as the bundle's runtime does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rheostat.bundle.engines import Session
from rheostat.bundle.texts import Batch, TextEncoder
from rheostat.checkpoint import CheckpointInfo, task_of
from rheostat.data import ReadOptions, encode_labels, read_rows
from rheostat.errors import DataError, OptionError
from rheostat.evaluation import class_predictions, score_budgets
from rheostat.quality import Quality

BATCH = 32


@dataclass(frozen=True)
class ValidationRows:
    """Labelled rows as batches of arrays.

    Attributes:
        batches: (indices, arrays (B, S)).
        labels: (N,) class ids, or (N, C) zeros and ones.
    """

    batches: list[tuple[list[int], Batch]]
    labels: NDArray[np.int64]

    def spread(self, rows: int) -> list[Batch]:
        """Return batches that hold about this many rows, spread over all lengths."""
        step = max(1, len(self.labels) // max(rows, 1))
        return [arrays for _, arrays in self.batches[::step]]

    def part(self, rows: int) -> Part:
        """Return about this many rows as rows of their own, spread over all lengths."""
        step = max(1, len(self.labels) // max(rows, 1))
        chosen = self.batches[::step]
        places = np.array([i for indices, _ in chosen for i in indices], dtype=np.int64)
        counts = np.cumsum([0, *(len(indices) for indices, _ in chosen)])
        batches = [
            (list(range(start, stop)), arrays)
            for (_, arrays), start, stop in zip(chosen, counts[:-1], counts[1:], strict=True)
        ]
        return Part(ValidationRows(batches, self.labels[places]), places)

    def logits(self, session: Session) -> NDArray[np.float32]:
        """Return the logits (N, C) of a session."""
        found: NDArray[np.float32] | None = None
        for indices, arrays in self.batches:
            logits = session.run(arrays)
            if found is None:
                found = np.empty((len(self.labels), logits.shape[1]), np.float32)
            found[indices] = logits
        if found is None:
            raise DataError("rows to validate on must not be empty; got none")
        return found


@dataclass(frozen=True)
class Part:
    """Some of the rows, and their places among all."""

    rows: ValidationRows
    places: NDArray[np.int64]


def read_validation(
    source: str, info: CheckpointInfo, tokenizer: dict[str, Any] | None, folder: Path, options: ReadOptions | None
) -> ValidationRows:
    """Return the rows of a file for the bundle that is being written in ``folder``.

    Raises:
        DataError: rows that can't be read, or labels that the model does not know.
        OptionError: no tokenizer, or a regression.
    """
    if tokenizer is None:
        raise OptionError("a bundle must hold a tokenizer to be validated on texts; the checkpoint has none")
    task = task_of(info)
    if task == "regression":
        raise OptionError("task must be a classification to be validated; got regression. Leave --validate out")
    rows, _ = read_rows(source, options or ReadOptions(task=task))
    encoder = TextEncoder.of(folder, tokenizer)
    texts: list[Any] = list(rows["text"])
    if "text_pair" in rows.column_names:
        texts = list(zip(texts, rows["text_pair"], strict=True))
    labels = np.asarray(encode_labels(rows, info.labels, task))
    return ValidationRows(list(encoder.batches(encoder.encode(texts), BATCH)), labels)


def quality_of(
    budget: float, logits: NDArray[np.float32], full: NDArray[np.float32], rows: ValidationRows, info: CheckpointInfo
) -> Quality:
    """Return what logits (N, C) of a budget score beside the full model's at float32."""
    (found,) = score_budgets(info, {budget: logits}, rows.labels, [budget], full=full)
    return found


def agreement(first: NDArray[np.float32], second: NDArray[np.float32], task: str) -> float:
    """Return the share of rows that get the same answer."""
    same = class_predictions(task, first) == class_predictions(task, second)
    return float(same.reshape(len(same), -1).all(axis=1).mean())
