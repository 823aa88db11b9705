"""Look at texts for what surprises later: empty ones, repeats, repeats that contradict each other, overlaps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rheostat.data.optional import require
from rheostat.data.tasks import SHOWN, Found, RowFinder
from rheostat.data.wording import counted

_BATCH_ROWS = 10_000
# Nothing to see: separators (white space, no-break space), control and format characters (zero width).
_EMPTY = r"^[\pZ\p{Cc}\p{Cf}]*$"
_PUNCTUATION = r"^[\pZ\p{Cc}\p{Cf}\pP]*$"

Keys = npt.NDArray[np.int64]
Groups = npt.NDArray[np.int32]


@dataclass(frozen=True)
class TextChecks:
    """What was found in the texts of one part of the data; rows are counted from 1."""

    empty: Found  # nothing to see in the text (and in its pair)
    punctuation_only: Found
    replaced: Found  # U+FFFD: an earlier program has lost a character here
    repeats: int  # rows whose text an earlier row has
    contradicting: Found  # rows whose text another row has with another label
    keys: Keys  # (N,) equal for equal texts, also in other parts; an empty text equals no other
    groups: Groups  # (N,) the first row with the same text, counted from 0

    def notes(self) -> list[str]:
        """Return what deserves a warning, one line each."""
        found = []
        if self.empty.count:
            found.append(f"empty texts: {self.empty}")
        if self.punctuation_only.count:
            found.append(f"texts of punctuation only: {self.punctuation_only}")
        if self.replaced.count:
            found.append(f"texts with U+FFFD, so damaged before they came here: {self.replaced}")
        if self.repeats:
            found.append(f"repeats: {counted(self.repeats, 'row')} with the text of an earlier row")
        if self.contradicting.count:
            found.append(f"contradicting repeats: {self.contradicting}, the same text with different labels")
        return found


def check_texts(dataset: Any) -> TextChecks:
    """Look at every text once, batch by batch; memory grows by some 20 bytes a row, to find repeats."""
    pc = require("pyarrow.compute")
    empty, punctuation, replaced = RowFinder(), RowFinder(), RowFinder()
    keys, labels, row = np.empty(len(dataset), np.int64), np.zeros(len(dataset), np.int32), 0
    columns = [name for name in ("text", "text_pair") if name in dataset.column_names]
    for table in dataset.with_format("arrow").iter(_BATCH_ROWS):
        texts = [table.column(name) for name in columns]
        nothing = _all(texts, _EMPTY)
        empty.add(nothing, row)
        punctuation.add(pc.and_(_all(texts, _PUNCTUATION), pc.invert(nothing)), row)
        replaced.add(pc.match_substring(texts[0], "\ufffd"), row)
        end = row + table.num_rows
        keys[row:end] = _keys([text.to_pylist() for text in texts], nothing.to_numpy(zero_copy_only=False), row)
        if "label" in dataset.column_names:
            labels[row:end] = _label_keys(table.column("label").to_pylist())
        row = end
    groups = first_rows(keys)
    return TextChecks(
        empty=empty.found(),
        punctuation_only=punctuation.found(),
        replaced=replaced.found(),
        repeats=int((groups != np.arange(len(groups), dtype=np.int32)).sum()),
        contradicting=_contradicting(groups, labels),
        keys=keys,
        groups=groups,
    )


def _all(texts: list[Any], pattern: str) -> Any:
    pc = require("pyarrow.compute")
    flags = pc.match_substring_regex(texts[0], pattern)
    for text in texts[1:]:
        flags = pc.and_(flags, pc.match_substring_regex(text, pattern))
    return flags.combine_chunks()


def _keys(columns: list[list[str]], nothing: npt.NDArray[np.bool_], first_row: int) -> Keys:
    # Python's 64-bit string hash: two million texts collide with probability 1e-7, and only equality is used.
    texts = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
    keys = np.fromiter(map(hash, texts), np.int64, len(texts))
    for place in np.flatnonzero(nothing):
        keys[place] = hash(("empty", first_row + int(place)))
    return keys


def _label_keys(cells: list[Any]) -> npt.NDArray[np.int32]:
    # 32 bits are enough to tell the few labels of one text apart, and halve the memory.
    keys = (hash(frozenset(cell) if isinstance(cell, list) else cell) & 0x7FFFFFFF for cell in cells)
    return np.fromiter(keys, np.int32, len(cells))


def first_rows(keys: Keys) -> Groups:
    """Return for each row the first row with the same key, (N,), counted from 0.

    >>> first_rows(np.array([7, -2, 7, 3])).tolist()
    [0, 1, 0, 3]
    """
    ordered = np.sort(keys)
    repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    del ordered
    rows = np.flatnonzero(_among(keys, repeated))  # few, in most files: only they need grouping
    _, first, inverse = np.unique(keys[rows], return_index=True, return_inverse=True)
    groups = np.arange(len(keys), dtype=np.int32)
    groups[rows] = rows[first][inverse.reshape(-1)]
    return groups


def _among(keys: Keys, ordered: Keys) -> npt.NDArray[np.bool_]:
    """Return which keys are among the ordered ones, (N,); in blocks, so that memory stays flat."""
    found = np.zeros(len(keys), bool)
    if not len(ordered):
        return found
    for start in range(0, len(keys), _BATCH_ROWS):
        block = keys[start : start + _BATCH_ROWS]
        places = np.minimum(np.searchsorted(ordered, block), len(ordered) - 1)
        found[start : start + _BATCH_ROWS] = ordered[places] == block
    return found


def _contradicting(groups: Groups, labels: npt.NDArray[np.int32]) -> Found:
    differing = np.zeros(len(groups), bool)
    differing[groups[labels != labels[groups]]] = True  # first rows whose text has another label elsewhere
    rows = np.flatnonzero(differing[groups]) + 1
    return Found(len(rows), tuple(rows[:SHOWN].tolist()))


def shared_rows(keys: Keys, others: Keys) -> int:
    """Return how many rows of `keys` have a text that is also among `others`."""
    return int(_among(keys, np.sort(others)).sum())
