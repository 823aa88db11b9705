"""`rheostat train` and `rheostat demo`: from an encoder and labelled texts to a checkpoint and its table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rheostat.budget import DEFAULT_BUDGETS, parse_budgets
from rheostat.cli import options as shared
from rheostat.cli.reading import Reader, read_options, reads_texts
from rheostat.errors import OptionError

if TYPE_CHECKING:
    from rheostat.cost import CostTable
    from rheostat.pipeline import TrainResult
    from rheostat.recipe import TrainOptions

DEFAULT_GRID = ",".join(f"{budget:g}" for budget in DEFAULT_BUDGETS)


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(
        epilog="Example: rheostat train --model google/bert_uncased_L-4_H-256_A-4 --data ag_news --out runs/agnews"
    )(train)
    app.command(epilog="Example: rheostat demo --out runs/demo")(demo)


@reads_texts()
def train(
    model: Annotated[
        str,
        typer.Option(
            help="Folder or Hub name of a Hugging Face encoder (BERT, RoBERTa, ...) or decoder (GPT-2, Llama, ...)."
        ),
    ],
    data: shared.DataSource,
    out: Annotated[Path, typer.Option(help="Folder of the checkpoint.")],
    budgets: shared.Budgets = DEFAULT_GRID,
    cost: Annotated[str, typer.Option(help="What a budget is a share of: macs, heads or latency.")] = "macs",
    certificate: Annotated[
        Path | None,
        typer.Option(help="For --cost latency: a file that rheostat certify wrote; its first conditions count."),
    ] = None,
    warm_epochs: Annotated[
        float, typer.Option(help="Passes of dense fine-tuning; 0 for a model that is fine-tuned already.")
    ] = 3.0,
    soft_epochs: Annotated[
        float,
        typer.Option(help="Passes over the rows that learn the gates; 0 keeps the order by importance."),
    ] = 0.0,
    adapt: Annotated[
        str,
        typer.Option(
            help="How hard subnets are trained: sandwich, straight-through, corrections (only biases and norms of each "
            "budget of the table) or none."
        ),
    ] = "sandwich",
    adapt_epochs: Annotated[float, typer.Option(help="Passes that train the hard subnets.")] = 4.0,
    train_budgets: Annotated[
        str | None,
        typer.Option(help="Train these budgets alone, comma separated: a specialist. By default the whole range."),
    ] = None,
    adapt_dropout: Annotated[
        bool, typer.Option(help="Whether dropout is active while hard subnets are trained.")
    ] = False,
    learning_rate: Annotated[float, typer.Option(help="Learning rate of the warm start.")] = 5e-5,
    adapt_learning_rate: Annotated[float, typer.Option(help="Learning rate of the weights in the adapt stage.")] = 1e-4,
    correction_learning_rate: Annotated[float, typer.Option(help="Learning rate of the corrections.")] = 1e-2,
    gate_learning_rate: Annotated[
        float, typer.Option(help="Learning rate of the gates, far above that of the weights.")
    ] = 5e-2,
    soft_learning_rate: Annotated[
        float, typer.Option(help="Learning rate of the weights while gates are learned; 0 freezes them.")
    ] = 0.0,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows a batch and process.")] = 32,
    accumulation: Annotated[int, typer.Option(min=1, help="Batches a step, their gradients added up.")] = 1,
    max_length: shared.MaxLength = None,
    sequence_length: shared.SequenceLength = None,
    min_budget: Annotated[float, typer.Option(help="Smallest budget that is trained.")] = 0.1,
    neuron_block: shared.NeuronBlock = 32,
    min_heads_per_layer: shared.MinHeadsPerLayer = 1,
    min_neurons_per_layer: Annotated[
        int, typer.Option(min=0, help="Neurons that every layer keeps at any budget.")
    ] = 0,
    selection: Annotated[
        str, typer.Option(help="nested (every smaller model is part of the larger), or top-k as in the paper.")
    ] = "nested",
    distill_weight: Annotated[float, typer.Option(help="Weight of distillation against the labels, 0 to 1.")] = 0.7,
    temperature: Annotated[float, typer.Option(help="Temperature of the distillation.")] = 2.0,
    gate_weight: Annotated[float, typer.Option(help="Price of the mean gate while gates are learned.")] = 0.0,
    over_weight: Annotated[
        float, typer.Option(help="Price of the soft share's squared excess over the budget while gates are learned.")
    ] = 100.0,
    weight_decay: Annotated[float, typer.Option(help="Of matrices.")] = 0.01,
    random_budgets: Annotated[
        int, typer.Option(min=0, help="Random budgets a step beside an end; 0 trains one budget a step, in turn.")
    ] = 1,
    save_every: Annotated[int, typer.Option(min=1, help="Steps between states to resume from.")] = 100,
    report_to: Annotated[str, typer.Option(help="Where the Trainer logs: none, tensorboard, wandb, ...")] = "none",
    class_weighting: Annotated[
        bool, typer.Option("--class-weighting", help="Weigh rows of rare classes more.")
    ] = False,
    calibration_rows: Annotated[int, typer.Option(min=1, help="Rows that importance is measured on.")] = 512,
    calibration_split: Annotated[
        str, typer.Option(help="Where they come from: train, or validation as post-hoc pruning does.")
    ] = "train",
    max_train_rows: Annotated[int | None, typer.Option(min=1, help="Train on at most this many rows.")] = None,
    max_validation_rows: Annotated[
        int | None, typer.Option(min=1, help="Read the validation table on at most this many rows.")
    ] = None,
    precision: shared.Precision = "fp32",
    *,
    read: Reader,
    seed: shared.Seed = 0,
    batch: shared.Batch = 8,
    threads: shared.Threads = 1,
    measure: shared.Measure = True,
    soft_out: Annotated[
        Path | None, typer.Option(help="Folder for the soft checkpoint too, as the gates were learned.")
    ] = None,
    restart: shared.Restart = False,
    as_json: shared.AsJson = False,
) -> None:
    """Train once: one checkpoint that answers at any budget, and the table of its budgets.

    Stages: dense warm start, budgeted (monotone gates), adapt (hard subnets). Ctrl-C stops after the running step;
    the same command goes on from there.
    """
    shared.needs_training_extra()
    from rheostat import pipeline
    from rheostat.recipe import TrainOptions

    chosen = TrainOptions(
        warm_epochs=warm_epochs,
        soft_epochs=soft_epochs,
        adapt=adapt,
        adapt_epochs=adapt_epochs,
        train_budgets=() if train_budgets is None else parse_budgets(train_budgets),
        adapt_dropout=adapt_dropout,
        learning_rate=learning_rate,
        adapt_learning_rate=adapt_learning_rate,
        correction_learning_rate=correction_learning_rate,
        gate_learning_rate=gate_learning_rate,
        soft_learning_rate=soft_learning_rate,
        batch_size=batch_size,
        accumulation=accumulation,
        cost=cost if certificate is None else certified_costs(cost, certificate),
        sequence_length=sequence_length,
        max_length=max_length,
        min_budget=min_budget,
        neuron_block=neuron_block,
        min_heads_per_layer=min_heads_per_layer,
        min_neurons_per_layer=min_neurons_per_layer,
        selection=selection,
        distill_weight=distill_weight,
        temperature=temperature,
        gate_weight=gate_weight,
        over_weight=over_weight,
        weight_decay=weight_decay,
        random_budgets=random_budgets,
        save_every=save_every,
        report_to=report_to,
        class_weighting=class_weighting,
        calibration_rows=calibration_rows,
        calibration_split=calibration_split,
        max_train_rows=max_train_rows,
        max_validation_rows=max_validation_rows,
        budgets=parse_budgets(budgets),
        seed=seed,
        precision=precision,
    )
    chosen_reading = read(seed=seed)
    result = pipeline.train(
        model,
        data,
        out,
        chosen,
        read_options=chosen_reading,
        measure_latency=measure,
        batch=batch,
        threads=threads,
        soft_out=soft_out,
        restart=restart,
    )
    print_result(result, as_json=as_json)


def certified_costs(cost: str, path: Path) -> CostTable:
    """Return the table of a certificate's first conditions; one of another machine is used with a warning.

    Raises:
        OptionError: another cost model was asked for, or a certificate without a latency model.
    """
    from rheostat.certify.certificate import read_certificate, warn_of
    from rheostat.cost import LATENCY
    from rheostat.measure import environment
    from rheostat.subnet import ModelShape

    found = read_certificate(path)
    fit = found.fits[0]
    if cost != LATENCY or fit.model is None:
        raise OptionError(f"--certificate goes with --cost latency and is that of a checkpoint; got --cost {cost}")
    warn_of(found, fit, environment(), stacklevel=2)
    shape = ModelShape.from_json(found.subject["shape"])
    return fit.model.costs(shape, fit.conditions.length, {**vars(fit.conditions), "shape": shape.to_json()})


def print_result(result: TrainResult, *, as_json: bool) -> None:
    """Print the table of a finished run on stdout, and where the checkpoint is on stderr."""
    from rheostat import report
    from rheostat.console import stderr, stdout

    if as_json:
        shared.print_json(result_json(result))
    else:
        stdout.print(report.render_table(result.points, result.conditions()))
    stderr.print(f"Checkpoint: {result.folder}", markup=False)


def result_json(result: TrainResult) -> dict[str, Any]:
    """Return the table with its conditions, and what every stage took, as JSON values."""
    from rheostat import report

    table = report.to_json(result.points, result.conditions())
    return {**table, "stages": result.stages, "soft": result.soft}


# Half of R8 and short texts: all stages, the table and the plot within 12 minutes on two cores. So few steps want a
# larger learning rate of the warm start than the default.
def demo_options(seed: int = 0) -> TrainOptions:
    """Return the options of the demo."""
    from rheostat.recipe import TrainOptions

    return TrainOptions(
        warm_epochs=2.0,
        learning_rate=1e-4,
        adapt_epochs=3.0,
        random_budgets=0,  # one budget a step, which takes half as long as the default
        max_length=64,
        sequence_length=64,
        max_train_rows=3000,
        seed=seed,
    )


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the checkpoint, a materialized model and the plot.")] = Path(
        "runs/demo"
    ),
    seed: shared.Seed = 0,
    restart: shared.Restart = False,
    as_json: shared.AsJson = False,
) -> None:
    """Run the main job on real data: MiniLM-L6 on Reuters R8, all stages, in about ten minutes on two cores.

    Model and data come from the Python package index. Leaves OUT/checkpoint, OUT/materialized-0.5, OUT/curve.png
    and OUT/table.json.
    """
    shared.needs_training_extra()
    from rheostat import pipeline
    from rheostat.console import stderr
    from rheostat.demo_assets import fetch_minilm, fetch_reuters_r8
    from rheostat.model import load
    from rheostat.report import plot_curve

    model, data = fetch_minilm(), fetch_reuters_r8()
    result = pipeline.train(
        str(model),
        str(data),
        out / "checkpoint",
        demo_options(seed),
        read_options=read_options(validation_share=0.06, seed=seed),
        restart=restart,
    )
    load(result.folder).materialize(0.5).save_pretrained(out / "materialized-0.5")
    plot_curve(result.points, out / "curve.png", "MiniLM-L6 on Reuters R8: one checkpoint, one knob")
    (out / "table.json").write_text(json.dumps(result_json(result), indent=1) + "\n", encoding="utf-8")
    print_result(result, as_json=as_json)
    stderr.print(f"Materialized at 0.5: {out / 'materialized-0.5'}", markup=False)
    stderr.print(f"Plot: {out / 'curve.png'}", markup=False)
