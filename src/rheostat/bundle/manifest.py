"""bundle.json: every operating point, every file with its size and hash; versioned, checked at load, damage named."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rheostat.budget import check_budget
from rheostat.checkpoint import BUNDLE_MANIFEST, CheckpointInfo, library_version, sha256_of, write_whole
from rheostat.errors import BudgetError, CheckpointError

BUNDLE_VERSION = 1
ENGINES = ("onnx", "openvino")
PRECISIONS = ("float32", "int8")
INPUTS = ("input_ids", "attention_mask", "token_type_ids", "pixel_values")
NEAR = 1e-9  # 0.1 + 0.2 asks for 0.3


@dataclass(frozen=True)
class Graph:
    """The graph of a point at one precision.

    Attributes:
        file: Path within the bundle; its weights are in the bundle's weight files.
        operators: How many of each operator; for ``onnx`` after the runtime has fused what it can.
        quantized: How many linear layers hold int8 weights.
        method: How they were quantized; None for float32.
        quality: What it scores on validation rows, as :mod:`rheostat.quality` writes it; None if not validated.
        agreement: Share of validation rows on which it answers as float32 does; None for float32 itself.
        latency: What ``rheostat certify`` measured last: milliseconds, their interval, conditions; None before.
    """

    file: str
    operators: dict[str, int] = field(default_factory=dict)
    quantized: int = 0
    method: str | None = None
    quality: dict[str, Any] | None = None
    agreement: float | None = None
    latency: dict[str, Any] | None = None


@dataclass(frozen=True)
class Point:
    """One operating point.

    Attributes:
        budget: What was asked for at export.
        share: What it costs, at most the budget.
        macs: Multiply-accumulates of a sequence of ``macs_length`` tokens.
        macs_length: The cost model's length, or 128 where it has none.
        params: Parameters.
        kept: Original ids of heads and neurons, a layer at a time.
        graphs: By precision.
    """

    budget: float
    share: float
    macs: int
    macs_length: int
    params: int
    kept: dict[str, Any]
    graphs: dict[str, Graph]


@dataclass(frozen=True)
class BundleInfo:
    """Everything that ``bundle.json`` says.

    Attributes:
        engine: ``onnx`` or ``openvino``.
        model_type: Of the Hugging Face model.
        cost: Name and sequence length of the cost model whose share a budget is.
        inputs: Names of the graphs' inputs.
        info: Task, labels, longest input, temperatures.
        tokenizer: File name, pad id, pad type id, longest input, and the side that is cut; None without one.
        points: Largest budget first.
        environment: Where it was exported: processor and versions, which the choice of an int8 method depends on.
        files: Bytes and SHA-256 by path.
    """

    engine: str
    model_type: str
    cost: dict[str, Any]
    inputs: tuple[str, ...]
    info: CheckpointInfo
    tokenizer: dict[str, Any] | None
    points: tuple[Point, ...]
    environment: dict[str, Any] = field(default_factory=dict)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def budgets(self) -> tuple[float, ...]:
        """Return the budgets, largest first."""
        return tuple(point.budget for point in self.points)

    def point(self, budget: float, *, strict: bool = False) -> Point:
        """Return the point of ``budget``, or the nearest one below it.

        Raises:
            BudgetError: no point at or below ``budget``; with ``strict``, none at it.
        """
        check_budget(budget)
        found = next((point for point in self.points if point.budget <= budget + NEAR), None)
        if found is None or (strict and abs(found.budget - budget) > NEAR):
            listed = ", ".join(f"{known:g}" for known in self.budgets)
            above = "" if strict else ", or above the smallest"
            raise BudgetError(
                f"budget must be one of the bundle's {listed}{above}; got {budget!r}. Export it too, or ask for another"
            )
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``bundle.json``."""
        return {
            "bundle_version": BUNDLE_VERSION,
            "library_version": library_version(),
            "engine": self.engine,
            "model_type": self.model_type,
            "cost": self.cost,
            "inputs": list(self.inputs),
            "info": self.info.to_json(),
            "tokenizer": self.tokenizer,
            "points": [
                {**vars(point), "graphs": {name: dict(vars(graph)) for name, graph in point.graphs.items()}}
                for point in self.points
            ],
            "environment": self.environment,
            "files": self.files,
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> BundleInfo:
        """Return what ``to_json`` wrote."""
        points = tuple(
            Point(**{**point, "graphs": {name: Graph(**graph) for name, graph in point["graphs"].items()}})
            for point in record["points"]
        )
        return cls(
            engine=record["engine"],
            model_type=record["model_type"],
            cost=record["cost"],
            inputs=tuple(record["inputs"]),
            info=CheckpointInfo.from_json(record["info"]),
            tokenizer=record["tokenizer"],
            points=points,
            environment=record["environment"],
            files=record["files"],
        )


def write_bundle_info(folder: Path, info: BundleInfo) -> BundleInfo:
    """Write ``bundle.json`` last, with the size and hash of every file beside it, and return what it says."""
    files = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != BUNDLE_MANIFEST
    }
    return rewrite_bundle_info(folder, replace(info, files=files))


