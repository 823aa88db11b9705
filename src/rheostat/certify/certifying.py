"""`certify`: time a small grid of subnets, fit the latency model to half of them, and say how it does on the rest."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rheostat.budget import DEFAULT_BUDGETS
from rheostat.bundle import Bundle, open_bundle
from rheostat.bundle.manifest import read_bundle_info, rewrite_bundle_info
from rheostat.certify.certificate import PERCENTILES, Certificate, Fit
from rheostat.certify.conditions import Conditions, check_runtime, engine_of
from rheostat.certify.latency import Sample, fit_latency, relative_errors, step_of
from rheostat.certify.runtimes import Call, bundle_call, subnet_call
from rheostat.checkpoint import BUNDLE_MANIFEST, existing_folder
from rheostat.errors import OptionError, missing
from rheostat.measure import LatencyTable, Measurement, Progress, environment, measure
from rheostat.subnet import KINDS, Subnet

if TYPE_CHECKING:
    from rheostat.model import BudgetedModel

# The budgets of the usual table, whose latency is then a measured one, and some in between.
GRID = (*DEFAULT_BUDGETS[1:], 0.9, 0.6, 0.42, 0.3, 0.2, 0.16, 0.1)
LEAST_POINTS = 12
WIDTH_STEP = 8  # the finest width that kernels could care about
MOST_WIDTHS, MOST_HEADS = 17, 8


def certify(
    path: str | os.PathLike[str],
    *,
    conditions: Sequence[Conditions] = (Conditions(),),
    name: str = "machine",
    points: int = 24,
    rounds: int = 9,
    widths: bool = True,
    seed: int = 0,
    save: bool = True,
    progress: Progress | None = None,
) -> Certificate:
    """Measure a checkpoint or a bundle on this machine.

    Subnets of a checkpoint are prefixes of its order and random choices; every second one is held out of the fit. The
    points of a bundle are measured as they are.

    Args:
        path: Folder of a checkpoint or a bundle.
        conditions: What to measure; each is one interleaved run. The engine of a bundle is its own.
        name: Of the file ``certificates/NAME.json`` in the folder, written anew after each run.
        points: Subnets of a checkpoint.
        rounds: Of each run, at least 5; from 9 on one outlier does not count as the noise.
        widths: Whether to find out which widths pay, in a run before the first.
        seed: Of the random subnets.
        save: Whether to write the file.
        progress: Called with (blocks done, blocks in all) of each run.

    Raises:
        RheostatError: anything that can't be measured, in one line, before the first run.
    """
    folder = existing_folder(path)
    if not name or Path(name).name != name or not conditions:
        raise OptionError(f"name must be that of a file, and conditions not empty; got {name!r}. Try machine")
    chosen = list(dict.fromkeys(settled(folder, asked) for asked in conditions))
    subject = _BundleSubject(folder) if is_bundle(folder) else _CheckpointSubject(folder, points, seed, widths)
    for asked in chosen:
        subject.check(asked)
    fits: list[Fit] = []
    for asked in chosen:
        fits.append(subject.fit(asked, rounds, progress))
        certificate = Certificate(name, subject.told(), environment(), tuple(fits))
        if save:
            certificate.save(folder)
            subject.keep(fits[-1])
    return certificate


def is_bundle(folder: Path) -> bool:
    """Whether a folder is a bundle and not a checkpoint."""
    return (folder / BUNDLE_MANIFEST).is_file()


def settled(folder: Path, asked: Conditions) -> Conditions:
    """Return conditions with a runtime that is known; a bundle has one engine, and ``torch`` means just that.

    Raises:
        OptionError: unknown runtime, or one that the bundle is not for.
    """
    check_runtime(asked.runtime)
    if asked.batch < 1 or asked.length < 1 or asked.threads < 1:
        raise OptionError(f"batch, length and threads must be at least 1; got {asked}. Try 1, 128 and 1")
    if not is_bundle(folder):
        return asked
    engine = read_bundle_info(folder, verify=False).engine
    if asked.runtime == "torch":
        return replace(asked, runtime=engine)
    if engine_of(asked.runtime) != engine:
        raise OptionError(f"runtime of this bundle must be {engine} or {engine}-int8; got {asked.runtime!r}")
    return asked


def refuse_top_k(selection: str) -> None:
    """Refuse a checkpoint whose budgets are no prefixes.

    Raises:
        OptionError: its selection is ``top-k``.
    """
    if selection == "top-k":
        raise OptionError("selection must be nested to certify budgets in time; got top-k. Train with nested")


class _CheckpointSubject:
    """A checkpoint that is measured."""

    def __init__(self, folder: Path, points: int, seed: int, widths: bool) -> None:
        for package in ("torch", "transformers", "scipy"):
            if find_spec(package) is None:
                raise missing(package, "train")
        from rheostat.model import BudgetedModel, load

        model = load(folder)
        if not isinstance(model, BudgetedModel):
            raise OptionError(f"{str(folder)!r} must be a budgeted checkpoint or a bundle. Certify the whole model")
        refuse_top_k(model.selection)
        if points < LEAST_POINTS:
            raise OptionError(
                f"points must be at least {LEAST_POINTS}, half of which are held out; got {points}. The default is 24"
            )
        self.model, self.points, self.seed = model, points, seed
        self.widths_left = widths

    def told(self) -> dict[str, Any]:
        """Return what a certificate says it is about."""
        return {
            "kind": "checkpoint",
            "model_type": str(self.model.config.model_type),
            "shape": self.model.shape.to_json(),
        }

    def keep(self, fit: Fit) -> None:
        """Do nothing more: a checkpoint has no table of graphs."""

    def check(self, conditions: Conditions) -> None:
        """Refuse what can't be measured."""
        from rheostat.timing import check_timed

        if self.model.spec.image_tokens is not None:
            raise OptionError("checkpoints to certify must read texts; got one of images. Use rheostat measure")
        check_timed(self.model, (), length=conditions.length, form="materialized")
        engine = engine_of(conditions.runtime)
        needed: tuple[str, ...] = ()
        if engine != "torch":
            needed = ("onnx", "onnxscript", "onnxruntime", *(["openvino"] if engine == "openvino" else []))
        for package in needed:
            if find_spec(package) is None:
                raise missing(package, "openvino" if package == "openvino" else "export")

    def fit(self, conditions: Conditions, rounds: int, progress: Progress | None) -> Fit:
        """Measure one set of conditions."""
        sizes = _sizes(self.model, conditions, rounds, progress) if self.widths_left else ({}, {}, 0.0)
        width_ms, head_ms, noise = sizes
        self.widths_left = False
        grid = grid_of(self.model, self.points, self.seed)
        table = _timed_subnets(self.model, {f"{i}": s for i, s in enumerate(grid)}, conditions, rounds, progress)
        samples = tuple(
            _sample(subnet.head_counts, subnet.neuron_counts, table[f"{i}"], held_out=i % 2 == 1)
            for i, subnet in enumerate(grid)
        )
        fitted = fit_latency(samples, step_of(width_ms))
        held_out = [sample for sample in samples if sample.held_out]
        return Fit(
            conditions=conditions,
            samples=samples,
            model=fitted,
            noise=_noise(table),
            median_error=float(np.median(relative_errors(fitted, held_out))),
            tail=_tail(table),
            widths=_that_pay(width_ms, noise),
            head_counts=_that_pay(head_ms, noise),
        )


