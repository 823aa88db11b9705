"""A server over a real socket: right answers, wishes kept, and the same whatever runs beside it."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from servers import BUDGETS, SIZES, Server, serving
from tiny import tiny_budgeted, tiny_tokenizer

from rheostat.bundle import Bundle, open_bundle
from rheostat.bundle.texts import TextEncoder
from rheostat.certify import Certificate, Conditions, Fit, Sample
from rheostat.errors import OptionError
from rheostat.export import export
from rheostat.measure import environment
from rheostat.serve.settings import ServeSettings

TEXTS = ["awful word1", "great word2 word3 word4 unheard", "", "middling", "word1 word2 " * 9]


@pytest.fixture(scope="module")
def opened(bundle: Path) -> Bundle:
    return open_bundle(bundle)


# --- answers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", BUDGETS)
def test_answers_are_those_of_the_bundle(server: Server, opened: Bundle, budget: float) -> None:
    expected = opened.predict(TEXTS, budget=budget)
    found = server.predict(*TEXTS, budget=budget)
    assert [row["label"] for row in found["predictions"]] == [answer.label for answer in expected]
    for row, answer in zip(found["predictions"], expected, strict=True):
        assert row["confidence"] == pytest.approx(answer.score, abs=1e-5)
        assert row["probabilities"] == pytest.approx(answer.probabilities, abs=1e-5)
        assert row["budget_served"] == budget and not row["truncated"] and not row["escalated"]
    assert found["budget_served"] == budget and found["truncated"] == 0 and 0.0 < found["latency_ms"] < 60_000
    pair = server.predict(["awful", "great word1"])["predictions"][0]
    assert pair["confidence"] == pytest.approx(opened.predict([("awful", "great word1")])[0].score, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("options", [("--precision", "int8"), ("--memory", "shared"), ("--worker-kind", "thread")])
def test_other_ways_to_run_the_bundle_answer_as_it_does(tmp_path: Path, options: tuple[str, ...]) -> None:
    model = tiny_budgeted(tokenizer=tiny_tokenizer(tmp_path / "words", max_length=64), sizes=SIZES)
    export(model, tmp_path / "news", budgets=BUDGETS, int8="int8" in options, force=True)
    precision = "int8" if "int8" in options else "float32"
    # in int8 activations of a batch share a scale: neighbours and padding show
    near, clients = (0.05, 1) if "int8" in options else (1e-5, 4)
    with serving(tmp_path / "news", *options) as found, ThreadPoolExecutor(clients) as pool:
        bundle = open_bundle(tmp_path / "news", precision=precision)
        for budget in BUDGETS:
            expected = [bundle.predict([text], budget=budget)[0] for text in TEXTS]
            answers = list(pool.map(lambda text, b=budget: found.predict(text, budget=b), TEXTS))
            for answer, alone in zip(answers, expected, strict=True):
                (row,) = answer["predictions"]
                assert row["label"] == alone.label
                assert row["confidence"] == pytest.approx(alone.score, abs=near)
        assert found.events("opened")[0]["worker_kind"] == ("thread" if "thread" in options else "process")


def test_a_budget_between_points_gets_the_nearest_below_and_exact_refuses(server: Server) -> None:
    assert server.predict("awful", budget=0.7)["budget_served"] == 0.5
    refused = server.post(texts=["awful"], budget=0.7, exact=True)
    assert refused.status_code == 422 and "one of the server's 1, 0.5, 0.03; got 0.7" in refused.json()["error"]
    assert server.predict("awful", exact=True)["budget_served"] == 1.0
    assert server.predict("awful", budget=0.5, exact=True)["budget_served"] == 0.5
    assert server.predict("awful", budget=0.6, min_budget=0.4)["budget_served"] == 0.5
    for wishes in ({"budget": 0.02}, {"budget": 0.4, "min_budget": 0.3}, {"budget": 0.5, "min_budget": 0.7}):
        assert server.post(texts=["awful"], **wishes).status_code == 422


def test_a_text_of_ten_thousand_words_is_served_and_its_cut_is_counted(server: Server, opened: Bundle) -> None:
    long = "word1 " * 10_000
    found = server.predict("awful", long)
    assert found["truncated"] == 1 and [row["tokens"] for row in found["predictions"]] == [3, 32]
    assert [row["truncated"] for row in found["predictions"]] == [False, True]
    assert found["predictions"][1]["confidence"] == pytest.approx(opened.predict([long])[0].score, abs=1e-5)


def test_encoders_of_different_lengths_on_one_file_never_mix_them_up(bundle: Path) -> None:
    lengths = (4, 8, 12, 16, 24, 32, 48, 64)
    encoders = [TextEncoder(bundle / "tokenizer.json", pad_id=0, pad_type_id=0, max_length=n) for n in lengths]
    text = "word1 " * 100
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: len(encoders[i % 8].encode([text])[0].ids), range(3200)))
    assert found == [lengths[i % 8] for i in range(3200)]


def test_eight_clients_with_texts_of_different_lengths_each_get_their_own(server: Server) -> None:
    def ask(i: int) -> int:
        return int(server.predict("word1 " * (i % 30))["predictions"][0]["tokens"])

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(160))) == [i % 30 + 2 for i in range(160)]


def test_unbatched_in_one_process_two_budgets_at_once_answer_exactly_as_alone(
    serve_with: Callable[..., Any], opened: Bundle
) -> None:
    texts = ["awful word1", "great word2 word3", "middling", "word4 word5 word6 word7"]
    expected = {
        (text, budget): opened.predict([text], budget=budget)[0].probabilities
        for text in texts
        for budget in (0.03, 1.0)
    }
    with (
        serve_with("--worker-kind", "thread", "--max-batch", "1", "--log-level", "info") as found,
        httpx.Client(timeout=60) as client,
        ThreadPoolExecutor(2) as pool,
    ):

        def ask(budget: float) -> list[tuple[str, Any]]:
            answers = []
            for i in range(200):
                body = {"texts": [texts[i % 4]], "budget": budget, "exact": True}
                answers.append((texts[i % 4], client.post(found.url + "/predict", json=body).json()))
            return answers

        for budget, answers in zip((0.03, 1.0), pool.map(ask, (0.03, 1.0)), strict=True):
            assert len(answers) == 200
            for text, answer in answers:
                assert answer["budget_served"] == budget
                assert answer["predictions"][0]["probabilities"] == expected[text, budget]


def test_in_batches_the_labels_are_those_of_single_texts(server: Server, opened: Bundle) -> None:
    def ask(i: int) -> tuple[int, dict[str, Any]]:
        return i, server.predict(TEXTS[i % 5], budget=BUDGETS[i % 3], exact=True)

    alone = {(i % 5, i % 3): opened.predict([TEXTS[i % 5]], budget=BUDGETS[i % 3])[0] for i in range(15)}
    with ThreadPoolExecutor(16) as pool:
        for i, found in pool.map(ask, range(120)):
            row, expected = found["predictions"][0], alone[i % 5, i % 3]
            assert row["label"] == expected.label and row["budget_served"] == BUDGETS[i % 3]
            assert row["confidence"] == pytest.approx(expected.score, abs=1e-4)


# --- operations --------------------------------------------------------------------------------------------


def test_health_readiness_metrics_and_logs(server: Server) -> None:
    server.predict("awful", budget=0.5)
    for path, key in (("/healthz", "live"), ("/v2/health/live", "live"), ("/readyz", "ready")):
        assert httpx.get(server.url + path).json() == {key: True}
    text = httpx.get(server.url + "/metrics").text
    for name in (
        'rheostat_requests_total{code="200",path="/predict"}', 'rheostat_rows_total{budget="0.5"}',
        "rheostat_queue_rows 0.0", "rheostat_latency_seconds_bucket", "rheostat_budget_level 1.0",
        "rheostat_workers_ready 2.0", "rheostat_batch_rows_count",
    ):  # fmt: skip
        assert name in text, name
    line = server.events("request")[-1]
    assert {"time", "level", "method", "path", "status", "ms"} <= set(line)
    (asked,) = [line for line in server.events("request") if line.get("budget") == 0.5][-1:]
    assert (asked["path"], asked["texts"], asked["status"]) == ("/predict", 1, 200)
    assert not any("awful" in json.dumps(line) for line in server.lines)  # texts are nobody's business
    assert not server.events("no JSON")
    status = server.status()
    assert status["budgets"] == list(BUDGETS) and status["labels"] == ["bad", "good"] and len(status["workers"]) == 2


def test_it_listens_on_this_machine_alone_and_says_where_its_times_are_from(server: Server) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", server.url)
    (opened,) = server.events("opened")
    assert opened["times"] == "measured at the start" and opened["threads"] == 1
    assert opened["full_ms"]["32"] > 0.0 and list(opened["full_ms"]) == ["8", "16", "24", "32"]


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_no_process_of_the_server_loads_torch(server: Server) -> None:
    pids = [server.process.pid, *server.status()["workers"]]
    assert len(set(pids)) == 3
    for pid in pids:
        maps = Path(f"/proc/{pid}/maps").read_text()
        assert "onnxruntime" in maps or pid == server.process.pid
        assert "libtorch" not in maps and "transformers" not in maps
    assert "onnxruntime" not in Path(f"/proc/{server.process.pid}/maps").read_text()


def test_it_serves_where_torch_is_not_installed_with_a_key_and_certified_times(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as the server has it: a certificate is of such settings too
    copy = Path(shutil.copytree(bundle, tmp_path / "news"))
    fits = tuple(
        Fit(
            Conditions(b, n, 1, "onnx"), tuple(Sample((), (), 0.01 * b * n * s) for s in (1, 0.5, 0.2)), None, 0.01,
            None, {"90": 1.1, "95": 1.2},
        )
        for b in (1, 8)
        for n in (16, 64)
    )  # fmt: skip
    Certificate("here", {"kind": "bundle"}, environment(), fits).save(copy)
    heavy = ["torch", "transformers", "datasets", "onnx", "safetensors", "sklearn", "scipy", "accelerate"]
    code = f"import sys; sys.modules.update(dict.fromkeys({heavy!r}))\nfrom rheostat.cli import main; main()"
    with serving(copy, "--api-key", "secret", "--name", "other", "--min-budget", "0.4", code=code) as found:
        assert found.events("opened")[0]["times"] == "certificate 'here'"
        assert found.events("opened")[0]["budgets"] == [1.0, 0.5]
        assert found.events("opened")[0]["full_ms"]["32"] == 0.32
        assert httpx.get(found.url + "/readyz").status_code == httpx.get(found.url + "/").status_code == 200
        for headers in ({}, {"x-api-key": "secreT"}, {"authorization": "Bearer"}, {"authorization": "Basic secret"}):
            for path in ("/status", "/metrics", "/openapi.json", "/v2/models/other"):
                assert httpx.get(found.url + path, headers=headers).status_code == 401
        for headers in ({"x-api-key": "secret"}, {"authorization": "bearer secret"}):
            answer = httpx.post(found.url + "/predict", json={"texts": ["awful"], "budget": 0.6}, headers=headers)
            assert answer.json()["budget_served"] == 0.5
        assert httpx.get(found.url + "/v2/models/other", headers={"x-api-key": "secret"}).status_code == 200
        assert httpx.post(found.url + "/predict", json={"texts": ["a"], "budget": 0.1}).status_code == 401


def test_sigterm_lets_those_finish_who_were_let_in(serve_with: Callable[..., Any]) -> None:
    with (
        serve_with("--workers", "1", "--max-batch", "1", "--max-queue", "1000") as found,
        ThreadPoolExecutor(4) as pool,
    ):
        texts = ["word1 " * 60] * 250
        asked = [pool.submit(found.post, texts=texts, deadline_ms=60_000, exact=True) for _ in range(4)]
        until(lambda: found.status()["queued"] > 0)
        found.process.send_signal(signal.SIGTERM)
        answers = [future.result() for future in asked]
        assert [answer.status_code for answer in answers] == [200] * 4
        assert all(len(answer.json()["predictions"]) == 250 for answer in answers)
        assert found.process.wait(30) == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(found.url + "/healthz")
    assert found.events("ended")


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


# --- starting ----------------------------------------------------------------------------------------------


def started(bundle: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rheostat", "serve", str(bundle), "--port", "0", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_a_damaged_bundle_stops_the_start_with_one_line(bundle: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(bundle, tmp_path / "news"))
    weights = (copy / "weights.bin").read_bytes()
    (copy / "weights.bin").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    found = started(copy)
    assert found.returncode == 2 and found.stdout == ""
    assert re.fullmatch(r"Error: weights\.bin of .* is damaged: another SHA-256\. .*\n", found.stderr)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--min-budget", "2"), "budget must be"),
        (("--slo-ms", "0"), "slo_ms must be a number above 0"),
        (("--precision", "int8"), "precision must be one that the bundle holds"),
        (("--worker-kind", "fiber"), "worker_kind must be process or thread"),
        (("--log-level", "loud"), "log_level must be one of"),
        (("--host", "203.0.113.1"), "host and port must be free to listen on"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(bundle: Path, options: tuple[str, ...], message: str) -> None:
    found = started(bundle, *options)
    assert found.returncode == 2 and found.stderr.startswith("Error: ") and found.stderr.count("\n") == 1
    assert message in found.stderr


@pytest.mark.parametrize(
    "change",
    [
        {"window_ms": 50.0}, {"threads": 0}, {"max_batch": 0}, {"max_queue": 0}, {"max_texts": 0}, {"max_bytes": 0},
        {"workers": 0}, {"api_key": ""}, {"api_key": "é"}, {"read_timeout_s": float("nan")}, {"run_timeout_s": 0.0},
    ],
)  # fmt: skip
def test_settings_that_can_not_be_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(change))):
        ServeSettings(folder=Path("x"), **change)
