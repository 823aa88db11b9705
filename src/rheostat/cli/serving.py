"""`rheostat serve | escalation | bench-serve`: answer over HTTP, and find out how well that goes."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rheostat.budget import parse_budget
from rheostat.cli import options as shared
from rheostat.cli.reading import Reader, reads_texts
from rheostat.errors import missing

if TYPE_CHECKING:
    from rheostat.serve.load import LoadReport

Bundle = Annotated[Path, typer.Argument(help="Folder of a bundle.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(epilog="Example: rheostat serve bundle --slo-ms 50 --min-budget 0.25 --port 8000")(serve)
    app.command(epilog="Example: rheostat escalation bundle --data validation.csv --max-loss 0.5")(escalation)
    app.command(
        name="bench-serve",
        epilog="Example: rheostat bench-serve http://127.0.0.1:8000 --data test.csv --slo-ms 50 --capacity",
    )(bench_serve)


def needs_serving_extra() -> None:
    """Say how to install what serving needs, before an import fails with a traceback.

    Raises:
        MissingDependencyError: something is not installed.
    """
    for package in ("fastapi", "uvicorn", "httptools", "prometheus_client"):
        if find_spec(package) is None:
            raise missing(package, "serve")


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
    ray_replicas: Annotated[
        str | None, typer.Option(help="Run on Ray Serve with so many replicas, 2, or as many as load needs, 1-4.")
    ] = None,
    log_level: Annotated[
        str, typer.Option(help="debug, info (a line a request), warning or error; JSON lines on stderr.")
    ] = "info",
) -> None:
    """Serve a bundle over HTTP: a budget per request, and less compute per request as load rises."""
    needs_serving_extra()
    from rheostat.serve.running import run_server, set_up_logs
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
    if ray_replicas is not None:
        from rheostat.serve.on_ray import parse_replicas, run_on_ray

        set_up_logs(log_level)
        run_on_ray(settings, parse_replicas(ray_replicas), host=host, port=port)
        return
    run_server(settings, host=host, port=port, log_level=log_level)


@reads_texts(without=("task", "validation_share"))
def escalation(
    bundle: Bundle,
    data: Annotated[str, typer.Option(help="Labelled validation rows, which nothing was trained on.")],
    max_loss: Annotated[
        float, typer.Option(help="Most points of accuracy that may be lost against always answering at full budget.")
    ] = 0.5,
    confidence: Annotated[float, typer.Option(help="Probability that no more is lost, in (0, 1).")] = 0.95,
    precision: Annotated[str, typer.Option(help="float32 or int8: of the graphs that will answer.")] = "float32",
    save: Annotated[bool, typer.Option(help="Write escalation.json into the bundle.")] = True,
    *,
    read: Reader,
    as_json: shared.AsJson = False,
) -> None:
    """Calibrate when a small budget's answer is sure enough; requests then ask for it with escalate."""
    from rheostat.console import stdout
    from rheostat.serve.calibrating import calibrate_bundle

    found = calibrate_bundle(
        bundle, data, read(task="single-label"), max_loss=max_loss / 100.0, confidence=confidence, precision=precision
    )
    if save:
        found.save(bundle)
    if as_json:
        shared.print_json(vars(found))
        return
    stdout.print(
        f"budget {found.first:g} first, {found.full:g} where confidence is below {found.threshold:.4f}: "
        f"{100 * found.escalated:.1f} % of {found.rows:,} rows, mean cost {found.mean_share:.3f} of full, accuracy "
        f"{100 * found.accuracy:.2f} %, {100 * found.lost:.2f} points below always full; at most "
        f"{100 * found.harmed_bound:.2f} with {100 * found.confidence:g} % confidence",
        highlight=False,
        soft_wrap=True,
    )


@reads_texts(without=("task", "validation_share"))
def bench_serve(
    url: Annotated[str, typer.Argument(help="Of a running server, as its log says it.")],
    data: Annotated[str, typer.Option(help="Labelled rows to ask.")],
    rate: Annotated[float, typer.Option(help="Requests a second; with --capacity the first that is tried.")] = 50.0,
    seconds: Annotated[float, typer.Option(help="How long each rate is offered.")] = 20.0,
    slo_ms: Annotated[float, typer.Option(help="Time in which an answer counts.")] = 50.0,
    pattern: Annotated[str, typer.Option(help="poisson, or bursts of the same mean rate.")] = "poisson",
    capacity: Annotated[
        bool, typer.Option("--capacity", help="Find the highest rate at which p99 stays within the SLO.")
    ] = False,
    budget: shared.Budget = None,
    api_key: Annotated[str | None, typer.Option(envvar="RHEOSTAT_API_KEY", help="The server's key.")] = None,
    seed: shared.Seed = 0,
    *,
    read: Reader,
    as_json: shared.AsJson = False,
) -> None:
    """Offer load to a running server from a process of its own: latency, refusals, and accuracy under load."""
    from rheostat.console import stdout
    from rheostat.serve.capacity import find_capacity, offer_load, read_rows_file

    rows = read_rows_file(data, read(task="single-label"))
    wishes = {} if budget is None else {"budget": parse_budget(budget)}

    def offer(offered: float) -> LoadReport:
        return offer_load(
            url.rstrip("/"), rows, rate=offered, seconds=seconds, slo_ms=slo_ms, pattern=pattern, wishes=wishes,
            api_key=api_key, seed=seed,
        )[0]  # fmt: skip

    if capacity:
        found = find_capacity(offer, rate)
        reports = list(found.tried)
    else:
        reports = [offer(rate)]
    if as_json:
        content = [report.to_json() for report in reports]
        shared.print_json({"capacity": found.rate, "tried": content} if capacity else content[0])
        return
    for report in reports:
        stdout.print(told(report), markup=False, highlight=False, soft_wrap=True)
    if capacity:
        stdout.print(f"capacity {found.rate:.1f} requests/s", highlight=False, soft_wrap=True)


def told(report: LoadReport) -> str:
    """Return what one rate came to, as a line."""
    latency = report.latency_ms or {}
    parts = [
        f"{report.rate:.1f} requests/s ({report.pattern}): {100 * report.in_slo:.2f} % of {report.sent:,} answered "
        f"within {report.slo_ms:g} ms",
        f"p50 {latency['p50']:.1f} ms, p99 {latency['p99']:.1f} ms" if latency else "no answers",
        f"{report.refused:,} refused, {report.failed:,} failed",
    ]
    if report.accuracy is not None:
        parts.append(f"accuracy {100 * report.accuracy:.2f} %")
    if report.mean_budget is not None:
        parts.append(f"mean budget {report.mean_budget:.3f}")
    parts.append(f"generator {100 * report.generator_share:.1f} % of the processors, p99 {report.late_ms:.1f} ms late")
    return "; ".join(parts)
