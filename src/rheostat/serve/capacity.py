"""Measure a running server from outside: load from another process, and the highest rate that it keeps its SLO at."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rheostat.errors import OptionError
from rheostat.serve.load import LoadReport, Rows, Seen

KEPT = 0.99  # capacity is where this share of all requests is answered within the SLO
FACTOR, STEPS = 1.5, 5  # how a capacity is looked for: times 1.5 until it breaks, then five halvings of the gap
HIGHEST = 20_000.0


def read_rows_file(source: str, read: Any) -> Rows:
    """Return texts and labels of a data source, as all commands read them.

    Raises:
        DataError: rows that can't be read.
    """
    from rheostat.data import read_rows

    dataset, _ = read_rows(source, read)
    return Rows(list(map(str, dataset["text"])), list(map(str, dataset["label"])))


def offer_load(url: str, rows: Rows, **asked: Any) -> tuple[LoadReport, list[Seen]]:
    """Offer load from a process of its own; the arguments are those of :func:`rheostat.serve.load.run_load`.

    Raises:
        OptionError: the generator failed; its reason is told.
    """
    request = {"url": url, "rows": {"texts": list(rows.texts), "labels": list(rows.labels)}, **asked}
    command = [sys.executable, "-m", "rheostat.serve.load"]
    found = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True, check=False)
    if found.returncode:
        reason = (found.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise OptionError(f"the load generator must run; it failed: {reason}. Check --url and --rate")
    content = json.loads(found.stdout)
    return LoadReport(**content["report"]), [Seen(*one) for one in content["seen"]]


@dataclass(frozen=True)
class Capacity:
    """The highest rate at which p99 stays within the SLO.

    Attributes:
        rate: Requests a second; 0 if even the first was too high.
        tried: The report of every rate that was tried, in order.
    """

    rate: float
    tried: tuple[LoadReport, ...]


def holds(report: LoadReport) -> bool:
    """Whether the p99 of all requests, refusals counted as infinitely late, is within the SLO."""
    return report.in_slo >= KEPT


def find_capacity(offer: Callable[[float], LoadReport], first: float) -> Capacity:
    """Return the highest rate that holds: up in steps until one does not, then halving the gap.

    Args:
        offer: Offers a rate and returns what came of it.
        first: The rate to begin with.
    """
    tried: list[LoadReport] = []

    def kept(rate: float) -> bool:
        tried.append(offer(rate))
        return holds(tried[-1])

    good, bad, rate = 0.0, HIGHEST, first
    while rate < HIGHEST:
        if not kept(rate):
            bad = rate
            break
        good, rate = rate, rate * FACTOR
    while not good and bad > 1.0:  # the first was too high
        if kept(bad / 2):
            good = bad / 2
        else:
            bad /= 2
    for _ in range(STEPS if good and bad < HIGHEST else 0):
        middle = (good + bad) / 2
        good, bad = (middle, bad) if kept(middle) else (good, middle)
    return Capacity(good, tuple(tried))
