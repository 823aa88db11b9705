"""The encoder of a run with the head of its task, and its tokenizer."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from safetensors import SafetensorError

from rheostat.checkpoint import CheckpointInfo, task_of
from rheostat.data import CAUSAL_LM, EMBEDDING, MULTI_LABEL, REGRESSION, TOKEN_CLASSIFICATION
from rheostat.data.options import UNLABELLED
from rheostat.errors import CheckpointError
from rheostat.families import check_model_type
from rheostat.saving import load_config, quiet_transformers


def load_tokenizer_of(model_name: str, *, words: bool = False) -> Any:
    """Return the tokenizer of a model folder or Hub name.

    Args:
        model_name: The folder or name.
        words: Whether it gets rows of words; one that tells a word by the blank before it then puts one before each.

    Raises:
        CheckpointError: there is none; transformers then makes one that knows no word.
    """
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(model_name, trust_remote_code=False)
        if words and getattr(tokenizer, "add_prefix_space", None) is False:
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                model_name, trust_remote_code=False, add_prefix_space=True
            )
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise CheckpointError(f"model must have a tokenizer; got {model_name!r}: {reason}") from None
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        raise CheckpointError(
            f"model must have a tokenizer with words; {model_name!r} has none. Save the tokenizer beside the model"
        )
    return tokenizer


def load_encoder(model_name: str, info: CheckpointInfo, *, head_is_trained: bool) -> Any:
    """Return the encoder with a head for the labels, in float32; only the head may be new, if it is trained.

    For causal-lm the decoder with the projection to its vocabulary, for embedding the encoder alone: nothing is new.

    Raises:
        CheckpointError: a weight is missing or unreadable, or the model has a classifier of another size.
    """
    names = dict(enumerate(info.labels))
    task, images = task_of(info), check_model_type(load_config(model_name)).image_tokens is not None
    auto = _auto_class(task, images=images)
    head: dict[str, Any] = {
        "num_labels": len(names),
        "id2label": names,
        "label2id": {name: i for i, name in names.items()},
        "problem_type": "multi_label_classification" if task == MULTI_LABEL else "single_label_classification",
    }
    if task == REGRESSION:
        head = {"num_labels": 1, "problem_type": "regression"}
    if task in UNLABELLED:
        head, head_is_trained = {}, False
    if task == TOKEN_CLASSIFICATION:
        del head["problem_type"]
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
            f"model must have a classifier for the {head['num_labels']} labels of the data, or none; "
            f"{model_name!r} has one of another size. Give the encoder that it was fine-tuned from, or data with its "
            "labels"
        ) from None
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise CheckpointError(
            f"model must load for task {task} with {len(names)} labels; got {model_name!r}: {reason}"
        ) from None
    prefix = "" if task == EMBEDDING else f"{model.base_model_prefix}."
    missing = sorted(report["missing_keys"])
    lost = [name for name in missing if name.startswith(prefix) and ".pooler." not in f".{name}"]
    if lost:
        raise CheckpointError(f"model must hold all encoder weights; {model_name!r} lacks {', '.join(lost[:5])}")
    if missing and task == CAUSAL_LM:
        raise CheckpointError(f"model must hold all weights of its language head; {model_name!r} lacks {missing[:5]}")
    if missing and not head_is_trained and task != EMBEDDING:
        raise CheckpointError(
            f"model must be fine-tuned already to train with warm_epochs 0; {model_name!r} lacks "
            f"{', '.join(missing[:5])}. Give a fine-tuned model, or warm_epochs above 0"
        )
    return model


def _auto_class(task: str, *, images: bool) -> Any:
    """Return the class of transformers that loads a model for a task."""
    if images:
        return transformers.AutoModelForImageClassification
    others = {
        CAUSAL_LM: transformers.AutoModelForCausalLM,
        EMBEDDING: transformers.AutoModel,
        TOKEN_CLASSIFICATION: transformers.AutoModelForTokenClassification,
    }
    return others.get(task, transformers.AutoModelForSequenceClassification)
