"""The FastAPI application: routes in, answers out. Who answers is passed in: this machine, or replicas elsewhere."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException as StarletteHTTPException

from rheostat import __version__
from rheostat.errors import BusyError, RheostatError
from rheostat.serve import inference_protocol as protocol
from rheostat.serve.answers import Answer, Answers, Ask
from rheostat.serve.guards import Guards
from rheostat.serve.plain import ErrorBody, MalformedError, PredictRequest, PredictResponse, read
from rheostat.serve.settings import ServeSettings
from rheostat.serve.telemetry import Metrics

ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorBody, "description": "No JSON, or no UTF-8."},
    401: {"model": ErrorBody, "description": "No API key, or a wrong one."},
    404: {"model": ErrorBody, "description": "Unknown model or path."},
    408: {"model": ErrorBody, "description": "The request was sent too slowly."},
    413: {"model": ErrorBody, "description": "The body is too long."},
    415: {"model": ErrorBody, "description": "A compressed body."},
    422: {"model": ErrorBody, "description": "A value that can't be used."},
    429: {"model": ErrorBody, "description": "Refused at once; Retry-After says when to ask again."},
    503: {"model": ErrorBody, "description": "The answer got lost; the same request may be sent again."},
}
READS: dict[int | str, dict[str, Any]] = {code: ERRORS[code] for code in (401, 408, 413, 415)}


class Gone(Exception):
    """The client left before its answer was there."""


def create_app(
    service: Answers,
    settings: ServeSettings,
    *,
    labels: tuple[str, ...],
    engine: str,
    metrics: Metrics | None = None,
) -> FastAPI:
    """Return the application.

    Args:
        service: Answers requests; started and closed with the application.
        settings: Limits and names.
        labels: Of the model.
        engine: Of the bundle.
        metrics: What ``/metrics`` shows; without any there is no such path.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await service.begin()
        yield
        await service.close()

    app = FastAPI(title="rheostat", version=__version__, lifespan=lifespan, redoc_url=None)
    app.add_middleware(
        Guards,
        metrics=metrics,
        api_key=settings.api_key,
        max_bytes=settings.max_bytes,
        read_timeout_s=settings.read_timeout_s,
    )
    _add_errors(app)
    _add_health(app, service)
    if metrics is not None:

        @app.get("/metrics", response_class=Response, responses=READS, tags=["operations"])
        async def prometheus() -> Response:
            """Return all counters as Prometheus reads them."""
            await service.status()
            return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    _add_plain(app, service, settings)
    _add_protocol(app, service, settings, labels, engine)
    return app


