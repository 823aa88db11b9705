"""What a subnet costs in closed form: heads, multiply-accumulates (MACs), parameters, time. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rheostat.errors import OptionError
from rheostat.subnet import Kind, ModelShape, Subnet, Unit

COST_MODELS: tuple[str, ...] = ("macs", "heads")
LATENCY = "latency"  # a table that a certificate gives: see rheostat.certify


@dataclass(frozen=True)
class CostTable:
    """Integer cost of one head and one neuron of each layer, and of what can't be removed.

    ``share(subnet) = (fixed + sum of unit costs) / cost(full)``; a share is exact only at ``sequence_length``. Time is
    no sum of equal parts: the first head or neuron of a layer may cost more than the next, and neurons may count in
    whole steps. So a unit costs what it adds to those stored before it, and the sum is that of a prefix in each layer.

    Attributes:
        name: The cost model: ``macs`` per sequence of S tokens, ``heads``, ``latency`` (nanoseconds), or ``params``.
        sequence_length: S in tokens, or None where the cost does not depend on it.
        per_head: Cost of one head, for every layer.
        per_neuron: Cost of one neuron, for every layer.
        fixed: Cost of everything else, for example pooler and classifier.
        first_head: What the first head of each layer costs besides; empty for nothing.
        first_neuron: The same for neurons.
        neuron_step: Neurons cost in whole steps of this many.
        conditions: What else the cost depends on, by name.
    """

    name: str
    sequence_length: int | None
    per_head: tuple[int, ...]
    per_neuron: tuple[int, ...]
    fixed: int
    first_head: tuple[int, ...] = ()
    first_neuron: tuple[int, ...] = ()
    neuron_step: int = 1
    conditions: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def heads(cls, shape: ModelShape) -> CostTable:
        """Return the paper's cost model: every head costs 1, nothing else counts."""
        return cls("heads", None, (1,) * len(shape.layers), (0,) * len(shape.layers), 0)

    def kept(self, layer: int, kind: Kind, count: int) -> int:
        """Return the cost of the first ``count`` heads or neurons of a layer."""
        if not count:
            return 0
        first = self.first_head if kind == "head" else self.first_neuron
        each = self.per_head if kind == "head" else self.per_neuron
        counted = count if kind == "head" else -(-count // self.neuron_step) * self.neuron_step
        return (first[layer] if first else 0) + each[layer] * counted

    def unit(self, unit: Unit) -> int:
        """Return what one unit adds to those stored before it in its layer."""
        return self.kept(unit.layer, unit.kind, unit.stop) - self.kept(unit.layer, unit.kind, unit.start)

    def total(self, subnet: Subnet) -> int:
        """Return the cost of ``subnet``, the fixed part included."""
        heads = sum(self.kept(layer, "head", count) for layer, count in enumerate(subnet.head_counts))
        neurons = sum(self.kept(layer, "neuron", count) for layer, count in enumerate(subnet.neuron_counts))
        return self.fixed + heads + neurons

    def share(self, subnet: Subnet) -> float:
        """Return the cost of ``subnet`` over that of the full model, in [0, 1]."""
        return self.total(subnet) / self.total(Subnet.full(subnet.shape))

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        record: dict[str, Any] = {
            "name": self.name,
            "sequence_length": self.sequence_length,
            "per_head": list(self.per_head),
            "per_neuron": list(self.per_neuron),
            "fixed": self.fixed,
        }
        more = {
            "first_head": list(self.first_head),
            "first_neuron": list(self.first_neuron),
            "neuron_step": self.neuron_step if self.neuron_step > 1 else None,
            "conditions": dict(self.conditions),
        }
        return record | {name: value for name, value in more.items() if value}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> CostTable:
        """Return the table that ``to_json`` wrote."""
        length = record["sequence_length"]
        return cls(
            str(record["name"]),
            None if length is None else int(length),
            tuple(map(int, record["per_head"])),
            tuple(map(int, record["per_neuron"])),
            int(record["fixed"]),
            tuple(map(int, record.get("first_head", ()))),
            tuple(map(int, record.get("first_neuron", ()))),
            int(record.get("neuron_step", 1)),
            tuple(record.get("conditions", {}).items()),
        )


def check_cost_model(name: str) -> str:
    """Return ``name`` if it is a cost model that needs nothing but the model.

    Raises:
        OptionError: it is not one of ``COST_MODELS``.
    """
    if name == LATENCY:
        raise OptionError(
            "cost model latency must come with a certificate of this machine; got none. Run rheostat certify on a "
            "checkpoint of this size, and pass --certificate (in Python the table itself)"
        )
    if name not in COST_MODELS:
        raise OptionError(f"cost model must be one of {', '.join(COST_MODELS)}; got {name!r}. The default is macs")
    return name
