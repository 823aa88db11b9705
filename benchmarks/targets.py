"""Do promises hold? Random targets against a checkpoint: "2.3x", "7.1 ms at the 95th percentile".

    python benchmarks/targets.py --checkpoint FOLDER [--count 100] [--batch 1] [--length 128] [--runtime torch]

Each target is promised a budget (chosen by the certificate's model, verified in a fresh process), and then judged by a
measurement of its own in another fresh process; a budget a tenth larger is measured as well: where that fails, the
promise was at least 0.9 of the largest that would have held. To reach: 95 of 100 hold, and are that large. Resumable.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import results

from rheostat.certify import Conditions, Promise, Target, budget_for, certify, read_certificates
from rheostat.certify.targets import judged, share_of_target
from rheostat.errors import BudgetError
from rheostat.model import load

RESULTS = results.RESULTS / "targets.json"
LARGER = 1 / 0.9
FASTEST = 5.0  # times faster; more is out of reach for most orders


def random_target(number: int, full_ms: float) -> tuple[Target, int]:
    """Return target ``number`` and its percentile: speedups and latencies in turn."""
    draw = np.random.default_rng([7, number])
    times = float(np.exp(draw.uniform(np.log(1.1), np.log(FASTEST))))
    if number % 2 == 0:
        return Target(speedup=round(times, 2)), 50
    return Target(ms=float(f"{full_ms / times:.3g}")), int(draw.choice([50, 90, 95]))


def one(folder: Path, conditions: Conditions, target: Target, percentile: int, floor: float) -> dict[str, Any]:
    """Return what was promised and whether it holds."""
    record: dict[str, Any] = {"target": str(target), "percentile": percentile}
    try:
        promise = budget_for(folder, target, conditions=conditions, percentile=percentile)
    except BudgetError as error:
        smallest = Promise(floor, target, conditions, percentile, 0.0)
        return {**record, "refused": str(error), "smallest holds": used(judged(folder, smallest)) <= 1.0}
    found = judged(folder, promise)
    larger = promise.budget * LARGER
    room = larger < 1.0 and used(judged(folder, replace(promise, budget=larger))) <= 1.0
    return {
        **record,
        "budget": promise.budget,
        "used": used(found),
        "holds": used(found) <= 1.0,
        "a tenth more holds": room,
    }


def used(promise: Promise) -> float:
    """Return the measured time over the time that the target allows."""
    return share_of_target(promise)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runtime", default="torch")
    arguments = parser.parse_args()
    conditions = Conditions(arguments.batch, arguments.length, arguments.threads, arguments.runtime)
    key = f"{arguments.checkpoint.name}: {conditions}"
    floor = load(arguments.checkpoint).floor
    fits = [fit for found in read_certificates(arguments.checkpoint) if (fit := found.fit(conditions))]
    fit = fits[0] if fits else certify(arguments.checkpoint, conditions=(conditions,), name="targets").fits[0]
    runs = json.loads(RESULTS.read_text("utf-8"))["runs"] if RESULTS.is_file() else {}
    run = runs.setdefault(key, {"certificate": fit.to_json(), "targets": []})
    for number in range(len(run["targets"]), arguments.count):
        target, percentile = random_target(number, fit.full_ms)
        run["targets"].append(one(arguments.checkpoint, conditions, target, percentile, floor))
        tried = [entry for entry in run["targets"] if "refused" not in entry]
        run["summary"] = {
            "targets": len(run["targets"]),
            "refused": len(run["targets"]) - len(tried),
            "refused, and the smallest budget held": sum(e.get("smallest holds", False) for e in run["targets"]),
            "held": sum(entry["holds"] for entry in tried),
            "at least 0.9 of the largest": sum(not entry["a tenth more holds"] for entry in tried),
        }
        results.save("targets", {"headline": {name: found["summary"] for name, found in runs.items()}, "runs": runs})


if __name__ == "__main__":
    main()
