"""Escalation: a small budget answers first, and rows that it is unsure of are run again at the full one.

The threshold is calibrated by Learn then Test (Angelopoulos et al. 2021) on validation rows. A row is *harmed* by a
threshold when its small answer is kept, wrong, and the full model's right: always-full would have been right there.
The accuracy lost against always-full is at most the share of harmed rows (rows that only the small budget gets right
make it less). For a fixed threshold the harmed rows among n are binomial, so that the exact (Clopper-Pearson) bound at
level 1 - delta holds for any n. Thresholds are tried from the safest (nothing is kept) downwards, and the first one
whose bound is above the allowed loss ends the search: by fixed-sequence testing all that were passed hold together with
probability 1 - delta, however many there are. With several small budgets delta is divided among them (Bonferroni), and
the cheapest of their thresholds is chosen. The bound is for rows like the validation rows, drawn independently.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rheostat.checkpoint import write_whole
from rheostat.errors import CheckpointError, OptionError, missing

FILE = "escalation.json"
VERSION = 1
GRID = 200  # thresholds tried: quantiles of the confidence, so that each step keeps about as many rows more


@dataclass(frozen=True)
class Escalation:
    """A calibrated pair of budgets.

    Attributes:
        first: The budget that answers first.
        full: The budget of the second run, the bundle's largest.
        threshold: Rows with a confidence below it are run again.
        precision: Of the graphs that were calibrated.
        max_loss: Most accuracy lost against always-full, as a share of all rows.
        confidence: Probability, over validation sets, that the loss is no larger.
        rows: Validation rows.
        harmed_bound: Upper bound of the share of harmed rows.
        lost: Accuracy lost on the validation rows; below 0 where it was gained.
        accuracy: Accuracy on the validation rows.
        escalated: Share of the validation rows that were run again.
        mean_share: Mean cost of a row, as a share of the full model's; a row that is run again pays for both.
    """

    first: float
    full: float
    threshold: float
    precision: str
    max_loss: float
    confidence: float
    rows: int
    harmed_bound: float
    lost: float
    accuracy: float
    escalated: float
    mean_share: float

    def save(self, folder: Path) -> Path:
        """Write ``escalation.json`` into a bundle's folder, whole or not at all."""
        write_whole(folder / FILE, json.dumps({"escalation_version": VERSION, **asdict(self)}, indent=1) + "\n")
        return folder / FILE


