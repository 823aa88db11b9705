"""Read CoNLL files: a word a line with its label in the last column, a blank line after each sentence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rheostat.data.decoding import decode_error, mojibake_note, open_text
from rheostat.data.delimited import BATCH_ROWS
from rheostat.data.options import DEFAULTS, ReadOptions
from rheostat.data.wording import counted
from rheostat.errors import DataError, OptionError

_DOCUMENT = "-DOCSTART-"


class ConllSource:
    """Read one CoNLL file; `batches()` yields columns, and `notes()` afterwards says what was met.

    Columns are separated by tabs where a line has any, else by blanks: the word is the first, its label the last.
    """

    def __init__(self, path: Path, options: ReadOptions) -> None:
        """Remember what to read; nothing is opened yet.

        Raises:
            OptionError: a column was named.
        """
        for name in ("text_column", "text_pair_column", "label_column", "label_separator"):
            if getattr(options, name) != getattr(DEFAULTS, name):
                raise OptionError(
                    f"{name} must be left out for CoNLL files; got {getattr(options, name)!r}. The word is the first "
                    "column, its label the last"
                )
        self.path = path
        self.options = options
        self.names: tuple[str, ...] = ("text", "label")
        self.documents = 0

    def batches(self) -> Iterator[dict[str, Any]]:
        """Yield words and labels, lists of a sentence each, up to 10,000 sentences at a time."""
        texts: list[list[str]] = []
        labels: list[list[str]] = []
        count = 0
        for words, names in self._sentences():
            texts.append(words)
            labels.append(names)
            count += 1
            if len(texts) == BATCH_ROWS:
                yield {"text": texts, "label": labels}
                texts, labels = [], []
        if not count:
            raise DataError(f"{self.path}: has no words. Give a file with a word and its label in each line")
        if texts:
            yield {"text": texts, "label": labels}

    def _sentences(self) -> Iterator[tuple[list[str], list[str]]]:
        words: list[str] = []
        names: list[str] = []
        try:
            with open_text(self.path, self.options.encoding, newline="\n") as handle:
                for line, text in enumerate(handle, start=1):
                    cells = self._cells(line, text.rstrip("\r\n"))
                    if cells is not None:
                        words.append(cells[0])
                        names.append(cells[-1])
                    elif words:
                        yield words, names
                        words, names = [], []
        except UnicodeError as error:
            raise decode_error(self.path, self.options.encoding, error) from error
        if words:
            yield words, names

    def _cells(self, line: int, text: str) -> list[str] | None:
        """Return the columns of a line; None where a sentence ends."""
        if not text.strip():
            return None
        if text.startswith(_DOCUMENT):
            self.documents += 1
            return None
        cells = text.split("\t") if "\t" in text else text.split()
        if len(cells) < 2 or not cells[0].strip():
            raise DataError(
                f"{self.path}, line {line}: a line must hold a word and, in the last column, its label; got "
                f"{text[:40]!r}. Add what is missing"
            )
        return cells

    def format_note(self) -> str:
        """Say how the file was understood."""
        return f"CoNLL, encoding {self.options.encoding}, word first, label last"

    def notes(self, labels: frozenset[str]) -> list[str]:
        """Return what was met while reading, one line each."""
        found = mojibake_note(self.path, self.options.encoding)
        if self.documents:
            found.append(f"{counted(self.documents, 'line')} of {_DOCUMENT} left out")
        return found
