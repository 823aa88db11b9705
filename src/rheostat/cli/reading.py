"""The options that say how labelled texts are read, in one place for all commands that read them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Protocol, get_type_hints

import typer

if TYPE_CHECKING:
    from rheostat.data import ReadOptions

# Name on the command line, what it is, default; in the order of the help.
OPTIONS: dict[str, tuple[Any, Any]] = {
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
            str | None, typer.Option(help="single-label, multi-label or regression; by default detected and stated.")
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


def reads_texts(*, without: tuple[str, ...] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the reading options in the place of its argument ``read``, a :class:`Reader`.

    Args:
        without: Names of options that make no sense for the command.
    """
    names = [name for name in OPTIONS if name not in without]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def wrapped(**values: Any) -> None:
            given = {name: values.pop(name) for name in names}
            command(read=partial(read_options, **given), **values)

        keyword = inspect.Parameter.KEYWORD_ONLY
        reading = [inspect.Parameter(n, keyword, default=OPTIONS[n][1], annotation=OPTIONS[n][0]) for n in names]
        hints = get_type_hints(command, include_extras=True)
        hints.pop("read")
        parameters: list[inspect.Parameter] = []
        for name, parameter in inspect.signature(command).parameters.items():
            own = [] if name == "read" else [parameter.replace(kind=keyword, annotation=hints[name])]
            parameters += own or reading
        wrapped.__name__, wrapped.__doc__ = command.__name__, command.__doc__
        wrapped.__annotations__ = {**hints, **{name: OPTIONS[name][0] for name in names}}
        wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return wrapped

    return decorate
