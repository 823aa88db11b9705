"""Tiny models, a WordPiece tokenizer and labelled files for tests: two layers, a few dozen words, seconds to train."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

from rheostat.checkpoint import CheckpointInfo
from rheostat.model import BudgetedModel, wrap

FILLERS = [f"word{i}" for i in range(12)]
# The word that decides the label of a row.
SIGNALS = {"bad": "awful", "good": "great", "soso": "middling"}
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *SIGNALS.values(), *FILLERS]


def tiny_tokenizer(folder: Path, max_length: int = 32) -> BertTokenizerFast:
    """A WordPiece tokenizer of the words that the files use."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "words.txt"
    path.write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    return BertTokenizerFast(vocab=str(path), model_max_length=max_length)


def tiny_config(**changes: Any) -> BertConfig:
    settings: dict[str, Any] = {
        "vocab_size": len(VOCABULARY),
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 32,
        "max_position_embeddings": 32,
        "num_labels": 2,
    }
    return BertConfig(**(settings | changes))


def tiny_classifier(seed: int = 0, **changes: Any) -> BertForSequenceClassification:
    """A random BERT whose biases and norms are not the zeros and ones that hide faults."""
    torch.manual_seed(seed)
    model = BertForSequenceClassification(tiny_config(**changes))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.1)
            elif "LayerNorm" in name:
                parameter.add_(0.1 * torch.randn_like(parameter))
            else:
                parameter.normal_(std=0.2)
    return model.eval()


def tiny_folder(folder: Path, labels: Sequence[str] = ("bad", "good"), **changes: Any) -> Path:
    """Save a tiny classifier with its tokenizer as Hugging Face would; return the folder."""
    names = dict(enumerate(labels))
    changes = {"num_labels": len(labels), "id2label": names, "label2id": {n: i for i, n in names.items()}} | changes
    tiny_classifier(**changes).save_pretrained(folder)
    tokenizer = tiny_tokenizer(folder.parent / f"{folder.name}-words")
    tokenizer.save_pretrained(folder)
    return folder


def tiny_budgeted(
    task: str = "single-label", labels: Sequence[str] = ("bad", "good"), *, seed: int = 0, **options: Any
) -> BudgetedModel:
    """A wrapped tiny classifier; ``options`` are those of ``rheostat.wrap``, model sizes go under ``sizes``."""
    sizes = options.pop("sizes", {})
    base = tiny_classifier(seed, num_labels=len(labels), **sizes)
    settings = {"sequence_length": 8, "neuron_block": 8, "info": CheckpointInfo(task, tuple(labels), 32)} | options
    return wrap(base, **settings)


def text_of(words: Sequence[str], rng: random.Random, length: int | None = None) -> str:
    """A text of fillers with ``words`` among them."""
    chosen = [*rng.choices(FILLERS, k=length or rng.randint(2, 9)), *words]
    rng.shuffle(chosen)
    return " ".join(chosen)


def labelled_rows(count: int, labels: Sequence[str] = ("bad", "good"), seed: int = 0) -> list[tuple[str, str]]:
    """(text, label) pairs; the label is decided by one word."""
    rng = random.Random(seed)
    chosen = [labels[i % len(labels)] for i in range(count)]
    rng.shuffle(chosen)
    return [(text_of([SIGNALS[label]], rng), label) for label in chosen]


def multi_label_rows(count: int, labels: Sequence[str] = ("bad", "good", "soso"), seed: int = 0) -> list[Any]:
    """(text, "a|b") pairs; each label is decided by its own word, and some rows have none or several."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        chosen = [label for label in labels if rng.random() < 0.5]
        rows.append((text_of([SIGNALS[label] for label in chosen], rng), "|".join(chosen)))
    return rows


def write_csv(path: Path, rows: Sequence[tuple[str, str]], header: Sequence[str] = ("text", "label")) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
    return path


def tiny_data(folder: Path, *, validation: bool = True, test: bool = True, train: int = 64, **options: Any) -> Path:
    """A folder with train.csv and, if wanted, validation.csv and test.csv."""
    write_csv(folder / "train.csv", labelled_rows(train, seed=1, **options))
    if validation:
        write_csv(folder / "validation.csv", labelled_rows(24, seed=2, **options))
    if test:
        write_csv(folder / "test.csv", labelled_rows(30, seed=3, **options))
    return folder


def tiny_batch(rows: int = 6, length: int = 7, classes: int = 2, seed: int = 0) -> dict[str, Tensor]:
    """Random tokens (B, S) with padding, and labels (B,)."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, len(VOCABULARY), (rows, length), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, length // 2 :] = 0
    ids[mask == 0] = 0
    labels = torch.randint(0, classes, (rows,), generator=generator)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def weights(model: torch.nn.Module) -> dict[str, Tensor]:
    """A copy of every parameter and buffer."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def largest_difference(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """The largest absolute difference of any number in two state dicts of the same names."""
    if set(a) != set(b):
        raise AssertionError(f"other names: {sorted(set(a) ^ set(b))[:5]}")
    return max((a[name].double() - b[name].double()).abs().max().item() for name in a if a[name].numel())


def write_json(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path
