"""Read a whole data set, from a file, a folder or the Hub, into train, validation and test parts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rheostat.data.checks import shared_rows
from rheostat.data.columnar import HubSource
from rheostat.data.optional import require
from rheostat.data.options import DEFAULTS, FORMATS, REGRESSION, UNLABELLED, ReadOptions
from rheostat.data.rows import (
    Rows,
    RowSource,
    check_format_options,
    check_trainable,
    load_rows,
    open_source,
    with_task,
)
from rheostat.data.splits import hold_out, split_notes, strata
from rheostat.data.store import pick_rows
from rheostat.data.tasks import check_known
from rheostat.data.wording import counted
from rheostat.errors import DataError

if TYPE_CHECKING:
    import datasets

SPLITS = ("train", "validation", "test")
SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
}
# train.csv, train-00000-of-00002.parquet, train_1.jsonl
_SHARD = re.compile(r"^(?P<split>[a-z]+)(?:[-_.]\d+.*)?$")
_HUB_NAME = re.compile(r"^[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?(?::[\w.-]+)?$")


@dataclass(frozen=True)
class Corpus:
    """A labelled data set: its parts, its task, and what was found while reading it.

    `labels` are the labels of all training rows, before a validation part was held out, in sorted order; a label's
    place is its number. `notes` say what was found and done, one line each.
    """

    train: datasets.Dataset
    validation: datasets.Dataset
    test: datasets.Dataset | None
    task: str
    labels: tuple[str, ...]
    has_pairs: bool
    notes: tuple[str, ...]
    source: str
    seed: int


@dataclass(frozen=True)
class Parts:
    """The parts as they were given, each read and checked, before anything is held out."""

    rows: dict[str, Rows]
    source: str
    notes: tuple[str, ...]


def read_corpus(source: str, options: ReadOptions = DEFAULTS, *, hub_name_allowed: bool = True) -> Corpus:
    """Read a file, a folder with train, validation and test files, or a Hub data set ("ag_news", "org/name:config").

    Without a validation part, `options.validation_share` of the training rows is held out: stratified, repeats of a
    text on one side, labels with a single row in train. Test rows are read and checked, and never choose anything.
    Raises DataError with what to do when the data can't be read without loss.
    """
    parts = read_parts(source, options, hub_name_allowed=hub_name_allowed)
    train = parts.rows["train"]
    check_trainable(train, source)
    notes = [*parts.notes, *_part_notes(parts)]
    if "validation" in parts.rows:
        kept, held = train.dataset, parts.rows["validation"].dataset
    else:
        chosen, done = plan_validation(train, options, source)
        kept, held = pick_rows(train.dataset, ~chosen), pick_rows(train.dataset, chosen)
        notes.extend(done)
    test = parts.rows.get("test")
    return Corpus(
        train=kept,
        validation=held,
        test=test.dataset if test else None,
        task=train.task,
        labels=tuple(train.counts),
        has_pairs=options.text_pair_column is not None,
        notes=tuple(notes),
        source=source,
        seed=options.seed,
    )


def read_parts(source: str, options: ReadOptions, *, hub_name_allowed: bool = True) -> Parts:
    """Read each part that `source` has; the training part settles task and labels for the others."""
    path = Path(source)
    if path.is_dir():
        files = split_files(path)
        check_format_options([file for part in files.values() for file in part], options)
        sources: dict[str, list[RowSource]] = {
            split: [open_source(file, options) for file in part] for split, part in files.items()
        }
    elif path.exists() or path.suffix.lower() in FORMATS:
        check_format_options([path], options)
        sources = {"train": [open_source(path, options)]}
    elif hub_name_allowed and _HUB_NAME.match(source):
        sources = hub_sources(source, options)
    else:
        raise DataError(
            f"data must be a file, a folder or a Hub name; got {source!r}, which isn't there. Check the path"
        )
    return _load_parts(sources, options, source)


def _load_parts(sources: dict[str, list[RowSource]], options: ReadOptions, source: str) -> Parts:
    rows = {"train": load_rows(sources["train"], options, _place(source, "train", sources))}
    notes = []
    for split in SPLITS[1:]:
        if split not in sources:
            continue
        where = _place(source, split, sources)
        if _is_unlabelled(sources[split]):
            notes.append(f"{split}: has no labels and is left out")
            continue
        rows[split] = load_rows(sources[split], with_task(options, rows["train"].task), where)
        check_known(rows[split].dataset, tuple(rows["train"].counts), rows["train"].task, where)
    return Parts(rows, source, tuple(notes))


def _place(source: str, split: str, sources: dict[str, list[RowSource]]) -> str:
    return source if len(sources) == 1 else f"{source} ({split})"


def _is_unlabelled(sources: Sequence[RowSource]) -> bool:
    return all(isinstance(source, HubSource) and source.is_unlabelled() for source in sources)


def _part_notes(parts: Parts) -> list[str]:
    several = len(parts.rows) > 1
    notes: list[str] = []
    for split, rows in parts.rows.items():
        notes.extend(f"{split}: {note}" if several else note for note in rows.notes)
    notes.extend(
        f"overlap: {counted(count, f'{split} row')} with a text that is also in {other}"
        for (split, other), count in overlaps(parts).items()
        if count
    )
    return notes


def overlaps(parts: Parts) -> dict[tuple[str, str], int]:
    """Return for each two parts how many rows of the later one have a text that the earlier one has."""
    given = [split for split in SPLITS if split in parts.rows]
    return {
        (later, earlier): shared_rows(parts.rows[later].checks.keys, parts.rows[earlier].checks.keys)
        for place, later in enumerate(given)
        for earlier in given[:place]
    }


def plan_validation(train: Rows, options: ReadOptions, source: str) -> tuple[npt.NDArray[np.bool_], list[str]]:
    """Return which training rows are to be held out for validation, (N,), and notes on how they are chosen."""
    dataset, task, share, seed = train.dataset, train.task, options.validation_share, options.seed
    held = hold_out(strata(dataset, task, train.counts), train.checks.groups, share, seed)
    if not held.any():
        raise DataError(
            f"{source}: some label must have two rows with different texts, so that one can be held out; "
            f"got {counted(len(dataset), 'row')} and {counted(len(train.counts), 'label')}. "
            "Add rows, or give a validation file"
        )
    spread = {REGRESSION: "spread over the targets, ", **dict.fromkeys(UNLABELLED, "")}.get(
        task, "stratified by label, "
    )
    notes = [
        f"validation: {int(held.sum()):,} of {counted(len(dataset), 'row')} held out (share {share:g}, seed {seed}), "
        f"{spread}repeats on one side"
    ]
    return held, notes + split_notes(train.counts, dataset, held, task)


def split_files(folder: Path) -> dict[str, list[Path]]:
    """Return the data files of each part in a folder, shards in order of their names."""
    files: dict[str, list[Path]] = {}
    known = [path for path in sorted(folder.iterdir()) if path.is_file() and path.suffix.lower() in FORMATS]
    for path in known:
        match = _SHARD.match(path.stem.lower())
        split = SPLIT_NAMES.get(match["split"]) if match else None
        if split is not None:
            files.setdefault(split, []).append(path)
    if "train" not in files:
        raise DataError(
            f"{folder}: must hold a train file (train.csv, .tsv, .jsonl or .parquet); "
            f"got {[path.name for path in known][:10]!r}. Rename one, or give the file itself"
        )
    for split, paths in files.items():
        endings = {path.suffix.lower() for path in paths}
        whole = [path.name for path in paths if not any(letter.isdigit() for letter in path.stem)]
        if len(endings) > 1 or len(whole) > 1 or (whole and len(paths) > 1):
            raise DataError(
                f"{folder}: must hold one {split} file, or shards of one; got {[path.name for path in paths]!r}. "
                "Remove the ones that are not meant"
            )
    return {split: files[split] for split in SPLITS if split in files}


def hub_sources(name: str, options: ReadOptions) -> dict[str, list[RowSource]]:
    """Return the parts of a Hub data set; "name:config" names one of several configurations."""
    hub = require("datasets")
    repository, _, config = name.partition(":")
    try:
        loaded = hub.load_dataset(repository, config or None)
    except (OSError, ValueError, hub.exceptions.DatasetsError) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise DataError(
            f"data must be a file, a folder or a Hub name; got {name!r}, which is not on disk, "
            f"and the Hub says: {reason}. Check the path, the name and the network"
        ) from error
    found: dict[str, list[RowSource]] = {}
    for split, dataset in loaded.items():
        known = SPLIT_NAMES.get(split)
        if known is not None and known not in found:
            found[known] = [HubSource(dataset, options, f"{name} ({split})")]
    if "train" not in found:
        raise DataError(f"{name}: must have a train part; got {list(loaded)!r}. Name another data set")
    return found
