"""The plain interface: the JSON of ``POST /predict``, read strictly."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rheostat.errors import OptionError
from rheostat.serve.answers import Ask

Fraction = Annotated[float, Field(gt=0.0, le=1.0, allow_inf_nan=False)]
Milliseconds = Annotated[float, Field(gt=0.0, le=3_600_000.0, allow_inf_nan=False)]
Model = TypeVar("Model", bound=BaseModel)


class MalformedError(OptionError):
    """A body that is no JSON, as opposed to JSON that asks for something impossible."""


class PredictRequest(BaseModel):
    """Texts, and what may be spent on them."""

    model_config = ConfigDict(extra="forbid", strict=True)

    texts: Annotated[
        list[str | tuple[str, str]], Field(min_length=1, description="Texts, or pairs of texts.", examples=[["Oil up"]])
    ]
    budget: Fraction | None = Field(None, description="The most to spend, a share of the full cost; all by default.")
    min_budget: Fraction | None = Field(None, description="The least to spend; the server's least by default.")
    exact: bool = Field(False, description="Spend exactly the budget, or refuse.")
    deadline_ms: Milliseconds | None = Field(None, description="How long you wait; the server's SLO by default.")
    escalate: bool = Field(False, description="Answer small first; run unsure texts again at full budget.")

    def ask(self) -> Ask:
        """Return the request as a plain value."""
        return Ask(self.texts, self.budget, self.min_budget, self.exact, self.deadline_ms, self.escalate)


class PredictionBody(BaseModel):
    """The answer for one text."""

    label: str | list[str] | None
    confidence: float | None = Field(description="Calibrated probability of the label; null for a regression.")
    value: float | None = Field(description="Of a regression.")
    probabilities: dict[str, float]
    budget_served: float
    tokens: int
    truncated: bool
    escalated: bool


class PredictResponse(BaseModel):
    """The answers, in order."""

    predictions: list[PredictionBody]
    budget_served: float = Field(description="The smallest budget that answered a text.")
    latency_ms: float
    truncated: int = Field(description="How many texts were cut at the model's longest input.")


class ErrorBody(BaseModel):
    """What went wrong, in one line."""

    error: str


def read(model: type[Model], body: bytes) -> Model:
    """Return a body as ``model``.

    Raises:
        MalformedError: no JSON, or no UTF-8.
        OptionError: a value that can't be used; the message names its place, and never repeats a text.
    """
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise as_option_error(error) from None


def as_option_error(error: ValidationError) -> OptionError:
    """Return the first of pydantic's complaints as one line."""
    first: Any = error.errors(include_input=False, include_url=False, include_context=False)[0]
    place = ".".join(str(part) for part in first["loc"] if not str(part).startswith(("function-", "tuple[", "str")))
    if first["type"] in ("json_invalid", "json_type"):
        return MalformedError(f"the body must be JSON in UTF-8; {first['msg']}. Send an object")
    return OptionError(f"{place or 'the body'} must be valid; {first['msg'][0].lower()}{first['msg'][1:]}. See /docs")
