"""What is asked of a server and what it answers, as plain values: no HTTP here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rheostat.predictions import Prediction

Text = str | tuple[str, str]


@dataclass(frozen=True)
class Ask:
    """One request.

    Attributes:
        texts: Texts or pairs of texts.
        budget: The most to spend; None for all.
        min_budget: The least; None for what the server spends at least.
        exact: Whether ``budget`` must be spent, neither more nor less.
        deadline_ms: How long the client waits; None for the server's SLO.
        escalate: Whether unsure rows are run again at the full budget.
    """

    texts: Sequence[Text]
    budget: float | None = None
    min_budget: float | None = None
    exact: bool = False
    deadline_ms: float | None = None
    escalate: bool = False


@dataclass(frozen=True)
class RowAnswer:
    """The answer for one text.

    Attributes:
        prediction: Label, calibrated confidence, probabilities, and the budget that answered.
        tokens: Of the text, after it was cut.
        truncated: Whether it was cut.
        escalated: Whether it was run a second time.
    """

    prediction: Prediction
    tokens: int
    truncated: bool
    escalated: bool

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready form; a regression has a value and no confidence."""
        found = self.prediction
        regression = not found.probabilities
        return {
            "label": list(found.label) if isinstance(found.label, tuple) else found.label,
            "confidence": None if regression else found.score,
            "value": found.score if regression else None,
            "probabilities": found.probabilities,
            "budget_served": found.budget,
            "tokens": self.tokens,
            "truncated": self.truncated,
            "escalated": self.escalated,
        }


@dataclass(frozen=True)
class Answer:
    """The answer to one request.

    Attributes:
        rows: One a text, in order.
        latency_ms: From arrival to answer, in the server.
    """

    rows: tuple[RowAnswer, ...]
    latency_ms: float

    @property
    def budget_served(self) -> float:
        """Return the smallest budget that answered a text."""
        return min(row.prediction.budget for row in self.rows)

    @property
    def truncated(self) -> int:
        """Return how many texts were cut."""
        return sum(row.truncated for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        return {
            "predictions": [row.to_json() for row in self.rows],
            "budget_served": self.budget_served,
            "latency_ms": round(self.latency_ms, 3),
            "truncated": self.truncated,
        }


class Answers(Protocol):
    """What the application needs from whoever answers: a :class:`Service` here, or replicas elsewhere."""

    @property
    def ready(self) -> bool:
        """Whether requests can be answered now."""
        ...

    async def begin(self) -> None:
        """Start, once the event loop runs."""
        ...

    async def predict(self, ask: Ask) -> Answer:
        """Return the answer.

        Raises:
            BudgetError: no budget of the bundle fits.
            OptionError: anything else about the request.
            BusyError: not now.
        """
        ...

    async def status(self) -> dict[str, Any]:
        """Return what the live view shows."""
        ...

    async def close(self) -> None:
        """End everything that was started."""
        ...
