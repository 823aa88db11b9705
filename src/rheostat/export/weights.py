"""One file of weights for all graphs: each points at prefixes of the same tensors."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from rheostat.errors import OptionError

ALIGNMENT = 4096  # of a page, so that a runtime can map tensors where they lie
SMALL_BYTES = 1024  # constants of shapes and the like stay in the graph


class SharedWeights:
    """A file that tensors are added to; a tensor that begins a larger one of the same name is found inside it."""

    def __init__(self, path: Path) -> None:
        """Write to ``path``; use it in a ``with`` block."""
        self._path = path
        self._file = path.open("wb")
        self._held: dict[str, tuple[int, NDArray[np.generic]]] = {}
        self._graphs = 0
        self._contents: dict[str, int] = {}  # offsets by hash: equal tensors of other names are written once

    def add(self, name: str, tensor: NDArray[np.generic]) -> int:
        """Return the offset of a tensor, writing it if nothing there begins with it.

        Raises:
            OptionError: the name is there with other values: a matrix would be copied.
        """
        if name not in self._held:
            content = np.ascontiguousarray(tensor).tobytes()
            key = hashlib.sha256(content).hexdigest()
            if key not in self._contents:
                self._contents[key] = -(-self._file.tell() // ALIGNMENT) * ALIGNMENT
                self._file.seek(self._contents[key])
                self._file.write(content)
            self._held[name] = (self._contents[key], tensor)
        if not self.holds(name, tensor):
            raise OptionError(
                f"weights of all budgets must be prefixes of the largest; {name} is not. Export a nested checkpoint, "
                "largest budget first"
            )
        return self._held[name][0]

    def holds(self, name: str, tensor: NDArray[np.generic]) -> bool:
        """Return whether a tensor of this name that begins with these values is there."""
        if name not in self._held:
            return False
        _, full = self._held[name]
        begins = full.dtype == tensor.dtype and full.shape[1:] == tensor.shape[1:] and len(full) >= len(tensor)
        return begins and np.array_equal(full[: len(tensor)], tensor)

    def share(
        self,
        graph: onnx.ModelProto,
        *,
        own: SharedWeights | None = None,
        own_prefix: str = "",
        own_vectors: bool = False,
    ) -> None:
        """Move every tensor of a graph that is not small to the file.

        The first graph names all tensors: a later one that brings a new name would be a copy in other clothes.

        Raises:
            OptionError: see :meth:`add`; or a matrix of a name that the first graph has not.

        Args:
            graph: Changed in place.
            own: Where tensors go that are not here; by default here.
            own_prefix: Put before the names of a graph's own tensors.
            own_vectors: Whether a graph may have vectors of its own here: corrected biases.
        """
        for tensor in graph.graph.initializer:
            values = numpy_helper.to_array(tensor)
            if values.nbytes <= SMALL_BYTES:
                continue
            if own is None and own_vectors and values.ndim == 1 and not self.holds(tensor.name, values):
                _point_to(tensor, self._path.name, self.add(own_prefix + tensor.name, values), values.nbytes)
                continue
            if own is None and self._graphs and tensor.name not in self._held:
                raise OptionError(
                    f"graphs must use the tensors of the largest; {tensor.name} of {values.nbytes:,} bytes is not one"
                )
            if own is None or self.holds(tensor.name, values):
                _point_to(tensor, self._path.name, self.add(tensor.name, values), values.nbytes)
            else:
                _point_to(tensor, own._path.name, own.add(own_prefix + tensor.name, values), values.nbytes)
        if own is None and embedded_bytes(graph) > SMALL_BYTES * len(graph.graph.initializer):
            raise OptionError("graphs must hold no matrix of their own; this one does in a constant")
        self._graphs += 1

    def __enter__(self) -> SharedWeights:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Finish the file; what lies there can still be pointed at."""
        self._file.close()


def _point_to(tensor: TensorProto, file: str, offset: int, length: int) -> None:
    """Replace a tensor's values by the place where they lie."""
    for field in ("raw_data", "float_data", "int32_data", "int64_data"):
        tensor.ClearField(field)
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in {"location": file, "offset": offset, "length": length}.items():
        tensor.external_data.add(key=key, value=str(value))


def embedded_bytes(graph: onnx.ModelProto) -> int:
    """Return how many bytes of tensors a graph holds itself, those of its constants included."""
    tensors = [tensor for tensor in graph.graph.initializer if tensor.data_location != TensorProto.EXTERNAL]
    tensors += [attribute.t for node in graph.graph.node for attribute in node.attribute if attribute.HasField("t")]
    return sum(numpy_helper.to_array(tensor).nbytes for tensor in tensors)
