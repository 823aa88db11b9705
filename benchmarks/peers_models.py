"""The peers: what other tools make of the same fine-tuned model, and how all of them are trained on."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.trainer_callback import PrinterCallback

from rheostat.losses import distillation_loss
from rheostat.reproduce.distilling import RowOrderTrainer
from rheostat.training import (
    ProgressToStderr,
    StageOptions,
    eager_attention,
    last_checkpoint,
    training_arguments,
    without_dropout,
)

DROP_RATE = 0.3  # of layers, while a LayerDrop model is trained; 0.2 for models of twelve and more layers


class Distilled(nn.Module):
    """The loss that ours has too: 0.3 of cross entropy and 0.7 of distillation at temperature 2."""

    def __init__(self, model: Any, *, drop: float = 0.0, seed: int = 0) -> None:
        """Train ``model``; ``drop`` is the rate at which whole layers are left out of a step."""
        super().__init__()
        self.model, self.drop = model, drop
        self._draws = np.random.default_rng(seed)
        self._layers = list(model.base_model.encoder.layer)

    def forward(self, labels: Tensor, teacher_logits: Tensor, **inputs: Tensor) -> dict[str, Tensor]:
        """Return the loss of a batch (B, S)."""
        inputs.pop("length", None)
        if self.drop:
            kept = self._draws.random(len(self._layers)) >= self.drop
            set_layers(self.model, [layer for layer, keep in zip(self._layers, kept, strict=True) if keep])
        logits = self.model(**inputs).logits.float()
        own = F.cross_entropy(logits, labels)
        return {"loss": 0.3 * own + 0.7 * distillation_loss(logits, teacher_logits, task="single-label")}


def train_on(objective: Distilled, rows: Any, collator: Any, stage: StageOptions, steps: Path, title: str) -> None:
    """Train a peer as the adapt stage trains ours: same rows, order, epochs, rate, frozen embeddings, no dropout."""
    objective.model.get_input_embeddings().requires_grad_(False)
    trainer = RowOrderTrainer(
        model=objective,
        args=training_arguments(stage, steps),
        train_dataset=rows,
        data_collator=collator,
        callbacks=[ProgressToStderr(title)],
    )
    trainer.remove_callback(PrinterCallback)
    last = last_checkpoint(steps)
    with without_dropout(objective), eager_attention(objective.model):
        trainer.train(resume_from_checkpoint=None if last is None else str(last))
    objective.model.get_input_embeddings().requires_grad_(True)
    objective.model.eval()


def set_layers(model: Any, layers: Sequence[nn.Module]) -> None:
    """Let a BERT run these layers alone."""
    model.base_model.encoder.layer = nn.ModuleList(layers)


def fewer_layers(dense: Any, kept: Sequence[int]) -> Any:
    """Return a copy of a BERT with some of its layers."""
    small = copy.deepcopy(dense)
    layers = list(small.base_model.encoder.layer)
    set_layers(small, [layers[i] for i in kept])
    small.config.num_hidden_layers = len(kept)
    return small.eval()


def spread(layers: int, count: int) -> list[int]:
    """Return ``count`` of the layers, evenly spread, as LayerDrop keeps them."""
    return sorted({math.floor(i * layers / count) for i in range(count)})


def torch_pruned(dense: Any, batches: Callable[[], Any], share: float) -> Any:
    """Return a copy pruned by Torch-Pruning: whole dimensions, heads and neurons by group Taylor importance.

    Args:
        dense: The fine-tuned BERT.
        batches: Yields calibration batches with labels.
        share: Of the multiply-accumulates that its own counter must be at or below.
    """
    import torch_pruning

    low, high, found = 0.0, 0.95, None
    for _ in range(7):  # its ratio is one of widths, so the share is found by halving
        ratio = (low + high) / 2
        pruned, reached = _pruned(torch_pruning, dense, batches, ratio)
        if reached > share:
            low = ratio
        else:
            high, found = ratio, pruned
    if found is None:
        raise SystemExit(f"Torch-Pruning does not reach {share}")
    return found


def _pruned(library: Any, dense: Any, batches: Callable[[], Any], ratio: float) -> tuple[Any, float]:
    model = copy.deepcopy(dense).eval()
    model.set_attn_implementation("eager")
    ids = torch.ones(1, 64, dtype=torch.long)
    example = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    heads = {}
    for layer in model.base_model.encoder.layer:
        attention = layer.attention.self
        heads |= dict.fromkeys((attention.query, attention.key, attention.value), attention.num_attention_heads)
    before, _ = library.utils.count_ops_and_params(model, example)
    model.zero_grad()
    for batch in batches():
        batch = {name: tensor for name, tensor in batch.items() if name not in ("length", "teacher_logits")}
        model(**batch).loss.backward()
    pruner = library.pruner.BasePruner(
        model,
        example,
        importance=library.importance.GroupTaylorImportance(),
        pruning_ratio=ratio,
        num_heads=heads,
        prune_num_heads=True,
        prune_head_dims=False,
        head_pruning_ratio=ratio,
        output_transform=lambda output: output.logits.sum(),
        ignored_layers=[model.classifier],
        root_module_types=[nn.Linear],
    )
    pruner.step()
    for layer in model.base_model.encoder.layer:
        attention = layer.attention.self
        attention.num_attention_heads = pruner.num_heads[attention.query]
        attention.all_head_size = attention.query.out_features
    model.zero_grad()
    after, _ = library.utils.count_ops_and_params(model, example)
    model.set_attn_implementation("sdpa")
    return model.eval(), after / before
