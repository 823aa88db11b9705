"""Measure a budgeted model: latency of its budgets against its own full size, and the points of the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rheostat.architectures import image_shape
from rheostat.data import token_limit
from rheostat.errors import OptionError
from rheostat.families import check_model_type
from rheostat.measure import LatencyTable, Progress, measure
from rheostat.model import BudgetedModel
from rheostat.qualities import AnyQuality
from rheostat.report import OperatingPoint

TIMED_FORMS = ("materialized", "sliced")


def check_timed(model: BudgetedModel, budgets: Sequence[float], *, length: int, form: str) -> None:
    """Refuse what can't be timed.

    Raises:
        BudgetError: a budget that can't be reached.
        OptionError: unknown form, or more tokens than the model takes.
    """
    if form not in TIMED_FORMS:
        raise OptionError(f"form must be one of {', '.join(TIMED_FORMS)}; got {form!r}. Gated forms are never faster")
    for budget in budgets:
        model.subnet(budget)
    images = model.spec.image_tokens is not None
    most = model.usual_length if images else token_limit(model.tokenizer, model.config)
    if length > most:
        raise OptionError(f"length must be at most {most}, what the model takes; got {length}. Pass --length {most}")


def random_inputs(model: Any, batch: int, length: int) -> dict[str, Tensor]:
    """Return token ids (B, S) without padding, or pixels, on the model's device; the same ones every time."""
    if batch < 1 or length < 1:
        raise OptionError(f"batch and length must be at least 1; got {batch!r} and {length!r}. Try 8 and 64")
    generator = torch.Generator().manual_seed(0)
    if check_model_type(model.config).image_tokens is not None:
        return {"pixel_values": torch.randn(batch, *image_shape(model.config), generator=generator).to(model.device)}
    ids = torch.randint(0, model.config.vocab_size, (batch, length), generator=generator).to(model.device)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def time_budgets(
    model: BudgetedModel,
    budgets: Sequence[float],
    *,
    batch: int = 8,
    length: int = 64,
    threads: int = 1,
    form: str = "materialized",
    rounds: int = 7,
    progress: Progress | None = None,
) -> LatencyTable:
    """Time budgets against budget 1.0 in one interleaved run.

    Args:
        model: The budgeted model; float32 on the CPU is what the default threads are for.
        budgets: Budgets to time, named ``"0.5"`` and so on in the result; the full model is ``"1.0"``.
        batch: Rows a call.
        length: Tokens a row; images have what they have.
        threads: Threads of torch.
        form: ``materialized`` (what one deploys) or ``sliced`` (what switches by call).
        rounds: Rounds of the run, at least 5.
        progress: Called with (blocks done, blocks in all).
    """
    if model.spec.image_tokens is not None:
        length = model.usual_length
    check_timed(model, budgets, length=length, form=form)
    model.eval()
    inputs = random_inputs(model, batch, length)
    chosen = dict.fromkeys([1.0, *map(float, budgets)])
    variants = {str(budget): _variant(model, budget, form, inputs) for budget in chosen}
    conditions = {"batch": batch, "length": length, "form": form, "dtype": str(next(model.parameters()).dtype)}
    return measure(variants, baseline="1.0", conditions=conditions, rounds=rounds, threads=threads, progress=progress)


def _variant(model: BudgetedModel, budget: float, form: str, inputs: Mapping[str, Tensor]) -> Callable[[], object]:
    if form == "sliced":
        return lambda: run_once(model, {**inputs, "budget": budget})
    small: nn.Module = model.base if budget == 1.0 else model.materialize(budget).eval()
    return lambda: run_once(small, inputs)


def run_once(module: nn.Module, inputs: Mapping[str, Any]) -> None:
    """Run a module and wait for its result."""
    with torch.inference_mode():
        module(**inputs)
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def vocabulary_note(model: BudgetedModel) -> str:
    """Say what share the projection to the vocabulary takes of a language model, and the floor that follows."""
    return (
        f"the vocabulary takes {model.vocabulary_share:.1%} of the full model's MACs at {model.usual_length} tokens, "
        f"and no budget is below {model.floor:.4f}"
    )


def operating_points(
    model: BudgetedModel,
    budgets: Sequence[float],
    *,
    qualities: Sequence[AnyQuality] = (),
    latency: LatencyTable | None = None,
) -> list[OperatingPoint]:
    """Return one record a budget: what is kept, what it costs, and what was evaluated and measured of it.

    MACs are per sequence of the cost model's length, or of 128 tokens where it has none.
    """
    by_budget = {quality.budget: quality for quality in qualities}
    macs = model.macs_table(model.usual_length)
    params = model.params_table()
    points = []
    for budget in budgets:
        subnet = model.subnet(budget)
        points.append(
            OperatingPoint.join(
                budget=budget,
                share=model.costs.share(subnet),
                macs=macs.total(subnet),
                params=params.total(subnet),
                kept_heads=sum(subnet.head_counts),
                kept_neurons=sum(subnet.neuron_counts),
                quality=by_budget.get(budget),
                measurement=None if latency is None else latency[str(float(budget))],
            )
        )
    return points