def error_response(code: int, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return an error as both interfaces write it: one line under ``error``."""
    return JSONResponse({"error": " ".join(message.split())}, code, dict(headers or {}))


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(RheostatError)
    async def ours(_: Request, error: RheostatError) -> JSONResponse:
        if isinstance(error, BusyError):
            seconds = str(max(1, math.ceil(error.retry_after_ms / 1000.0)))
            return error_response(429 if error.refused else 503, str(error), {"retry-after": seconds})
        return error_response(400 if isinstance(error, MalformedError) else 422, str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        return error_response(422, "; ".join(str(found["msg"]) for found in error.errors()))

    @app.exception_handler(StarletteHTTPException)
    async def http(_: Request, error: StarletteHTTPException) -> JSONResponse:
        return error_response(error.status_code, str(error.detail), error.headers)

    @app.exception_handler(Gone)
    async def gone(_: Request, __: Gone) -> Response:
        return Response(status_code=499)  # nobody reads it


def _add_health(app: FastAPI, service: Answers) -> None:
    async def live() -> dict[str, bool]:
        """Say that the server runs."""
        return {"live": True}

    async def ready() -> Response:
        """Say whether requests can be answered now."""
        code = 200 if service.ready else 503
        return Response(json.dumps({"ready": service.ready}), code, media_type="application/json")

    not_ready: dict[int | str, dict[str, Any]] = {503: {"description": "No worker is ready."}}
    for path in ("/healthz", "/v2/health/live"):
        app.add_api_route(path, live, tags=["operations"])
    for path in ("/readyz", "/v2/health/ready"):
        app.add_api_route(path, ready, tags=["operations"], responses=not_ready)

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def page() -> HTMLResponse:
        return HTMLResponse(files("rheostat.serve").joinpath("page.html").read_text("utf-8"))

    @app.get("/status", responses=READS, tags=["operations"])
    async def status() -> Response:
        """Return what the page shows: budgets, load, queue, latency and refusals of the last ten seconds."""
        return JSONResponse(await service.status())


def _body_of(model: Any, **changes: Any) -> dict[str, Any]:
    """Return the OpenAPI entry of a body that the route reads itself: strictly, and faster than FastAPI does."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    schema.pop("$defs", None)
    for name, limits in changes.items():
        schema["properties"][name].update(limits)
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _add_plain(app: FastAPI, service: Answers, settings: ServeSettings) -> None:
    @app.post(
        "/predict",
        responses={200: {"model": PredictResponse}, **ERRORS},
        openapi_extra=_body_of(PredictRequest, texts={"maxItems": settings.max_texts}),
        tags=["predict"],
    )
    async def predict(request: Request) -> Response:
        """Answer texts within a budget and a deadline."""
        answer = await answered(request, service, read(PredictRequest, await request.body()).ask())
        return Response(json.dumps(answer.to_json(), ensure_ascii=False), media_type="application/json")


async def answered(request: Request, service: Answers, ask: Ask) -> Answer:
    """Return the answer, unless the client leaves before it is there: then what waits for it is forgotten.

    Raises:
        Gone: the client left.
    """
    asking = asyncio.current_task()
    leaving = asyncio.ensure_future(_left(request))
    # No task of its own for the answer: a refusal then leaves in the same turn of the event loop in which it came.
    leaving.add_done_callback(lambda done: done.cancelled() or asking is None or asking.cancel())
    try:
        answer = await service.predict(ask)
    except asyncio.CancelledError:
        if leaving.done():
            raise Gone from None
        raise
    finally:
        leaving.cancel()
    request.scope["told"] = {"texts": len(answer.rows), "budget": answer.budget_served}
    return answer


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue


def _add_protocol(
    app: FastAPI, service: Answers, settings: ServeSettings, labels: tuple[str, ...], engine: str
) -> None:
    def check(model: str, version: str | None) -> None:
        if model != settings.model_name or version not in (None, protocol.VERSION):
            raise HTTPException(404, f"model must be {settings.model_name!r}, version {protocol.VERSION}. Ask for it")

    @app.get("/v2", tags=["protocol"])
    async def server() -> dict[str, Any]:
        """Describe the server."""
        return protocol.server_metadata()

    async def metadata(model: str, version: str | None = None) -> dict[str, Any]:
        """Describe the model."""
        check(model, version)
        return protocol.model_metadata(settings.model_name, engine, labels)

    async def ready(model: str, version: str | None = None) -> Response:
        """Say whether the model can answer now."""
        check(model, version)
        return Response(json.dumps({"ready": service.ready}), 200 if service.ready else 503, None, "application/json")

    async def infer(request: Request, model: str, version: str | None = None) -> Response:
        """Answer texts; JSON, or JSON followed by the bytes of tensors."""
        check(model, version)
        asked = protocol.parse_inference(await request.body(), request.headers.get(protocol.HEADER))
        body, headers = protocol.written(
            asked, await answered(request, service, asked.ask), model=settings.model_name, labels=labels
        )
        return Response(body, headers=dict(headers))

    told: dict[str, Any] = {"tags": ["protocol"]}
    missing = {**READS, 404: ERRORS[404]}
    for path in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
        app.add_api_route(path, metadata, responses=missing, **told)
        app.add_api_route(f"{path}/ready", ready, responses={**missing, 503: {"description": "Not ready."}}, **told)
        app.add_api_route(
            f"{path}/infer",
            infer,
            methods=["POST"],
            response_class=Response,
            responses=ERRORS,
            openapi_extra=_infer_body(),
            **told,
        )


def _infer_body() -> dict[str, Any]:
    """Return the OpenAPI entry of an inference request, its parts written out in place."""
    schema = protocol.InferRequest.model_json_schema()
    parts = schema.pop("$defs", {})

    def inlined(node: Any) -> Any:
        if isinstance(node, dict):
            if "$ref" in node:
                return inlined(parts[node["$ref"].rsplit("/", 1)[1]])
            return {name: inlined(value) for name, value in node.items()}
        return [inlined(part) for part in node] if isinstance(node, list) else node

    return {"requestBody": {"required": True, "content": {"application/json": {"schema": inlined(schema)}}}}
