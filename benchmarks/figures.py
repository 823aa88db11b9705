"""The curve on whole data sets: one checkpoint for all budgets against dense models and specialists, on test rows.

    python benchmarks/figures.py ag_news=DATA/ag_news --seeds 0 1 --specialists 0.5 0.25

Everything is `rheostat compare` with the default recipe: the dense model, one trained for as many epochs in all, the
budgeted model and, with --specialists, one model a budget by the same recipe. Resumable, and the results hold which
rows every model has right, so that seeds of another day are pooled with those that are there.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import results

from rheostat.budget import DEFAULT_BUDGETS
from rheostat.compare import Answers, Comparison, Outcome, Reading, below, readings_of
from rheostat.data import ReadOptions
from rheostat.demo_assets import fetch_minilm
from rheostat.evaluation import score_budgets
from rheostat.measure import environment
from rheostat.model import load
from rheostat.recipe import TrainOptions
from rheostat.reproduce.models import copy_with_config

RESULTS = results.RESULTS / "figures.json"
OTHERS = ("dense", "dense-equal", "specialist")


def model_of(work: Path, attention_dropout: float | None) -> Path:
    """Return the encoder's folder; a copy of it that drops that share of its attention, where one is given."""
    folder = fetch_minilm()
    if attention_dropout is None:
        return folder
    copy = work / f"model-attention-dropout-{attention_dropout:g}"
    shutil.rmtree(copy, ignore_errors=True)
    copy_with_config(folder, copy, attention_probs_dropout_prob=attention_dropout)
    return copy


def calibration(found: list[Outcome], answers: Answers, folder: Path) -> dict[str, Any]:
    """Return errors with and without the saved temperatures, on test rows, by budget."""
    info = load(folder / "sandwich").info
    logits = {o.budget: o.logits for o in found if o.method == "sandwich"}
    return {
        f"{quality.budget:g}": {
            "temperature": info.temperature_at(quality.budget),
            "before": quality.calibration_error_raw,
            "after": quality.calibration_error,
            "macro_f1": quality.macro_f1,
        }
        for quality in score_budgets(info, logits, answers.labels, list(logits))
    }


def read_seed(comparison: Comparison, seed: int, specialists: Sequence[float], *, equal: bool) -> dict[str, Any]:
    """Run what is missing of a seed; return which rows every model has right, and the calibration."""
    budgets = DEFAULT_BUDGETS[1:]
    found, answers = comparison.outcomes(("dense", "sandwich"), budgets, (seed,))
    for methods, points in ((("dense-equal",), budgets if equal else ()), (("specialist",), specialists)):
        if points:
            more, _ = comparison.outcomes(methods, points, (seed,))
            found += [outcome for outcome in more if outcome.method != "dense"]
    return {
        "environment": environment(),
        "readings": [reading.to_json() for reading in readings_of(found, answers)],
        "calibration": calibration(found, answers[seed], comparison.out / f"seed-{seed}"),
    }


def below_of(readings: list[Reading]) -> dict[str, dict[str, Any]]:
    """Return by budget how many points the budgeted model is below each other one, over the seeds that have both."""
    table: dict[str, dict[str, Any]] = {}
    for budget in DEFAULT_BUDGETS:
        own = {r.seed: r for r in readings if r.method == "sandwich" and r.budget == budget}
        for other in OTHERS:
            wanted = budget if other == "specialist" else None
            rival = {r.seed: r for r in readings if r.method == other and r.budget == wanted and r.seed in own}
            if rival:
                points, low, high = below(list(rival.values()), [own[seed] for seed in rival])
                entry = {"points": points, "low": low, "high": high, "seeds": sorted(rival)}
                table.setdefault(f"{budget:g}", {})[other] = entry
    return table


def table_of(name: str, data: dict[str, Any]) -> str:
    """Return one data set as Markdown: points below each other model, and calibration errors, on test rows."""
    seeds = data["seeds"].values()
    readings = [Reading.from_json(record) for seed in seeds for record in seed["readings"]]
    dense = [100 * r.right.mean() for r in readings if r.method == "dense"]
    head = ["budget", *(f"below {other}" for other in OTHERS), "temperature", "ECE without", "ECE with"]
    lines = [
        f"### {name}: {len(readings[0].right):,} test rows, dense {sum(dense) / len(dense):.2f} %",
        "",
        " | ".join(["", *head, ""]).strip(),
        "| " + " | ".join(["---:"] * len(head)) + " |",
    ]
    for budget, entry in below_of(readings).items():
        cells = [budget]
        for other in OTHERS:
            found = entry.get(other)
            cells.append(
                "" if found is None else "{points:+.2f} [{low:+.2f}, {high:+.2f}], seeds {seeds}".format(**found)
            )
        fits = [seed["calibration"][budget] for seed in seeds]
        cells += [f"{sum(fit[key] for fit in fits) / len(fits):.3f}" for key in ("temperature", "before", "after")]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", metavar="NAME=FOLDER", nargs="?")
    parser.add_argument("--table", action="store_true", help="print what was measured so far as Markdown")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--specialists", nargs="*", type=float, default=[])
    parser.add_argument("--without-equal", action="store_true", help="leave out the dense model of equal epochs")
    parser.add_argument("--max-length", type=int, default=64)
    parser.add_argument("--max-train-rows", type=int)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help="of training")
    parser.add_argument("--read-precision", choices=("fp32", "bf16"), default="fp32", help="of all that is read")
    parser.add_argument(
        "--attention-dropout",
        type=float,
        help="of every model, in place of its own 0.1; drawing it takes half of a step at 256 tokens",
    )
    parser.add_argument("--work", type=Path, default=Path("runs/figures"))
    arguments = parser.parse_args()
    if arguments.table or not arguments.data:
        print("\n".join(table_of(name, data) for name, data in record_of().items()))
        return
    name, folder = arguments.data.split("=", 1)
    options = TrainOptions(
        max_length=arguments.max_length,
        sequence_length=arguments.max_length,
        max_train_rows=arguments.max_train_rows,
        precision=arguments.precision,
    )
    comparison = Comparison(
        str(model_of(arguments.work, arguments.attention_dropout)),
        folder,
        arguments.work / name,
        options,
        ReadOptions(),
        read_precision=arguments.read_precision,
    )
    for seed in arguments.seeds:
        found = read_seed(comparison, seed, arguments.specialists, equal=not arguments.without_equal)
        data = record_of()
        conditions = {"read_in": arguments.read_precision, "options": asdict(options)}
        if arguments.attention_dropout is not None:
            conditions["attention_dropout"] = arguments.attention_dropout
        kept = data.get(name, {})
        same = {key: value for key, value in kept.items() if key != "seeds"} == json.loads(json.dumps(conditions))
        data[name] = {**conditions, "seeds": {**(kept["seeds"] if same else {}), str(seed): found}}
        results.save("figures", {"headline": headline_of(data), "data": data})


def record_of() -> dict[str, Any]:
    """Return what was measured so far by data set; seeds of one set-up are pooled, those of another one give way."""
    return dict(json.loads(RESULTS.read_text("utf-8"))["data"]) if RESULTS.is_file() else {}


def headline_of(data: dict[str, Any]) -> dict[str, Any]:
    """Return points below dense by data set and budget."""
    found = {}
    for name, record in data.items():
        readings = [Reading.from_json(r) for seed in record["seeds"].values() for r in seed["readings"]]
        found[name] = {budget: round(entry["dense"]["points"], 2) for budget, entry in below_of(readings).items()}
    return found


if __name__ == "__main__":
    main()
