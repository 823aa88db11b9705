"""What a server tells about itself: Prometheus metrics, the numbers of the live view, and logs in JSON."""

from __future__ import annotations

import json
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

LATENCIES_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
RECENT_S = 10.0  # what the live view looks back on
LOGGER = "rheostat.serve"


class Metrics:
    """Counters of one server. Every method is called by its event loop alone."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.registry = CollectorRegistry()
        told: dict[str, Any] = {"registry": self.registry}
        self._requests = Counter("rheostat_requests", "Requests by path and status.", ("path", "code"), **told)
        self._rows = Counter("rheostat_rows", "Texts that were answered, by the budget that did.", ("budget",), **told)
        self._refusals = Counter("rheostat_refusals", "Requests refused or given up, by reason.", ("reason",), **told)
        self._latency = Histogram(
            "rheostat_latency_seconds", "Arrival to answer, in the server.", buckets=LATENCIES_S, **told
        )
        self._batch = Histogram("rheostat_batch_rows", "Rows of a batch.", buckets=(1, 2, 4, 8, 16, 32, 64), **told)
        self._restarts = Counter("rheostat_worker_restarts", "Workers that died and were started again.", **told)
        self._escalated = Counter("rheostat_escalated_rows", "Texts that were run again at full budget.", **told)
        self._queue = Gauge("rheostat_queue_rows", "Texts that wait.", **told)
        self._level = Gauge("rheostat_budget_level", "The budget that is spent on who asks for nothing else.", **told)
        self._pace = Gauge("rheostat_pace", "Measured over certified time of the latest batches.", **told)
        self._workers = Gauge("rheostat_workers_ready", "Workers that can run a batch.", **told)
        self._clock = clock
        self._recent: deque[tuple[float, float]] = deque(maxlen=20_000)  # time, latency_ms; nan for no answer
        self._totals = {"answered": 0, "refused": 0}

    def request(self, path: str, code: int) -> None:
        """Count a response."""
        self._requests.labels(path, str(code)).inc()

    def answered(self, budgets: list[float], latency_ms: float, escalated: int) -> None:
        """Count an answer."""
        for budget in budgets:
            self._rows.labels(f"{budget:g}").inc()
        self._latency.observe(latency_ms / 1000.0)
        self._escalated.inc(escalated)
        self._totals["answered"] += 1
        self._recent.append((self._clock(), latency_ms))

    def refused(self, reason: str) -> None:
        """Count a request that got no answer."""
        self._refusals.labels(reason).inc()
        self._totals["refused"] += 1
        self._recent.append((self._clock(), math.nan))

    def batch(self, rows: int) -> None:
        """Count a batch."""
        self._batch.observe(rows)

    def restarted(self) -> None:
        """Count a worker that came back."""
        self._restarts.inc()

    def state(self, *, queue: int, level: float, pace: float, workers: int) -> None:
        """Say how things are."""
        self._queue.set(queue)
        self._level.set(level)
        self._pace.set(pace)
        self._workers.set(workers)

    def text(self) -> bytes:
        """Return everything as Prometheus reads it."""
        return generate_latest(self.registry)

    def recent(self) -> dict[str, Any]:
        """Return the last ten seconds: rates a second, latency percentiles in ms (None without answers), totals."""
        since = self._clock() - RECENT_S
        while self._recent and self._recent[0][0] < since:
            self._recent.popleft()
        found = sorted(ms for _, ms in self._recent if not math.isnan(ms))

        def percentile(share: float) -> float | None:
            return round(found[min(int(share * len(found)), len(found) - 1)], 2) if found else None

        return {
            "requests_per_s": len(self._recent) / RECENT_S,
            "refusals_per_s": (len(self._recent) - len(found)) / RECENT_S,
            "latency_ms_p50": percentile(0.5),
            "latency_ms_p99": percentile(0.99),
            **self._totals,
        }


class JsonLines(logging.Formatter):
    """A log record as one line of JSON; what was passed as ``extra={"fields": {...}}`` is in it. Never a text."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        content: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            content["error"] = self.formatException(record.exc_info)
        return json.dumps(content, ensure_ascii=False)


def log_config(level: str) -> dict[str, Any]:
    """Return the configuration of all logs of a server: JSON lines on stderr."""
    handlers = {"stderr": {"class": "logging.StreamHandler", "formatter": "json", "stream": "ext://sys.stderr"}}
    quiet = {"handlers": ["stderr"], "level": "WARNING", "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"json": {"()": JsonLines}},
        "handlers": handlers,
        "loggers": {
            LOGGER: {"handlers": ["stderr"], "level": level.upper(), "propagate": False},
            "uvicorn": quiet,
            "uvicorn.error": quiet,
        },
    }
