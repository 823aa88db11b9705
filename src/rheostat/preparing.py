"""What a run needs before its first step: tokenized rows, and the encoder with a classifier for their labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers
from safetensors import SafetensorError
from transformers.image_processing_base import ImageProcessingMixin

from rheostat.architectures import image_shape
from rheostat.checkpoint import CheckpointInfo
from rheostat.console import stderr
from rheostat.data import (
    CAUSAL_LM,
    SINGLE_LABEL,
    Collator,
    Corpus,
    PixelCollator,
    Pixels,
    ReadOptions,
    check_known,
    class_weights,
    pack_blocks,
    token_limit,
    tokenize,
    with_inputs_of,
    with_padding,
)
from rheostat.data.images import ImageCorpus, check_image_options, encoded_images, read_image_part
from rheostat.errors import CheckpointError, DataError, UnsupportedModelError
from rheostat.families import check_model_type
from rheostat.model import BudgetedModel
from rheostat.recipe import TrainOptions
from rheostat.saving import load_config, quiet_transformers


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


def prepare(corpus: Corpus, model_name: str, config: Any, options: TrainOptions) -> Prepared:
    """Tokenize all parts of a corpus for a model.

    Raises:
        DataError: a task that can't be trained.
    """
    if corpus.task == "regression":
        raise DataError(
            "task must be single-label or multi-label to train; got regression. Use labels that are classes"
        )
    check_reads_texts(config)
    tokenizer = with_inputs_of(load_tokenizer_of(model_name), config)
    if check_model_type(config).causal:
        tokenizer = with_padding(tokenizer)
    if corpus.task == CAUSAL_LM:
        return _prepare_blocks(corpus, tokenizer, config, options)
    limit = token_limit(tokenizer, config)
    length = limit if options.max_length is None else min(options.max_length, limit)
    labels = model_labels(config, corpus.labels, head_is_trained=options.trains_head)
    parts = parts_of(corpus, options)
    tokens = {
        name: tokenize(part, tokenizer, labels=labels, task=corpus.task, max_length=length)
        for name, part in parts.items()
        if part is not None
    }
    for name, part in tokens.items():
        stderr.print(f"- {name}: {len(part.dataset):,} rows; {part.note()}", markup=False, soft_wrap=True)
    encoded = np.asarray(tokens["train"].dataset["labels"])
    weighted = options.class_weighting and corpus.task == "single-label"
    return Prepared(
        train=tokens["train"].dataset,
        validation=tokens["validation"].dataset,
        test=tokens["test"].dataset if "test" in tokens else None,
        collator=Collator(tokenizer),
        tokenizer=tokenizer,
        info=CheckpointInfo(corpus.task, labels, length, training={"seed": options.seed}),
        median_length=int(tokens["train"].median_length),
        class_weights=tuple(class_weights(encoded, len(labels)).tolist()) if weighted else None,
    )


def prepare_images(corpus: ImageCorpus, model_name: str, config: Any, options: TrainOptions) -> Prepared:
    """Encode the labels of all parts of images for a model; pixels are made a batch at a time."""
    tokens = check_model_type(config).usual_length(config)
    labels = model_labels(config, corpus.labels, head_is_trained=options.trains_head)
    pixels = Pixels.of(image_shape(config), _preprocessor_of(model_name))
    parts = parts_of(corpus, options)
    rows = {name: encoded_images(part, labels, tokens) for name, part in parts.items() if part is not None}
    weighted = class_weights(np.asarray(rows["train"]["labels"]), len(labels)).tolist()
    return Prepared(
        train=rows["train"],
        validation=rows["validation"],
        test=rows.get("test"),
        collator=PixelCollator(pixels),
        tokenizer=None,
        info=CheckpointInfo("single-label", labels, None, training={"seed": options.seed, "pixels": pixels.to_json()}),
        median_length=tokens,
        class_weights=tuple(weighted) if options.class_weighting else None,
    )


def _preprocessor_of(model_name: str) -> dict[str, Any]:
    """Return what a model folder or Hub name says about its pixels; nothing where it says nothing."""
    try:
        said, _ = ImageProcessingMixin.get_image_processor_dict(model_name)
    except OSError:
        return {}
    return dict(said)


def read_labelled_images(model: BudgetedModel, data: str, options: ReadOptions) -> tuple[Any, PixelCollator]:
    """Return the labelled images of one part (the only one, or the test part) for a checkpoint, and their collator.

    Raises:
        DataError: labels that the model does not know.
    """
    check_image_options(options)
    rows = read_image_part(data, options)
    check_known(rows, model.info.labels, SINGLE_LABEL, data)
    saved = model.info.training.get("pixels")
    pixels = Pixels.of(image_shape(model.config), {}) if saved is None else Pixels.from_json(saved)
    return encoded_images(rows, model.info.labels, model.usual_length), PixelCollator(pixels)


def check_reads_texts(config: Any) -> None:
    """Refuse a model that reads something else.

    Raises:
        UnsupportedModelError: it reads images.
    """
    if check_model_type(config).image_tokens is not None:
        raise UnsupportedModelError(
            f"model must read texts here; got {config.model_type}, which reads images. Give an encoder of texts"
        )


BLOCK_TOKENS = 128  # of causal-lm where nothing is said: what a model takes would be a few slow steps


def _prepare_blocks(corpus: Corpus, tokenizer: Any, config: Any, options: TrainOptions) -> Prepared:
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


def load_tokenizer_of(model_name: str) -> Any:
    """Return the tokenizer of a model folder or Hub name.

    Raises:
        CheckpointError: there is none; transformers then makes one that knows no word.
    """
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(model_name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise CheckpointError(f"model must have a tokenizer; got {model_name!r}: {reason}") from None
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        raise CheckpointError(
            f"model must have a tokenizer with words; {model_name!r} has none. Save the tokenizer beside the model"
        )
    return tokenizer


def load_encoder(model_name: str, info: CheckpointInfo, *, head_is_trained: bool) -> Any:
    """Return the encoder with a classifier for the labels, in float32; only the head may be new, if it is trained.

    For causal-lm: the decoder with the projection to its vocabulary, nothing of it new.

    Raises:
        CheckpointError: a weight is missing or unreadable, or the model has a classifier of another size.
    """
    names = dict(enumerate(info.labels))
    images = check_model_type(load_config(model_name)).image_tokens is not None
    auto: Any = (
        transformers.AutoModelForImageClassification if images else transformers.AutoModelForSequenceClassification
    )
    head: dict[str, Any] = {
        "num_labels": len(names),
        "id2label": names,
        "label2id": {name: i for i, name in names.items()},
        "problem_type": "multi_label_classification" if info.task == "multi-label" else "single_label_classification",
    }
    if info.task == CAUSAL_LM:
        auto, head, head_is_trained = transformers.AutoModelForCausalLM, {}, False
    try:
        with quiet_transformers():
            model, report = auto.from_pretrained(
                model_name,
                **head,
                dtype=torch.float32,
                output_loading_info=True,
                trust_remote_code=False,
            )
    except SafetensorError as error:
        raise CheckpointError(
            f"weights of {model_name!r} must be readable; got {error}: cut short or damaged. Copy them again"
        ) from None
    except RuntimeError as error:
        if "ignore_mismatched_sizes" not in str(error):
            raise
        raise CheckpointError(
            f"model must have a classifier for the {len(names)} labels of the data, or none; {model_name!r} has one of "
            "another size. Give the encoder that it was fine-tuned from, or data with its labels"
        ) from None
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise CheckpointError(f"model must load with {len(names)} labels; got {model_name!r}: {reason}") from None
    prefix = f"{model.base_model_prefix}."
    missing = sorted(report["missing_keys"])
    lost = [name for name in missing if name.startswith(prefix) and ".pooler." not in name]
    if lost:
        raise CheckpointError(f"model must hold all encoder weights; {model_name!r} lacks {', '.join(lost[:5])}")
    if missing and info.task == CAUSAL_LM:
        raise CheckpointError(f"model must hold all weights of its language head; {model_name!r} lacks {missing[:5]}")
    if missing and not head_is_trained:
        raise CheckpointError(
            f"model must be fine-tuned already to train with warm_epochs 0; {model_name!r} lacks "
            f"{', '.join(missing[:5])}. Give a fine-tuned model, or warm_epochs above 0"
        )
    return model
