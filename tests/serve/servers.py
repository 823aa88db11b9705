"""A server in a process of its own, reached over a real socket."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

BUDGETS = (1.0, 0.5, 0.03)
START_S = 120
SIZES = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
    "max_position_embeddings": 64,
}  # fmt: skip


@dataclass
class Server:
    """A running server: its address, its process, and every line that it logged."""

    url: str
    process: subprocess.Popen[str]
    lines: list[dict[str, Any]] = field(default_factory=list)
    client: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=60, verify=False))

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def post(self, path: str = "/predict", **content: Any) -> httpx.Response:
        return self.client.post(self.url + path, json=content)

    def predict(self, *texts: Any, **wishes: Any) -> dict[str, Any]:
        response = self.post(texts=list(texts), **wishes)
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get(self.url + "/status").json()
        return found

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["event"] == name]


@contextmanager
def serving(bundle: Path, *options: str, code: str | None = None) -> Iterator[Server]:
    """Run ``rheostat serve`` until the block ends, then end it as an operator would."""
    command = [sys.executable, "-m", "rheostat"] if code is None else [sys.executable, "-c", code]
    process = subprocess.Popen(
        [*command, "serve", str(bundle), "--port", "0", "--slo-ms", "5000", *options],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    server, ready = Server("", process), threading.Event()

    def listen() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            try:
                server.lines.append(json.loads(line))
            except ValueError:
                server.lines.append({"event": "no JSON", "text": line})
            if server.lines[-1]["event"] == "ready":
                server.url = server.lines[-1]["url"]
                ready.set()
        ready.set()

    reader = threading.Thread(target=listen, daemon=True)
    reader.start()
    try:
        assert ready.wait(START_S) and server.url, server.lines
        yield server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        server.client.close()
        reader.join(10)
        if process.stderr is not None:
            process.stderr.close()
