"""`rheostat order`: the whole curve of a fine-tuned model in minutes, without training its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rheostat.budget import parse_budgets
from rheostat.cli import options as shared
from rheostat.cli.reading import Reader, reads_texts
from rheostat.cli.training import DEFAULT_GRID, print_result

# Points below dense on R8 at 0.25: 17.3 without corrections, 8.6 after 64 steps, 4.0 after 128, 2.4 after 256 of half.
PASSES, BATCH_SIZE = 8.0, 16


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Example: rheostat order runs/fine-tuned --data train.csv --out runs/ordered")(order)


@reads_texts()
def order(
    model: Annotated[str, typer.Argument(help="Folder or Hub name of a model that is fine-tuned already.")],
    data: shared.DataSource,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the checkpoint; by default the model's name with -ordered.")
    ] = None,
    budgets: shared.Budgets = DEFAULT_GRID,
    cost: Annotated[str, typer.Option(help="What a budget is a share of: macs or heads.")] = "macs",
    rows: Annotated[
        int, typer.Option(min=1, help="Rows that units are ordered and budgets corrected on; the rest is not read.")
    ] = 512,
    validation_rows: Annotated[int, typer.Option(min=1, help="Other rows that the table is read on, at most.")] = 1000,
    corrections: Annotated[
        bool, typer.Option(help="Fit what every budget adds to biases and norms; the weights stay as they are.")
    ] = True,
    max_length: shared.MaxLength = None,
    sequence_length: shared.SequenceLength = None,
    neuron_block: shared.NeuronBlock = 32,
    min_heads_per_layer: shared.MinHeadsPerLayer = 1,
    precision: shared.Precision = "fp32",
    *,
    read: Reader,
    seed: shared.Seed = 0,
    measure: shared.Measure = True,
    batch: shared.Batch = 8,
    threads: shared.Threads = 1,
    restart: shared.Restart = False,
    as_json: shared.AsJson = False,
) -> None:
    """Order the units of a model that is fine-tuned already: every budget, in minutes, without training.

    Units are ordered by importance on a few hundred labelled rows. Then every budget of the table gets corrections:
    small vectors that are added to biases and norms, fitted to the full model's answers. No weight is changed.
    """
    shared.needs_training_extra()
    from rheostat import pipeline
    from rheostat.recipe import TrainOptions

    chosen = TrainOptions(
        warm_epochs=0.0,
        adapt="corrections" if corrections else "none",
        adapt_epochs=PASSES,
        batch_size=BATCH_SIZE,
        distill_weight=1.0,  # a few hundred labels say less than the full model's answers
        cost=cost,
        sequence_length=sequence_length,
        max_length=max_length,
        neuron_block=neuron_block,
        min_heads_per_layer=min_heads_per_layer,
        max_train_rows=rows,
        calibration_rows=rows,
        max_validation_rows=validation_rows,
        budgets=parse_budgets(budgets),
        seed=seed,
        precision=precision,
    )
    result = pipeline.train(
        model,
        data,
        Path(f"{Path(model).name}-ordered") if out is None else out,
        chosen,
        read_options=read(seed=seed),
        measure_latency=measure,
        batch=batch,
        threads=threads,
        restart=restart,
        reads_test=False,
    )
    print_result(result, as_json=as_json)
