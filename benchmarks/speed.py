"""Speed of MiniLM-L6 at several budgets, materialized and sliced, against the dense model in the same run.

    python benchmarks/speed.py [--checkpoint FOLDER] [--rounds 21]

Targets (one thread, float32, batch 8 x 64 tokens): 1.9x at budget 0.5 and 3.5x at 0.25; sliced within 5 % of
materialized.
"""

from __future__ import annotations

import argparse

import results
import torch
import transformers

import rheostat
from rheostat.demo_assets import fetch_minilm
from rheostat.measure import measure
from rheostat.model import BudgetedModel
from rheostat.saving import quiet_transformers
from rheostat.timing import random_inputs

BUDGETS = (0.75, 0.5, 0.35, 0.25, 0.12)


def untrained() -> BudgetedModel:
    """Return MiniLM-L6 with the same share of every layer at every budget."""
    with quiet_transformers():
        base = transformers.AutoModelForSequenceClassification.from_pretrained(fetch_minilm(), num_labels=8)
    return rheostat.wrap(base, sequence_length=64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", help="a trained MiniLM-L6 checkpoint, for example that of the demo")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    model = (rheostat.load(arguments.checkpoint) if arguments.checkpoint else untrained()).eval()
    inputs = random_inputs(model, arguments.batch, arguments.length)

    def run(module: torch.nn.Module, **budget: float) -> None:
        with torch.inference_mode():
            module(**inputs, **budget)

    variants = {"dense": lambda: run(model.base)}
    for budget in BUDGETS:
        small = model.materialize(budget).eval()
        variants[f"materialized {budget:g}"] = lambda small=small: run(small)
        variants[f"sliced {budget:g}"] = lambda budget=budget: run(model, budget=budget)
    conditions = {
        "model": "MiniLM-L6",
        "order": "trained" if arguments.checkpoint else "uniform",
        "batch": arguments.batch,
        "length": arguments.length,
        "dtype": "float32",
        "cost": model.costs.name,
        "sequence_length": model.costs.sequence_length,
    }
    table = measure(
        variants, baseline="dense", conditions=conditions, rounds=arguments.rounds, threads=arguments.threads
    )
    headline = {"noise": [table.noise_low, table.noise_high]}
    for budget in BUDGETS:
        cut, view = table[f"materialized {budget:g}"], table[f"sliced {budget:g}"]
        slower = table.ratio(f"materialized {budget:g}", f"sliced {budget:g}")
        headline[f"{budget:g}"] = {
            "share": model.costs.share(model.subnet(budget)),
            "materialized": [cut.speedup, cut.speedup_low, cut.speedup_high],
            "sliced": [view.speedup, view.speedup_low, view.speedup_high],
            "sliced_over_materialized": [slower.median, slower.low, slower.high],
        }
    name = f"speed-{'trained' if arguments.checkpoint else 'uniform'}"
    results.save(name, {"headline": headline, "measurement": table.to_json()})


if __name__ == "__main__":
    main()
