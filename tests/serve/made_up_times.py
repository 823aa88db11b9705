"""Times as a small encoder has them: linear in rows and tokens, speedups as bundles measure them."""

from __future__ import annotations

from rheostat.serve.times import Times, buckets_of, times_from

SPEEDUPS = {1.0: 1.0, 0.75: 1.3, 0.5: 1.8, 0.35: 2.4, 0.25: 3.0}
LENGTHS = (30, 35, 40, 45, 50, 55, 60, 70, 90)  # tokens of news


def made_up(budgets: tuple[float, ...] = tuple(SPEEDUPS), *, ms_per_token: float = 0.125, max_batch: int = 8) -> Times:
    cells = {
        (budget, rows, length): 0.3 + ms_per_token * length * rows / SPEEDUPS[budget] * (1.0 if rows == 1 else 0.9)
        for budget in budgets
        for rows in (1, max_batch)
        for length in (16, 64, 128)
    }
    return times_from(cells, buckets=buckets_of(128), max_batch=max_batch, source="made up", budgets=budgets)
