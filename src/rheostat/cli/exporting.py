"""`rheostat export`: a checkpoint to a bundle that runs without torch."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rheostat.budget import parse_budgets, reachable
from rheostat.checkpoint import task_of
from rheostat.cli import options as shared
from rheostat.cli.reading import Reader, reads_texts
from rheostat.cli.targeting import AskedSpeed, takes_target

if TYPE_CHECKING:
    from rheostat.bundle import BundleInfo

DEFAULT_POINTS = "1.0,0.75,0.5,0.35,0.25"


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Example: rheostat export runs/agnews bundle --validate validation.csv --int8")(export)


@takes_target()
@reads_texts(without=("task", "validation_share"))
def export(
    folder: Annotated[str, typer.Argument(help="Folder of a budgeted checkpoint, or its Hub name.")],
    out: Annotated[Path, typer.Argument(help="Folder of the bundle.")],
    format: Annotated[str, typer.Option(help="onnx or openvino.")] = "onnx",
    budgets: shared.Budgets = DEFAULT_POINTS,
    validate: Annotated[str | None, typer.Option(help="Labelled rows that every graph is scored on.")] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Write int8 graphs too.")] = False,
    max_int8_drop: Annotated[
        float, typer.Option(min=0.0, help="Most points that int8 may score below float32 at the same budget.")
    ] = 0.5,
    force: Annotated[bool, typer.Option("--force", help="Write int8 graphs that score lower, or unmeasured.")] = False,
    *,
    speed: AskedSpeed,
    read: Reader,
    as_json: shared.AsJson = False,
) -> None:
    """Write one folder with one set of weights and a small graph a budget; open it with rheostat.open_bundle."""
    asked = parse_budgets(budgets)
    from rheostat.export import check_request  # tells first what is not installed
    from rheostat.export import export as run

    check_request(out, format, validate, int8=int8, max_int8_drop=max_int8_drop, force=force)
    at_target = speed.under(runtime=speed.runtime or format).budget(folder)
    model = shared.load_budgeted(folder)
    if budgets == DEFAULT_POINTS:  # of the usual ones those that can be reached
        asked = reachable(asked, model.floor)
    if at_target is not None:
        asked = (*asked, min(1.0, math.ceil(at_target * 1e6) / 1e6))  # six digits name a graph; no unit may be lost
    from rheostat.console import stdout

    read_options = read(task=task_of(model.info))
    info = run(
        model,
        out,
        format=format,
        budgets=asked,
        validate=validate,
        read_options=read_options,
        int8=int8,
        max_int8_drop=max_int8_drop,
        force=force,
    )
    if as_json:
        shared.print_json(info.to_json())
    else:
        stdout.print(summary(out, info), markup=False, highlight=False, soft_wrap=True)


def summary(out: Path, info: BundleInfo) -> str:
    """Return what was written: sizes, and a line a point."""
    files = {path.name: path.stat().st_size for path in out.iterdir() if path.is_file()}
    lines = [f"{out}: {sum(files.values()) / 1e6:.1f} MB, {files.get('weights.bin', 0) / 1e6:.1f} MB of them weights"]
    for point in info.points:
        graph = point.graphs["float32"]
        parts = [f"budget {point.budget:g}", f"share {point.share:.4f}", f"{files[graph.file] / 1e3:.0f} kB"]
        for precision, found in point.graphs.items():
            if found.quality is not None:
                parts.append(f"{precision} accuracy {100 * found.quality['accuracy']:.2f} %")
        fused = graph.operators.get("MultiHeadAttention", 0)
        parts += [f"{fused} fused attentions"] if fused else []
        lines.append(", ".join(parts))
    return "\n".join(lines)
