"""What a run needs before its first step: tokenized rows, and the encoder with a head for its task."""

from __future__ import annotations

from rheostat.preparing.checkpoints import rows_for
from rheostat.preparing.encoders import load_encoder, load_tokenizer_of
from rheostat.preparing.images import prepare_images, read_labelled_images
from rheostat.preparing.parts import Prepared, model_labels, parts_of, some_rows
from rheostat.preparing.texts import check_reads_texts, prepare, tokenized

__all__ = [
    "Prepared",
    "check_reads_texts",
    "load_encoder",
    "load_tokenizer_of",
    "model_labels",
    "parts_of",
    "prepare",
    "prepare_images",
    "read_labelled_images",
    "rows_for",
    "some_rows",
    "tokenized",
]
