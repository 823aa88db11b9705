"""Keep rows as Arrow files on disk while the process lives: memory stays flat whatever the file's size."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rheostat.data.optional import require
from rheostat.errors import DataError

_BATCH_ROWS = 10_000

# What looks like nothing around a label: white space, no-break and zero-width spaces, byte-order marks.
BLANKS = " \t\r\n\v\f\u0085\u00a0\u1680\u2028\u2029\u202f\u205f\u3000\u200b\u200c\u200d\u2060\ufeff" + "".join(
    chr(code) for code in range(0x2000, 0x200B)
)


@dataclass(frozen=True)
class Stored:
    """Rows on disk: the Arrow file, and how many labels had blanks around them."""

    path: Path
    rows: int
    trimmed_labels: int


@cache
def scratch_folder() -> Path:
    """Return this process's folder for Arrow files; it is removed at exit.

    It lies in the cache folder of `datasets` (HF_DATASETS_CACHE), because /tmp is memory on many machines.
    """
    root = Path(require("datasets").config.HF_DATASETS_CACHE)
    try:
        root.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="rheostat-", dir=root))
    except OSError:  # a read-only home
        folder = Path(tempfile.mkdtemp(prefix="rheostat-"))
    atexit.register(_remove, folder, os.getpid())
    return folder


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked worker must not take its parent's files away
        shutil.rmtree(folder, ignore_errors=True)


def scratch_file() -> Path:
    """Return a new name for an Arrow file."""
    return scratch_folder() / f"{uuid.uuid4().hex}.arrow"


def write_batches(batches: Iterator[dict[str, Any]], where: str) -> Stored:
    """Write columns of text and labels as one Arrow file; labels lose the blanks around them, and are counted."""
    pa = require("pyarrow")
    path, rows, trimmed = scratch_file(), 0, 0
    with ExitStack() as stack:
        bar = stack.enter_context(progress(f"Reading {where}"))
        writer = None
        for columns in batches:
            arrays = {role: _array(column, role) for role, column in columns.items()}
            changed = 0
            if "label" in arrays:
                arrays["label"], changed = _trim(arrays["label"])
            batch = pa.RecordBatch.from_pydict(arrays)
            if writer is None:
                schema = batch.schema
                writer = stack.enter_context(pa.ipc.new_stream(str(path), schema))
            if batch.schema != schema:
                raise DataError(f"{where}: labels must be lists in all files or in none. Write all files alike")
            writer.write_batch(batch)
            rows, trimmed = rows + batch.num_rows, trimmed + changed
            bar.update(batch.num_rows)
    return Stored(path, rows, trimmed)


def open_stored(path: Path) -> Any:
    """Return the rows of an Arrow file as a `datasets.Dataset` that is mapped from disk, not loaded."""
    return require("datasets").Dataset.from_file(str(path))


def rewrite_column(dataset: Any, name: str, convert: Callable[[Any], Any]) -> Any:
    """Return the dataset with one column converted, batch by batch, in a new Arrow file."""

    def changed(table: Any) -> Any:
        place = table.column_names.index(name)
        return table.set_column(place, name, convert(table.column(place).combine_chunks()))

    return _write_tables(changed(table) for table in dataset.with_format("arrow").iter(_BATCH_ROWS))


def pick_rows(dataset: Any, rows: npt.NDArray[np.bool_]) -> Any:
    """Return the rows that are true, (N,), in a new Arrow file.

    `Dataset.select` would keep an index of eight bytes a row in memory and gather row by row at every read.
    """
    pa = require("pyarrow")
    tables = dataset.with_format("arrow").iter(_BATCH_ROWS)
    return _write_tables(
        table.filter(pa.array(rows[number * _BATCH_ROWS : number * _BATCH_ROWS + table.num_rows]))
        for number, table in enumerate(tables)
    )


def _write_tables(tables: Iterable[Any]) -> Any:
    pa = require("pyarrow")
    path = scratch_file()
    with ExitStack() as stack:
        writer = None
        for table in tables:
            plain = table.replace_schema_metadata(None)
            if writer is None:
                writer = stack.enter_context(pa.ipc.new_stream(str(path), plain.schema))
            writer.write_table(plain)
    return open_stored(path)


def progress(title: str) -> Any:
    """Return a bar of rows on stderr that shows after a second, and only on a terminal."""
    return require("datasets.utils").tqdm(desc=title, unit=" rows", unit_scale=True, delay=1, disable=None)


def _array(column: Any, role: str) -> Any:
    pa = require("pyarrow")
    if not isinstance(column, list):
        return column  # already Arrow
    is_list = role in ("label", "words") and isinstance(column[0], list)
    return pa.array(column, pa.list_(pa.string()) if is_list else pa.string())


def _trim(labels: Any) -> tuple[Any, int]:
    pa, pc = require("pyarrow"), require("pyarrow.compute")
    is_list = pa.types.is_list(labels.type)
    names = labels.flatten() if is_list else labels
    trimmed = pc.utf8_trim(names, characters=BLANKS)
    changed = pc.sum(pc.not_equal(trimmed, names)).as_py() or 0
    return (pa.ListArray.from_arrays(labels.offsets, trimmed) if is_list else trimmed), changed
