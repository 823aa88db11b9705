"""The queue: rows in order of their deadlines, batches that mix neither budgets nor distant lengths. No I/O, no clock.

The server and the simulator both drive it; time is an argument of every call, in milliseconds.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rheostat.serve.policy import (
    Kind,
    Level,
    Load,
    Policy,
    Verdict,
    budget_within,
    own_ms,
    paced,
    verdict_on,
)
from rheostat.serve.times import Times

TICK_MS = 100  # between two looks of the policy at a server that nothing happens on
ARRIVALS_MS = 1000.0  # how far back the offered load is counted
PATIENCE = 2.0  # times of its own time that a request without a deadline gets, where that is more than the SLO


@dataclass(eq=False)
class Row:
    """One text that waits.

    Attributes:
        request: What it belongs to.
        content: What the worker needs; the scheduler never looks at it.
        bucket: Length bucket.
        least: Smallest budget that it takes.
        most: Largest.
        arrived_ms: When it came.
        deadline_ms: When its answer is due.
        tries: Workers that died with it.
    """

    request: Hashable
    content: Any
    bucket: int
    least: float
    most: float
    arrived_ms: float = 0.0
    deadline_ms: float = 0.0
    tries: int = 0

    @property
    def kind(self) -> Kind:
        """Return what decides how long it takes."""
        return (self.bucket, self.least, self.most)


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows that run together.

    Attributes:
        budget: The one budget of all of them.
        bucket: The one length bucket.
        rows: Earliest deadline first.
        started_ms: When.
        expected_ms: How long it should take.
    """

    budget: float
    bucket: int
    rows: tuple[Row, ...]
    started_ms: float
    expected_ms: float


