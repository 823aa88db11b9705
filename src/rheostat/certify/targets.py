"""From "2x" or "8ms" to the largest budget that holds it here: chosen by the model, verified by measuring."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rheostat.bundle.manifest import read_bundle_info
from rheostat.certify.certificate import PERCENTILES, Certificate, Fit, differences, read_certificates, warn_of
from rheostat.certify.certifying import certify, is_bundle, refuse_top_k, settled
from rheostat.certify.conditions import Conditions
from rheostat.checkpoint import existing_folder, read_manifest
from rheostat.console import stderr
from rheostat.errors import BudgetError, OptionError
from rheostat.measure import BASELINE, FASTER, NO_SPEEDUP, LatencyTable, environment
from rheostat.order import UnitOrder

UNITS_MS = {"ms": 1.0, "s": 1000.0, "us": 0.001}
LEAST_MARGIN = 0.01  # of the time: what just holds once does not hold the next time
UNSURE = 1.05  # of the time: how much faster a budget must be where no speedup was measurable
NEAR = 0.97  # a budget that is this near to what the measurements allow is not tried again
MOST_TRIES = 5
Choice = tuple[float, float]  # budget, predicted milliseconds


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
        percentile: Of the calls that must hold a latency; a speedup is of medians, 50.
        predicted_ms: Latency at that percentile, by the certificate.
        measured_ms: The same, measured in a fresh process; None if it was not verified.
        speedup: Measured times faster than full: median, and the ends of its 95 % interval; None likewise.
        verdict: What the measurement says of the speedup, ``no measurable speedup`` where intervals overlap.
    """

    budget: float
    target: Target
    conditions: Conditions
    percentile: int
    predicted_ms: float
    measured_ms: float | None = None
    speedup: tuple[float, float, float] | None = None
    verdict: str | None = None


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
    measured against the full model in a fresh process, and corrected where it does not hold or leaves room. It holds
    where even the slower end of its 95 % interval does.

    Args:
        path: Folder of a checkpoint or a bundle.
        target: For example ``"2x"`` or ``"8ms"``.
        conditions: Batch, length, threads and runtime; the engine of a bundle is its own.
        percentile: 50, 90 or 95: the share of calls that a latency must hold for.
        certificate: Use this one.
        verify: Whether to measure.

    Raises:
        OptionError: a target that can't be read, or a checkpoint that is not nested.
        BudgetError: no budget holds it; the fastest possible is stated.
    """
    wanted = parse_target(target) if isinstance(target, str) else target
    if str(percentile) not in ("50", *PERCENTILES):
        raise OptionError(f"percentile must be 50, {' or '.join(PERCENTILES)}; got {percentile!r}. Try 95")
    folder = existing_folder(path)
    asked = settled(folder, conditions or Conditions())
    fit = _fit_of(folder, asked, certificate)
    of_medians = percentile == 50 or wanted.speedup is not None
    tail = 1.0 if of_medians else fit.tail[str(percentile)]
    choices = [(budget, ms * tail) for budget, ms in _choices(folder, fit)]
    plain = Promise(1.0, wanted, fit.conditions, 50 if of_medians else percentile, choices[-1][1])

    def promise(index: int) -> Promise:
        return replace(plain, budget=choices[index][0], predicted_ms=choices[index][1])

    limit = wanted.limit_ms(choices[-1][1])
    start = len(choices) - 1 if wanted.speedup == 1.0 else _largest(choices, limit * (1 - LEAST_MARGIN))
    if verify:
        return _verified(folder, choices, max(start, 0), promise)
    if start < 0:
        full_ms = choices[-1][1]
        fastest = replace(promise(0), measured_ms=choices[0][1], speedup=(full_ms / choices[0][1],) * 3, verdict=FASTER)
        raise _unreachable(fastest)
    return promise(start)


def _verified(folder: Path, choices: Sequence[Choice], index: int, promise: Callable[[int], Promise]) -> Promise:
    """Measure until the largest choice that holds is known well enough, or tries run out."""
    best: Promise | None = None
    held, failed = -1, len(choices)
    for number in range(MOST_TRIES):
        tried = judged(folder, promise(index))
        used = surely_used(tried)
        if used <= 1.0:
            best, held = tried, index
        else:
            failed = index
            if index == 0:
                raise _unreachable(tried)
        # What the measurement says of the model's error holds for its neighbours too. What just failed is aimed at
        # with a margin that grows, or every second aim would fail again.
        growing = 1.0 if used <= 1.0 else 1 + LEAST_MARGIN * (number + 1)
        aimed = _largest(choices, choices[index][1] / (used * growing))
        index = min(max(aimed, held + 1), failed - 1)
        if index <= held or (best is not None and best.budget >= NEAR * choices[index][0]):
            break
    if best is not None:
        return best
    smallest = judged(folder, promise(0))
    if surely_used(smallest) > 1.0:
        raise _unreachable(smallest)
    raise BudgetError(
        f"target must be measurable; {smallest.target} held at budget {smallest.budget:.4g} but not at "
        f"{MOST_TRIES} larger ones. The machine is too noisy: measure again when it is quiet, or ask for less"
    )


def judged(path: str | os.PathLike[str], promise: Promise) -> Promise:
    """Return a promise with what its budget measures now, in a fresh process."""
    table = _measured_afresh(Path(path), promise.budget, promise.conditions)
    row = table["asked"] if promise.budget < 1.0 else table["full"]
    return replace(
        promise,
        measured_ms=float(getattr(row, f"latency_ms_p{promise.percentile}")),
        speedup=(row.speedup, row.speedup_low, row.speedup_high),
        verdict=row.verdict,
    )


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


def surely_used(measured: Promise) -> float:
    """Return the same at the slower end of the interval, and never by less than a margin."""
    used = share_of_target(measured)
    if measured.verdict == BASELINE:
        return used if measured.target.speedup is not None else used * (1 + LEAST_MARGIN)
    median, low, _ = measured.speedup or (1.0, 1.0, 1.0)
    surely = used * max(median / low, 1 + LEAST_MARGIN)
    if measured.verdict == NO_SPEEDUP and measured.target.speedup is not None:
        return max(surely, UNSURE)  # what can't be told from the noise is no promise
    return surely


def _fit_of(folder: Path, asked: Conditions, certificate: Certificate | None) -> Fit:
    """Return the fit to choose by, saying where it comes from another machine."""
    known = [certificate] if certificate is not None else read_certificates(folder)
    now = environment()
    for found in sorted(known, key=lambda c: bool(differences(c, now))):
        fit = found.fit(asked)
        if fit is None or (fit.model is None) != is_bundle(folder):
            continue
        warn_of(found, fit, now, stacklevel=4)
        return fit
    stderr.print(f"- no certificate for {asked}: measuring this machine", highlight=False, soft_wrap=True)
    name = f"{asked.runtime}-batch-{asked.batch}-length-{asked.length}-threads-{asked.threads}"
    return certify(folder, conditions=(asked,), name=name, widths=False).fits[0]


def _choices(folder: Path, fit: Fit) -> list[Choice]:
    """Return (budget, predicted ms) of everything that can be asked for, the smallest first."""
    if is_bundle(folder):
        budgets = read_bundle_info(folder, verify=False).budgets
        if len(budgets) != len(fit.samples):
            raise OptionError("certificate must be of this bundle; it has other points. Run rheostat certify again")
        return sorted((b, sample.ms) for b, sample in zip(budgets, fit.samples, strict=True))
    manifest = read_manifest(folder)
    refuse_top_k(str(manifest.get("selection")))
    return choices_of(UnitOrder.from_json(manifest["order"]), fit)


def choices_of(order: UnitOrder, fit: Fit) -> list[Choice]:
    """Return (budget, predicted ms) of every prefix of an order, the smallest first.

    Raises:
        OptionError: a fit without a latency model, that of a bundle.
    """
    if fit.model is None:
        raise OptionError("certificate must be of a checkpoint; it is of a bundle. Run rheostat certify on the folder")
    found = []
    for length in range(order.required, len(order.units) + 1):
        subnet = order.subnet_of_length(length)
        budget = float(order.cumulative_shares[length - 1]) if length else order.floor
        found.append((min(budget, 1.0), fit.model.predict(subnet.head_counts, subnet.neuron_counts)))
    return [pair for pair in found if pair[0] > 0]


def _largest(choices: Sequence[Choice], limit_ms: float) -> int:
    """Return the index of the largest choice within a limit, or -1; predictions never fall with the budget."""
    return bisect_right(np.maximum.accumulate([ms for _, ms in choices]), limit_ms) - 1


def _unreachable(fastest: Promise) -> BudgetError:
    """Return the error that states the fastest budget, and what of it would be promised."""
    at = "" if fastest.percentile == 50 else f" at the {fastest.percentile}th percentile"
    used, target = surely_used(fastest), fastest.target
    sure = f"{target.speedup / used:.3g}x" if target.speedup is not None else f"{(target.ms or 0.0) * used:.3g}ms"
    return BudgetError(
        f"target must be within reach; got {target}, and the fastest is {fastest.measured_ms:.3g} ms{at} at budget "
        f"{fastest.budget:.4g}, {(fastest.speedup or (1.0,))[0]:.3g}x. Ask for {sure}, or for a shorter length"
    )


def _measured_afresh(folder: Path, budget: float, conditions: Conditions) -> LatencyTable:
    """Return a run of the full model and a budget in a process of its own."""
    request = json.dumps({"folder": str(folder), "budget": budget, "conditions": vars(conditions)})
    command = [sys.executable, "-m", "rheostat.certify.verifying"]
    found = subprocess.run(command, input=request, capture_output=True, text=True, check=False)
    if found.returncode:
        reason = (found.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise OptionError(f"measuring in a fresh process must work; it failed: {reason}. Try rheostat measure")
    return LatencyTable.from_json(json.loads(found.stdout.splitlines()[-1]))
