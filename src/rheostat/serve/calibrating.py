"""Run a bundle over labelled rows, and calibrate its escalation on them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rheostat.bundle import Bundle, open_bundle
from rheostat.calibration import probabilities
from rheostat.errors import DataError, OptionError
from rheostat.serve.capacity import read_rows_file
from rheostat.serve.escalation import Escalation, calibrate
from rheostat.serve.load import Rows

if TYPE_CHECKING:
    from rheostat.data import ReadOptions

Tables = dict[float, NDArray[np.float64]]


def calibrate_bundle(
    folder: Path,
    source: str,
    read: ReadOptions,
    *,
    max_loss: float,
    confidence: float = 0.95,
    precision: str = "float32",
) -> Escalation:
    """Return the cheapest escalation of a bundle whose loss is bounded; see :mod:`rheostat.serve.escalation`.

    Raises:
        OptionError: a task other than single-label, or a loss that the rows can't promise.
        DataError: rows that can't be read, or labels that the model does not know.
    """
    bundle = open_bundle(folder, precision=precision)
    rows = read_rows_file(source, read)
    tables, labels = answers_of(bundle, rows)
    return calibrate(tables, labels, shares_of(bundle), max_loss=max_loss, confidence=confidence, precision=precision)


def shares_of(bundle: Bundle) -> dict[float, float]:
    """Return the cost of each open budget, as a share of the full model's."""
    return {budget: bundle.info.point(budget).share for budget in bundle.budgets}


def answers_of(bundle: Bundle, rows: Rows) -> tuple[Tables, NDArray[np.int64]]:
    """Return the calibrated probabilities (N, C) of every budget, and the class ids (N,) of the labels.

    Raises:
        OptionError: a task other than single-label.
        DataError: labels that the model does not know.
    """
    info = bundle.info.info
    if info.task != "single-label":
        raise OptionError(f"task must be single-label to escalate; this bundle's is {info.task!r}. Serve without")
    unknown = sorted(set(rows.labels) - set(info.labels))
    if unknown:
        raise DataError(
            f"labels must be those of the model, {', '.join(info.labels)}; got {unknown[0]!r}. Mend the rows"
        )
    labels = np.array([info.labels.index(label) for label in rows.labels], dtype=np.int64)
    tables = {
        budget: probabilities(
            bundle.logits(list(rows.texts), budget=budget).astype(np.float64) / info.temperature_at(budget),
            "single-label",
        )
        for budget in bundle.budgets
    }
    return tables, labels
