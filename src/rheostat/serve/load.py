"""An open-loop load generator: requests leave when their time has come, however slow the answers are.

A closed loop waits for answers before it asks again, and so hides how late they are. Latency is counted from the time
at which a request should have left. Run it in a process of its own: it says how much of the processors it took.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rheostat.errors import OptionError, missing
from rheostat.measure import available_threads

PATTERNS = ("poisson", "bursts")
BURST_S, BURST_SHARE, BURST_LOAD = 0.5, 0.2, 3.0  # a fifth of the time at three times the mean rate
TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Rows:
    """What is asked, over and over.

    Attributes:
        texts: Texts.
        labels: What is right; empty if unknown.
    """

    texts: Sequence[str]
    labels: Sequence[str]


@dataclass(frozen=True)
class LoadReport:
    """What one run of the generator saw. Refusals and errors are misses; shares are of all requests.

    Attributes:
        rate: Requests a second that were asked for.
        pattern: ``poisson`` or ``bursts``.
        seconds: Of sending.
        slo_ms: The time in which an answer counts.
        sent: Requests.
        answered: Answers.
        refused: 429 and 503.
        failed: Anything else: errors, other statuses, no answer.
        in_slo: Share of the requests that were answered within the SLO.
        accepted_in_slo: Share of the answers that were.
        latency_ms: p50, p95, p99 and the largest of the answers; None without answers.
        refusal_ms: p50 and p99 of the refusals; None without any.
        accuracy: Share of right labels among the answers; None where labels are unknown.
        budgets: Answers by budget.
        mean_budget: Of the answers.
        generator_share: Of all processors, what the generator itself used.
        late_ms: p99 of how late requests left; large where the generator could not keep up.
    """

    rate: float
    pattern: str
    seconds: float
    slo_ms: float
    sent: int
    answered: int
    refused: int
    failed: int
    in_slo: float
    accepted_in_slo: float
    latency_ms: dict[str, float] | None
    refusal_ms: dict[str, float] | None
    accuracy: float | None
    budgets: dict[str, int]
    mean_budget: float | None
    generator_share: float
    late_ms: float

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        return asdict(self)


@dataclass(frozen=True)
class Seen:
    """One request: when it was due and left, what came back, and when.

    Attributes:
        due_s: From the start of the run.
        late_ms: How much later it left.
        latency_ms: From when it was due.
        code: HTTP status; 0 for none.
        row: Which text.
        label: The answer's.
        budget: What was spent on it.
    """

    due_s: float
    late_ms: float
    latency_ms: float
    code: int
    row: int
    label: str | None = None
    budget: float | None = None


def arrival_times(rate: float, seconds: float, pattern: str, seed: int) -> NDArray[np.float64]:
    """Return when requests leave, in seconds: Poisson arrivals, or Poisson arrivals in bursts of the same mean.

    Raises:
        OptionError: unknown pattern, or a rate or duration that is not above 0.
    """
    if pattern not in PATTERNS:
        raise OptionError(f"pattern must be one of {', '.join(PATTERNS)}; got {pattern!r}. The default is poisson")
    if not 0 < rate < math.inf or not 0 < seconds < math.inf:
        raise OptionError(f"rate and seconds must be above 0; got {rate!r} and {seconds!r}. Try 50 and 20")
    rng = np.random.default_rng(seed)
    if pattern == "poisson":
        return np.sort(rng.uniform(0.0, seconds, rng.poisson(rate * seconds)))
    calm = (1.0 - BURST_SHARE * BURST_LOAD) / (1.0 - BURST_SHARE)
    parts, start, period = [], 0.0, BURST_S / BURST_SHARE
    while start < seconds:
        for length, load in ((BURST_S, BURST_LOAD), (period - BURST_S, calm)):
            stop = min(start + length, seconds)
            parts.append(rng.uniform(start, stop, rng.poisson(rate * load * max(stop - start, 0.0))))
            start += length
    return np.sort(np.concatenate(parts))


async def offer(
    url: str,
    rows: Rows,
    times_s: NDArray[np.float64],
    *,
    wishes: dict[str, Any] | None = None,
    api_key: str | None = None,
    seed: int = 0,
) -> list[Seen]:
    """Send a request of one text at each time, and return what came of them, in order.

    Raises:
        MissingDependencyError: aiohttp is not installed.
    """
    try:
        import aiohttp
    except ImportError as error:
        raise missing("aiohttp", "serve") from error
    chosen = np.random.default_rng(seed).integers(0, len(rows.texts), len(times_s)).tolist()
    bodies = {i: json.dumps({"texts": [rows.texts[i]], **(wishes or {})}).encode("utf-8") for i in set(chosen)}
    headers = {"content-type": "application/json"} | ({} if api_key is None else {"x-api-key": api_key})
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0)
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as session:
        start = time.perf_counter()

        async def ask(due_s: float, row: int) -> Seen:
            late_ms = 1000.0 * (time.perf_counter() - start - due_s)

            def seen(code: int, **more: Any) -> Seen:
                return Seen(due_s, late_ms, 1000.0 * (time.perf_counter() - start - due_s), code, row, **more)

            try:
                async with session.post(f"{url}/predict", data=bodies[row]) as response:
                    content = await response.read()
                    if response.status != 200:
                        return seen(response.status)
                    found = json.loads(content)["predictions"][0]
                    return seen(200, label=found["label"], budget=found["budget_served"])
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError, LookupError):
                return seen(0)

        tasks = []
        for due_s, row in zip(times_s.tolist(), chosen, strict=True):
            wait = start + due_s - time.perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            tasks.append(asyncio.ensure_future(ask(due_s, row)))
        return list(await asyncio.gather(*tasks))


def run_load(
    url: str,
    rows: Rows,
    *,
    rate: float,
    seconds: float,
    slo_ms: float,
    pattern: str = "poisson",
    wishes: dict[str, Any] | None = None,
    api_key: str | None = None,
    seed: int = 0,
) -> tuple[LoadReport, list[Seen]]:
    """Offer load in this process; return the report and every request."""
    times_s = arrival_times(rate, seconds, pattern, seed)
    cpu, wall = time.process_time(), time.perf_counter()
    seen = asyncio.run(offer(url, rows, times_s, wishes=wishes, api_key=api_key, seed=seed))
    used = (time.process_time() - cpu) / max(time.perf_counter() - wall, 1e-9) / available_threads()
    return report_of(seen, rows, rate=rate, seconds=seconds, slo_ms=slo_ms, pattern=pattern, used=used), seen


def report_of(
    seen: Sequence[Seen], rows: Rows, *, rate: float, seconds: float, slo_ms: float, pattern: str, used: float
) -> LoadReport:
    """Return what a run comes to."""
    answers = [one for one in seen if one.code == 200]
    refusals = [one for one in seen if one.code in (429, 503)]
    in_time = sum(one.latency_ms <= slo_ms for one in answers)
    right = [one.label == rows.labels[one.row] for one in answers] if len(rows.labels) else []
    budgets = Counter(f"{one.budget:g}" for one in answers)
    return LoadReport(
        rate=rate,
        pattern=pattern,
        seconds=seconds,
        slo_ms=slo_ms,
        sent=len(seen),
        answered=len(answers),
        refused=len(refusals),
        failed=len(seen) - len(answers) - len(refusals),
        in_slo=in_time / max(len(seen), 1),
        accepted_in_slo=in_time / max(len(answers), 1),
        latency_ms=_percentiles([one.latency_ms for one in answers], (50, 95, 99, 100)),
        refusal_ms=_percentiles([one.latency_ms for one in refusals], (50, 99)),
        accuracy=float(np.mean(right)) if right else None,
        budgets=dict(sorted(budgets.items(), reverse=True)),
        mean_budget=float(np.mean([one.budget for one in answers])) if answers else None,
        generator_share=used,
        late_ms=float(np.percentile([one.late_ms for one in seen], 99)) if seen else 0.0,
    )


def _percentiles(values: Sequence[float], wanted: Sequence[int]) -> dict[str, float] | None:
    return {f"p{p}": float(np.percentile(values, p)) for p in wanted} if values else None


def main() -> None:
    """Read a request from stdin, offer the load, print the report and every request as JSON."""
    asked = json.load(sys.stdin)
    rows = Rows(**asked.pop("rows"))
    report, seen = run_load(rows=rows, **asked)
    sys.stdout.write(json.dumps({"report": report.to_json(), "seen": [list(asdict(one).values()) for one in seen]}))


if __name__ == "__main__":
    main()
