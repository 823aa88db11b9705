"""The same application on Ray Serve: same answers, and a replica that dies costs no client anything."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from servers import BUDGETS, Server

from rheostat.errors import BusyError, OptionError
from rheostat.serve.on_ray import parse_replicas


@pytest.mark.parametrize("text", ["", "0", "-1", "2-1", "a", "1-2-3", "1.5", "0-3"])
def test_replicas_are_a_number_or_two(text: str) -> None:
    assert parse_replicas("3") == 3 and parse_replicas("1-4") == (1, 4)
    with pytest.raises(OptionError, match="replicas must be"):
        parse_replicas(text)


def test_a_refusal_survives_the_way_between_processes() -> None:
    found = pickle.loads(pickle.dumps(BusyError("not now", 1500.0, refused=False)))  # noqa: S301
    assert (str(found), found.retry_after_ms, found.refused) == ("not now", 1500.0, False)


@pytest.mark.slow
def test_two_replicas_give_the_same_answers_and_one_may_die(server: Server, serve_with: Callable[..., Any]) -> None:
    pytest.importorskip("ray")
    texts = ["awful word1", "great word2 word3", "", "middling"]
    with serve_with("--ray-replicas", "2") as found:
        for budget in BUDGETS:
            expected, got = (s.predict(*texts, budget=budget, exact=True) for s in (server, found))
            for one, other in zip(expected["predictions"], got["predictions"], strict=True):
                assert one["label"] == other["label"] and one["budget_served"] == other["budget_served"]
                assert one["confidence"] == pytest.approx(other["confidence"], abs=1e-5)
        assert found.post(texts=[], budget=0.5).status_code == 422
        assert found.post(texts=["a"], budget=0.7, exact=True).status_code == 422
        assert found.post(texts=texts * 60, deadline_ms=0.01).status_code == 429
        assert found.client.get(found.url + "/v2/models/news/ready").status_code == 200
        pids = set()
        end = time.monotonic() + 60
        while len(pids) < 2 and time.monotonic() < end:
            with ThreadPoolExecutor(4) as pool:
                pids |= {s["workers"][0] for s in pool.map(lambda _: found.status(), range(8))}
        assert len(pids) == 2
        stop = threading.Event()

        def ask(_: int) -> list[httpx.Response]:
            answers = []
            while not stop.is_set():
                answers.append(found.post(texts=texts * 10, deadline_ms=60_000))
            return answers

        with ThreadPoolExecutor(6) as pool:
            asked = [pool.submit(ask, i) for i in range(6)]
            time.sleep(1.0)
            os.kill(pids.pop(), signal.SIGKILL)
            time.sleep(5.0)
            stop.set()
            answers = [answer for future in asked for answer in future.result()]
        assert len(answers) > 20
        assert [a.text for a in answers if a.status_code != 200] == []
