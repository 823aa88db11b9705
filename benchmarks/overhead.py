"""What the knob itself costs, and where the time of half the compute goes, an operator at a time.

    python benchmarks/overhead.py [--checkpoint FOLDER] [--budget 0.5]

Gates, choosing, slicing and materializing once each; then a profile of the dense and the materialized model on one
thread: how much of each operator's time the budget removes, and what is left between measured and ideal.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import results
import torch
from speed import untrained
from torch.profiler import ProfilerActivity, profile

import rheostat
from rheostat.measure import threads_set
from rheostat.model import BudgetedModel
from rheostat.timing import random_inputs, time_budgets

# Operators of torch by what they do; every other one is "other".
KINDS = {
    "linear layers": ("aten::addmm", "aten::mm", "aten::linear"),
    "attention": ("scaled_dot_product", "aten::bmm", "aten::_softmax"),
    "activation": ("aten::gelu",),
    "layer norms": ("aten::native_layer_norm",),
    "residual sums": ("aten::add",),
    "embeddings": ("aten::index_select", "aten::embedding"),
}


def once_us(call: Callable[[], object], times: int) -> float:
    """Return the median duration of a call in microseconds."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        found.append((time.perf_counter() - start) * 1e6)
    return statistics.median(found)


def costs_of_the_knob(model: BudgetedModel, budget: float) -> dict[str, float]:
    """Return microseconds of everything that happens before a smaller model runs."""

    def first_view() -> None:
        model._views.clear()
        model.at(budget)

    with torch.no_grad():
        return {
            "evaluate all gates": once_us(lambda: model.gates(budget), 500),
            "soft share of a budget": once_us(lambda: model.soft_share(budget), 500),
            "choose the subnet": once_us(lambda: model.order.subnet(budget), 500),
            "slice, first use": once_us(first_view, 200),
            "slice, seen before": once_us(lambda: model.at(budget), 2000),
            "materialize": once_us(lambda: model.materialize(budget), 9),
        }


def operators_ms(module: torch.nn.Module, inputs: dict[str, torch.Tensor], calls: int) -> dict[str, float]:
    """Return the milliseconds of one call by kind of operator."""
    with torch.inference_mode():
        for _ in range(3):
            module(**inputs)
        with profile(activities=[ProfilerActivity.CPU]) as found:
            for _ in range(calls):
                module(**inputs)
    table = dict.fromkeys([*KINDS, "other operators"], 0.0)
    for event in found.key_averages():
        names = [kind for kind, starts in KINDS.items() if any(start in event.key for start in starts)]
        table[names[0] if names else "other operators"] += event.self_cpu_time_total / 1e3 / calls
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", help="a trained MiniLM-L6 checkpoint; by default equal shares in every layer")
    parser.add_argument("--budget", type=float, default=0.5)
    arguments = parser.parse_args()
    budget = arguments.budget
    model = (rheostat.load(arguments.checkpoint) if arguments.checkpoint else untrained()).eval()
    inputs = random_inputs(model, 8, 64)
    with threads_set(1):
        knob = costs_of_the_knob(model, budget)
        dense = operators_ms(model.base, inputs, 30)
        small = operators_ms(model.materialize(budget).eval(), inputs, 30)
    table = time_budgets(model, (budget,), batch=8, length=64, threads=1, rounds=21)
    macs = model.macs_table(64)
    ideal = macs.total(model.subnet(1.0)) / macs.total(model.subnet(budget))
    measured = table[str(budget)].speedup or 0.0
    headline = {
        "speedup": measured,
        "ideal": ideal,
        "of_ideal": measured / ideal,
        "noise": [table.noise_low, table.noise_high],
        "knob_us": knob,
        "operators_ms": {
            kind: {"dense": dense[kind], "budget": small[kind], "ratio": dense[kind] / max(small[kind], 1e-9)}
            for kind in dense
        },
    }
    conditions = {"model": "MiniLM-L6", "order": "trained" if arguments.checkpoint else "uniform", "threads": 1}
    results.save("overhead", {"headline": headline, "conditions": {**conditions, "batch": 8, "length": 64}})


if __name__ == "__main__":
    main()
