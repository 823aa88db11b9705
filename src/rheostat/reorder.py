"""Move heads and neurons inside their layers, in place, without changing what the model computes."""

from __future__ import annotations

import copy

import torch
from torch import nn

from rheostat.architectures import ArchitectureSpec, SubLayerSpec, linear_at
from rheostat.forms import kept_rows, stacked
from rheostat.subnet import KINDS, StoredOrder


@torch.no_grad()
def permute(model: nn.Module, spec: ArchitectureSpec, head_width: int, positions: StoredOrder) -> None:
    """Fill stored position ``i`` of every layer from old position ``positions[i]``.

    ``head_width`` is how many inputs of the output projection a head has: see :meth:`ModelShape.width`.

    Parameters keep their identity, dtype and place in memory, so an optimizer or a view stays valid. The outputs
    change by float rounding only (sums run in another order).
    """
    for i, layer in enumerate(spec.layer_list(model)):
        for kind, sub in zip(KINDS, spec.sub_layers(), strict=True):
            ids = positions.heads[i] if kind == "head" else positions.neurons[i]
            if ids != tuple(range(len(ids))):
                _permute_sub_layer(layer, sub, ids, head_width if kind == "head" else 1)


def _permute_sub_layer(layer: nn.Module, spec: SubLayerSpec, ids: tuple[int, ...], width: int) -> None:
    weight = linear_at(layer, spec.output).weight
    columns = kept_rows(ids, width, weight.device)
    weight.copy_(weight[:, columns])
    for path in spec.inputs_of(layer):
        linear = linear_at(layer, path)
        rows = kept_rows(ids, spec.rows_a_unit(linear, len(ids)), weight.device)
        for tensor in (linear.weight, linear.bias):
            if tensor is not None:
                matrices = stacked(tensor, spec.stacked)
                matrices.copy_(matrices[:, rows])
    for path in spec.per_unit:
        buffer = layer.get_buffer(path)
        buffer.copy_(buffer[kept_rows(ids, 1, buffer.device)])


def restored(model: nn.Module, spec: ArchitectureSpec, head_width: int, stored: StoredOrder) -> nn.Module:
    """Return a copy of ``model`` with every head and neuron where it was before it was moved to ``stored``."""
    back = StoredOrder(*(tuple(tuple(_inverse(ids)) for ids in kind) for kind in (stored.heads, stored.neurons)))
    original = copy.deepcopy(model)
    permute(original, spec, head_width, back)
    return original


def _inverse(ids: tuple[int, ...]) -> list[int]:
    return sorted(range(len(ids)), key=ids.__getitem__)
