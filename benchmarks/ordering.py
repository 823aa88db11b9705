"""`rheostat order` against the plain order that it starts from: accuracy on test rows without training, and its time.

    python benchmarks/ordering.py ag_news=DATA/ag_news --seeds 0 1

A dense model is fine-tuned first (resumable, kept in --work). "plain" is the best order of the prototypes under the
exact rule: importance with heads and neurons each divided by their kind's mean, blocks of 64, at least one head and
one block a layer. To reach: 0.3 points above it at 0.5 and 1.5 points at 0.25, in less than 3 minutes on two cores.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import results
from numpy.typing import NDArray

from rheostat import pipeline
from rheostat.budget import DEFAULT_BUDGETS
from rheostat.compare.readings import packed, unpacked
from rheostat.data import ReadOptions, read_corpus
from rheostat.demo_assets import fetch_minilm
from rheostat.evaluation import budget_logits
from rheostat.measure import environment
from rheostat.model import BudgetedModel, load, wrap
from rheostat.order import balanced_onset
from rheostat.preparing import Prepared, load_encoder, prepare
from rheostat.quality import paired_bootstrap
from rheostat.recipe import TrainOptions
from rheostat.saving import load_config
from rheostat.training import autocast

ROWS = 512
COMMAND = ("--max-length", "64", "--sequence-length", "64", "--rows", str(ROWS), "--no-measure", "--restart")


def dense_model(data: str, folder: Path, options: TrainOptions) -> Path:
    """Return the folder of the dense model, fine-tuned where it is not there yet."""
    if not folder.is_dir():
        pipeline.train(str(fetch_minilm()), data, folder, options, measure_latency=False, reads_test=False)
    return folder


def plain_order(dense: Path, rows: Prepared, options: TrainOptions) -> BudgetedModel:
    """Return the dense model in the order of the prototypes."""
    model = wrap(
        load_encoder(str(dense), rows.info, head_is_trained=False),
        sequence_length=options.sequence_length or 64,
        neuron_block=64,
        min_heads_per_layer=1,
        min_neurons_per_layer=64,
        info=rows.info,
        tokenizer=rows.tokenizer,
    )
    by_kind = partial(balanced_onset, head_weight=1.0)
    model.order_by_importance(pipeline.importance_on(model, rows, options), onset=by_kind)
    return model


def order_command(dense: Path, data: str, out: Path, *more: str) -> tuple[float, BudgetedModel]:
    """Run the command in a process of its own; return its seconds and what it left."""
    command = [sys.executable, "-m", "rheostat", "order", str(dense), "--data", data, "--out", str(out), *COMMAND]
    started = time.perf_counter()
    subprocess.run([*command, *more], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started, load(out)


def right_rows(model: BudgetedModel, rows: Prepared, budget: float, precision: str) -> NDArray[np.bool_]:
    """Return which test rows a budget answers rightly."""
    with autocast(precision, model.device):
        logits = budget_logits(model, rows.test, rows.collator, budget, title=f"Budget {budget:g}")
    return np.asarray(logits.argmax(axis=1) == np.asarray(rows.test["labels"]))


def read_seed(name: str, data: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Fine-tune, order in every way, and read the test rows."""
    work = arguments.work / name / f"seed-{seed}"
    options = TrainOptions(
        max_length=64,
        sequence_length=64,
        adapt="none",
        max_train_rows=arguments.max_train_rows,
        max_validation_rows=500,
        seed=seed,
        precision=arguments.precision,
    )
    dense = dense_model(data, work / "dense", options)
    few = dataclasses.replace(options, warm_epochs=0.0, max_train_rows=ROWS, calibration_rows=ROWS)
    rows = prepare(read_corpus(data, ReadOptions(seed=seed)), str(dense), load_config(str(dense)), few)
    given = ("--seed", str(seed), "--precision", arguments.precision)
    seconds, ordered = order_command(dense, data, work / "ordered", *given)
    _, alone = order_command(dense, data, work / "alone", *given, "--no-corrections")
    models = {"plain": plain_order(dense, rows, few), "order alone": alone, "order": ordered}
    budgets = DEFAULT_BUDGETS[1:]
    right = {
        method: np.stack([right_rows(model, rows, budget, arguments.read_precision) for budget in budgets])
        for method, model in models.items()
    }
    right["dense"] = right_rows(alone, rows, 1.0, arguments.read_precision)[None]
    shutil.rmtree(work / "alone")
    return {
        "environment": environment(),
        "order_seconds": seconds,
        "rows": len(rows.test),
        "right": {method: packed(table) for method, table in right.items()},
    }


def table_of(seeds: dict[str, Any]) -> dict[str, Any]:
    """Return by method and budget: accuracy, points below dense, and points above the plain order, over the seeds."""
    tables = {  # (seeds, budgets, rows)
        method: np.stack([unpacked(record["right"][method], record["rows"]) for record in seeds.values()])
        for method in next(iter(seeds.values()))["right"]
    }
    dense = tables["dense"][:, 0]
    result: dict[str, Any] = {"dense": {"accuracy": float(dense.mean())}}
    for method in ("plain", "order alone", "order"):
        for i, budget in enumerate(DEFAULT_BUDGETS[1:]):
            own = tables[method][:, i]
            entry: dict[str, Any] = {
                "accuracy": float(own.mean()),
                "below_dense": compared(dense, own),
            }
            if method != "plain":
                entry["above_plain"] = compared(own, tables["plain"][:, i])
            result.setdefault(method, {})[f"{budget:g}"] = entry
    return result


def compared(one: NDArray[np.bool_], other: NDArray[np.bool_]) -> list[float]:
    """Return how many points ``one`` (S, N) is above ``other``, with the paired 95 % interval."""
    gap = paired_bootstrap(one, other)
    return [round(value, 2) for value in (gap.value, gap.low, gap.high)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", metavar="NAME=FOLDER")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--max-train-rows", type=int, help="of the dense model's fine-tuning")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help="of fine-tuning and fitting")
    parser.add_argument("--read-precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--work", type=Path, default=Path("runs/ordering"))
    arguments = parser.parse_args()
    name, data = arguments.data.split("=", 1)
    path = results.RESULTS / "ordering.json"
    kept: dict[str, Any] = json.loads(path.read_text("utf-8"))["data"] if path.is_file() else {}
    conditions = {"precision": arguments.precision, "read_in": arguments.read_precision}
    conditions |= {"max_train_rows": arguments.max_train_rows, "calibration_rows": ROWS}
    for seed in arguments.seeds:
        found = read_seed(name, data, seed, arguments)
        same = kept.get(name, {}).get("conditions") == conditions
        seeds = {**(kept[name]["seeds"] if same else {}), str(seed): found}
        kept[name] = {"conditions": conditions, "table": table_of(seeds), "seeds": seeds}
        results.save("ordering", {"headline": {n: record["table"] for n, record in kept.items()}, "data": kept})


if __name__ == "__main__":
    main()
