"""Read JSON Lines: one object a line, with its own types for labels (a list is several labels)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rheostat.data.columns import find_columns, option, roles
from rheostat.data.decoding import decode_error, mojibake_note, open_text
from rheostat.data.delimited import BATCH_CHARS, BATCH_ROWS, Columns
from rheostat.data.options import TOKEN_CLASSIFICATION, ReadOptions
from rheostat.data.wording import counted
from rheostat.errors import DataError


class _Number(str):
    """A JSON number with a fraction, or NaN, as it was written: 0.50 is not 0.5 when it names a class."""

    __slots__ = ()


class JsonlSource:
    """Read one JSONL file; `batches()` yields columns, and `notes()` afterwards says what was met."""

    def __init__(self, path: Path, options: ReadOptions) -> None:
        """Remember what to read; nothing is opened yet."""
        self.path = path
        self.options = options
        self.names: tuple[str, ...] = ()
        self.blank_lines = 0
        self.missing_texts = 0
        self._lists: bool | None = None  # whether labels are lists, known from the first one

    def batches(self) -> Iterator[Columns]:
        """Yield the text, pair and label columns of up to 10,000 rows at a time."""
        columns: Columns = {role: [] for role in roles(self.options)}
        chars = count = 0
        for line, row in self._rows():
            if not self.names:
                self.names = tuple(row)
            for role, name in roles(self.options).items():
                if name not in row:
                    find_columns(tuple(row), self.options, f"{self.path}, line {line}")
                cell = self._label(line, row[name]) if role == "label" else self._cell(line, role, row[name])
                columns[role].append(cell)
            chars += len(columns["text"][-1])
            count += 1
            if len(columns["text"]) == BATCH_ROWS or chars >= BATCH_CHARS:
                yield columns
                columns, chars = {role: [] for role in columns}, 0
        if not count:
            raise DataError(f"{self.path}: has no rows. Give a file with one JSON object a line")
        if columns["text"]:
            yield columns

    def _rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        try:
            with open_text(self.path, self.options.encoding, newline="\n") as handle:
                for line, text in enumerate(handle, start=1):
                    if text.strip():
                        yield line, self._parse(line, text)
                    else:
                        self.blank_lines += 1
        except UnicodeError as error:
            raise decode_error(self.path, self.options.encoding, error) from error

    def _parse(self, line: int, text: str) -> dict[str, Any]:
        try:
            row = json.loads(
                text, parse_float=_Number, parse_constant=_Number, parse_int=_int, object_pairs_hook=_object
            )
        except (ValueError, RecursionError) as error:
            remedy = _ARRAY_REMEDY if text.lstrip().startswith("[") else "Mend or remove this line"
            raise DataError(
                f"{self.path}, line {line}: a line must be a JSON object; got {text.strip()[:40]!r} ({error}). {remedy}"
            ) from error
        if not isinstance(row, dict):
            raise DataError(
                f"{self.path}, line {line}: a line must be a JSON object; got {type(row).__name__}. {_ARRAY_REMEDY}"
            )
        return row

    def _cell(self, line: int, role: str, cell: Any) -> str | list[str]:
        if self.options.task == TOKEN_CLASSIFICATION and isinstance(cell, list):
            return [self._text(line, role, word) for word in cell]
        return self._text(line, role, cell)

    def _text(self, line: int, role: str, cell: Any) -> str:
        if cell is None:
            self.missing_texts += 1
            return ""
        if not isinstance(cell, str) or isinstance(cell, _Number):
            raise DataError(
                f"{self.path}, line {line}: {role} must be a string; got {cell!r:.60}. Name the right column "
                f"with {option(role)}"
            )
        if not cell.isascii():
            self._check_surrogates(line, cell)
        return cell

    def _label(self, line: int, cell: Any) -> str | list[str]:
        is_list = isinstance(cell, list)
        if self._lists is None:
            self._lists = is_list
        if is_list != self._lists:
            kind = "a list, as in the rows before" if self._lists else "one value, as in the rows before"
            raise DataError(f"{self.path}, line {line}: label must be {kind}; got {cell!r:.60}. Write all rows alike")
        if is_list:
            return [self._name(line, part) for part in cell]
        return self._name(line, cell)

    def _name(self, line: int, cell: Any) -> str:
        if isinstance(cell, (dict, list)):
            raise DataError(
                f"{self.path}, line {line}: a label must be a string, number or true/false; got {cell!r:.60}. "
                "Name the right column with --label-column"
            )
        if cell is None:
            return ""
        if isinstance(cell, bool):
            return "true" if cell else "false"
        name = str(cell)
        self._check_surrogates(line, name)
        return name

    def _check_surrogates(self, line: int, text: str) -> None:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise DataError(
                f"{self.path}, line {line}: holds half of a character (\\u{ord(text[error.start]):04x}). "
                "Write characters beyond U+FFFF as a pair"
            ) from error

    def format_note(self) -> str:
        """Say how the file was understood."""
        return f"JSON lines, encoding {self.options.encoding}, columns {list(self.names)!r}"

    def notes(self, labels: frozenset[str]) -> list[str]:
        """Return what was met while reading, one line each."""
        found = mojibake_note(self.path, self.options.encoding)
        if self.blank_lines:
            found.append(f"{counted(self.blank_lines, 'blank line')} left out")
        if self.missing_texts:
            found.append(f"{counted(self.missing_texts, 'null')} among the texts, read as empty")
        return found


_ARRAY_REMEDY = "Write one object a line: jq -c '.[]' file.json > file.jsonl"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {twice!r} is there twice")
    return row


def _int(text: str) -> int | _Number:
    # Very long integers are refused by int() itself; as class names they are as good as any.
    return int(text) if len(text) < 300 else _Number(text)
