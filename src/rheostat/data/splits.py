"""Hold rows out for validation: stratified by label, repeats of a text on one side, single rows in train."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain, compress
from typing import Any

import numpy as np
import numpy.typing as npt

from rheostat.data.checks import Groups
from rheostat.data.options import REGRESSION, SEVERAL_LABELS, UNLABELLED
from rheostat.data.wording import listed

_BINS = 10
_BATCH_ROWS = 10_000

Strata = npt.NDArray[np.int32]


def strata(dataset: Any, task: str, counts: dict[str, int]) -> Strata:
    """Return the stratum of each row, (N,): its label, its rarest label, or the tenth its target falls in.

    Rows without labels are all of one.
    """
    if task in UNLABELLED:
        return np.zeros(len(dataset), np.int32)
    if task == REGRESSION:
        targets = np.fromiter((target for cells in _label_cells(dataset) for target in cells), np.float64, len(dataset))
        edges = np.quantile(targets, np.linspace(0, 1, _BINS + 1)[1:-1])
        return np.asarray(np.searchsorted(edges, targets, side="right"), np.int32)
    places = {name: place for place, name in enumerate(counts)}
    if task not in SEVERAL_LABELS:
        return np.fromiter((places[name] for cells in _label_cells(dataset) for name in cells), np.int32, len(dataset))
    none = len(places)  # the stratum of rows without any label
    rarest = (
        places[min(names, key=lambda name: (counts[name], name))] if names else none
        for cells in _label_cells(dataset)
        for names in cells
    )
    return np.fromiter(rarest, np.int32, len(dataset))


def _label_cells(dataset: Any) -> Iterator[list[Any]]:
    for batch in dataset.select_columns(["label"]).with_format(None).iter(_BATCH_ROWS):
        yield batch["label"]


def hold_out(strata_of_rows: Strata, groups: Groups, share: float, seed: int) -> npt.NDArray[np.bool_]:
    """Return which rows are held out for validation, (N,).

    `groups` holds for each row the first row with the same text: they stay together. About `share` of the rows of
    each stratum are held out, exact to a row where no text is repeated. Of every stratum at least one row stays in
    train, so a stratum of one row is never held out. The same seed gives the same rows on every machine.

    >>> held = hold_out(np.zeros(10, np.int32), np.arange(10, dtype=np.int32), share=0.2, seed=0)
    >>> int(held.sum())
    2
    """
    sizes = np.zeros(len(groups), np.int32)  # 0 for rows that are not the first with their text
    np.add.at(sizes, groups, 1)
    order = np.random.default_rng(seed).permutation(np.flatnonzero(sizes).astype(np.int32))
    kept = _kept_groups(strata_of_rows, groups, order)
    quota = _quotas(strata_of_rows, share)
    held = np.zeros(len(groups), bool)
    missing = int(quota.sum())
    for group in order:
        if not missing:
            break
        stratum, size = strata_of_rows[group], sizes[group]
        if not kept[group] and size <= quota[stratum]:
            held[group] = True
            quota[stratum] -= size
            missing -= int(size)
    return np.asarray(held[groups])


def _kept_groups(strata_of_rows: Strata, groups: Groups, order: Groups) -> npt.NDArray[np.bool_]:
    """Return the groups that stay in train: for each stratum the one of its groups that comes last in `order`."""
    turn = np.zeros(len(groups), np.int32)
    turn[order] = np.arange(len(order), dtype=np.int32)
    last = np.full(int(strata_of_rows.max()) + 1, -1, np.int32)
    np.maximum.at(last, strata_of_rows, turn[groups])
    kept = np.zeros(len(groups), bool)
    kept[order[last[last >= 0]]] = True
    return kept


def _quotas(strata_of_rows: Strata, share: float) -> npt.NDArray[np.int64]:
    """Return how many rows to hold out of each stratum: the share, rounded so that the sum is right (largest rest)."""
    rows = np.bincount(strata_of_rows)
    most = np.maximum(rows - 1, 0)
    exact = rows * share
    quota = np.minimum(np.floor(exact).astype(np.int64), most)
    total = max(1, round(share * len(strata_of_rows)))
    rest = np.where(quota < most, exact - quota, -1.0)
    for place in np.argsort(-rest, kind="stable")[: max(0, total - int(quota.sum()))]:
        if rest[place] > 0:
            quota[place] += 1
    return np.asarray(quota, np.int64)


def split_notes(counts: dict[str, int], dataset: Any, held: npt.NDArray[np.bool_], task: str) -> list[str]:
    """Return the warnings of a split: single rows, labels that one side lacks."""
    found = []
    held_counts = _count_names(dataset, held, task)
    single = [name for name, count in counts.items() if count == 1]
    if single:
        found.append(f"labels with a single row, which stays in train: {listed(single)}")
    absent = [name for name, count in counts.items() if count > 1 and not held_counts.get(name)]
    if absent:
        found.append(f"labels without a row in validation: {listed(absent)}")
    lost = [name for name, count in counts.items() if count == held_counts.get(name)]
    if lost:
        found.append(f"labels without a row in train: {listed(lost)}")
    return found


def _count_names(dataset: Any, rows: npt.NDArray[np.bool_], task: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    if task in (REGRESSION, *UNLABELLED):
        return counts
    start = 0
    for cells in _label_cells(dataset):
        chosen = compress(cells, rows[start : start + len(cells)])
        counts.update(chain.from_iterable(chosen) if task in SEVERAL_LABELS else chosen)
        start += len(cells)
    return counts
