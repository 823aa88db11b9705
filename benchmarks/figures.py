"""The curve on whole data sets: one checkpoint for all budgets against dense models and specialists, on test rows.

    python benchmarks/figures.py ag_news=DATA/ag_news --seeds 0 1 --specialists 0.5 0.25

Everything is `rheostat compare` with the default recipe: the dense model, one trained for as many epochs in all, the
budgeted model and, with --specialists, one model a budget by the same recipe. Resumable.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import results

from rheostat.budget import DEFAULT_BUDGETS
from rheostat.compare import Answers, Comparison, Outcome, difference, lines_of, right_rows
from rheostat.data import ReadOptions
from rheostat.demo_assets import fetch_minilm
from rheostat.evaluation import score_budgets
from rheostat.model import load
from rheostat.recipe import TrainOptions

RESULTS = results.RESULTS / "figures.json"
OTHERS = ("dense", "dense-equal", "specialist")


def below(found: list[Outcome], answers: dict[int, Answers], budget: float, other: str) -> dict[str, Any] | None:
    """Return how many points the budgeted model is below another one at a budget: a seed, all, and the interval."""
    own = {o.seed: o for o in found if o.method == "sandwich" and o.budget == budget}
    wanted = budget if other == "specialist" else None
    rival = {o.seed: o for o in found if o.method == other and o.budget == wanted}
    if not rival:
        return None
    pairs = [(right_rows(rival[s], answers[s]), right_rows(own[s], answers[s])) for s in sorted(own)]
    points, low, high = difference([a for a, _ in pairs], [b for _, b in pairs], [answers[s].rows for s in sorted(own)])
    seeds = [float(a.mean() - b.mean()) * 100 for a, b in pairs]
    return {"points": points, "low": low, "high": high, "seeds": seeds}


def calibration(found: list[Outcome], answers: dict[int, Answers], out: Path) -> dict[str, Any]:
    """Return the expected calibration errors on test rows, with and without the saved temperatures, by seed."""
    table: dict[str, Any] = {}
    for seed in answers:
        info = load(out / f"seed-{seed}" / "sandwich").info
        logits = {o.budget: o.logits for o in found if o.method == "sandwich" and o.seed == seed}
        for quality in score_budgets(info, logits, answers[seed].labels, list(logits)):
            entry = table.setdefault(
                f"{quality.budget:g}", {"temperature": [], "before": [], "after": [], "macro_f1": []}
            )
            entry["temperature"].append(info.temperature_at(quality.budget))
            entry["before"].append(quality.calibration_error_raw)
            entry["after"].append(quality.calibration_error)
            entry["macro_f1"].append(quality.macro_f1)
    return table


def outcomes_of(comparison: Comparison, arguments: Any) -> tuple[list[Outcome], dict[int, Answers]]:
    """Run what is missing; return what every model answered, and the right answers by seed."""
    budgets = DEFAULT_BUDGETS[1:]
    found, answers = comparison.outcomes(("dense", "sandwich"), budgets, arguments.seeds)
    equal = () if arguments.without_equal else budgets
    for methods, points in ((("dense-equal",), equal), (("specialist",), arguments.specialists)):
        if points:
            more, _ = comparison.outcomes(methods, points, arguments.seeds)
            found += [outcome for outcome in more if outcome.method != "dense"]
    return found, answers


def right_of(found: list[Outcome], answers: dict[int, Answers]) -> dict[str, str]:
    """Return which rows each model answered correctly, by seed, model and budget, so that runs can be paired later."""
    return {
        f"{o.seed} | {o.model} | {o.budget or 1:g}": results.packed(right_rows(o, answers[o.seed])[None]) for o in found
    }


def table_of(name: str, run: dict[str, Any]) -> str:
    """Return one data set as Markdown: points below each other model, and calibration errors, on test rows."""
    head = ["budget", *(f"below {other}" for other in OTHERS), "temperature", "ECE without", "ECE with"]
    lines = [f"### {name}, {run['rows_read']:,} test rows", "", " | ".join(["", *head, ""]).strip()]
    lines.append("| " + " | ".join(["---:"] * len(head)) + " |")
    for budget, entry in run["below"].items():
        cells = [budget]
        for other in OTHERS:
            found = entry[other]
            cells.append("" if found is None else f"{found['points']:+.2f} [{found['low']:+.2f}, {found['high']:+.2f}]")
        fit = run["calibration"][budget]
        cells += [f"{sum(fit[key]) / len(fit[key]):.3f}" for key in ("temperature", "before", "after")]
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
    parser.add_argument("--work", type=Path, default=Path("runs/figures"))
    arguments = parser.parse_args()
    if arguments.table or not arguments.data:
        print("\n".join(table_of(name, run) for name, run in json.loads(RESULTS.read_text("utf-8"))["runs"].items()))
        return
    name, folder = arguments.data.split("=", 1)
    options = TrainOptions(
        max_length=arguments.max_length,
        sequence_length=arguments.max_length,
        max_train_rows=arguments.max_train_rows,
        precision=arguments.precision,
    )
    out = arguments.work / name
    comparison = Comparison(
        str(fetch_minilm()), folder, out, options, ReadOptions(), read_precision=arguments.read_precision
    )
    found, answers = outcomes_of(comparison, arguments)
    points = {
        f"{budget:g}": {other: below(found, answers, budget, other) for other in OTHERS} for budget in DEFAULT_BUDGETS
    }
    record = {
        "rows_read": len(answers[arguments.seeds[0]].labels),
        "read_in": arguments.read_precision,
        "options": asdict(options),
        "below": points,
        "calibration": calibration(found, answers, out),
        "lines": [line.to_json() for line in lines_of(found, answers)],
        "right": right_of(found, answers),
    }
    runs = json.loads(RESULTS.read_text("utf-8"))["runs"] if RESULTS.is_file() else {}
    runs[f"{name}, seeds {', '.join(map(str, arguments.seeds))}"] = record
    headline = {
        key: {budget: entry["dense"]["points"] for budget, entry in run["below"].items()} for key, run in runs.items()
    }
    results.save("figures", {"headline": headline, "runs": runs})


if __name__ == "__main__":
    main()
