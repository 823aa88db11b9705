"""What it costs to change the budget of a call, and what twenty budgets add to memory.

    python benchmarks/switching.py

Targets: a budget already seen costs less than 1 % of a forward pass at batch 1, 32 tokens; twenty budgets add less than
1 % to the memory of the weights.
"""

from __future__ import annotations

import gc
import statistics
import time
import tracemalloc

import numpy as np
import results
import torch
from speed import untrained

from rheostat.measure import measure, resident_bytes, threads_set
from rheostat.model import BudgetedModel
from rheostat.timing import random_inputs

TWENTY = [float(b) for b in np.linspace(0.05, 1.0, 20)]


def microseconds(call: object, times: int = 2000) -> list[float]:
    """Return the duration of each of several calls."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        call()  # type: ignore[operator]
        found.append((time.perf_counter() - start) * 1e6)
    return found


def first_use(model: BudgetedModel, budget: float) -> float:
    """Return the microseconds that a budget takes the first time."""
    start = time.perf_counter()
    model.at(budget)
    return (time.perf_counter() - start) * 1e6


def main() -> None:
    model = untrained().eval()
    inputs = random_inputs(model, 1, 32)
    with torch.inference_mode(), threads_set(1):
        model.at(0.5)(**inputs)  # what is loaded at the first use of anything is not a budget's
        model.to("cpu")  # forgets the views
        gc.collect()
        before = resident_bytes()
        first_us = [first_use(model, budget) for budget in TWENTY]
        resident_added = resident_bytes() - before
        model.to("cpu")
        gc.collect()
        tracemalloc.start()
        for budget in TWENTY:
            model.at(budget)
        gc.collect()
        python_bytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        # In turn, so that every call changes the budget.
        seen = iter(TWENTY * 100)
        seen_us = microseconds(lambda: model.at(next(seen)))
        fixed_us = microseconds(lambda: model.at(0.5))
    with torch.inference_mode():
        half, other = model.at(0.5), model.at(0.45)
        turn = iter(range(10**9))
        table = measure(
            {
                "forward 0.5": lambda: half(**inputs),
                "alternating, views at hand": lambda: (half if next(turn) % 2 else other)(**inputs),
                "alternating, by budget": lambda: model(**inputs, budget=0.5 if next(turn) % 2 else 0.45),
            },
            baseline="forward 0.5",
            conditions={"model": "MiniLM-L6", "batch": 1, "length": 32, "dtype": "float32"},
            rounds=15,
            threads=1,
        )
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    dense_ms = statistics.median(microseconds(lambda: _forward(model, inputs), 50)) / 1e3
    headline = {
        "seen_budget_us_p50": statistics.median(seen_us),
        "same_budget_us_p50": statistics.median(fixed_us),
        "forward_0.5_ms_p50": table["forward 0.5"].latency_ms_p50,
        "forward_dense_ms_p50": dense_ms,
        "seen_budget_share_of_forward_0.5": statistics.median(seen_us) / 1e3 / table["forward 0.5"].latency_ms_p50,
        "first_use_us_p50": statistics.median(first_us),
        "weights_bytes": weights,
        "twenty_budgets_python_bytes": python_bytes,
        "twenty_budgets_resident_bytes": resident_added,
        "twenty_budgets_share_of_weights": max(python_bytes, resident_added) / weights,
    }
    results.save("switching", {"headline": headline, "budgets": TWENTY, "measurement": table.to_json()})


def _forward(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> None:
    with torch.inference_mode(), threads_set(1):
        model(**inputs)


if __name__ == "__main__":
    main()
