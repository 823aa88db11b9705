"""How far confidence is from how often a model is right, and the one temperature a budget that brings them together.

Smaller subnets are unsure in other ways than the full model: without a temperature of its own, the same probability
means another chance to be right at every budget.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rheostat.errors import OptionError

CLASSIFICATIONS = ("single-label", "multi-label")
# Rows that are all right (or all wrong) would take the temperature to 0 (or to infinity).
LOWEST, HIGHEST = 0.1, 10.0
BINS = 15  # as in Guo et al. 2017

FloatArray = NDArray[np.float64]


def fit_temperature(logits: ArrayLike, labels: ArrayLike, task: str) -> float:
    """Return T in [0.1, 10] that minimizes the loss of ``logits / T`` on labelled rows (Guo et al. 2017).

    The loss is convex in 1 / T, so its slope is bisected. Fit it on rows that nothing was trained on.

    Args:
        logits: (N, C).
        labels: (N,) class ids, or (N, C) zeros and ones for multi-label.
        task: ``single-label`` or ``multi-label``.

    Raises:
        OptionError: another task, or shapes that don't fit.
    """
    values, wanted = _checked(logits, labels, task)
    low, high = np.log(1.0 / HIGHEST), np.log(1.0 / LOWEST)  # of 1 / T
    for _ in range(50):
        middle = (low + high) / 2
        if _slope(np.exp(middle), values, wanted, task) > 0:
            high = middle
        else:
            low = middle
    return float(np.exp(-(low + high) / 2))


def _slope(inverse: float, logits: FloatArray, labels: NDArray[np.int64], task: str) -> float:
    """Return the derivative of the mean loss by 1 / T."""
    wanted = labels if task == "multi-label" else np.eye(logits.shape[1])[labels]
    return float(((probabilities(logits * inverse, task) - wanted) * logits).sum(axis=1).mean())


def fit_temperatures(
    logits: Mapping[float, ArrayLike], labels: ArrayLike, task: str
) -> tuple[tuple[float, float], ...]:
    """Return (budget, temperature), smallest budget first, from the logits (N, C) of each budget."""
    return tuple((budget, fit_temperature(logits[budget], labels, task)) for budget in sorted(logits))


def expected_calibration_error(logits: ArrayLike, labels: ArrayLike, task: str, *, temperature: float = 1.0) -> float:
    """Return the mean distance between confidence and accuracy over 15 bins of confidence, in [0, 1].

    Confidence is the probability of the predicted class; for multi-label that of every single yes or no.

    Args:
        logits: (N, C).
        labels: See :func:`fit_temperature`.
        task: ``single-label`` or ``multi-label``.
        temperature: Divides the logits first.
    """
    values, wanted = _checked(logits, labels, task)
    table = probabilities(values / temperature, task)  # (N, C)
    if task == "multi-label":
        confidence, right = np.maximum(table, 1.0 - table).ravel(), ((table > 0.5) == wanted).ravel()
    else:
        confidence, right = table.max(axis=1), table.argmax(axis=1) == wanted
    bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    gaps = np.bincount(bins, weights=right - confidence, minlength=BINS)  # rows of the bin x (accuracy - confidence)
    return float(np.abs(gaps).sum() / len(confidence))


def probabilities(logits: FloatArray, task: str) -> FloatArray:
    """Return the probabilities (N, C) that logits (N, C) stand for."""
    if task == "multi-label":
        return np.asarray(0.5 * (1.0 + np.tanh(0.5 * logits)))
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def _checked(logits: ArrayLike, labels: ArrayLike, task: str) -> tuple[FloatArray, NDArray[np.int64]]:
    if task not in CLASSIFICATIONS:
        raise OptionError(f"task must be one of {', '.join(CLASSIFICATIONS)} to calibrate; got {task!r}")
    values, wanted = np.asarray(logits, dtype=np.float64), np.asarray(labels).astype(np.int64)
    expected = values.shape if task == "multi-label" else values.shape[:1]
    if values.ndim != 2 or not len(values) or wanted.shape != expected:
        raise OptionError(f"logits must be (rows, classes) with labels to match; got {values.shape} and {wanted.shape}")
    return values, wanted
