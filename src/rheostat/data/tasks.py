"""Tell the task from the labels, check labels against it, and turn label names into numbers and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rheostat.data.optional import require
from rheostat.data.options import (
    MULTI_LABEL,
    REGRESSION,
    SEVERAL_LABELS,
    SINGLE_LABEL,
    TOKEN_CLASSIFICATION,
    UNLABELLED,
    ReadOptions,
)
from rheostat.data.store import BLANKS, rewrite_column
from rheostat.data.wording import counted, listed
from rheostat.errors import DataError

MAX_CLASSES = 100_000
SHOWN = 10
# Whole numbers with more values than this, and in more than a tenth of the rows, are amounts and not class names.
_MANY_NUMBERS = 50
_NUMBER = r"^[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?$"
_FRACTION = r"[.eE]\d*[1-9]|[eE]-"
_NO_NUMBER = r"(?i)^(|nan|n/?a|null|none|[+-]?inf(inity)?)$"
_BATCH_ROWS = 10_000


@dataclass(frozen=True)
class Found:
    """Rows that have something in common: how many, and the numbers (from 1) of the first few."""

    count: int
    rows: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.count:,} ({'row' if self.count == 1 else 'rows'} {self.places})" if self.count else "0"

    @property
    def places(self) -> str:
        """Number the rows: "6, 21, 34"; "..." stands for those that are only counted."""
        return ", ".join(map(str, self.rows)) + (", ..." if self.count > len(self.rows) else "")


@dataclass(frozen=True)
class LabelSurvey:
    """What the label column holds, before a task is chosen."""

    rows: int
    is_list: bool
    counts: Mapping[str, int]  # rows of each label as written; stops growing above MAX_CLASSES
    empty: Found
    not_numbers: Found
    missing_numbers: Found  # "", "nan", "NA", "inf": what stands where a number is missing
    fractions: int  # numbers written with a fraction or an exponent


def survey_labels(dataset: Any) -> LabelSurvey:
    """Count the labels of a dataset, batch by batch."""
    pa, pc = require("pyarrow"), require("pyarrow.compute")
    counts: Counter[str] = Counter()
    fractions = rows = 0
    empty, not_numbers, missing = RowFinder(), RowFinder(), RowFinder()
    is_list = False
    for table in dataset.select_columns(["label"]).with_format("arrow").iter(_BATCH_ROWS):
        column = table.column("label").combine_chunks()
        is_list = pa.types.is_list(column.type)
        names = column.flatten() if is_list else column
        if len(counts) <= MAX_CLASSES:
            for pair in pc.value_counts(names).to_pylist():
                counts[pair["values"]] += pair["counts"]
        if not is_list:
            number = pc.match_substring_regex(names, _NUMBER)
            empty.add(pc.equal(names, ""), rows)
            not_numbers.add(pc.invert(number), rows)
            missing.add(pc.match_substring_regex(names, _NO_NUMBER), rows)
            fractions += pc.sum(pc.and_(number, pc.match_substring_regex(names, _FRACTION))).as_py() or 0
        rows += len(column)
    return LabelSurvey(rows, is_list, counts, empty.found(), not_numbers.found(), missing.found(), fractions)


class RowFinder:
    """Collect the numbers of the first few rows that are true in a column of booleans."""

    def __init__(self) -> None:
        self._count = 0
        self._rows: list[int] = []

    def add(self, flags: Any, first_row: int) -> None:
        """Count the true ones among the rows that follow `first_row` rows."""
        pc = require("pyarrow.compute")
        count = pc.sum(flags).as_py() or 0
        self._count += count
        if count and len(self._rows) < SHOWN:
            places = pc.indices_nonzero(flags)[: SHOWN - len(self._rows)].to_pylist()
            self._rows.extend(first_row + place + 1 for place in places)

    def found(self) -> Found:
        """Return what was collected."""
        return Found(self._count, tuple(self._rows))


def choose_task(survey: LabelSurvey, options: ReadOptions) -> tuple[str, str]:
    """Return the task and why: the one that was set, or the one that the labels show."""
    if options.task is not None:
        return options.task, "as set"
    if survey.is_list:
        return MULTI_LABEL, "labels are lists"
    if options.label_separator is not None:
        return MULTI_LABEL, f"labels are split at {options.label_separator!r}"
    if survey.fractions and survey.not_numbers.count == survey.missing_numbers.count:
        return REGRESSION, "labels are numbers with fractions; set --task single-label if they name classes"
    distinct = len(survey.counts)
    if not survey.not_numbers.count and distinct > _MANY_NUMBERS and distinct * 10 > survey.rows:
        return REGRESSION, f"{distinct:,} different whole numbers; set --task single-label if they name classes"
    if not survey.not_numbers.count:
        return SINGLE_LABEL, "whole numbers are taken as class names; set --task regression if they are amounts"
    return SINGLE_LABEL, "one label a row"


def check_labels(survey: LabelSurvey, task: str, options: ReadOptions, where: str) -> None:
    """Raise DataError when the labels can't be those of the task."""
    if survey.is_list and task not in SEVERAL_LABELS:
        raise DataError(f"{where}: labels must be one value a row for {task}; got lists. Use --task {MULTI_LABEL}")
    if task == TOKEN_CLASSIFICATION and "" in survey.counts:
        raise DataError(
            f"{where}: labels of words must not be empty; got {counted(survey.counts[''], 'word')} with ''. "
            "Write O where a word has none"
        )
    if task == REGRESSION:
        _check_numbers(survey, where)
        return
    if task == SINGLE_LABEL and survey.empty.count:
        empty = survey.empty
        raise DataError(
            f"{where}: labels must not be empty; got '' in {counted(empty.count, 'row')}: {empty.places}. "
            "Fill them in or remove these rows"
        )
    if task == MULTI_LABEL and not survey.is_list and options.label_separator is None:
        raise DataError(
            f"{where}: labels must be lists, or names with a separator; got single names. "
            "Set --label-separator, such as '|'"
        )
    if len(survey.counts) > MAX_CLASSES:
        raise DataError(
            f"{where}: there must be at most {MAX_CLASSES:,} classes; got more. Is this the label column? "
            "Set --label-column, or --task regression"
        )


