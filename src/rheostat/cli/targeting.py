"""The options that ask for a speed in the place of a budget, in one home for all commands that take budgets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from rheostat.cli.grouped import Command, Options, grouped
from rheostat.errors import OptionError

Speed = Annotated[
    str | None,
    typer.Option(
        metavar="<speed>",
        help="The largest budget that is this fast on this machine, for example 2x or 8ms; verified by measuring.",
    ),
]
Percentile = Annotated[
    int | None, typer.Option(help="Percent of calls that --target must hold for: 50 (the default), 90 or 95.")
]
CONDITIONS: Options = {
    "batch": (
        Annotated[int | None, typer.Option(min=1, help="Rows of a call that --target speaks of; by default 1.")],
        None,
    ),
    "length": (
        Annotated[int | None, typer.Option(min=1, help="Tokens of a row that --target speaks of; by default 128.")],
        None,
    ),
    "threads": (
        Annotated[int | None, typer.Option(min=1, help="Threads that --target speaks of; by default 1.")],
        None,
    ),
    "runtime": (
        Annotated[
            str | None,
            typer.Option(
                help="What --target speaks of: torch (the default), onnx, openvino, onnx-int8, openvino-int8."
            ),
        ],
        None,
    ),
}


@dataclass(frozen=True)
class AskedSpeed:
    """What ``--target`` and the options beside it said.

    Attributes:
        target: The target as it was typed, or None.
        percentile: See :func:`rheostat.certify.budget_for`.
        batch: Rows of a call.
        length: Tokens of a row.
        threads: Threads of a call.
        runtime: What runs the model.
    """

    target: str | None = None
    percentile: int | None = None
    batch: int | None = None
    length: int | None = None
    threads: int | None = None
    runtime: str | None = None

    def under(self, **conditions: Any) -> AskedSpeed:
        """Return the same under conditions that the command has options of its own for; nothing without a target."""
        return self if self.target is None else replace(self, **conditions)

    def budget(self, folder: str) -> float | None:
        """Return the largest budget that holds the target, and tell on stderr what was measured; None without one.

        Raises:
            OptionError: options that speak of a target, and none.
        """
        asked = {"batch": self.batch, "length": self.length, "threads": self.threads, "runtime": self.runtime}
        given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
        if self.target is None:
            named = [f"--{name}" for name in (*given, *(["percentile"] if self.percentile is not None else []))]
            if named:
                raise OptionError(f"{', '.join(named)} must come with --target; got none. Add for example --target 2x")
            return None
        from rheostat.certify import Conditions, budget_for, parse_target
        from rheostat.console import stderr
        from rheostat.measure import NO_SPEEDUP

        wanted = parse_target(self.target)
        percentile = 50 if self.percentile is None else self.percentile
        found = budget_for(folder, wanted, conditions=Conditions(**given), percentile=percentile)
        median, low, high = found.speedup or (1.0, 1.0, 1.0)
        speed = NO_SPEEDUP if found.verdict == NO_SPEEDUP else f"{median:.2f}x [{low:.2f}, {high:.2f}]"
        stderr.print(
            f"Budget {found.budget:.4f} holds {wanted}: {found.measured_ms:.2f} ms at the {found.percentile}th "
            f"percentile, {speed} ({found.conditions}).",
            highlight=False,
            soft_wrap=True,
        )
        return found.budget


def takes_target(*, without: tuple[str, ...] = ()) -> Callable[[Command], Command]:
    """Give a command ``--target`` and its conditions in the place of its argument ``speed``, an :class:`AskedSpeed`.

    Args:
        without: Conditions that the command has options of its own for.
    """
    conditions = {name: option for name, option in CONDITIONS.items() if name not in without}
    return grouped("speed", {"target": (Speed, None), **conditions, "percentile": (Percentile, None)}, AskedSpeed)