def read_escalation(folder: Path) -> Escalation | None:
    """Return what was calibrated for a bundle; None if nothing was.

    Raises:
        CheckpointError: the file is damaged or of a newer version.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record.pop("escalation_version") != VERSION:
            raise ValueError("another version")
        found = Escalation(**record)
        if not 0.0 < found.first < found.full <= 1.0 or float(found.threshold) < 0.0:
            raise ValueError(f"first {found.first}, full {found.full}, threshold {found.threshold}")
        return found
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{FILE} of {str(folder)!r} must be valid; {type(error).__name__}: {error}. Run rheostat escalation again"
        ) from None


def upper_bound(counts: ArrayLike, rows: int, delta: float) -> NDArray[np.float64]:
    """Return the Clopper-Pearson bound: the share of harmed rows is no larger with probability 1 - delta.

    >>> float(upper_bound(0, 100, 0.05).round(4))  # the rule of three: about 3 / n
    0.0295
    """
    try:
        from scipy.stats import beta
    except ImportError as error:
        raise missing("scipy", "train") from error
    found = np.asarray(counts)
    return np.where(found >= rows, 1.0, beta.ppf(1.0 - delta, found + 1, np.maximum(rows - found, 1)))


def threshold_for(
    confidence: NDArray[np.float64], harmed: NDArray[np.bool_], *, max_loss: float, delta: float
) -> tuple[float, float]:
    """Return the smallest threshold that fixed-sequence testing passes, and its bound.

    Args:
        confidence: Of the small budget, (N,).
        harmed: Whether keeping the small answer is a mistake that full would not have made, (N,).
        max_loss: Most that the bound may be.
        delta: Probability of being wrong.

    Returns:
        A threshold above 1, with the bound of keeping nothing, where not even the first step passes.
    """
    levels = np.unique(np.quantile(confidence, np.linspace(0.0, 1.0, GRID), method="higher"))[::-1]
    ordered, harm = np.sort(confidence), np.cumsum(harmed[np.argsort(-confidence)])
    kept = len(ordered) - np.searchsorted(ordered, levels)  # rows at or above each threshold, at least one
    bounds = upper_bound(harm[kept - 1], len(ordered), delta)
    passed = int(np.argmax(np.append(bounds > max_loss, True)))
    return (float(levels[passed - 1]), float(bounds[passed - 1])) if passed else (2.0, 0.0)


def calibrate(
    probabilities: Mapping[float, NDArray[np.float64]],
    labels: NDArray[np.int64],
    shares: Mapping[float, float],
    *,
    max_loss: float,
    confidence: float = 0.95,
    precision: str = "float32",
) -> Escalation:
    """Return the cheapest pair of small budget and threshold whose loss against always-full is bounded.

    Args:
        probabilities: (N, C) of each budget on validation rows, at its temperature; the largest budget is full.
        labels: (N,) class ids.
        shares: Cost of each budget, as a share of full.
        max_loss: Most accuracy lost, as a share of all rows: 0.005 for half a point.
        confidence: Probability that the loss is no larger: 1 - delta.
        precision: What was run.

    Raises:
        OptionError: a value out of range, no smaller budget, or too few rows to promise anything.
    """
    if not 0.0 < max_loss < 1.0 or not 0.0 < confidence < 1.0:
        raise OptionError(
            f"max_loss and confidence must be between 0 and 1; got {max_loss!r} and {confidence!r}. Try 0.005 and 0.95"
        )
    full, *small = sorted(probabilities, reverse=True)
    if not small:
        raise OptionError("the bundle must hold a smaller budget to escalate from; it has one. Export more")
    right = {budget: table.argmax(axis=1) == labels for budget, table in probabilities.items()}
    found: list[Escalation] = []
    for budget in small:
        sure = probabilities[budget].max(axis=1)
        harmed = right[full] & ~right[budget]
        threshold, bound = threshold_for(sure, harmed, max_loss=max_loss, delta=(1.0 - confidence) / len(small))
        again = sure < threshold
        answers = np.where(again, right[full], right[budget])
        found.append(
            Escalation(
                first=budget,
                full=full,
                threshold=threshold,
                precision=precision,
                max_loss=max_loss,
                confidence=confidence,
                rows=len(labels),
                harmed_bound=bound,
                lost=float(right[full].mean() - answers.mean()),
                accuracy=float(answers.mean()),
                escalated=float(again.mean()),
                mean_share=float(shares[budget] + again.mean() * shares[full]),
            )
        )
    best = min(found, key=lambda e: e.mean_share)
    if best.threshold > 1.0:
        least = float(upper_bound(0, len(labels), (1.0 - confidence) / len(small)))
        raise OptionError(
            f"max_loss must be promised by {len(labels):,} rows; {max_loss:g} can't be, and at best {least:.2g} could. "
            "Give more rows, or allow more loss"
        )
    return best


def cascade(
    escalation: Escalation, probabilities: Mapping[float, NDArray[np.float64]], shares: Mapping[float, float]
) -> tuple[NDArray[np.int64], float]:
    """Return the class ids (N,) that a server with escalation answers, and the mean cost of a row."""
    first = probabilities[escalation.first]
    again = first.max(axis=1) < escalation.threshold
    answers = np.where(again, probabilities[escalation.full].argmax(axis=1), first.argmax(axis=1))
    return answers, float(shares[escalation.first] + again.mean() * shares[escalation.full])


def between(budgets: Sequence[tuple[float, float]], share: float) -> float:
    """Return the accuracy that fixed budgets reach at a mean cost, mixing the two nearest at random.

    Args:
        budgets: (share, accuracy) of each.
        share: The mean cost.
    """
    ordered = sorted(budgets)
    return float(np.interp(share, [s for s, _ in ordered], [a for _, a in ordered]))
