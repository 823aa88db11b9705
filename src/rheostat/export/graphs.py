"""From a materialized model to an ONNX graph whose weights lie as they are stored: kept units first, nothing folded.

The attention of a layer is one call in the graph, with that layer's own number of heads, and linear layers are `Gemm`
with rows of (out, in) or `MatMul` with (in, out): of both a smaller model's matrix is a prefix of the larger one's.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import onnx
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from rheostat.architectures import ArchitectureSpec

OPSET = 20  # the first with Gelu as an operator
ATTENTION = "rheostat_export"
FUSED_ATTENTION = "rheostat_export_fused"
MASKED = -1e30  # added to the scores of padding; finite, so that a row without tokens is no NaN


def plain_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, scaling: float, **_: Any
) -> tuple[Tensor, None]:
    """Attend with matrix products and a softmax: (B, H, S, D) to (B, S, H, D)."""
    scores = (query @ key.transpose(-1, -2)) * scaling + attention_mask
    return (scores.softmax(-1) @ value).transpose(1, 2), None


def fused_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, scaling: float, **_: Any
) -> tuple[Tensor, None]:
    """Attend in one operator of ONNX Runtime, which takes projections and the (B, S) mask as they are."""
    batch, heads, length, width = query.shape
    rows = (batch, length, heads * width)
    out = torch.onnx.ops.symbolic(
        "com.microsoft::MultiHeadAttention",
        (*(x.transpose(1, 2).reshape(rows) for x in (query, key, value)), None, attention_mask),
        attrs={"num_heads": heads, "scale": float(scaling)},
        dtype=query.dtype,
        shape=rows,
        version=1,
    )
    return out.reshape(batch, length, heads, width), None


def additive_mask(*_: Any, attention_mask: Tensor, **__: Any) -> Tensor:
    """Return what is added to the scores, (B, 1, 1, S)."""
    return (1.0 - attention_mask[:, None, None, :].float()) * MASKED


def integer_mask(*_: Any, attention_mask: Tensor, **__: Any) -> Tensor:
    """Return 1 for tokens and 0 for padding, (B, S)."""
    return attention_mask.to(torch.int32)


class RowLinear(nn.Module):
    """A linear layer as `Gemm` with its own (out, in) matrix."""

    def __init__(self, linear: nn.Linear) -> None:
        """Take over the parameters."""
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in) to (..., out)."""
        out_features, in_features = self.weight.shape
        rows = x if x.dim() == 2 else x.reshape(-1, in_features)
        inputs = (rows, self.weight) if self.bias is None else (rows, self.weight, self.bias)
        shape = (rows.shape[0], out_features)
        found: Tensor = torch.onnx.ops.symbolic(
            "::Gemm", inputs, attrs={"transB": 1}, dtype=x.dtype, shape=shape, version=OPSET
        )
        return found if x.dim() == 2 else found.reshape(*x.shape[:-1], out_features)


class ColumnLinear(nn.Module):
    """A linear layer as `MatMul` with its (in, out) matrix."""

    def __init__(self, linear: nn.Linear) -> None:
        """Copy the matrix, transposed."""
        super().__init__()
        self.weight_t = nn.Parameter(linear.weight.detach().t().contiguous())
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in) to (..., out)."""
        found = torch.matmul(x, self.weight_t)
        return found if self.bias is None else found + self.bias


class _Logits(nn.Module):
    """Token arrays in, logits out; its parameters keep their names behind ``model.``."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        more = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        logits: Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask, **more).logits
        return logits


def build_graph(model: Any, spec: ArchitectureSpec, names: Sequence[str], *, fused: bool) -> onnx.ModelProto:
    """Return the graph of a materialized model, which is changed on the way and of no use afterwards.

    Args:
        model: A materialized model in eval mode, float32, on the CPU.
        spec: Its architecture.
        names: Of the inputs, ``input_ids`` and ``attention_mask`` first.
        fused: Whether attention is one operator of ONNX Runtime; OpenVINO does not know it.
    """
    AttentionInterface.register(ATTENTION, plain_attention)
    AttentionInterface.register(FUSED_ATTENTION, fused_attention)
    AttentionMaskInterface.register(ATTENTION, additive_mask)
    AttentionMaskInterface.register(FUSED_ATTENTION, integer_mask)
    model.set_attn_implementation(FUSED_ATTENTION if fused else ATTENTION)
    outputs = {id(layer.get_submodule(sub.output)) for layer in spec.layer_list(model) for sub in spec.sub_layers()}
    for path, module in list(model.named_modules()):
        if type(module) is nn.Linear:
            model.set_submodule(path, (ColumnLinear if id(module) in outputs else RowLinear)(module))
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")}
    example = tuple(torch.ones(2, 9, dtype=torch.int64) for _ in names)
    with warnings.catch_warnings(), quiet_logger("torch.onnx"), torch.no_grad():
        warnings.simplefilter("ignore")  # of the exporter, about itself
        program = torch.onnx.export(
            _Logits(model).eval(),
            example,
            dynamo=True,
            input_names=list(names),
            output_names=["logits"],
            dynamic_shapes=(axes,) * len(names),
            opset_version=OPSET,
            external_data=False,
            verbose=False,
        )
    graph: onnx.ModelProto = program.model_proto  # type: ignore[union-attr]
    _strip(graph)
    return graph


@contextmanager
def quiet_logger(name: str) -> Iterator[None]:
    """Hold back a logger's warnings."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _strip(model: onnx.ModelProto) -> None:
    """Remove what the exporter writes for people, traces and names of modules; shapes in between help to fuse."""
    graph = model.graph
    for part in (model, graph, *graph.node, *graph.input, *graph.output, *graph.initializer, *graph.value_info):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
