"""Requested against achieved: 200 budgets, both cost models, three model sizes, orders that interleave at random.

    python benchmarks/exactness.py

Never above the budget, below it by less than the next unit, and each subnet contained in the next larger one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import results

from rheostat.cost import CostTable
from rheostat.order import UnitOrder, arrange
from rheostat.subnet import KINDS, ModelShape, cut_units

BUDGETS, LENGTH, SEEDS = 200, 128, 3


@dataclass(frozen=True)
class Size:
    """The sizes of an encoder."""

    layers: int
    heads: int
    hidden: int
    neurons: int


SIZES = {
    "BERT-Mini": Size(4, 4, 256, 1024),
    "MiniLM-L6": Size(6, 12, 384, 1536),
    "BERT-large": Size(24, 16, 1024, 4096),
}


def order_of(size: Size, cost: str, seed: int) -> UnitOrder:
    """Return a random order of all units."""
    width = size.hidden // size.heads
    shape = ModelShape.uniform(size.layers, size.heads, width, size.neurons, size.hidden)
    head, neuron = LENGTH * (4 * size.hidden * width + 2 * LENGTH * width), LENGTH * 2 * size.hidden
    macs = CostTable("macs", LENGTH, (head,) * size.layers, (neuron,) * size.layers, size.hidden**2)
    costs = CostTable.heads(shape) if cost == "heads" else macs
    units = cut_units(shape, kinds=("head",) if cost == "heads" else KINDS)
    return arrange(shape, costs, units, np.random.default_rng(seed).random(len(units))).order


def check(order: UnitOrder) -> dict[str, float]:
    """Return the largest excess, the largest shortfall, and the largest shortfall as a share of the next unit."""
    excess, shortfall, of_next = -1.0, 0.0, 0.0
    before = None
    for budget in np.linspace(order.floor, 1.0, BUDGETS):
        subnet = order.subnet(float(budget))
        share = order.costs.share(subnet)
        length = order.length(float(budget))
        excess = max(excess, share - budget)
        shortfall = max(shortfall, budget - share)
        if length < len(order.units):
            of_next = max(of_next, (budget - share) / order.unit_shares[length])
        if before is not None:
            pairs = zip(
                before.head_counts + before.neuron_counts, subnet.head_counts + subnet.neuron_counts, strict=True
            )
            assert all(small <= large for small, large in pairs)
        before = subnet
    return {"largest_excess": excess, "largest_shortfall": shortfall, "shortfall_of_next_unit": of_next}


def main() -> None:
    table = {}
    for name, size in SIZES.items():
        for cost in ("heads", "macs"):
            found = [check(order_of(size, cost, seed)) for seed in range(SEEDS)]
            table[f"{name}, {cost}"] = {key: max(one[key] for one in found) for key in found[0]} | {
                "units": len(order_of(size, cost, 0).units)
            }
    assert all(row["largest_excess"] <= 0 and row["shortfall_of_next_unit"] < 1 for row in table.values())
    results.save("exactness", {"headline": table, "budgets": BUDGETS, "orders": SEEDS, "sequence_length": LENGTH})


if __name__ == "__main__":
    main()
