"""Texts for a causal language model: blocks of tokens."""

from __future__ import annotations

from typing import Any

from rheostat.checkpoint import CheckpointInfo
from rheostat.console import stderr
from rheostat.data import CAUSAL_LM, Collator, Corpus, pack_blocks, token_limit
from rheostat.errors import DataError
from rheostat.families import check_model_type
from rheostat.preparing.parts import Prepared, parts_of
from rheostat.recipe import TrainOptions

BLOCK_TOKENS = 128  # of causal-lm where nothing is said: what a model takes would be a few slow steps


def prepare_blocks(corpus: Corpus, tokenizer: Any, config: Any, options: TrainOptions) -> Prepared:
    """Pack all parts of a corpus into blocks for a causal language model.

    Raises:
        DataError: an encoder, or too few texts.
    """
    if not check_model_type(config).causal:
        raise DataError(
            f"task {CAUSAL_LM} must have a decoder, GPT-2 or Llama for example; got a {config.model_type} model. "
            "Give another model, or data with labels"
        )
    length = min(options.max_length or BLOCK_TOKENS, token_limit(tokenizer, config))
    parts = parts_of(corpus, options)
    blocks = {name: pack_blocks(part, tokenizer, length) for name, part in parts.items() if part is not None}
    for name, part in blocks.items():
        stderr.print(f"- {name}: {len(part):,} blocks of {length} tokens", markup=False, soft_wrap=True)
    return Prepared(
        train=blocks["train"],
        validation=blocks["validation"],
        test=blocks.get("test"),
        collator=Collator(tokenizer),
        tokenizer=tokenizer,
        info=CheckpointInfo(CAUSAL_LM, (), length, training={"seed": options.seed}),
        median_length=length,
        class_weights=None,
    )
