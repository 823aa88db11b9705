"""Texts or images in, answers out: make a batch, run it, and name the classes or return the vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rheostat.architectures import image_shape
from rheostat.checkpoint import CheckpointInfo, task_of
from rheostat.data.images import Pixels
from rheostat.data.options import CAUSAL_LM, EMBEDDING, TOKEN_CLASSIFICATION
from rheostat.data.tokenizing import token_limit
from rheostat.errors import OptionError
from rheostat.predictions import Prediction, TaggedText, interpret, interpret_words

Answers = Callable[[Mapping[str, Tensor]], Tensor]
_CALLS = {EMBEDDING: "encode", CAUSAL_LM: "generate"}


def predict_texts(
    answers: Answers,
    tokenizer: Any,
    info: CheckpointInfo,
    texts: Sequence[str] | Sequence[tuple[str, str]],
    *,
    budget: float,
    device: torch.device,
    config: Any = None,
    batch_size: int = 32,
) -> list[Prediction] | list[TaggedText]:
    """Return one prediction a text, in order; of a token classifier the labels of its words.

    Args:
        answers: Maps a batch (B, S) to logits (B, C); of tokens (B, S, C).
        tokenizer: A Hugging Face tokenizer.
        info: Task, labels and longest input.
        texts: Texts, or pairs of texts; longer ones are truncated to ``info.max_length`` tokens, or to what tokenizer
            and model can take.
        budget: Reported with every answer.
        device: Where the model is.
        config: Of the model, for its position table.
        batch_size: Rows a batch; rows of similar length go together.

    Raises:
        OptionError: a model without labels, no tokenizer, ``texts`` is not a sequence of text, or ``batch_size`` is
            below 1.
    """
    task = task_of(info)
    if task in _CALLS:
        raise OptionError(
            f"predict gives labels, and a model of task {task} has none. Call {_CALLS[task]}, with a budget"
        )
    found: dict[int, Any] = {}
    for chosen, rows, logits in _answered(answers, tokenizer, info, texts, device, config, batch_size):
        if task == TOKEN_CLASSIFICATION:
            for place, row, own in zip(chosen, rows, logits, strict=True):
                text = str(texts[place])
                found[place] = interpret_words(text, own, row.word_ids(), row["offset_mapping"], info, budget)
        else:
            found.update(zip(chosen, interpret(torch.stack(logits), info, budget), strict=True))
    return [found[i] for i in range(len(texts))]


def predict_images(
    answers: Answers,
    info: CheckpointInfo,
    images: Sequence[Any],
    *,
    budget: float,
    device: torch.device,
    config: Any,
    batch_size: int = 32,
) -> list[Prediction]:
    """Return one prediction an image, in order.

    Args:
        answers: Maps pixels to logits (B, C).
        info: Labels, and how images become pixels.
        images: See :class:`rheostat.data.Pixels`.
        budget: Reported with every answer.
        device: Where the model is.
        config: Of the model, for the size of its images.
        batch_size: Images a batch.

    Raises:
        OptionError: ``images`` is no list, or ``batch_size`` is below 1.
        DataError: an image of another form.
    """
    _check_batch_size(batch_size)
    if not isinstance(images, Sequence) or isinstance(images, str | bytes):
        raise OptionError(f"images must be a list of images; got {type(images).__name__}. Pass [image]")
    pixels = pixels_of(info, config)
    found: list[Prediction] = []
    for start in range(0, len(images), batch_size):
        batch = {"pixel_values": pixels(images[start : start + batch_size]).to(device)}
        with torch.inference_mode():
            found += interpret(answers(batch).float().cpu(), info, budget)
    return found


def pixels_of(info: CheckpointInfo, config: Any) -> Pixels:
    """Return how images become the pixels of a checkpoint: as it was trained, else with the usual 0.5 and 0.5."""
    saved = info.training.get("pixels")
    return Pixels.of(image_shape(config), {}) if saved is None else Pixels.from_json(saved)


def encode_texts(
    answers: Answers,
    tokenizer: Any,
    info: CheckpointInfo,
    texts: Sequence[str],
    *,
    device: torch.device,
    config: Any = None,
    batch_size: int = 32,
) -> NDArray[np.float32]:
    """Return the vector of every text, (N, E), in order; see :func:`predict_texts` for the arguments.

    Raises:
        OptionError: a model that gives labels, no tokenizer, ``texts`` is not a sequence of text, or ``batch_size`` is
            below 1.
    """
    if task_of(info) != EMBEDDING:
        raise OptionError(f"encode gives vectors, and a model of task {task_of(info)} has none. Call predict")
    given = [info.prompt + text if isinstance(text, str) else text for text in _checked(texts)]
    found = np.zeros((len(given), int(getattr(config, "hidden_size", 0))), np.float32)
    for chosen, _, vectors in _answered(answers, tokenizer, info, given, device, config, batch_size):
        found[chosen] = torch.stack(vectors).numpy()
    return found


def _answered(
    answers: Answers,
    tokenizer: Any,
    info: CheckpointInfo,
    texts: Sequence[str] | Sequence[tuple[str, str]],
    device: torch.device,
    config: Any,
    batch_size: int,
) -> Iterator[tuple[list[int], list[Any], list[Tensor]]]:
    """Yield (places, encoded rows, answers on the CPU) of batches of similar length; of tokens without padding."""
    if tokenizer is None:
        raise OptionError("tokenizer must be set to predict texts; got None. Pass tokenizer= to rheostat.wrap")
    _check_batch_size(batch_size)
    max_length = info.max_length or token_limit(tokenizer, config)
    by_word = info.task == TOKEN_CLASSIFICATION
    rows = [_encode(tokenizer, text, max_length, by_word=by_word) for text in _checked(texts, pairs=not by_word)]
    by_length = sorted(range(len(rows)), key=lambda i: len(rows[i]["input_ids"]))
    for start in range(0, len(rows), batch_size):
        chosen = by_length[start : start + batch_size]
        inputs = [{name: rows[i][name] for name in rows[i] if name != "offset_mapping"} for i in chosen]
        batch = tokenizer.pad(inputs, return_tensors="pt").to(device)
        with torch.inference_mode():
            found = list(answers(batch).float().cpu())
        if by_word:
            masks = batch["attention_mask"].bool().cpu()
            found = [logits[mask] for logits, mask in zip(found, masks, strict=True)]
        yield chosen, [rows[i] for i in chosen], found


def _check_batch_size(batch_size: int) -> None:
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise OptionError(f"batch_size must be a whole number, 1 or more; got {batch_size!r}. The default is 32")


def _checked(texts: Any, *, pairs: bool = True) -> Any:
    if not isinstance(texts, Sequence) or isinstance(texts, str) or not all(_is_text(text, pairs) for text in texts):
        kind = "texts or of pairs of texts" if pairs else "texts"
        raise OptionError(f"texts must be a list of {kind}; got {texts!r:.80}. Pass ['...']")
    return texts


def _is_text(item: object, pairs: bool) -> bool:
    """Return whether ``item`` is a text, or a pair of texts where these are taken."""
    if pairs and isinstance(item, tuple | list):
        return len(item) == 2 and all(isinstance(part, str) for part in item)
    return isinstance(item, str)


def _encode(tokenizer: Any, text: str | Sequence[str], max_length: int, *, by_word: bool) -> Any:
    pair = (text,) if isinstance(text, str) else tuple(text)
    more = {"return_offsets_mapping": True} if by_word else {}
    return tokenizer(*pair, truncation=True, max_length=max_length, **more)
