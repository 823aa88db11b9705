"""The controller as a pure function: monotone in load, within its bounds, and it does not flap."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_times import LENGTHS, SPEEDUPS, made_up

from rheostat.certify import Certificate, Conditions, Fit, Sample
from rheostat.errors import OptionError
from rheostat.serve.policy import (
    DEFAULT,
    Level,
    Load,
    Tuning,
    adaptive,
    budget_within,
    finishes_ms,
    fixed,
    offered,
    paced,
    verdict_on,
)
from rheostat.serve.scheduler import Row
from rheostat.serve.simulator import Arrival, poisson, replay, trace
from rheostat.serve.times import bucket_of, buckets_of, certified_times, measured_times, times_from

TIMES = made_up()
BUDGETS = TIMES.budgets
SLO = 50.0


def row(
    bucket: int = 64, *, least: float = 0.25, most: float = 1.0, arrived: float = 0.0, patience: float = SLO
) -> Row:
    return Row(object(), None, bucket, least, most, arrived, arrived + patience)


@st.composite
def rows(draw: st.DrawFn) -> Row:
    least, most = sorted(draw(st.tuples(st.sampled_from(BUDGETS), st.sampled_from(BUDGETS))))
    patience = draw(st.sampled_from((10.0, 50.0, 200.0, 5000.0)))
    bucket = draw(st.sampled_from(TIMES.buckets))
    return row(bucket, least=least, most=most, arrived=draw(st.floats(-40, 0)), patience=patience)


@st.composite
def loads(draw: st.DrawFn) -> Load:
    queue = sorted(draw(st.lists(rows(), max_size=20)), key=lambda r: r.deadline_ms)
    kinds = draw(st.lists(rows(), max_size=3))
    rates = {found.kind: draw(st.floats(0, 400)) for found in kinds}
    return Load(
        0.0, SLO, draw(st.integers(1, 4)), queue, rates, draw(st.floats(0, 100)), draw(st.floats(0.5, 3))
    )  # fmt: skip


@st.composite
def heavier(draw: st.DrawFn) -> tuple[Load, Load]:
    """A load, and one with more of everything."""
    load = draw(loads())
    queue = sorted([*load.queue, *draw(st.lists(rows(), max_size=10))], key=lambda r: r.deadline_ms)
    arriving = dict(load.arriving)
    for extra in draw(st.lists(rows(), max_size=2)):
        arriving[extra.kind] = arriving.get(extra.kind, 0.0) + draw(st.floats(0, 300))
    return load, replace(
        load,
        queue=queue,
        arriving=arriving,
        running_ms=load.running_ms + draw(st.floats(0, 50)),
        pace=load.pace * draw(st.floats(1, 3)),
    )


levels = st.builds(Level, st.sampled_from(BUDGETS), st.sampled_from((-1e9, -DEFAULT.hold_ms, -100.0)))


# --- the level ---------------------------------------------------------------------------------------------


@given(heavier(), levels)
def test_more_load_never_means_a_larger_budget(pair: tuple[Load, Load], level: Level) -> None:
    light, heavy = pair
    assert adaptive(level, heavy, TIMES).budget <= adaptive(level, light, TIMES).budget


@given(loads(), levels)
def test_a_constant_load_never_turns_the_level_round(load: Load, level: Level) -> None:
    path = [level]
    for step in range(40):
        path.append(adaptive(path[-1], replace(load, now_ms=100.0 * step), TIMES))
    budgets = [found.budget for found in path]
    assert budgets in (sorted(budgets), sorted(budgets, reverse=True))
    assert len(set(budgets[-10:])) == 1  # and it comes to rest


@given(loads(), levels)
def test_up_is_one_budget_at_a_time_and_never_before_the_hold(load: Load, level: Level) -> None:
    found = adaptive(level, load, TIMES)
    place, before = BUDGETS.index(found.budget), BUDGETS.index(level.budget)
    assert place >= before - 1
    if place < before:
        assert load.now_ms - level.since_ms >= DEFAULT.hold_ms and found.since_ms == load.now_ms


def test_an_idle_server_is_at_full_budget_and_a_drowned_one_at_the_smallest() -> None:
    assert adaptive(Level(1.0, 0.0), Load(0.0, SLO, 2), TIMES).budget == 1.0
    drowned = Load(0.0, SLO, 2, [row() for _ in range(100)])
    assert adaptive(Level(1.0, 0.0), drowned, TIMES) == Level(0.25, 0.0)
    level = Level(0.25, 0.0)
    for now in range(0, 2001, 100):
        level = adaptive(level, Load(float(now), SLO, 2), TIMES)
    assert level.budget == 1.0  # four steps up in less than the 5 s in which full accuracy should be back


def test_a_patient_request_and_a_tight_one_leave_the_level_of_the_others_alone() -> None:
    patient = Load(0.0, SLO, 2, [row(patience=60_000.0) for _ in range(200)])
    assert adaptive(Level(1.0, 0.0), patient, TIMES).budget == 1.0
    tight = Load(0.0, SLO, 2, [row(patience=5.0)])
    assert adaptive(Level(1.0, 0.0), tight, TIMES).budget == 1.0


def test_every_number_of_the_tuning_matters() -> None:
    waiting = Load(1000.0, SLO, 2, [row() for _ in range(6)])
    arriving = Load(1000.0, SLO, 2, arriving={row().kind: 235.0})
    for load, start, tuning in (
        (waiting, Level(1.0, 0.0), Tuning(wait_share=0.1)),
        (arriving, Level(1.0, 0.0), Tuning(busy=0.5)),
        (arriving, Level(0.75, 0.0), Tuning(room=1.0)),
        (Load(1000.0, SLO, 2), Level(0.75, 900.0), Tuning(hold_ms=50.0)),
    ):
        assert adaptive(start, load, TIMES, tuning).budget != adaptive(start, load, TIMES).budget, tuning
    assert fixed(Level(1.0, 0.0), waiting, TIMES) == Level(1.0, 0.0)


# --- one batch ---------------------------------------------------------------------------------------------


@given(st.sampled_from(BUDGETS), rows(), st.integers(1, 8), st.floats(-10, 300), st.floats(0.5, 3))
def test_a_batch_gets_the_largest_budget_that_is_in_time_and_within_its_bounds(
    level: float, asked: Row, size: int, left: float, pace: float
) -> None:
    found = budget_within(
        TIMES, level, asked.least, asked.most, rows=size, bucket=asked.bucket, left_ms=left, pace=pace
    )
    assert asked.least <= found <= asked.most
    assert found <= max(level, asked.least)
    for budget in BUDGETS:
        if found < budget <= min(max(level, asked.least), asked.most):
            assert TIMES.ms(budget, size, asked.bucket) * pace > left


# --- admission ---------------------------------------------------------------------------------------------


@given(heavier(), st.lists(rows(), min_size=1, max_size=5), st.sampled_from((10.0, 50.0, 400.0)))
def test_what_is_refused_is_refused_under_more_load_too(pair: tuple[Load, Load], asked: list[Row], left: float) -> None:
    for found in asked:
        found.arrived_ms, found.deadline_ms = 0.0, left
    light, heavy = (verdict_on(load, TIMES, asked, max_queue=16) for load in pair)
    assert light.admitted or not heavy.admitted
    assert (light.reason == "") == light.admitted
    assert light.admitted == (light.retry_after_ms == 0.0)


@given(loads(), st.lists(rows(), min_size=1, max_size=5), st.sampled_from((10.0, 50.0, 400.0)))
def test_who_is_let_in_makes_nobody_late(load: Load, asked: list[Row], left: float) -> None:
    for found in asked:
        found.arrived_ms, found.deadline_ms = 0.0, left
    if verdict_on(load, TIMES, asked, max_queue=1000).admitted:
        together = sorted([*load.queue, *asked], key=lambda r: r.deadline_ms)
        for waiting, done in finishes_ms(replace(load, queue=together), TIMES, BUDGETS[-1]):
            if waiting.deadline_ms >= left:
                assert done <= waiting.deadline_ms + 1e-6


def test_a_full_queue_refuses_but_a_large_request_still_gets_into_an_empty_one() -> None:
    patient = [row(patience=1e6) for _ in range(20)]
    assert verdict_on(Load(0.0, SLO, 2), TIMES, patient, max_queue=10).admitted
    found = verdict_on(Load(0.0, SLO, 2, [row(patience=1e6)]), TIMES, patient, max_queue=10)
    assert (found.admitted, found.reason) == (False, "full")
    late = verdict_on(Load(0.0, SLO, 2, [row() for _ in range(60)]), TIMES, [row()], max_queue=1000)
    assert (late.admitted, late.reason) == (False, "late") and late.retry_after_ms >= 1.0


@given(st.floats(0.2, 20), st.lists(st.floats(0.01, 100), max_size=30))
def test_the_pace_stays_in_bounds_and_slows_down_faster_than_it_recovers(pace: float, ratios: list[float]) -> None:
    for ratio in ratios:
        pace = paced(pace, ratio)
        assert 0.2 <= pace <= 20.0
    assert paced(1.0, 2.0) - 1.0 > 1.0 - paced(1.0, 0.2)
    assert paced(1.0, 1000.0) <= 1.2  # one hiccup


# --- times -------------------------------------------------------------------------------------------------


@given(st.integers(1, 2000))
def test_a_length_is_in_the_smallest_bucket_that_holds_it(max_length: int) -> None:
    found = buckets_of(max_length)
    assert list(found) == sorted(set(found)) and found[-1] == max_length
    for length in range(1, max_length + 1, 7):
        bucket = bucket_of(length, found)
        assert length <= bucket and (bucket == found[0] or found[found.index(bucket) - 1] < length)
    assert all(b <= 1.5 * a for a, b in pairwise(found[2:]))


@given(st.lists(st.floats(0.1, 50), min_size=18, max_size=18))
def test_times_never_fall_with_budget_rows_or_length(values: list[float]) -> None:
    grid = [(b, r, n) for b in (1.0, 0.5) for r in (1, 4, 8) for n in (16, 64, 128)]
    times = times_from(
        dict(zip(grid, values, strict=True)), buckets=(8, 32, 96, 200), max_batch=6, source="", budgets=(1.0, 0.5)
    )
    table = np.array([[[times.ms(b, r, n) for n in times.buckets] for r in range(1, 7)] for b in (0.5, 1.0)])
    assert all((np.diff(table, axis=axis) >= -1e-9).all() for axis in range(3))
    assert times.steps[0.5, 32][0] == pytest.approx(times.ms(0.5, 1, 32))
    assert sum(times.steps[1.0, 96]) == pytest.approx(times.ms(1.0, 6, 96))


def test_times_between_measured_ones_are_linear_and_a_hole_is_refused() -> None:
    assert TIMES.ms(1.0, 1, 32) == pytest.approx(0.3 + 0.125 * 32)
    assert TIMES.ms(0.5, 8, 96) == pytest.approx(0.3 + 0.125 * 96 * 8 * 0.9 / 1.8)
    with pytest.raises(OptionError, match="times must be known"):
        times_from({(1.0, 1, 16): 1.0}, buckets=(8,), max_batch=1, source="", budgets=(1.0, 0.5))
    assert (TIMES.at_most(0.6), TIMES.at_most(0.2), TIMES.at_least(0.6), TIMES.at_least(1.1)) == (0.5, None, 0.75, None)


def test_measuring_runs_every_cell_and_takes_medians() -> None:
    now = [0.0]
    seen: list[tuple[float, int, int]] = []

    def run(budget: float, count: int, length: int) -> None:
        first = (budget, count, length) not in seen
        seen.append((budget, count, length))
        now[0] += 1.0 if first else budget * count * length / 1e5  # the first run of each is a slow one

    found = measured_times(run, lambda: now[0], budgets=(1.0, 0.5), buckets=buckets_of(100), max_batch=4)
    assert set(seen) == {(b, r, n) for b in (1.0, 0.5) for r in (1, 4) for n in (16, 64, 100)}
    assert found.ms(0.5, 4, 64) == pytest.approx(1000 * 0.5 * 4 * 64 / 1e5)
    assert found.source == "measured at the start"
    measured_times(run, lambda: now[0], budgets=(1.0, 0.5), buckets=buckets_of(100), max_batch=300)
    seen.clear()
    long = measured_times(run, lambda: now[0], budgets=(1.0, 0.5), buckets=buckets_of(512), max_batch=8)
    assert max(count * length for _, count, length in seen) <= 1024  # memory that no request needs is not taken
    assert long.ms(0.5, 8, 512) == pytest.approx(1000 * 0.5 * 8 * 512 / 1e5) and len(long.steps[1.0, 512]) == 2


def certificate(**changes: object) -> Certificate:
    machine = {"processor": "p", "available_threads": 2, "platform": "l", "versions": {"onnxruntime": "1"}}
    fits = tuple(
        Fit(Conditions(b, n, 1, "onnx"), tuple(Sample((), (), b * n * s) for s in (0.1, 0.05)), None, 0.01, None)
        for b in (1, 8)
        for n in (16, 128)
    )
    return Certificate("here", {}, {**machine, **changes}, fits)


def test_only_a_certificate_of_this_machine_that_covers_all_lengths_is_relied_on() -> None:
    known = certificate()
    asked = {
        "budgets": (1.0, 0.5), "opened": (1.0, 0.5), "runtime": "onnx", "threads": 1, "buckets": buckets_of(128),
        "max_batch": 8,
    }  # fmt: skip
    found = certified_times([known], dict(known.environment), **asked)  # type: ignore[arg-type]
    assert found is not None and found.source == "certificate 'here'"
    assert found.ms(0.5, 4, 64) == pytest.approx(4 * 64 * 0.05)
    fewer = certified_times([known], dict(known.environment), **{**asked, "opened": (0.5,)})  # type: ignore[arg-type]
    assert fewer is not None and fewer.budgets == (0.5,)
    for change in ({"runtime": "onnx-int8"}, {"threads": 2}, {"buckets": buckets_of(512)}, {"opened": (1.0, 0.3)}):
        assert certified_times([known], dict(known.environment), **{**asked, **change}) is None  # type: ignore[arg-type]
    assert certified_times([certificate(processor="q")], dict(known.environment), **asked) is None  # type: ignore[arg-type]


# --- traces without a server -------------------------------------------------------------------------------


def test_a_replay_is_the_same_every_time() -> None:
    arrivals = poisson(300, 2, LENGTHS, seed=3)
    first, second = (replay(arrivals, TIMES, adaptive, slo_ms=SLO, spread=0.2, seed=1) for _ in range(2))
    assert first == second and len(first.outcomes) == len(arrivals) > 500
    assert replay(arrivals, TIMES, adaptive, slo_ms=SLO, spread=0.2, seed=2) != first


@pytest.mark.parametrize(("load", "least_in_time"), [(0.5, 0.99), (1.0, 0.99), (2.0, 0.99), (3.0, 0.98)])
def test_under_load_ours_is_in_time_where_the_fixed_budget_is_not(load: float, least_in_time: float) -> None:
    arrivals = poisson(190 * load, 10, LENGTHS)
    ours = replay(arrivals, TIMES, adaptive, slo_ms=SLO, spread=0.1)
    full = replay(arrivals, made_up((1.0,)), fixed, slo_ms=SLO, spread=0.1)
    assert ours.in_time >= least_in_time
    assert ours.in_time >= full.in_time
    assert ours.mean_budget >= min(0.99, 0.5 / load)
    if load >= 2.0:
        assert full.in_time < 0.8


def test_a_rush_is_refused_in_part_and_full_budget_is_back_within_five_seconds() -> None:
    found = replay(trace([(95, 2), (1140, 3), (95, 6)], LENGTHS), TIMES, adaptive, slo_ms=SLO, spread=0.1)
    during = [o for o in found.outcomes if 2500 < o.arrival.at_ms < 5000]
    accepted = [o for o in during if o.budget is not None]
    assert 0.05 < 1 - len(accepted) / len(during) < 0.5
    assert sum(o.in_time for o in accepted) / len(accepted) > 0.97
    back = [at for at, budget in found.levels if budget == 1.0 and at > 5000]
    assert back and back[0] <= 10_000
    after = [o for o in found.outcomes if o.arrival.at_ms > 10_000]
    assert all(o.budget == 1.0 for o in after)


def test_the_level_changes_no_more_often_than_the_hold_allows() -> None:
    for rate in (150, 250, 350, 450):
        found = replay(poisson(rate, 10, LENGTHS), TIMES, adaptive, slo_ms=SLO, spread=0.3)
        ups = [at for (at, budget), (_, before) in zip(found.levels[1:], found.levels, strict=False) if budget > before]
        assert all(b - a >= DEFAULT.hold_ms for a, b in pairwise(ups)), rate


def test_a_machine_that_is_slower_than_certified_is_noticed() -> None:
    arrivals = poisson(100, 10, LENGTHS)
    found = replay(arrivals, TIMES, adaptive, slo_ms=SLO, slowdown=2.5)
    assert found.in_time > 0.9 and found.mean_budget < 0.9


def test_wishes_of_single_requests_are_kept_in_a_rush() -> None:
    plain = poisson(570, 3, LENGTHS)
    asked = [
        replace(a, least=1.0) if i % 10 == 0 else replace(a, most=0.5) if i % 10 == 1 else a
        for i, a in enumerate(plain)
    ]
    found = replay(asked, TIMES, adaptive, slo_ms=SLO)
    for outcome in found.outcomes:
        if outcome.budget is not None:
            assert (outcome.arrival.least or 0.0) <= outcome.budget <= (outcome.arrival.most or 1.0)
    assert {o.budget for o in found.outcomes if o.arrival.least == 1.0} >= {1.0}


def test_an_empty_trace_and_a_wrong_one() -> None:
    found = replay([], TIMES, adaptive, slo_ms=SLO)
    assert found.in_time == found.refused == 0.0 and np.isnan(found.mean_budget) and np.isnan(found.latency_ms(50))
    with pytest.raises(OptionError, match="phases must be"):
        trace([(-1.0, 2.0)], LENGTHS)
    late = replay([Arrival(0.0, 128, deadline_ms=0.5)], TIMES, adaptive, slo_ms=SLO)
    assert late.refused == 1.0 and late.latency_ms(50) == float("inf")


def test_a_decision_is_cheap() -> None:
    load = Load(0.0, SLO, 2, [row() for _ in range(40)], {row().kind: 500.0})
    start = time.perf_counter()
    for _ in range(200):
        adaptive(Level(0.25, -1e9), load, TIMES)
        verdict_on(load, TIMES, [row()], max_queue=256)
    assert (time.perf_counter() - start) / 200 < 0.005
    assert offered(load, TIMES, 1.0) > offered(load, TIMES, 0.25) > 0.0
    assert set(SPEEDUPS) == set(BUDGETS)
