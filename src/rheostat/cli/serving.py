"""`rheostat serve | escalation | bench-serve`: answer over HTTP, and find out how well that goes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rheostat.budget import parse_budget

Bundle = Annotated[Path, typer.Argument(help="Folder of a bundle.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(epilog="Example: rheostat serve bundle --slo-ms 50 --min-budget 0.25 --port 8000")(serve)


def serve(
    bundle: Bundle,
    slo_ms: Annotated[float, typer.Option(help="Time in which a request that names no deadline is answered.")] = 50.0,
    min_budget: Annotated[
        str | None, typer.Option(metavar="<float>", help="Smallest budget to spend; by default the bundle's smallest.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; only this machine by default.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 for any free one.")] = 8000,
    name: Annotated[str | None, typer.Option(help="Of the model under /v2; by default the folder's.")] = None,
    precision: Annotated[str, typer.Option(help="float32 or int8.")] = "float32",
    memory: Annotated[str, typer.Option(help="fast, or shared: one copy of the weights for all workers.")] = "fast",
    workers: Annotated[int | None, typer.Option(min=1, help="Batches at a time; by default one a core.")] = None,
    worker_kind: Annotated[
        str, typer.Option(help="process (a crash costs one, which comes back) or thread (less memory).")
    ] = "process",
    threads: Annotated[int, typer.Option(min=1, help="Threads of a batch.")] = 1,
    max_batch: Annotated[int, typer.Option(min=1, help="Most texts of a batch.")] = 8,
    window_ms: Annotated[
        float, typer.Option(min=0.0, help="How long a text waits for company while workers are busy.")
    ] = 1.0,
    max_queue: Annotated[int, typer.Option(min=1, help="Most texts that wait.")] = 256,
    max_texts: Annotated[int, typer.Option(min=1, help="Most texts of a request.")] = 256,
    max_bytes: Annotated[int, typer.Option(min=1, help="Most bytes of a request.")] = 1 << 20,
    read_timeout_s: Annotated[float, typer.Option(help="How long a client may take to send a request.")] = 10.0,
    api_key: Annotated[
        str | None, typer.Option(envvar="RHEOSTAT_API_KEY", help="What clients must send; best set as a variable.")
    ] = None,
    log_level: Annotated[
        str, typer.Option(help="debug, info (a line a request), warning or error; JSON lines on stderr.")
    ] = "info",
) -> None:
    """Serve a bundle over HTTP: a budget per request, and less compute per request as load rises."""
    from rheostat.serve.running import run_server
    from rheostat.serve.settings import ServeSettings

    settings = ServeSettings(
        folder=bundle,
        name=name,
        slo_ms=slo_ms,
        min_budget=None if min_budget is None else parse_budget(min_budget),
        precision=precision,
        memory=memory,
        workers=workers,
        worker_kind=worker_kind,
        threads=threads,
        max_batch=max_batch,
        window_ms=window_ms,
        max_queue=max_queue,
        max_texts=max_texts,
        max_bytes=max_bytes,
        read_timeout_s=read_timeout_s,
        api_key=api_key,
    )
    run_server(settings, host=host, port=port, log_level=log_level)
