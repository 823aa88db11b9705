"""What can be removed and what is kept: the shape of a model, its units, and subnets of it. No torch here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from rheostat.errors import CheckpointError, OptionError

Kind = Literal["head", "neuron"]
KINDS: tuple[Kind, ...] = ("head", "neuron")
DEFAULT_NEURON_BLOCK = 32  # the least width that SIMD kernels run at full speed, and a small enough step


@dataclass(frozen=True)
class LayerShape:
    """Sizes of one layer: H heads and F feed-forward neurons.

    Where query heads share keys and values (:attr:`ModelShape.query_heads`), a head is such a group as a whole.
    """

    num_attention_heads: int
    intermediate_size: int


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a model, a layer at a time; ``head_dim`` is stated and never derived from a head count.

    Attributes:
        hidden_size: E.
        head_dim: D.
        layers: Heads and neurons of each layer.
        query_heads: Query heads of a head: 1, or as many as share a key/value head, which can't be parted.
    """

    hidden_size: int
    head_dim: int
    layers: tuple[LayerShape, ...]
    query_heads: int = 1

    @classmethod
    def uniform(
        cls,
        num_layers: int,
        num_attention_heads: int,
        head_dim: int,
        intermediate_size: int,
        hidden_size: int,
        *,
        query_heads: int = 1,
    ) -> ModelShape:
        """Return the shape of a model whose layers are all alike."""
        layer = LayerShape(num_attention_heads, intermediate_size)
        return cls(hidden_size, head_dim, (layer,) * num_layers, query_heads)

    def width(self, kind: Kind) -> int:
        """Return how many inputs of the output projection belong to one head (all its query heads') or neuron."""
        return self.head_dim * self.query_heads if kind == "head" else 1

    def size(self, layer: int, kind: Kind) -> int:
        """Return how many heads or neurons ``layer`` has."""
        shape = self.layers[layer]
        return shape.num_attention_heads if kind == "head" else shape.intermediate_size

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        grouped = {"query_heads": self.query_heads} if self.query_heads > 1 else {}
        return {
            "hidden_size": self.hidden_size,
            "head_dim": self.head_dim,
            "num_attention_heads": [layer.num_attention_heads for layer in self.layers],
            "intermediate_size": [layer.intermediate_size for layer in self.layers],
            **grouped,
        }

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> ModelShape:
        """Return the shape that ``to_json`` wrote."""
        pairs = zip(record["num_attention_heads"], record["intermediate_size"], strict=True)
        layers = tuple(LayerShape(int(heads), int(neurons)) for heads, neurons in pairs)
        return cls(int(record["hidden_size"]), int(record["head_dim"]), layers, int(record.get("query_heads", 1)))