def rewrite_bundle_info(folder: Path, info: BundleInfo) -> BundleInfo:
    """Write ``bundle.json`` whole or not at all, and return what it says; the other files are as they were."""
    write_whole(folder / BUNDLE_MANIFEST, json.dumps(info.to_json(), indent=1, ensure_ascii=False) + "\n")
    return info


def read_bundle_info(folder: Path, *, verify: bool = True) -> BundleInfo:
    """Return what a bundle holds after checking its version and its files.

    Args:
        folder: The bundle.
        verify: Whether hashes are checked too; sizes always are.

    Raises:
        CheckpointError: no bundle, of a newer version, or a file is missing, cut short or changed.
    """
    path = folder / BUNDLE_MANIFEST
    if not path.is_file():
        raise CheckpointError(
            f"{str(folder)!r} must hold {BUNDLE_MANIFEST}; it does not. Write it with rheostat export"
        )
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        version = record["bundle_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{BUNDLE_MANIFEST} of {str(folder)!r} must be valid, with a version: {error}") from None
    if type(version) is not int or not 1 <= version <= BUNDLE_VERSION:
        raise CheckpointError(
            f"bundle_version of {str(folder)!r} must be 1 to {BUNDLE_VERSION}; got {version!r}, written by rheostat "
            f"{record.get('library_version', 'unknown')}. Install that version or a newer one"
        )
    try:
        info = BundleInfo.from_json(record)
        _check_content(info)
        expected = {name: (int(entry["bytes"]), str(entry["sha256"])) for name, entry in info.files.items()}
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{BUNDLE_MANIFEST} of {str(folder)!r} must be complete; {type(error).__name__}: {error}. Export it again"
        ) from None
    for name, (size, digest) in expected.items():
        _check_file(folder, name, size, digest if verify else None)
    return info


def _check_content(info: BundleInfo) -> None:
    """Refuse what can't be opened: no points, unknown inputs, files outside the folder or of unknown size.

    Raises:
        ValueError: with what is wrong.
    """
    used = [graph.file for point in info.points for graph in point.graphs.values()]
    if info.tokenizer is not None:
        used.append(info.tokenizer["file"])
        missing_keys = {"pad_id", "pad_type_id", "max_length", "truncation_side"} - set(info.tokenizer)
        if missing_keys:
            raise ValueError(f"tokenizer lacks {', '.join(sorted(missing_keys))}")
    outside = [name for name in (*used, *info.files) if Path(name).name != name or set(name) & set("\\:")]
    if outside:
        raise ValueError(f"files must lie in the folder; got {outside[0]!r}")
    unlisted = sorted(set(used) - set(info.files))
    if unlisted:
        raise ValueError(f"{unlisted[0]} is not among the files")
    if not info.points or set(info.inputs) - set(INPUTS) or info.engine not in ENGINES:
        raise ValueError("points, inputs and engine must be known")


def _check_file(folder: Path, name: str, expected: int, digest: str | None) -> None:
    path = folder / name
    if not path.is_file():
        raise CheckpointError(f"{name} of {str(folder)!r} is missing. Copy or export the bundle again")
    size = path.stat().st_size
    if size != expected:
        raise CheckpointError(
            f"{name} of {str(folder)!r} must have {expected} bytes; it has {size}: cut short or changed. "
            "Copy or export the bundle again"
        )
    if digest is not None and sha256_of(path) != digest:
        raise CheckpointError(f"{name} of {str(folder)!r} is damaged: another SHA-256. Copy or export the bundle again")
