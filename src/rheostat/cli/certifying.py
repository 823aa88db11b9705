"""`rheostat certify`: what budgets mean in milliseconds on this machine."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Annotated

import typer

from rheostat.cli import options as shared
from rheostat.errors import OptionError

if TYPE_CHECKING:
    from rheostat.certify import Certificate, Fit


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Example: rheostat certify runs/agnews --batch 1,8 --length 128 --runtime torch,onnx")(certify)


def certify(
    folder: Annotated[str, typer.Argument(help="Folder of a budgeted checkpoint or a bundle.")],
    batch: Annotated[str, typer.Option(help="Rows a call; several, comma separated.")] = "1",
    length: Annotated[str, typer.Option(help="Tokens a row; several, comma separated.")] = "128",
    threads: Annotated[str, typer.Option(help="Threads a call; several, comma separated.")] = "1",
    runtime: Annotated[
        str, typer.Option(help="torch, onnx, openvino, onnx-int8, openvino-int8; several, comma separated.")
    ] = "torch",
    name: Annotated[str, typer.Option(help="Of the certificate: FOLDER/certificates/NAME.json.")] = "machine",
    points: Annotated[int, typer.Option(help="Subnets to measure; every second one is held out of the fit.")] = 24,
    rounds: Annotated[int, typer.Option(min=5, help="Rounds in which all subnets take turns.")] = 9,
    widths: Annotated[bool, typer.Option(help="Find out which widths pay, at the first conditions.")] = True,
    as_json: shared.AsJson = False,
) -> None:
    """Measure this machine: a latency model of every subnet, how well it predicts, and which widths pay."""
    from rheostat.certify import Conditions
    from rheostat.certify import certify as run
    from rheostat.console import stdout

    asked = [
        Conditions(batch=b, length=s, threads=t, runtime=r.strip())
        for r, t, s, b in product(
            runtime.split(","), _numbers("threads", threads), _numbers("length", length), _numbers("batch", batch)
        )
    ]
    with shared.measuring() as progress:
        certificate = run(
            folder,
            conditions=asked,
            name=name,
            points=points,
            rounds=rounds,
            widths=widths,
            progress=progress,
        )
    if as_json:
        shared.print_json(certificate.to_json())
    else:
        stdout.print(summary(certificate), markup=False, highlight=False, soft_wrap=True)


def _numbers(name: str, text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = [0]
    if min(found) < 1:
        raise OptionError(f"{name} must be whole numbers, 1 or more, comma separated; got {text!r}. Try 1,8")
    return found


def summary(certificate: Certificate) -> str:
    """Return what was found out: a paragraph for each set of conditions."""
    return "\n\n".join(_told(fit) for fit in certificate.fits)


def _told(fit: Fit) -> str:
    lines = [f"{fit.conditions}: full {fit.full_ms:.2f} ms, A/A noise {100 * fit.noise:.1f} %"]
    if fit.model is not None:
        m = fit.model
        lines += [
            f"  ms = {m.fixed_ms:.3f} + a layer with heads {m.first_head_ms:.3f}, a head {m.head_ms:.4f}, "
            f"a layer with neurons {m.first_neuron_ms:.3f}, 32 neurons {32 * m.neuron_ms:.4f} "
            f"(in steps of {m.neuron_step})",
            f"  median error on held-out subnets {100 * (fit.median_error or 0):.1f} % "
            f"({'within' if fit.holds else 'above'} {100 * fit.limit:.1f} %)",
        ]
    else:
        lines += [
            f"  {sample.ms:.2f} ms [{sample.low_ms:.2f}, {sample.high_ms:.2f}], {fit.full_ms / sample.ms:.2f}x"
            for sample in fit.samples
        ]
    if fit.widths:
        lines.append(f"  neurons a layer that pay: {', '.join(map(str, fit.widths))}")
    if fit.head_counts:
        lines.append(f"  heads a layer that pay: {', '.join(map(str, fit.head_counts))}")
    return "\n".join(lines)
