"""Turn texts into token ids, cut at what the model can take, and count what was cut."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rheostat.data.optional import require
from rheostat.data.store import scratch_file
from rheostat.data.tasks import check_known, encode_batch
from rheostat.errors import OptionError

if TYPE_CHECKING:
    import datasets

_BATCH_ROWS = 1_000
# Their first position is pad_token_id + 1, so a table of 514 takes 512 tokens.
_POSITIONS_AFTER_PADDING = frozenset({
    "camembert", "data2vec-text", "ibert", "longformer", "luke", "markuplm", "mluke", "mpnet", "roberta",
    "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod",
})  # fmt: skip
# transformers writes int(1e30) when a tokenizer has no limit.
_NO_LIMIT = 1 << 30


@dataclass(frozen=True)
class TokenizedRows:
    """Rows as token ids, and how long they are.

    `dataset` has input_ids, attention_mask, [token_type_ids], labels (when rows have them) and length (in tokens, after
    truncation). `lengths` (N,) are the lengths before truncation.
    """

    dataset: datasets.Dataset
    lengths: npt.NDArray[np.int32]
    max_length: int

    @property
    def truncated(self) -> int:
        """How many rows were cut at `max_length`."""
        return int((self.lengths > self.max_length).sum())

    @property
    def truncated_share(self) -> float:
        """Share of the rows (0 to 1) that were cut at `max_length`."""
        return self.truncated / max(1, len(self.lengths))

    @property
    def median_length(self) -> int:
        """Median of the lengths after truncation, in tokens."""
        return int(np.median(np.minimum(self.lengths, self.max_length))) if len(self.lengths) else 0

    @property
    def longest(self) -> int:
        """Largest length before truncation, in tokens."""
        return int(self.lengths.max(initial=0))

    def note(self) -> str:
        """Say in one line how long the rows are and how many were cut."""
        return (
            f"tokens: median {self.median_length}, longest {self.longest}; {self.truncated:,} of {len(self.lengths):,} "
            f"rows cut at {self.max_length} ({self.truncated_share:.1%})"
        )


def token_limit(tokenizer: Any, config: Any = None) -> int:
    """Return the most tokens that a row may have: the smaller of the tokenizer's limit and the position table.

    RoBERTa's table of 514 takes 512 tokens, because its positions begin after the padding id.
    Raises OptionError when neither has a limit.
    """
    limits = [int(getattr(tokenizer, "model_max_length", _NO_LIMIT) or _NO_LIMIT)]
    positions = getattr(config, "max_position_embeddings", None)
    if isinstance(positions, int) and positions > 0:
        if getattr(config, "model_type", "") in _POSITIONS_AFTER_PADDING:
            positions -= (config.pad_token_id if config.pad_token_id is not None else 1) + 1
        limits.append(positions)
    limit = min(limits)
    if not 0 < limit < _NO_LIMIT:
        raise OptionError(
            "max_length must be given when neither tokenizer nor model has a limit; got none. Use --max-length 512"
        )
    return limit


def with_inputs_of(tokenizer: Any, config: Any) -> Any:
    """Return the tokenizer without inputs that models of ``config`` would ignore.

    transformers 5 gives DistilBERT, which has no token types, the tokenizer of BERT, which makes them; and a saved
    tokenizer does not remember what it was told to leave out.
    """
    if tokenizer is None:
        return None
    import transformers

    taken = inspect.signature(transformers.MODEL_MAPPING[type(config)].forward).parameters
    # GPT-2 has no table of token types: it would add the word of that number to every token
    typed = hasattr(config, "type_vocab_size")
    names = [name for name in tokenizer.model_input_names if name in taken and (typed or name != "token_type_ids")]
    if names != list(tokenizer.model_input_names):
        tokenizer = copy.copy(tokenizer)
        tokenizer.model_input_names = names
    return tokenizer


def tokenize(
    dataset: datasets.Dataset,
    tokenizer: Any,
    *,
    labels: Sequence[str],
    task: str,
    max_length: int,
    keep_text: bool = False,
) -> TokenizedRows:
    """Turn rows into token ids and encoded labels, in batches, as an Arrow file on disk with a progress bar.

    A longer row is cut at `max_length` tokens (of a pair, the longer side first) and counted. Rows without a label
    column come back without labels. Raises DataError that lists labels which are not in `labels`.
    """
    check_token_limit(tokenizer, max_length, pairs="text_pair" in dataset.column_names)
    if "label" in dataset.column_names:
        check_known(dataset, labels, task)
    lengths: list[npt.NDArray[np.int32]] = []

    def encode(batch: dict[str, list[Any]]) -> dict[str, Any]:
        encoded, full = _encode_texts(batch["text"], batch.get("text_pair"), tokenizer, max_length)
        lengths.append(full)
        if "label" in batch:
            encoded["labels"] = encode_batch(batch["label"], labels, task)
        return encoded

    texts = {"text", "text_pair"} if keep_text else set()
    # A name and a fingerprint of our own: a cached result could be that of another tokenizer state.
    mapped = dataset.with_format(None).map(
        encode,
        batched=True,
        batch_size=_BATCH_ROWS,
        remove_columns=[name for name in dataset.column_names if name not in texts],
        cache_file_name=str(scratch_file()),
        load_from_cache_file=False,
        new_fingerprint=scratch_file().stem,
        desc="Tokenizing",
    )
    return TokenizedRows(mapped, np.concatenate(lengths) if lengths else np.zeros(0, np.int32), max_length)


def check_token_limit(tokenizer: Any, max_length: int, *, pairs: bool = False) -> None:
    """Raise OptionError when no token of a text would be left."""
    if isinstance(max_length, bool) or not isinstance(max_length, int) or max_length < 1:
        raise OptionError(f"max_length must be a whole number of tokens, 1 or larger; got {max_length!r}. Use 512")
    special = tokenizer.num_special_tokens_to_add(pairs)
    if max_length <= special:
        raise OptionError(
            f"max_length must be larger than the {special} tokens that the tokenizer adds; got {max_length}. Use 512"
        )


def _encode_texts(
    texts: list[str], pairs: list[str] | None, tokenizer: Any, max_length: int
) -> tuple[dict[str, Any], npt.NDArray[np.int32]]:
    """Return the encoded rows, at most `max_length` long, and the lengths that they would have uncut."""
    arguments = (texts,) if pairs is None else (texts, pairs)
    # verbose=False: the tokenizer's warning about long rows would come on top of our count.
    encoded = dict(tokenizer(*arguments, truncation=False, padding=False, verbose=False))
    full = np.fromiter(map(len, encoded["input_ids"]), np.int32, len(texts))
    for row in np.flatnonzero(full == 0).tolist():
        _fill_empty(encoded, row, tokenizer)
    full = np.maximum(full, 1)
    long = np.flatnonzero(full > max_length).tolist()
    if long:
        cut = tokenizer(
            *[[column[row] for row in long] for column in arguments],
            truncation=True,
            max_length=max_length,
            padding=False,
            verbose=False,
        )
        for name, rows in cut.items():
            for row, values in zip(long, rows, strict=True):
                encoded[name][row] = values
    encoded["length"] = np.minimum(full, max_length)
    return encoded, full


def _fill_empty(encoded: dict[str, Any], row: int, tokenizer: Any) -> None:
    """Give a row without tokens one, in place: tokenizers without special tokens make nothing of an empty text.

    Attention over nothing is NaN, so the token is one that the model attends to.
    """
    known = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, 0)
    values = {"input_ids": next(token for token in known if token is not None), "attention_mask": 1}
    for name in encoded:
        encoded[name][row] = [values.get(name, 0)]


def measure_lengths(dataset: Any, tokenizer: Any) -> npt.NDArray[np.int32]:
    """Return the uncut length of each row in tokens, (N,), with a progress bar."""
    tqdm = require("datasets.utils").tqdm
    has_pairs = "text_pair" in dataset.column_names
    parts = []
    with tqdm(total=len(dataset), desc="Measuring lengths", unit=" rows", delay=1, disable=None) as bar:
        for batch in dataset.with_format(None).iter(_BATCH_ROWS):
            _, full = _encode_texts(batch["text"], batch["text_pair"] if has_pairs else None, tokenizer, _NO_LIMIT)
            parts.append(full)
            bar.update(len(full))
    return np.concatenate(parts) if parts else np.zeros(0, np.int32)