def _check_numbers(survey: LabelSurvey, where: str) -> None:
    if not survey.not_numbers.count:
        return
    others = survey.not_numbers
    bad = [name for name in survey.counts if not _is_number(name)]
    comma = any(_is_number(name.replace(",", ".", 1)) for name in bad)
    remedy = "Write decimal points" if comma else "Fill them in, remove these rows, or use --task single-label"
    raise DataError(
        f"{where}: labels must be finite numbers for {REGRESSION}; got {listed(bad)} "
        f"in {counted(others.count, 'row')}: {others.places}. {remedy}"
    )


def _is_number(name: str) -> bool:
    try:
        return bool(np.isfinite(float(name))) and "_" not in name
    except ValueError:
        return False


def convert_labels(dataset: Any, task: str, options: ReadOptions, is_list: bool, where: str) -> Any:
    """Return the dataset with labels as the task has them: str, list of str, or float."""
    pa = require("pyarrow")
    if task == REGRESSION:

        def number(column: Any) -> Any:
            return pa.array(_floats(column.to_pylist(), where), pa.float64())

        return rewrite_column(dataset, "label", number)
    if task == MULTI_LABEL:
        separator = None if is_list else options.label_separator

        def split(column: Any) -> Any:
            return pa.array([split_names(cell, separator) for cell in column.to_pylist()], pa.list_(pa.string()))

        return rewrite_column(dataset, "label", split)
    return dataset


def split_names(cell: str | Sequence[str], separator: str | None) -> list[str]:
    """Return the names in a cell in their order, each once, without blanks around them and without empty ones.

    >>> split_names("red| blue|red|", "|")
    ['red', 'blue']
    """
    names = cell.split(separator) if isinstance(cell, str) else cell
    return list(dict.fromkeys(name for name in (part.strip(BLANKS) for part in names) if name))


def _floats(names: list[str], where: str) -> npt.NDArray[np.float64]:
    numbers = np.fromiter(map(float, names), np.float64, len(names))
    if not np.isfinite(numbers).all():
        bad = names[int(np.flatnonzero(~np.isfinite(numbers))[0])]
        raise DataError(f"{where}: labels must be finite numbers; got {bad!r}. Remove such rows")
    return numbers


def label_counts(dataset: Any, task: str) -> dict[str, int]:
    """Return the rows (or words) of each label in sorted order of the labels; empty for regression and texts alone."""
    if task in (REGRESSION, *UNLABELLED):
        return {}
    pc = require("pyarrow.compute")
    counts: Counter[str] = Counter()
    for table in dataset.select_columns(["label"]).with_format("arrow").iter(_BATCH_ROWS):
        column = table.column("label").combine_chunks()
        names = column.flatten() if task in SEVERAL_LABELS else column
        for pair in pc.value_counts(names).to_pylist():
            counts[pair["values"]] += pair["counts"]
    return dict(sorted(counts.items()))


def encode_labels(dataset: Any, labels: Sequence[str], task: str) -> npt.NDArray[Any]:
    """Return the labels of a dataset as numbers, by their place in `labels`.

    single-label: int64 (N,); multi-label: float32 (N, C), 1 where the row has the label; regression: float32 (N,).
    Raises DataError that lists the labels which are not in `labels`, with their rows.
    """
    check_known(dataset, labels, task)
    parts = [
        encode_batch(batch["label"], labels, task)
        for batch in dataset.select_columns(["label"]).with_format(None).iter(_BATCH_ROWS)
    ]
    return np.concatenate(parts) if parts else encode_batch([], labels, task)


def check_known(dataset: Any, labels: Sequence[str], task: str, where: str = "labels") -> None:
    """Raise DataError that lists the labels of a dataset which the training rows do not have."""
    known = set(labels)
    unknown = {name: count for name, count in label_counts(dataset, task).items() if name not in known}
    if unknown:
        named = [f"{name!r} ({counted(count, 'row')})" for name, count in list(unknown.items())[:SHOWN]]
        more = f" and {len(unknown) - SHOWN:,} more" if len(unknown) > SHOWN else ""
        raise DataError(
            f"{where}: labels must be among those of the training rows; got {len(unknown):,} unknown: "
            f"{', '.join(named)}{more}. Known: {listed(labels)}. Mend these rows, or train with them"
        )


def encode_batch(cells: Sequence[Any], labels: Sequence[str], task: str) -> npt.NDArray[Any]:
    """Encode the label cells of some rows; the shapes are those of `encode_labels`."""
    if task == REGRESSION:
        return np.asarray(cells, np.float32)  # (N,)
    places = {name: place for place, name in enumerate(labels)}
    if task == SINGLE_LABEL:
        return np.fromiter((places[cell] for cell in cells), np.int64, len(cells))  # (N,)
    encoded = np.zeros((len(cells), len(labels)), np.float32)  # (N, C)
    for row, names in enumerate(cells):
        encoded[row, [places[name] for name in names]] = 1.0
    return encoded
