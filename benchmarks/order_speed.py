"""Time to build the order of a BERT-large shape and the subnets of 1,000 budgets.

    python benchmarks/order_speed.py

Target: less than a second.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
import results

from rheostat.cost import CostTable
from rheostat.order import arrange, uniform_onset
from rheostat.subnet import ModelShape, cut_units

S, E, D, LAYERS = 128, 1024, 64, 24


def once(seed: int) -> float:
    """Return the seconds of one whole run on a random order."""
    shape = ModelShape.uniform(LAYERS, 16, D, 4096, E)
    costs = CostTable("macs", S, (S * (4 * E * D + 2 * S * D),) * LAYERS, (S * 2 * E,) * LAYERS, E * E)
    onset = np.random.default_rng(seed).permutation(len(cut_units(shape)))
    start = time.perf_counter()
    units = cut_units(shape)
    order = arrange(shape, costs, units, onset + uniform_onset(units)).order
    subnets = [order.subnet(float(budget)) for budget in np.linspace(order.floor, 1.0, 1000)]
    seconds = time.perf_counter() - start
    assert len(subnets) == 1000
    return seconds


def main() -> None:
    seconds = [once(seed) for seed in range(7)]
    headline = {"seconds_p50": statistics.median(seconds), "seconds_max": max(seconds), "runs": len(seconds)}
    results.save("order_speed", {"headline": headline, "shape": "24 layers, 16 heads x 64, F=4096, blocks of 32"})


if __name__ == "__main__":
    main()
