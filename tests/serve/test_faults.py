"""Bad input and faults over a real socket: mistakes are one line, and none keeps the server from the next request."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_up_times import LENGTHS, made_up
from servers import Server

from rheostat.errors import BusyError
from rheostat.serve.answers import Ask
from rheostat.serve.policy import adaptive
from rheostat.serve.scheduler import Batch, Row, Scheduler
from rheostat.serve.service import Service
from rheostat.serve.settings import ServeSettings
from rheostat.serve.times import bucket_of


def sent(server: Server, content: bytes, path: str = "/predict", **headers: str) -> httpx.Response:
    return server.client.post(
        server.url + path, content=content, headers={"content-type": "application/json"} | headers
    )


# --- bad input ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        (b"{", 400, "the body must be JSON"),
        (b"", 400, "the body must be JSON"),
        (b'{"texts": ["\xff"]}', 400, "the body must be JSON in UTF-8"),
        (b'{"texts": ["a"], "budget": NaN}', 422, "budget must be valid; input should be a finite number"),
        (b"[" * 100_000, 400, "the body must be JSON"),
        (b'{"texts": ["\\ud800"]}', 400, "the body must be JSON"),
        (b"null", 422, "the body must be valid"),
        (b"{}", 422, "texts must be valid; field required"),
        (b'{"texts": []}', 422, "texts must be valid"),
        (b'{"texts": "a"}', 422, "texts must be valid"),
        (b'{"texts": [1]}', 422, "texts.0 must be valid"),
        (b'{"texts": [null]}', 422, "texts.0 must be valid"),
        (b'{"texts": [["a", "b", "c"]]}', 422, "texts.0 must be valid"),
        (b'{"texts": ["a"], "budget": 0}', 422, "budget must be valid; input should be greater than 0"),
        (b'{"texts": ["a"], "budget": 2}', 422, "budget must be valid; input should be less than or equal to 1"),
        (b'{"texts": ["a"], "budget": "0.5"}', 422, "budget must be valid"),
        (b'{"texts": ["a"], "budget": true}', 422, "budget must be valid"),
        (b'{"texts": ["a"], "budget": 1e999}', 422, "budget must be valid"),
        (b'{"texts": ["a"], "budgt": 0.5}', 422, "budgt must be valid; extra inputs are not permitted"),
        (b'{"texts": ["a"], "exact": 1}', 422, "exact must be valid"),
        (b'{"texts": ["a"], "deadline_ms": -5}', 422, "deadline_ms must be valid"),
        (b'{"texts": ["a"], "min_budget": 0.5, "budget": 0.1}', 422, "min_budget must leave a budget"),
        (b'{"texts": ["a"], "escalate": true}', 422, "escalate needs calibrated thresholds"),
        (json.dumps({"texts": ["a"] * 1000}).encode(), 422, "texts must be 1 to 300; got 1000"),
    ],
)
def test_bad_input_is_one_line_that_names_it(server: Server, content: bytes, code: int, message: str) -> None:
    found = sent(server, content)
    assert found.status_code == code, found.text
    error = found.json()["error"]
    assert message in error and "\n" not in error
    assert server.predict("awful")["predictions"]


def test_what_else_is_refused(server: Server) -> None:
    assert sent(server, b"x" * (1 << 20) + b"x").status_code == 413
    assert sent(server, b"{}", **{"content-encoding": "gzip"}).status_code == 415
    for path, method in (("/nothing", "GET"), ("/v2/models/olds", "GET"), ("/v2/models/news/versions/7/ready", "GET")):
        found = server.client.request(method, server.url + path)
        assert found.status_code == 404 and found.json()["error"]
    assert server.client.get(server.url + "/predict").status_code == 405
    assert sent(server, b"{}", "/v2/models/olds/infer").status_code == 404

    def chunks() -> Any:  # without a length, and far too long
        for _ in range(40):
            yield b"x" * (1 << 16)

    assert server.client.post(server.url + "/predict", content=chunks()).status_code == 413


def test_a_deadline_that_can_not_be_met_is_refused_at_once(server: Server) -> None:
    found = server.post(texts=["word1 " * 30] * 250, deadline_ms=0.5)
    assert found.status_code == 429 and int(found.headers["retry-after"]) >= 1
    assert "even the smallest budget would be late" in found.json()["error"]
    tight = server.status()["slo_ms"]
    assert tight == 5000.0


# --- clients that misbehave --------------------------------------------------------------------------------

HEAD = b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n"


def closed_after(connection: socket.socket, seconds: float, byte: bytes) -> tuple[float, bytes]:
    """Send one byte now and then until the server closes; how long that took, and what it said."""
    start, said = time.monotonic(), b""
    connection.settimeout(0.2)
    while time.monotonic() - start < seconds:
        try:
            connection.sendall(byte)
            part = connection.recv(4096)
            if not part:
                return time.monotonic() - start, said
            said += part
        except TimeoutError:
            continue
        except OSError:
            return time.monotonic() - start, said
    raise AssertionError("the connection stayed open")


@pytest.mark.parametrize(("head", "answer"), [(b"", b""), (b"POST /", b""), (HEAD, b"408")])
def test_a_client_that_sends_a_byte_now_and_then_is_cut_off(server: Server, head: bytes, answer: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as slow:
        slow.sendall(head)
        assert server.predict("awful")["predictions"]  # others are served meanwhile
        took, said = closed_after(slow, 20.0, b"x" if head else b"")
        assert 0.5 < took < 15.0 and answer in said
    assert server.predict("awful")["predictions"]


def test_heads_without_end_are_refused(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as long:
        long.settimeout(10)
        try:
            for _ in range(100):
                long.sendall(b"POST /predict HTTP/1.1\r\n" + b"x-a: " + b"a" * 4000 + b"\r\n")
            said = long.recv(4096)
        except OSError:
            said = b"400"
        assert b"400" in said
    assert server.predict("awful")["predictions"]


def test_a_client_that_leaves_is_forgotten(serve_with: Callable[..., Any]) -> None:
    with serve_with("--workers", "1", "--max-batch", "1", "--max-queue", "2000") as found:
        body = json.dumps({"texts": ["word1 " * 30] * 250, "deadline_ms": 600_000}).encode()
        for _ in range(4):
            with socket.create_connection(("127.0.0.1", found.port)) as leaving:
                leaving.sendall(HEAD.replace(b"1000", str(len(body)).encode()) + body)
                until(lambda: found.status()["queued"] > 100)
            until(lambda: found.status()["queued"] == 0, seconds=20)
        assert found.predict("awful")["predictions"]
        assert found.status()["answered"] == 1


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


# --- load --------------------------------------------------------------------------------------------------


def test_five_hundred_requests_at_once_against_a_queue_of_fifty(serve_with: Callable[..., Any]) -> None:
    options = ("--workers", "1", "--max-batch", "1", "--max-queue", "50", "--window-ms", "0")
    limits = httpx.Limits(max_connections=500, max_keepalive_connections=500)
    with serve_with(*options) as found, httpx.Client(timeout=120, verify=False, limits=limits) as client:
        gate = threading.Barrier(100)

        def ask(_: int) -> list[httpx.Response]:
            gate.wait()
            body = {"texts": ["word1 " * 30] * 10, "deadline_ms": 20_000}
            return [client.post(found.url + "/predict", json=body) for _ in range(5)]

        with ThreadPoolExecutor(100) as pool:
            answers = [answer for part in pool.map(ask, range(100)) for answer in part]
        codes = [answer.status_code for answer in answers]
        assert len(codes) == 500 and set(codes) == {200, 429}
        for answer in answers:
            if answer.status_code == 429:
                assert int(answer.headers["retry-after"]) >= 1
            else:
                assert answer.json()["latency_ms"] <= 20_000
                assert set(row["budget_served"] for row in answer.json()["predictions"]) <= {1.0, 0.5, 0.03}
        refusals = sorted(line["ms"] for line in found.events("request") if line["status"] == 429)
        assert refusals[len(refusals) // 2] < 50.0
        assert found.status()["queued"] == 0 and found.predict("awful")["predictions"]


@given(
    st.lists(
        st.tuples(
            st.floats(0, 5), st.sampled_from(LENGTHS), st.sampled_from([(0.25, 1.0), (0.5, 0.5), (1.0, 1.0)]),
            st.sampled_from([10.0, 50.0, 1000.0]),
        ),
        min_size=1, max_size=60,
    )
)  # fmt: skip
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_batches_never_mix_budgets_or_distant_lengths_and_no_row_is_lost(asked: list[Any]) -> None:
    scheduler = Scheduler(made_up(), adaptive, 50.0, 2, 40, 1.0)
    now, admitted, served, gone = 0.0, 0, 0, 0
    running: list[Batch] = []
    for wait, length, (least, most), deadline in asked:
        now += wait
        row = Row(object(), None, bucket_of(length, scheduler.times.buckets), least, most)
        admitted += scheduler.offer([row], now, deadline).admitted
        gone += len(scheduler.overdue(now))
        assert scheduler.queued <= 40
        if len(running) == 2:
            scheduler.finished(running.pop(0), 5.0)
        step = scheduler.next_batch(now, 2 - len(running))
        if isinstance(step, Batch):
            running.append(step)
            served += len(step.rows)
            assert {r.bucket for r in step.rows} == {step.bucket} and len(step.rows) <= 8
            assert all(r.least <= step.budget <= r.most for r in step.rows)
            assert [r.deadline_ms for r in step.rows] == sorted(r.deadline_ms for r in step.rows)
    assert admitted == served + gone + scheduler.queued


def test_time_that_requests_waited_before_they_were_seen_counts() -> None:
    for waited, admitted in ((0.0, True), (30.0, True), (60.0, False)):
        scheduler = Scheduler(made_up(), adaptive, 50.0, 2, 40, 1.0)
        row = Row(object(), None, 64, 0.25, 1.0)
        assert scheduler.offer([row], 100.0, 50.0, waited_ms=waited).admitted is admitted
        assert (row.arrived_ms, row.deadline_ms) == (100.0 - waited, 150.0 - waited)


def test_a_server_whose_event_loop_lacks_time_refuses_and_one_hiccup_changes_nothing(bundle: Path) -> None:
    async def ask(hiccups: int) -> float:
        service = Service(ServeSettings(bundle, slo_ms=50.0, worker_kind="thread", workers=1))
        service.open()
        await service.begin()
        try:
            for _ in range(hiccups):
                time.sleep(0.5)  # in the loop's own thread
                await asyncio.sleep(0.05)
            lag = service.lag_ms
            if hiccups > 3:
                with pytest.raises(BusyError, match="would be late"):
                    await service.predict(Ask(["awful"]))
            return lag
        finally:
            await service.close()

    assert asyncio.run(ask(8)) > 100.0
    assert asyncio.run(ask(1)) == 0.0


def test_an_idle_server_never_waits_and_a_busy_one_waits_a_window_for_company() -> None:
    scheduler = Scheduler(made_up(), adaptive, 50.0, 2, 40, 2.0)
    scheduler.offer([Row(object(), None, 64, 0.25, 1.0)], 0.0)
    first = scheduler.next_batch(0.0, 2)
    assert isinstance(first, Batch)
    scheduler.offer([Row(object(), None, 64, 0.25, 1.0)], 1.0)
    assert scheduler.next_batch(1.0, 1) == 2.0
    scheduler.offer([Row(object(), None, 64, 0.25, 1.0)], 2.0)
    second = scheduler.next_batch(3.0, 1)
    assert isinstance(second, Batch) and len(second.rows) == 2
    assert scheduler.next_batch(3.0, 0) is None


# --- workers that die --------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")
def test_a_worker_that_is_killed_while_nobody_asks_comes_back_too(serve_with: Callable[..., Any]) -> None:
    with serve_with("--workers", "1") as found:
        (before,) = found.status()["workers"]
        os.kill(before, signal.SIGKILL)
        until(lambda: found.status()["workers_ready"] == 0)
        assert found.client.get(found.url + "/readyz").status_code == 503
        waited = found.predict("awful", deadline_ms=60_000)  # waits for the new one
        assert waited["budget_served"] == 1.0 and found.status()["workers"] != [before]
        assert found.client.get(found.url + "/readyz").status_code == 200


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")
def test_a_killed_worker_comes_back_and_costs_no_wrong_answer(serve_with: Callable[..., Any]) -> None:
    with serve_with("--max-queue", "2000") as found, ThreadPoolExecutor(4) as pool:
        before = found.status()["workers"]
        expected = found.predict("word1 " * 20)["predictions"][0]["confidence"]
        stop = threading.Event()

        def ask(_: int) -> list[httpx.Response]:
            answers = []
            while not stop.is_set():
                answers.append(found.post(texts=["word1 " * 20] * 30, deadline_ms=60_000, exact=True))
            return answers

        asked = [pool.submit(ask, i) for i in range(4)]
        time.sleep(0.3)
        for pid in before:  # one after the other: for a moment there may be none
            os.kill(pid, signal.SIGKILL)
            time.sleep(0.2)
        until(lambda: found.status()["workers_ready"] == 2 and not set(found.status()["workers"]) & set(before))
        stop.set()
        answers = [answer for future in asked for answer in future.result()]
        assert answers and {answer.status_code for answer in answers} <= {200, 503}
        for answer in answers:
            if answer.status_code == 503:
                assert int(answer.headers["retry-after"]) >= 1 and "Ask again" in answer.json()["error"]
            else:
                for row in answer.json()["predictions"]:
                    assert row["confidence"] == pytest.approx(expected, abs=1e-4)
        assert sum(answer.status_code == 200 for answer in answers) > len(answers) / 2
        assert found.predict("word1 " * 20)["predictions"][0]["confidence"] == pytest.approx(expected, abs=1e-5)
        assert len(found.events("worker lost")) >= 1
        assert "rheostat_worker_restarts_total 2.0" in httpx.get(found.url + "/metrics").text
