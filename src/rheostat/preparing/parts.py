"""The parts of a corpus as a run takes them: how many rows, which labels, and what they are once prepared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rheostat.checkpoint import CheckpointInfo
from rheostat.data import Collator, Corpus, PixelCollator
from rheostat.data.images import ImageCorpus
from rheostat.errors import DataError
from rheostat.recipe import TrainOptions


@dataclass(frozen=True)
class Prepared:
    """Tokenized rows and what the model must know about them."""

    train: Any
    validation: Any
    test: Any
    collator: Collator | PixelCollator
    tokenizer: Any
    info: CheckpointInfo
    median_length: int
    class_weights: tuple[float, ...] | None


def parts_of(corpus: Corpus | ImageCorpus, options: TrainOptions) -> dict[str, Any]:
    """Return the rows of every part that are used; of a part that is not there None."""
    return {
        "train": some_rows(corpus.train, options.max_train_rows, options.seed),
        "validation": some_rows(corpus.validation, options.max_validation_rows, options.seed),
        "test": corpus.test,
    }


def some_rows(rows: Any, most: int | None, seed: int) -> Any:
    """Return all rows, or ``most`` of them in their order."""
    if most is None or most >= len(rows):
        return rows
    return rows.select(np.sort(np.random.default_rng(seed).permutation(len(rows))[:most]))


def model_labels(config: Any, labels: tuple[str, ...], *, head_is_trained: bool) -> tuple[str, ...]:
    """Return the label names in the order of the logits: the model's, if they are those of the data.

    Raises:
        DataError: the model's classes are others than those of the data, and its head is not trained anew.
    """
    names = tuple(str(config.id2label[i]) for i in sorted(config.id2label))
    if set(names) == set(labels) and len(names) == len(labels):
        return names
    if head_is_trained:
        return labels
    raise DataError(
        f"labels must be those of the fine-tuned model, {list(names)[:20]}; got {list(labels)[:20]}. "
        "Rename them in the data or the model's config, or train with warm_epochs above 0"
    )
