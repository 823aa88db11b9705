"""How good predictions are, how much a budget costs in accuracy, and which budget is the cheapest good one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rheostat.errors import OptionError

TASKS = ("single-label", "multi-label", "regression")
FULL_BUDGET = 1.0
ROUNDING_POINTS = 1e-9  # in floats 90.06 - 1.0 is above 89.06, and yet that drop is one point


@dataclass(frozen=True)
class Interval:
    """A value, and the bounds that enclose it with the confidence that was asked for."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Quality:
    """What one budget scores on `rows` labelled rows, and how far below the full model that is.

    Accuracy and macro F1 are fractions. The drop is (full - this) in points of accuracy, so above 0 is worse; its
    interval is the paired bootstrap's. `class_f1` is in the order of the labels. The expected calibration errors,
    fractions too, are those of the probabilities that are predicted, and (raw) of those without the budget's
    temperature.
    """

    budget: float
    rows: int
    accuracy: float
    macro_f1: float
    drop_points: float
    drop_low: float
    drop_high: float
    calibration_error: float | None = None
    calibration_error_raw: float | None = None
    class_f1: tuple[float, ...] = ()

    @property
    def headline(self) -> float:
        """What budgets are chosen by: the accuracy."""
        return self.accuracy

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain JSON values."""
        return {**asdict(self), "class_f1": list(self.class_f1)}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Quality:
        """Rebuild a quality from `to_json`."""
        return cls(**{**record, "class_f1": tuple(record.get("class_f1", ()))})


def accuracy(predictions: ArrayLike, labels: ArrayLike) -> float:
    """Return the share of rows (N,) that are right, or of rows (N, C) that are right in every column."""
    return float(np.mean(_correct(*_paired("predictions", predictions, "labels", labels))))


def macro_f1(predictions: ArrayLike, labels: ArrayLike, *, label_set: ArrayLike | None = None) -> float:
    """Return the mean F1 over `label_set`, every class counting the same, whatever its size.

    `predictions` and `labels` are (N,). A class of the set that is neither predicted nor present has an F1
    of 0 and counts, as in scikit-learn with `zero_division=0`. Without `label_set` it is the classes that
    occur in either; give it when budgets are compared, or each is averaged over classes of its own.
    """
    return float(class_f1(predictions, labels, label_set=label_set).mean())


def class_f1(predictions: ArrayLike, labels: ArrayLike, *, label_set: ArrayLike | None = None) -> NDArray[np.float64]:
    """Return the F1 of every class of `label_set`, sorted, (C,); 0 where a class occurs nowhere.

    `predictions` and `labels` are (N,). Without `label_set` the classes are those that occur in either.
    """
    predicted, wanted = _paired("predictions", predictions, "labels", labels)
    if predicted.ndim != 1:
        raise OptionError(f"predictions must be of shape (rows,); got {predicted.shape!r}. Give class ids, not logits.")
    present, codes = np.unique(np.concatenate([predicted, wanted]), return_inverse=True)
    predicted_codes, wanted_codes = np.split(codes, 2)
    hits = np.bincount(wanted_codes[predicted_codes == wanted_codes], minlength=len(present))
    f1 = _f1(hits, np.bincount(codes, minlength=len(present)))
    if label_set is None:
        return f1
    classes = _label_set(label_set)
    found = np.zeros(len(classes))
    known = np.isin(present, classes)
    found[np.searchsorted(classes, present[known])] = f1[known]
    return found


def multilabel_f1(predictions: ArrayLike, labels: ArrayLike) -> tuple[float, float]:
    """Return (macro F1, micro F1) of 0/1 tables (N, C); a column without a single 1 has an F1 of 0."""
    hits, ones = _column_counts(predictions, labels)
    return float(_f1(hits, ones).mean()), float(_f1(hits.sum(), ones.sum()))


def _column_counts(predictions: ArrayLike, labels: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return for each column of 0/1 tables (N, C) the ones in both, and those in one plus those in the other."""
    predicted, wanted = (table.astype(bool) for table in _paired("predictions", predictions, "labels", labels))
    return (predicted & wanted).sum(axis=0), predicted.sum(axis=0) + wanted.sum(axis=0)


def _f1(hits: ArrayLike, predicted_plus_wanted: ArrayLike) -> NDArray[np.float64]:
    # 2 TP / (2 TP + FP + FN): one formula, and 0 where a class occurs nowhere.
    return np.asarray(2 * np.asarray(hits) / np.maximum(np.asarray(predicted_plus_wanted), 1), dtype=np.float64)


