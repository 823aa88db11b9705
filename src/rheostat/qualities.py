"""What one budget scores, a record for every kind of task; :class:`rheostat.quality.Quality` is that of classifiers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rheostat.quality import Quality


@dataclass(frozen=True)
class Perplexity:
    """What one budget scores on texts.

    Attributes:
        budget: The budget.
        perplexity: ``exp(loss)``: 1 is certainty, the size of the vocabulary is a guess.
        loss: Mean negative log-likelihood of a token, in nats.
        tokens: How many tokens were predicted.
    """

    budget: float
    perplexity: float
    loss: float
    tokens: int

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        return asdict(self)


@dataclass(frozen=True)
class TagQuality:
    """What one budget scores on rows of words.

    Attributes:
        budget: The budget.
        rows: How many rows there are.
        words: How many words they have; one that was cut off is wrong.
        accuracy: Share of the words with the right label.
        entity_f1: F1 of whole entities over all kinds (micro); None where labels name no entities (B-, I-, ...).
        precision: Share of the found entities that are right, or None.
        recall: Share of the entities that were found, or None.
        drop_points: (full - this) in points of the headline: entity F1, or accuracy where there is none.
        drop_low: Lower end of its interval, the paired bootstrap's over rows.
        drop_high: Upper end.
    """

    budget: float
    rows: int
    words: int
    accuracy: float
    entity_f1: float | None
    precision: float | None
    recall: float | None
    drop_points: float
    drop_low: float
    drop_high: float

    @property
    def headline(self) -> float:
        """What budgets are chosen by: entity F1, or accuracy."""
        return self.accuracy if self.entity_f1 is None else self.entity_f1

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        return asdict(self)


@dataclass(frozen=True)
class RegressionQuality:
    """What one budget scores on rows with a number each.

    Attributes:
        budget: The budget.
        rows: How many rows there are.
        spearman: Rank correlation of predictions and targets; 0 where one of them is constant.
        mse: Mean squared error, in squares of the targets' unit.
        drop_points: (full - this) in points: hundredths of the rank correlation.
        drop_low: Lower end of its interval, the paired bootstrap's over rows.
        drop_high: Upper end.
    """

    budget: float
    rows: int
    spearman: float
    mse: float
    drop_points: float
    drop_low: float
    drop_high: float

    @property
    def headline(self) -> float:
        """What budgets are chosen by: the rank correlation."""
        return self.spearman

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        return asdict(self)


@dataclass(frozen=True)
class Similarity:
    """How near the vectors of one budget are to the full model's.

    Attributes:
        budget: The budget.
        rows: How many texts there are.
        cosine: Mean cosine between a text's vectors.
        cosine_p5: The cosine that 5 % of the texts are below.
    """

    budget: float
    rows: int
    cosine: float
    cosine_p5: float

    @property
    def headline(self) -> float:
        """What budgets are chosen by: the mean cosine."""
        return self.cosine

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        return asdict(self)


AnyQuality = Quality | Perplexity | TagQuality | RegressionQuality | Similarity


def from_json(record: Mapping[str, Any]) -> AnyQuality:
    """Return the record that ``to_json`` of any quality wrote."""
    if "perplexity" in record:
        return Perplexity(**record)
    if "cosine" in record:
        return Similarity(**record)
    if "spearman" in record:
        return RegressionQuality(**record)
    return TagQuality(**record) if "entity_f1" in record else Quality.from_json(record)