@dataclass
class Scheduler:
    """The state between requests and workers; not safe for threads, the event loop owns it.

    Attributes:
        times: Of every batch.
        policy: Decides the level.
        slo_ms: What requests without a deadline are promised.
        workers: Batches that run at a time.
        max_queue: Most rows that may wait.
        window_ms: How long a row may wait for company while workers are busy; none when all are idle.
        level: The budget that is spent now.
        pace: Measured over certified time.
    """

    times: Times
    policy: Policy
    slo_ms: float
    workers: int
    max_queue: int
    window_ms: float
    level: Level = field(init=False)
    pace: float = field(default=1.0, init=False)

    def __post_init__(self) -> None:
        self.level = Level(self.times.budgets[0], float("-inf"))
        self._queue: list[Row] = []
        self._running: set[Batch] = set()
        self._arrivals: deque[tuple[float, Kind, int]] = deque()
        self._rates: Counter[Kind] = Counter()

    @property
    def queued(self) -> int:
        """Return how many rows wait."""
        return len(self._queue)

    @property
    def running(self) -> int:
        """Return how many batches run."""
        return len(self._running)

    def load(self, now_ms: float, *, waiting: bool = True) -> Load:
        """Return what the policy decides from; without the queue where nobody in it has to wait."""
        while self._arrivals and self._arrivals[0][0] < now_ms - ARRIVALS_MS:
            _, kind, rows = self._arrivals.popleft()
            self._rates[kind] -= rows
            if not self._rates[kind]:
                del self._rates[kind]
        left = sum(max(b.started_ms + b.expected_ms * self.pace - now_ms, 0.0) for b in self._running)
        rates = {kind: rows * 1000.0 / ARRIVALS_MS for kind, rows in self._rates.items()}
        return Load(now_ms, self.slo_ms, self.workers, self._queue if waiting else (), rates, left, self.pace)

    def offer(
        self, rows: Sequence[Row], now_ms: float, deadline_ms: float | None = None, *, waited_ms: float = 0.0
    ) -> Verdict:
        """Take the rows of a request in, or refuse them all.

        Args:
            rows: At least one.
            now_ms: The time.
            deadline_ms: How long the client waits. By default the SLO, or twice what the rows take at their smallest
                budget on an idle server where that is more: a long text is then served late rather than never.
            waited_ms: How long they have waited before they were seen; it counts.
        """
        load = self.load(now_ms)
        for kind, count in Counter(row.kind for row in rows).items():
            self._arrivals.append((now_ms, kind, count))
            self._rates[kind] += count
        if deadline_ms is None:
            deadline_ms = max(self.slo_ms, PATIENCE * own_ms(load, self.times, rows))
        for row in rows:
            row.arrived_ms, row.deadline_ms = now_ms - waited_ms, now_ms - waited_ms + deadline_ms
        verdict = verdict_on(load, self.times, rows, max_queue=self.max_queue)
        if verdict.admitted:
            for row in rows:
                self._put(row)
        return verdict

    def _put(self, row: Row) -> None:
        insort(self._queue, row, key=lambda known: known.deadline_ms)

    def again(self, row: Row) -> None:
        """Put back a row whose worker died, or that is escalated; it was admitted before."""
        self._put(row)

    def can_rerun(self, row: Row, now_ms: float) -> bool:
        """Whether a row could run once more, at its least budget, before its deadline."""
        return verdict_on(self.load(now_ms), self.times, [row], max_queue=self.max_queue + 1).admitted

    def drop(self, request: Hashable) -> None:
        """Forget the waiting rows of a client that is gone."""
        self._queue = [row for row in self._queue if row.request is not request]

    def overdue(self, now_ms: float) -> list[Row]:
        """Take out the rows whose deadline has passed: nobody waits for their answers any more."""
        found = 0
        while found < len(self._queue) and self._queue[found].deadline_ms <= now_ms:
            found += 1
        gone, self._queue = self._queue[:found], self._queue[found:]
        return gone

    def tick(self, now_ms: float, idle: int) -> None:
        """Let the policy look at the load; call it a few times a second, or an idle server never goes back up."""
        self.level = self.policy(self.level, self.load(now_ms, waiting=len(self._queue) > idle), self.times)

    def next_batch(self, now_ms: float, idle: int) -> Batch | float | None:
        """Return what one idle worker should run now, in how many milliseconds to ask again, or None: nothing waits.

        Args:
            now_ms: The time.
            idle: Workers that have nothing to do.
        """
        if not self._queue or idle < 1:
            return None
        if self._running and self.window_ms and len(self._queue) < self.times.max_batch:
            left = min(row.arrived_ms for row in self._queue) + self.window_ms - now_ms
            if left > 0:
                return left
        self.tick(now_ms, idle)
        return self._start(now_ms, share=-(-len(self._queue) // idle))

    def _start(self, now_ms: float, share: int) -> Batch:
        """Take a batch out of the queue: the most urgent row, and those that can run with it."""
        first = self._queue[0]
        left = first.deadline_ms - now_ms
        budget = self._budget_of(first, 1, left)
        chosen, most = [first], min(share, self.times.most_rows(first.bucket))
        for row in self._queue[1:]:
            if len(chosen) >= most:
                break
            size = len(chosen) + 1
            if row.bucket == first.bucket and self._budget_of(row, 1, row.deadline_ms - now_ms) == budget:
                if self.times.ms(budget, size, first.bucket) * self.pace > left:
                    break
                chosen.append(row)
        taken = set(map(id, chosen))
        self._queue = [row for row in self._queue if id(row) not in taken]
        expected = self.times.ms(budget, len(chosen), first.bucket)
        batch = Batch(budget, first.bucket, tuple(chosen), now_ms, expected)
        self._running.add(batch)
        return batch

    def _budget_of(self, row: Row, rows: int, left_ms: float) -> float:
        return budget_within(
            self.times,
            self.level.budget,
            row.least,
            row.most,
            rows=rows,
            bucket=row.bucket,
            left_ms=left_ms,
            pace=self.pace,
        )

    def finished(self, batch: Batch, took_ms: float | None) -> None:
        """Take note that a batch is done, or lost with its worker (None)."""
        self._running.discard(batch)
        if took_ms is not None:
            self.pace = paced(self.pace, took_ms / max(batch.expected_ms, 1e-6))
