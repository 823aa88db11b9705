"""From a Hugging Face encoder and labelled texts to a budgeted checkpoint and its table, in resumable stages."""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from rheostat.answers import PER_TOKEN, answers_of
from rheostat.budget import DEFAULT_BUDGETS, check_budget, descending, reachable
from rheostat.calibration import CLASSIFICATIONS, fit_temperatures
from rheostat.checkpoint import check_replaceable, task_of
from rheostat.console import is_main_process, stderr
from rheostat.corrections import Corrections
from rheostat.data import CAUSAL_LM, EMBEDDING, ReadOptions, length_buckets, read_corpus, read_images
from rheostat.data.images import check_image_options
from rheostat.errors import OptionError
from rheostat.evaluation import budget_logits, grid_logits, score_budgets
from rheostat.families import check_model_type
from rheostat.forms import correction_sizes
from rheostat.importance import Importance, gradient_importance
from rheostat.losses import sensitivity_losses, task_losses
from rheostat.measure import LatencyTable
from rheostat.model import BudgetedModel, Selection, wrap
from rheostat.objectives import BudgetSampler, LossOptions, Objective
from rheostat.preparing import Prepared, load_encoder, prepare, prepare_images
from rheostat.quality import score
from rheostat.recipe import TrainOptions
from rheostat.report import OperatingPoint, headline_of, latency_conditions
from rheostat.saving import load_config
from rheostat.scoring import score_rows
from rheostat.timing import operating_points, time_budgets, vocabulary_note
from rheostat.training import StageOptions, autocast, train_stage
from rheostat.work import Work, fingerprint, wait_for_all

QUALITIES = ("accuracy", "macro_f1", "perplexity", "entity_f1", "cosine", "spearman")


@dataclass(frozen=True)
class TrainResult:
    """What :func:`train` leaves.

    Attributes:
        folder: The checkpoint.
        points: The table, on test rows where there are any, else on validation rows.
        rows_of: ``test`` or ``validation``.
        latency: The measurement behind the table, or None.
        stages: Seconds and more of every stage.
        soft: Soft evaluation on validation rows, where gates were learned: budget, accuracy, macro F1, mean gate, share
            (the estimated cost).
        logits: Of the rows of the table, (N, C), by budget; of classifiers of texts alone.
        notes: What else the table must be read with, by name.
    """

    folder: Path
    points: list[OperatingPoint]
    rows_of: str
    latency: LatencyTable | None
    stages: dict[str, Any]
    soft: list[dict[str, float]]
    logits: dict[float, NDArray[np.float32]]
    notes: dict[str, str] = dataclasses.field(default_factory=dict)

    def training_seconds(self) -> float:
        """Return the wall time of all stages: steps, order, and the teacher's logits; without the table."""
        facts = [item for stage in self.stages.values() for item in stage.items()]
        return float(sum(value for name, value in facts if name.endswith("seconds")))

    def conditions(self) -> dict[str, Any]:
        """Return the conditions of the table: which rows, and how latency was measured."""
        rows = {f"{headline_of(self.points)} on": f"{self.rows_of} rows", **self.notes}
        return rows if self.latency is None else {**rows, **latency_conditions(self.latency)}


