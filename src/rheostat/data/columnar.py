"""Read Parquet files and Hub splits: columns that bring their own types, taken over as texts and label names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rheostat.data.columns import find_columns, option
from rheostat.data.decoding import read_head
from rheostat.data.delimited import BATCH_ROWS
from rheostat.data.optional import require
from rheostat.data.options import TOKEN_CLASSIFICATION, ReadOptions
from rheostat.data.wording import counted
from rheostat.errors import DataError


class ParquetSource:
    """Read one Parquet file; `batches()` yields Arrow columns, and `notes()` afterwards says what was met."""

    def __init__(self, path: Path, options: ReadOptions) -> None:
        """Remember what to read; nothing is opened yet."""
        self.path = path
        self.options = options
        self.names: tuple[str, ...] = ()
        self.missing_texts = 0

    def batches(self) -> Iterator[dict[str, Any]]:
        """Yield the text, pair and label columns of up to 10,000 rows at a time."""
        pa, parquet = require("pyarrow"), require("pyarrow.parquet")
        read_head(self.path)  # says it better when the file is missing or empty
        try:
            with parquet.ParquetFile(self.path) as file:
                self.names = tuple(file.schema_arrow.names)
                places = find_columns(self.names, self.options, str(self.path))
                if not file.metadata.num_rows:
                    raise DataError(f"{self.path}: has columns and no rows. Give a file with rows")
                columns = {role: self.names[place] for role, place in places.items()}
                for batch in file.iter_batches(BATCH_ROWS, columns=list(columns.values())):
                    yield self._columns({role: batch.column(name) for role, name in columns.items()})
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
            raise DataError(
                f"{self.path}: is not a readable Parquet file ({_one_line(error)}). Write it again"
            ) from error

    def _columns(self, raw: dict[str, Any]) -> dict[str, Any]:
        converted = {}
        for role, column in raw.items():
            if role == "label":
                converted[role] = label_column(column, str(self.path))
            else:
                self.missing_texts += column.null_count
                converted[role] = _texts(column, role, str(self.path), self.options)
        return converted

    def notes(self, labels: frozenset[str]) -> list[str]:
        """Return what was met while reading, one line each."""
        return _null_note(self.missing_texts)

    def format_note(self) -> str:
        """Say how the file was understood."""
        return f"Parquet, columns {list(self.names)!r}"


class HubSource:
    """Read one split of a `datasets.Dataset`, as the Hub gives it; class numbers become their names."""

    def __init__(self, dataset: Any, options: ReadOptions, where: str) -> None:
        """Find the columns; raise DataError when they are not there."""
        self.where, self.options = where, options
        self.names = tuple(dataset.column_names)
        places = find_columns(self.names, options, where)
        self.columns = {role: self.names[place] for role, place in places.items()}
        labels = self.columns.get("label")
        self.class_names = None if labels is None else _class_names(dataset.features[labels])
        self.dataset = dataset.select_columns(list(self.columns.values())).with_format("arrow")
        self.missing_texts = 0

    def batches(self) -> Iterator[dict[str, Any]]:
        """Yield the text, pair and label columns of up to 10,000 rows at a time."""
        if not len(self.dataset):
            raise DataError(f"{self.where}: has no rows. Name another data set")
        for table in self.dataset.iter(BATCH_ROWS):
            batch = {}
            for role, name in self.columns.items():
                column = _flat(table.column(name))
                if role == "label":
                    batch[role] = self._labels(column)
                else:
                    self.missing_texts += column.null_count
                    batch[role] = _texts(column, role, self.where, self.options)
            yield batch

    def is_unlabelled(self) -> bool:
        """Say whether every class number is -1, as in test parts whose labels are kept secret."""
        pc = require("pyarrow.compute")
        if self.class_names is None or not len(self.dataset):
            return False
        column = self.dataset.data.column(self.columns["label"])
        return not _is_list(column.type) and pc.max(column).as_py() == -1

    def _labels(self, column: Any) -> Any:
        if self.class_names is None:
            return label_column(column, self.where)
        pa, pc = require("pyarrow"), require("pyarrow.compute")
        names = pa.array(self.class_names, pa.string())
        if _is_list(column.type):
            inner = names.take(column.flatten())
            return pa.ListArray.from_arrays(_offsets(column), inner)
        known = pc.greater_equal(column, 0)  # -1 stands for "no label"
        return pc.fill_null(names.take(pc.if_else(known, column, pa.scalar(None, column.type))), "")

    def notes(self, labels: frozenset[str]) -> list[str]:
        """Return what was met while reading, one line each."""
        return _null_note(self.missing_texts)

    def format_note(self) -> str:
        """Say how the data set was understood."""
        return f"Hub data set, columns {list(self.names)!r}"


def _null_note(count: int) -> list[str]:
    return [f"{counted(count, 'null')} among the texts, read as empty"] if count else []


def _class_names(feature: Any) -> list[str] | None:
    inner = feature[0] if isinstance(feature, list) else getattr(feature, "feature", feature)
    names = getattr(inner, "names", None)
    return list(names) if names else None


def _texts(column: Any, role: str, where: str, options: ReadOptions) -> Any:
    """Return a column of texts; or of lists of words, where each has a label."""
    if options.task == TOKEN_CLASSIFICATION and _is_list(column.type):
        return label_column(column, where)
    return text_column(column, role, where)


def text_column(column: Any, role: str, where: str) -> Any:
    """Return a text column as Arrow strings, nulls as empty texts; raise DataError for a column of another type."""
    pa = require("pyarrow")
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_null(column.type):
        column = column.cast(pa.string())
    kind = column.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        raise DataError(f"{where}: {role} must be a column of strings; got {kind}. Name another with {option(role)}")
    return _strings(column, where)


def label_column(column: Any, where: str) -> Any:
    """Return a label column as Arrow strings, or lists of strings; nulls become empty and are reported later."""
    pa = require("pyarrow")
    if _is_list(column.type):
        return pa.ListArray.from_arrays(_offsets(column), label_column(column.flatten(), where))
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_nested(column.type) or pa.types.is_binary(column.type):
        raise DataError(
            f"{where}: label must be a column of strings, numbers, true/false or lists of them; got {column.type}. "
            "Name another with --label-column"
        )
    return _strings(column, where)


def _strings(column: Any, where: str) -> Any:
    pa, pc = require("pyarrow"), require("pyarrow.compute")
    try:
        strings = column.cast(pa.string())
        strings.validate(full=True)  # a file may call its bytes strings without their being UTF-8
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(f"{where}: a column of {column.type} can't be read as text ({_one_line(error)})") from error
    return pc.fill_null(strings, "")


def _is_list(kind: Any) -> bool:
    pa = require("pyarrow")
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _offsets(column: Any) -> Any:
    """Return the offsets of a list column into its own flattened values: a null list is an empty one."""
    pa, pc = require("pyarrow"), require("pyarrow.compute")
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    offsets = [0, *lengths.cumsum().tolist()]
    return pa.array(offsets, pa.int32())


def _flat(column: Any) -> Any:
    combined = column.combine_chunks()
    pa = require("pyarrow")
    return pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined


def _one_line(error: Exception) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__