def paired_bootstrap(
    correct_a: ArrayLike, correct_b: ArrayLike, *, samples: int = 2000, seed: int = 0, level: float = 0.95
) -> Interval:
    """Return accuracy of a - accuracy of b in points, with its bootstrap interval over the rows.

    Entry i of both, (N,), says whether row i was answered correctly; (S, N) holds S seeds over the same rows, which
    are averaged a row at a time first. Paired: a row that both models get right or both get wrong adds no noise.
    Drawing rows with replacement only decides how often each difference comes up, so each sample is one
    multinomial draw, whatever the number of rows.

    >>> paired_bootstrap([1, 1, 1, 0], [1, 1, 0, 0]).value
    25.0
    """
    first, second = _paired("correct_a", correct_a, "correct_b", correct_b)
    _check_bootstrap(samples, level)
    differences = np.atleast_2d(_as_correct("correct_a", first) - _as_correct("correct_b", second))  # (S, N)
    seeds, rows = differences.shape
    values, counts = np.unique(differences.sum(axis=0), return_counts=True)  # of -S ... S
    drawn = np.random.default_rng(seed).multinomial(rows, counts / rows, size=samples)  # (samples, V)
    points = (drawn @ values) * (100 / rows / seeds)
    low, high = np.quantile(points, [(1 - level) / 2, (1 + level) / 2])
    value = float(counts @ values) * 100 / rows / seeds
    return Interval(value, min(float(low), value), max(float(high), value))


def quality_at(
    budget: float,
    predictions: ArrayLike,
    labels: ArrayLike,
    *,
    full_predictions: ArrayLike,
    label_set: ArrayLike | None = None,
    samples: int = 2000,
    seed: int = 0,
) -> Quality:
    """Return the quality of one budget's predictions, beside those of the full model on the same rows.

    All are class ids (N,), or 0/1 tables (N, C) for multi-label: there a row is right when every column is, and
    macro F1 is the mean over the columns, whatever `label_set` says.
    """
    predicted, wanted = _paired("predictions", predictions, "labels", labels)
    full, _ = _paired("full_predictions", full_predictions, "labels", labels)
    drop = paired_bootstrap(_correct(full, wanted), _correct(predicted, wanted), samples=samples, seed=seed)
    if wanted.ndim == 2:
        scores = _f1(*_column_counts(predicted, wanted))
    else:
        scores = class_f1(predicted, wanted, label_set=label_set)
    return Quality(
        budget=float(budget),
        rows=len(wanted),
        accuracy=accuracy(predicted, wanted),
        macro_f1=float(scores.mean()),
        drop_points=drop.value,
        drop_low=drop.low,
        drop_high=drop.high,
        class_f1=tuple(scores.tolist()),
    )


class Scored(Protocol):
    """What a budget can be chosen by: a quality with a headline, a fraction of which more is better."""

    @property
    def budget(self) -> float:
        """The budget."""
        ...

    @property
    def headline(self) -> float:
        """Accuracy, or what a task has in its place."""
        ...


ScoredT = TypeVar("ScoredT", bound=Scored)


def cheapest_within(qualities: Sequence[ScoredT], max_drop_points: float) -> ScoredT:
    """Return the smallest budget whose own measured accuracy is within `max_drop_points` of the full model's.

    Each budget is judged by itself: a larger budget that happens to miss the limit does not rule out a
    smaller one that keeps it, because the smaller one is what would run, and it was measured. Where the
    curve is that close to the limit, chance decides; the result's `drop_low` and `drop_high` say how far.
    The full model always qualifies, so there is always an answer.
    """
    _check_max_drop(max_drop_points)
    full = next((quality for quality in qualities if quality.budget == FULL_BUDGET), None)
    if full is None:
        budgets = [quality.budget for quality in qualities]
        raise OptionError(f"qualities must include budget 1.0; got {budgets!r}. Evaluate the full model as well.")
    lowest = full.headline * 100 - max_drop_points - ROUNDING_POINTS
    return min((one for one in qualities if one.headline * 100 >= lowest), key=lambda one: one.budget)


