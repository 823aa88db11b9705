"""Say what was understood of a data set, before anything is trained: the report behind `rheostat data`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rheostat.data.corpus import Parts, overlaps, plan_validation, read_parts
from rheostat.data.options import DEFAULTS, REGRESSION, ReadOptions, delimiter_of, file_format
from rheostat.data.rows import Rows, check_trainable
from rheostat.data.tasks import Found
from rheostat.data.tokenizing import measure_lengths, token_limit
from rheostat.errors import DataError

if TYPE_CHECKING:
    from rich.console import Group

_SHOWN_CLASSES = 50


@dataclass(frozen=True)
class TokenLengths:
    """Lengths of the rows of one part in tokens, and the share (0 to 1) that would be cut at `limit`."""

    limit: int
    median: int
    p95: int
    longest: int
    truncated: int
    truncated_share: float


@dataclass(frozen=True)
class PartReport:
    """What was found in one part of the data; row numbers are counted from 1."""

    rows: int
    classes: dict[str, int]
    target_range: tuple[float, float] | None  # smallest and largest target, for regression
    empty_texts: Found
    punctuation_only: Found
    damaged_texts: Found
    repeats: int
    contradicting_repeats: Found
    token_lengths: TokenLengths | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class DataReport:
    """All that `rheostat data` prints."""

    source: str
    columns: tuple[str, ...]
    delimiter: str | None
    encoding: str | None
    task: str
    task_reason: str
    has_pairs: bool
    parts: dict[str, PartReport]
    overlaps: dict[str, int]  # "test in train": rows of test whose text is also in train
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain values for `json.dumps`."""
        return asdict(self)

    def render(self) -> Group:
        """Return the report as tables for a rich console."""
        from rich.console import Group
        from rich.text import Text

        notes = [Text(f"- {split}: {note}") for split, part in self.parts.items() for note in part.notes]
        return Group(self._facts(), *self._classes(), *notes, *[Text(f"- {note}") for note in self.notes])

    def _facts(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        table = Table("", *self.parts, title=Text(self.source))
        for name, cells in _fact_lines(self):
            table.add_row(name, *[Text(cell) for cell in cells])
        return table

    def _classes(self) -> list[Any]:
        from rich.table import Table
        from rich.text import Text

        names = list(dict.fromkeys(name for part in self.parts.values() for name in part.classes))
        if not names:
            return []
        table = Table("class", *self.parts)
        for name in names[:_SHOWN_CLASSES]:
            table.add_row(Text(name), *[f"{part.classes.get(name, 0):,}" for part in self.parts.values()])
        if len(names) > _SHOWN_CLASSES:
            table.add_row(f"and {len(names) - _SHOWN_CLASSES:,} more", *[""] * len(self.parts))
        return [table]


def _fact_lines(report: DataReport) -> list[tuple[str, list[str]]]:
    parts = list(report.parts.values())

    def same(value: str) -> list[str]:
        return [value, *[""] * (len(parts) - 1)]

    lines = [
        ("columns", same(", ".join(report.columns))),
        ("delimiter", same(repr(report.delimiter) if report.delimiter else "-")),
        ("encoding", same(report.encoding or "-")),
        ("task", same(f"{report.task}{', text pairs' if report.has_pairs else ''}: {report.task_reason}")),
        ("rows", [f"{part.rows:,}" for part in parts]),
        ("classes", [f"{len(part.classes):,}" if part.classes else "-" for part in parts]),
        ("targets", [_targets(part.target_range) for part in parts]),
        ("empty texts", [str(part.empty_texts) for part in parts]),
        ("punctuation only", [str(part.punctuation_only) for part in parts]),
        ("damaged texts (U+FFFD)", [str(part.damaged_texts) for part in parts]),
        ("repeats", [f"{part.repeats:,}" for part in parts]),
        ("contradicting repeats", [str(part.contradicting_repeats) for part in parts]),
        ("tokens: median / 95 % / longest", [_lengths(part.token_lengths) for part in parts]),
        ("would be cut", [_cut(part.token_lengths) for part in parts]),
    ]
    lines += [(f"overlap: {name}", same(f"{count:,}")) for name, count in report.overlaps.items()]
    return lines


def _targets(extent: tuple[float, float] | None) -> str:
    return f"{extent[0]:g} to {extent[1]:g}" if extent else "-"


def _lengths(lengths: TokenLengths | None) -> str:
    return f"{lengths.median} / {lengths.p95} / {lengths.longest}" if lengths else "- (give --model)"


def _cut(lengths: TokenLengths | None) -> str:
    return f"{lengths.truncated:,} ({lengths.truncated_share:.1%}) at {lengths.limit}" if lengths else "-"


def describe(
    source: str,
    options: ReadOptions = DEFAULTS,
    tokenizer: Any = None,
    *,
    max_length: int | None = None,
    hub_name_allowed: bool = True,
) -> DataReport:
    """Read a data set and return what was understood of it.

    With a tokenizer every row is measured in tokens; `max_length` is the limit to cut at (default: the tokenizer's).
    Raises DataError where reading would: a report about rows that were read wrongly helps nobody.
    """
    parts = read_parts(source, options, hub_name_allowed=hub_name_allowed)
    notes = [*parts.notes, *_training_notes(parts, options, source)]
    limit = (max_length or token_limit(tokenizer)) if tokenizer is not None else None
    train = parts.rows["train"]
    path = Path(source)
    is_text = path.is_file() and file_format(path, options) != "parquet"
    return DataReport(
        source=source,
        columns=train.names,
        delimiter=delimiter_of(path, options) if path.is_file() and file_format(path, options) == "delimited" else None,
        encoding=options.encoding if is_text else None,
        task=train.task,
        task_reason=train.reason,
        has_pairs=options.text_pair_column is not None,
        parts={split: _part(rows, tokenizer, limit) for split, rows in parts.rows.items()},
        overlaps={f"{later} in {earlier}": count for (later, earlier), count in overlaps(parts).items()},
        notes=tuple(notes),
    )


def _training_notes(parts: Parts, options: ReadOptions, source: str) -> list[str]:
    """Say what training would do with the rows, or why it would refuse them: here that is a finding, not an error."""
    train = parts.rows["train"]
    try:
        check_trainable(train, source)
        return [] if "validation" in parts.rows else plan_validation(train, options, source)[1]
    except DataError as error:
        return [f"not ready for training: {error}"]


def _part(rows: Rows, tokenizer: Any, limit: int | None) -> PartReport:
    checks = rows.checks
    return PartReport(
        rows=len(rows.dataset),
        classes=rows.counts,
        target_range=_range(rows),
        empty_texts=checks.empty,
        punctuation_only=checks.punctuation_only,
        damaged_texts=checks.replaced,
        repeats=checks.repeats,
        contradicting_repeats=checks.contradicting,
        token_lengths=_token_lengths(rows, tokenizer, limit) if limit is not None else None,
        notes=rows.warnings,
    )


def _range(rows: Rows) -> tuple[float, float] | None:
    if rows.task != REGRESSION:
        return None
    targets = rows.dataset.with_format("numpy")["label"][:]
    return float(np.min(targets)), float(np.max(targets))


def _token_lengths(rows: Rows, tokenizer: Any, limit: int) -> TokenLengths:
    lengths = measure_lengths(rows.dataset, tokenizer)
    cut = int((lengths > limit).sum())
    return TokenLengths(
        limit=limit,
        median=int(np.median(lengths)),
        p95=int(np.percentile(lengths, 95, method="inverted_cdf")),  # a length that some row has
        longest=int(lengths.max()),
        truncated=cut,
        truncated_share=cut / len(lengths),
    )
