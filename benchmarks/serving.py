"""A server under rising load, and the same server at fixed full budget beside it.

    python benchmarks/serving.py --bundle FOLDER --data DATA [--slo-ms 50] [--seconds 30]

Export the bundle of an AG News checkpoint first, and certify it (or times are measured at each start). Everything is in
one run on one machine: capacity of the fixed server, then both servers in turns at 0.5 to 6 times that, then the end of
a rush, memory after 2,000 and 20,000 requests of all lengths, and what the server adds to a bare session at batch 1.
Results: results/serving.json and results/serving.md.

Targets at an SLO of 50 ms, ours: 99 % answered within it at 0.5, 1 and 2 times the fixed capacity and 98 % at 3, for
0.0, 0.3, 1.0 and 2.0 points of accuracy; at 6 times refusals within 50 ms, accepted requests in the SLO, and full
budget again within 5 seconds of the rush's end; memory at most 1.2 x; less than 1 ms added at p50.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import results

from rheostat.bundle import open_bundle
from rheostat.data import ReadOptions
from rheostat.serve.capacity import find_capacity, offer_load, read_rows_file
from rheostat.serve.load import LoadReport, Rows, Seen

LOADS = (0.5, 1.0, 2.0, 3.0, 6.0)
WARM_UP_S = 3.0


@dataclass
class Server:
    """A running server."""

    url: str
    process: subprocess.Popen[str]
    opened: dict[str, Any]

    def status(self) -> dict[str, Any]:
        """Return its live view."""
        with urllib.request.urlopen(self.url + "/status", timeout=30) as response:
            return json.load(response)

    def memory_bytes(self) -> int:
        """Return the proportional memory of the server and its workers."""
        total = 0
        for pid in {self.process.pid, *self.status()["workers"]}:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text("utf-8")
            total += int(re.search(r"^Pss: +(\d+) kB", rollup, re.MULTILINE)[1]) * 1024  # type: ignore[index]
        return total


@contextmanager
def serving(bundle: Path, *options: str) -> Iterator[Server]:
    """Run ``rheostat serve`` while the block runs."""
    command = [sys.executable, "-m", "rheostat", "serve", str(bundle), "--port", "0", "--log-level", "info", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    opened: dict[str, Any] = {}
    for line in process.stderr:
        event = json.loads(line) if line.startswith("{") else {"event": line}
        if event["event"] == "opened":
            opened = event
        if event["event"] == "ready":
            break
    else:
        raise SystemExit(f"the server did not start: {opened or line}")
    drain = threading.Thread(target=lambda: [None for _ in process.stderr], daemon=True)  # type: ignore[union-attr]
    drain.start()
    try:
        yield Server(event["url"], process, opened)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def options_of(args: argparse.Namespace, *more: str) -> list[str]:
    """Return the options that both servers share."""
    shared = ["--slo-ms", str(args.slo_ms), "--worker-kind", args.worker_kind, "--precision", args.precision]
    return [*shared, *(["--workers", str(args.workers)] if args.workers else []), *more]


def full_labels(bundle: Path, rows: Rows, precision: str) -> list[str]:
    """Return what the full model answers to every row, alone."""
    opened = open_bundle(bundle, precision=precision, budgets=(1.0,))
    return [str(answer.label) for answer in opened.predict(list(rows.texts), budget=1.0)]


def drop_points(seen: list[Seen], rows: Rows, full: list[str]) -> float | None:
    """Return the points of accuracy that the answers are below the full model's on the very same requests."""
    answers = [one for one in seen if one.code == 200]
    if not answers:
        return None
    ours = np.mean([one.label == rows.labels[one.row] for one in answers])
    theirs = np.mean([full[one.row] == rows.labels[one.row] for one in answers])
    return float(100 * (theirs - ours))


def recovery_seconds(server: Server, rows: Rows, capacity: float, args: argparse.Namespace) -> dict[str, Any]:
    """Offer half the capacity, six times it, and half again; say when full budget was back for good."""
    calm, rush = args.seconds / 3, args.seconds / 3
    levels: list[tuple[float, float]] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            levels.append((time.perf_counter(), server.status()["level"]))
            time.sleep(0.1)

    watcher = threading.Thread(target=watch)
    asked = {"slo_ms": args.slo_ms, "seed": 9}
    offer_load(server.url, rows, rate=0.5 * capacity, seconds=calm, **asked)
    watcher.start()
    report, _ = offer_load(server.url, rows, rate=6 * capacity, seconds=rush, **asked)
    end = time.perf_counter()
    offer_load(server.url, rows, rate=0.5 * capacity, seconds=max(calm, 8.0), **asked)
    stop.set()
    watcher.join()
    full = max(server.opened["budgets"])
    below = [at for at, level in levels if level < full]
    return {"seconds": max(max(below, default=end) - end, 0.0), "rush": report.to_json()}


def memory_growth(server: Server, args: argparse.Namespace, capacity: float) -> dict[str, Any]:
    """Return the memory after a tenth of the requests and after all, lengths 1 to the longest input."""
    rng = np.random.default_rng(5)
    texts = [" ".join(["oil"] * int(n)) for n in rng.integers(1, 511, 512)]
    few, many = args.memory_requests // 10, args.memory_requests
    rate, found = max(capacity / 2, 1.0), {}
    wishes = {"deadline_ms": 60_000}
    offer_load(server.url, Rows(texts, []), rate=rate, seconds=few / rate, slo_ms=args.slo_ms, wishes=wishes)
    found["few"] = server.memory_bytes()
    rest = (many - few) / rate
    offer_load(server.url, Rows(texts, []), rate=rate, seconds=rest, slo_ms=args.slo_ms, wishes=wishes, seed=1)
    found["many"] = server.memory_bytes()
    return {**found, "requests": [few, many], "ratio": found["many"] / found["few"]}


