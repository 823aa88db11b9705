"""int8 graphs for ONNX Runtime: weights a channel at a time, activations measured per call or beforehand."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from rheostat.errors import CheckpointError
from rheostat.export.graphs import quiet_logger
from rheostat.export.operators import count_operators

LINEAR = ("Gemm", "MatMul")
INTEGER = ("MatMulInteger", "DynamicQuantizeMatMul")
Arrays = dict[str, NDArray[np.int64]]


@dataclass(frozen=True)
class Method:
    """One way to quantize.

    Attributes:
        name: Printed and saved.
        static: Whether ranges of activations are fixed beforehand on calibration rows.
        reduce_range: Whether weights use 7 of their 8 bits: processors without VNNI add in 16 bits and overflow.
    """

    name: str
    static: bool
    reduce_range: bool


METHODS = (
    Method("dynamic", False, False),
    Method("dynamic, 7 bits", False, True),
    Method("static", True, False),
    Method("static, 7 bits", True, True),
)


def methods_for(engine: str) -> tuple[Method, ...]:
    """Return what a runtime can do: OpenVINO runs int8 where the ranges of activations are fixed."""
    return tuple(method for method in METHODS if engine == "onnx" or method.static)


def quantized(path: Path, method: Method, batches: Sequence[Arrays]) -> tuple[onnx.ModelProto, int]:
    """Return the int8 graph of a float32 one and how many linear layers hold int8 weights.

    Args:
        path: The float32 graph, its weights beside it.
        method: How.
        batches: Calibration rows for a static method.

    Raises:
        CheckpointError: a linear layer was left out.
    """
    wanted = linear_layers(onnx.load(path, load_external_data=False))
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / "int8.onnx"
        with quiet_logger(""):  # advice about preprocessing, which these graphs do not need
            _quantize(path, target, method, batches)
        graph = onnx.load(target)
    count = _quantized_layers(graph, static=method.static)
    if count != wanted:
        raise CheckpointError(f"{path.name} must have {wanted} int8 linear layers; it has {count}")
    return graph, count


def _quantize(path: Path, target: Path, method: Method, batches: Sequence[Arrays]) -> None:
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static

    shared: dict[str, Any] = {
        "op_types_to_quantize": list(LINEAR),
        "per_channel": True,
        "reduce_range": method.reduce_range,
        "weight_type": QuantType.QInt8,
        "use_external_data_format": True,  # a file of its own may have two gigabytes at most
        "extra_options": {"MatMulConstBOnly": True},
    }
    if method.static:
        reader = _Reader(batches)
        quantize_static(path, target, reader, quant_format=QuantFormat.QDQ, activation_type=QuantType.QUInt8, **shared)
    else:
        quantize_dynamic(path, target, **shared)


def linear_layers(graph: onnx.ModelProto) -> int:
    """Return how many linear layers a float32 graph has: products with a stored matrix."""
    stored = {tensor.name for tensor in graph.graph.initializer}
    return sum(node.op_type in LINEAR and node.input[1] in stored for node in graph.graph.node)


def _quantized_layers(graph: onnx.ModelProto, *, static: bool) -> int:
    """Return how many products use an int8 matrix."""
    if not static:
        return sum(count for name, count in count_operators(graph).items() if name in INTEGER)
    integers = {tensor.name for tensor in graph.graph.initializer if tensor.data_type == onnx.TensorProto.INT8}
    decoded = {
        node.output[0] for node in graph.graph.node if node.op_type == "DequantizeLinear" and node.input[0] in integers
    }
    return sum(node.op_type in LINEAR and node.input[1] in decoded for node in graph.graph.node)


class _Reader:
    """Calibration rows as ONNX Runtime asks for them: one batch a call, None at the end."""

    def __init__(self, batches: Sequence[Arrays]) -> None:
        self._batches: Iterator[Arrays] = iter(batches)

    def get_next(self) -> Arrays | None:
        return next(self._batches, None)
