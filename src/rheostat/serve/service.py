"""From a request to its answer: tokens, queue, batches on workers, and the second run of what was unsure."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Awaitable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rheostat.budget import check_budget
from rheostat.bundle.manifest import BundleInfo, read_bundle_info
from rheostat.bundle.runtime import TEXT_TASKS
from rheostat.bundle.texts import TextEncoder
from rheostat.certify import read_certificates
from rheostat.checkpoint import task_of
from rheostat.errors import BudgetError, BusyError, CheckpointError, OptionError, RheostatError
from rheostat.measure import environment
from rheostat.predictions import Prediction, interpret
from rheostat.serve.answers import Answer, Ask, RowAnswer, Text
from rheostat.serve.escalation import Escalation, read_escalation
from rheostat.serve.policy import Policy, adaptive
from rheostat.serve.scheduler import TICK_MS, Batch, Row, Scheduler
from rheostat.serve.settings import ServeSettings
from rheostat.serve.telemetry import LOGGER, Metrics
from rheostat.serve.times import Times, bucket_of, buckets_of, certified_times, measured_times
from rheostat.serve.workers import Opening, Worker, WorkerLost, make_workers

logger = logging.getLogger(LOGGER)

TICK_S = TICK_MS / 1000.0
MAX_TRIES = 2  # a batch that kills two workers will kill the third
RESTART_S = 1.0  # between two tries to start a worker that can't be started
LONG_TEXT = 20_000  # characters: above, tokens are made beside the event loop, which would stop for milliseconds


@dataclass(eq=False)
class _Pending:
    """A request whose answer is being made."""

    count: int
    future: asyncio.Future[tuple[RowAnswer, ...]]
    escalate: bool
    answers: dict[int, RowAnswer] = field(default_factory=dict)


@dataclass(frozen=True)
class _Item:
    """What a row carries: its place in the request, its tokens, and the answer that it has already, if it is unsure."""

    pending: _Pending
    place: int
    encoding: Any
    unsure: Prediction | None = None


class Service:
    """Answers requests for one bundle. Open it, then ``begin`` inside the event loop; nothing here knows HTTP.

    Attributes:
        settings: What it was told.
        info: What the bundle holds.
        budgets: Those that it may spend, largest first.
        metrics: What it counts.
        escalation: What was calibrated for the bundle; None if nothing was, or not for these budgets.
    """

    def __init__(self, settings: ServeSettings, *, policy: Policy = adaptive) -> None:
        """Check the bundle; nothing is opened yet.

        Raises:
            CheckpointError: it is damaged.
            OptionError: no tokenizer, or a precision that it lacks.
            BudgetError: no budget at or above the smallest allowed.
        """
        folder = Path(settings.folder)
        self.settings, self.metrics, self._policy = settings, Metrics(), policy
        self.info: BundleInfo = read_bundle_info(folder)
        if self.info.tokenizer is None:
            raise OptionError(f"{str(folder)!r} must hold a tokenizer to serve texts; it does not. Export it with one")
        task = task_of(self.info.info)
        if task not in TEXT_TASKS:
            raise OptionError(f"the bundle must be of task {', '.join(TEXT_TASKS)} to be served; it is of {task}")
        held = [p.budget for p in self.info.points if settings.precision in p.graphs]
        if not held:
            raise OptionError(
                f"precision must be one that the bundle holds; got {settings.precision!r}. Export it with --int8"
            )
        least = held[-1] if settings.min_budget is None else check_budget(settings.min_budget)
        self.budgets = tuple(budget for budget in held if budget >= least - 1e-9)
        if not self.budgets:
            listed = ", ".join(f"{budget:g}" for budget in held)
            raise BudgetError(f"min_budget must be at most a budget of the bundle, {listed}; got {least:g}. Lower it")
        self._encoder = TextEncoder.of(folder, self.info.tokenizer)
        self.max_length = self._encoder.max_length
        self.escalation = self._usable(read_escalation(folder))
        self._workers: Sequence[Worker] = ()
        self._idle: list[Worker] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._scheduler: Scheduler | None = None
        self._pool = ThreadPoolExecutor(settings.worker_count + 1, thread_name_prefix="batch")  # threads when used
        self._closed = False
        self._late_ms: deque[float] = deque([0.0] * 3, maxlen=3)

    def _usable(self, found: Escalation | None) -> Escalation | None:
        known = found is not None and {found.first, found.full} <= set(self.budgets)
        return found if known and found is not None and found.precision == self.settings.precision else None

    # --- start and end -------------------------------------------------------------------------------------

    def open(self) -> Times:
        """Start the workers, and return the times that the controller goes by: certified ones, or measured now.

        Raises:
            RheostatError: the bundle can't be opened.
        """
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the threads of a request are those that were asked for
        asked = self.settings
        opening = Opening(Path(asked.folder), asked.precision, asked.memory, asked.threads, self.budgets)
        self._workers = make_workers(
            opening, kind=asked.worker_kind, count=asked.worker_count, run_timeout_s=asked.run_timeout_s
        )
        times = self._times()
        self._scheduler = Scheduler(
            times, self._policy, asked.slo_ms, len(self._workers), asked.max_queue, asked.window_ms
        )
        return times

    def _times(self) -> Times:
        buckets, runtime = buckets_of(self.max_length), self.info.engine
        if self.settings.precision != "float32":
            runtime += f"-{self.settings.precision}"
        try:
            known = read_certificates(Path(self.settings.folder))
        except CheckpointError as error:
            logger.warning("certificate ignored", extra={"fields": {"reason": str(error)}})
            known = []
        found = certified_times(
            known,
            environment(),
            budgets=self.info.budgets,
            opened=self.budgets,
            runtime=runtime,
            threads=self.settings.threads,
            buckets=buckets,
            max_batch=self.settings.max_batch,
        )
        if found is not None:
            return found

        def run(budget: float, rows: int, tokens: int) -> None:
            ids = np.ones((rows, tokens), dtype=np.int64)
            self._workers[0].run(budget, {"input_ids": ids, "attention_mask": np.ones_like(ids)})

        return measured_times(
            run, time.perf_counter, budgets=self.budgets, buckets=buckets, max_batch=self.settings.max_batch
        )

    async def begin(self) -> None:
        """Take requests from now on."""
        if self._scheduler is None:
            self.open()
        self._loop = asyncio.get_running_loop()
        self._idle = list(self._workers)
        self._spawn(self._tick())

    async def close(self) -> None:
        """Stop: what still waits gets a retryable error, and workers end."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._pool.shutdown(wait=True)
        for worker in self._workers:
            worker.close()

    @property
    def ready(self) -> bool:
        """Whether a worker can run a batch, now or when it is done with another."""
        return not self._closed and self._alive > 0

    @property
    def _alive(self) -> int:
        running = 0 if self._scheduler is None else self._scheduler.running
        return len(self._idle) + running

    @property
    def scheduler(self) -> Scheduler:
        """Return the queue.

        Raises:
            OptionError: the service is not open.
        """
        if self._scheduler is None:
            raise OptionError("the service must be open before it answers; it is not. Call open")
        return self._scheduler

    async def status(self) -> dict[str, Any]:
        """Return what the live view shows."""
        known, metrics = self.scheduler, self.metrics
        metrics.state(queue=known.queued, level=known.level.budget, pace=known.pace, workers=self._alive)
        return {
            "model": self.settings.model_name,
            "labels": list(self.info.info.labels),
            "budgets": list(self.budgets),
            "slo_ms": self.settings.slo_ms,
            "times": known.times.source,
            "level": known.level.budget,
            "queued": known.queued,
            "running": known.running,
            "pace": round(known.pace, 3),
            "lag_ms": round(self.lag_ms, 1),
            "escalation": None if self.escalation is None else vars(self.escalation),
            "workers": [worker.pid for worker in self._workers],
            "workers_ready": self._alive,
            **metrics.recent(),
        }

    # --- requests ------------------------------------------------------------------------------------------

    async def predict(self, ask: Ask) -> Answer:
        """Return the answer to a request; see :class:`rheostat.serve.answers.Answers`."""
        start = time.perf_counter()
        least, most = self._bounds(ask)
        self._refuse_early(len(ask.texts), ask.deadline_ms or self.settings.slo_ms)  # before the work of making tokens
        encodings = await self._encode(ask.texts)
        pending = _Pending(len(encodings), asyncio.get_running_loop().create_future(), ask.escalate)
        buckets = self.scheduler.times.buckets
        rows = [
            Row(pending, _Item(pending, i, encoding), bucket_of(len(encoding.ids), buckets), least, most)
            for i, encoding in enumerate(encodings)
        ]
        verdict = self.scheduler.offer(rows, self._now_ms(), ask.deadline_ms, waited_ms=self.lag_ms)
        if not verdict.admitted:
            raise self._refusal(verdict.reason, verdict.expected_ms, verdict.retry_after_ms)
        self._pump()
        try:
            answers = await pending.future
        except asyncio.CancelledError:
            self.scheduler.drop(pending)
            raise
        latency_ms = 1000.0 * (time.perf_counter() - start)
        self.metrics.answered([a.prediction.budget for a in answers], latency_ms, sum(a.escalated for a in answers))
        return Answer(answers, latency_ms)

    @property
    def lag_ms(self) -> float:
        """Return how long requests wait for the event loop: the least that it was late in three ticks.

        One hiccup is none; a loop that lacks processor time is late every time.
        """
        return min(self._late_ms)

    def _refuse_early(self, count: int, deadline_ms: float) -> None:
        known = self.scheduler
        if self.lag_ms >= deadline_ms:
            raise self._refusal("late", self.lag_ms, 1000.0)
        if known.queued and known.queued + count > known.max_queue:
            wait_ms = known.queued * known.times.ms(known.times.budgets[-1], 1, known.times.buckets[0]) / known.workers
            raise self._refusal("full", wait_ms, wait_ms)

    def _refusal(self, reason: str, expected_ms: float, retry_after_ms: float) -> BusyError:
        self.metrics.refused(reason)
        why = "the queue is full" if reason == "full" else "even the smallest budget would be late"
        return BusyError(
            f"the server must have time for the request; {why}: {expected_ms:.0f} ms expected. "
            "Ask again later, or with a longer deadline_ms or a smaller min_budget",
            retry_after_ms,
        )

    def _bounds(self, ask: Ask) -> tuple[float, float]:
        """Return the smallest and the largest budget that a request may get.

        Raises:
            BudgetError: there is none.
            OptionError: wishes that contradict each other.
        """
        times, listed = self.scheduler.times, ", ".join(f"{budget:g}" for budget in self.budgets)
        if ask.escalate:
            found = self.escalation
            if found is None:
                raise OptionError("escalate needs calibrated thresholds; this server has none. Run rheostat escalation")
            if ask.exact or ask.budget is not None or (ask.min_budget or 0.0) > found.first:
                raise OptionError(
                    f"escalate must come without budget and exact, and min_budget at most {found.first:g}; "
                    "it chooses budgets itself. Leave them out"
                )
            return found.first, found.first
        asked = 1.0 if ask.budget is None else check_budget(ask.budget)
        most = times.at_most(asked)
        if most is None or (ask.exact and abs(most - asked) > 1e-9 and ask.budget is not None):
            rule = "one of" if ask.exact else "at least the smallest of"
            raise BudgetError(f"budget must be {rule} the server's {listed}; got {asked!r}. Ask for another")
        if ask.exact:
            if ask.min_budget is not None and check_budget(ask.min_budget) > most:
                raise OptionError(f"min_budget must not be above an exact budget; got {ask.min_budget!r}. Leave it out")
            return most, most
        least = times.budgets[-1] if ask.min_budget is None else times.at_least(check_budget(ask.min_budget))
        if least is None or least > most:
            raise BudgetError(
                f"min_budget must leave a budget of the server's {listed} that is at most {most:g}; "
                f"got {ask.min_budget!r}. Lower it"
            )
        return least, most

    async def _encode(self, texts: Sequence[Text]) -> list[Any]:
        if not texts or len(texts) > self.settings.max_texts:
            raise OptionError(f"texts must be 1 to {self.settings.max_texts}; got {len(texts)}. Send several requests")
        if sum(len(part) for text in texts for part in ((text,) if isinstance(text, str) else text)) > LONG_TEXT:
            return await asyncio.to_thread(self._encoder.encode, texts)
        return self._encoder.encode(texts)

    # --- batches -------------------------------------------------------------------------------------------

    def _now_ms(self) -> float:
        return 1000.0 * time.perf_counter()

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tick(self) -> None:
        while True:
            start = time.perf_counter()
            await asyncio.sleep(TICK_S)
            self._late_ms.append(max(1000.0 * (time.perf_counter() - start - TICK_S), 0.0))
            for worker in [worker for worker in self._idle if not worker.alive]:
                self._idle.remove(worker)
                self._lost(worker, "it ended while idle")
            self.scheduler.tick(self._now_ms(), len(self._idle))
            self._pump()

    def _pump(self) -> None:
        """Give idle workers what waits."""
        for row in self.scheduler.overdue(self._now_ms()):
            self._fail(row, BusyError("the answer must be in time; its deadline passed. Ask again", 1.0, refused=False))
        while isinstance(step := self.scheduler.next_batch(self._now_ms(), len(self._idle)), Batch):
            self._spawn(self._run(self._idle.pop(), step))
        if isinstance(step, float) and self._timer is None:
            self._timer = self._loop.call_later(step / 1000.0, self._pump_again)

    def _pump_again(self) -> None:
        self._timer = None
        self._pump()

    async def _run(self, worker: Worker, batch: Batch) -> None:
        """Run one batch, hand out its answers, and take the next."""
        self.metrics.batch(len(batch.rows))
        start = time.perf_counter()
        arrays = self._encoder.pad([row.content.encoding for row in batch.rows])
        try:
            logits = await worker.answer(self._pool, batch.budget, arrays)
        except WorkerLost as lost:
            self.scheduler.finished(batch, None)
            for row in batch.rows:
                row.tries += 1
                if row.tries >= MAX_TRIES:
                    message = "a worker must survive the request; two did not. Ask again, or leave texts out"
                    self._fail(row, BusyError(message, 1000.0, refused=False))
                elif not row.content.pending.future.done():
                    self.scheduler.again(row)
            self._lost(worker, str(lost))
        except RheostatError as error:
            self.scheduler.finished(batch, None)
            self._idle.append(worker)
            for row in batch.rows:
                self._fail(row, error)
        else:
            self.scheduler.finished(batch, 1000.0 * (time.perf_counter() - start))
            self._idle.append(worker)
            for row, prediction in zip(batch.rows, interpret(logits, self.info.info, batch.budget), strict=True):
                self._take(row, prediction)
        self._pump()

    def _take(self, row: Row, prediction: Prediction) -> None:
        """Keep the answer of a row, or run it again where it is unsure and there is time."""
        item: _Item = row.content
        pending, rule = item.pending, self.escalation
        if pending.future.done():
            return
        if pending.escalate and rule is not None and item.unsure is None and prediction.score < rule.threshold:
            again = Row(
                pending,
                _Item(pending, item.place, item.encoding, prediction),
                row.bucket,
                rule.full,
                rule.full,
                row.arrived_ms,
                row.deadline_ms,
            )
            if self.scheduler.can_rerun(again, self._now_ms()):
                self.scheduler.again(again)
                return
        self._keep(item, prediction, escalated=item.unsure is not None)

    def _keep(self, item: _Item, prediction: Prediction, *, escalated: bool) -> None:
        """Take the answer of a row for good, and answer the request with its last one."""
        pending, encoding = item.pending, item.encoding
        truncated = bool(encoding.overflowing)
        pending.answers[item.place] = RowAnswer(prediction, len(encoding.ids), truncated, escalated)
        if len(pending.answers) == pending.count:
            pending.future.set_result(tuple(pending.answers[i] for i in range(pending.count)))

    def _fail(self, row: Row, error: RheostatError) -> None:
        """Give a request up, unless the row has the answer of a smaller budget already."""
        item: _Item = row.content
        if item.pending.future.done():
            return
        if item.unsure is not None:
            self._keep(item, item.unsure, escalated=False)
            return
        self.metrics.refused("overdue" if isinstance(error, BusyError) else "failed")
        item.pending.future.set_exception(error)
        self.scheduler.drop(item.pending)

    def _lost(self, worker: Worker, reason: str) -> None:
        logger.error("worker lost", extra={"fields": {"pid": worker.pid, "reason": reason}})
        self._spawn(self._revive(worker))

    async def _revive(self, worker: Worker) -> None:
        """Start a worker again until it works."""
        while not self._closed:
            try:
                await self._loop.run_in_executor(self._pool, worker.start)
            except (RheostatError, OSError) as error:
                logger.error("worker not started", extra={"fields": {"reason": str(error)}})
                await asyncio.sleep(RESTART_S)
                continue
            self.metrics.restarted()
            logger.info("worker started", extra={"fields": {"pid": worker.pid}})
            self._idle.append(worker)
            self._pump()
            return
