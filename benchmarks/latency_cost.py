"""Does spending milliseconds instead of multiply-accumulates pay? Two checkpoints of one dense model, at equal speed.

    python benchmarks/latency_cost.py ag_news=DATA/ag_news [--seeds 0 1] [--batch 1] [--length 64] [--precision bf16]

Both are trained by the default recipe from the same dense models; they differ in what a budget is a share of, and so in
how layers are interleaved. For each speedup each takes the largest budget that the certificate predicts to hold it;
both are then timed in one interleaved run, and compared on the test rows with the paired bootstrap. Resumable.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import results

from rheostat.certify import Conditions, Fit, certify, read_certificates
from rheostat.certify.targets import choices_of
from rheostat.compare import Comparison, Reading, below
from rheostat.data import ReadOptions
from rheostat.demo_assets import fetch_minilm
from rheostat.measure import measure
from rheostat.model import BudgetedModel, load
from rheostat.recipe import TrainOptions
from rheostat.timing import random_inputs, run_once

SPEEDUPS = (1.5, 2.0, 3.0, 4.0, 6.0)
ROUNDS = 15


def certified(folder: Path, conditions: Conditions) -> Fit:
    """Return the fit of a checkpoint at some conditions, measured once."""
    known = [fit for found in read_certificates(folder) if (fit := found.fit(conditions)) is not None]
    return known[0] if known else certify(folder, conditions=(conditions,), name="latency-cost", widths=False).fits[0]


def budget_at(model: BudgetedModel, fit: Fit, speedup: float) -> float:
    """Return the largest budget that is predicted to be this much faster."""
    choices = choices_of(model.order, fit)
    held = [budget for budget, ms in choices if ms <= choices[-1][1] / speedup]
    if not held:
        raise SystemExit(f"{speedup}x is out of reach")
    return held[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", metavar="NAME=FOLDER")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help="of training; read in float32")
    parser.add_argument("--work", type=Path, default=Path("runs/latency-cost"))
    arguments = parser.parse_args()
    name, folder = arguments.data.split("=", 1)
    conditions = Conditions(arguments.batch, arguments.length)
    base = TrainOptions(max_length=arguments.length, sequence_length=arguments.length, precision=arguments.precision)
    macs = Comparison(str(fetch_minilm()), folder, arguments.work / f"{name}-macs", base, ReadOptions())
    macs.outcomes(("dense", "sandwich"), (0.5,), arguments.seeds)
    first: BudgetedModel = load(macs.out / f"seed-{arguments.seeds[0]}" / "sandwich")
    fit = certified(macs.out / f"seed-{arguments.seeds[0]}" / "sandwich", conditions)
    if fit.model is None:
        raise SystemExit("the certificate has no latency model")
    timed = replace(base, cost=fit.model.costs(first.shape, arguments.length, dict(vars(conditions))))
    time = Comparison(
        str(fetch_minilm()), folder, arguments.work / f"{name}-latency", timed, ReadOptions(), dense_from=macs.out
    )
    time.outcomes(("dense", "sandwich"), (0.5,), arguments.seeds)
    points = {}
    for speedup in SPEEDUPS:
        points[f"{speedup:g}x"] = compared({"macs": macs, "latency": time}, fit, speedup, arguments)
        headline = {key: point["latency less macs, points"] for key, point in points.items()}
        record = {"headline": {name: headline}, "certificate": fit.to_json(), "points": points}
        results.save("latency_cost", record)


def compared(both: dict[str, Comparison], fit: Fit, speedup: float, arguments: Any) -> dict[str, Any]:
    """Return accuracy and measured speed of both at one predicted speedup, and their paired difference."""
    readings: dict[str, list[Reading]] = {}
    found: dict[str, Any] = {}
    calls = {}
    for name, comparison in both.items():
        readings[name], found[name] = [], {"budgets": [], "accuracy": []}
        for seed in arguments.seeds:
            model: BudgetedModel = load(comparison.out / f"seed-{seed}" / "sandwich")
            budget = budget_at(model, fit, speedup)
            all_read = comparison.readings(("dense", "sandwich"), (budget,), (seed,))
            own = next(r for r in all_read if r.method == "sandwich" and r.budget == budget)
            readings[name].append(own)
            found[name]["budgets"].append(budget)
            found[name]["accuracy"].append(float(own.right.mean() * 100))
            if seed == arguments.seeds[0]:
                small, inputs = (
                    model.materialize(budget).eval(),
                    random_inputs(model, arguments.batch, arguments.length),
                )
                calls[name] = partial(run_once, small, inputs)
                calls.setdefault("full", partial(run_once, model.base.eval(), inputs))
    table = measure(calls, baseline="full", conditions=vars(fit.conditions), rounds=ROUNDS, threads=1)
    for name in both:
        row = table[name]
        found[name] |= {"speedup": row.speedup, "low": row.speedup_low, "high": row.speedup_high}
    points, low, high = below(readings["latency"], readings["macs"])
    return {**found, "latency less macs, points": points, "low": low, "high": high}


if __name__ == "__main__":
    main()
