"""Rows of words with a label each, whatever they were written as."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rheostat.data.options import TOKEN_CLASSIFICATION
from rheostat.errors import DataError


def with_words(batches: Iterator[dict[str, Any]], where: str) -> Iterator[dict[str, Any]]:
    """Yield the columns text (words with blanks between), words and label (lists of the same length).

    A cell is a list, or a text whose words are separated by blanks.

    Raises:
        DataError: a row has not as many labels as words.
    """
    row = 0
    for batch in batches:
        words, labels = (_lists(batch[role]) for role in ("text", "label"))
        for place, (cell, names) in enumerate(zip(words, labels, strict=True)):
            if len(cell) != len(names):
                raise DataError(
                    f"{where}: a row must have a label for every word; got {len(cell)} words and {len(names)} labels "
                    f"in row {row + place + 1}: {' '.join(cell)[:60]!r}. Separate both by blanks, or write lists"
                )
        row += len(words)
        yield {"text": [" ".join(cell) for cell in words], "words": words, "label": labels}


def _lists(column: Any) -> list[list[str]]:
    cells = column if isinstance(column, list) else column.to_pylist()
    return [cell.split() if isinstance(cell, str) else list(cell) for cell in cells]


def check_has_words(dataset: Any, where: str) -> None:
    """Refuse rows that were read for another task.

    Raises:
        DataError: there is no column of words.
    """
    if "words" not in dataset.column_names:
        raise DataError(
            f"{where}: rows must have a label for every word; got texts with labels of their own. "
            f"Use --task {TOKEN_CLASSIFICATION}"
        )
