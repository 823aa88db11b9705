"""Make a physically smaller model: plain Hugging Face modules with smaller matrices, for one subnet."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from rheostat.architectures import ArchitectureSpec, Linear, SubLayerSpec, Transposed, linear_at
from rheostat.forms import OutputBias, corrected_vectors, empty_body, kept_rows, stacked
from rheostat.subnet import KINDS, Subnet

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def materialize(model: ModuleT, spec: ArchitectureSpec, subnet: Subnet, corrections: Tensor | None = None) -> ModuleT:
    """Return a copy of ``model`` that holds only what ``subnet`` keeps; dtype, device and requires_grad stay.

    ``model.config`` is copied unchanged: sizes a layer do not fit in it. A sub-layer without units becomes its
    output bias (see :mod:`rheostat.forms`). ``corrections`` (L, K, E) become part of the vectors that they add to.
    """
    small = copy.deepcopy(model)
    shrink(small, spec, subnet, corrections)
    return small


def shrink(model: nn.Module, spec: ArchitectureSpec, subnet: Subnet, corrections: Tensor | None = None) -> None:
    """Replace the linear layers of a full-size ``model``, in place, by those that ``subnet`` keeps."""
    for i, layer in enumerate(spec.layer_list(model)):
        if corrections is not None:
            _correct(layer, spec, corrections[i])
        for kind, sub in zip(KINDS, spec.sub_layers(), strict=True):
            kept = subnet.kept(i, kind)
            if len(kept) < subnet.shape.size(i, kind):
                _shrink_sub_layer(layer, sub, kept, subnet.shape.width(kind))


def _correct(layer: nn.Module, spec: ArchitectureSpec, corrections: Tensor) -> None:
    """Add corrections (K, E) to the vectors of a layer; an output projection without a bias gets one."""
    for (path, name), correction in zip(corrected_vectors(layer, spec), corrections, strict=False):
        module: Any = layer.get_submodule(path)
        vector, weight = getattr(module, name), module.weight
        before = torch.zeros_like(correction, dtype=weight.dtype) if vector is None else vector
        trained = (weight if vector is None else vector).requires_grad
        setattr(module, name, _owned(before + correction.to(before), trained))


def _shrink_sub_layer(layer: nn.Module, spec: SubLayerSpec, kept: Sequence[int], width: int) -> None:
    output = linear_at(layer, spec.output)
    if len(kept) == 0:
        layer.set_submodule(spec.body, empty_body(layer.get_submodule(spec.body), spec))
        layer.set_submodule(spec.output, OutputBias(output.out_features, output.bias))
        return
    device, units = output.weight.device, output.in_features // width
    for path in spec.inputs_of(layer):
        linear = linear_at(layer, path)
        rows = kept_rows(kept, spec.rows_a_unit(linear, units), device)
        weight = stacked(linear.weight, spec.stacked)[:, rows].flatten(0, 1)
        bias = None if linear.bias is None else stacked(linear.bias, spec.stacked)[:, rows].flatten()
        layer.set_submodule(path, _smaller_linear(linear, weight, bias))
    layer.set_submodule(
        spec.output, _smaller_linear(output, output.weight[:, kept_rows(kept, width, device)], output.bias)
    )
    own = {path: layer.get_buffer(path)[kept_rows(kept, 1, device)].clone() for path in spec.per_unit}
    for path, value in {**spec.sizes(len(kept), width), **own}.items():
        parent, _, name = path.rpartition(".")
        setattr(layer.get_submodule(parent), name, value)


def _smaller_linear(linear: Linear, weight: Tensor, bias: Tensor | None) -> nn.Module:
    """Return a module of the class of ``linear`` that owns contiguous copies of ``weight`` (out, in) and ``bias``."""
    if isinstance(linear, Transposed):
        with torch.device("meta"):
            turned: Any = Conv1D(1, 1)
        turned.nf, turned.nx = weight.shape
        turned.weight = _owned(weight.T, linear.module.weight.requires_grad)
        turned.bias = _owned(cast(Tensor, bias), linear.bias.requires_grad)  # a Conv1D always has one
        turned.train(linear.module.training)
        return cast(nn.Module, turned)
    small = nn.Linear(1, 1, bias=bias is not None, device="meta")
    small.out_features, small.in_features = weight.shape
    small.weight = _owned(weight, linear.weight.requires_grad)
    if bias is not None:
        small.bias = _owned(bias, linear.bias.requires_grad)
    return small.train(linear.training)


def _owned(tensor: Tensor, requires_grad: bool) -> nn.Parameter:
    copied = tensor.detach().clone(memory_format=torch.contiguous_format)
    return nn.Parameter(copied, requires_grad=requires_grad)


@torch.no_grad()
def fold_gates(model: ModuleT, spec: ArchitectureSpec, gates: Sequence[tuple[Tensor, Tensor]]) -> ModuleT:
    """Return a full-size copy of ``model`` with soft gates folded into its output columns; for research.

    ``W (g * x) + b = (W * g) x + b``: the columns of the attention output and second feed-forward projections are
    scaled and biases stay as they are. Nothing is removed, so nothing gets faster.

    Args:
        model: The full model.
        spec: Its architecture.
        gates: For each layer the gates of the attention output (H * D,) and of the neurons (F,).
    """
    folded = copy.deepcopy(model)
    for layer, pair in zip(spec.layer_list(folded), gates, strict=True):
        for sub, gate in zip(spec.sub_layers(), pair, strict=True):
            weight = linear_at(layer, sub.output).weight
            weight.mul_(gate.to(weight))
    return folded
