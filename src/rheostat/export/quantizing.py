"""Score the graphs of a bundle that is being written, and add int8 ones by the method that measures best."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from rheostat.bundle.engines import Session, open_session
from rheostat.bundle.manifest import BundleInfo, Graph, Point
from rheostat.checkpoint import task_of
from rheostat.console import stderr
from rheostat.errors import OptionError
from rheostat.export.int8 import METHODS, Arrays, Method, methods_for, quantized
from rheostat.export.operators import fused_operators, operators_of
from rheostat.export.validation import ValidationRows, agreement, quality_of
from rheostat.export.weights import SharedWeights
from rheostat.measure import measure
from rheostat.quality import ROUNDING_POINTS

INT8_WEIGHTS_FILE = "weights-int8.bin"
CALIBRATION_ROWS = 256
COMPARED_ROWS = 512
NOISE_POINTS = 0.5  # on a few hundred rows less is chance
ABOUT_AS_FAST = 1.05
CAREFUL = METHODS[1]  # right on every processor, and needs no rows
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
    """One way to quantize, tried on the full model: points lost, and latency of a batch."""

    method: Method
    drop_points: float
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
    """Return the bundle with an int8 graph a point, by the best method that loses little enough at every point.

    Args:
        folder: Where the bundle is being written.
        info: What it holds so far.
        weights: The float32 weights, which the int8 graphs share where they use them.
        rows: Validation rows; None only with ``force``.
        logits: Of the float32 graphs on them, by budget.
        max_drop: Most points below float32 at the same budget.
        force: Whether more is accepted.

    Raises:
        OptionError: every method loses more than ``max_drop`` at some point, or OpenVINO without rows.
    """
    if rows is None and info.engine != "onnx":
        raise OptionError("int8 for OpenVINO needs --validate DATA: ranges of activations are measured on its rows")
    methods = [CAREFUL] if rows is None else ranked(tried(folder, info, rows, logits[1.0]))
    batches = [] if rows is None else [_known(arrays, info.inputs) for arrays in rows.spread(CALIBRATION_ROWS)]
    refusals = []
    for method in methods:
        points = _quantized_points(folder, info, weights, method, batches)
        if rows is not None:
            points = [_scored(folder, info, point, rows, logits) for point in points]
        else:
            _check_finite(folder, info, points)
        worst, budget = max(((_drop(point), point.budget) for point in points), key=lambda pair: pair[0])
        if worst <= max_drop + ROUNDING_POINTS or force:
            return replace(info, points=tuple(points))
        refusals.append(f"{method.name} {worst:.2f} at budget {budget:g}")
    raise OptionError(
        f"int8 must be at most {max_drop:g} points below float32; it is: {'; '.join(refusals)}. "
        "Allow more with --max-int8-drop, take it anyway with --force, or leave --int8 out"
    )


def _quantized_points(
    folder: Path, info: BundleInfo, weights: SharedWeights, method: Method, batches: Sequence[Arrays]
) -> list[Point]:
    """Write the int8 graphs and their own weights, and return the points with them."""
    points = []
    with SharedWeights(folder / INT8_WEIGHTS_FILE) as own:
        for point in info.points:
            graph, count = quantized(folder / point.graphs["float32"].file, method, batches)
            weights.share(graph, own=own, own_prefix=f"{point.budget:g}/")
            file = f"budget-{point.budget:g}-int8.onnx"
            onnx.save(graph, folder / file)
            points.append(_with_graph(point, "int8", Graph(file, quantized=count, method=method.name)))
    counted = fused_operators if info.engine == "onnx" else operators_of
    return [
        _with_graph(p, "int8", replace(p.graphs["int8"], operators=counted(folder / p.graphs["int8"].file)))
        for p in points
    ]


def tried(folder: Path, info: BundleInfo, rows: ValidationRows, full: NDArray[np.float32]) -> list[Trial]:
    """Try every method on the full model and some of the rows, one row at a time for the latency."""
    source = folder / info.points[0].graphs["float32"].file
    part = rows.part(COMPARED_ROWS)
    batches = [_known(arrays, info.inputs) for arrays in rows.spread(CALIBRATION_ROWS)]
    sessions: dict[str, Session] = {}
    drops: dict[str, float] = {}
    methods = methods_for(info.engine)
    with tempfile.TemporaryDirectory() as scratch:
        for method in methods:
            graph, _ = quantized(source, method, batches)
            path = Path(scratch) / f"{len(sessions)}.onnx"
            onnx.save(graph, path, save_as_external_data=True, location=f"{path.stem}.bin")
            sessions[method.name] = open_session(info.engine, path, info.inputs, memory="fast", threads=1)
            found = part.rows.logits(sessions[method.name])
            drops[method.name] = quality_of(1.0, found, full[part.places], part.rows, info.info).drop_points
        middle = part.rows.batches[len(part.rows.batches) // 2][1]
        one = {name: array[:1] for name, array in middle.items()}
        table = measure(
            {name: partial(session.run, one) for name, session in sessions.items()},
            baseline=methods[0].name,
            conditions={"rows": 1, "length": one["input_ids"].shape[1]},
            rounds=5,
        )
        del sessions
    trials = [Trial(m, drops[m.name], table[m.name].latency_ms_p50) for m in methods]
    for trial in trials:
        stderr.print(
            f"- int8 {trial.method.name}: {trial.drop_points:+.2f} points below float32 on {len(part.rows.labels)} "
            f"rows, {trial.latency_ms:.2f} ms a row",
            highlight=False,
        )
    return trials


def ranked(trials: Sequence[Trial]) -> list[Method]:
    """Return the methods, best first: the fastest of those that lose least, and then the others by what they lose.

    Of methods about as fast, 7 bits come first: 8 overflow on processors without VNNI, where a bundle may go.
    """
    least = min(trial.drop_points for trial in trials)
    good = [trial for trial in trials if trial.drop_points <= least + NOISE_POINTS]
    fastest = min(trial.latency_ms for trial in good)
    good.sort(key=lambda t: (t.latency_ms > ABOUT_AS_FAST * fastest, not t.method.reduce_range, t.latency_ms))
    others = sorted((t for t in trials if t not in good), key=lambda trial: trial.drop_points)
    return [trial.method for trial in (*good, *others)]


def _scored(folder: Path, info: BundleInfo, point: Point, rows: ValidationRows, logits: Logits) -> Point:
    """Return a point with the quality of its int8 graph and how often it answers as float32 does."""
    graph = point.graphs["int8"]
    found = rows.logits(_opened(folder, info, graph.file))
    quality = quality_of(point.budget, found, logits[1.0], rows, info.info)
    same = agreement(found, logits[point.budget], task_of(info.info))
    scored = _with_graph(point, "int8", replace(graph, quality=quality.to_json(), agreement=same))
    stderr.print(
        f"- int8 ({graph.method}) at {point.budget:g}: accuracy {100 * quality.accuracy:.2f} %, {_drop(scored):+.2f} "
        f"points below float32, the same answer on {100 * same:.2f} %",
        highlight=False,
    )
    return scored


def _check_finite(folder: Path, info: BundleInfo, points: Sequence[Point]) -> None:
    """Refuse int8 graphs that do not even give numbers; without rows nothing else is known."""
    for point in points:
        session = _opened(folder, info, point.graphs["int8"].file)
        if not np.isfinite(session.run({"input_ids": np.ones((2, 9), dtype=np.int64)})).all():
            raise OptionError(f"int8 must give finite logits at budget {point.budget:g}; it does not. Leave it out")


def _drop(point: Point) -> float:
    """Return how many points int8 scores below float32 at the same budget; 0 where nothing was scored."""
    float32, int8 = (point.graphs[name].quality for name in ("float32", "int8"))
    return 0.0 if float32 is None or int8 is None else 100 * (float32["accuracy"] - int8["accuracy"])


def _opened(folder: Path, info: BundleInfo, file: str) -> Session:
    return open_session(info.engine, folder / file, info.inputs, memory="fast", threads=1)


def _with_graph(point: Point, precision: str, graph: Graph) -> Point:
    return replace(point, graphs={**point.graphs, precision: graph})


def _known(arrays: Mapping[str, NDArray[np.int64]], names: Sequence[str]) -> dict[str, NDArray[np.int64]]:
    return {name: arrays[name] for name in names}
