"""`rheostat data`: what was understood of a labelled file."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rheostat.cli import options as shared
from rheostat.cli.reading import Reader, reads_texts


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("data", epilog="Example: rheostat data reviews.csv --label-column stars")(describe_data)


@reads_texts()
def describe_data(
    source: Annotated[str, typer.Argument(help="File, folder of train/validation/test files, or Hub name.")],
    model: Annotated[str | None, typer.Option(help="Count tokens with this model's tokenizer.")] = None,
    *,
    read: Reader,
    seed: shared.Seed = 0,
    as_json: shared.AsJson = False,
) -> None:
    """Say what was understood of labelled texts, and what is odd about them, before anything is trained."""
    shared.needs_training_extra()
    from rheostat.console import stdout
    from rheostat.data import describe

    tokenizer: Any = None
    limit = None
    if model is not None:
        from rheostat.data import token_limit
        from rheostat.preparing import load_tokenizer_of
        from rheostat.saving import load_config

        config = load_config(model)
        tokenizer = load_tokenizer_of(model)
        limit = token_limit(tokenizer, config)
    report = describe(source, read(seed=seed), tokenizer, max_length=limit)
    if as_json:
        shared.print_json(report.to_json())
    else:
        stdout.print(report.render())