@dataclass(frozen=True)
class Unit:
    """The smallest thing that a budget keeps or removes: heads or neurons ``start`` to ``stop`` of a layer.

    Positions are those of the stored order, so that a subnet is a prefix in every layer.
    """

    layer: int
    kind: Kind
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Number of heads or neurons in the unit."""
        return self.stop - self.start


def cut_units(
    shape: ModelShape, *, kinds: Sequence[Kind] = KINDS, neuron_block: int = DEFAULT_NEURON_BLOCK
) -> tuple[Unit, ...]:
    """Cut every layer into units: single heads, and blocks of ``neuron_block`` neurons (the last may be smaller).

    The result is sorted by layer, kind and position.

    Raises:
        OptionError: ``neuron_block`` is below 1.
    """
    if neuron_block < 1:
        raise OptionError(f"neuron_block must be at least 1; got {neuron_block!r}. The default is 32")
    steps: dict[Kind, int] = {"head": 1, "neuron": neuron_block}
    return tuple(
        Unit(layer, kind, start, min(start + steps[kind], shape.size(layer, kind)))
        for layer in range(len(shape.layers))
        for kind in KINDS
        if kind in kinds
        for start in range(0, shape.size(layer, kind), steps[kind])
    )


def _positions(kept: Iterable[int], size: int, what: str) -> Sequence[int]:
    """Return sorted kept positions; a prefix becomes a ``range``, which hashes and compares in O(1)."""
    if isinstance(kept, range) and kept.start == 0 and kept.step == 1 and kept.stop <= size:
        return kept
    positions = tuple(sorted(kept))
    if len(set(positions)) != len(positions) or (positions and not 0 <= positions[0] <= positions[-1] < size):
        raise OptionError(f"{what} must be distinct and in [0, {size}); got {list(positions)[:20]!r}. Check the subnet")
    return range(len(positions)) if not positions or positions[-1] == len(positions) - 1 else positions


def _whole_groups(query_heads: set[int], size: int, layer: int) -> list[int]:
    """Return the groups that these query heads make up."""
    groups = sorted({head // size for head in query_heads})
    counts = {group: len(query_heads & set(range(group * size, (group + 1) * size))) for group in groups}
    parted = [f"{count} of {size} of group {group}" for group, count in counts.items() if count < size]
    if parted:
        raise OptionError(
            f"query heads of layer {layer} must be whole groups of {size} that share a key/value head; got "
            f"{', '.join(parted)}. Keep or remove a group as a whole"
        )
    return groups


@dataclass(frozen=True)
class Subnet:
    """The hard choice: kept heads and neurons of each layer, as positions in the stored order.

    Equal choices are equal and hash equal. Build one with :meth:`of`, :meth:`full` or :meth:`prefix`.
    """

    shape: ModelShape
    heads: tuple[Sequence[int], ...]
    neurons: tuple[Sequence[int], ...]

    @classmethod
    def of(cls, shape: ModelShape, heads: Sequence[Iterable[int]], neurons: Sequence[Iterable[int]]) -> Subnet:
        """Return the subnet that keeps these heads and neurons, a sequence of positions for every layer.

        Raises:
            OptionError: a layer too many or too few, or a position that does not exist or is repeated.
        """
        if not len(heads) == len(neurons) == len(shape.layers):
            raise OptionError(
                f"heads and neurons must have one entry for each of {len(shape.layers)} layers; "
                f"got {len(heads)} and {len(neurons)}. Use an empty entry where nothing is kept"
            )
        sizes = [(layer.num_attention_heads, layer.intermediate_size) for layer in shape.layers]
        return cls(
            shape,
            tuple(
                _positions(kept, size[0], f"heads of layer {i}")
                for i, (kept, size) in enumerate(zip(heads, sizes, strict=True))
            ),
            tuple(
                _positions(kept, size[1], f"neurons of layer {i}")
                for i, (kept, size) in enumerate(zip(neurons, sizes, strict=True))
            ),
        )

    @classmethod
    def prefix(cls, shape: ModelShape, head_counts: Sequence[int], neuron_counts: Sequence[int]) -> Subnet:
        """Return the subnet that keeps the first heads and neurons of every layer."""
        return cls.of(shape, [range(n) for n in head_counts], [range(n) for n in neuron_counts])

    @classmethod
    def of_query_heads(
        cls, shape: ModelShape, query_heads: Sequence[Iterable[int]], neurons: Sequence[Iterable[int]]
    ) -> Subnet:
        """Return the subnet that keeps these query heads, numbered as in the model: whole groups that share keys.

        Raises:
            OptionError: part of a group, or see :meth:`of`.
        """
        groups = [_whole_groups(set(kept), shape.query_heads, layer) for layer, kept in enumerate(query_heads)]
        return cls.of(shape, groups, neurons)

    @classmethod
    def full(cls, shape: ModelShape) -> Subnet:
        """Return the subnet that keeps everything."""
        return cls.prefix(
            shape,
            [layer.num_attention_heads for layer in shape.layers],
            [layer.intermediate_size for layer in shape.layers],
        )

    @cached_property
    def _hash(self) -> int:
        return hash((self.shape, self.heads, self.neurons))

    def __hash__(self) -> int:
        """Return a hash that is computed once: a subnet is the key of every cached view."""
        return self._hash

    @property
    def head_counts(self) -> tuple[int, ...]:
        """Kept heads of each layer."""
        return tuple(len(kept) for kept in self.heads)

    @property
    def neuron_counts(self) -> tuple[int, ...]:
        """Kept neurons of each layer."""
        return tuple(len(kept) for kept in self.neurons)

    @cached_property
    def is_full(self) -> bool:
        """Whether nothing is removed."""
        return all(
            len(self.kept(layer, kind)) == self.shape.size(layer, kind)
            for layer in range(len(self.shape.layers))
            for kind in KINDS
        )

    @cached_property
    def is_prefix(self) -> bool:
        """Whether every layer keeps a prefix, so that it can be executed without copying a matrix."""
        return all(isinstance(kept, range) for kept in (*self.heads, *self.neurons))

    def kept(self, layer: int, kind: Kind) -> Sequence[int]:
        """Return the kept positions of one kind in one layer."""
        return self.heads[layer] if kind == "head" else self.neurons[layer]

    def contains(self, other: Subnet) -> bool:
        """Return whether everything that ``other`` keeps is kept here too."""
        pairs = zip((*self.heads, *self.neurons), (*other.heads, *other.neurons), strict=True)
        return all(set(theirs) <= set(ours) for ours, theirs in pairs)

    def kept_shape(self) -> ModelShape:
        """Return the shape of the materialized model."""
        layers = tuple(LayerShape(h, n) for h, n in zip(self.head_counts, self.neuron_counts, strict=True))
        return ModelShape(self.shape.hidden_size, self.shape.head_dim, layers, self.shape.query_heads)


@dataclass(frozen=True)
class StoredOrder:
    """Which original head or neuron each stored position holds, a layer at a time."""

    heads: tuple[tuple[int, ...], ...]
    neurons: tuple[tuple[int, ...], ...]

    @classmethod
    def identity(cls, shape: ModelShape) -> StoredOrder:
        """Return the order of a model that was not reordered."""
        return cls(
            tuple(tuple(range(layer.num_attention_heads)) for layer in shape.layers),
            tuple(tuple(range(layer.intermediate_size)) for layer in shape.layers),
        )

    def then(self, positions: StoredOrder) -> StoredOrder:
        """Return the order after stored position ``i`` was filled from stored position ``positions[i]``."""
        return StoredOrder(
            tuple(tuple(old[i] for i in new) for old, new in zip(self.heads, positions.heads, strict=True)),
            tuple(tuple(old[i] for i in new) for old, new in zip(self.neurons, positions.neurons, strict=True)),
        )

    def kept(self, subnet: Subnet) -> StoredOrder:
        """Return the original ids that ``subnet`` keeps."""
        return self.then(
            StoredOrder(
                tuple(tuple(kept) for kept in subnet.heads),
                tuple(tuple(kept) for kept in subnet.neurons),
            )
        )

    @property
    def is_identity(self) -> bool:
        """Whether every unit is where the base model had it."""
        return all(ids == tuple(range(len(ids))) for ids in (*self.heads, *self.neurons))

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        return {"heads": [list(ids) for ids in self.heads], "neurons": [list(ids) for ids in self.neurons]}

    @classmethod
    def from_json(cls, record: dict[str, Any], shape: ModelShape, full: ModelShape | None = None) -> StoredOrder:
        """Return the order that ``to_json`` wrote.

        Args:
            record: What ``to_json`` returned.
            shape: How many ids each layer must have.
            full: The shape whose heads and neurons the ids number; by default ``shape``.

        Raises:
            CheckpointError: the ids do not fit: whole heads and neurons of ``full``, each once in its layer.
        """
        order = cls(tuple(map(tuple, record["heads"])), tuple(map(tuple, record["neurons"])))
        ids_of: dict[Kind, tuple[tuple[int, ...], ...]] = {"head": order.heads, "neuron": order.neurons}
        for kind, layers in ids_of.items():
            sizes = [shape.size(layer, kind) for layer in range(len(shape.layers))]
            if [len(ids) for ids in layers] != sizes:
                raise CheckpointError(
                    f"{kind} ids must count {sizes}, the sizes of the layers; got {[len(ids) for ids in layers]!r}. "
                    "The manifest does not belong to these weights; save the checkpoint again"
                )
            for layer, ids in enumerate(layers):
                limit = (full or shape).size(layer, kind)
                if any(type(i) is not int or not 0 <= i < limit for i in ids) or len(set(ids)) != len(ids):
                    raise CheckpointError(
                        f"{kind} ids of layer {layer} must be distinct and in [0, {limit}); got {list(ids)[:20]!r}. "
                        "The manifest is damaged; save the checkpoint again"
                    )
        return order
