"""Read the labelled rows of one file, several shards or a Hub split: from source to checked dataset with notes."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from rheostat.data.checks import TextChecks, check_texts
from rheostat.data.columnar import ParquetSource
from rheostat.data.conll import ConllSource
from rheostat.data.delimited import DelimitedSource
from rheostat.data.jsonl import JsonlSource
from rheostat.data.optional import require
from rheostat.data.options import (
    DEFAULTS,
    MULTI_LABEL,
    REGRESSION,
    SEVERAL_LABELS,
    TOKEN_CLASSIFICATION,
    UNLABELLED,
    ReadOptions,
    file_format,
)
from rheostat.data.store import open_stored, write_batches
from rheostat.data.tasks import check_labels, choose_task, convert_labels, label_counts, survey_labels
from rheostat.data.wording import counted
from rheostat.data.words import with_words
from rheostat.errors import DataError, OptionError

_SHOWN_CLASSES = 20
_JOINTS = ("|", ";", ",")


class RowSource(Protocol):
    """Something that yields labelled rows in columns, and says afterwards what it met."""

    names: tuple[str, ...]

    def batches(self) -> Iterator[dict[str, Any]]:
        """Yield columns of text, pair and label."""

    def format_note(self) -> str:
        """Say how the source was understood, in one line."""

    def notes(self, labels: frozenset[str]) -> list[str]:
        """Return what was met and deserves a warning, one line each."""


@dataclass(frozen=True)
class Rows:
    """One part of the data, read and checked."""

    dataset: Any  # datasets.Dataset with text, [text_pair], [words], label; of tasks without labels only text
    task: str
    reason: str  # why this task
    counts: dict[str, int]  # rows (or words) of each label, in sorted order; empty where labels are no names
    checks: TextChecks
    names: tuple[str, ...]  # all columns of the source
    formats: tuple[str, ...]  # how each source was understood
    warnings: tuple[str, ...]  # what was met in the sources and the labels

    @property
    def notes(self) -> tuple[str, ...]:
        """Everything that was found, one line each."""
        facts = [*self.formats, f"rows: {len(self.dataset):,}", f"task: {self.task} ({self.reason})"]
        if self.counts:
            shown = ", ".join(f"{name!r} {count:,}" for name, count in list(self.counts.items())[:_SHOWN_CLASSES])
            more = ", ..." if len(self.counts) > _SHOWN_CLASSES else ""
            facts.append(f"classes: {len(self.counts):,} ({shown}{more})")
        return (*facts, *self.warnings, *self.checks.notes())


def open_source(path: Path, options: ReadOptions) -> RowSource:
    """Return the reader of a file's format."""
    kind = file_format(path, options)
    if kind == "jsonl":
        return JsonlSource(path, options)
    if kind == "parquet":
        return ParquetSource(path, options)
    if kind == "conll":
        return ConllSource(path, options)
    return DelimitedSource(path, options)


def check_format_options(paths: Sequence[Path], options: ReadOptions) -> None:
    """Refuse options that none of the files would read."""
    kinds = {file_format(path, options) for path in paths}
    if "conll" in kinds and (len(kinds) > 1 or options.task not in (None, TOKEN_CLASSIFICATION)):
        raise OptionError(
            f"task must be {TOKEN_CLASSIFICATION} for CoNLL files, and all files of that kind; got {options.task!r} "
            f"and {' and '.join(sorted(kinds))}. Leave --task out"
        )
    if "delimited" not in kinds:
        for name in ("delimiter", "header", "quotes"):
            if getattr(options, name) != getattr(DEFAULTS, name):
                raise OptionError(
                    f"{name} must be left out for {' and '.join(sorted(kinds))} files; "
                    f"got {getattr(options, name)!r}. It only concerns CSV and TSV"
                )
    if kinds == {"parquet"} and options.encoding != DEFAULTS.encoding:
        raise OptionError(f"encoding must be left out for Parquet files; got {options.encoding!r}. They are UTF-8")


def read_rows(path: str | Path, options: ReadOptions = DEFAULTS) -> tuple[Any, tuple[str, ...]]:
    """Read one labelled file; return its rows as a `datasets.Dataset` and what was found, one line each.

    The dataset has the columns text, [text_pair] and label (str, list of str, or float, as the task has it); for
    token-classification also words, and a label of each.
    Raises DataError with the file, the line and what to do when the file can't be read without loss.
    """
    path = Path(path)
    check_format_options([path], options)
    rows = load_rows([open_source(path, options)], options, str(path))
    return rows.dataset, rows.notes


