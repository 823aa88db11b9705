"""What stands before the application: key, size and time limits, and a log line and a count for every request."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from rheostat.serve.telemetry import LOGGER, Metrics

logger = logging.getLogger(LOGGER)

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# What tells nothing about texts and load: for load balancers, and the page that then asks for the key.
OPEN_PATHS = frozenset(("/", "/healthz", "/readyz", "/v2/health/live", "/v2/health/ready"))


class Guards:
    """An ASGI application around another. Bodies reach the inner one whole, and never a byte above the limit."""

    def __init__(
        self, app: App, *, metrics: Metrics | None, api_key: str | None, max_bytes: int, read_timeout_s: float
    ) -> None:
        self.app, self._metrics = app, metrics
        self._key = None if api_key is None else api_key.encode("ascii")
        self._max_bytes, self._read_timeout_s = max_bytes, read_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, seen = time.perf_counter(), {"code": 0}

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                seen["code"] = message["status"]
            await send(message)

        try:
            await self._guarded(scope, receive, noted)
        finally:
            self._note(scope, seen["code"] or 499, 1000.0 * (time.perf_counter() - start))

    def _note(self, scope: Scope, code: int, ms: float) -> None:
        """Count and log a request; 499 is a client that went away."""
        route = scope.get("route")
        path = getattr(route, "path", None) or "other"  # never the path itself: anybody can make up millions
        if self._metrics is not None:
            self._metrics.request(path, code)
        if logger.isEnabledFor(logging.INFO):
            fields = {"method": scope["method"], "path": path, "status": code, "ms": round(ms, 2)}
            logger.info("request", extra={"fields": {**fields, **scope.get("told", {})}})

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        if self._key is not None and scope["path"] not in OPEN_PATHS and not self._is_known(headers):
            await refuse(send, 401, "the API key must be sent as Authorization: Bearer KEY, or as X-API-Key. Send it")
            return
        if headers.get(b"content-encoding", b"identity") != b"identity":
            await refuse(send, 415, "bodies must not be compressed. Send them plain")
            return
        slow = _Limit(self._read_timeout_s)
        try:
            body = await self._body(headers, receive)
        except asyncio.CancelledError:
            if not slow.reached:
                raise
            await refuse(send, 408, f"requests must be sent within {self._read_timeout_s:g} s. Send faster")
            return
        finally:
            slow.end()
        if body is None:
            await refuse(send, 413, f"bodies must be at most {self._max_bytes} bytes. Send several requests")
            return
        given = [{"type": "http.request", "body": body, "more_body": False}]

        async def whole() -> Message:
            return given.pop() if given else await receive()

        await self.app(scope, whole, send)

    def _is_known(self, headers: dict[bytes, bytes]) -> bool:
        """Compare in constant time: how long it takes must not tell how much of a guess is right."""
        sent = headers.get(b"x-api-key")
        if sent is None:
            scheme, _, sent = headers.get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer":
                sent = b""
        return hmac.compare_digest(sent, self._key or b"")

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes | None:
        """Return the body, or None where it is too long; a client that leaves ends it."""
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self._max_bytes:
            return None
        parts, size = [], 0
        while True:
            message = await receive()
            part = message.get("body", b"")
            size += len(part)
            if size > self._max_bytes:
                return None
            parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)


class _Limit:
    """Cancels the current task after a while; unlike ``wait_for`` it makes no task, which would wait for its turn."""

    def __init__(self, seconds: float) -> None:
        self.reached, self._task = False, asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._reach)

    def _reach(self) -> None:
        self.reached = True
        if self._task is not None:
            self._task.cancel()

    def end(self) -> None:
        """Cancel nothing from now on."""
        self._timer.cancel()


async def refuse(send: Send, code: int, message: str) -> None:
    """Send an error and ask for the connection to be closed: the rest of the body would be in the way."""
    content = json.dumps({"error": message}).encode("utf-8")
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    headers += [(b"connection", b"close")] + ([(b"www-authenticate", b"Bearer")] if code == 401 else [])
    await send({"type": "http.response.start", "status": code, "headers": headers})
    await send({"type": "http.response.body", "body": content})
