"""Workers by themselves: the same logits from a thread and a process, and what goes wrong is told apart."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from servers import BUDGETS

from rheostat.errors import CheckpointError, OptionError
from rheostat.serve.workers import Opening, ProcessWorker, WorkerLost, make_workers

ARRAYS = {"input_ids": np.array([[2, 7, 9, 3]])}


@pytest.fixture
def opening(bundle: Path) -> Opening:
    return Opening(bundle, "float32", "fast", 1, BUDGETS)


def test_a_process_answers_as_a_thread_and_both_say_what_does_not_fit(opening: Opening) -> None:
    (thread,) = make_workers(opening, kind="thread", count=1, run_timeout_s=60)
    (process,) = make_workers(opening, kind="process", count=1, run_timeout_s=60)
    try:
        assert thread.pid == os.getpid() != process.pid and thread.alive and process.alive
        with ThreadPoolExecutor(1) as pool:
            for budget in BUDGETS:
                expected = thread.run(budget, ARRAYS)
                for worker in (thread, process):
                    assert np.array_equal(worker.run(budget, ARRAYS), expected)
                    assert np.array_equal(asyncio.run(worker.answer(pool, budget, ARRAYS)), expected)
            for worker in (thread, process):
                with pytest.raises(OptionError, match="must fit the model"):
                    worker.run(1.0, {"input_ids": np.array([[10_000]])})
                assert worker.run(1.0, ARRAYS).shape == (1, 2)  # and it lives on
            os.kill(process.pid or 0, signal.SIGKILL)
            with pytest.raises(WorkerLost, match=r"its process ended|Broken pipe"):
                asyncio.run(process.answer(pool, 1.0, ARRAYS))
            end = time.monotonic() + 10
            while process.alive:
                assert time.monotonic() < end
                time.sleep(0.01)
            process.start()
            assert process.run(1.0, ARRAYS).shape == (1, 2)
    finally:
        process.close()
    assert process.pid is None and not process.alive
    with pytest.raises(WorkerLost, match="not started"):
        process.run(1.0, ARRAYS)


def test_a_worker_that_takes_too_long_is_lost(opening: Opening) -> None:
    worker = ProcessWorker(opening, run_timeout_s=0.3)
    worker.start()
    try:
        os.kill(worker.pid or 0, signal.SIGSTOP)
        with pytest.raises(WorkerLost, match=r"no answer within 0\.3 s"):
            worker.run(1.0, ARRAYS)
        with ThreadPoolExecutor(1) as pool, pytest.raises(WorkerLost, match=r"no answer within 0\.3 s"):
            asyncio.run(worker.answer(pool, 1.0, ARRAYS))
        worker.start()  # kills what hangs
        worker.run(1.0, ARRAYS)
    finally:
        worker.close()


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_what_can_not_be_opened_is_said_at_the_start(opening: Opening, kind: str, tmp_path: Path) -> None:
    for broken in (replace(opening, memory="big"), replace(opening, folder=tmp_path / "none")):
        with pytest.raises((OptionError, CheckpointError), match=r"memory must be|does not exist"):
            make_workers(broken, kind=kind, count=2, run_timeout_s=60)
