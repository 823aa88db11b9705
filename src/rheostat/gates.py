"""Monotone gates: for each unit a soft value in [0, 1] that can only grow with the budget.

    g_u(b) = sigmoid(a_u + k_u * logit(b)),   k_u = softplus(s_u) + 1e-3,   g_u(1) = 1

after Budgeted Attention Allocation (arXiv 2605.05697). ``a_u = 0, k_u = 1`` gives ``g_u(b) = b``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rheostat.budget import check_budget
from rheostat.order import UnitOrder
from rheostat.subnet import KINDS, Kind, Subnet

MIN_SLOPE = 1e-3  # keeps every gate strictly increasing, so that its onset exists
# Budgets are clamped to [EPS, 1 - EPS] before the logit. A unit of BERT-large is 3e-4 of the whole, so a coarser
# clamp would make the first and last few units switch on together.
EPS = 1e-6
# A projected gate crosses 1/2 this fraction of its unit's share below the budget that keeps the unit: exactly at
# that budget the gate is then above 1/2 whatever float32 rounds to.
CROSSING_MARGIN = 0.01


def logit(budget: float) -> float:
    """Return the log-odds of a budget, clamped to [EPS, 1 - EPS] first."""
    clamped = min(max(budget, EPS), 1.0 - EPS)
    return math.log(clamped) - math.log1p(-clamped)


def _inverse_softplus(value: NDArray[np.float64]) -> NDArray[np.float64]:
    return value + np.log(-np.expm1(-value))


class Gates(nn.Module):
    """One monotone gate a unit, U in all.

    Attributes:
        offset: a, shape (U,), float32.
        raw_slope: s, shape (U,), float32.
    """

    def __init__(self, num_units: int, *, slope: float = 1.0) -> None:
        """Start every gate at ``a = 0`` and slope ``slope``."""
        super().__init__()
        start = float(_inverse_softplus(np.array([slope - MIN_SLOPE]))[0])
        self.offset = nn.Parameter(torch.zeros(num_units))
        self.raw_slope = nn.Parameter(torch.full((num_units,), start))

    def slope(self) -> Tensor:
        """Return k, shape (U,), always positive."""
        return nn.functional.softplus(self.raw_slope.float()) + MIN_SLOPE

    def forward(self, budget: float) -> Tensor:
        """Return g(budget), shape (U,), float32 under autocast too; all ones at budget 1."""
        if budget >= 1.0:
            return torch.ones_like(self.offset, dtype=torch.float32)
        with torch.autocast(device_type=self.offset.device.type, enabled=False):
            return torch.sigmoid(self.offset.float() + self.slope() * logit(budget))

    @torch.no_grad()
    def onset(self) -> NDArray[np.float64]:
        """Return ``-a / k`` in float64, shape (U,): the logit of the budget where each gate crosses 1/2."""
        offset = self.offset.double().cpu().numpy()
        slope = np.logaddexp(0.0, self.raw_slope.double().cpu().numpy()) + MIN_SLOPE
        return np.asarray(-offset / slope, dtype=np.float64)

    @torch.no_grad()
    def project(self, cumulative_shares: NDArray[np.float64], unit_shares: NDArray[np.float64]) -> None:
        """Move every offset so that the gate crosses 1/2 where its unit switches on: ``a = -k * logit(share)``.

        Then soft gates above 1/2 and the hard subnet agree, except for budgets inside the last
        ``CROSSING_MARGIN`` of a unit's own share.

        Args:
            cumulative_shares: Budget at which each unit switches on, shape (U,).
            unit_shares: Share of each unit alone, shape (U,).
        """
        crossing = np.maximum(cumulative_shares - CROSSING_MARGIN * unit_shares, EPS)
        odds = np.array([logit(float(share)) for share in crossing])
        slope = self.slope().double().cpu().numpy()
        self.offset.copy_(torch.from_numpy(-slope * odds).to(self.offset))

    @torch.no_grad()
    def rearrange(self, source: tuple[int, ...]) -> None:
        """Reorder the gates: new gate ``i`` is the old gate ``source[i]``."""
        index = torch.tensor(source, device=self.offset.device)
        self.offset.copy_(self.offset[index])
        self.raw_slope.copy_(self.raw_slope[index])


class GateLayout:
    """Where each unit's gate acts: expands U unit values to the inputs of every output projection."""

    def __init__(self, order: UnitOrder) -> None:
        """Prepare the indices for one order; a position in no unit is always kept and reads a constant 1."""
        self._head_width = order.shape.width("head")
        self._index: dict[torch.device, list[tuple[Tensor, Tensor]]] = {}
        always = len(order.units)
        sizes = order.shape.layers
        heads = [np.full(layer.num_attention_heads, always) for layer in sizes]
        neurons = [np.full(layer.intermediate_size, always) for layer in sizes]
        for i, unit in enumerate(order.units):
            target = heads if unit.kind == "head" else neurons
            target[unit.layer][unit.start : unit.stop] = i
        self._host = [
            (torch.from_numpy(np.repeat(h, self._head_width)), torch.from_numpy(n))
            for h, n in zip(heads, neurons, strict=True)
        ]

    def expand(self, values: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return for each layer the gates of the attention output (H * D,) and of the neurons (F,).

        Args:
            values: Gate of each unit, in order, shape (U,).
        """
        index = self._index.get(values.device)
        if index is None:
            index = [(h.to(values.device), n.to(values.device)) for h, n in self._host]
            self._index[values.device] = index
        padded = torch.cat([values, values.new_ones(1)])  # (U + 1,)
        return [(padded[h], padded[n]) for h, n in index]


def hard_gates(subnet: Subnet, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """Return 1 for what ``subnet`` keeps and 0 for the rest, for each layer (H * D,) and (F,); units may be cut."""
    gates = []
    for layer, sizes in enumerate(subnet.shape.layers):
        heads, neurons = np.zeros(sizes.num_attention_heads, np.float32), np.zeros(sizes.intermediate_size, np.float32)
        heads[list(subnet.heads[layer])] = 1.0
        neurons[list(subnet.neurons[layer])] = 1.0
        pair = (np.repeat(heads, subnet.shape.width("head")), neurons)
        gates.append((torch.from_numpy(pair[0]).to(device), torch.from_numpy(pair[1]).to(device)))
    return gates


def top_k_subnet(order: UnitOrder, gates: NDArray[np.float64], budget: float) -> Subnet:
    """Return the subnet of the largest gates at ``budget``, over all layers, as in the paper: **not nested**.

    What each layer must keep comes first; then units by gate, ties by order, as long as the share is at most
    ``budget``. Rankings cross where slopes differ, so a smaller budget may keep what a larger one removes.

    Args:
        order: Supplies units, costs and the required prefix.
        gates: g(budget), shape (U,); or, which ranks alike and does not saturate, their logits.
        budget: Share of the full cost.
    """
    check_budget(budget, floor=order.floor)
    if budget >= 1.0:
        return Subnet.full(order.shape)
    ranked = np.lexsort((np.arange(len(gates)), -gates))
    chosen = [*range(order.required), *(int(i) for i in ranked if i >= order.required)]
    costs = np.array([order.costs.unit(order.units[i]) for i in chosen], dtype=np.int64)
    full = order.costs.total(Subnet.full(order.shape))
    base = full - int(costs.sum())
    count = int(np.searchsorted((base + np.cumsum(costs)) / full, budget, side="right"))
    return subnet_of_units(order, chosen[:count])


def subnet_of_units(order: UnitOrder, chosen: Sequence[int]) -> Subnet:
    """Return the subnet that keeps these units (indices into the order) and all that is in no unit."""
    covered = {(unit.layer, unit.kind) for unit in order.units}
    kept: dict[tuple[int, Kind], list[int]] = {
        (layer, kind): [] if (layer, kind) in covered else list(range(order.shape.size(layer, kind)))
        for layer in range(len(order.shape.layers))
        for kind in KINDS
    }
    for i in chosen:
        unit = order.units[i]
        kept[unit.layer, unit.kind].extend(range(unit.start, unit.stop))
    layers = range(len(order.shape.layers))
    return Subnet.of(order.shape, [kept[i, "head"] for i in layers], [kept[i, "neuron"] for i in layers])
