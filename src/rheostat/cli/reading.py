"""The options that say how labelled texts are read, in one place for all commands that read them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from rheostat.cli.grouped import Command, Options, grouped

if TYPE_CHECKING:
    from rheostat.data import ReadOptions

OPTIONS: Options = {
    "text_column": (Annotated[str, typer.Option(help="Column with the text.")], "text"),
    "text_pair_column": (Annotated[str | None, typer.Option(help="Column with the second text of a pair.")], None),
    "label_column": (Annotated[str, typer.Option(help="Column with the label.")], "label"),
    "encoding": (Annotated[str, typer.Option(help="Encoding of the file, for example cp1252 or utf-16.")], "utf-8"),
    "delimiter": (
        Annotated[
            str | None, typer.Option(help="Delimiter of a CSV file; 'tab' for tabs. By default from the ending.")
        ],
        None,
    ),
    "no_header": (
        Annotated[
            bool,
            typer.Option(
                "--no-header",
                help="The first row is data; name columns by number from 1 (default: text first, label last).",
            ),
        ],
        False,
    ),
    "task": (
        Annotated[
            str | None,
            typer.Option(
                help="single-label, multi-label or regression, by default detected and stated; token-classification "
                "(a label a word); causal-lm or embedding, which read texts alone."
            ),
        ],
        None,
    ),
    "label_separator": (Annotated[str | None, typer.Option(help="Splits a label cell into several labels.")], None),
    "no_quotes": (
        Annotated[
            bool, typer.Option("--no-quotes", help="Quote characters are plain text (files written without quoting).")
        ],
        False,
    ),
    "validation_share": (
        Annotated[float, typer.Option(help="Share of the training rows held out when there is no validation file.")],
        0.1,
    ),
}


class Reader(Protocol):
    """Makes the reading options that the command line gave; what a command knows itself it adds by name."""

    def __call__(self, **known: Any) -> ReadOptions:
        """Return the options."""
        ...


def read_options(*, no_header: bool = False, no_quotes: bool = False, **same: Any) -> ReadOptions:
    """Return reading options from their names on the command line; all but the two flags keep their names."""
    from rheostat.data import ReadOptions

    return ReadOptions(header=not no_header, quotes=not no_quotes, **same)


def reads_texts(*, without: tuple[str, ...] = ()) -> Callable[[Command], Command]:
    """Give a command the reading options in the place of its argument ``read``, a :class:`Reader`.

    Args:
        without: Names of options that make no sense for the command.
    """
    options = {name: option for name, option in OPTIONS.items() if name not in without}
    return grouped("read", options, lambda **given: partial(read_options, **given))
