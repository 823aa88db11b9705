"""A run in a process of its own: reads a request from stdin, prints the latency table of full and asked as JSON."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from rheostat.bundle import open_bundle
from rheostat.certify.conditions import Conditions
from rheostat.certify.runtimes import bundle_call, subnet_call
from rheostat.checkpoint import BUNDLE_MANIFEST
from rheostat.measure import LatencyTable, measure

ROUNDS = 9


def measure_afresh(folder: Path, budget: float, conditions: Conditions) -> LatencyTable:
    """Return an interleaved run of the full model (``full``) and a budget (``asked``)."""
    with tempfile.TemporaryDirectory() as scratch:
        if (folder / BUNDLE_MANIFEST).is_file():
            precision = "int8" if conditions.runtime.endswith("-int8") else "float32"
            bundle = open_bundle(folder, precision=precision, threads=conditions.threads, verify=False)
            calls = {name: bundle_call(bundle, b, conditions) for name, b in (("full", 1.0), ("asked", budget))}
        else:
            from rheostat.model import load

            model = load(folder)
            calls = {
                name: subnet_call(model, model.subnet(b), conditions, Path(scratch))
                for name, b in (("full", 1.0), ("asked", budget))
            }
        return measure(calls, baseline="full", conditions=vars(conditions), rounds=ROUNDS, threads=conditions.threads)


if __name__ == "__main__":
    request = json.load(sys.stdin)
    table = measure_afresh(Path(request["folder"]), request["budget"], Conditions(**request["conditions"]))
    sys.stdout.write(json.dumps(table.to_json()) + "\n")
