"""The same application on Ray Serve: replicas and autoscaling are Ray's, and what a dead replica lost is asked again.

Two deployments: ``front`` is the HTTP application, without a model; ``model`` is a :class:`Service` a replica, with
its own queue and controller. Predictions may be repeated at will, so the front asks again where a replica died.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import threading
from dataclasses import replace
from typing import Any

from rheostat.errors import BusyError, OptionError, RheostatError, missing
from rheostat.serve.answers import Answer, Ask
from rheostat.serve.running import bound
from rheostat.serve.service import Service
from rheostat.serve.settings import ServeSettings
from rheostat.serve.telemetry import LOGGER, Metrics

NAME = "rheostat"
TRIES, PAUSE_S = 6, 0.25  # a replica's death is known everywhere within a second
OPEN_REQUESTS = 1000  # of a replica; its own queue refuses long before
logger = logging.getLogger(LOGGER)


def parse_replicas(text: str) -> int | tuple[int, int]:
    """Return a number of replicas, or the fewest and the most between which Ray scales.

    >>> parse_replicas("2"), parse_replicas("1-4")
    (2, (1, 4))

    Raises:
        OptionError: anything else.
    """
    parts = text.split("-")
    if not all(part.isascii() and part.isdigit() for part in parts) or len(parts) > 2 or int(parts[0]) < 1:
        raise OptionError(f"replicas must be a number, or the fewest and the most; got {text!r}. Try 2 or 1-4")
    if len(parts) == 1:
        return int(parts[0])
    if int(parts[1]) < int(parts[0]):
        raise OptionError(f"replicas must be the fewest first; got {text!r}. Try {parts[1]}-{parts[0]}")
    return int(parts[0]), int(parts[1])


class Model:
    """A replica: opens the bundle, and answers."""

    def __init__(self, settings: ServeSettings) -> None:
        self._service = Service(settings)
        self._service.open()
        self._begun = False

    async def _ready(self) -> Service:
        if not self._begun:
            self._begun = True
            await self._service.begin()
        return self._service

    async def predict(self, ask: Ask) -> Answer | RheostatError:
        """Return the answer, or the error that is one: only the death of the replica is an exception."""
        try:
            return await (await self._ready()).predict(ask)
        except RheostatError as error:
            return error

    async def status(self) -> dict[str, Any]:
        """Return the live view of this replica."""
        return await (await self._ready()).status()

    def check_health(self) -> None:
        """Tell Ray whether this replica should be replaced.

        Raises:
            RuntimeError: it should.
        """
        if self._begun and not self._service.ready:
            raise RuntimeError("no worker is ready")


class Replicas:
    """Answers by asking replicas, and asks again where one died."""

    def __init__(self, handle: Any, lost: tuple[type[BaseException], ...]) -> None:
        self._handle, self._lost = handle, lost

    @property
    def ready(self) -> bool:
        """Whether there is anybody to ask; Ray starts replicas before it takes requests."""
        return True

    async def begin(self) -> None:
        """Do nothing: Ray started the replicas."""

    async def close(self) -> None:
        """Do nothing: Ray ends them."""

    async def _ask(self, method: str, *arguments: Any) -> Any:
        for _ in range(TRIES):
            try:
                return await getattr(self._handle, method).remote(*arguments)
            except self._lost as error:
                logger.warning("replica lost", extra={"fields": {"reason": type(error).__name__}})
                await asyncio.sleep(PAUSE_S)
        raise BusyError("a replica must answer; none does. Ask again", 1000.0, refused=False)

    async def predict(self, ask: Ask) -> Answer:
        """Return the answer of a replica; see :class:`rheostat.serve.answers.Answers`."""
        found = await self._ask("predict", ask)
        if isinstance(found, RheostatError):
            raise found
        answer: Answer = found
        return answer

    async def status(self) -> dict[str, Any]:
        """Return the live view of one replica."""
        found: dict[str, Any] = await self._ask("status")
        return found


def application(settings: ServeSettings, replicas: int | tuple[int, int], *, cpus: float = 1.0) -> Any:
    """Return the application for ``ray.serve.run``, under the name ``rheostat``.

    Args:
        settings: Of every replica. Batches run in threads of the replica: Ray replaces it when it dies.
        replicas: How many, or the fewest and the most.
        cpus: Cores that Ray sets aside for a replica.

    Raises:
        MissingDependencyError: Ray Serve is not installed.
        RheostatError: the bundle can't be served.
    """
    try:
        from ray import exceptions, serve
        from ray.serve import exceptions as serve_exceptions
    except ImportError as error:
        raise missing("ray", "ray") from error
    mine = replace(settings, worker_kind="thread", workers=settings.workers or 1)
    checked = Service(mine)  # what is wrong with the bundle is said here, and not by a replica that never starts
    labels, engine = checked.info.info.labels, checked.info.engine
    scale: dict[str, Any] = {"num_replicas": replicas}
    if isinstance(replicas, tuple):
        fewest, most = replicas
        scale = {"autoscaling_config": {"min_replicas": fewest, "max_replicas": most, "target_ongoing_requests": 4}}
    lost = (exceptions.RayActorError, exceptions.WorkerCrashedError, serve_exceptions.ReplicaUnavailableError)

    def front() -> Any:
        from rheostat.serve.app import create_app

        replicas = Replicas(serve.get_deployment_handle("model", app_name=NAME), lost)
        return create_app(replicas, mine, labels=labels, engine=engine, metrics=Metrics())

    options: dict[str, Any] = {"max_ongoing_requests": OPEN_REQUESTS}
    model = serve.deployment(
        Model, name="model", ray_actor_options={"num_cpus": cpus}, health_check_period_s=2, **options, **scale
    )
    ingress = serve.deployment(serve.ingress(front)(), name="front", ray_actor_options={"num_cpus": 0}, **options)
    return ingress.bind(model.bind(mine))


def _free_port(host: str) -> int:
    """Return a port that is free and not among those that systems hand out: Ray's own processes take many of them."""
    for port in random.SystemRandom().sample(range(20_000, 32_000), 50):
        try:
            bound(host, port).close()
        except OptionError:
            continue
        return port
    raise OptionError("port must be free; none of 50 was. Name one with --port")


def run_on_ray(settings: ServeSettings, replicas: int | tuple[int, int], *, host: str, port: int) -> None:
    """Start Ray on this machine if need be (or use the cluster of ``RAY_ADDRESS``), and serve until SIGTERM or Ctrl-C.

    Args:
        settings: Of every replica.
        replicas: How many, or the fewest and the most.
        host: Address to listen on.
        port: Port; 0 for any free one.

    Raises:
        MissingDependencyError: Ray Serve is not installed.
        RheostatError: anything that keeps it from starting.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    app = application(settings, replicas)
    import ray
    from ray import serve

    port = port or _free_port(host)
    bound(host, port).close()
    most = replicas if isinstance(replicas, int) else replicas[1]
    local: dict[str, Any] = {} if "RAY_ADDRESS" in os.environ else {"num_cpus": most + 1, "include_dashboard": False}
    ray.init(log_to_driver=False, logging_level=logging.WARNING, **local)
    try:
        serve.start(http_options={"host": host, "port": port})
        serve.run(app, name=NAME, route_prefix="/")
        ended = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: ended.set())
        logger.info("ready", extra={"fields": {"url": f"http://{host}:{port}", "replicas": replicas}})
        ended.wait()
    finally:
        serve.shutdown()
        ray.shutdown()
    logger.info("ended")
