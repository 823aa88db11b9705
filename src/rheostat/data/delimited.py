"""Read CSV and TSV row by row, strictly: a row of another width or a broken quote is an error with its line.

The reader is the standard library's `csv` in strict mode. It never guesses types or missing values, so "NA" stays a
text; it knows the line it is at; and it streams, so memory does not grow with the file. Readers that are faster
(pyarrow's, pandas') accept `"a" b` as a cell, can't name the line of a ragged row once they read in parallel, or need
a block larger than the largest cell.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rheostat.data.columns import find_columns, number_columns, roles
from rheostat.data.decoding import decode_error, mojibake_note, open_text
from rheostat.data.options import DEFAULTS, ReadOptions, delimiter_of
from rheostat.data.wording import counted
from rheostat.errors import DataError

BATCH_ROWS = 10_000
BATCH_CHARS = 8 << 20
# A quote that is never closed makes one cell of the rest of the file; this bounds what it can take.
MAX_CELL_CHARS = 16 << 20
_MAX_SUSPECTS = 1_000

Columns = dict[str, list[Any]]


class DelimitedSource:
    """Read one CSV or TSV file; `batches()` yields columns, and `notes()` afterwards says what was met."""

    def __init__(self, path: Path, options: ReadOptions) -> None:
        """Remember what to read; nothing is opened yet."""
        self.path = path
        self.options = options
        self.delimiter = delimiter_of(path, options)
        self.names: tuple[str, ...] = ()
        self.blank_lines = 0
        self.header_lines: list[int] = []  # lines of rows that repeat the header
        self.rows_over_lines = 0
        # (first line of a row, labels that its inner lines would have if they were rows)
        self.suspects: list[tuple[int, frozenset[str]]] = []

    def batches(self) -> Iterator[Columns]:
        """Yield the text, pair and label columns of up to 10,000 rows at a time."""
        if csv.field_size_limit() < MAX_CELL_CHARS:  # process-wide in `csv`, so it is only ever raised
            csv.field_size_limit(MAX_CELL_CHARS)
        with open_text(self.path, self.options.encoding, newline="") as handle:
            if self.options.quotes:
                yield from self._batches(csv.reader(handle, delimiter=self.delimiter, strict=True))
            else:
                yield from self._batches(csv.reader(handle, delimiter=self.delimiter, quoting=csv.QUOTE_NONE))

    def _batches(self, reader: Any) -> Iterator[Columns]:
        rows = self._rows(reader)
        first = next(rows, None)
        if first is None:
            raise DataError(f"{self.path}: has only blank lines. Give a file with a text and a label in each row")
        places = self._places(first[1])
        columns: Columns = {role: [] for role in places}
        picks = [(place, columns[role].append) for role, place in places.items()]
        text_at, label_at = places["text"], places.get("label", places["text"])
        chars = count = 0
        header_label = first[1][label_at] if self.options.header else None
        if not self.options.header:
            rows = _chain(first, rows)
        width = len(first[1])
        for line, row in rows:
            if len(row) != width:
                raise self._ragged(line, row, width, first[0])
            if row[label_at] == header_label and row == first[1]:
                self.header_lines.append(line)
            if reader.line_num > line:
                self._remember_long_row(line, row[text_at], label_at, width)
            for place, append in picks:
                append(row[place])
            chars += len(row[text_at])
            count += 1
            if len(columns["text"]) == BATCH_ROWS or chars >= BATCH_CHARS:
                yield columns
                columns = {role: [] for role in places}
                picks = [(place, columns[role].append) for role, place in places.items()]
                chars = 0
        if not count:
            raise DataError(f"{self.path}: has a header and no rows. Add rows, or use --no-header if it is a row")
        if columns["text"]:
            yield columns

    def _rows(self, reader: Any) -> Iterator[tuple[int, list[str]]]:
        """Yield (first line, cells) of each row; blank lines are counted and left out."""
        line = 1
        try:
            for row in reader:
                if len(row) > 1 or (row and row[0].strip()):
                    yield line, row
                else:
                    self.blank_lines += 1
                line = reader.line_num + 1
        except csv.Error as error:
            raise self._broken(line, reader.line_num, error) from error
        except UnicodeError as error:
            raise decode_error(self.path, self.options.encoding, error) from error

    def _places(self, first: list[str]) -> dict[str, int]:
        if self.options.header:
            self.names = tuple(name.strip() for name in first)
            return find_columns(first, self.options, str(self.path), self.delimiter)
        self.names = tuple(str(number + 1) for number in range(len(first)))
        places = number_columns(len(first), self.options, str(self.path))
        usual = {"text": DEFAULTS.text_column, "label": DEFAULTS.label_column}
        if all(first[place].strip().lower() == usual.get(role) for role, place in places.items()):
            raise DataError(f"{self.path}, line 1: looks like a header ({first!r}). Leave out --no-header")
        return places

    def _remember_long_row(self, line: int, text: str, label_at: int, width: int) -> None:
        self.rows_over_lines += 1
        if len(self.suspects) >= _MAX_SUSPECTS:
            return
        inner = [part.split(self.delimiter) for part in text.splitlines()]
        labels = frozenset(parts[label_at].strip() for parts in inner if len(parts) == width)
        if labels:
            self.suspects.append((line, labels))

    def _ragged(self, line: int, row: list[str], width: int, first_line: int) -> DataError:
        cause = (
            f"Quote the cell that holds {self.delimiter!r}, or set --delimiter"
            if len(row) > width
            else "Add what is missing, or set --delimiter"
        )
        return DataError(
            f"{self.path}, line {line}: a row must have {width} fields like line {first_line}; got {len(row)}. {cause}"
        )

    def _broken(self, line: int, last_line: int, error: csv.Error) -> DataError:
        text = str(error)
        where = f"{self.path}, line {line}"
        if "field limit" in text:
            return DataError(
                f"{where}: a cell must have at most {MAX_CELL_CHARS:,} characters; got more by line {last_line}. "
                "Close the quote that begins there, or use --no-quotes when quotes are plain characters in this file"
            )
        lines = f"the row that begins here goes on to line {last_line}" if last_line > line else "the row is broken"
        return DataError(
            f"{where}: {lines} ({text}). Write a quote inside a cell twice and close it before the next "
            f"{self.delimiter!r}, or use --no-quotes when quotes are plain characters in this file"
        )

    def format_note(self) -> str:
        """Say how the file was understood."""
        return f"delimiter {self.delimiter!r}, encoding {self.options.encoding}, columns {list(self.names)!r}"

    def notes(self, labels: frozenset[str]) -> list[str]:
        """Return what was met while reading, one line each; `labels` are the labels of all rows."""
        found = []
        if not self.options.header:
            shown = ", ".join(roles(self.options))
            found.append(f"no header: columns are counted from 1; used for {shown}")
        found.extend(mojibake_note(self.path, self.options.encoding))
        if self.blank_lines:
            found.append(f"{counted(self.blank_lines, 'blank line')} left out")
        if self.header_lines:
            found.append(
                f"{counted(len(self.header_lines), 'row')} with the column names again, the first at line "
                f"{self.header_lines[0]}: files that were joined? They are kept as rows"
            )
        if self.rows_over_lines:
            found.append(f"{counted(self.rows_over_lines, 'row')} with line breaks inside quotes")
        swallowed = [line for line, inner in self.suspects if inner & labels]
        if swallowed:
            found.append(
                f"{counted(len(swallowed), 'row')} with lines inside that look like rows of their own, "
                f"the first at line {swallowed[0]}: a quote that is not closed?"
            )
        return found


def _chain(first: tuple[int, list[str]], rest: Iterator[tuple[int, list[str]]]) -> Iterator[tuple[int, list[str]]]:
    yield first
    yield from rest
