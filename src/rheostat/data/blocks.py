"""Texts for a causal language model: one after the other, an end after each, cut into blocks of equal length."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from rheostat.data.store import scratch_file
from rheostat.errors import DataError, OptionError

if TYPE_CHECKING:
    import datasets

_BATCH_ROWS = 1_000


def pack_blocks(dataset: datasets.Dataset, tokenizer: Any, length: int) -> datasets.Dataset:
    """Return the texts of a data set as blocks of ``length`` tokens, in their order.

    Columns are input_ids, attention_mask (all ones), labels (the same tokens: a model shifts them itself) and length.
    What does not fill a block at the end is left out.

    Raises:
        OptionError: ``length`` is below 2, or the tokenizer has no token that ends a text.
        DataError: the texts fill no block.
    """
    if isinstance(length, bool) or not isinstance(length, int) or length < 2:
        raise OptionError(f"max_length must be a whole number of tokens, 2 or more; got {length!r}. Use 128")
    end = tokenizer.eos_token_id
    if end is None:
        raise OptionError(
            f"the tokenizer must have a token that ends a text; got none in {type(tokenizer).__name__}. "
            "Set tokenizer.eos_token"
        )
    waiting: list[int] = []

    def pack(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        for ids in tokenizer(batch["text"], add_special_tokens=False, verbose=False)["input_ids"]:
            waiting.extend((*ids, end))
        blocks = [waiting[start : start + length] for start in range(0, len(waiting) - length + 1, length)]
        del waiting[: len(blocks) * length]
        return {
            "input_ids": blocks,
            "attention_mask": [[1] * length for _ in blocks],
            "labels": blocks,
            "length": [length for _ in blocks],
        }

    # A name and a fingerprint of our own: a cached result could be that of another tokenizer state.
    packed = dataset.with_format(None).map(
        pack,
        batched=True,
        batch_size=_BATCH_ROWS,
        remove_columns=dataset.column_names,
        cache_file_name=str(scratch_file()),
        load_from_cache_file=False,
        new_fingerprint=scratch_file().stem,
        desc="Tokenizing",
    )
    if not len(packed):
        raise DataError(
            f"texts must fill a block of {length} tokens; got {len(waiting)} in {len(dataset):,} rows. "
            "Add texts, or set a smaller --max-length"
        )
    return packed


def with_padding(tokenizer: Any) -> Any:
    """Return a tokenizer that can pad: one without a padding token gets the one that ends a text for it.

    Raises:
        OptionError: it has neither.
    """
    if tokenizer is None or tokenizer.pad_token_id is not None:
        return tokenizer
    if tokenizer.eos_token is None:
        raise OptionError(
            f"the tokenizer must have a padding token, or one that ends a text; got neither in "
            f"{type(tokenizer).__name__}. Set tokenizer.pad_token"
        )
    tokenizer = copy.deepcopy(tokenizer)  # a shallow copy shares its special tokens
    tokenizer.pad_token = tokenizer.eos_token
    return tokenizer
