"""The `rheostat` application: its commands, and how errors leave it."""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import typer
from rich.console import Console
from typer.core import TyperGroup

from rheostat import __version__
from rheostat.cli import (
    certifying,
    checkpoints,
    comparing,
    data,
    exporting,
    ordering,
    reporting,
    reproducing,
    serving,
    training,
)
from rheostat.errors import RheostatError

USER_ERROR = 2
INTERRUPTED = 130

# The parent of typer's errors about the command line itself; typer exports only its children.
UsageError: Any = typer.BadParameter.__base__


class OneLineErrors(TyperGroup):
    """Commands whose errors are one line on stderr: exit 2 for a user's mistake, 130 after Ctrl-C."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; what it raises on purpose becomes a line."""
        try:
            return super().invoke(ctx)
        except RheostatError as error:
            leave(f"Error: {error}", USER_ERROR)
        except KeyboardInterrupt as stopped:
            leave(f"Interrupted: {stopped}" if str(stopped) else "Interrupted", INTERRUPTED)
        except OSError as error:  # a full disk, a folder that may not be written to
            if error.errno is None or error.errno == errno.EPIPE:
                raise
            leave(f"Error: {error}", USER_ERROR)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Parse and run; typer would print its own errors as boxes."""
        try:
            result = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except UsageError as error:
            if not standalone_mode:
                raise
            command = error.ctx.command_path if error.ctx is not None else "rheostat"
            message = error.format_message()
            if message:  # none where the help was asked for by giving nothing
                print_line(f"Error: {message.rstrip('.')}. See {command} --help")
            sys.exit(USER_ERROR)
        if standalone_mode:
            sys.exit(result if isinstance(result, int) else 0)
        return result


def print_line(text: str) -> None:
    """Print one line on stderr, whatever line breaks ``text`` has."""
    line = " ".join(text.split())
    Console(stderr=True, soft_wrap=True).print(line, style="red", markup=False, highlight=False)


def leave(text: str, code: int) -> NoReturn:
    """Print one line on stderr and exit."""
    print_line(text)
    raise typer.Exit(code)


app = typer.Typer(
    name="rheostat",
    cls=OneLineErrors,
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
ordering.add_to(app)
checkpoints.add_to(app)
certifying.add_to(app)
exporting.add_to(app)
serving.add_to(app)
reporting.add_to(app)
comparing.add_to(app)
reproducing.add_to(app)
data.add_to(app)


def main() -> None:
    """Run the command line: exit 0, 2 for a user's mistake in one line on stderr, 130 after Ctrl-C."""
    app()
