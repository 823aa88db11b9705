"""The models and data sets that experiments name, made once in a work folder."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from rheostat.data import ReadOptions, read_corpus
from rheostat.demo_assets import fetch_minilm, find_data
from rheostat.errors import OptionError
from rheostat.reproduce.distilling import distil
from rheostat.reproduce.synthetic import write_rows

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


def make_data(spec: Mapping[str, Any], work: Path) -> tuple[str, ReadOptions]:
    """Return where the rows of an experiment are, and how they are read.

    ``{kind: named, name: ...}`` is a data set of :func:`rheostat.demo_assets.find_data`; ``{kind: folder, path: ...}``
    your own; ``{kind: synthetic}`` the marked-token task.
    """
    if spec.get("kind") == "named":
        source, column = find_data(str(spec["name"]))
        return source, ReadOptions(text_column=column)
    if spec.get("kind") == "folder":
        return str(spec["path"]), ReadOptions()
    if spec.get("kind") == "synthetic":
        folder = work / "rows"
        if not (folder / "test.csv").is_file():
            write_rows(folder)
        return str(folder), ReadOptions()
    raise OptionError(f"data kind must be named, folder or synthetic; got {spec.get('kind')!r}")


def make_model(spec: Mapping[str, Any], data: str, read: ReadOptions, work: Path, seed: int) -> str:
    """Return the folder or Hub name of an encoder.

    ``{kind: minilm, dropout: ...}``, by default its own 0.1; ``{kind: hub, name: ...}``, a local folder as well;
    ``{kind: words, ...}`` is a word-level BERT with random weights of this seed, see :func:`word_level_model`;
    ``{kind: distilled, ...}`` one of another shape that MiniLM taught, the same for every seed, see
    :func:`rheostat.reproduce.distilling.distil`.
    """
    if spec.get("kind") == "minilm" and "dropout" not in spec:
        return str(fetch_minilm())
    if spec.get("kind") == "hub":
        return str(spec["name"])
    rest = {key: value for key, value in spec.items() if key != "kind"}
    if spec.get("kind") == "minilm":
        changes = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), rest["dropout"])
        return _made(work, "minilm", rest, lambda folder: copy_with_config(fetch_minilm(), folder, **changes))
    if spec.get("kind") == "words":
        return _made(
            work, f"words-{seed}", rest, lambda folder: word_level_model(data, read, folder, seed=seed, **rest)
        )
    if spec.get("kind") == "distilled":
        teacher = str(rest.pop("teacher", None) or fetch_minilm())
        return _made(work, "distilled", rest, lambda folder: distil(teacher, data, read, folder, seed=0, **rest))
    raise OptionError(f"model kind must be minilm, hub, words or distilled; got {spec.get('kind')!r}")


def copy_with_config(source: Path, folder: Path, **changes: Any) -> None:
    """Write a copy of a model's folder with other values in its config."""
    shutil.copytree(source, folder)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, **changes}, indent=2) + "\n", encoding="utf-8")


def _made(work: Path, name: str, spec: Mapping[str, Any], make: Callable[[Path], None]) -> str:
    """Return the folder of a model of this specification, made beside its place first.

    Raises:
        OptionError: a specification with a name that the maker does not know, or without one that it needs.
    """
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:8]
    folder = work / f"{name}-{digest}"
    if not (folder / "config.json").is_file():
        unfinished = folder.with_name(f".{folder.name}")
        shutil.rmtree(unfinished, ignore_errors=True)
        try:
            make(unfinished)
        except TypeError as error:
            if "argument" not in str(error):
                raise
            raise OptionError(f"model must have what its kind needs: {error}") from None
        unfinished.rename(folder)
    return str(folder)


def word_level_model(
    data: str,
    read: ReadOptions,
    folder: Path,
    *,
    seed: int,
    hidden_size: int,
    layers: int,
    heads: int,
    intermediate_size: int,
    vocabulary: int,
    max_length: int,
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
) -> None:
    """Write a BERT with random weights and a tokenizer of the words of the training rows, in the Hugging Face layout.

    Words are runs of letters and digits, and single other marks, in lower case; the ``vocabulary`` most frequent ones
    that occur twice have an embedding, all others share one.

    Args:
        data: The rows; only training texts are read.
        read: How they are read.
        folder: Where it goes.
        seed: Of the weights.
        hidden_size: E.
        layers: L.
        heads: H a layer.
        intermediate_size: F.
        vocabulary: Most words, special ones included.
        max_length: Tokens a row.
        dropout: Of hidden states.
        attention_dropout: Of attention; drawing it takes half of a step on a CPU.
    """
    corpus = read_corpus(data, read)
    tokenizer = word_tokenizer(corpus.train["text"], vocabulary, max_length)
    names = dict(enumerate(corpus.labels))
    config = transformers.BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=intermediate_size,
        max_position_embeddings=max_length,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=attention_dropout,
        type_vocab_size=1,
        num_labels=len(names),
        id2label=names,
        label2id={name: i for i, name in names.items()},
        pad_token_id=tokenizer.pad_token_id,
    )
    transformers.set_seed(seed)
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def word_tokenizer(texts: Any, vocabulary: int, max_length: int) -> Any:
    """Return a word-level tokenizer of ``texts``."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(vocab_size=vocabulary, min_frequency=2, special_tokens=list(SPECIAL))
    tokenizer.train_from_iterator((re.sub(r"\s+", " ", text) for text in texts), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A", pair="[CLS] $A [SEP] $B", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=max_length,
        model_input_names=["input_ids", "attention_mask"],
    )
