"""Latency that can be believed: interleaved rounds, an A/A pair for the noise, and the conditions in every record.

One run times every variant in every round, so that a machine that slows down slows all of them. The
baseline is entered twice; how much its two entries differ is the noise, and a speedup whose interval
reaches into that noise is called what it is: no measurable speedup.
"""

from __future__ import annotations

import gc
import importlib.metadata
import json
import math
import os
import platform
import random
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rheostat.errors import OptionError

BASELINE = "baseline"
NOISE = "noise"
FASTER = "faster"
SLOWER = "slower"
NO_SPEEDUP = "no measurable speedup"

ROUND_MS = 300.0  # long enough to average over scheduling, short enough that all variants see the same machine
MAX_CALLS_PER_ROUND = 10_000

PACKAGES = ("rheostat", "torch", "transformers", "numpy", "onnxruntime", "openvino")
# Settings that change the speed of the kernels. Numbers and mode names only: none of them holds a path.
KERNEL_VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "DNNL_DEFAULT_FPMATH_MODE",
    "DNNL_MAX_CPU_ISA",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "MKL_DYNAMIC",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OMP_PROC_BIND",
    "OMP_WAIT_POLICY",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
    "OPENBLAS_NUM_THREADS",
)

Variant = Callable[[], object]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Ratio:
    """How many times faster one variant is than another: the median over the rounds, and its interval."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Measurement:
    """The latency of one variant, and its speedup against the baseline of the same run.

    Percentiles and the minimum are over all `calls` timed calls; `round_ms` holds the median call of each
    round. The speedup is the median over the rounds of (baseline / this), with the interval of that median.
    """

    name: str
    calls: int
    round_ms: tuple[float, ...]
    latency_ms_min: float
    latency_ms_p10: float
    latency_ms_p50: float
    latency_ms_p90: float
    latency_ms_p95: float
    speedup: float
    speedup_low: float
    speedup_high: float
    verdict: str

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain JSON values."""
        return {**asdict(self), "round_ms": list(self.round_ms)}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Measurement:
        """Rebuild a measurement from `to_json`."""
        return cls(**{**record, "round_ms": tuple(record["round_ms"])})