def train(
    model_name: str,
    data: str,
    out: str | os.PathLike[str],
    options: TrainOptions | None = None,
    *,
    read_options: ReadOptions | None = None,
    measure_latency: bool = True,
    batch: int = 8,
    threads: int = 1,
    soft_out: str | os.PathLike[str] | None = None,
    restart: bool = False,
    read_precision: str = "fp32",
    reads_test: bool = True,
) -> TrainResult:
    """Train one checkpoint for all budgets: warm start, budgeted (soft gates), adapt (hard subnets), table.

    Ctrl-C leaves ``OUT.partial``; the same call goes on from it.

    Args:
        model_name: Folder or Hub name of a Hugging Face encoder, or of a decoder; of a decoder for causal-lm.
        data: A file, a folder with train / validation / test files, or a Hub data set; for a model that reads images
            see :func:`rheostat.data.images.read_images`.
        out: Folder of the checkpoint; replaced only when the new one is complete.
        options: What decides the result.
        read_options: How ``data`` is read.
        measure_latency: Whether to time the materialized budgets for the table.
        batch: Rows a timed call.
        threads: Threads of the timing.
        soft_out: Folder for the soft checkpoint too, its gates as they were learned; None keeps none.
        restart: Throw a partial run away.
        read_precision: What the table is computed in: ``fp32``, ``bf16`` or ``fp16``.
        reads_test: Whether the table is of the test rows, where there are any.

    Raises:
        RheostatError: anything that is wrong with the arguments, in one line, before anything long starts.
        Interrupted: Ctrl-C.
    """
    options = options or TrainOptions()
    out = Path(out)
    for folder in (out, *([] if soft_out is None else [Path(soft_out)])):
        check_replaceable(folder)
    config = load_config(model_name)
    # Another table is no other run, unless its budgets are what is trained.
    aside = () if options.adapt == "corrections" else ("budgets",)
    key = {
        "model": model_name,
        "data": data,
        "files": fingerprint(data),
        "options": {name: value for name, value in asdict(options).items() if name not in aside},
        "read": asdict(read_options or ReadOptions()),
    }
    work = Work(out, key, restart=restart)
    rows = _read(data, model_name, config, options, read_options or ReadOptions(seed=options.seed))
    if not reads_test:
        rows = dataclasses.replace(rows, test=None)
    if rows.info.task == EMBEDDING:
        options = _for_vectors(options)
    work.open()
    model = _warm(work, model_name, rows, options)
    rows = _taught(work, model, rows, options)
    model = _soft(work, model, rows, options, read_precision)
    if soft_out is not None and is_main_process():
        work.load("soft").save_pretrained(soft_out)
    model = _adapt(work, model, rows, options)
    reading = autocast(read_precision, model.device)
    measured = (batch, threads) if measure_latency else None
    return _finish(work, model, rows, options, out, reading=reading, measured=measured)


def _read(data: str, model_name: str, config: Any, options: TrainOptions, read_options: ReadOptions) -> Prepared:
    """Read texts or images, whatever the model takes, say what was found, and seed everything random."""
    images = check_model_type(config).image_tokens is not None
    if images:
        check_image_options(read_options)
    corpus: Any = (read_images if images else read_corpus)(data, read_options)
    for note in corpus.notes:
        stderr.print(f"- {note}", markup=False, soft_wrap=True)
    transformers.set_seed(options.seed)
    return (prepare_images if images else prepare)(corpus, model_name, config, options)


def _warm(work: Work, model_name: str, rows: Prepared, options: TrainOptions) -> BudgetedModel:
    """Fine-tune densely, then sort and order units by importance."""
    if work.done("warm"):
        return work.load("warm")
    budgeted = wrap(
        load_encoder(model_name, rows.info, head_is_trained=options.trains_head),
        cost=options.cost,
        sequence_length=options.sequence_length or max(rows.median_length, 1),
        neuron_block=options.neuron_block,
        min_heads_per_layer=options.min_heads_per_layer,
        min_neurons_per_layer=options.min_neurons_per_layer,
        selection=_selection(options),
        info=rows.info,
        tokenizer=rows.tokenizer,
    )
    if rows.info.task == CAUSAL_LM:
        stderr.print(f"- {vocabulary_note(budgeted)}", highlight=False, soft_wrap=True)
    asked = options.train_budgets
    if options.budgets != DEFAULT_BUDGETS:  # of the usual grid the table shows what can be reached
        asked += options.budgets
    for budget in asked:
        check_budget(budget, floor=budgeted.floor)
    facts: dict[str, Any] = {"seconds": 0.0, "epochs": options.warm_epochs}
    if options.warm_epochs > 0:
        objective = Objective(budgeted, "dense", LossOptions(distill_weight=0.0, class_weights=rows.class_weights))
        stage = _stage(options, options.warm_epochs, options.learning_rate)
        facts |= train_stage(
            objective, rows.train, rows.collator, BudgetSampler("dense", 1.0), stage, work.steps("warm"), "Warm start"
        )
    started = time.perf_counter()
    order_by_data(budgeted, rows, options)
    facts["order_seconds"] = time.perf_counter() - started
    return work.finish("warm", facts, budgeted)


def _selection(options: TrainOptions) -> Selection:
    return "top-k" if options.selection == "top-k" else "nested"


def _stage(options: TrainOptions, epochs: float, learning_rate: float, **changes: Any) -> StageOptions:
    return StageOptions(
        epochs=epochs,
        learning_rate=learning_rate,
        batch_size=options.batch_size,
        accumulation=options.accumulation,
        weight_decay=options.weight_decay,
        save_every=options.save_every,
        seed=options.seed,
        precision=options.precision,
        extra=(("report_to", options.report_to),),
        **changes,
    )


