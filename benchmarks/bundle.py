"""Speed, memory and size of a bundle against its own dense float32 graph in ONNX Runtime.

    python benchmarks/bundle.py --bundle FOLDER [--rounds 15]

Export it with budgets 1.0,0.75,0.5,0.35,0.25,0.2,0.15,0.12 and --int8; shapes are dynamic.
Targets, one thread, 128 tokens, batch 1 and 8:
0.5 at least 1.9x and 0.25 at least 3.5x in float32, 3.0x and 5.0x in int8; eight budgets opened to share their weights
take at most 1.2 x the proportional memory of one; five open within a second; a call's budget costs less than 20 us.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import results

from rheostat.bundle import Bundle, open_bundle
from rheostat.measure import measure

LENGTH = 128
TIMED = (0.5, 0.25)
FIVE = (1.0, 0.75, 0.5, 0.35, 0.25)
EIGHT = (*FIVE, 0.2, 0.15, 0.12)

# Opens budgets in a process of its own, runs each once, and prints its proportional memory in bytes.
MEMORY = """
import sys, json, re
import numpy as np
from rheostat.bundle import open_bundle
folder, memory, budgets = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
bundle = open_bundle(folder, memory=memory, budgets=budgets, verify=False)
for budget in budgets:
    bundle.run({"input_ids": np.ones((1, 128), dtype=np.int64)}, budget=budget)
text = open("/proc/self/smaps_rollup").read()
print(int(re.search(r"^Pss: +(\\d+) kB", text, re.M).group(1)) * 1024)
"""


def inputs_of(batch: int) -> dict[str, np.ndarray]:
    """Return token ids (B, 128) without padding."""
    ids = np.random.default_rng(0).integers(1000, 20000, (batch, LENGTH))
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}


def speed(opened: dict[str, Bundle], batch: int, rounds: int) -> dict[str, Any]:
    """Return speedups against the dense float32 graph, all in one interleaved run."""
    inputs = inputs_of(batch)
    variants = {"dense": lambda: opened["fast"].run(inputs)}
    for name, bundle in opened.items():
        budgets = (1.0, *TIMED) if name != "fast" else TIMED
        for budget in budgets:
            variants[f"{name} {budget:g}"] = lambda bundle=bundle, budget=budget: bundle.run(inputs, budget=budget)
    conditions = {"engine": "ONNX Runtime", "batch": batch, "length": LENGTH}
    table = measure(variants, baseline="dense", conditions=conditions, rounds=rounds, threads=1)
    points = {
        name: [table[name].speedup, table[name].speedup_low, table[name].speedup_high, table[name].latency_ms_p50]
        for name in variants
    }
    return {"points": points, "noise": [table.noise_low, table.noise_high]}


def opening_seconds(folder: Path, memory: str) -> float:
    """Return the median time to open five budgets, hashes checked."""
    found = []
    for _ in range(5):
        start = time.perf_counter()
        open_bundle(folder, memory=memory, budgets=FIVE)
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def choosing_us(bundle: Bundle) -> float:
    """Return what finding the session of a changing budget takes, in microseconds."""
    found = []
    for i in range(5000):
        start = time.perf_counter()
        bundle.session(TIMED[i % 2])
        found.append((time.perf_counter() - start) * 1e6)
    return statistics.median(found)


def switching_us(bundle: Bundle, rounds: int) -> float:
    """Return what a call in a changing budget takes over the mean of calls in one, in microseconds."""
    inputs, turn = inputs_of(1), iter(range(10**9))
    table = measure(
        {
            **{f"{b:g}": partial(bundle.run, inputs, budget=b) for b in TIMED},
            "changing": lambda: bundle.run(inputs, budget=TIMED[next(turn) % 2]),
        },
        baseline=f"{TIMED[0]:g}",
        conditions={"batch": 1, "length": LENGTH},
        rounds=rounds,
        threads=1,
    )
    one = statistics.mean(table[f"{b:g}"].latency_ms_p50 for b in TIMED)
    return 1e3 * (table["changing"].latency_ms_p50 - one)


def memory_bytes(folder: Path, memory: str, budgets: tuple[float, ...]) -> int:
    """Return the proportional memory of a process that has opened and run budgets."""
    command = [sys.executable, "-c", MEMORY, str(folder), memory, json.dumps(budgets)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def float32_bytes(folder: Path) -> int:
    """Return the bytes of the float32 weights and graphs of a bundle."""
    files = [path for path in folder.iterdir() if path.suffix in (".bin", ".onnx") and "int8" not in path.name]
    return sum(path.stat().st_size for path in files)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--dense", type=Path, help="a bundle of budget 1.0 alone, to compare sizes with")
    arguments = parser.parse_args()
    folder = arguments.bundle
    memory = {  # first: what this process maps would be counted half in the others
        f"{mode} {len(budgets)}": memory_bytes(folder, mode, budgets)
        for mode in ("shared", "fast")
        for budgets in ((1.0,), EIGHT)
    }
    opened = {"fast": open_bundle(folder), "shared": open_bundle(folder, memory="shared")}
    if "int8" in opened["fast"].info.points[0].graphs:
        opened["int8"] = open_bundle(folder, precision="int8")
    dense, float32 = (float32_bytes(path) if path else None for path in (arguments.dense, folder))
    headline = {
        "speed": {f"batch {batch}": speed(opened, batch, arguments.rounds) for batch in (1, 8)},
        "opening_five_seconds": {mode: opening_seconds(folder, mode) for mode in ("fast", "shared")},
        "choosing_us": choosing_us(opened["fast"]),
        "switching_us": switching_us(opened["fast"], arguments.rounds),
        "pss_bytes": memory,
        "pss_shared_eight_over_one": memory["shared 8"] / memory["shared 1"],
        "disk_bytes": {"float32": float32, "dense": dense, "ratio": float32 / dense if dense and float32 else None},
    }
    points = opened["fast"].info.points
    quality = {
        f"{p.budget:g}": {name: (graph.quality or {}).get("accuracy") for name, graph in p.graphs.items()}
        for p in points
    }
    method = {name: graph.method for name, graph in points[0].graphs.items()}
    results.save("bundle", {"headline": headline, "quality": quality, "method": method, "threads": 1})


if __name__ == "__main__":
    main()
