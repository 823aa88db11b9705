"""How long a batch takes, by budget, rows and length bucket: certified before, or measured at the start. No I/O."""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
from numpy.typing import NDArray

from rheostat.certify import Certificate
from rheostat.certify.certificate import differences
from rheostat.errors import OptionError

LENGTHS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
MEASURED_LENGTHS = (16, 64, 256)  # and the longest input
BATCH_TOKENS = 1024  # of a batch of several rows: longer ones gain nothing from company, and memory grows with them
REPEATS = 3
RunOnce = Callable[[float, int, int], object]  # budget, rows, tokens
Cell = tuple[float, int, int]  # the same, as a key


def buckets_of(max_length: int) -> tuple[int, ...]:
    """Return the longest input of each length bucket; inside a bucket lengths differ by half at most (8 from 1 on).

    >>> buckets_of(50)
    (8, 16, 24, 32, 48, 50)
    """
    return (*(n for n in LENGTHS if n < max_length), max_length)


def bucket_of(length: int, buckets: Sequence[int]) -> int:
    """Return the bucket of an input of ``length`` tokens: the smallest that holds it."""
    return buckets[min(bisect_left(buckets, length), len(buckets) - 1)]


def most_rows(length: int, max_batch: int) -> int:
    """Return how many rows of a length may run together, at least one.

    >>> most_rows(64, 8), most_rows(512, 8), most_rows(4096, 8)
    (8, 2, 1)
    """
    return max(1, min(max_batch, BATCH_TOKENS // length))


@dataclass(frozen=True)
class Times:
    """Milliseconds of a batch for every budget, number of rows and length bucket.

    They never fall with any of the three: what noise in the measurements says otherwise is raised to the smaller
    neighbour's time.

    Attributes:
        budgets: Largest first.
        buckets: Longest input of each.
        max_batch: Most rows of a batch.
        source: Where the times are from, in words.
        cells: Milliseconds by (budget, rows, bucket).
    """

    budgets: tuple[float, ...]
    buckets: tuple[int, ...]
    max_batch: int
    source: str
    cells: Mapping[Cell, float]

    def ms(self, budget: float, rows: int, bucket: int) -> float:
        """Return the milliseconds of one batch."""
        return self.cells[budget, rows, bucket]

    def most_rows(self, bucket: int) -> int:
        """Return how many rows of a bucket may run together."""
        return most_rows(bucket, self.max_batch)

    @cached_property
    def steps(self) -> Mapping[tuple[float, int], tuple[float, ...]]:
        """Return what each further row of a batch adds, in milliseconds, by (budget, bucket)."""
        return {
            (budget, bucket): tuple(
                self.cells[budget, rows, bucket] - (self.cells[budget, rows - 1, bucket] if rows > 1 else 0.0)
                for rows in range(1, self.most_rows(bucket) + 1)
            )
            for budget in self.budgets
            for bucket in self.buckets
        }

    def at_most(self, budget: float) -> float | None:
        """Return the largest budget that is not above ``budget``; None if all are."""
        return next((known for known in self.budgets if known <= budget + 1e-9), None)

    def at_least(self, budget: float) -> float | None:
        """Return the smallest budget that is not below ``budget``; None if all are."""
        return next((known for known in reversed(self.budgets) if known >= budget - 1e-9), None)


def times_from(
    measured: Mapping[Cell, float], *, buckets: Sequence[int], max_batch: int, source: str, budgets: Sequence[float]
) -> Times:
    """Return the whole table from the milliseconds of some (budget, rows, tokens), the same grid for every budget.

    Between them times are linear in rows and in tokens; beyond the last they go on as they did between the last two.

    Raises:
        OptionError: nothing measured for a budget, or no full grid.
    """
    ordered = tuple(sorted(budgets, reverse=True))
    rows = sorted({r for _, r, _ in measured})
    lengths = sorted({n for _, _, n in measured})
    missing = [(b, r, n) for b in ordered for r in rows for n in lengths if (b, r, n) not in measured]
    if not measured or missing:
        raise OptionError(f"times must be known for every budget, batch and length; {missing[:1]} is not. Certify it")
    wanted = np.arange(1, max_batch + 1)
    grids = []
    for budget in ordered:
        grid = np.array([[measured[budget, r, n] for n in lengths] for r in rows])
        by_rows = np.array([_along(rows, column, wanted) for column in grid.T]).T
        grids.append(np.array([_along(lengths, row, np.asarray(buckets)) for row in by_rows]))
    table = np.array(grids)  # (budgets, rows, buckets)
    for axis in (1, 2):
        table = np.maximum.accumulate(table, axis=axis)
    table = np.maximum.accumulate(table[::-1], axis=0)[::-1]
    cells = {
        (budget, r + 1, bucket): float(table[i, r, j])
        for i, budget in enumerate(ordered)
        for r in range(max_batch)
        for j, bucket in enumerate(buckets)
    }
    return Times(ordered, tuple(buckets), max_batch, source, cells)


def _along(known: Sequence[int], values: Sequence[float], wanted: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return ``values`` at ``wanted``: linear between and beyond what is known; a single one is in proportion."""
    if len(known) == 1:
        return np.asarray(values[0] * wanted / known[0])
    found = np.interp(wanted, known, values)
    slope = (values[-1] - values[-2]) / (known[-1] - known[-2])
    return np.where(wanted > known[-1], values[-1] + max(slope, 0.0) * (wanted - known[-1]), found)


def certified_times(
    certificates: Sequence[Certificate],
    now: Mapping[str, object],
    *,
    budgets: Sequence[float],
    opened: Sequence[float],
    runtime: str,
    threads: int,
    buckets: Sequence[int],
    max_batch: int,
) -> Times | None:
    """Return the times of the newest certificate that can be relied on here; None without one.

    It must be of this machine and these versions, of this runtime and number of threads, and of a full grid of batches
    and lengths that begins at batch 1 and reaches the longest input.

    Args:
        certificates: Newest first.
        now: This machine, as :func:`rheostat.measure.environment` tells it.
        budgets: Of all points of the bundle, in its order, which is that of a certificate's samples.
        opened: Those that the server may use.
        runtime: ``onnx`` and so on.
        threads: Of a call.
        buckets: Length buckets; the last is the longest input.
        max_batch: Most rows of a batch.
    """
    for certificate in certificates:
        fits = [f for f in certificate.fits if (f.conditions.runtime, f.conditions.threads) == (runtime, threads)]
        measured = {
            (budget, fit.conditions.batch, fit.conditions.length): sample.ms
            for fit in fits
            for budget, sample in zip(budgets, fit.samples, strict=False)
            if budget in opened
        }
        lengths = {n for _, _, n in measured}
        whole = len(measured) == len(opened) * len({r for _, r, _ in measured}) * len(lengths)
        covers = len(lengths) > 1 and max(lengths) >= buckets[-1] and any(r == 1 for _, r, _ in measured)
        if measured and whole and covers and not differences(certificate, now):
            source = f"certificate {certificate.name!r}"
            return times_from(measured, buckets=buckets, max_batch=max_batch, source=source, budgets=opened)
    return None


def measured_times(
    run: RunOnce,
    clock: Callable[[], float],
    *,
    budgets: Sequence[float],
    buckets: Sequence[int],
    max_batch: int,
) -> Times:
    """Measure a small table: the median of three runs a cell after one to warm up, budgets in turns.

    Large batches of long inputs never run, and are put down in proportion to those of shorter ones.

    Args:
        run: Runs one batch of made-up tokens; called with (budget, rows, tokens).
        clock: Seconds.
        budgets: What the server may use.
        buckets: Length buckets; the last is the longest input.
        max_batch: Most rows of a batch.
    """
    lengths = sorted({n for n in (*MEASURED_LENGTHS, buckets[-1]) if n <= buckets[-1]})
    measured: dict[Cell, float] = {}
    for rows, length in product(sorted({1, most_rows(lengths[0], max_batch)}), lengths):
        if rows <= most_rows(length, max_batch):
            taken: dict[float, list[float]] = {budget: [] for budget in budgets}
            for turn in range(REPEATS + 1):
                for budget in budgets:
                    start = clock()
                    run(budget, rows, length)
                    if turn:
                        taken[budget].append(1000.0 * (clock() - start))
            measured |= {(budget, rows, length): statistics.median(found) for budget, found in taken.items()}
        else:
            short = max(n for n in lengths if (budgets[0], rows, n) in measured)
            for budget in budgets:
                ratio = measured[budget, rows, short] / measured[budget, 1, short]
                measured[budget, rows, length] = measured[budget, 1, length] * ratio
    source = "measured at the start"
    return times_from(measured, buckets=buckets, max_batch=max_batch, source=source, budgets=budgets)
