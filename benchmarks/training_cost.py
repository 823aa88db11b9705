"""What training all budgets costs against dense fine-tuning, and a sandwich step against a dense step.

    python benchmarks/training_cost.py [--rows 1500]

Targets: all stages, warm start included, at most 2.5 dense fine-tunings of wall time; a step at budget b at most
1.25 x b of a dense step plus a constant that is reported.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import results
import torch
from speed import untrained

from rheostat.demo_assets import fetch_minilm, fetch_reuters_r8
from rheostat.losses import budget_loss
from rheostat.measure import measure
from rheostat.pipeline import train
from rheostat.recipe import TrainOptions
from rheostat.timing import random_inputs

STEP_BUDGETS = (1.0, 0.75, 0.5, 0.35, 0.25, 0.12)
BATCH, LENGTH = 32, 64


def step_costs(rounds: int) -> dict[str, object]:
    """Return the time of forward, backward and optimizer at single budgets, and the line through it."""
    model = untrained().train()
    model.base.get_input_embeddings().requires_grad_(False)  # as in the adapt stage
    trained = [p for p in model.base.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.0, fused=True)
    batch = {**random_inputs(model, BATCH, LENGTH), "labels": torch.zeros(BATCH, dtype=torch.long)}
    batch["teacher_logits"] = torch.zeros(BATCH, 8)

    def step(budget: float) -> None:
        budget_loss(model, batch, budgets=(budget,)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    conditions = {"model": "MiniLM-L6", "batch": BATCH, "length": LENGTH, "dtype": "float32", "optimizer": "AdamW"}
    table = measure(
        {f"{b:g}": lambda b=b: step(b) for b in STEP_BUDGETS},
        baseline="1",
        conditions=conditions,
        rounds=rounds,
        calls_per_round=1,
    )
    times = np.array([table[f"{b:g}"].latency_ms_p50 for b in STEP_BUDGETS])
    slope, constant = np.polyfit(STEP_BUDGETS, times, 1)
    over = {f"{b:g}": float((t - constant) / (b * times[0])) for b, t in zip(STEP_BUDGETS, times, strict=True)}
    return {
        "dense_step_ms": float(times[0]),
        "constant_ms": float(constant),
        "slope_over_dense_step": float(slope / times[0]),
        "cost_less_constant_over_b_dense": over,
        "measurement": table.to_json(),
    }


def whole_training(rows: int) -> dict[str, object]:
    """Return the wall time of every stage of a default run, and their sum over that of the warm start."""
    options = TrainOptions(max_train_rows=rows, max_length=LENGTH, sequence_length=LENGTH)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        result = train(
            str(fetch_minilm()), str(fetch_reuters_r8()), Path(folder) / "out", options, measure_latency=False
        )
        whole = time.perf_counter() - start
    dense = result.stages["warm"]["seconds"]
    return {
        "rows": rows,
        "stages": result.stages,
        "dense_fine_tuning_seconds": dense,
        "whole_seconds_with_evaluation": whole,
        "training_seconds": result.training_seconds(),
        "training_over_dense": result.training_seconds() / dense,
        "whole_over_dense": whole / dense,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    steps = step_costs(arguments.rounds)
    training = whole_training(arguments.rows)
    headline = {
        **{name: value for name, value in training.items() if name != "stages"},
        **{name: value for name, value in steps.items() if name != "measurement"},
    }
    results.save("training_cost", {"headline": headline, "training": training, "steps": steps})


if __name__ == "__main__":
    main()
