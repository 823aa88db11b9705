"""One argument of a command for a group of options that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

Options = Mapping[str, tuple[Any, Any]]  # what it is and its default, by name, in the order of the help
Command = Callable[..., None]


def grouped(argument: str, options: Options, make: Callable[..., Any]) -> Callable[[Command], Command]:
    """Give a command the ``options`` in the place of ``argument``, which becomes ``make(**values of the options)``."""

    def decorate(command: Command) -> Command:
        def wrapped(**values: Any) -> None:
            given = {name: values.pop(name) for name in options}
            command(**{argument: make(**given)}, **values)

        keyword = inspect.Parameter.KEYWORD_ONLY
        group = [inspect.Parameter(n, keyword, default=d, annotation=a) for n, (a, d) in options.items()]
        hints = get_type_hints(command, include_extras=True)
        hints.pop(argument)
        parameters: list[inspect.Parameter] = []
        for name, parameter in inspect.signature(command).parameters.items():
            own = [] if name == argument else [parameter.replace(kind=keyword, annotation=hints[name])]
            parameters += own or group
        wrapped.__name__, wrapped.__doc__ = command.__name__, command.__doc__
        wrapped.__annotations__ = {**hints, **{name: annotation for name, (annotation, _) in options.items()}}
        wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return wrapped

    return decorate
