"""Options that several commands share, and how results are printed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rheostat.budget import DEFAULT_BUDGETS, parse_budget, reachable
from rheostat.errors import OptionError

if TYPE_CHECKING:
    from rheostat.measure import Progress
    from rheostat.model import BudgetedModel
    from rheostat.qualities import RegressionQuality, Similarity, TagQuality
    from rheostat.quality import Quality

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout instead of text.")]
Budgets = Annotated[str, typer.Option(help="Budgets, comma separated: shares of the full cost in (0, 1].")]
Budget = Annotated[str | None, typer.Option(metavar="<float>", help="Share of the full cost, in (0, 1].")]
MaxDrop = Annotated[
    float | None,
    typer.Option(
        help="Instead of a budget: the cheapest whose validation accuracy is within this many points of full."
    ),
]
Batch = Annotated[int, typer.Option(min=1, help="Rows in each timed call.")]
Threads = Annotated[int, typer.Option(min=1, help="Threads that timed calls use.")]
DataSource = Annotated[
    str, typer.Option(help="CSV, TSV, JSONL or Parquet file, a folder of train/validation/test files, or a Hub name.")
]
MaxLength = Annotated[
    int | None,
    typer.Option(
        min=2, help="Longest text in tokens; by default what the model takes, and blocks of 128 for causal-lm."
    ),
]
SequenceLength = Annotated[
    int | None,
    typer.Option(min=1, help="Tokens at which a share of macs is exact; by default the median of the training rows."),
]
NeuronBlock = Annotated[
    int, typer.Option(min=1, help="Feed-forward neurons that go together; kept widths are multiples of it.")
]
MinHeadsPerLayer = Annotated[int, typer.Option(min=0, help="Heads that every layer keeps at any budget.")]
Precision = Annotated[str, typer.Option(help="Of training: fp32, or bf16 or fp16 for mixed precision.")]
Measure = Annotated[bool, typer.Option(help="Time the materialized budgets for the table.")]
Restart = Annotated[bool, typer.Option("--restart", help="Throw away a run that was stopped.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of everything random.")]


def print_json(content: Any) -> None:
    """Print JSON on stdout, once under torchrun."""
    from rheostat.console import is_main_process

    if is_main_process():
        typer.echo(json.dumps(content, ensure_ascii=False, indent=1))


@contextmanager
def measuring() -> Iterator[Progress]:
    """Show a progress bar on stderr and give what moves it: a call with (blocks done, blocks in all)."""
    from rich.progress import Progress as Bar

    from rheostat.console import stderr

    with Bar(console=stderr, transient=True) as bar:
        task = bar.add_task("Measuring")
        yield lambda done, total: bar.update(task, completed=done, total=total)


def needs_training_extra() -> None:
    """Say how to install what torch-based commands need, before an import fails with a traceback."""
    from importlib.util import find_spec

    from rheostat.errors import missing

    for package in ("torch", "transformers", "datasets", "safetensors", "accelerate"):
        if find_spec(package) is None:
            raise missing(package, "train")


def load_budgeted(folder: str) -> BudgetedModel:
    """Return the budgeted checkpoint at ``folder``.

    Raises:
        OptionError: it is a materialized model, which has one size.
    """
    needs_training_extra()
    from rheostat.model import BudgetedModel, load

    model = load(folder)
    if not isinstance(model, BudgetedModel):
        raise OptionError(f"{folder!r} must be a budgeted checkpoint; it is a materialized model, which has one size")
    return model


def parsed(budget: str | None) -> float | None:
    """Return the budget that was typed, or None; the error says value, rule and remedy, unlike typer's."""
    return None if budget is None else parse_budget(budget)


def with_target(budgets: tuple[float, ...], at_target: float | None) -> tuple[float, ...]:
    """Return the budgets that were listed, or with a target full and the budget that holds it."""
    return budgets if at_target is None else tuple(dict.fromkeys((1.0, at_target)))


def in_reach(model: BudgetedModel, asked: tuple[float, ...]) -> tuple[float, ...]:
    """Return the budgets that were asked for; of the usual grid those that the model can reach."""
    return reachable(asked, model.floor) if asked == DEFAULT_BUDGETS else asked


def check_one_given(budget: float | None, max_drop: float | None, target: str | None = None) -> None:
    """Refuse several or none, before a checkpoint is loaded.

    Raises:
        OptionError: more or fewer than one was given.
    """
    named = (("--budget", budget), ("--max-drop", max_drop), ("--target", target))
    given = [name for name, value in named if value is not None]
    if len(given) != 1:
        told = " and ".join(given) or "neither"
        raise OptionError(
            f"exactly one of --budget, --max-drop and --target must be given; got {told}. Try --budget 0.5"
        )


def chosen_budget(model: BudgetedModel, budget: float | None, max_drop: float | None) -> float:
    """Return the budget that was asked for, by share or by quality; the choice by quality is told on stderr.

    Raises:
        OptionError: both or neither were given, or nothing was evaluated.
    """
    from rheostat import qualities
    from rheostat.console import stderr
    from rheostat.quality import cheapest_within

    check_one_given(budget, max_drop)
    if budget is not None or max_drop is None:
        return float(budget or 0.0)
    if not model.info.evaluation:
        raise OptionError(
            "--max-drop must have validation results; the checkpoint has none. Train it with rheostat train"
        )
    scored = [qualities.from_json(record) for record in model.info.evaluation]
    known = [quality for quality in scored if not isinstance(quality, qualities.Perplexity)]
    if len(known) < len(scored):
        raise OptionError(
            f"--max-drop must have accuracies; a {model.info.task} checkpoint has perplexities. Pass --budget"
        )
    best = cheapest_within(known, max_drop)
    stderr.print(
        f"Budget {best.budget:g}: {_drop_of(best)} on {best.rows:,} validation rows.",
        highlight=False,
        soft_wrap=True,
    )
    return best.budget


def _drop_of(best: Quality | TagQuality | RegressionQuality | Similarity) -> str:
    """Say how far below the full model a budget is."""
    from rheostat.qualities import Similarity

    if isinstance(best, Similarity):
        return f"a cosine of {best.cosine:.4f} to the full model's vectors"
    return f"{best.drop_points:.2f} points below full (95 % interval {best.drop_low:.2f} to {best.drop_high:.2f})"
