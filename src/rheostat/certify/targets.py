"""From "2x" or "8ms" to the largest budget that holds it here: chosen by the model, verified by measuring."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import warnings
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rheostat.bundle.manifest import read_bundle_info
from rheostat.certify.certificate import Certificate, Conditions, Fit, differences, read_certificates
from rheostat.certify.certifying import PERCENTILES, certify
from rheostat.checkpoint import BUNDLE_MANIFEST, existing_folder
from rheostat.console import stderr
from rheostat.errors import BudgetError, OptionError
from rheostat.measure import LatencyTable, environment

UNITS_MS = {"ms": 1.0, "s": 1000.0, "us": 0.001}
AIM = 0.98  # of the target: what is chosen by a model should survive the noise of a measurement
SLACK = 0.93  # a verified budget that needs less than this share of the target is tried larger
MOST_TRIES = 4


@dataclass(frozen=True)
class Target:
    """What time must hold.

    Attributes:
        speedup: Times faster than the full model; None for a latency.
        ms: Milliseconds of a call; None for a speedup.
    """

    speedup: float | None = None
    ms: float | None = None

    def __str__(self) -> str:
        return f"{self.speedup:g}x" if self.speedup is not None else f"{self.ms:g} ms"

    def limit_ms(self, full_ms: float) -> float:
        """Return the longest latency that holds, for a full model that takes ``full_ms``."""
        return self.ms if self.ms is not None else full_ms / (self.speedup or 1.0)


@dataclass(frozen=True)
class Promise:
    """The budget that holds a target.

    Attributes:
        budget: The budget.
        target: What was asked.
        conditions: Where it holds.
        percentile: Of the calls that must hold it.
        predicted_ms: Latency at that percentile, by the certificate.
        measured_ms: The same, measured in a fresh process; None if it was not verified.
        speedup: Measured times faster than full, with its interval; None likewise.
    """

    budget: float
    target: Target
    conditions: Conditions
    percentile: int
    predicted_ms: float
    measured_ms: float | None = None
    speedup: tuple[float, float, float] | None = None


def parse_target(text: str) -> Target:
    """Read a target as the command line does.

    >>> parse_target("2x"), parse_target("8 ms")
    (Target(speedup=2.0, ms=None), Target(speedup=None, ms=8.0))

    Raises:
        OptionError: no number above 0 with the unit x, ms, s or us, or a speedup below 1.
    """
    found = re.fullmatch(r"\s*([^\sa-zA-Z]+(?:e[+-]?\d+)?)\s*([a-zA-Z]+)\s*", text)
    try:
        value, unit = (float(found[1]), found[2].lower()) if found else (math.nan, "")
    except ValueError:
        value, unit = math.nan, ""
    if unit not in ("x", *UNITS_MS) or not 0.0 < value < math.inf:
        raise OptionError(
            f"target must be a number above 0 and a unit, x (times faster), ms, s or us; got {text!r}. Try 2x or 8ms"
        )
    if unit == "x" and value < 1.0:
        raise OptionError(f"target must be at least 1x, the full model; got {text!r}. Try 2x")
    return Target(speedup=value) if unit == "x" else Target(ms=value * UNITS_MS[unit])


def budget_for(
    path: str | os.PathLike[str],
    target: str | Target,
    *,
    conditions: Conditions | None = None,
    percentile: int = 50,
    certificate: Certificate | None = None,
    verify: bool = True,
) -> Promise:
    """Return the largest budget that holds a target on this machine.

    The newest certificate with these conditions chooses; without one they are certified first. Then the choice is
    measured against the full model in a fresh process, and corrected where it does not hold or leaves room.

    Args:
        path: Folder of a checkpoint or a bundle.
        target: For example ``"2x"`` or ``"8ms"``.
        conditions: Batch, length, threads and runtime.
        percentile: 50, 90 or 95: the share of calls that a latency must hold for. A speedup is of medians.
        certificate: Use this one.
        verify: Whether to measure.

    Raises:
        OptionError: a target that can't be read.
        BudgetError: no budget holds it; the fastest possible is stated.
    """
    wanted = parse_target(target) if isinstance(target, str) else target
    asked = conditions or Conditions()
    if str(percentile) not in ("50", *PERCENTILES):
        raise OptionError(f"percentile must be 50, {' or '.join(PERCENTILES)}; got {percentile!r}. Try 95")
    folder = existing_folder(path)
    fit = _fit_of(folder, asked, certificate)
    tail = 1.0 if percentile == 50 or wanted.speedup is not None else fit.tail[str(percentile)]
    choices = _choices(folder, fit)

    def promise(index: int, table: LatencyTable | None = None) -> Promise:
        budget, ms = choices[index]
        found = Promise(budget, wanted, fit.conditions, percentile, ms * tail)
        return found if table is None else _with_measurement(found, table)

    limit = wanted.limit_ms(choices[-1][1])
    start = _largest(choices, limit * AIM / tail)
    if not verify:
        if start < 0:
            raise _unreachable(wanted, *choices[0], choices[-1][1], tail)
        return promise(start)
    return _verified(folder, choices, max(start, 0), promise, wanted)


def _verified(
    folder: Path,
    choices: Sequence[tuple[float, float]],
    index: int,
    promise: Callable[..., Promise],
    target: Target,
) -> Promise:
    """Measure choices until one holds and a larger one would not, or tries run out."""
    best: Promise | None = None
    failed = len(choices)
    for _ in range(MOST_TRIES):
        table = _measured_afresh(folder, choices[index][0], promise(index).conditions)
        tried = promise(index, table)
        used = share_of_target(tried)
        if used <= 1.0:
            best = tried if best is None or tried.budget > best.budget else best
            if used >= SLACK or index == len(choices) - 1:
                break
        else:
            failed = min(failed, index)
            if index == 0:
                full = table["full"].latency_ms_p50
                raise _unreachable(target, choices[0][0], tried.measured_ms or 0.0, full, 1.0)
        # what the measurement says of the model's error holds for its neighbours too
        aimed = _largest(choices, choices[index][1] * AIM / used)
        nearest = index + 1 if used <= 1.0 else index - 1
        index = max(min(aimed, failed - 1, len(choices) - 1), 0) if aimed != index else nearest
        if index >= failed or (best is not None and choices[index][0] <= best.budget):
            break
    if best is None:
        raise _unreachable(target, *choices[0], choices[-1][1], 1.0)
    return best


def share_of_target(measured: Promise) -> float:
    """Return the measured time over the time that the target allows; at most 1 where it holds.

    Raises:
        OptionError: the promise was not measured.
    """
    if measured.speedup is None or measured.measured_ms is None:
        raise OptionError("promise must be a measured one; got one that was only chosen. Leave verify on")
    if measured.target.speedup is not None:
        return measured.target.speedup / measured.speedup[0]
    return measured.measured_ms / (measured.target.ms or 1.0)


def judged(path: str | os.PathLike[str], promise: Promise) -> Promise:
    """Return a promise with what its budget measures now, in a fresh process."""
    return _with_measurement(promise, _measured_afresh(Path(path), promise.budget, promise.conditions))


def _fit_of(folder: Path, asked: Conditions, certificate: Certificate | None) -> Fit:
    """Return the fit to choose by, saying where it comes from another machine."""
    known = [certificate] if certificate is not None else read_certificates(folder)
    now = environment()
    ranked = sorted(known, key=lambda c: bool(differences(c, now)))
    for found in ranked:
        fit = found.fit(asked)
        if fit is None:
            continue
        changed = differences(found, now)
        if changed:
            warnings.warn(
                f"certificate {found.name!r} was measured elsewhere: {'; '.join(changed)}. Run rheostat certify here",
                stacklevel=3,
            )
        if not fit.holds:
            warnings.warn(
                f"certificate {found.name!r} predicts {100 * (fit.median_error or 0):.1f} % wrong at the median, more "
                f"than {100 * fit.limit:.1f} %. Run rheostat certify again on a quiet machine",
                stacklevel=3,
            )
        return fit
    stderr.print(f"- no certificate for {asked}: measuring this machine", highlight=False, soft_wrap=True)
    name = f"{asked.runtime}-batch-{asked.batch}-length-{asked.length}-threads-{asked.threads}"
    return certify(folder, conditions=(asked,), name=name, widths=False).fits[0]


def _choices(folder: Path, fit: Fit) -> list[tuple[float, float]]:
    """Return (budget, predicted ms) of everything that can be asked for, the smallest first."""
    if (folder / BUNDLE_MANIFEST).is_file():
        budgets = read_bundle_info(folder, verify=False).budgets
        return sorted((b, sample.ms) for b, sample in zip(budgets, fit.samples, strict=True))
    from rheostat.checkpoint import read_manifest
    from rheostat.order import UnitOrder

    order = UnitOrder.from_json(read_manifest(folder)["order"])
    if fit.model is None:
        raise OptionError("certificate must be of a checkpoint; it is of a bundle. Run rheostat certify on the folder")
    found = []
    for length in range(order.required, len(order.units) + 1):
        subnet = order.subnet_of_length(length)
        budget = float(order.cumulative_shares[length - 1]) if length else order.floor
        found.append((min(budget, 1.0), fit.model.predict(subnet.head_counts, subnet.neuron_counts)))
    return [pair for pair in found if pair[0] > 0]


def _largest(choices: Sequence[tuple[float, float]], limit_ms: float) -> int:
    """Return the index of the largest choice within a limit, or -1; predictions never fall with the budget."""
    return bisect_right(np.maximum.accumulate([ms for _, ms in choices]), limit_ms) - 1


def _unreachable(target: Target, budget: float, ms: float, full_ms: float, tail: float) -> BudgetError:
    return BudgetError(
        f"target must be within reach; got {target}, and the fastest is {ms * tail:.3g} ms at budget {budget:.4g}, "
        f"{full_ms / ms:.3g}x. Ask for that, or for a shorter length"
    )


def _measured_afresh(folder: Path, budget: float, conditions: Conditions) -> LatencyTable:
    """Return a run of the full model and a budget in a process of its own."""
    request = json.dumps({"folder": str(folder), "budget": budget, "conditions": vars(conditions)})
    command = [sys.executable, "-m", "rheostat.certify.verifying"]
    found = subprocess.run(command, input=request, capture_output=True, text=True, check=False)
    if found.returncode:
        raise OptionError(f"the measurement in a fresh process failed: {found.stderr.strip().splitlines()[-1:]!r}")
    return LatencyTable.from_json(json.loads(found.stdout.splitlines()[-1]))


def _with_measurement(found: Promise, table: LatencyTable) -> Promise:
    row = table["asked"] if found.budget < 1.0 else table["full"]
    speedup = (row.speedup, row.speedup_low, row.speedup_high)
    ms: float = getattr(row, f"latency_ms_p{found.percentile}")
    fields: dict[str, Any] = {**vars(found), "measured_ms": ms, "speedup": speedup}
    return Promise(**fields)
