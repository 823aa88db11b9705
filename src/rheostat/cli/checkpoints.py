"""`rheostat evaluate | materialize | predict | encode | measure`: what one does with a checkpoint."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rheostat.budget import DEFAULT_BUDGETS, parse_budgets
from rheostat.checkpoint import check_replaceable, task_of
from rheostat.cli import options as shared
from rheostat.cli.reading import Reader, reads_texts
from rheostat.cli.targeting import AskedSpeed, takes_target
from rheostat.errors import OptionError

if TYPE_CHECKING:
    from rheostat.report import OperatingPoint

DEFAULT_GRID = ",".join(f"{budget:g}" for budget in DEFAULT_BUDGETS)
EVALUATED_FORMS = ("sliced", "gated", "soft")
Folder = Annotated[str, typer.Argument(help="Folder of a checkpoint, or its Hub name.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(epilog="Example: rheostat evaluate runs/agnews --data test.csv --budgets 1.0,0.5")(evaluate)
    app.command(epilog="Example: rheostat materialize runs/agnews small --max-drop 0.5")(materialize)
    app.command(epilog="Example: rheostat predict runs/agnews 'Oil prices fall' --budget 0.5")(predict)
    app.command(epilog="Example: rheostat encode runs/vectors out.npy 'Oil prices fall' --budget 0.5")(encode)
    app.command(epilog="Example: rheostat measure runs/agnews --budgets 1.0,0.5 --batch 1 --length 128")(measure)


@takes_target()
@reads_texts(without=("task", "validation_share"))
def evaluate(
    folder: Folder,
    data: shared.DataSource,
    budgets: shared.Budgets = DEFAULT_GRID,
    form: Annotated[
        str,
        typer.Option(
            help="sliced (only what is kept is computed), gated (the same by multiplying with 0), or soft gates."
        ),
    ] = "sliced",
    *,
    speed: AskedSpeed,
    read: Reader,
    as_json: shared.AsJson = False,
) -> None:
    """Score budgets on rows: accuracy, macro F1, and the drop below full with its paired interval.

    A token classifier gets the F1 of entities. Language and embedding models read texts alone, and their budgets get a
    perplexity, or the cosine to the full model's vectors; a vision model reads images.
    """
    asked = parse_budgets(budgets)
    if form not in EVALUATED_FORMS:
        raise OptionError(f"form must be one of {', '.join(EVALUATED_FORMS)}; got {form!r}. The default is sliced")
    asked = shared.with_target(asked, speed.budget(folder))
    model = shared.load_budgeted(folder)
    asked = shared.in_reach(model, asked)
    from rheostat.data import CAUSAL_LM
    from rheostat.preparing import rows_for
    from rheostat.scoring import score_rows
    from rheostat.timing import operating_points, vocabulary_note

    task = task_of(model.info)
    form_chosen: Any = form
    rows, collator, conditions = rows_for(model, data, read(task=task))
    conditions["form"] = form
    if task == CAUSAL_LM:
        conditions["vocabulary"] = vocabulary_note(model)
    points = operating_points(model, asked, qualities=score_rows(model, rows, collator, asked, form=form_chosen))
    _print_points(points, conditions, as_json=as_json)


def _print_points(points: list[OperatingPoint], conditions: dict[str, Any], *, as_json: bool) -> None:
    """Print the table on stdout."""
    from rheostat import report
    from rheostat.console import stdout

    if as_json:
        shared.print_json(report.to_json(points, conditions))
    else:
        stdout.print(report.render_table(points, conditions))


@takes_target()
def materialize(
    folder: Folder,
    out: Annotated[Path, typer.Argument(help="Folder of the smaller model.")],
    budget: shared.Budget = None,
    max_drop: shared.MaxDrop = None,
    *,
    speed: AskedSpeed,
    as_json: shared.AsJson = False,
) -> None:
    """Write a physically smaller model for one budget; load it with rheostat.load."""
    asked = shared.parsed(budget)
    shared.check_one_given(asked, max_drop, speed.target)
    check_replaceable(out)
    at_target = speed.budget(folder)
    asked = asked if at_target is None else at_target
    model = shared.load_budgeted(folder)
    from rheostat.console import stdout
    from rheostat.timing import operating_points

    chosen = shared.chosen_budget(model, asked, max_drop)
    model.materialize(chosen).save_pretrained(out)
    (point,) = operating_points(model, [chosen])
    if as_json:
        shared.print_json({"folder": str(out), **point.to_json()})
        return
    full = model.params_table().total(model.subnet(1.0))
    stdout.print(
        f"{out}: budget {chosen:g}, share {point.share:.4f}, {point.params:,} of {full:,} parameters, "
        f"{point.kept_heads} heads, {point.kept_neurons} neurons",
        highlight=False,
        soft_wrap=True,
    )


@takes_target()
def predict(
    folder: Folder,
    texts: Annotated[
        list[str] | None, typer.Argument(help="Texts, or files of images; without any, one a line from stdin.")
    ] = None,
    budget: shared.Budget = None,
    max_drop: shared.MaxDrop = None,
    *,
    speed: AskedSpeed,
    as_json: shared.AsJson = False,
) -> None:
    """Label texts or images at a budget (1.0 unless told otherwise); a materialized model has one size of its own."""
    model, at = _opened(folder, budget, max_drop, speed)
    lines = texts or [line.rstrip("\r\n") for line in sys.stdin]
    from rheostat.data.images import open_images
    from rheostat.families import check_model_type

    reads_images = check_model_type(model.config).image_tokens is not None
    predictions = model.predict(open_images(lines) if reads_images else lines, **at)
    if as_json:
        shared.print_json([{"text": text, **p.to_json()} for text, p in zip(lines, predictions, strict=True)])
        return
    from rheostat.predictions import TaggedText

    for text, prediction in zip(lines, predictions, strict=True):
        if isinstance(prediction, TaggedText):
            typer.echo(" ".join(f"{word.text}/{word.label}" for word in prediction.words))
            continue
        label = "|".join(prediction.label) if isinstance(prediction.label, tuple) else prediction.label
        typer.echo(f"{label}\t{prediction.score:.4f}\t{text}")


def _opened(folder: str, budget: str | None, max_drop: float | None, speed: AskedSpeed) -> tuple[Any, dict[str, float]]:
    """Return the model of a folder and, where it has a knob, the budget that was asked for: 1.0 by default.

    Raises:
        OptionError: a choice for a model of one size.
    """
    shared.needs_training_extra()
    from rheostat.model import BudgetedModel, load

    asked = shared.parsed(budget)
    if speed.target is not None:
        shared.check_one_given(asked, max_drop, speed.target)
    at_target = speed.budget(folder)
    asked = at_target or (1.0 if asked is None and max_drop is None else asked)
    model = load(folder)
    if isinstance(model, BudgetedModel):
        chosen = shared.chosen_budget(model, asked, max_drop)
        model.subnet(chosen)  # a budget that can't be reached is an error before any text is read
        return model, {"budget": chosen}
    if budget is not None or max_drop is not None:
        raise OptionError(f"{folder!r} is a materialized model of one size; --budget and --max-drop do not apply to it")
    return model, {}


@takes_target()
def encode(
    folder: Folder,
    out: Annotated[Path, typer.Argument(help="File of the vectors, .npy: float32 (texts, size).")],
    texts: Annotated[list[str] | None, typer.Argument(help="Texts; without any, one a line from stdin.")] = None,
    budget: shared.Budget = None,
    max_drop: shared.MaxDrop = None,
    *,
    speed: AskedSpeed,
) -> None:
    """Write the vectors of texts at a budget (1.0 unless told otherwise), of an embedding model."""
    import io

    import numpy as np

    from rheostat.checkpoint import write_whole

    if not out.parent.is_dir() or out.is_dir():
        raise OptionError(f"out must be a file in a folder that is there; got {str(out)!r}")
    model, at = _opened(folder, budget, max_drop, speed)
    lines = texts or [line.rstrip("\r\n") for line in sys.stdin]
    content = io.BytesIO()
    vectors = model.encode(lines, **at)
    np.save(content, vectors, allow_pickle=False)
    write_whole(out, content.getvalue())
    typer.echo(f"{out}: {vectors.shape[0]:,} vectors of {vectors.shape[1]}")


@takes_target(without=("batch", "length", "threads", "runtime"))
def measure(
    folder: Folder,
    budgets: shared.Budgets = DEFAULT_GRID,
    batch: shared.Batch = 8,
    length: Annotated[int, typer.Option(min=1, help="Tokens in each row.")] = 64,
    threads: shared.Threads = 1,
    form: Annotated[
        str, typer.Option(help="materialized (a smaller model a budget), or sliced (one model, any budget a call).")
    ] = "materialized",
    rounds: Annotated[int, typer.Option(min=5, help="Rounds in which all budgets take turns.")] = 7,
    *,
    speed: AskedSpeed,
    as_json: shared.AsJson = False,
) -> None:
    """Time budgets against the full model: interleaved, with an A/A pair for the noise."""
    asked = parse_budgets(budgets)
    timed = speed.under(batch=batch, length=length, threads=threads)
    asked = shared.with_target(asked, timed.budget(folder))
    model = shared.load_budgeted(folder)
    asked = shared.in_reach(model, asked)
    from rheostat import report
    from rheostat.console import stdout
    from rheostat.timing import check_timed, operating_points, time_budgets

    check_timed(model, asked, length=length, form=form)
    with shared.measuring() as progress:
        table = time_budgets(
            model,
            asked,
            batch=batch,
            length=length,
            threads=threads,
            form=form,
            rounds=rounds,
            progress=progress,
        )
    if as_json:
        shared.print_json(table.to_json())
    else:
        stdout.print(
            report.render_table(operating_points(model, asked, latency=table), report.latency_conditions(table))
        )
