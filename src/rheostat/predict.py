"""Texts in, labels out: tokenize, batch by length, run, and name the classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rheostat.checkpoint import CheckpointInfo
from rheostat.data.options import CAUSAL_LM
from rheostat.data.tokenizing import token_limit
from rheostat.errors import OptionError
from rheostat.predictions import Prediction, interpret


def predict_texts(
    logits_of: Callable[[Mapping[str, Tensor]], Tensor],
    tokenizer: Any,
    info: CheckpointInfo,
    texts: Sequence[str] | Sequence[tuple[str, str]],
    *,
    budget: float,
    device: torch.device,
    config: Any = None,
    batch_size: int = 32,
) -> list[Prediction]:
    """Return one prediction a text, in order.

    Args:
        logits_of: Maps a batch (B, S) to logits (B, C).
        tokenizer: A Hugging Face tokenizer.
        info: Task, labels and longest input.
        texts: Texts, or pairs of texts; longer ones are truncated to ``info.max_length`` tokens, or to what tokenizer
            and model can take.
        budget: Reported with every answer.
        device: Where the model is.
        config: Of the model, for its position table.
        batch_size: Rows a batch; rows of similar length go together.

    Raises:
        OptionError: no tokenizer, ``texts`` is not a sequence of text, or ``batch_size`` is below 1.
    """
    if info.task == CAUSAL_LM:
        raise OptionError(f"predict gives labels, and a {CAUSAL_LM} model has none. Call generate, with a budget")
    if tokenizer is None:
        raise OptionError("tokenizer must be set to predict texts; got None. Pass tokenizer= to rheostat.wrap")
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise OptionError(f"batch_size must be a whole number, 1 or more; got {batch_size!r}. The default is 32")
    if not isinstance(texts, Sequence) or isinstance(texts, str) or not all(map(_is_text, texts)):
        raise OptionError(f"texts must be a list of texts or of pairs of texts; got {texts!r:.80}. Pass ['...']")
    max_length = info.max_length or token_limit(tokenizer, config)
    rows = [_encode(tokenizer, text, max_length) for text in texts]
    by_length = sorted(range(len(rows)), key=lambda i: len(rows[i]["input_ids"]))
    answers: dict[int, Prediction] = {}
    for start in range(0, len(rows), batch_size):
        chosen = by_length[start : start + batch_size]
        batch = tokenizer.pad([rows[i] for i in chosen], return_tensors="pt").to(device)
        with torch.inference_mode():
            logits = logits_of(batch).float().cpu()
        answers.update(zip(chosen, interpret(logits, info, budget), strict=True))
    return [answers[i] for i in range(len(rows))]


def _is_text(item: object) -> bool:
    """Return whether ``item`` is a text or a pair of texts."""
    if isinstance(item, tuple | list):
        return len(item) == 2 and all(isinstance(part, str) for part in item)
    return isinstance(item, str)


def _encode(tokenizer: Any, text: str | Sequence[str], max_length: int) -> dict[str, Any]:
    pair = (text,) if isinstance(text, str) else tuple(text)
    encoded: dict[str, Any] = dict(tokenizer(*pair, truncation=True, max_length=max_length))
    return encoded
