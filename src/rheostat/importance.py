"""Importance from data: what the loss would feel if a head or neuron were gated, |gradient x gate| over rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rheostat.answers import model_inputs
from rheostat.architectures import ArchitectureSpec
from rheostat.errors import OptionError
from rheostat.forms import gated
from rheostat.modes import evaluating
from rheostat.subnet import ModelShape, StoredOrder, Unit

FloatArray = NDArray[np.float64]
Batch = Mapping[str, Tensor]


@dataclass(frozen=True)
class Importance:
    """Scores of single heads and neurons, a layer at a time: arrays (H,) and (F,), larger = more important."""

    heads: tuple[FloatArray, ...]
    neurons: tuple[FloatArray, ...]

    def of_units(self, units: Sequence[Unit]) -> FloatArray:
        """Return the summed scores of each unit, shape (U,)."""
        return np.array(
            [
                (self.heads if unit.kind == "head" else self.neurons)[unit.layer][unit.start : unit.stop].sum()
                for unit in units
            ]
        )

    def neuron_ranking(self) -> StoredOrder:
        """Return the positions that sort neurons by importance inside their layer; heads stay where they are."""
        heads = tuple(tuple(range(len(scores))) for scores in self.heads)
        return StoredOrder(heads, tuple(tuple(np.argsort(-s, kind="stable").tolist()) for s in self.neurons))

    def moved(self, positions: StoredOrder) -> Importance:
        """Return the scores after heads and neurons moved: new position ``i`` holds what was at ``positions[i]``."""
        return Importance(
            tuple(scores[list(new)] for scores, new in zip(self.heads, positions.heads, strict=True)),
            tuple(scores[list(new)] for scores, new in zip(self.neurons, positions.neurons, strict=True)),
        )


def gradient_importance(
    model: nn.Module,
    spec: ArchitectureSpec,
    shape: ModelShape,
    batches: Iterable[Batch],
    row_losses: Callable[[Any, Batch], Tensor],
) -> Importance:
    """Return sum over rows of ``|dL/dg * g|`` at ``g = 1`` for every head and neuron (Michel et al. 2019).

    Every row has gates of its own, so the absolute value is taken a row at a time: gradients of opposite sign
    do not cancel within a batch.

    Args:
        model: The base model; it is run in eval mode and put back as it was.
        spec: Its architecture.
        shape: Its sizes.
        batches: Tensors by name, labels included, on the model's device.
        row_losses: (model output, batch) -> losses, shape (B,).

    Raises:
        OptionError: there is no batch.
    """
    total: list[tuple[Tensor, Tensor]] | None = None
    with evaluating(model):
        for batch in batches:
            scores = _batch_scores(model, spec, shape, batch, row_losses)
            total = scores if total is None else [(a + c, b + d) for (a, b), (c, d) in zip(total, scores, strict=True)]
    if total is None:
        raise OptionError("calibration rows must not be empty; got none. Pass a few hundred labelled rows")
    return Importance(
        tuple(heads.double().cpu().numpy() for heads, _ in total),
        tuple(neurons.double().cpu().numpy() for _, neurons in total),
    )


def _batch_scores(
    model: nn.Module,
    spec: ArchitectureSpec,
    shape: ModelShape,
    batch: Batch,
    row_losses: Callable[[Any, Batch], Tensor],
) -> list[tuple[Tensor, Tensor]]:
    """Return the scores of one batch: for each layer (H,) and (F,)."""
    rows = next(iter(batch.values()))
    size, device = rows.shape[0], rows.device
    leaves = [
        tuple(
            torch.ones(size, 1, count, device=device, requires_grad=True)
            for count in (layer.num_attention_heads, layer.intermediate_size)
        )
        for layer in shape.layers
    ]
    gates = [(heads.repeat_interleave(shape.width("head"), dim=-1), neurons) for heads, neurons in leaves]
    with torch.enable_grad():
        losses = row_losses(gated(model, spec, gates)(**model_inputs(batch)), batch)  # (B,)
        flat = [leaf for pair in leaves for leaf in pair]
        gradients = torch.autograd.grad(losses.sum(), flat)
    scores = [gradient.abs().sum(dim=(0, 1)) for gradient in gradients]
    return list(zip(scores[::2], scores[1::2], strict=True))
