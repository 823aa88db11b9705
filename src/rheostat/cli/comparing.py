"""`rheostat compare`: the budgeted model beside strong baselines, on equal data and counted epochs."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rheostat.budget import COMPARED_BUDGETS, parse_budgets
from rheostat.cli import options as shared
from rheostat.cli.reading import Reader, reads_texts
from rheostat.errors import OptionError

if TYPE_CHECKING:
    from rheostat.recipe import TrainOptions

DEFAULT_METHODS = "dense,dense-equal,post-hoc,recovered,fewer-layers,linear,sandwich"
DEFAULT_POINTS = ",".join(f"{budget:g}" for budget in COMPARED_BUDGETS)


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Example: rheostat compare --model encoder/ --data reviews.csv --out runs/compare --seeds 0,1")(
        compare
    )


@reads_texts()
def compare(
    model: Annotated[str, typer.Option(help="Folder or Hub name of a Hugging Face encoder.")],
    data: shared.DataSource,
    out: Annotated[Path, typer.Option(help="Folder of the comparison; the same call goes on where it stopped.")],
    methods: Annotated[
        str,
        typer.Option(
            help="Comma separated: dense, dense-equal, post-hoc, recovered, static, specialist, fewer-layers, linear, "
            "sandwich, straight-through, scratch, scratch-soft, soft."
        ),
    ] = DEFAULT_METHODS,
    budgets: shared.Budgets = DEFAULT_POINTS,
    seeds: Annotated[str, typer.Option(help="Comma separated; one run each.")] = "0",
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="An option of rheostat train, such as adapt_epochs=1."),
    ] = None,
    *,
    read: Reader,
    as_json: shared.AsJson = False,
) -> None:
    """Train every method at every budget and print one table: accuracy, points below dense, epochs, minutes, models.

    OUT keeps the dense and the budgeted checkpoints, the logits of all rows that were read, and table.json.
    """
    shared.needs_training_extra()
    from rheostat.compare import Comparison, lines_of, to_markdown
    from rheostat.console import stdout

    read_options = read()
    comparison = Comparison(model, data, out, chosen_options(setting or []), read_options)
    names = [name.strip() for name in methods.split(",")]
    readings = comparison.readings(names, parse_budgets(budgets), parse_seeds(seeds))
    lines = lines_of(readings)
    table = [line.to_json() for line in lines]
    (out / "table.json").write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    if as_json:
        shared.print_json(table)
    else:
        stdout.print(to_markdown(lines, readings[0].rows_of), markup=False, highlight=False, soft_wrap=True)


def parse_seeds(text: str) -> tuple[int, ...]:
    """Return the seeds of a comma-separated list, without repeats."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise OptionError(f"seeds must be whole numbers, comma separated; got {text!r}. Pass for example 0,1,2")
    return tuple(dict.fromkeys(map(int, parts)))


def chosen_options(settings: list[str]) -> TrainOptions:
    """Return the training options that ``NAME=VALUE`` settings change.

    Raises:
        OptionError: an unknown name, or a value that can't be read.
    """
    from rheostat.recipe import TrainOptions

    names = {field.name for field in dataclasses.fields(TrainOptions)} - {"seed", "budgets"}
    changes: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or name not in names:
            raise OptionError(f"--set must be NAME=VALUE with a name among {', '.join(sorted(names))}; got {setting!r}")
        default = getattr(TrainOptions(), name)
        changes[name] = _value(name, value.strip(), default)
    return TrainOptions(**changes)


def _value(name: str, text: str, default: object) -> Any:
    """Return ``text`` as what the option is: text, a number, true or false, or a list of budgets."""
    if isinstance(default, str):
        return text
    if isinstance(default, tuple):
        return parse_budgets(text)
    try:
        value = json.loads(text.lower())
    except ValueError:
        value = None
    if isinstance(default, bool) and isinstance(value, bool):
        return value
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if number and not isinstance(default, bool):
        whole = isinstance(default, int) or default is None
        if not whole or value == int(value):
            return int(value) if whole else float(value)
    kind = "true or false" if isinstance(default, bool) else "a number"
    raise OptionError(f"--set {name} must be {kind}; got {text!r}")