def order_by_data(model: BudgetedModel, rows: Prepared, options: TrainOptions) -> None:
    """Order the units of a fine-tuned model by importance on some of its rows."""
    model.order_by_importance(importance_on(model, rows, options))


def importance_on(model: BudgetedModel, rows: Prepared, options: TrainOptions) -> Importance:
    """Return the importance of heads and neurons on the calibration rows."""
    split = rows.validation if options.calibration_split == "validation" else rows.train
    chosen = np.random.default_rng(options.seed).permutation(len(split))[: options.calibration_rows]
    picked = split.select(np.sort(chosen))
    batches = (
        {name: tensor.to(model.device) for name, tensor in rows.collator(list(picked.select(ids))).items()}
        for ids in length_buckets(picked["length"], 32)
    )
    return gradient_importance(
        model.base,
        model.spec,
        model.shape,
        batches,
        lambda output, batch: _row_losses(model, output, batch),
    )


def _row_losses(model: BudgetedModel, output: Any, batch: Any) -> torch.Tensor:
    """Return what importance is the gradient of, (B,)."""
    task, answers = task_of(model.info), answers_of(output, batch, model.info)
    return sensitivity_losses(answers) if task == EMBEDDING else task_losses(task, answers, batch["labels"])


def _for_vectors(options: TrainOptions) -> TrainOptions:
    """Return the options for a model of vectors: nothing but its own vectors can teach it, so there is no warm start.

    Raises:
        OptionError: without distillation there is nothing to learn.
    """
    if options.distill_weight == 0.0:
        raise OptionError("distill_weight must be above 0 for embedding: the full model's vectors are all there is")
    return dataclasses.replace(options, warm_epochs=0.0)


def _taught(work: Work, model: BudgetedModel, rows: Prepared, options: TrainOptions) -> Prepared:
    """Return the rows with what the dense model says of each, where that is one short vector and is asked for.

    Vectors are what an embedding model is judged by as well, so its other rows get them too.
    """
    if rows.info.task == EMBEDDING:
        parts = {"train": rows.train, "validation": rows.validation, "test": rows.test}
    elif options.distills and rows.info.task not in PER_TOKEN:
        parts = {"train": rows.train}
    else:
        return rows
    taught = {}
    for name, part in parts.items():
        if part is not None:
            told = _teacher_answers(work, model, part, rows.collator, name, options.precision)
            taught[name] = part.add_column("teacher_logits", list(told))
    return dataclasses.replace(rows, **taught)


def _teacher_answers(
    work: Work, model: BudgetedModel, rows: Any, collator: Any, name: str, precision: str
) -> NDArray[np.float32]:
    """Return the dense model's answers of some rows, (N, C), computed once a run in the training precision."""
    path = work.folder / f"teacher-{name}.npy"
    if path.is_file():
        found: NDArray[np.float32] = np.load(path, allow_pickle=False)
        if len(found) == len(rows):
            return found
    teacher = work.load("warm") if work.done("soft") else model
    started = time.perf_counter()
    with autocast(precision, teacher.device):
        logits = budget_logits(teacher, rows, collator, 1.0, title="Teacher's answers")
    if is_main_process():
        new = path.with_suffix(".new.npy")
        np.save(new, logits)
        os.replace(new, path)
        facts = work.record["stages"]["warm"]
        facts["teacher_seconds"] = facts.get("teacher_seconds", 0.0) + time.perf_counter() - started
    return logits


