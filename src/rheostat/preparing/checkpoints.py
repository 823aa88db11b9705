"""Rows for a checkpoint that is there already, read as it was trained to read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rheostat.checkpoint import task_of
from rheostat.console import stderr
from rheostat.data import CAUSAL_LM, Collator, PixelCollator, ReadOptions, pack_blocks, read_rows
from rheostat.errors import OptionError
from rheostat.model import BudgetedModel
from rheostat.preparing.images import read_labelled_images
from rheostat.preparing.texts import tokenized

Collated = Collator | PixelCollator


def rows_for(model: BudgetedModel, data: str, options: ReadOptions) -> tuple[Any, Collated, dict[str, Any]]:
    """Return the rows of a file for a checkpoint, their collator, and what they are, to be printed with results.

    Args:
        model: The checkpoint.
        data: A file; for images a folder or Hub name too.
        options: How it is read, with the checkpoint's task.

    Raises:
        DataError: rows that can't be read, or labels that the model does not know.
        OptionError: texts for a checkpoint without a tokenizer.
    """
    conditions: dict[str, Any] = {"data": Path(data).name}
    if model.spec.image_tokens is not None:
        images, pixels = read_labelled_images(model, data, options)
        return images, pixels, {**conditions, "images": len(images)}
    rows, notes = read_rows(data, options)
    for note in notes:
        stderr.print(f"- {note}", markup=False, soft_wrap=True)
    if model.tokenizer is None:
        raise OptionError("the checkpoint must hold a tokenizer to read texts; it does not. Save it with one")
    conditions["rows"] = len(rows)
    if task_of(model.info) == CAUSAL_LM:
        length = model.info.max_length or model.tokenizer.model_max_length
        blocks = pack_blocks(rows, model.tokenizer, length)
        return blocks, Collator(model.tokenizer), {**conditions, "blocks": f"{len(blocks):,} of {length} tokens"}
    tokens = tokenized(rows, model.tokenizer, model.info)
    stderr.print(f"- {tokens.note()}", markup=False, soft_wrap=True)
    return tokens.dataset, Collator(model.tokenizer), conditions
