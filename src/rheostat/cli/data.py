"""`rheostat data`: what was understood of a labelled file."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rheostat.cli import options as shared


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("data", epilog="Example: rheostat data reviews.csv --label-column stars")(describe_data)


def describe_data(
    source: Annotated[str, typer.Argument(help="File, folder of train/validation/test files, or Hub name.")],
    model: Annotated[str | None, typer.Option(help="Count tokens with this model's tokenizer.")] = None,
    text_column: shared.TextColumn = "text",
    text_pair_column: shared.TextPairColumn = None,
    label_column: shared.LabelColumn = "label",
    encoding: shared.Encoding = "utf-8",
    delimiter: shared.Delimiter = None,
    no_header: shared.NoHeader = False,
    task: shared.Task = None,
    label_separator: shared.LabelSeparator = None,
    no_quotes: shared.NoQuotes = False,
    validation_share: shared.ValidationShare = 0.1,
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
    read = shared.read_options(
        text_column=text_column,
        text_pair_column=text_pair_column,
        label_column=label_column,
        encoding=encoding,
        delimiter=delimiter,
        no_header=no_header,
        task=task,
        label_separator=label_separator,
        no_quotes=no_quotes,
        validation_share=validation_share,
        seed=seed,
    )
    report = describe(source, read, tokenizer, max_length=limit)
    if as_json:
        shared.print_json(report.to_json())
    else:
        stdout.print(report.render())