def load_rows(sources: Sequence[RowSource], options: ReadOptions, where: str) -> Rows:
    """Read sources into one checked dataset on disk."""
    if all(isinstance(source, ConllSource) for source in sources):
        options = with_task(options, TOKEN_CLASSIFICATION)
    batches: Iterator[dict[str, Any]] = (batch for source in sources for batch in source.batches())
    if options.task == TOKEN_CLASSIFICATION:
        batches = with_words(batches, where)
    stored = write_batches(batches, where)
    raw = open_stored(stored.path)
    formats = tuple(source.format_note() for source in sources)
    if options.task in UNLABELLED:
        met = tuple(note for source in sources for note in source.notes(frozenset()))
        return Rows(raw, str(options.task), "as set", {}, check_texts(raw), sources[0].names, formats, met)
    survey = survey_labels(raw)
    task, reason = choose_task(survey, options)
    check_labels(survey, task, options, where)
    dataset = convert_labels(raw, task, options, survey.is_list, where)
    if dataset is not raw:
        stored.path.unlink(missing_ok=True)
    checks = check_texts(dataset)
    counts = label_counts(dataset, task)
    known = frozenset(survey.counts)
    warnings = [note for source in sources for note in source.notes(known)]
    if stored.trimmed_labels:
        warnings.append(f"{counted(stored.trimmed_labels, 'label')} with blanks around, which were taken away")
    if task == MULTI_LABEL:
        warnings.extend(_unlabelled_note(dataset))
    warnings.extend(_name_notes(counts, task))
    return Rows(dataset, task, reason, counts, checks, sources[0].names, formats, tuple(warnings))


def _unlabelled_note(dataset: Any) -> list[str]:
    pc = require("pyarrow.compute")
    count = pc.sum(pc.equal(pc.list_value_length(dataset.data.column("label")), 0)).as_py() or 0
    return [f"{counted(count, 'row')} without a label, taken as none of the classes"] if count else []


def _name_notes(counts: dict[str, int], task: str) -> list[str]:
    found = []
    single = [name for name, count in counts.items() if count == 1]
    if len(counts) > 3 and len(single) * 2 > len(counts):
        found.append(
            f"most labels ({len(single):,} of {len(counts):,}) have a single row, such as {single[0]!r}: "
            "is this the label column, or has a delimiter that is not quoted shifted cells?"
        )
    for name, alike in _look_alikes(counts):
        found.append(f"labels {alike!r} and {name!r} are different classes: is that meant?")
    joint = None if task in SEVERAL_LABELS else _joint(counts)
    if joint is not None:
        found.append(f"labels look joined by {joint!r}: for several labels a row use --label-separator {joint!r}")
    return found


def _look_alikes(counts: dict[str, int]) -> list[tuple[str, str]]:
    """Return pairs of labels that differ only in case or in how a letter is coded, or that are the same number."""
    seen: dict[str, str] = {}
    pairs = []
    for name in counts:
        plain = unicodedata.normalize("NFKC", name).casefold()
        if name.isdecimal():
            plain = name.lstrip("0") or "0"
        if plain in seen:
            pairs.append((name, seen[plain]))
        seen.setdefault(plain, name)
    return pairs[:5]


def _joint(counts: dict[str, int]) -> str | None:
    """Return the separator that turns the labels into fewer names, each used in several labels."""
    for joint in _JOINTS:
        joined = [name for name in counts if joint in name]
        parts = {part.strip() for name in counts for part in name.split(joint)}
        if len(joined) > 1 and len(parts) < len(counts):
            return joint
    return None


def with_task(options: ReadOptions, task: str) -> ReadOptions:
    """Return the options for another part of the same data: the training rows have settled the task."""
    return replace(options, task=task)


def check_trainable(rows: Rows, where: str) -> None:
    """Raise DataError when nothing can be learned from the labels: one class only, or all different."""
    if rows.task in (REGRESSION, *UNLABELLED):
        return
    names = list(rows.counts)
    if not names or (len(names) == 1 and rows.task != MULTI_LABEL):
        raise DataError(
            f"{where}: there must be at least 2 classes; got {names!r} in {counted(len(rows.dataset), 'row')}. "
            "Is this the label column? Set --label-column"
        )