def added_ms(server: Server, bundle: Path, rows: Rows, precision: str, count: int) -> dict[str, float]:
    """Return what the server adds at batch 1 and idle: its own latency over the bare session's, in turns."""
    opened = open_bundle(bundle, precision=precision, budgets=(1.0,))
    bare, served, outside = [], [], []
    for i in range(count):
        text = rows.texts[i % len(rows.texts)]
        encodings = opened._encoder.encode([text])  # type: ignore[union-attr]
        arrays = opened._encoder.pad(encodings)  # type: ignore[union-attr]
        start = time.perf_counter()
        opened.run(arrays, budget=1.0)
        bare.append(1000 * (time.perf_counter() - start))
        body = json.dumps({"texts": [text], "budget": 1.0, "exact": True, "deadline_ms": 10_000}).encode()
        start = time.perf_counter()
        request = urllib.request.Request(server.url + "/predict", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as response:
            served.append(json.load(response)["latency_ms"])
        outside.append(1000 * (time.perf_counter() - start))
    medians = {name: statistics.median(v) for name, v in (("bare", bare), ("served", served), ("client", outside))}
    return {**medians, "added": medians["served"] - medians["bare"], "requests": count}


def table(content: dict[str, Any]) -> str:
    """Return the result as Markdown."""
    lines = [
        f"Capacity of the server at fixed full budget: {content['capacity']:.0f} requests/s (p99 within "
        f"{content['slo_ms']:g} ms).",
        "",
        "| load, x that | server | answered in SLO | refused | p50, p99 | accuracy below full | mean budget |",
        "| ---: | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for line in content["loads"]:
        report, drop = line["report"], line["drop_points"]
        ms = report["latency_ms"] or {"p50": float("nan"), "p99": float("nan")}
        lines.append(
            f"| {line['load']:g} | {line['server']} | {100 * report['in_slo']:.2f} % | "
            f"{100 * report['refused'] / max(report['sent'], 1):.1f} % | {ms['p50']:.1f}, {ms['p99']:.1f} ms | "
            f"{'' if drop is None else f'{drop:.2f}'} | {report['mean_budget'] or float('nan'):.3f} |"
        )
    shares = [line["report"]["generator_share"] for line in content["loads"]]
    lines += [
        "",
        f"The generator took {100 * min(shares):.0f} to {100 * max(shares):.0f} % of all processors. Full budget was "
        f"back {content['recovery']['seconds']:.1f} s after a rush of 6 x; memory after "
        f"{content['memory']['requests'][1]:,} requests was {content['memory']['ratio']:.2f} x that after "
        f"{content['memory']['requests'][0]:,}; the server adds {content['added_ms']['added']:.2f} ms.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--slo-ms", type=float, default=50.0)
    parser.add_argument("--min-budget", default=None)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--first-rate", type=float, default=20.0)
    parser.add_argument("--loads", default=",".join(f"{load:g}" for load in LOADS))
    parser.add_argument("--memory-requests", type=int, default=20_000)
    parser.add_argument("--added-requests", type=int, default=300)
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--worker-kind", default="process")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--name", default="serving")
    args = parser.parse_args()
    rows = read_rows_file(args.data, ReadOptions(task="single-label"))
    full = full_labels(args.bundle, rows, args.precision)
    ours = options_of(args, *(["--min-budget", args.min_budget] if args.min_budget else []))
    fixed = options_of(args, "--min-budget", "1.0")
    asked = {"seconds": args.seconds, "slo_ms": args.slo_ms}
    content: dict[str, Any] = {"slo_ms": args.slo_ms, "seconds": args.seconds, "rows": len(rows.texts)}
    with serving(args.bundle, *fixed) as server:
        offer_load(server.url, rows, rate=args.first_rate, seconds=WARM_UP_S, slo_ms=args.slo_ms)

        def offer(rate: float) -> LoadReport:
            return offer_load(server.url, rows, rate=rate, **asked)[0]

        found = find_capacity(offer, args.first_rate)
        content |= {"capacity": found.rate, "capacity_tried": [report.to_json() for report in found.tried]}
        content["added_ms"] = added_ms(server, args.bundle, rows, args.precision, args.added_requests)
    content["loads"] = []
    for load in map(float, args.loads.split(",")):
        for name, options in (("fixed", fixed), ("ours", ours)):  # in turns, so that a slow minute slows both
            with serving(args.bundle, *options) as server:
                offer_load(server.url, rows, rate=max(found.rate / 2, 1), seconds=WARM_UP_S, slo_ms=args.slo_ms, seed=3)
                report, seen = offer_load(server.url, rows, rate=max(load * found.rate, 1), **asked, seed=1)
                drop = drop_points(seen, rows, full)
                content["loads"].append({"load": load, "server": name, "report": report.to_json(), "drop_points": drop})
                content["server"] = server.opened
    with serving(args.bundle, *ours) as server:
        content["recovery"] = recovery_seconds(server, rows, max(found.rate, 1), args)
    with serving(args.bundle, *ours, "--max-queue", "4096") as server:
        content["memory"] = memory_growth(server, args, found.rate)
    content["headline"] = {
        "capacity": content["capacity"],
        "in_slo": {f"{x['load']:g} {x['server']}": round(x["report"]["in_slo"], 4) for x in content["loads"]},
        "drop_points": {f"{x['load']:g}": x["drop_points"] for x in content["loads"] if x["server"] == "ours"},
        "recovery_s": content["recovery"]["seconds"],
        "memory_ratio": content["memory"]["ratio"],
        "added_ms": content["added_ms"]["added"],
    }
    path = results.save(args.name, content)
    path.with_suffix(".md").write_text(table(content), encoding="utf-8")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
