"""Read, check and explain labelled text, and turn it into batches; nothing heavy is imported before it is used."""

from __future__ import annotations

from rheostat.data.batches import Collator, class_weights, length_buckets
from rheostat.data.blocks import pack_blocks, with_padding
from rheostat.data.corpus import Corpus, read_corpus
from rheostat.data.describe import DataReport, describe
from rheostat.data.images import PixelCollator, Pixels, read_images
from rheostat.data.options import CAUSAL_LM, MULTI_LABEL, REGRESSION, SINGLE_LABEL, TASKS, ReadOptions
from rheostat.data.rows import read_rows
from rheostat.data.tasks import check_known, encode_labels
from rheostat.data.tokenizing import TokenizedRows, token_limit, tokenize, with_inputs_of

__all__ = [
    "CAUSAL_LM",
    "MULTI_LABEL",
    "REGRESSION",
    "SINGLE_LABEL",
    "TASKS",
    "Collator",
    "Corpus",
    "DataReport",
    "PixelCollator",
    "Pixels",
    "ReadOptions",
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
    "with_inputs_of",
    "with_padding",
]
