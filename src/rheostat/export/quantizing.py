"""Score the graphs of a bundle that is being written, and add int8 ones by the method that measures best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from rheostat.bundle.engines import Session, open_session
from rheostat.bundle.manifest import BundleInfo, Graph, Point
from rheostat.console import stderr
from rheostat.errors import OptionError
from rheostat.export.int8 import METHODS, Method, quantized
from rheostat.export.validation import ValidationRows, agreement, quality_of
from rheostat.export.weights import SharedWeights, count_operators
from rheostat.measure import measure

INT8_WEIGHTS_FILE = "weights-int8.bin"
CALIBRATION_ROWS = 256
COMPARED_ROWS = 512
NOISE_POINTS = 0.5  # on a few hundred rows less is chance
Logits = Mapping[float, NDArray[np.float32]]


def validated(
    folder: Path, info: BundleInfo, rows: ValidationRows
) -> tuple[BundleInfo, dict[float, NDArray[np.float32]]]:
    """Return the bundle with the quality of every float32 graph, and their logits."""
    logits = {point.budget: rows.logits(_opened(folder, info, point.graphs["float32"].file)) for point in info.points}
    points = []
    for point in info.points:
        quality = quality_of(point.budget, logits[point.budget], logits[1.0], rows, info.info)
        points.append(_with_graph(point, "float32", replace(point.graphs["float32"], quality=quality.to_json())))
    return replace(info, points=tuple(points)), logits


@dataclass(frozen=True)
class Trial:
    """One way to quantize, tried on the full model: points lost and latency."""

    method: Method
    drop: float
    latency_ms: float


def add_int8(
    folder: Path,
    info: BundleInfo,
    weights: SharedWeights,
    rows: ValidationRows | None,
    logits: Logits,
    *,
    max_drop: float,
    force: bool,
) -> BundleInfo:
    """Return the bundle with an int8 graph a point.

    Args:
        folder: Where the bundle is being written.
        info: What it holds so far.
        weights: The float32 weights, which the int8 graphs share where they use them.
        rows: Validation rows; None only with ``force``.
        logits: Of the float32 graphs on them, by budget.
        max_drop: Most points below float32 at the same budget.
        force: Whether more is accepted.

    Raises:
        OptionError: OpenVINO, or a graph that loses more than ``max_drop``.
    """
    if info.engine != "onnx":
        raise OptionError("int8 graphs are written for onnx; got openvino. Export that format too")
    method = METHODS[1] if rows is None else choose(folder, info, rows, logits[1.0])
    batches = [] if rows is None else [_known(arrays, info.inputs) for arrays in rows.first(CALIBRATION_ROWS)]
    written = []
    with SharedWeights(folder / INT8_WEIGHTS_FILE) as own:
        for point in info.points:
            graph, count = quantized(folder / point.graphs["float32"].file, method, batches)
            weights.share(graph, own=own, own_prefix=f"{point.budget:g}/")
            file = f"budget-{point.budget:g}-int8.onnx"
            onnx.save(graph, folder / file)
            written.append((point, Graph(file, count_operators(graph), quantized=count, method=method.name)))
    points = [_scored(folder, info, point, graph, rows, logits) for point, graph in written]
    _check_drops(points, max_drop, force=force)
    return replace(info, points=tuple(points))


def choose(folder: Path, info: BundleInfo, rows: ValidationRows, full: NDArray[np.float32]) -> Method:
    """Try every method on the full model and some of the rows, and return the best."""
    source = folder / info.points[0].graphs["float32"].file
    part = rows.part(COMPARED_ROWS)
    batches = [_known(arrays, info.inputs) for arrays in rows.first(CALIBRATION_ROWS)]
    expected = full[part.places]
    sessions: dict[str, Session] = {}
    drops: dict[str, float] = {}
    for method in METHODS:
        graph, _ = quantized(source, method, batches)
        path = folder / ".trial.onnx"
        onnx.save(graph, path)
        sessions[method.name] = _opened(folder, info, path.name)
        path.unlink()
        quality = quality_of(1.0, part.rows.logits(sessions[method.name]), expected, part.rows, info.info)
        drops[method.name] = quality.drop_points
    timed = part.rows.batches[len(part.rows.batches) // 2][1]
    table = measure(
        {name: lambda session=session: session.run(timed) for name, session in sessions.items()},
        baseline=METHODS[0].name,
        conditions={"rows": len(timed["input_ids"]), "length": timed["input_ids"].shape[1]},
        rounds=5,
    )
    trials = [Trial(m, drops[m.name], table[m.name].latency_ms_p50) for m in METHODS]
    for trial in trials:
        stderr.print(
            f"- int8 {trial.method.name}: {trial.drop:+.2f} points below float32 on {len(part.rows.labels)} rows, "
            f"{trial.latency_ms:.1f} ms",
            highlight=False,
        )
    return best(trials)


def best(trials: Sequence[Trial]) -> Method:
    """Return the fastest method among those that lose at most half a point more than the best."""
    least = min(trial.drop for trial in trials)
    return min((t for t in trials if t.drop <= least + NOISE_POINTS), key=lambda trial: trial.latency_ms).method


def _scored(
    folder: Path, info: BundleInfo, point: Point, graph: Graph, rows: ValidationRows | None, logits: Logits
) -> Point:
    """Return a point with its int8 graph, scored if there are rows; the graph must at least run."""
    session = _opened(folder, info, graph.file)
    if rows is None:
        ids = np.ones((2, 9), dtype=np.int64)
        if not np.isfinite(session.run({"input_ids": ids})).all():
            raise OptionError(f"{graph.file} must give finite logits; it does not. Leave --int8 out")
        return _with_graph(point, "int8", graph)
    found = rows.logits(session)
    quality = quality_of(point.budget, found, logits[1.0], rows, info.info)
    same = agreement(found, logits[point.budget], info.info.task or "single-label")
    return _with_graph(point, "int8", replace(graph, quality=quality.to_json(), agreement=same))


def _check_drops(points: Sequence[Point], max_drop: float, *, force: bool) -> None:
    for point in points:
        float32, int8 = (point.graphs[name].quality for name in ("float32", "int8"))
        if float32 is None or int8 is None:
            continue
        drop = 100 * (float32["accuracy"] - int8["accuracy"])
        same = point.graphs["int8"].agreement or 0.0
        stderr.print(
            f"- int8 at {point.budget:g}: accuracy {100 * int8['accuracy']:.2f} %, float32 "
            f"{100 * float32['accuracy']:.2f} %, the same answer on {100 * same:.2f} %",
            highlight=False,
        )
        if drop > max_drop + 1e-9 and not force:
            raise OptionError(
                f"int8 must be at most {max_drop:g} points below float32; at budget {point.budget:g} it is {drop:.2f}. "
                "Allow more with --max-int8-drop, take it anyway with --force, or leave --int8 out"
            )


def _opened(folder: Path, info: BundleInfo, file: str) -> Session:
    return open_session(info.engine, folder / file, info.inputs, memory="fast", threads=1)


def _with_graph(point: Point, precision: str, graph: Graph) -> Point:
    return replace(point, graphs={**point.graphs, precision: graph})


def _known(arrays: Mapping[str, NDArray[np.int64]], names: Sequence[str]) -> dict[str, NDArray[np.int64]]:
    return {name: arrays[name] for name in names}