@dataclass(frozen=True)
class LatencyTable:
    """All variants of one run, the noise of that run, and the conditions it ran under.

    `noise_low` and `noise_high` bound the ratio of the baseline to itself; they always enclose 1.
    `threads` is the number asked of torch; sessions of other runtimes fix theirs when they are built.
    """

    baseline: str
    rounds: int
    seed: int
    threads: int
    noise_low: float
    noise_high: float
    measurements: tuple[Measurement, ...]
    conditions: Mapping[str, Any] = field(hash=False)
    environment: Mapping[str, Any] = field(hash=False)

    def __getitem__(self, name: str) -> Measurement:
        """Return the measurement of the variant `name`."""
        for measurement in self.measurements:
            if measurement.name == name:
                return measurement
        raise KeyError(name)

    def ratio(self, name: str, over: str) -> Ratio:
        """Return how many times faster `name` is than `over`, from the rounds that they shared."""
        return _ratio(self[over].round_ms, self[name].round_ms)

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain JSON values."""
        return {**asdict(self), "measurements": [measurement.to_json() for measurement in self.measurements]}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> LatencyTable:
        """Rebuild a table from `to_json`."""
        rows = tuple(Measurement.from_json(row) for row in record["measurements"])
        return cls(**{**record, "measurements": rows})


def measure(
    variants: Mapping[str, Variant],
    *,
    baseline: str,
    conditions: Mapping[str, Any],
    rounds: int = 7,
    calls_per_round: int | None = None,
    warmup_rounds: int = 2,
    threads: int | None = None,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
    progress: Progress | None = None,
) -> LatencyTable:
    """Time all variants in one interleaved run and compare each with the baseline.

    Every round runs every variant once, in an order shuffled from `seed`, and the baseline a second time as
    "<baseline> (again)". `calls_per_round=None` picks, for each variant, what takes about 0.3 s.
    `threads=None` sets torch to `available_threads()`. On a GPU a variant must wait for its own result.
    `progress` is called with (blocks done, blocks in all); `clock` returns seconds.

    Raises OptionError for fewer than five rounds (no interval can be had from less), an unknown baseline,
    or conditions that can't be written as JSON.

    >>> table = measure({"dense": lambda: sum(range(2000)), "half": lambda: sum(range(1000))}, baseline="dense",
    ...                 conditions={"batch": 8, "length": 64}, rounds=5, calls_per_round=3)
    >>> [row.name for row in table.measurements]
    ['dense', 'dense (again)', 'half']
    """
    threads = available_threads() if threads is None else threads
    _check_counts(rounds=rounds, calls_per_round=calls_per_round, warmup_rounds=warmup_rounds, threads=threads)
    _check_conditions(conditions)
    entries = _with_second_baseline(variants, baseline)
    report = _BlockCounter(progress, total=len(entries) * (warmup_rounds + rounds))
    with threads_set(threads), _collector_paused():
        calls = _warm_up(entries, warmup_rounds, calls_per_round, clock, report)
        calls[_again(baseline)] = calls[baseline]  # an A/A pair differs in nothing, the sample size included
        times_ms = _timed_rounds(entries, calls, _orders(list(entries), rounds, seed), clock, report)
        where = environment()  # read here, where the thread count is the one that was timed
    noise_low, noise_high = _noise_band(times_ms, baseline)
    return LatencyTable(
        baseline=baseline,
        rounds=rounds,
        seed=seed,
        threads=threads,
        noise_low=noise_low,
        noise_high=noise_high,
        measurements=tuple(_measurement(name, times_ms, baseline, (noise_low, noise_high)) for name in entries),
        conditions=dict(conditions),
        environment=where,
    )


# --- what is run -------------------------------------------------------------------------------------------


def _again(baseline: str) -> str:
    return f"{baseline} (again)"


def _with_second_baseline(variants: Mapping[str, Variant], baseline: str) -> dict[str, Variant]:
    if baseline not in variants:
        raise OptionError(
            f"baseline must be one of {sorted(variants)}; got {baseline!r}. Name a variant to compare with."
        )
    if _again(baseline) in variants:
        raise OptionError(
            f"variants must not use the name of the A/A pair; got {_again(baseline)!r}. Rename that variant."
        )
    entries: dict[str, Variant] = {}
    for name, call in variants.items():
        entries[name] = call
        if name == baseline:
            entries[_again(name)] = call
    return entries


def _check_counts(*, rounds: int, calls_per_round: int | None, warmup_rounds: int, threads: int) -> None:
    _at_least("rounds", rounds, 5, "Fewer give no interval that could be believed.")
    _at_least("warmup_rounds", warmup_rounds, 1, "The first calls allocate memory and choose kernels.")
    _at_least("threads", threads, 1, "Leave it out to use every core that this process may use.")
    if calls_per_round is not None:
        _at_least("calls_per_round", calls_per_round, 1, "Leave it out to time about 0.3 s a round.")


def _at_least(name: str, value: object, smallest: int, remedy: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < smallest:
        raise OptionError(f"{name} must be an integer of at least {smallest}; got {value!r}. {remedy}")


def _check_conditions(conditions: Mapping[str, Any]) -> None:
    try:
        json.dumps(dict(conditions), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"conditions must be JSON values; got {conditions!r}. Use numbers, texts and lists ({error})."
        ) from error


def _orders(names: list[str], rounds: int, seed: int) -> list[list[str]]:
    """Return one order of the entries per round: shuffled, so that nobody always runs after the same neighbour."""
    shuffler = random.Random(seed)
    return [shuffler.sample(names, len(names)) for _ in range(rounds)]


# --- the clock ---------------------------------------------------------------------------------------------


class _BlockCounter:
    """Counts blocks (one variant in one round) for the progress callback."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def __call__(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._total)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep the garbage collector from running inside somebody's timed call."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _warm_up(
    entries: Mapping[str, Variant],
    warmup_rounds: int,
    calls_per_round: int | None,
    clock: Callable[[], float],
    report: _BlockCounter,
) -> dict[str, int]:
    """Run the untimed rounds and return how many calls a round of each entry makes."""
    calls: dict[str, int] = {}
    for _ in range(warmup_rounds):
        for name, call in entries.items():
            calls[name] = calls_per_round or _calls_that_fill_a_round(call, clock)
            if calls_per_round:
                _call_times_ms(call, calls_per_round, clock)
            report()
    return calls


