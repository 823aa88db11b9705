"""Texts for a model, whatever it is for: read parts in, tokenized rows out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from rheostat.checkpoint import CheckpointInfo
from rheostat.console import stderr
from rheostat.data import (
    CAUSAL_LM,
    EMBEDDING,
    REGRESSION,
    SINGLE_LABEL,
    TOKEN_CLASSIFICATION,
    Collator,
    Corpus,
    class_weights,
    token_limit,
    tokenize,
    tokenize_words,
    with_inputs_of,
    with_padding,
    word_tokenizer,
)
from rheostat.entities import check_entities
from rheostat.errors import UnsupportedModelError
from rheostat.families import check_model_type
from rheostat.preparing.blocks import prepare_blocks
from rheostat.preparing.encoders import load_tokenizer_of
from rheostat.preparing.parts import Prepared, model_labels, parts_of
from rheostat.recipe import TrainOptions
from rheostat.saving import local_folder
from rheostat.sentences import read_pooling


def prepare(corpus: Corpus, model_name: str, config: Any, options: TrainOptions) -> Prepared:
    """Tokenize all parts of a corpus for a model.

    Raises:
        DataError: labels that the model's head can't give.
    """
    check_reads_texts(config)
    tokenizer = with_inputs_of(load_tokenizer_of(model_name, words=corpus.task == TOKEN_CLASSIFICATION), config)
    if check_model_type(config).causal:
        tokenizer = with_padding(tokenizer)
    if corpus.task == CAUSAL_LM:
        return prepare_blocks(corpus, tokenizer, config, options)
    info = CheckpointInfo(corpus.task, training={"seed": options.seed})
    limit = token_limit(tokenizer, config)
    if corpus.task == EMBEDDING:
        info = replace(info, pooling=read_pooling(local_folder(model_name)))
        limit = min(limit, (info.pooling and info.pooling.max_length) or limit)
    elif corpus.task != REGRESSION:
        info = replace(info, labels=model_labels(config, corpus.labels, head_is_trained=options.trains_head))
    info = replace(info, max_length=limit if options.max_length is None else min(options.max_length, limit))
    if corpus.task == TOKEN_CLASSIFICATION:
        check_entities(info.labels)
    tokens = {
        name: tokenized(part, tokenizer, info) for name, part in parts_of(corpus, options).items() if part is not None
    }
    for name, part in tokens.items():
        stderr.print(f"- {name}: {len(part.dataset):,} rows; {part.note()}", markup=False, soft_wrap=True)
    if corpus.task == REGRESSION:
        _note_spread(tokens["train"].dataset)
    weighted = options.class_weighting and corpus.task == SINGLE_LABEL
    return Prepared(
        train=tokens["train"].dataset,
        validation=tokens["validation"].dataset,
        test=tokens["test"].dataset if "test" in tokens else None,
        collator=Collator(tokenizer),
        tokenizer=tokenizer,
        info=info,
        median_length=int(tokens["train"].median_length),
        class_weights=_class_weights(tokens["train"].dataset, len(info.labels)) if weighted else None,
    )


def tokenized(rows: Any, tokenizer: Any, info: CheckpointInfo) -> Any:
    """Return rows as the model of ``info`` takes them: :class:`rheostat.data.TokenizedRows`."""
    length = int(info.max_length or tokenizer.model_max_length)
    if info.task == TOKEN_CLASSIFICATION:
        return tokenize_words(rows, word_tokenizer(tokenizer), labels=info.labels, max_length=length)
    if info.prompt:
        rows = rows.map(lambda row: {"text": info.prompt + row["text"]}, load_from_cache_file=False)
    return tokenize(rows, tokenizer, labels=info.labels, task=str(info.task), max_length=length)


def _note_spread(rows: Any) -> None:
    """Say when targets are so far apart, or so near, that the usual learning rates do not fit them."""
    spread = float(np.std(np.asarray(rows["labels"], np.float64)))
    if not 0.1 <= spread <= 10.0:
        stderr.print(
            f"- targets have a standard deviation of {spread:.3g}: the loss is their squared error, so scale them to "
            "about 1 before training",
            markup=False,
            soft_wrap=True,
        )


def _class_weights(rows: Any, classes: int) -> tuple[float, ...]:
    return tuple(class_weights(np.asarray(rows["labels"]), classes).tolist())


def check_reads_texts(config: Any) -> None:
    """Refuse a model that reads something else.

    Raises:
        UnsupportedModelError: it reads images.
    """
    if check_model_type(config).image_tokens is not None:
        raise UnsupportedModelError(
            f"model must read texts here; got {config.model_type}, which reads images. Give an encoder of texts"
        )
