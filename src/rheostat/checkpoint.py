"""Checkpoint folders: atomic writes, a versioned JSON manifest, and named damage. No torch, nothing pickled."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import uuid
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rheostat.data.options import SINGLE_LABEL
from rheostat.errors import CheckpointError
from rheostat.sentences import Pooling

MANIFEST = "rheostat.json"
BUNDLE_MANIFEST = "bundle.json"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class CheckpointInfo:
    """What a checkpoint knows besides weights and units.

    Attributes:
        task: One of :data:`rheostat.data.TASKS`; None where it was never set.
        labels: Label names in the order of the logits.
        max_length: Longest input in tokens.
        trained_budgets: Smallest and largest budget seen in training; None before any.
        evaluation: One record an operating point, of :mod:`rheostat.qualities`.
        training: How it was trained: data, seed, epochs, seconds of every stage.
        temperatures: (budget, temperature), smallest budget first: what divides the logits before probabilities.
        pooling: How an embedding model makes a vector of a text; None for other tasks.
    """

    task: str | None = None
    labels: tuple[str, ...] = ()
    max_length: int | None = None
    trained_budgets: tuple[float, float] | None = None
    evaluation: tuple[dict[str, Any], ...] = ()
    training: dict[str, Any] = field(default_factory=dict)
    temperatures: tuple[tuple[float, float], ...] = ()
    pooling: Pooling | None = None

    def temperature_at(self, budget: float) -> float:
        """Return what divides the logits of ``budget``: between fitted budgets on a line in log T, 1 without any."""
        if not self.temperatures:
            return 1.0
        budgets = [pair[0] for pair in self.temperatures]
        values = [pair[1] for pair in self.temperatures]
        above = bisect_left(budgets, budget)
        if above in (0, len(budgets)):
            return values[min(above, len(budgets) - 1)]
        low, high = budgets[above - 1], budgets[above]
        part = (budget - low) / (high - low)
        return math.exp((1.0 - part) * math.log(values[above - 1]) + part * math.log(values[above]))

    @property
    def prompt(self) -> str:
        """What goes before every text that an embedding model reads; nothing for other tasks."""
        return "" if self.pooling is None else self.pooling.prompt

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        return {
            "task": self.task,
            "labels": list(self.labels),
            "max_length": self.max_length,
            "trained_budgets": None if self.trained_budgets is None else list(self.trained_budgets),
            "evaluation": list(self.evaluation),
            "temperatures": [list(pair) for pair in self.temperatures],
            "training": self.training,
            "pooling": None if self.pooling is None else self.pooling.to_json(),
        }

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> CheckpointInfo:
        """Return the info that ``to_json`` wrote."""
        budgets = record["trained_budgets"]
        return cls(
            task=record["task"],
            labels=tuple(record["labels"]),
            max_length=record["max_length"],
            trained_budgets=None if budgets is None else (float(budgets[0]), float(budgets[1])),
            evaluation=tuple(record["evaluation"]),
            temperatures=tuple((float(b), float(t)) for b, t in record.get("temperatures", ())),
            training=dict(record["training"]),
            pooling=Pooling.from_json(record["pooling"]) if record.get("pooling") else None,
        )


def task_of(info: CheckpointInfo) -> str:
    """Return the task of a checkpoint: single-label where none was ever set."""
    return info.task or SINGLE_LABEL


def library_version() -> str:
    """Return the installed version of rheostat, or ``unknown`` in a bare source tree."""
    try:
        return version("rheostat")
    except PackageNotFoundError:
        return "unknown"


@contextmanager
def replacing_folder(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield an empty folder beside ``target`` that takes its place when the block ends without an error.

    A crash leaves the old folder or the new one: the new one is complete before the old one is moved aside, and
    :func:`existing_folder` finds the old one again if the crash fell between the two moves.

    Raises:
        CheckpointError: ``target`` exists and is not a checkpoint folder, so replacing it could lose something.
    """
    final = Path(target).resolve()  # a link stays, and "." has a name
    check_replaceable(final)
    final.parent.mkdir(parents=True, exist_ok=True)
    new = final.with_name(f".{final.name}.{uuid.uuid4().hex[:8]}.new")
    new.mkdir()
    try:
        yield new
        _flush_to_disk(new)
        old = _aside(final)
        if final.exists():
            shutil.rmtree(old, ignore_errors=True)
            os.replace(final, old)
        os.replace(new, final)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def check_replaceable(target: Path) -> None:
    """Refuse to write over a file, or over a folder with something else in it.

    Raises:
        CheckpointError: ``target`` exists and is neither empty nor a rheostat folder.
    """
    if not target.exists():
        return
    ours = is_checkpoint(target) or (target / BUNDLE_MANIFEST).is_file()
    if not target.is_dir() or (any(target.iterdir()) and not ours):
        raise CheckpointError(
            f"output must be a new folder, an empty one or a rheostat checkpoint; got {str(target)!r}. "
            "Choose another name, or move what is there"
        )


