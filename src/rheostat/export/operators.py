"""Which operators a graph is made of, before and after ONNX Runtime has fused what it can."""

from __future__ import annotations

import tempfile
from pathlib import Path

import onnx


def operators_of(path: Path) -> dict[str, int]:
    """Return how many nodes of each operator the graph of a file has."""
    return count_operators(onnx.load(path, load_external_data=False))


def count_operators(graph: onnx.ModelProto) -> dict[str, int]:
    """Return how many nodes of each operator a graph has."""
    counts: dict[str, int] = {}
    for node in graph.graph.node:
        counts[node.op_type] = counts.get(node.op_type, 0) + 1
    return counts


def fused_operators(path: Path) -> dict[str, int]:
    """Return how many of each operator ONNX Runtime is left with after fusing what it can."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / "optimized.onnx"
        options.optimized_model_filepath = str(target)
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights")
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return operators_of(target)
