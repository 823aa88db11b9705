"""What a server is told at its start, checked once; values travel to the places that read them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from rheostat.errors import OptionError
from rheostat.measure import available_threads

WORKER_KINDS = ("process", "thread")


@dataclass(frozen=True)
class ServeSettings:
    """Everything about a server but its bundle's content.

    Attributes:
        folder: The bundle.
        name: Of the model in the Open Inference Protocol; that of the folder by default.
        slo_ms: The time in which a request that names no deadline should be answered.
        min_budget: Smallest budget that is ever spent; None for the bundle's smallest.
        precision: ``float32`` or ``int8``.
        memory: ``fast`` or ``shared``, see :func:`rheostat.open_bundle`.
        workers: Batches that run at a time; None for one a core.
        worker_kind: ``process`` (a crash costs one worker, which comes back) or ``thread`` (less memory).
        threads: Threads of one batch.
        max_batch: Most rows of a batch.
        window_ms: How long a row may wait for company while workers are busy; an idle server never waits. 1 ms is a
            small part of any SLO, and enough for the requests of one burst to meet.
        max_queue: Most rows that may wait.
        max_texts: Most texts of a request.
        max_bytes: Most bytes of a request's body.
        read_timeout_s: How long a client may take to send a request.
        run_timeout_s: How long a batch may run before its worker counts as lost.
        api_key: What clients must send; None for no check.
    """

    folder: Path
    name: str | None = None
    slo_ms: float = 50.0
    min_budget: float | None = None
    precision: str = "float32"
    memory: str = "fast"
    workers: int | None = None
    worker_kind: str = "process"
    threads: int = 1
    max_batch: int = 8
    window_ms: float = 1.0
    max_queue: int = 256
    max_texts: int = 256
    max_bytes: int = 1 << 20
    read_timeout_s: float = 10.0
    run_timeout_s: float = 30.0
    api_key: str | None = None

    def __post_init__(self) -> None:
        for name in ("slo_ms", "read_timeout_s", "run_timeout_s"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise OptionError(f"{name} must be a number above 0; got {getattr(self, name)!r}. Leave it out")
        if not 0.0 <= self.window_ms < self.slo_ms:
            raise OptionError(f"window_ms must be 0 or more and below slo_ms; got {self.window_ms!r}. Leave it out")
        for name in ("threads", "max_batch", "max_queue", "max_texts", "max_bytes"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name} must be 1 or more; got {getattr(self, name)!r}. Leave it out")
        if self.workers is not None and self.workers < 1:
            raise OptionError(f"workers must be 1 or more; got {self.workers!r}. Leave it out for one a core")
        if self.worker_kind not in WORKER_KINDS:
            raise OptionError(
                f"worker_kind must be process or thread; got {self.worker_kind!r}. The default is process"
            )
        if self.api_key is not None and not self.api_key.isascii():
            raise OptionError("api_key must be plain ASCII, as HTTP headers are. Choose another")
        if self.api_key == "":
            raise OptionError("api_key must not be empty. Leave it out to let everybody in")

    @property
    def model_name(self) -> str:
        """Return the name under which the Open Inference Protocol knows the model."""
        return self.name or self.folder.resolve().name

    @property
    def worker_count(self) -> int:
        """Return how many batches run at a time."""
        return self.workers or available_threads()
