"""Run a server in this process: a socket, uvicorn, and an end that lets nobody down."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import logging.config
import signal
import socket
from typing import Any

from rheostat.errors import OptionError
from rheostat.serve.settings import ServeSettings
from rheostat.serve.telemetry import LOGGER, log_config

DRAIN_S = 30
KEEP_ALIVE_S = 75  # longer than clients and proxies keep idle connections, or both may let go of one at once
HEADER_BYTES = 64 << 10
LOG_LEVELS = ("debug", "info", "warning", "error")


def run_server(settings: ServeSettings, *, host: str = "127.0.0.1", port: int = 8000, log_level: str = "info") -> None:
    """Serve until SIGTERM or Ctrl-C; then take nothing new, answer what was taken, and return.

    Args:
        settings: Everything about the server.
        host: Address to listen on; loopback alone by default.
        port: Port; 0 for any free one, which the log's first line names.
        log_level: ``debug``, ``info``, ``warning`` (no line a request) or ``error``.

    Raises:
        RheostatError: anything that keeps it from starting.
        OSError: the address is in use.
    """
    import uvicorn

    from rheostat.serve.app import create_app
    from rheostat.serve.service import Service

    set_up_logs(log_level)
    logger = logging.getLogger(LOGGER)
    service = Service(settings)
    with bound(host, port) as listening:
        times = service.open()
        told = {
            "model": settings.model_name,
            "budgets": list(service.budgets),
            "slo_ms": settings.slo_ms,
            "workers": settings.worker_count,
            "worker_kind": settings.worker_kind,
            "threads": settings.threads,
            "times": times.source,
            "full_ms": {n: round(times.ms(times.budgets[0], 1, n), 2) for n in times.buckets},
        }
        logger.info("opened", extra={"fields": told})
        if not _is_loopback(host) and settings.api_key is None:
            logger.warning("everybody who reaches this address may ask: there is no API key")
        app = create_app(
            service,
            settings,
            labels=service.info.info.labels,
            engine=service.info.engine,
            metrics=service.metrics,
        )
        config = uvicorn.Config(
            app,
            http=_protocol(settings.read_timeout_s),
            ws="none",
            lifespan="on",
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_graceful_shutdown=DRAIN_S,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        url = f"http://{_shown(host)}:{listening.getsockname()[1]}"

        class Announced(uvicorn.Server):
            """Says when it listens."""

            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets=sockets)
                logger.info("ready", extra={"fields": {"url": url}})

        # uvicorn drains and then raises the signal again, for whoever handled it before: nobody needs to do more.
        before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            Announced(config).run(sockets=[listening])
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        logger.info("ended")


def set_up_logs(level: str) -> None:
    """Send logs to stderr as JSON lines.

    Raises:
        OptionError: unknown level.
    """
    if level not in LOG_LEVELS:
        raise OptionError(f"log_level must be one of {', '.join(LOG_LEVELS)}; got {level!r}. The default is info")
    logging.config.dictConfig(log_config(level))


def bound(host: str, port: int) -> socket.socket:
    """Return a socket bound to an address.

    Raises:
        OptionError: it is in use, or not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
    except (OSError, OverflowError) as error:
        found.close()
        raise OptionError(f"host and port must be free to listen on; {host}:{port}: {error}. Try --port 0") from None
    return found


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _protocol(read_timeout_s: float) -> Any:
    """Return uvicorn's protocol with what it lacks: a limit of time and size for what comes before the body."""
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    class Bounded(HttpToolsProtocol):
        """Closes connections that take too long, or too many bytes, to send the head of a request."""

        _timer: asyncio.TimerHandle | None = None
        _bytes = 0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._await_head()

        def _await_head(self) -> None:
            self._bytes = 0
            if self._timer is None:
                self._timer = self.loop.call_later(read_timeout_s, self._too_slow)

        def _too_slow(self) -> None:
            self._timer = None
            if self.transport is not None and not self.transport.is_closing():
                self.transport.close()

        def data_received(self, data: bytes) -> None:
            if self.cycle is None or self.cycle.response_complete:
                self._await_head()
            if self._timer is not None:
                self._bytes += len(data)
            super().data_received(data)
            if self._timer is not None and self._bytes > HEADER_BYTES and not self.transport.is_closing():
                self.send_400_response("Too large a head.")

        def on_headers_complete(self) -> None:
            self._stop()
            super().on_headers_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def _stop(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return Bounded