def _calls_that_fill_a_round(call: Variant, clock: Callable[[], float]) -> int:
    # The quickest call counts: the first ones allocate, and would make the later rounds far too short.
    times_ms = _call_times_ms(call, 2, clock)
    while sum(times_ms) < ROUND_MS and len(times_ms) < MAX_CALLS_PER_ROUND:
        times_ms += _call_times_ms(call, 1, clock)
    return max(1, min(MAX_CALLS_PER_ROUND, round(ROUND_MS / min(times_ms))))


def _timed_rounds(
    entries: Mapping[str, Variant],
    calls: Mapping[str, int],
    orders: Sequence[Sequence[str]],
    clock: Callable[[], float],
    report: _BlockCounter,
) -> dict[str, list[list[float]]]:
    """Return, for each entry and round, the time of every call in milliseconds."""
    times_ms: dict[str, list[list[float]]] = {name: [] for name in entries}
    for order in orders:
        for name in order:
            times_ms[name].append(_call_times_ms(entries[name], calls[name], clock))
            report()
    return times_ms


def _call_times_ms(call: Variant, calls: int, clock: Callable[[], float]) -> list[float]:
    times_ms = []
    for _ in range(calls):
        start = clock()
        call()
        times_ms.append(max((clock() - start) * 1e3, 1e-6))  # a coarse clock may read 0, and ratios divide by it
    return times_ms


# --- from times to verdicts --------------------------------------------------------------------------------


def _measurement(
    name: str, times_ms: Mapping[str, list[list[float]]], baseline: str, noise: tuple[float, float]
) -> Measurement:
    call_ms = sorted(value for block in times_ms[name] for value in block)
    speedup = _ratio(_round_medians(times_ms[baseline]), _round_medians(times_ms[name]))
    return Measurement(
        name=name,
        calls=len(call_ms),
        round_ms=_round_medians(times_ms[name]),
        latency_ms_min=call_ms[0],
        latency_ms_p10=_percentile(call_ms, 0.10),
        latency_ms_p50=_percentile(call_ms, 0.50),
        latency_ms_p90=_percentile(call_ms, 0.90),
        latency_ms_p95=_percentile(call_ms, 0.95),
        speedup=speedup.median,
        speedup_low=speedup.low,
        speedup_high=speedup.high,
        verdict={baseline: BASELINE, _again(baseline): NOISE}.get(name) or _verdict(speedup, noise),
    )


def _round_medians(blocks: list[list[float]]) -> tuple[float, ...]:
    return tuple(statistics.median(block) for block in blocks)


def _percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which `share` of the sorted values lie, interpolated linearly as numpy does."""
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def _ratio(numerator_ms: Sequence[float], denominator_ms: Sequence[float]) -> Ratio:
    # Round by round, because a slow spell of the machine hits both sides of a round and cancels out.
    ratios = [top / bottom for top, bottom in zip(numerator_ms, denominator_ms, strict=True)]
    low, high = _median_interval(ratios)
    return Ratio(statistics.median(ratios), low, high)


def _median_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Return the narrowest pair of order statistics that holds the median with probability `level`.

    No distribution is assumed: each value lies below the median with probability 1/2, so leaving out the k
    smallest and the k largest of n covers it with 1 - 2 * sum(C(n, i) for i <= k) / 2**n. Up to eight
    rounds that is the minimum and the maximum (five can give no more than 0.94, six give 0.97).
    """
    ordered, count, left_out = sorted(values), len(values), 0
    while 1 - 2 * sum(math.comb(count, i) for i in range(left_out + 2)) / 2**count >= level:
        left_out += 1
    return ordered[left_out], ordered[count - 1 - left_out]


def _noise_band(times_ms: Mapping[str, list[list[float]]], baseline: str) -> tuple[float, float]:
    """Return the interval of the A/A ratio, widened to be the same in both directions: it could have been B/A."""
    pair = _ratio(_round_medians(times_ms[baseline]), _round_medians(times_ms[_again(baseline)]))
    return min(pair.low, 1 / pair.high), max(pair.high, 1 / pair.low)


def _verdict(speedup: Ratio, noise: tuple[float, float]) -> str:
    noise_low, noise_high = noise
    if speedup.low > noise_high:
        return FASTER
    if speedup.high < noise_low:
        return SLOWER
    return NO_SPEEDUP


