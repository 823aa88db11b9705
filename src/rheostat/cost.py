"""What a subnet costs in closed form: heads, multiply-accumulates (MACs), parameters. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rheostat.errors import OptionError
from rheostat.subnet import ModelShape, Subnet, Unit

COST_MODELS: tuple[str, ...] = ("macs", "heads")


@dataclass(frozen=True)
class CostTable:
    """Integer cost of one head and one neuron of each layer, and of what can't be removed.

    ``share(subnet) = (fixed + sum of unit costs) / cost(full)``; a share is exact only at ``sequence_length``.

    Attributes:
        name: The cost model: ``macs`` per sequence of S tokens, ``heads``, or ``params``.
        sequence_length: S in tokens, or None where the cost does not depend on it.
        per_head: Cost of one head, for every layer.
        per_neuron: Cost of one neuron, for every layer.
        fixed: Cost of everything else, for example pooler and classifier.
    """

    name: str
    sequence_length: int | None
    per_head: tuple[int, ...]
    per_neuron: tuple[int, ...]
    fixed: int

    @classmethod
    def heads(cls, shape: ModelShape) -> CostTable:
        """Return the paper's cost model: every head costs 1, nothing else counts."""
        return cls("heads", None, (1,) * len(shape.layers), (0,) * len(shape.layers), 0)

    def unit(self, unit: Unit) -> int:
        """Return the cost of one unit."""
        each = self.per_head if unit.kind == "head" else self.per_neuron
        return each[unit.layer] * unit.size

    def total(self, subnet: Subnet) -> int:
        """Return the cost of ``subnet``, the fixed part included."""
        heads = sum(cost * count for cost, count in zip(self.per_head, subnet.head_counts, strict=True))
        neurons = sum(cost * count for cost, count in zip(self.per_neuron, subnet.neuron_counts, strict=True))
        return self.fixed + heads + neurons

    def share(self, subnet: Subnet) -> float:
        """Return the cost of ``subnet`` over that of the full model, in [0, 1]."""
        return self.total(subnet) / self.total(Subnet.full(subnet.shape))

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        return {
            "name": self.name,
            "sequence_length": self.sequence_length,
            "per_head": list(self.per_head),
            "per_neuron": list(self.per_neuron),
            "fixed": self.fixed,
        }

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
        )


def check_cost_model(name: str) -> str:
    """Return ``name`` if it is a known cost model.

    Raises:
        OptionError: it is not one of ``COST_MODELS``.
    """
    if name not in COST_MODELS:
        raise OptionError(f"cost model must be one of {', '.join(COST_MODELS)}; got {name!r}. The default is macs")
    return name
