"""Make batches: pad to the longest row, put rows of similar length together, weigh rare classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rheostat.data.optional import require
from rheostat.errors import DataError, OptionError

if TYPE_CHECKING:
    import torch


NOT_COUNTED = -100  # the label of a token that is not to be predicted, as transformers has it


class Collator:
    """Turn rows into tensors, padded to the longest row of the batch.

    input_ids, attention_mask and token_type_ids are int64 (B, S). labels are int64 (B,) for class numbers, float32
    (B,) for regression, float32 (B, C) for several labels a row and int64 (B, S) for a label a token, padded with
    NOT_COUNTED. teacher_logits, when rows have them, are float32 (B, C). Everything else a row has (length, texts) is
    left out.
    """

    def __init__(self, tokenizer: Any) -> None:
        """Take the padding values of the tokenizer; raise OptionError when it has none."""
        if tokenizer.pad_token_id is None:
            raise OptionError(
                f"the tokenizer must have a padding token; got none in {type(tokenizer).__name__}. "
                "Set tokenizer.pad_token = tokenizer.eos_token"
            )
        self._fill = {
            "input_ids": int(tokenizer.pad_token_id),
            "attention_mask": 0,
            "token_type_ids": int(getattr(tokenizer, "pad_token_type_id", 0) or 0),
        }
        self._left = getattr(tokenizer, "padding_side", "right") == "left"

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Return the batch of these rows."""
        torch_module = require("torch")
        width = max(len(row["input_ids"]) for row in rows)
        batch = {
            name: torch_module.from_numpy(self._padded([row[name] for row in rows], width, fill))  # (B, S)
            for name, fill in self._fill.items()
            if name in rows[0]
        }
        if "labels" in rows[0]:
            batch["labels"] = torch_module.from_numpy(self._labels([row["labels"] for row in rows], width))
        if "teacher_logits" in rows[0]:
            logits = np.asarray([row["teacher_logits"] for row in rows], np.float32)  # (B, C)
            batch["teacher_logits"] = torch_module.from_numpy(logits)
        return batch

    def _labels(self, cells: list[Any], width: int) -> npt.NDArray[Any]:
        if isinstance(cells[0], list) and isinstance(cells[0][0], int):
            return self._padded(cells, width, NOT_COUNTED)
        labels = np.asarray(cells)  # (B,) or (B, C)
        return labels.astype(np.int64 if np.issubdtype(labels.dtype, np.integer) else np.float32)

    def _padded(self, cells: list[Any], width: int, fill: int) -> npt.NDArray[np.int64]:
        padded = np.full((len(cells), width), fill, np.int64)  # (B, S)
        for row, cell in enumerate(cells):
            start = width - len(cell) if self._left else 0
            padded[row, start : start + len(cell)] = cell
        return padded


def length_buckets(
    lengths: Sequence[int] | npt.NDArray[Any], batch_size: int, *, seed: int | None = None, bucket: int = 50
) -> list[list[int]]:
    """Return batches of row numbers of similar length; each row is in exactly one.

    Without a seed rows are sorted by length: the same every time, for evaluation. With a seed rows are shuffled,
    sorted inside buckets of `bucket` batches, and the batches shuffled again, for training. Give each epoch its own
    seed. The last batch may be smaller.

    >>> length_buckets([5, 1, 4, 2], 2)
    [[1, 3], [2, 0]]
    """
    for name, value in (("batch_size", batch_size), ("bucket", bucket)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise OptionError(f"{name} must be a whole number, 1 or larger; got {value!r}. Use 32")
    sizes = np.asarray(lengths)
    if seed is None:
        return _cut(np.argsort(sizes, kind="stable"), batch_size)
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(len(sizes))
    batches: list[list[int]] = []
    for start in range(0, len(shuffled), bucket * batch_size):
        rows = shuffled[start : start + bucket * batch_size]
        batches.extend(_cut(rows[np.argsort(sizes[rows], kind="stable")], batch_size))
    return [batches[place] for place in rng.permutation(len(batches))]


def _cut(rows: npt.NDArray[Any], batch_size: int) -> list[list[int]]:
    return [rows[start : start + batch_size].tolist() for start in range(0, len(rows), batch_size)]


def class_weights(labels_encoded: Sequence[int] | npt.NDArray[Any], num_classes: int) -> npt.NDArray[np.float64]:
    """Return a weight for each class, (C,), inverse to its number of rows; their mean over the rows is 1.

    w_c = N / (P * n_c) with P the number of classes that have rows. A class without rows has weight 1, which no row
    uses: finite, whatever a batch shows.

    >>> class_weights([0, 0, 0, 1], 3).round(3).tolist()
    [0.667, 2.0, 1.0]
    """
    encoded = np.asarray(labels_encoded)
    if encoded.ndim != 1 or not np.issubdtype(encoded.dtype, np.integer) or not len(encoded):
        raise DataError(
            f"class weights must come from class numbers, one a row; got shape {encoded.shape} of {encoded.dtype}. "
            "They are for single-label tasks"
        )
    if encoded.min() < 0 or encoded.max() >= num_classes:
        raise DataError(
            f"class numbers must be between 0 and {num_classes - 1}; got {int(encoded.min())} to {int(encoded.max())}. "
            "Encode labels with encode_labels"
        )
    counts = np.bincount(encoded, minlength=num_classes)  # (C,)
    present = counts > 0
    weights = np.ones(num_classes, np.float64)
    weights[present] = len(encoded) / (present.sum() * counts[present])
    return weights
