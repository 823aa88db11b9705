"""`certify`: time a small grid of subnets, fit the latency model to half of them, and say how it does on the rest."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rheostat.budget import DEFAULT_BUDGETS
from rheostat.bundle import Bundle, open_bundle
from rheostat.certify.certificate import Certificate, Conditions, Fit
from rheostat.certify.latency import Sample, fit_latency, relative_errors
from rheostat.certify.runtimes import Call, bundle_call, bundle_runtime, check_runtime, subnet_call
from rheostat.checkpoint import BUNDLE_MANIFEST, existing_folder
from rheostat.errors import OptionError
from rheostat.measure import LatencyTable, Measurement, Progress, environment, measure
from rheostat.subnet import KINDS, Subnet

if TYPE_CHECKING:
    from rheostat.model import BudgetedModel

PERCENTILES = ("90", "95")
# The budgets of the usual table, whose latency is then a measured one, and some in between.
GRID = (*DEFAULT_BUDGETS[1:], 0.9, 0.6, 0.42, 0.3, 0.2, 0.16, 0.1)
WIDTH_STEP = 8  # the finest width that kernels could care about
MOST_WIDTHS, MOST_HEADS = 9, 8


def certify(
    path: str | os.PathLike[str],
    *,
    conditions: Sequence[Conditions] = (Conditions(),),
    name: str = "machine",
    points: int = 24,
    rounds: int = 7,
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
        conditions: What to measure; each is one interleaved run. The runtime of a bundle is its own.
        name: Of the file ``certificates/NAME.json`` in the folder.
        points: Subnets of a checkpoint.
        rounds: Of each run, at least 5.
        widths: Whether to find out which widths pay, at the first conditions.
        seed: Of the random subnets.
        save: Whether to write the file.
        progress: Called with (blocks done, blocks in all) of each run.

    Raises:
        RheostatError: anything that can't be measured, in one line.
    """
    folder = existing_folder(path)
    if not name or Path(name).name != name or not conditions:
        raise OptionError(f"name must be that of a file, and conditions not empty; got {name!r}. Try machine")
    if (folder / BUNDLE_MANIFEST).is_file():
        fits, subject = _certify_bundle(folder, conditions, rounds, progress)
    else:
        from rheostat.model import BudgetedModel, load

        model = load(folder)
        if not isinstance(model, BudgetedModel):
            raise OptionError(f"{str(folder)!r} must be a budgeted checkpoint or a bundle. Certify the whole model")
        fits, subject = [], subject_of(model)
        for i, asked in enumerate(conditions):
            fits.append(
                certify_model(
                    model, asked, points=points, rounds=rounds, widths=widths and i == 0, seed=seed, progress=progress
                )
            )
    certificate = Certificate(name, subject, environment(), tuple(fits))
    if save:
        certificate.save(folder)
    return certificate


def subject_of(model: BudgetedModel) -> dict[str, Any]:
    """Return what a certificate says it is about."""
    return {
        "kind": "checkpoint",
        "model_type": str(model.config.model_type),
        "shape": model.shape.to_json(),
        "neuron_block": max((unit.size for unit in model.order.units if unit.kind == "neuron"), default=0),
    }


