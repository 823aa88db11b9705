"""measure: interleaving, the A/A pair, verdicts, threads and environment, on a clock that the variants move."""

import gc
import json
import os
import random
import socket
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rheostat import measure as module
from rheostat.errors import OptionError
from rheostat.measure import LatencyTable, Measurement, environment, measure, resident_bytes, threads_set

CONDITIONS = {"batch": 8, "length": 64, "device": "cpu"}


class FakeClock:
    """A clock that stands still until a variant runs, and remembers who ran."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.ran: list[str] = []

    def __call__(self) -> float:
        return self.now_s

    def variant(self, name: str, next_ms: Callable[[], float]) -> Callable[[], None]:
        def call() -> None:
            self.ran.append(name)
            self.now_s += next_ms() / 1e3

        return call

    def fixed(self, name: str, latency_ms: float) -> Callable[[], None]:
        return self.variant(name, lambda: latency_ms)


def run(variants: dict[str, Callable[[], object]], clock: FakeClock, **options: Any) -> LatencyTable:
    settings = {"baseline": "dense", "conditions": CONDITIONS, "calls_per_round": 1, "threads": 1} | options
    return measure(variants, clock=clock, **settings)


def fixed_pair(clock: FakeClock) -> dict[str, Callable[[], object]]:
    return {"dense": clock.fixed("dense", 40.0), "half": clock.fixed("half", 20.0)}


def noisy(clock: FakeClock, name: str, latency_ms: float, spread: float, seed: int) -> Callable[[], None]:
    generator = random.Random(seed)
    return clock.variant(name, lambda: latency_ms * (1 + generator.uniform(-spread, spread)))


# --- order of the calls ------------------------------------------------------------------------------------


def test_every_round_runs_every_variant_once_and_the_baseline_twice() -> None:
    clock = FakeClock()
    run(fixed_pair(clock) | {"quarter": clock.fixed("quarter", 10.0)}, clock, rounds=6, warmup_rounds=2)
    timed = clock.ran[2 * 4 :]
    rounds = [sorted(timed[start : start + 4]) for start in range(0, len(timed), 4)]
    assert rounds == [["dense", "dense", "half", "quarter"]] * 6


def test_the_order_changes_between_rounds_and_follows_the_seed() -> None:
    def orders(seed: int) -> list[tuple[str, ...]]:
        clock = FakeClock()
        variants = fixed_pair(clock) | {"quarter": clock.fixed("quarter", 10.0)}
        run(variants, clock, rounds=12, warmup_rounds=1, seed=seed)
        timed = clock.ran[4:]
        return [tuple(timed[start : start + 4]) for start in range(0, len(timed), 4)]

    assert orders(0) == orders(0)
    assert orders(0) != orders(1)
    assert len(set(orders(0))) > 3
    assert {order[0] for order in orders(0)} == {"dense", "half", "quarter"}  # nobody always goes first


def test_calls_of_one_block_are_consecutive_and_counted() -> None:
    clock = FakeClock()
    table = run(fixed_pair(clock), clock, rounds=5, warmup_rounds=1, calls_per_round=4)
    timed = clock.ran[3 * 4 :]
    assert all(len(set(timed[start : start + 4])) == 1 for start in range(0, len(timed), 4))
    assert [row.calls for row in table.measurements] == [20, 20, 20]


def test_calls_per_round_fill_about_a_third_of_a_second_despite_a_slow_first_call() -> None:
    clock = FakeClock()
    warming = iter([250.0])
    variants = {
        "dense": clock.fixed("dense", 1000.0),
        "half": clock.variant("half", lambda: next(warming, 30.0)),
    }
    table = run(variants, clock, rounds=5, calls_per_round=None, warmup_rounds=1)
    assert (table["dense"].calls, table["half"].calls) == (5 * 1, 5 * 10)
    assert table["half"].latency_ms_p95 == pytest.approx(30.0)  # the warm-up is in no figure


def test_the_pair_makes_the_same_calls_even_if_its_warm_up_differed() -> None:
    clock = FakeClock()
    warming = iter([300.0, 300.0, 10.0])  # the first entry sees a slow spell, its second entry does not
    variants = {"dense": clock.variant("dense", lambda: next(warming, 10.0))}
    table = run(variants, clock, rounds=5, calls_per_round=None, warmup_rounds=1)
    assert table["dense (again)"].calls == table["dense"].calls == 5


def test_a_call_too_short_for_the_clock_neither_hangs_nor_divides_by_zero() -> None:
    clock = FakeClock()
    table = run({"dense": clock.fixed("dense", 0.0)}, clock, rounds=5, calls_per_round=None)
    assert table["dense"].calls == 5 * module.MAX_CALLS_PER_ROUND
    assert table["dense"].speedup == 1.0


def test_progress_counts_each_block_up_to_the_announced_total() -> None:
    clock, seen = FakeClock(), []
    run(fixed_pair(clock), clock, rounds=5, warmup_rounds=1, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(done, 18) for done in range(1, 19)]


# --- figures and verdicts ----------------------------------------------------------------------------------


def test_percentiles_are_those_of_numpy() -> None:
    numpy = pytest.importorskip("numpy")
    clock, drawn, generator = FakeClock(), [], random.Random(3)

    def next_ms() -> float:
        drawn.append(generator.uniform(10, 90))
        return drawn[-1]

    variants = {"dense": clock.fixed("dense", 50.0), "odd": clock.variant("odd", next_ms)}
    row = run(variants, clock, rounds=7, warmup_rounds=1, calls_per_round=3)["odd"]
    timed = drawn[3:]
    figures = [row.latency_ms_min, row.latency_ms_p10, row.latency_ms_p50, row.latency_ms_p90, row.latency_ms_p95]
    assert figures == pytest.approx(list(numpy.percentile(timed, [0, 10, 50, 90, 95])))
    assert row.round_ms == pytest.approx([statistics.median(timed[start : start + 3]) for start in range(0, 21, 3)])


def test_the_speedup_is_the_median_of_ratios_within_rounds() -> None:
    # The machine gets 3 times slower half-way: ratios of overall medians would be wrong, ratios in a round are not.
    clock = FakeClock()

    def slowing(latency_ms: float) -> Callable[[], float]:
        return lambda: latency_ms * (3.0 if len(clock.ran) > 3 + 4 * 3 else 1.0)

    variants = {name: clock.variant(name, slowing(ms)) for name, ms in (("dense", 40.0), ("half", 20.0))}
    row = run(variants, clock, rounds=8, warmup_rounds=1)["half"]
    assert (row.speedup, row.speedup_low, row.speedup_high) == pytest.approx((2.0, 2.0, 2.0))
    assert max(row.round_ms) > 2 * min(row.round_ms)


def test_the_ratio_of_two_variants_is_taken_round_by_round() -> None:
    clock = FakeClock()
    table = run(fixed_pair(clock) | {"quarter": clock.fixed("quarter", 8.0)}, clock, rounds=5)
    assert table.ratio("quarter", over="half").median == pytest.approx(2.5)
    with pytest.raises(KeyError, match="third"):
        table.ratio("third", over="half")


def test_the_second_baseline_is_listed_as_the_noise() -> None:
    clock = FakeClock()
    table = run(fixed_pair(clock), clock)
    assert [(row.name, row.verdict) for row in table.measurements] == [
        ("dense", "baseline"),
        ("dense (again)", "noise"),
        ("half", "faster"),
    ]
    assert table["dense (again)"].calls == table["dense"].calls


def test_the_noise_band_is_the_spread_of_the_pair_in_both_directions() -> None:
    clock = FakeClock()
    turns = iter([10.0] * 2 + [10.0, 12.0] * 5)  # whichever of the two comes first in a round, their ratio is 1.2
    table = run({"dense": clock.variant("dense", lambda: next(turns))}, clock, rounds=5, warmup_rounds=1)
    assert table.noise_high == pytest.approx(1.2)
    assert table.noise_low == pytest.approx(1 / 1.2)


@pytest.mark.parametrize(
    ("latency_ms", "verdict"),
    [(20.0, "faster"), (39.0, "no measurable speedup"), (41.0, "no measurable speedup"), (80.0, "slower")],
)
def test_a_difference_inside_the_noise_is_never_called_a_speedup(latency_ms: float, verdict: str) -> None:
    clock = FakeClock()
    variants = {
        "dense": noisy(clock, "dense", 40.0, 0.1, seed=1),
        "other": noisy(clock, "other", latency_ms, 0.1, seed=2),
    }
    table = run(variants, clock, rounds=9, calls_per_round=5)
    assert table["other"].verdict == verdict
    assert table.noise_low < 1.0 < table.noise_high


def test_a_steady_gain_smaller_than_the_noise_of_the_pair_is_not_measurable() -> None:
    # The interval of the variant alone excludes 1, so only the A/A pair can stop this claim.
    clock = FakeClock()
    turns = iter([10.0] * 2 + [10.0, 11.5] * 7)
    variants = {"dense": clock.variant("dense", lambda: next(turns)), "other": clock.fixed("other", 9.5)}
    row = run(variants, clock, rounds=7, warmup_rounds=1)["other"]
    assert row.speedup_low > 1.0
    assert row.verdict == "no measurable speedup"


def test_the_interval_of_the_median_covers_what_it_promises() -> None:
    generator = random.Random(0)
    for count in (6, 9, 15, 30):
        samples = [[generator.gauss(0, 1) for _ in range(count)] for _ in range(2000)]
        intervals = [module._median_interval(values) for values in samples]
        covered = sum(low <= 0 <= high for low, high in intervals) / len(intervals)
        assert covered >= 0.935
    assert module._median_interval(list(range(8))) == (0, 7)
    assert module._median_interval(list(range(9))) == (1, 7)


# --- records -----------------------------------------------------------------------------------------------


def test_a_table_survives_json() -> None:
    clock = FakeClock()
    table = run(fixed_pair(clock), clock)
    record = json.loads(json.dumps(table.to_json()))
    assert LatencyTable.from_json(record) == table
    assert hash(LatencyTable.from_json(record)) == hash(table)
    assert Measurement.from_json(record["measurements"][2]) == table["half"]


def test_a_table_states_its_conditions() -> None:
    clock = FakeClock()
    table = run(fixed_pair(clock), clock, rounds=6, threads=1, seed=5)
    assert (table.conditions, table.rounds, table.threads, table.seed) == (CONDITIONS, 6, 1, 5)
    assert table.environment.keys() == environment().keys()


# --- bad input ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 4}, r"^rounds must be an integer of at least 5; got 4\. \S"),
        ({"rounds": 7.0}, r"^rounds must be an integer"),
        ({"calls_per_round": 0}, r"^calls_per_round must be an integer of at least 1; got 0\."),
        ({"warmup_rounds": 0}, r"^warmup_rounds must be an integer of at least 1; got 0\."),
        ({"threads": 0}, r"^threads must be an integer of at least 1; got 0\."),
        ({"threads": True}, r"^threads must be an integer of at least 1; got True\."),
        ({"baseline": "fast"}, r"^baseline must be one of \['dense', 'half'\]; got 'fast'\. \S"),
        ({"conditions": {"batch": object()}}, r"^conditions must be JSON values; got "),
        ({"conditions": {"batch": float("nan")}}, r"^conditions must be JSON values; got "),
    ],
)
def test_bad_options_are_refused_before_anything_runs(options: dict[str, Any], message: str) -> None:
    clock = FakeClock()
    with pytest.raises(OptionError, match=message):
        run(fixed_pair(clock), clock, **options)
    assert clock.ran == []


def test_the_name_of_the_pair_is_reserved() -> None:
    clock = FakeClock()
    with pytest.raises(OptionError, match=r"A/A pair; got 'dense \(again\)'"):
        run(fixed_pair(clock) | {"dense (again)": clock.fixed("x", 1.0)}, clock)


# --- threads, collector, cores -----------------------------------------------------------------------------


@pytest.fixture
def fake_torch(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    torch = SimpleNamespace(threads=6)
    torch.get_num_threads = lambda: torch.threads
    torch.set_num_threads = lambda threads: setattr(torch, "threads", threads)
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch


def test_threads_are_set_inside_and_restored_after_success_and_failure(fake_torch: SimpleNamespace) -> None:
    with threads_set(3):
        assert fake_torch.threads == 3
    assert fake_torch.threads == 6
    with pytest.raises(ZeroDivisionError), threads_set(3):
        _ = 1 / 0
    assert fake_torch.threads == 6


def test_measure_times_with_the_threads_asked_for_and_records_them(fake_torch: SimpleNamespace) -> None:
    clock, seen = FakeClock(), set()
    variants = {"dense": clock.variant("dense", lambda: seen.add(fake_torch.threads) or 1.0)}
    table = run(variants, clock, threads=2)
    assert seen == {2}
    assert (table.threads, table.environment["torch_threads"], fake_torch.threads) == (2, 2, 6)


def test_threads_default_to_those_available(fake_torch: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "available_threads", lambda: 5)
    clock, seen = FakeClock(), set()
    variants = {"dense": clock.variant("dense", lambda: seen.add(fake_torch.threads) or 1.0)}
    assert run(variants, clock, threads=None).threads == 5
    assert seen == {5}


def test_threads_without_torch_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with threads_set(3):
        assert "torch" not in sys.modules
    assert environment()["torch_threads"] is None
    assert "torch" not in sys.modules


@pytest.mark.parametrize("was_enabled", [True, False])
def test_the_collector_is_off_while_timing_and_as_before_afterwards(was_enabled: bool) -> None:
    clock, seen = FakeClock(), set()
    variants = {"dense": clock.variant("dense", lambda: seen.add(gc.isenabled()) or 1.0)}
    (gc.enable if was_enabled else gc.disable)()
    try:
        run(variants, clock)
        assert gc.isenabled() is was_enabled
    finally:
        gc.enable()
    assert seen == {False}


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


V1 = "5:memory:/docker/ab\n4:cpu,cpuacct:/docker/ab\n1:name=systemd:/docker/ab\n"


@pytest.mark.parametrize(
    ("files", "threads"),
    [
        ({}, 8),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, 8),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "350000 100000\n"}, 3),  # rounded down
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),  # but never to nothing
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "6400000 100000\n"}, 8),  # more than there are
        (  # a group above this one is the tighter one
            {
                "proc/self/cgroup": "0::/pod/box\n",
                "sys/fs/cgroup/pod/cpu.max": "300000 100000\n",
                "sys/fs/cgroup/pod/box/cpu.max": "500000 100000\n",
            },
            3,
        ),
        (  # version 1, the path of the host is not visible inside the container
            {
                "proc/self/cgroup": V1,
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "400000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            4,
        ),
        (
            {
                "proc/self/cgroup": V1,
                "sys/fs/cgroup/cpu/docker/ab/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/docker/ab/cpu.cfs_period_us": "100000\n",
            },
            8,
        ),
        (  # the group of another controller says nothing
            {
                "proc/self/cgroup": V1 + "3:cpuset:/tight\n",
                "sys/fs/cgroup/cpu/tight/cpu.cfs_quota_us": "100000\n",
                "sys/fs/cgroup/cpu/tight/cpu.cfs_period_us": "100000\n",
            },
            8,
        ),
        ({"proc/self/cgroup": "0::/../other\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2),
    ],
)
def test_available_threads_obey_the_container(
    files: dict[str, str], threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_affinity_cores", lambda: 8)
    assert module._available_threads(write(tmp_path, files)) == threads


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity to set")
def test_available_threads_obey_the_affinity() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert module.available_threads() == 1
    finally:
        os.sched_setaffinity(0, before)
    assert 1 <= module.available_threads() <= len(before)


# --- environment and memory --------------------------------------------------------------------------------


def test_the_environment_names_no_host_no_user_and_no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.platform, "release", lambda: "6.1.55-acme-build7.internal")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("LD_PRELOAD_OF_MINE", "/home/me/lib.so")
    record = environment()
    text = json.dumps({key: value for key, value in record.items() if key != "processor"})
    assert record["variables"]["OMP_NUM_THREADS"] == "3"
    assert "6.1.55" in record["platform"]
    assert not any(word in text for word in ("acme", "/home", socket.gethostname(), str(Path.home()), os.getcwd()))
    assert record["date_utc"].endswith("+00:00")
    assert record["versions"]["numpy"]


def test_the_processor_is_read_from_the_listing_of_the_kernel() -> None:
    entry = "processor : {0}\nmodel name\t: Fast CPU @ 2 GHz\nphysical id\t: 0\ncore id\t\t: {1}\n\n"
    assert module._processor("".join(entry.format(cpu, cpu // 2) for cpu in range(4))) == ("Fast CPU @ 2 GHz", 2)
    assert module._processor("")[1] is None


def test_importing_the_module_and_reading_the_environment_load_no_torch() -> None:
    code = "import sys, rheostat.measure as m; m.environment(); m.resident_bytes(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_resident_bytes_grow_with_what_is_held() -> None:
    before = resident_bytes()
    held = bytearray(os.urandom(1024)) * (64 * 1024)  # 64 MiB, written
    assert resident_bytes() - before > 32 * 1024 * 1024
    assert len(held) == 64 * 1024 * 1024


def test_resident_bytes_without_the_kernels_summary_are_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    proportional = resident_bytes()
    monkeypatch.setattr(module, "_read", lambda path: "")
    assert resident_bytes() >= proportional * 0.5
