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
from transformers.masking_utils import bidirectional_mask_function
from transformers.pytorch_utils import Conv1D

from rheostat.answers import answers_of
from rheostat.architectures import ArchitectureSpec, SubLayerSpec, image_shape
from rheostat.bundle.engines import PIXELS
from rheostat.checkpoint import CheckpointInfo

OPSET = 20  # the first with Gelu as an operator
ATTENTION = "rheostat_export"
FUSED_ATTENTION = "rheostat_export_fused"
MASKED = -1e30  # added to the scores of padding; finite, so that a row without tokens is no NaN


def plain_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend with matrix products and a softmax: (B, H, S, D) to (B, S, H, D); keys and values may have fewer heads."""
    key, value = (_a_head_each(shared, query.shape[1]) for shared in (key, value))
    scores = (query @ key.transpose(-1, -2)) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    return (scores.softmax(-1) @ value).transpose(1, 2), None


def _a_head_each(shared: Tensor, heads: int) -> Tensor:
    """Return the keys or values (B, groups, S, D) of every query head, (B, H, S, D)."""
    batch, groups, length, width = shared.shape
    if groups == heads:
        return shared
    return shared[:, :, None].expand(batch, groups, heads // groups, length, width).reshape(batch, heads, length, width)


def fused_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend in one operator of ONNX Runtime, which takes projections, and the (B, S) mask or scores as they are."""
    batch, heads, length, width = query.shape
    key, value = (_a_head_each(shared, heads) for shared in (key, value))
    rows = (batch, length, heads * width)
    masks: tuple[Tensor | None, ...] = ()
    if attention_mask is not None:
        masks = (attention_mask,) if attention_mask.dim() == 2 else (None, attention_mask)
    out = torch.onnx.ops.symbolic(
        "com.microsoft::MultiHeadAttention",
        (*(x.transpose(1, 2).reshape(rows) for x in (query, key, value)), *((None, *masks) if masks else ())),
        attrs={"num_heads": heads, "scale": float(scaling)},
        dtype=query.dtype,
        shape=rows,
        version=1,
    )
    return out.reshape(batch, length, heads, width), None


def additive_mask(*_: Any, attention_mask: Tensor | None, mask_function: Any, **more: Any) -> Tensor | None:
    """Return what is added to the scores, (B, 1, 1, S), or (B, 1, S, S) where tokens do not see all others.

    None for images, which have no padding.
    """
    if attention_mask is None:
        return None
    seen = attention_mask[:, None, None, :] != 0
    if mask_function is not bidirectional_mask_function:
        positions = torch.arange(attention_mask.shape[1], device=attention_mask.device)
        seen = seen & mask_function(None, None, positions[:, None], positions[None, :])  # index arithmetic: broadcasts
    return torch.where(seen, 0.0, MASKED)


def integer_mask(*_: Any, attention_mask: Tensor | None, mask_function: Any, **more: Any) -> Tensor | None:
    """Return 1 for tokens and 0 for padding, (B, S); or see :func:`additive_mask`."""
    if attention_mask is None or mask_function is not bidirectional_mask_function:
        return additive_mask(attention_mask=attention_mask, mask_function=mask_function)
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


class StackedLinear(nn.Module):
    """A linear layer that holds several matrices one below the other as one `Gemm` each: their prefixes are shared."""

    def __init__(self, linear: nn.Linear, matrices: int) -> None:
        """Take over the parameters, a matrix at a time."""
        super().__init__()
        self.parts = nn.ModuleList()
        biases = [None] * matrices if linear.bias is None else linear.bias.chunk(matrices)
        for weight, bias in zip(linear.weight.chunk(matrices), biases, strict=True):
            part = nn.Linear(1, 1, bias=bias is not None, device="meta")
            part.weight = nn.Parameter(weight)
            if bias is not None:
                part.bias = nn.Parameter(bias)
            self.parts.append(RowLinear(part))

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in) to (..., out)."""
        return torch.cat([part(x) for part in self.parts], dim=-1)


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


class _Answers(nn.Module):
    """Token arrays or pixels in, answers out; its parameters keep their names behind ``model.``."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names = model, names
        self.info: CheckpointInfo = model.rheostat.info  # type: ignore[assignment, union-attr]

    def forward(self, first: Tensor, second: Tensor | None = None, third: Tensor | None = None) -> Tensor:
        inputs = {
            name: given for name, given in zip(self.names, (first, second, third), strict=False) if given is not None
        }
        return answers_of(self.model(**inputs), inputs, self.info)


def build_graph(model: Any, spec: ArchitectureSpec, names: Sequence[str], *, fused: bool) -> onnx.ModelProto:
    """Return the graph of a materialized model, which is changed on the way and of no use afterwards.

    Args:
        model: A materialized model in eval mode, float32, on the CPU.
        spec: Its architecture.
        names: Of the inputs, ``input_ids`` and ``attention_mask`` first; or ``pixel_values``.
        fused: Whether attention is one operator of ONNX Runtime; OpenVINO does not know it.
    """
    AttentionInterface.register(ATTENTION, plain_attention)
    AttentionInterface.register(FUSED_ATTENTION, fused_attention)
    AttentionMaskInterface.register(ATTENTION, additive_mask)
    AttentionMaskInterface.register(FUSED_ATTENTION, integer_mask)
    model.set_attn_implementation(FUSED_ATTENTION if fused else ATTENTION)
    model.config.use_cache = False
    for path, module in list(model.named_modules()):
        if type(module) is Conv1D:
            model.set_submodule(path, _as_linear(module))
    for layer in spec.layer_list(model):
        for sub in spec.sub_layers():
            _replace_linears(layer, sub)
    for path, module in list(model.named_modules()):
        if type(module) is nn.Linear:
            model.set_submodule(path, RowLinear(module))
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")}
    example: tuple[Tensor, ...] = tuple(torch.ones(2, 9, dtype=torch.int64) for _ in names)
    if tuple(names) == PIXELS:
        axes, example = {0: axes[0]}, (torch.zeros(2, *image_shape(model.config)),)
    with warnings.catch_warnings(), quiet_logger("torch.onnx"), torch.no_grad():
        warnings.simplefilter("ignore")  # of the exporter, about itself
        program = torch.onnx.export(
            _Answers(model, names).eval(),
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


def _as_linear(module: Conv1D) -> nn.Linear:
    """Return a linear layer of its own matrix in the place of a Conv1D."""
    linear = nn.Linear(module.nx, module.nf, device="meta")
    linear.weight = nn.Parameter(module.weight.detach().T.contiguous())
    linear.bias = module.bias
    return linear


def _replace_linears(layer: nn.Module, spec: SubLayerSpec) -> None:
    """Give the output of a sub-layer its matrix by columns, and inputs of several matrices one operator each."""
    modules = dict(layer.named_modules())
    output = modules[spec.output]
    if isinstance(output, nn.Linear):
        layer.set_submodule(spec.output, ColumnLinear(output))
    for path in spec.inputs if spec.stacked > 1 else ():
        linear = modules.get(path)
        if isinstance(linear, nn.Linear):  # nothing is left of an empty sub-layer's
            layer.set_submodule(path, StackedLinear(linear, spec.stacked))


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