def _soft(
    work: Work, model: BudgetedModel, rows: Prepared, options: TrainOptions, read_precision: str
) -> BudgetedModel:
    """Learn the gates, evaluate them soft, and leave the soft checkpoint; the order is not frozen yet."""
    if work.done("soft"):
        return work.load("soft")
    facts: dict[str, Any] = {"seconds": 0.0, "epochs": options.soft_epochs}
    if options.soft_epochs > 0:
        losses = _losses(options, rows)
        # With the weights frozen nothing can be learned at 1.0, where every gate is 1.
        full_share = 0.1 if options.soft_learning_rate > 0 else 0.0
        sampler = BudgetSampler(
            "soft", _low(model, options), full_share=full_share, only=options.train_budgets, seed=options.seed
        )
        stage = _stage(
            options,
            options.soft_epochs,
            options.soft_learning_rate,
            gate_learning_rate=options.gate_learning_rate,
        )
        teacher, dense = _dense_teacher(work, model, options)
        objective = Objective(model, "soft", losses, teacher, dense=dense)
        facts |= train_stage(objective, rows.train, rows.collator, sampler, stage, work.steps("soft"), "Budgeted")
    # Gates that were not learned say nothing that the order does not.
    with autocast(read_precision, model.device):
        work.record["soft"] = soft_evaluation(model, rows, options) if options.soft_epochs > 0 else []
    for line in work.record["soft"]:
        scores = ", ".join(f"{name.replace('_f1', ' F1')} {line[name]:.4f}" for name in QUALITIES if name in line)
        stderr.print(
            f"- soft gates at {line['budget']:g}: {scores}, "
            f"mean gate {line['mean_gate']:.3f}, estimated cost {line['soft_share']:.3f}",
            soft_wrap=True,
        )
    return work.finish("soft", facts, model)


def _dense_teacher(work: Work, model: BudgetedModel, options: TrainOptions) -> tuple[BudgetedModel | None, bool]:
    """Return the dense model and True where its logits are too many to be kept with the rows; else nothing."""
    if model.info.task not in PER_TOKEN or not options.distills:
        return None, False
    return work.load("warm"), True


def _losses(options: TrainOptions, rows: Prepared) -> LossOptions:
    return LossOptions(
        distill_weight=options.distill_weight,
        temperature=options.temperature,
        gate_weight=options.gate_weight,
        over_weight=options.over_weight,
        class_weights=rows.class_weights,
    )


def _low(model: BudgetedModel, options: TrainOptions) -> float:
    return max(options.min_budget, model.floor)


def soft_evaluation(model: BudgetedModel, rows: Prepared, options: TrainOptions) -> list[dict[str, float]]:
    """Return what soft gates score on validation rows, with their mean and their share: the paper's estimated cost."""
    lines = []
    for budget in reachable(options.budgets, model.floor):
        with torch.no_grad():
            mean, share = float(model.mean_gate(budget)), float(model.soft_share(budget))
        quality = _soft_quality(model, rows, budget)
        lines.append({"budget": budget, **quality, "mean_gate": mean, "soft_share": share})
    return lines


def _soft_quality(model: BudgetedModel, rows: Prepared, budget: float) -> dict[str, float]:
    """Return what soft gates score at a budget on validation rows, by name."""
    task = task_of(model.info)
    if task not in CLASSIFICATIONS:
        (found,) = score_rows(model, rows.validation, rows.collator, (budget,), form="soft")
        return {name: value for name, value in found.to_json().items() if name in QUALITIES and value is not None}
    logits = budget_logits(model, rows.validation, rows.collator, budget, form="soft", title="Soft evaluation")
    scores = score(task, logits, np.asarray(rows.validation["labels"]))
    return {name: float(scores[name] or 0.0) for name in ("accuracy", "macro_f1")}


def _adapt(work: Work, model: BudgetedModel, rows: Prepared, options: TrainOptions) -> BudgetedModel:
    """Freeze the order and train the hard subnets."""
    if work.done("adapt"):
        return work.load("adapt")
    if options.adapt == "corrections" and options.adapt_epochs > 0:
        return _correct(work, model, rows, options)
    straight = options.adapt == "straight-through"
    teacher, dense = (work.load("soft"), False) if straight else _dense_teacher(work, model, options)
    model.freeze_order()
    epochs = 0.0 if options.adapt == "none" else options.adapt_epochs
    facts: dict[str, Any] = {"seconds": 0.0, "method": options.adapt, "epochs": epochs}
    if epochs > 0:
        sampler = BudgetSampler(
            options.adapt,
            _low(model, options),
            random_budgets=options.random_budgets,
            only=options.train_budgets,
            seed=options.seed,
        )
        stage = _stage(
            options,
            epochs,
            options.adapt_learning_rate,
            gate_learning_rate=options.gate_learning_rate / 10 if straight else 0.0,
            freeze_embeddings=True,
            dropout=options.adapt_dropout,
        )
        objective = Objective(model, options.adapt, _losses(options, rows), teacher, dense=dense)
        facts |= train_stage(objective, rows.train, rows.collator, sampler, stage, work.steps("adapt"), "Adapt")
        trained = options.train_budgets or (sampler.low, 1.0)
        model.info = dataclasses.replace(model.info, trained_budgets=(min(trained), max(trained)))
    if straight and model.selection == "nested":
        model.project_gates()  # the order stays the one that was trained
    return work.finish("adapt", facts, model)


