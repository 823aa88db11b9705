"""Texts to padded arrays with the tokenizers library alone; one tokenizer serves all threads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rheostat.errors import CheckpointError, OptionError

STEP = 8  # batches are padded to a multiple of this, so that a runtime sees few shapes
Batch = dict[str, NDArray[np.int64]]


class TextEncoder:
    """Encodes texts as the Hugging Face tokenizer did that wrote the file. Nothing changes after it was made."""

    def __init__(
        self, path: Path, *, pad_id: int, pad_type_id: int, max_length: int, truncation_side: str = "right"
    ) -> None:
        """Read ``tokenizer.json``; ``truncation_side`` is the one that long texts lose.

        Raises:
            CheckpointError: it can't be read.
        """
        try:
            self._tokenizer: Any = Tokenizer.from_file(str(path))
        except Exception as error:  # noqa: BLE001 - the library raises plain Exception
            raise CheckpointError(f"{path.name} must be a tokenizer file; {error}. Export the bundle again") from None
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_length, direction=truncation_side)
        self._pad_id, self._pad_type_id, self.max_length = pad_id, pad_type_id, max_length

    @classmethod
    def of(cls, folder: Path, tokenizer: Mapping[str, Any]) -> TextEncoder:
        """Return the encoder of a bundle in ``folder``, from what its manifest says of the tokenizer."""
        told = {name: tokenizer[name] for name in ("pad_id", "pad_type_id", "max_length", "truncation_side")}
        return cls(folder / tokenizer["file"], **told)

    def encode(self, texts: Sequence[str | tuple[str, str]]) -> list[Any]:
        """Return the encodings of texts or pairs of texts, truncated and not padded.

        Raises:
            OptionError: not a list of texts.
        """
        if not isinstance(texts, Sequence) or isinstance(texts, str) or not all(map(_is_text, texts)):
            raise OptionError(f"texts must be a list of texts or of pairs of texts; got {texts!r:.80}. Pass ['...']")
        try:
            return list(self._tokenizer.encode_batch([t if isinstance(t, str) else tuple(t) for t in texts]))
        except (TypeError, ValueError, UnicodeError) as error:  # half of a surrogate pair, as JSON may hold
            raise OptionError(f"texts must be valid Unicode; {error}. Mend or leave out the text") from None

    def batches(self, encodings: Sequence[Any], batch_size: int) -> Iterator[tuple[list[int], Batch]]:
        """Yield (indices, arrays (B, S)) with encodings of similar length side by side."""
        by_length = sorted(range(len(encodings)), key=lambda i: len(encodings[i].ids))
        for start in range(0, len(by_length), batch_size):
            chosen = by_length[start : start + batch_size]
            yield chosen, self.pad([encodings[i] for i in chosen])

    def pad(self, encodings: Sequence[Any]) -> Batch:
        """Return ids, attention mask and type ids, (B, S), S a multiple of 8 or the longest input."""
        longest = max((len(encoding.ids) for encoding in encodings), default=1)
        length = max(min(-(-longest // STEP) * STEP, self.max_length), longest, 1)
        shape = (len(encodings), length)
        ids, mask = np.full(shape, self._pad_id, np.int64), np.zeros(shape, np.int64)
        types = np.full(shape, self._pad_type_id, np.int64)
        for row, encoding in enumerate(encodings):
            count = len(encoding.ids)
            ids[row, :count] = encoding.ids
            types[row, :count] = encoding.type_ids
            mask[row, :count] = 1
        return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}


def _is_text(item: object) -> bool:
    if isinstance(item, tuple | list):
        return len(item) == 2 and all(isinstance(part, str) for part in item)
    return isinstance(item, str)
