"""Read, check and explain labelled text, and turn it into batches; nothing heavy is imported before it is used."""

from __future__ import annotations

from rheostat.data.batches import NOT_COUNTED, Collator, class_weights, length_buckets
from rheostat.data.blocks import pack_blocks, with_padding
from rheostat.data.corpus import Corpus, read_corpus
from rheostat.data.describe import DataReport, describe
from rheostat.data.images import PixelCollator, Pixels, read_images
from rheostat.data.options import (
    CAUSAL_LM,
    EMBEDDING,
    MULTI_LABEL,
    REGRESSION,
    SINGLE_LABEL,
    TASKS,
    TOKEN_CLASSIFICATION,
    ReadOptions,
)
from rheostat.data.rows import read_rows
from rheostat.data.tagging import TaggedRows, tokenize_words, word_tokenizer
from rheostat.data.tasks import check_known, encode_labels
from rheostat.data.tokenizing import TokenizedRows, token_limit, tokenize, with_inputs_of

__all__ = [
    "CAUSAL_LM",
    "EMBEDDING",
    "MULTI_LABEL",
    "NOT_COUNTED",
    "REGRESSION",
    "SINGLE_LABEL",
    "TASKS",
    "TOKEN_CLASSIFICATION",
    "Collator",
    "Corpus",
    "DataReport",
    "PixelCollator",
    "Pixels",
    "ReadOptions",
    "TaggedRows",
    "TokenizedRows",
    "check_known",
    "class_weights",
    "describe",
    "encode_labels",
    "length_buckets",
    "pack_blocks",
    "read_corpus",
    "read_images",
    "read_rows",
    "token_limit",
    "tokenize",
    "tokenize_words",
    "with_inputs_of",
    "with_padding",
    "word_tokenizer",
]