def grid_of(model: BudgetedModel, points: int, seed: int) -> list[Subnet]:
    """Return distinct subnets to measure: the full one, prefixes of the order, and random choices in every layer.

    Neurons vary in the random ones whatever the cost model, or what they take could not be told from what is fixed.
    """
    rng = np.random.default_rng(seed)
    prefixes = [model.order.subnet(b) for b in GRID if b >= model.floor]
    chosen = list(dict.fromkeys([Subnet.full(model.shape), *prefixes]))[: points // 2 + 1]
    steps: dict[str, int] = {
        kind: max((unit.size for unit in model.order.units if unit.kind == kind), default=32) for kind in KINDS
    }
    for _ in range(100 * points):
        if len(chosen) == points:
            break
        counts = {
            kind: [
                int(rng.choice([*range(0, model.shape.size(i, kind), steps[kind]), model.shape.size(i, kind)]))
                for i in range(len(model.shape.layers))
            ]
            for kind in KINDS
        }
        subnet = Subnet.prefix(model.shape, counts["head"], counts["neuron"])
        chosen += [subnet] * (subnet not in chosen)
    return chosen


def _sizes(
    model: BudgetedModel, conditions: Conditions, rounds: int, progress: Progress | None
) -> tuple[dict[int, float], dict[int, float], float]:
    """Return the latency by neurons a layer, by heads a layer, and the noise of that run."""
    shape, least = model.shape, {kind: min(_sizes_of(model, kind)) for kind in KINDS}
    start = max(least["neuron"] // 8 // (8 * WIDTH_STEP) * 8 * WIDTH_STEP, WIDTH_STEP)
    widths = [start + i * WIDTH_STEP for i in range(MOST_WIDTHS) if start + i * WIDTH_STEP <= least["neuron"]]
    heads = list(range(1, min(least["head"], MOST_HEADS) + 1))
    layers = len(shape.layers)
    named = {f"width {n}": Subnet.prefix(shape, _sizes_of(model, "head"), [n] * layers) for n in widths}
    eighth = [n // 8 for n in _sizes_of(model, "neuron")]
    named |= {f"heads {n}": Subnet.prefix(shape, [n] * layers, eighth) for n in heads}
    table = _timed_subnets(model, named, conditions, rounds, progress)
    times = {name: row.latency_ms_p50 for name, row in ((row.name, row) for row in table.measurements)}
    return {n: times[f"width {n}"] for n in widths}, {n: times[f"heads {n}"] for n in heads}, _noise(table)


def _sizes_of(model: BudgetedModel, kind: Any) -> list[int]:
    return [model.shape.size(i, kind) for i in range(len(model.shape.layers))]


def _that_pay(times_ms: Mapping[int, float], noise: float) -> tuple[int, ...]:
    """Return the sizes for which no larger measured size is as fast, but for the noise; the largest always is one."""
    sizes = sorted(times_ms)
    return tuple(
        n
        for i, n in enumerate(sizes)
        if all(times_ms[more] > times_ms[n] * (1 + noise / 2) for more in sizes[i + 1 :]) or i == len(sizes) - 1
    )


def _timed_subnets(
    model: BudgetedModel,
    named: Mapping[str, Subnet],
    conditions: Conditions,
    rounds: int,
    progress: Progress | None,
) -> LatencyTable:
    """Time subnets in one interleaved run, the first one twice."""
    model.eval()
    with tempfile.TemporaryDirectory() as scratch:
        calls = {name: subnet_call(model, subnet, conditions, Path(scratch)) for name, subnet in named.items()}
        return _timed(calls, conditions, rounds, progress)


def _timed(calls: Mapping[str, Call], conditions: Conditions, rounds: int, progress: Progress | None) -> LatencyTable:
    return measure(
        calls,
        baseline=next(iter(calls)),
        conditions=vars(conditions),
        rounds=rounds,
        threads=conditions.threads,
        progress=progress,
    )


def _noise(table: LatencyTable) -> float:
    return max(table.noise_high - 1.0, 1.0 - table.noise_low)


def _tail(table: LatencyTable) -> dict[str, float]:
    def median(p: str) -> float:
        ratios = [getattr(row, f"latency_ms_p{p}") / row.latency_ms_p50 for row in table.measurements]
        return float(statistics.median(ratios))

    return {p: median(p) for p in PERCENTILES}


class _BundleSubject:
    """A bundle that is measured: every point as it is."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.info = folder, read_bundle_info(folder)

    def told(self) -> dict[str, Any]:
        """Return what a certificate says it is about."""
        return {"kind": "bundle", "model_type": self.info.model_type, "budgets": list(self.info.budgets)}

    def check(self, conditions: Conditions) -> None:
        """Refuse what can't be measured: int8 that the bundle has not, or a runtime that is not installed."""
        budgets = self.info.budgets[-1:]
        bundle_call(self._open(conditions, budgets), budgets[0], conditions)()

    def _open(self, conditions: Conditions, budgets: Sequence[float] | None = None) -> Bundle:
        precision = "int8" if conditions.runtime.endswith("-int8") else "float32"
        return open_bundle(self.folder, precision=precision, threads=conditions.threads, budgets=budgets, verify=False)

    def fit(self, conditions: Conditions, rounds: int, progress: Progress | None) -> Fit:
        """Measure one set of conditions."""
        bundle = self._open(conditions)
        calls = {f"{budget:g}": bundle_call(bundle, budget, conditions) for budget in bundle.budgets}
        table = _timed(calls, conditions, rounds, progress)
        samples = []
        for budget in bundle.budgets:
            kept = bundle.point(budget).kept
            heads, neurons = (tuple(len(ids) for ids in kept[kind]) for kind in ("heads", "neurons"))
            samples.append(_sample(heads, neurons, table[f"{budget:g}"]))
        return Fit(conditions, tuple(samples), None, _noise(table), None, _tail(table))

    def keep(self, fit: Fit) -> None:
        """Write the latencies into ``bundle.json``, each beside its graph."""
        precision = "int8" if fit.conditions.runtime.endswith("-int8") else "float32"
        points = []
        for point, sample in zip(self.info.points, fit.samples, strict=True):
            latency = {"ms": sample.ms, "low_ms": sample.low_ms, "high_ms": sample.high_ms, **vars(fit.conditions)}
            graph = replace(point.graphs[precision], latency=latency)
            points.append(replace(point, graphs={**point.graphs, precision: graph}))
        self.info = rewrite_bundle_info(self.folder, replace(self.info, points=tuple(points)))


def _sample(heads: tuple[int, ...], neurons: tuple[int, ...], row: Measurement, *, held_out: bool = False) -> Sample:
    """Return a measured subnet."""
    ms = row.latency_ms_p50
    low, high = ms * row.speedup / row.speedup_high, ms * row.speedup / row.speedup_low
    return Sample(heads, neurons, ms, held_out, low, high)