# --- threads -----------------------------------------------------------------------------------------------


@contextmanager
def threads_set(threads: int) -> Iterator[None]:
    """Give torch this many threads inside the block, and what it had before after it.

    Does nothing while torch is not loaded: ONNX Runtime and OpenVINO take their threads when a session is built.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def available_threads() -> int:
    """Return how many threads this process can really run at once: its affinity, cut by the container's quota.

    A quota of 1.5 cores gives 1: a second thread would be stopped for half of every period.
    """
    return _available_threads(Path("/"))


def _available_threads(root: Path) -> int:
    quota = _quota_cores(root)
    cores = _affinity_cores()
    return cores if quota is None else max(1, min(cores, math.floor(quota)))


def _affinity_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quota_cores(root: Path) -> float | None:
    """Return the smallest processor quota of this process's control groups, in cores; None without a quota."""
    quotas = [
        quota
        for folder in _group_folders(root)
        for quota in (_quota_v2(folder), _quota_v1(folder))
        if quota is not None
    ]
    return min(quotas, default=None)


def _group_folders(root: Path) -> Iterator[Path]:
    """Yield the folders of this process's processor groups and of all groups above them.

    Inside a container the listed path often does not exist below the mount; the mount itself then holds the quota.
    """
    mount = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        parts = [part for part in group.split("/") if part not in ("", "..")]
        for base in (mount / controllers, mount / "cpu") if controllers else (mount, mount / "unified"):
            yield from (base.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1))


def _quota_v2(folder: Path) -> float | None:
    return _quota(_read(folder / "cpu.max").split())


def _quota_v1(folder: Path) -> float | None:
    return _quota([_read(folder / "cpu.cfs_quota_us").strip(), _read(folder / "cpu.cfs_period_us").strip()])


def _quota(quota_and_period: Sequence[str]) -> float | None:
    # "max" (version 2) and "-1" (version 1) both mean that there is no quota.
    if len(quota_and_period) != 2 or not all(text.isdigit() for text in quota_and_period):
        return None
    quota, period = map(int, quota_and_period)
    return quota / period if quota and period else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


# --- environment -------------------------------------------------------------------------------------------


def environment() -> dict[str, Any]:
    """Return what a reader needs to judge a measurement; never a host name, a user name or a path.

    Imports nothing: versions come from the installed metadata, and torch is asked only if it is loaded already.
    """
    processor, physical_cores = _processor(_read(Path("/proc/cpuinfo")))
    torch = sys.modules.get("torch")
    return {
        "date_utc": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": _platform(),
        "processor": processor,
        "physical_cores": physical_cores,
        "logical_cores": os.cpu_count(),
        "available_threads": available_threads(),
        "torch_threads": None if torch is None else int(torch.get_num_threads()),
        "versions": _versions(),
        "variables": {name: os.environ[name] for name in KERNEL_VARIABLES if name in os.environ},
    }


def _platform() -> str:
    # Only the numbers of the kernel's release: what follows them may name a machine or a company.
    release = re.match(r"[\d.]*\d", platform.release())
    return " ".join(filter(None, (platform.system(), release and release.group(), platform.machine())))


def _processor(cpuinfo: str) -> tuple[str, int | None]:
    """Return the processor's model name, and its number of physical cores where Linux tells it."""
    model = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    sockets = re.findall(r"^physical id\s*:\s*(\d+)$", cpuinfo, re.MULTILINE)
    cores = re.findall(r"^core id\s*:\s*(\d+)$", cpuinfo, re.MULTILINE)
    physical = len(set(zip(sockets, cores, strict=False))) or None
    return (model.group(1).strip() if model else platform.processor() or platform.machine()), physical


def _versions() -> dict[str, str]:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


# --- memory ------------------------------------------------------------------------------------------------


def resident_bytes() -> int:
    """Return the memory of this process in bytes, shared pages counted in proportion (PSS) on Linux.

    Proportional, so that sessions that map one weights file count it once. Elsewhere it is the peak resident size.
    """
    proportional = re.search(r"^Pss:\s*(\d+) kB$", _read(Path("/proc/self/smaps_rollup")), re.MULTILINE)
    if proportional:
        return int(proportional.group(1)) * 1024
    import resource  # here, because Windows has no such module and everything else in this file works there

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
