"""The `rheostat` application: its commands, and how errors leave it."""

from __future__ import annotations

import sys

import typer
from rich.console import Console

from rheostat import __version__
from rheostat.cli import checkpoints, data, training
from rheostat.errors import RheostatError

USER_ERROR = 2
INTERRUPTED = 130

app = typer.Typer(
    name="rheostat",
    help="One transformer checkpoint with one knob: ask for a share of its compute, get exactly that.",
    epilog="Start with: rheostat demo",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


training.add_to(app)
checkpoints.add_to(app)
data.add_to(app)


def main() -> None:
    """Run the command line: exit 0, 2 for a user's mistake in one line on stderr, 130 after Ctrl-C."""
    try:
        app()
    except RheostatError as error:
        Console(stderr=True, soft_wrap=True).print(f"Error: {error}", style="red", markup=False, highlight=False)
        sys.exit(USER_ERROR)
    except KeyboardInterrupt as stopped:
        words = str(stopped) or "stopped"
        Console(stderr=True, soft_wrap=True).print(f"Interrupted: {words}", markup=False, highlight=False)
        sys.exit(INTERRUPTED)