def certify_model(
    model: BudgetedModel,
    conditions: Conditions,
    *,
    points: int = 24,
    rounds: int = 7,
    widths: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> Fit:
    """Return the fit of a model at some conditions: one interleaved run over its grid.

    Raises:
        OptionError: unknown runtime, too few points, or more tokens than the model takes.
    """
    from rheostat.timing import check_timed

    check_runtime(conditions.runtime)
    check_timed(model, (), length=conditions.length, form="materialized")
    if points < 12:
        raise OptionError(f"points must be at least 12, half of which are held out; got {points}. The default is 24")
    grid = grid_of(model, points, seed)
    named = {f"subnet {i}": subnet for i, subnet in enumerate(grid)}
    width_nets = _widths(model) if widths else {}
    head_nets = _head_counts(model) if widths else {}
    if widths:
        named |= {f"width {n}": subnet for n, subnet in width_nets.items()}
        named |= {f"heads {n}": subnet for n, subnet in head_nets.items()}
    model.eval()
    with tempfile.TemporaryDirectory() as scratch:
        opened: dict[Subnet, Call] = {}
        for subnet in named.values():
            if subnet not in opened:
                opened[subnet] = subnet_call(model, subnet, conditions, Path(scratch))
        table = _timed({key: opened[subnet] for key, subnet in named.items()}, conditions, rounds, progress)
    samples = tuple(
        sample_of(subnet.head_counts, subnet.neuron_counts, table[f"subnet {i}"], held_out=i % 2 == 1)
        for i, subnet in enumerate(grid)
    )
    fitted = fit_latency(samples)
    held_out = [sample for sample in samples if sample.held_out]
    return Fit(
        conditions=conditions,
        samples=samples,
        model=fitted,
        noise=_noise(table),
        median_error=float(np.median(relative_errors(fitted, held_out))),
        tail=_tail(table),
        widths=_that_pay({n: table[f"width {n}"].latency_ms_p50 for n in width_nets}, _noise(table)),
        head_counts=_that_pay({n: table[f"heads {n}"].latency_ms_p50 for n in head_nets}, _noise(table)),
    )


def grid_of(model: BudgetedModel, points: int, seed: int) -> list[Subnet]:
    """Return the subnets to measure: the full one, prefixes of the order, and random choices in every layer."""
    prefixes = [model.order.subnet(b) for b in GRID if b >= model.floor][: points // 2]
    rng = np.random.default_rng(seed)
    units = model.order.units
    sizes: dict[tuple[int, str], list[int]] = {}
    for unit in units:
        sizes.setdefault((unit.layer, unit.kind), [0]).append(unit.stop)
    chosen = [Subnet.full(model.shape), *prefixes]
    while len(chosen) < points:
        counts = {
            kind: [
                int(rng.choice(sizes[layer, kind])) if (layer, kind) in sizes else model.shape.size(layer, kind)
                for layer in range(len(model.shape.layers))
            ]
            for kind in KINDS
        }
        chosen.append(Subnet.prefix(model.shape, counts["head"], counts["neuron"]))
    return chosen


def _widths(model: BudgetedModel) -> dict[int, Subnet]:
    """Return subnets whose layers keep every head and n neurons, n in the finest steps."""
    least = min(layer.intermediate_size for layer in model.shape.layers)
    start = max(least // 8 // (8 * WIDTH_STEP) * 8 * WIDTH_STEP, WIDTH_STEP)
    counts = [n for n in range(start, start + MOST_WIDTHS * WIDTH_STEP, WIDTH_STEP) if n <= least]
    heads = [layer.num_attention_heads for layer in model.shape.layers]
    return {n: Subnet.prefix(model.shape, heads, [n] * len(heads)) for n in counts}


def _head_counts(model: BudgetedModel) -> dict[int, Subnet]:
    """Return subnets whose layers keep n heads and an eighth of the neurons."""
    least = min(layer.num_attention_heads for layer in model.shape.layers)
    neurons = [layer.intermediate_size // 8 for layer in model.shape.layers]
    counts = range(1, min(least, MOST_HEADS) + 1)
    return {n: Subnet.prefix(model.shape, [n] * len(neurons), neurons) for n in counts}


def _that_pay(times_ms: Mapping[int, float], noise: float) -> tuple[int, ...]:
    """Return the sizes for which no larger measured size is as fast, but for the noise; the largest always is one."""
    sizes = sorted(times_ms)
    return tuple(
        n
        for i, n in enumerate(sizes)
        if all(times_ms[more] > times_ms[n] * (1 + noise / 2) for more in sizes[i + 1 :]) or i == len(sizes) - 1
    )


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


def _certify_bundle(
    folder: Path, conditions: Sequence[Conditions], rounds: int, progress: Progress | None
) -> tuple[list[Fit], dict[str, Any]]:
    """Measure every point of a bundle; int8 where the conditions ask for it."""
    fits, subject = [], {}
    for asked in conditions:
        precision = "int8" if asked.runtime.endswith("-int8") else "float32"
        bundle = open_bundle(folder, precision=precision, threads=asked.threads)
        chosen = Conditions(asked.batch, asked.length, asked.threads, bundle_runtime(bundle))
        calls = {f"{budget:g}": bundle_call(bundle, budget, chosen) for budget in bundle.budgets}
        table = _timed(calls, chosen, rounds, progress)
        fits.append(
            Fit(
                conditions=chosen,
                samples=tuple(_sample(bundle, b, table[f"{b:g}"]) for b in bundle.budgets),
                model=None,
                noise=_noise(table),
                median_error=None,
                tail=_tail(table),
            )
        )
        subject = {"kind": "bundle", "model_type": bundle.info.model_type, "budgets": list(bundle.budgets)}
    return fits, subject


def _sample(bundle: Bundle, budget: float, row: Measurement) -> Sample:
    kept = bundle.point(budget).kept
    return sample_of(tuple(len(ids) for ids in kept["heads"]), tuple(len(ids) for ids in kept["neurons"]), row)


def sample_of(heads: tuple[int, ...], neurons: tuple[int, ...], row: Measurement, *, held_out: bool = False) -> Sample:
    """Return a measured subnet."""
    ms = row.latency_ms_p50
    low, high = ms * row.speedup / row.speedup_high, ms * row.speedup / row.speedup_low
    return Sample(heads, neurons, ms, held_out, low, high)