def _aside(final: Path) -> Path:
    return final.with_name(f".{final.name}.old")


def _flush_to_disk(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


def existing_folder(path: str | os.PathLike[str]) -> Path:
    """Return the folder at ``path``, or the one that a crash left beside it in the middle of a replacement.

    Nothing is moved back: another process may be in the middle of that replacement.

    Raises:
        CheckpointError: there is none.
    """
    folder = Path(path)
    aside = _aside(folder.resolve())
    if not folder.exists() and aside.is_dir():
        return aside
    if not folder.is_dir():
        raise CheckpointError(f"checkpoint must be a folder; got {str(folder)!r}, which does not exist. Check the path")
    return folder


def write_manifest(folder: Path, content: dict[str, Any]) -> None:
    """Write the manifest last, with the size of every file beside it, so that damage can be named."""
    files = {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in (MANIFEST, "README.md")
    }
    record = {"format_version": FORMAT_VERSION, "library_version": library_version(), **content, "files_bytes": files}
    (folder / MANIFEST).write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def is_checkpoint(path: str | os.PathLike[str]) -> bool:
    """Return whether ``path`` is a folder with a rheostat manifest."""
    return (Path(path) / MANIFEST).is_file()


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a folder after checking its version and the size of every file it lists.

    Raises:
        CheckpointError: not a checkpoint, unreadable, of a newer format, or a file missing or cut short.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise CheckpointError(
            f"{str(folder)!r} must hold {MANIFEST}; it does not: not a rheostat checkpoint, or one cut off while it "
            "was written. Train or save it again"
        )
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        found = record["format_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{MANIFEST} of {str(folder)!r} must be valid JSON with a format_version: {error}"
        ) from None
    if type(found) is not int or found > FORMAT_VERSION or found < 1:
        raise CheckpointError(
            f"format_version of {str(folder)!r} must be 1 to {FORMAT_VERSION}; got {found!r}, "
            f"written by rheostat {record.get('library_version', 'unknown')}. Install that version or a newer one"
        )
    if not isinstance(record.get("files_bytes"), dict):
        raise CheckpointError(f"{MANIFEST} of {str(folder)!r} must list files_bytes; it does not. Save it again")
    for name, size in record["files_bytes"].items():
        actual = (folder / name).stat().st_size if (folder / name).is_file() else None
        if actual != size:
            state = "is missing" if actual is None else f"has {actual} bytes: it was cut short or changed"
            raise CheckpointError(
                f"{name} of {str(folder)!r} must have {size} bytes; it {state}. Copy or save it again"
            )
    return dict(record)


@contextmanager
def naming_damage(folder: Path) -> Iterator[None]:
    """Turn what a damaged manifest or weights file raises into one named error.

    Raises:
        CheckpointError: something in the folder is missing, of the wrong kind, or unreadable.
    """
    try:
        yield
    except CheckpointError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, OSError, RuntimeError) as error:
        kind = type(error).__name__
        raise CheckpointError(
            f"{str(folder)!r} must be a complete checkpoint; {kind}: {error}. Save it again"
        ) from error


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all; text as UTF-8."""
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    os.replace(new, path)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
