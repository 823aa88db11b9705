"""Turn rows of words into token ids: the label of a word is that of its first token, as the field has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rheostat.data.batches import NOT_COUNTED
from rheostat.data.store import scratch_file
from rheostat.data.tasks import check_known
from rheostat.data.tokenizing import TokenizedRows, check_token_limit
from rheostat.data.words import check_has_words
from rheostat.errors import OptionError

if TYPE_CHECKING:
    import datasets

_BATCH_ROWS = 1_000
NO_TOKEN = -1  # where a word has no token: it was cut off, or the tokenizer makes nothing of it


@dataclass(frozen=True)
class TaggedRows(TokenizedRows):
    """Rows of words as token ids.

    `dataset` has input_ids, attention_mask, [token_type_ids], labels (a number a token: that of the word at its first
    token, NOT_COUNTED elsewhere), starts (the first token of every word, NO_TOKEN where there is none), tags (the
    number of every word's label) and length. `lost_words` of `words` have no token.
    """

    words: int
    lost_words: int

    def note(self) -> str:
        """Say in one line how long the rows are and what was cut."""
        return f"{super().note()}; {self.lost_words:,} of {self.words:,} words without a token"


def word_tokenizer(tokenizer: Any) -> Any:
    """Return a tokenizer that takes rows of words.

    Raises:
        OptionError: a slow one, which does not tell where words begin.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise OptionError(
            f"tokenizer must be a fast one to label words; got {type(tokenizer).__name__}. Save it with tokenizer.json"
        )
    return tokenizer


def tokenize_words(dataset: datasets.Dataset, tokenizer: Any, *, labels: Sequence[str], max_length: int) -> TaggedRows:
    """Turn rows of words into token ids and labels, in batches, as an Arrow file on disk with a progress bar.

    A longer row is cut at `max_length` tokens and counted. Raises DataError that lists labels not in `labels`.
    """
    check_has_words(dataset, "data")
    check_token_limit(tokenizer, max_length)
    check_known(dataset, labels, "token-classification")
    places = {name: place for place, name in enumerate(labels)}
    lengths: list[npt.NDArray[np.int32]] = []
    lost = [0, 0]

    def encode(batch: dict[str, list[Any]]) -> dict[str, Any]:
        tags = [[places[name] for name in names] for names in batch["label"]]
        encoded, full = _encode(batch["words"], tags, tokenizer, max_length)
        lengths.append(full)
        lost[0] += sum(map(len, tags))
        lost[1] += sum(starts.count(NO_TOKEN) for starts in encoded["starts"])
        return encoded

    # A name and a fingerprint of our own: a cached result could be that of another tokenizer state.
    mapped = dataset.with_format(None).map(
        encode,
        batched=True,
        batch_size=_BATCH_ROWS,
        remove_columns=dataset.column_names,
        cache_file_name=str(scratch_file()),
        load_from_cache_file=False,
        new_fingerprint=scratch_file().stem,
        desc="Tokenizing",
    )
    found = np.concatenate(lengths) if lengths else np.zeros(0, np.int32)
    return TaggedRows(mapped, found, max_length, lost[0], lost[1])


def _encode(
    words: list[list[str]], tags: list[list[int]], tokenizer: Any, max_length: int
) -> tuple[dict[str, Any], npt.NDArray[np.int32]]:
    """Return the encoded rows, at most `max_length` long, and the lengths that they would have uncut."""
    options = {"is_split_into_words": True, "padding": False, "verbose": False}
    full = np.fromiter(map(len, tokenizer(words, truncation=False, **options)["input_ids"]), np.int32, len(words))
    found = tokenizer(words, truncation=True, max_length=max_length, **options)
    encoded: dict[str, Any] = {name: list(rows) for name, rows in found.items()}
    encoded["starts"] = [_starts(found.word_ids(row), len(cell)) for row, cell in enumerate(words)]
    encoded["tags"] = tags
    encoded["labels"] = [
        _labels(starts, cell, len(ids))
        for starts, cell, ids in zip(encoded["starts"], tags, encoded["input_ids"], strict=True)
    ]
    encoded["length"] = list(map(len, encoded["input_ids"]))
    return encoded, full


def _starts(word_ids: list[int | None], words: int) -> list[int]:
    """Return the first token of every word."""
    starts = [NO_TOKEN] * words
    for token, word in enumerate(word_ids):
        if word is not None and starts[word] == NO_TOKEN:
            starts[word] = token
    return starts


def _labels(starts: list[int], tags: list[int], tokens: int) -> list[int]:
    labels = [NOT_COUNTED] * tokens
    for start, tag in zip(starts, tags, strict=True):
        if start != NO_TOKEN:
            labels[start] = tag
    return labels
