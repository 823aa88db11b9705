"""One frozen order of all units, and the nested, exact selection of a subnet from it. No torch here."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rheostat.budget import check_budget
from rheostat.cost import CostTable
from rheostat.errors import CheckpointError, OptionError
from rheostat.subnet import KINDS, Kind, ModelShape, StoredOrder, Subnet, Unit

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class UnitOrder:
    """All units, most important first; the subnet of budget b is the longest prefix with share <= b.

    So subnets are exact (never above b, and below it by less than the next unit), nested, and the same on
    every machine. Inside a layer the order is that of the stored positions, hence a subnet is two integers a layer.

    Attributes:
        shape: Sizes of the full model.
        costs: The cost model whose share a budget means.
        units: Every unit once; heads or neurons that are in no unit are always kept.
        required: How many leading units every subnet keeps (the minimum of each layer).
    """

    shape: ModelShape
    costs: CostTable
    units: tuple[Unit, ...]
    required: int = 0

    def __post_init__(self) -> None:
        """Refuse an order that is not a permutation of units stored in this order."""
        if not 0 <= self.required <= len(self.units):
            raise CheckpointError(f"required must be in [0, {len(self.units)}], the units; got {self.required!r}")
        expected: dict[tuple[int, Kind], int] = defaultdict(int)
        for unit in self.units:
            if unit.kind not in KINDS or not 0 <= unit.layer < len(self.shape.layers):
                raise CheckpointError(
                    f"units must be of {' or '.join(KINDS)} in one of {len(self.shape.layers)} layers; got {unit!r}"
                )
            if unit.start != expected[unit.layer, unit.kind] or unit.size < 1:
                raise CheckpointError(
                    f"units of layer {unit.layer} must follow the stored order; got {unit!r} where position "
                    f"{expected[unit.layer, unit.kind]} is next. Build the order with rheostat.order.arrange"
                )
            expected[unit.layer, unit.kind] = unit.stop
        for (layer, kind), stop in expected.items():
            if stop != self.shape.size(layer, kind):
                raise CheckpointError(
                    f"{kind} units of layer {layer} must cover all {self.shape.size(layer, kind)}; got {stop}. "
                    "The manifest does not belong to this model; save the checkpoint again"
                )

    @cached_property
    def unit_shares(self) -> FloatArray:
        """Share of the full cost that each unit takes, in order; shape (U,)."""
        return np.array([self.costs.unit(unit) for unit in self.units], dtype=np.float64) / self._full_cost

    @cached_property
    def cumulative_shares(self) -> FloatArray:
        """Share of the subnet that ends with each unit, in order: the budget at which it switches on; shape (U,)."""
        # Integers are summed exactly; one correctly rounded division makes 29 of 100 equal the literal 0.29.
        costs = np.array([self.costs.unit(unit) for unit in self.units], dtype=np.int64)
        return np.asarray((self._base_cost + np.cumsum(costs)) / self._full_cost, dtype=np.float64)

    @cached_property
    def _full_cost(self) -> int:
        return self.costs.total(Subnet.full(self.shape))

    @cached_property
    def _base_cost(self) -> int:
        return self._full_cost - sum(self.costs.unit(unit) for unit in self.units)

    @cached_property
    def _thresholds(self) -> list[float]:
        shares: list[float] = self.cumulative_shares.tolist()  # floats bisect faster than an array
        return shares

    @cached_property
    def _groups(self) -> tuple[NDArray[np.int64], FloatArray]:
        """For each unit its (layer, kind) as one number, and its size."""
        ids = np.array([2 * unit.layer + KINDS.index(unit.kind) for unit in self.units], dtype=np.int64)
        return ids, np.array([unit.size for unit in self.units], dtype=np.float64)

    @property
    def floor(self) -> float:
        """Smallest budget that can be reached: the share of what can't be removed."""
        return self._thresholds[self.required - 1] if self.required else self._base_cost / self._full_cost

    def length(self, budget: float) -> int:
        """Return how many leading units budget ``budget`` keeps.

        Raises:
            BudgetError: see :func:`rheostat.budget.check_budget`; below :attr:`floor` included.
        """
        return bisect_right(self._thresholds, check_budget(budget, floor=self.floor))

    def subnet(self, budget: float) -> Subnet:
        """Return the subnet of ``budget``: share <= budget, and below it by less than the next unit."""
        return self.subnet_of_length(self.length(budget))

    def subnet_of_length(self, length: int) -> Subnet:
        """Return the subnet that keeps the first ``length`` units."""
        ids, sizes = self._groups
        counts = np.bincount(ids[:length], weights=sizes[:length], minlength=2 * len(self.shape.layers)).astype(int)
        covered = self._covered
        kept: list[list[range]] = [
            [
                range(int(counts[2 * layer + k]) if (layer, kind) in covered else self.shape.size(layer, kind))
                for layer in range(len(self.shape.layers))
            ]
            for k, kind in enumerate(KINDS)
        ]
        return Subnet(self.shape, tuple(kept[0]), tuple(kept[1]))

    @cached_property
    def _covered(self) -> frozenset[tuple[int, Kind]]:
        return frozenset((unit.layer, unit.kind) for unit in self.units)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready form; units as [layer, kind, size] rows."""
        return {
            "shape": self.shape.to_json(),
            "costs": self.costs.to_json(),
            "required": self.required,
            "units": [[unit.layer, unit.kind, unit.size] for unit in self.units],
        }

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> UnitOrder:
        """Return the order that ``to_json`` wrote."""
        position: dict[tuple[int, str], int] = defaultdict(int)
        units = []
        for layer, kind, size in record["units"]:
            start = position[layer, kind]
            position[layer, kind] = start + size
            units.append(Unit(layer, kind, start, start + size))
        shape, costs = ModelShape.from_json(record["shape"]), CostTable.from_json(record["costs"])
        return cls(shape, costs, tuple(units), int(record["required"]))


@dataclass(frozen=True)
class Arrangement:
    """An order of units, and how to move heads and neurons inside their layers so that it is the stored one.

    Attributes:
        order: The order, in the new positions.
        positions: For each new position the old one that fills it.
        source: For each unit of ``order`` its index among the units that were arranged; shape (U,).
    """

    order: UnitOrder
    positions: StoredOrder
    source: tuple[int, ...]


@dataclass(frozen=True)
class Minimum:
    """What every layer keeps at any budget."""

    heads: int = 0
    neurons: int = 0


def default_minimum(cost_model: str) -> Minimum:
    """Return the usual minimum: one head a layer for ``heads``, as in the paper; nothing for ``macs``."""
    return Minimum(heads=1 if cost_model == "heads" else 0)


def arrange(
    shape: ModelShape,
    costs: CostTable,
    units: Sequence[Unit],
    onset: Sequence[float] | FloatArray,
    *,
    importance: Sequence[float] | FloatArray | None = None,
    minimum: Minimum | None = None,
) -> Arrangement:
    """Order units by ``onset`` (small first), ties by importance (large first) and then index.

    What each layer must keep comes first. The smaller last block of a layer stays last in it, so that kept
    widths are multiples of the block.

    Args:
        shape: Sizes of the full model.
        costs: The cost model of the order.
        units: Units in present positions, shape (U,).
        onset: Any number that ranks units, smaller = earlier, shape (U,).
        importance: Breaks ties, larger = earlier, shape (U,).
        minimum: What each layer keeps; by default that of the cost model.

    Raises:
        OptionError: onsets that are not U finite numbers, or a minimum larger than a layer.
    """
    minimum = minimum or default_minimum(costs.name)
    onset = _finite(onset, len(units), "onset")
    importance = _finite(np.zeros(len(units)) if importance is None else importance, len(units), "importance")
    placed: list[
        tuple[bool, float, float, int, Unit, int]
    ] = []  # (not required, onset, -importance, rank, unit, source)
    moved = StoredOrder.identity(shape)
    new_positions = {"head": [list(ids) for ids in moved.heads], "neuron": [list(ids) for ids in moved.neurons]}
    for (layer, kind), members in _groups_of(units).items():
        least = _checked_minimum(minimum, shape, layer, kind)
        largest = max(units[i].size for i in members)
        members.sort(key=lambda i: (units[i].size < largest, onset[i], -importance[i], i))
        start, key = 0, (-np.inf, -np.inf)
        for i in members:
            key = max(key, (onset[i], -importance[i]))  # the smaller last block comes no sooner than those before it
            unit = Unit(layer, kind, start, start + units[i].size)
            new_positions[kind][layer][unit.start : unit.stop] = range(units[i].start, units[i].stop)
            placed.append((start >= least, *key, len(placed), unit, i))
            start = unit.stop
    placed.sort(key=lambda entry: entry[:4])
    order = UnitOrder(shape, costs, tuple(entry[4] for entry in placed), sum(not entry[0] for entry in placed))
    positions = StoredOrder(*(tuple(tuple(ids) for ids in new_positions[kind]) for kind in KINDS))
    return Arrangement(order, positions, tuple(entry[5] for entry in placed))


def uniform_onset(units: Sequence[Unit], importance: Sequence[float] | FloatArray | None = None) -> FloatArray:
    """Return onsets that keep the same share of heads and neurons in every layer, the most important first.

    Shape (U,), values in (0, 1).
    """
    importance = _finite(np.zeros(len(units)) if importance is None else importance, len(units), "importance")
    onset = np.zeros(len(units))
    for members in _groups_of(units).values():
        members.sort(key=lambda i: (-importance[i], i))
        onset[members] = (np.arange(len(members)) + 0.5) / len(members)
    return onset


HEAD_WEIGHT = 1.6  # 1 and 2.5 lose on AG News or 20 Newsgroups (docs/curve.md)


def balanced_onset(
    units: Sequence[Unit],
    importance: Sequence[float] | FloatArray,
    costs: CostTable,
    head_weight: float = HEAD_WEIGHT,
) -> FloatArray:
    """Return onsets by :func:`balanced_value`, the largest first; that of heads is multiplied by ``head_weight``.

    Shape (U,), the rank of each unit in [0, 1).
    """
    value = balanced_value(units, importance, costs)
    value[[unit.kind == "head" for unit in units]] *= head_weight
    return ranked_onset(value)


def balanced_value(units: Sequence[Unit], importance: Sequence[float] | FloatArray, costs: CostTable) -> FloatArray:
    """Return importance over cost, heads and neurons each divided by their own kind's mean; shape (U,).

    Raw scores of heads and neurons are not comparable: ranked together they starve the heads.
    """
    importance = _finite(importance, len(units), "importance")
    value = importance / np.maximum(_mean_costs(units, costs), 1.0)
    kinds = np.array([unit.kind for unit in units])
    for kind in KINDS:
        chosen = kinds == kind
        mean = value[chosen].mean() if chosen.any() else 0.0
        if mean > 0:
            value[chosen] /= mean
    return np.asarray(value)


def ranked_onset(value: FloatArray) -> FloatArray:
    """Return the rank of each unit by value, the largest first, as onsets in [0, 1); shape (U,)."""
    onset = np.empty(len(value))
    onset[np.lexsort((np.arange(len(value)), -value))] = np.arange(len(value)) / len(value)
    return onset


def _mean_costs(units: Sequence[Unit], costs: CostTable) -> FloatArray:
    """Return each unit's part of what its layer and kind cost whole, (U,): a first unit may cost more than the next."""
    found = np.zeros(len(units))
    for (layer, kind), members in _groups_of(units).items():
        sizes = np.array([units[i].size for i in members], dtype=np.float64)
        found[members] = costs.kept(layer, kind, int(sizes.sum())) * sizes / sizes.sum()
    return found


def _groups_of(units: Sequence[Unit]) -> dict[tuple[int, Kind], list[int]]:
    """Return the unit indices of each (layer, kind)."""
    groups: dict[tuple[int, Kind], list[int]] = defaultdict(list)
    for i, unit in enumerate(units):
        groups[unit.layer, unit.kind].append(i)
    return groups


def _finite(values: Sequence[float] | FloatArray, count: int, what: str) -> FloatArray:
    array = np.asarray(values, dtype=np.float64)
    if array.shape != (count,) or not np.isfinite(array).all():
        raise OptionError(
            f"{what} must be {count} finite numbers, one a unit; got shape {array.shape}. Check the scores"
        )
    return array


def _checked_minimum(minimum: Minimum, shape: ModelShape, layer: int, kind: Kind) -> int:
    least = minimum.heads if kind == "head" else minimum.neurons
    if not 0 <= least <= shape.size(layer, kind):
        raise OptionError(
            f"min_{kind}s_per_layer must be in [0, {shape.size(layer, kind)}] in layer {layer}; got {least!r}. "
            "Choose a smaller minimum"
        )
    return least
