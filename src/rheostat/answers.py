"""What a model answers, whatever it is for: logits of texts or of their tokens, or a vector a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from rheostat.checkpoint import CheckpointInfo, task_of
from rheostat.data.batches import NOT_COUNTED
from rheostat.data.options import CAUSAL_LM, EMBEDDING, TOKEN_CLASSIFICATION
from rheostat.sentences import Pooling

# Entries of a batch that are not inputs of the model.
TARGETS = ("labels", "teacher_logits")
PER_TOKEN = (TOKEN_CLASSIFICATION, CAUSAL_LM)  # an answer a token: too many to keep with the rows


def model_inputs(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the entries of a batch that the model takes."""
    return {name: tensor for name, tensor in batch.items() if name not in TARGETS}


def answers_of(output: Any, inputs: Mapping[str, Tensor], info: CheckpointInfo) -> Tensor:
    """Return the answers of a forward.

    Args:
        output: What the base model returned.
        inputs: What it was given, ``attention_mask`` (B, S) among them for an embedding model.
        info: The checkpoint's.

    Returns:
        Logits (B, C), of tokens (B, S, C); of an embedding model the vectors (B, E).
    """
    if task_of(info) != EMBEDDING:
        logits: Tensor = output.logits
        return logits
    tokens: Tensor = output.last_hidden_state
    mask = inputs.get("attention_mask")
    return pooled(tokens, torch.ones_like(tokens[..., 0]) if mask is None else mask, info.pooling or Pooling())


def pooled(tokens: Tensor, mask: Tensor, pooling: Pooling) -> Tensor:
    """Return the vector of every text, (B, E), from those of its tokens (B, S, E) that ``mask`` (B, S) counts."""
    counted = mask.unsqueeze(-1).to(tokens.dtype)  # (B, S, 1)
    if pooling.mode == "mean":
        vectors = (tokens * counted).sum(dim=1) / counted.sum(dim=1).clamp(min=1e-9)
    elif pooling.mode == "max":
        vectors = tokens.masked_fill(counted == 0, -torch.inf).amax(dim=1)
    else:
        first = mask.int().argmax(dim=1)  # padding may be on either side
        last = mask.shape[1] - 1 - mask.flip(1).int().argmax(dim=1)
        places = (first if pooling.mode == "cls" else last).to(tokens.device)
        vectors = tokens[torch.arange(len(tokens), device=tokens.device), places]
    return F.normalize(vectors, dim=-1) if pooling.normalizes else vectors


def counted_answers(task: str, answers: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the N answers that are to be right, (N, C), with their labels; of tokens those that have one.

    Args:
        task: One of :data:`rheostat.data.TASKS`.
        answers: (B, C), of tokens (B, S, C).
        labels: (B, ...), of tokens (B, S); NOT_COUNTED where there is none. For causal-lm the tokens themselves: the
            answer is to be the next one.
    """
    if task == CAUSAL_LM:
        answers, labels = answers[:, :-1], labels[:, 1:]
    if task not in PER_TOKEN:
        return answers, labels
    counted = labels != NOT_COUNTED
    return answers[counted], labels[counted]
