"""`rheostat report`: one page that shows what a checkpoint's budgets cost and give."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rheostat.cli import options as shared


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Example: rheostat report runs/agnews --comparison runs/compare --picture curve.png")(report)


def report(
    folder: Annotated[str, typer.Argument(help="Folder of a budgeted checkpoint.")],
    out: Annotated[Path, typer.Option(help="The HTML file.")] = Path("report.html"),
    comparison: Annotated[
        Path | None, typer.Option(help="Folder of a rheostat compare: its methods are shown beside the budgets.")
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="A PNG of the main plot too.")] = None,
) -> None:
    """Write one self-contained page: the curve, a budget slider, what each class pays, the certificate."""
    shared.needs_training_extra()
    from rheostat.console import stderr
    from rheostat.page import read_content, write_page, write_picture

    content = read_content(folder, comparison=comparison)
    written = write_page(content, out)
    stderr.print(f"Report: {written} ({written.stat().st_size / 1e6:.2f} MB)", markup=False, highlight=False)
    if picture is not None:
        stderr.print(f"Picture: {write_picture(content, picture)}", markup=False, highlight=False)
