"""Which budget to spend now: a pure function of times, queue, offered load and the level so far. No I/O, no clock.

The *level* is the budget that the server spends on whoever asks for no less and no more. It goes down at once to the
largest budget whose queue is empty soon enough and that keeps up with what arrives; it goes up one budget at a time,
later, and only where the next one would hold with room to spare. Between the two lies what keeps it from flapping.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rheostat.serve.times import Times

MARGIN = 1.2  # of an expected answer's time: what is let in on the edge would be late every second time
Kind = tuple[int, float, float]  # length bucket, least and most budget of a row


class Waiting(Protocol):
    """One row that waits.

    Attributes:
        bucket: Length bucket.
        least: Smallest budget that it takes.
        most: Largest.
        arrived_ms: When it came.
        deadline_ms: When its answer is due.
    """

    bucket: int
    least: float
    most: float
    arrived_ms: float
    deadline_ms: float


@dataclass(frozen=True)
class Load:
    """What a decision is made from.

    Attributes:
        now_ms: The time.
        slo_ms: What a request that names no deadline is promised.
        workers: Batches that run at a time.
        queue: What waits, earliest deadline first.
        arriving: Rows that arrived a second, refused ones too, by kind.
        running_ms: What is left of the running batches, all workers together.
        pace: Measured over certified time of the latest batches: 1 as certified, 2 on a machine that is half as fast.
    """

    now_ms: float
    slo_ms: float
    workers: int
    queue: Sequence[Waiting] = ()
    arriving: Mapping[Kind, float] = field(default_factory=dict, hash=False)
    running_ms: float = 0.0
    pace: float = 1.0


@dataclass(frozen=True)
class Level:
    """The budget that is spent now, and since when."""

    budget: float
    since_ms: float


Policy = Callable[[Level, Load, Times], Level]


@dataclass(frozen=True)
class Tuning:
    """The numbers of the policy, with the reason beside each default.

    Attributes:
        wait_share: Of the SLO that the queue may take to drain; the rest is for the batch itself and for surprises.
        busy: Share of the workers' time that arriving rows may need; towards 1 queues grow without bound.
        room: Share of both limits that a larger budget must stay below before it is taken; less than 1 is the
            hysteresis.
        hold_ms: Least time between a change and a step up. Five budgets are climbed in 2 s, well within the 5 s in
            which full accuracy should be back.
    """

    wait_share: float = 0.5
    busy: float = 0.9
    room: float = 0.8
    hold_ms: float = 400.0


DEFAULT = Tuning()


def finishes_ms(load: Load, times: Times, level: float) -> Iterator[tuple[Waiting, float]]:
    """Yield what waits, in order of deadlines, and how long from now it is done at a level with all workers busy.

    Rows of one bucket and budget are counted as they will run, in common batches.
    """
    counts: dict[tuple[float, int], int] = {}
    steps, work = times.steps, load.running_ms / max(load.pace, 1e-9)
    for row in load.queue:
        key = (max(row.least, min(level, row.most)), row.bucket)
        count = counts.get(key, 0)
        counts[key] = count + 1
        adds = steps[key]
        work += adds[count % len(adds)]
        yield row, work * load.pace / load.workers


def offered(load: Load, times: Times, level: float) -> float:
    """Return the share of the workers' time that arriving rows need at a level; above 1 they can't keep up."""
    needed = 0.0
    for (bucket, least, most), rate in load.arriving.items():
        adds = times.steps[max(least, min(level, most)), bucket]
        needed += rate * sum(adds) / len(adds)
    return needed * load.pace / (1000.0 * load.workers)


def adaptive(level: Level, load: Load, times: Times, tuning: Tuning = DEFAULT) -> Level:
    """Return the next level: as large as the load allows.

    Monotone: with more waiting, more arriving, more running or a slower machine the result is never larger. Under a
    constant load it never turns round. A tight deadline of one request is no reason to spend less on all others, so
    the queue is measured against the SLO, or the longer patience of those who have it.
    """

    def holds(budget: float, room: float) -> bool:
        if offered(load, times, budget) > room * tuning.busy:
            return False
        share = room * tuning.wait_share
        return all(
            done <= share * max(load.slo_ms, row.deadline_ms - row.arrived_ms)
            for row, done in finishes_ms(load, times, budget)
        )

    smaller = [budget for budget in times.budgets if budget < level.budget]
    if smaller and not holds(level.budget, 1.0):
        return Level(next((budget for budget in smaller if holds(budget, 1.0)), smaller[-1]), load.now_ms)
    larger = [budget for budget in times.budgets if budget > level.budget]
    if larger and load.now_ms - level.since_ms >= tuning.hold_ms and holds(larger[-1], tuning.room):
        return Level(larger[-1], load.now_ms)
    return level


def fixed(level: Level, load: Load, times: Times) -> Level:
    """Return the level unchanged: what other servers do, to compare with, given the times of one budget alone."""
    return level


def budget_within(
    times: Times, level: float, least: float, most: float, *, rows: int, bucket: int, left_ms: float, pace: float
) -> float:
    """Return the largest budget in [least, most], not above the level if that allows, with which a batch is in time.

    Where even ``least`` is late the answer is ``least``: who accepted the rows has to serve them.
    """
    top = max(least, min(level, most))
    for budget in times.budgets:
        if least <= budget <= top and times.ms(budget, rows, bucket) * pace <= left_ms:
            return budget
    return least


@dataclass(frozen=True)
class Verdict:
    """Whether a request may come in.

    Attributes:
        admitted: Whether it may.
        expected_ms: How long its answer takes at its smallest budget.
        retry_after_ms: When it is worth asking again; 0 where it was admitted.
        reason: ``full`` (the queue) or ``late`` (even at the smallest budget); empty where it was admitted.
    """

    admitted: bool
    expected_ms: float
    retry_after_ms: float = 0.0
    reason: str = ""


def own_ms(load: Load, times: Times, asked: Sequence[Waiting]) -> float:
    """Return how long the rows of a request take on an idle server, each at its smallest budget."""
    counts = Counter((row.least, row.bucket) for row in asked)
    work, longest = 0.0, 0.0
    for (least, bucket), rows in counts.items():
        adds = times.steps[least, bucket]
        whole, rest = divmod(rows, len(adds))
        work += sum(adds) * whole + sum(adds[:rest])
        longest = max(longest, times.ms(least, min(rows, len(adds)), bucket))
    return max(longest, work / load.workers) * load.pace


def verdict_on(load: Load, times: Times, asked: Sequence[Waiting], *, max_queue: int) -> Verdict:
    """Say whether a request can be in time, and leave those in time that wait already, all at their smallest budgets.

    Monotone: what is refused under some load is refused under more.

    Args:
        load: What waits and runs.
        times: The table.
        asked: The rows of the request; they share one deadline.
        max_queue: Most rows that may wait. A larger request still comes in while nobody else waits.
    """
    own, due, rows = own_ms(load, times, asked), asked[0].deadline_ms, len(asked)
    ahead = last = load.running_ms / load.workers
    before, later_is_late = 0, False
    for row, done in finishes_ms(load, times, times.budgets[-1]):
        last = done
        if row.deadline_ms <= due:
            ahead, before = done, before + 1
        else:
            later_is_late = later_is_late or done + own > row.deadline_ms - load.now_ms
    # The last batch can't be shared out among the workers: it ends later than the work before it does on average.
    uneven = (
        max(times.ms(row.least, min(before + rows, times.most_rows(row.bucket)), row.bucket) for row in asked)
        * load.pace
        * (1 - 1 / load.workers)
    )
    expected, left = ahead + own + (uneven if before else 0.0), due - load.now_ms
    if load.queue and len(load.queue) + rows > max_queue:
        return Verdict(False, expected, max(last, 1.0), "full")
    if expected * MARGIN > left or later_is_late:
        return Verdict(False, expected, max(expected - left, last, 1.0), "late")
    return Verdict(True, expected)


def paced(pace: float, ratio: float) -> float:
    """Return the pace after a batch that took ``ratio`` times the certified time.

    Quicker to slow down than to trust again; one batch, however slow, moves it by a fifth at most.
    """
    bounded = min(max(ratio, pace / 2, 0.2), 2 * pace, 20.0)
    return pace + (0.2 if bounded > pace else 0.1) * (bounded - pace)
