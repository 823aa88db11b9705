"""Replay a trace of arrivals against a policy on a virtual clock: compare policies without a server, in seconds."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rheostat.errors import OptionError
from rheostat.serve.policy import Policy
from rheostat.serve.scheduler import TICK_MS, Batch, Row, Scheduler
from rheostat.serve.times import Times, bucket_of


@dataclass(frozen=True)
class Arrival:
    """One request of one text.

    Attributes:
        at_ms: When it comes.
        length: Tokens.
        deadline_ms: How long its client waits; None for the SLO.
        least: Smallest budget that it takes; None for the smallest of all.
        most: Largest; None for the largest.
    """

    at_ms: float
    length: int
    deadline_ms: float | None = None
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True)
class Outcome:
    """What became of a request.

    Attributes:
        arrival: The request.
        budget: What it got; None if it was refused.
        latency_ms: From arrival to answer; infinite if there was none.
        in_time: Whether it was answered by its deadline.
    """

    arrival: Arrival
    budget: float | None
    latency_ms: float
    in_time: bool


@dataclass(frozen=True)
class Replay:
    """A whole run.

    Attributes:
        outcomes: In order of arrival.
        levels: (time, budget) at every change of the level.
    """

    outcomes: tuple[Outcome, ...]
    levels: tuple[tuple[float, float], ...]

    @property
    def in_time(self) -> float:
        """Return the share of all requests that were answered by their deadline; refusals are misses."""
        return sum(outcome.in_time for outcome in self.outcomes) / max(len(self.outcomes), 1)

    @property
    def refused(self) -> float:
        """Return the share that got no answer."""
        return sum(outcome.budget is None for outcome in self.outcomes) / max(len(self.outcomes), 1)

    @property
    def mean_budget(self) -> float:
        """Return the mean budget of the answers; nan without any."""
        budgets = [outcome.budget for outcome in self.outcomes if outcome.budget is not None]
        return float(np.mean(budgets)) if budgets else math.nan

    def latency_ms(self, percentile: float) -> float:
        """Return a percentile of the latency of all requests, infinite where that many got no answer."""
        ordered = sorted(outcome.latency_ms for outcome in self.outcomes)
        return ordered[min(math.ceil(percentile / 100.0 * len(ordered)), len(ordered)) - 1] if ordered else math.nan


def poisson(rate: float, seconds: float, lengths: Sequence[int], *, seed: int = 0) -> list[Arrival]:
    """Return arrivals of a constant mean rate a second, with lengths drawn from ``lengths``."""
    return trace([(rate, seconds)], lengths, seed=seed)


def trace(phases: Sequence[tuple[float, float]], lengths: Sequence[int], *, seed: int = 0) -> list[Arrival]:
    """Return Poisson arrivals of one phase after another, each (rate a second, seconds).

    Raises:
        OptionError: no lengths, or a negative rate or duration.
    """
    if not len(lengths) or any(not 0 <= part < math.inf for phase in phases for part in phase):
        raise OptionError(f"phases must be (rate, seconds), not negative, with lengths; got {phases!r}")
    rng = np.random.default_rng(seed)
    found, start = [], 0.0
    for rate, seconds in phases:
        count = int(rng.poisson(rate * seconds))
        for at in np.sort(rng.uniform(start, start + 1000.0 * seconds, count)):
            found.append(Arrival(float(at), int(rng.choice(lengths))))
        start += 1000.0 * seconds
    return found


def replay(
    arrivals: Sequence[Arrival],
    times: Times,
    policy: Policy,
    *,
    slo_ms: float,
    workers: int = 2,
    max_queue: int = 256,
    window_ms: float = 1.0,
    spread: float = 0.0,
    slowdown: float = 1.0,
    seed: int = 0,
) -> Replay:
    """Return what a server with this policy would have done; the same every time.

    Args:
        arrivals: In order of time.
        times: What the server believes.
        policy: Chooses the level.
        slo_ms: Deadline of requests that name none.
        workers: Batches that run at a time.
        max_queue: Most rows that may wait.
        window_ms: How long a row may wait for company.
        spread: Standard deviation of the logarithm of a batch's time: 0 if each takes what ``times`` says.
        slowdown: How many times slower the machine is than ``times`` says.
        seed: Of the spread.
    """
    rng = np.random.default_rng(seed)
    scheduler = Scheduler(times, policy, slo_ms, workers, max_queue, window_ms)
    found: dict[int, Outcome] = {}
    levels: list[tuple[float, float]] = []
    events: list[tuple[float, int, int, Batch | None]] = []  # time, 0 a batch ends | 1 an arrival | 2 look
    events += [(arrival.at_ms, 1, number, None) for number, arrival in enumerate(arrivals)]
    ticks = range(0, int(arrivals[-1].at_ms + TICK_MS if arrivals else 0), TICK_MS)
    events += [(float(at), 2, -1, None) for at in ticks]
    heapq.heapify(events)
    idle, ticket = workers, len(arrivals)
    while events:
        now, what, number, batch = heapq.heappop(events)
        if what == 0 and batch is not None:
            idle += 1
            scheduler.finished(batch, now - batch.started_ms)
            found |= dict(_answered(batch, now))
        elif what == 1:
            row = _row(number, arrivals[number], times)
            if not scheduler.offer([row], now, arrivals[number].deadline_ms).admitted:
                found[number] = Outcome(arrivals[number], None, math.inf, False)
        elif number < 0:
            scheduler.tick(now, idle)
        for row in scheduler.overdue(now):
            found[row.content[0]] = Outcome(row.content[1], None, math.inf, False)
        while isinstance(step := scheduler.next_batch(now, idle), Batch):
            idle -= 1
            ticket += 1
            took = step.expected_ms * slowdown * math.exp(spread * float(rng.standard_normal()))
            heapq.heappush(events, (now + took, 0, ticket, step))
        if isinstance(step, float):
            ticket += 1
            heapq.heappush(events, (now + step + 1e-6, 2, ticket, None))
        if not levels or levels[-1][1] != scheduler.level.budget:
            levels.append((now, scheduler.level.budget))
    return Replay(tuple(found[number] for number in range(len(arrivals))), tuple(levels))


def _row(number: int, arrival: Arrival, times: Times) -> Row:
    least = times.budgets[-1] if arrival.least is None else arrival.least
    most = times.budgets[0] if arrival.most is None else arrival.most
    return Row(number, (number, arrival), bucket_of(arrival.length, times.buckets), least, most)


def _answered(batch: Batch, now_ms: float) -> Iterator[tuple[int, Outcome]]:
    for row in batch.rows:
        number, arrival = row.content
        yield number, Outcome(arrival, batch.budget, now_ms - row.arrived_ms, now_ms <= row.deadline_ms)
