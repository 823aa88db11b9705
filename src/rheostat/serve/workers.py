"""Where batches run: a thread of the server, or a process of its own that may die and comes back."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rheostat.bundle import Bundle, open_bundle
from rheostat.bundle.engines import Arrays
from rheostat.errors import CheckpointError, OptionError, RheostatError

START_TIMEOUT_S = 120.0  # packing the weights of many budgets on a busy machine
CLOSE_TIMEOUT_S = 2.0
WORKER_NICE = 5  # the server must read and refuse in time even when batches would take every core


class WorkerLost(Exception):
    """A worker died, or did not answer, with a batch in its hands; the batch may run elsewhere."""


@dataclass(frozen=True)
class Opening:
    """How a worker opens the bundle; its files were checked before.

    Attributes:
        folder: The bundle.
        precision: Of its graphs.
        memory: See :func:`rheostat.open_bundle`.
        threads: Of a batch.
        budgets: Which points to open.
    """

    folder: Path
    precision: str
    memory: str
    threads: int
    budgets: tuple[float, ...]

    def open(self) -> Bundle:
        """Return the bundle, every graph run once so that the first request does not pay for it."""
        bundle = open_bundle(
            self.folder,
            precision=self.precision,
            memory=self.memory,
            threads=self.threads,
            budgets=self.budgets,
            verify=False,
        )
        for budget in self.budgets:
            bundle.run({"input_ids": np.ones((1, 8), dtype=np.int64)}, budget=budget)
        return bundle


class Worker(Protocol):
    """Runs one batch at a time."""

    @property
    def pid(self) -> int | None:
        """Return the id of the process that runs batches; None while there is none."""
        ...

    @property
    def alive(self) -> bool:
        """Whether it can run a batch, as far as can be seen."""
        ...

    def start(self) -> None:
        """Open the bundle, again if need be."""
        ...

    def run(self, budget: float, arrays: Arrays) -> NDArray[np.float32]:
        """Return the logits (B, C) of arrays (B, S)."""
        ...

    async def answer(self, pool: Executor, budget: float, arrays: Arrays) -> NDArray[np.float32]:
        """Return the same without blocking the event loop; ``pool`` has a thread for it."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class ThreadWorker:
    """Runs batches in the calling thread; workers of one server share the sessions."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle

    @property
    def pid(self) -> int | None:
        """Return the server's own process id."""
        return multiprocessing.current_process().pid

    @property
    def alive(self) -> bool:
        """Return True: it lives as long as the server."""
        return True

    def start(self) -> None:
        """Do nothing: the bundle is open."""

    def run(self, budget: float, arrays: Arrays) -> NDArray[np.float32]:
        """Return the logits (B, C) of arrays (B, S)."""
        return self._bundle.run(arrays, budget=budget)

    async def answer(self, pool: Executor, budget: float, arrays: Arrays) -> NDArray[np.float32]:
        """Return the same from a thread of ``pool``."""
        return await asyncio.get_running_loop().run_in_executor(pool, self.run, budget, arrays)

    def close(self) -> None:
        """Do nothing: the sessions go with the server."""


class ProcessWorker:
    """Runs batches in a process of its own, which :meth:`start` replaces after it died."""

    def __init__(self, opening: Opening, run_timeout_s: float) -> None:
        self._opening, self._run_timeout_s = opening, run_timeout_s
        self._process: Any = None
        self._pipe: Connection[Any, Any] | None = None

    @property
    def pid(self) -> int | None:
        """Return the process id; None while there is no process."""
        return None if self._process is None else self._process.pid

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and bool(self._process.is_alive())

    def start(self) -> None:
        """Start the process and wait until its bundle is open.

        Raises:
            CheckpointError: it could not open it.
        """
        self.close()
        context = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._opening), daemon=True)
        self._process.start()
        theirs.close()  # or its end would never be seen
        try:
            self._receive(START_TIMEOUT_S)
        except WorkerLost as error:
            raise CheckpointError(
                f"a worker must open {str(self._opening.folder)!r}; {error}. Export it again"
            ) from None

    def run(self, budget: float, arrays: Arrays) -> NDArray[np.float32]:
        """Return the logits (B, C) of arrays (B, S).

        Raises:
            WorkerLost: it died or took too long; start it again.
        """
        self._send(budget, arrays)
        found: NDArray[np.float32] = self._receive(self._run_timeout_s)
        return found

    async def answer(self, pool: Executor, budget: float, arrays: Arrays) -> NDArray[np.float32]:
        """Return the same; the event loop itself waits for the pipe, where it can: two threads less to wake.

        Raises:
            WorkerLost: it died or took too long; start it again.
        """
        loop = asyncio.get_running_loop()
        if sys.platform == "win32":  # its loops can't wait for a pipe
            return await loop.run_in_executor(pool, self.run, budget, arrays)
        self._send(budget, arrays)
        here: asyncio.Future[None] = loop.create_future()
        place = self._pipe.fileno() if self._pipe is not None else -1
        loop.add_reader(place, _wake, here)
        timer = loop.call_later(self._run_timeout_s, _wake, here)
        try:
            await here
        finally:
            timer.cancel()
            loop.remove_reader(place)
        found: NDArray[np.float32] = self._receive(0.0)
        return found

    def _send(self, budget: float, arrays: Arrays) -> None:
        if self._pipe is None:
            raise WorkerLost("it was not started")
        try:
            self._pipe.send((budget, dict(arrays)))
        except OSError as error:
            raise WorkerLost(str(error)) from None

    def _receive(self, timeout_s: float) -> Any:
        if self._pipe is None:
            raise WorkerLost("it was closed")
        try:
            if not self._pipe.poll(timeout_s):
                raise WorkerLost(f"no answer within {max(timeout_s, self._run_timeout_s):g} s")
            kind, content = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise WorkerLost(f"its process ended ({type(error).__name__})") from None
        if kind == "error":
            raise OptionError(content)
        return content

    def close(self) -> None:
        """End the process: it leaves by itself when its pipe closes, or is killed."""
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        if self._process is not None:
            self._process.join(CLOSE_TIMEOUT_S)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
            self._process.close()
            self._process = None


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


def _serve(pipe: Connection[Any, Any], opening: Opening) -> None:
    """Run batches until the pipe closes; what a worker process does."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # those are for the server, which closes the pipe when it has drained
    if hasattr(os, "nice"):
        os.nice(WORKER_NICE)
    try:
        bundle = opening.open()
        pipe.send(("ready", None))
        while True:
            budget, arrays = pipe.recv()
            try:
                pipe.send(("logits", bundle.run(arrays, budget=budget)))
            except RheostatError as error:
                pipe.send(("error", str(error)))
    except RheostatError as error:
        pipe.send(("error", str(error)))
    except (EOFError, OSError):
        return


def make_workers(opening: Opening, *, kind: str, count: int, run_timeout_s: float) -> Sequence[Worker]:
    """Return workers of a kind that are started: all of them, or an error.

    Raises:
        RheostatError: the bundle can't be opened.
    """
    if kind == "thread":
        shared = opening.open()
        return [ThreadWorker(shared) for _ in range(count)]
    workers = [ProcessWorker(opening, run_timeout_s) for _ in range(count)]
    try:
        for worker in workers:
            worker.start()
    except BaseException:
        for worker in workers:
            worker.close()
        raise
    return workers