def _correct(work: Work, model: BudgetedModel, rows: Prepared, options: TrainOptions) -> BudgetedModel:
    """Freeze the order and fit what every budget of the table, or of ``train_budgets``, adds to biases and norms."""
    teacher, dense = _dense_teacher(work, model, options)
    model.freeze_order()
    asked = reachable(options.train_budgets or options.budgets, model.floor)
    shares = {model.costs.share(model.subnet(budget)): budget for budget in asked}
    points = sorted((share, budget) for share, budget in shares.items() if 0.0 < share < 1.0)
    facts: dict[str, Any] = {"seconds": 0.0, "method": options.adapt, "epochs": options.adapt_epochs}
    if points:
        sizes = correction_sizes(model.base, model.spec)
        model.corrections = Corrections([share for share, _ in points], sizes).to(model.device)
        budgets = tuple(budget for _, budget in points)
        sampler = BudgetSampler(options.adapt, budgets[0], only=budgets, seed=options.seed)
        epochs = options.adapt_epochs * len(budgets)
        stage = _stage(
            options, epochs, options.correction_learning_rate, only_corrections=True, dropout=options.adapt_dropout
        )
        objective = Objective(model, options.adapt, _losses(options, rows), teacher, dense=dense)
        facts |= train_stage(objective, rows.train, rows.collator, sampler, stage, work.steps("adapt"), "Correct")
    return work.finish("adapt", facts, model)


Reading = tuple[list[Any], list[Any], dict[float, NDArray[np.float32]]]  # of validation and test rows, and logits


def _read_labels(model: BudgetedModel, rows: Prepared, budgets: Sequence[float]) -> Reading:
    """Return what budgets score on labelled rows; the model gets its temperatures."""
    logits = grid_logits(model, rows.validation, rows.collator, budgets)
    labels = rows.validation["labels"]
    temperatures = fit_temperatures(logits, labels, task_of(model.info))
    model.info = dataclasses.replace(model.info, temperatures=temperatures)
    validated = score_budgets(model.info, logits, labels, budgets)
    if rows.test is None:
        return validated, validated, logits
    logits = grid_logits(model, rows.test, rows.collator, budgets)
    return validated, score_budgets(model.info, logits, rows.test["labels"], budgets), logits


def _read_others(model: BudgetedModel, rows: Prepared, budgets: Sequence[float]) -> Reading:
    """Return what budgets score where answers are no classes of texts; they are not kept."""
    validated = score_rows(model, rows.validation, rows.collator, budgets)
    tested = validated if rows.test is None else score_rows(model, rows.test, rows.collator, budgets)
    return validated, tested, {}


def _finish(
    work: Work,
    model: BudgetedModel,
    rows: Prepared,
    options: TrainOptions,
    out: Path,
    *,
    reading: torch.autocast,
    measured: tuple[int, int] | None,
) -> TrainResult:
    """Evaluate, measure with ``measured`` (batch, threads), and put the checkpoint in place."""
    budgets = reachable(descending((1.0, *options.budgets)), model.floor)
    read = _read_labels if task_of(model.info) in CLASSIFICATIONS else _read_others
    with reading:
        validated, tested, logits = read(model, rows, budgets)
    stages = work.record["stages"]
    training = {**model.info.training, "stages": stages, "options": asdict(options)}
    evaluation = tuple(quality.to_json() for quality in validated)
    model.info = dataclasses.replace(model.info, evaluation=evaluation, training=training)
    latency = None
    if measured is not None and is_main_process():
        batch, threads = measured
        length = model.costs.sequence_length or rows.median_length
        stderr.print(f"Measuring latency: batch {batch}, {length} tokens, {threads} thread(s)")
        latency = time_budgets(model, budgets, batch=batch, length=length, threads=threads)
    if is_main_process():
        model.save_pretrained(out)
        shutil.rmtree(work.folder, ignore_errors=True)
    wait_for_all()
    return TrainResult(
        folder=out,
        points=operating_points(model, budgets, qualities=tested, latency=latency),
        rows_of="validation" if rows.test is None else "test",
        latency=latency,
        stages=stages,
        soft=work.record["soft"],
        logits=logits,
        notes={} if model.info.task != CAUSAL_LM else {"vocabulary": vocabulary_note(model)},
    )