def score(task: str, logits: ArrayLike, labels: ArrayLike) -> dict[str, float | None]:
    """Return the metrics of a task by name; `accuracy` is None where a task has none.

    single-label: logits (N, C), labels (N,): accuracy and macro F1 over all C classes.
    multi-label: logits (N, C), 0/1 labels (N, C), cut at a logit of 0: exact-match accuracy, macro and micro F1.
    regression: logits (N,) or (N, 1), labels (N,): Spearman's correlation (None where one side is constant)
    and the mean squared error.
    """
    if task not in TASKS:
        raise OptionError(f"task must be one of {list(TASKS)}; got {task!r}. Choose the one that the labels fit.")
    values = np.asarray(logits, dtype=np.float64)
    if not np.isfinite(values).all():
        raise OptionError("logits must be finite; got NaN or infinity. Check the model's weights and the precision.")
    if task == "regression":
        return _score_regression(values.reshape(len(values), -1), labels)
    if values.ndim != 2:
        raise OptionError(f"logits must be of shape (rows, classes); got {values.shape!r}. Give one logit per class.")
    return _score_single(values, labels) if task == "single-label" else _score_multi(values, labels)


def _score_single(logits: NDArray[np.float64], labels: ArrayLike) -> dict[str, float | None]:
    predictions = logits.argmax(axis=1)  # (N,)
    f1 = macro_f1(predictions, labels, label_set=np.arange(logits.shape[1]))
    return {"accuracy": accuracy(predictions, labels), "macro_f1": f1}


def _score_multi(logits: NDArray[np.float64], labels: ArrayLike) -> dict[str, float | None]:
    predictions = (logits > 0).astype(np.int64)  # (N, C)
    macro, micro = multilabel_f1(predictions, labels)
    return {"accuracy": accuracy(predictions, labels), "macro_f1": macro, "micro_f1": micro}


def _score_regression(values: NDArray[np.float64], labels: ArrayLike) -> dict[str, float | None]:
    if values.shape[1] != 1:
        raise OptionError(f"logits must be one value a row; got {values.shape!r}. Regression has a single output.")
    predicted, wanted = _paired("logits", values[:, 0], "labels", np.asarray(labels, dtype=np.float64).reshape(-1))
    return {
        "accuracy": None,
        "spearman": _spearman(predicted, wanted),
        "mse": float(np.mean((predicted - wanted) ** 2)),
    }


def _spearman(first: NDArray[Any], second: NDArray[Any]) -> float | None:
    ranks = [_ranks(first), _ranks(second)]
    if any(np.ptp(rank) == 0 for rank in ranks):
        return None
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return the rank of each value, ties sharing the mean of theirs."""
    _, codes, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[codes], dtype=np.float64)


def _paired(name_a: str, a: ArrayLike, name_b: str, b: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
    first, second = np.asarray(a), np.asarray(b)
    if first.shape != second.shape or first.ndim == 0 or first.shape[0] == 0:
        raise OptionError(
            f"{name_a} and {name_b} must be of one shape with at least one row; got {first.shape!r} and "
            f"{second.shape!r}. Give one entry per row to both."
        )
    return first, second


def _correct(predicted: NDArray[Any], wanted: NDArray[Any]) -> NDArray[np.bool_]:
    return np.asarray((predicted == wanted).reshape(len(wanted), -1).all(axis=1))


def _as_correct(name: str, values: NDArray[Any]) -> NDArray[np.int64]:
    if values.ndim not in (1, 2) or not np.isin(values, (0, 1)).all():
        raise OptionError(f"{name} must be true or false for each row; got {values!r}. Compare predictions and labels.")
    return values.astype(np.int64)


def _label_set(label_set: ArrayLike) -> NDArray[Any]:
    classes = np.unique(np.asarray(label_set))
    if not len(classes):
        raise OptionError("label_set must hold at least one class; got an empty one. Leave it out to use what occurs.")
    return classes


def _check_bootstrap(samples: int, level: float) -> None:
    if samples < 1:
        raise OptionError(f"samples must be at least 1; got {samples!r}. 2000 is a good number.")
    if not 0 < level < 1:
        raise OptionError(f"level must be between 0 and 1; got {level!r}. 0.95 is usual.")


def _check_max_drop(max_drop_points: float) -> None:
    is_number = isinstance(max_drop_points, (int, float)) and not isinstance(max_drop_points, bool)
    if not is_number or not math.isfinite(max_drop_points) or max_drop_points < 0:
        raise OptionError(
            f"max_drop_points must be a number of at least 0; got {max_drop_points!r}. "
            "Give points of accuracy, such as 0.5."
        )
