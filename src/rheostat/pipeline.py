"""From a Hugging Face encoder and labelled texts to a budgeted checkpoint and its table, in resumable stages."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from accelerate import PartialState
from numpy.typing import NDArray
from safetensors import SafetensorError

from rheostat.budget import DEFAULT_BUDGETS, check_budget, descending, reachable
from rheostat.checkpoint import CheckpointInfo, check_replaceable
from rheostat.console import is_main_process, stderr
from rheostat.cost import check_cost_model
from rheostat.data import (
    Collator,
    Corpus,
    ReadOptions,
    class_weights,
    length_buckets,
    read_corpus,
    token_limit,
    tokenize,
)
from rheostat.errors import CheckpointError, DataError, OptionError
from rheostat.evaluation import budget_logits, class_predictions, evaluate_budgets
from rheostat.importance import gradient_importance
from rheostat.losses import task_losses
from rheostat.measure import LatencyTable
from rheostat.model import SELECTIONS, BudgetedModel, Selection, load, wrap
from rheostat.objectives import BudgetSampler, LossOptions, Objective
from rheostat.quality import Quality, accuracy
from rheostat.report import OperatingPoint, latency_conditions
from rheostat.saving import load_config, quiet_transformers
from rheostat.subnet import DEFAULT_NEURON_BLOCK
from rheostat.timing import operating_points, time_budgets
from rheostat.training import StageOptions, train_stage

ADAPT_METHODS = ("sandwich", "straight-through", "none")


@dataclass(frozen=True)
class TrainOptions:
    """Everything that decides the result of :func:`train`, with the reasons of the defaults.

    Attributes:
        warm_epochs: Dense fine-tuning; 0 for a model that is fine-tuned already.
        soft_epochs: Learning the gates with the weights frozen: otherwise weights grow back what gates take.
        adapt: ``sandwich`` (slices, so that a step costs what its budgets cost), ``straight-through`` (the
            paper), or ``none``.
        adapt_epochs: Passes of the adapt stage.
        learning_rate: Of the warm start.
        adapt_learning_rate: Of the adapt stage; larger, because most subnets start far from their optimum.
        gate_learning_rate: Of the gates; 1,000 times that of the weights.
        soft_learning_rate: Of the weights in the soft stage; 0 freezes them, the paper trains them.
        batch_size: Rows a step.
        accumulation: Batches a step.
        cost: What a budget is a share of: ``macs`` or ``heads``.
        sequence_length: Tokens a sequence for ``macs``; None takes the median of the training rows.
        max_length: Longest input in tokens; None takes what tokenizer and model allow.
        min_budget: Smallest budget that is trained.
        neuron_block: Neurons a unit.
        min_heads_per_layer: What every layer keeps; None for the cost model's usual minimum.
        min_neurons_per_layer: The same for neurons.
        selection: ``nested`` or ``top-k``.
        distill_weight: Distillation against the task loss.
        temperature: Of the distillation.
        class_weighting: Whether rare classes weigh more in the task loss.
        calibration_rows: Training rows that importance is measured on.
        max_train_rows: Rows to train on at most; None for all.
        budgets: Budgets of the table.
        seed: Of everything random.
        precision: ``fp32``, ``bf16`` or ``fp16``.
    """

    warm_epochs: float = 3.0
    soft_epochs: float = 0.25
    adapt: str = "sandwich"
    adapt_epochs: float = 2.0
    learning_rate: float = 5e-5
    adapt_learning_rate: float = 1e-4
    gate_learning_rate: float = 5e-2
    soft_learning_rate: float = 0.0
    batch_size: int = 32
    accumulation: int = 1
    cost: str = "macs"
    sequence_length: int | None = None
    max_length: int | None = None
    min_budget: float = 0.1
    neuron_block: int = DEFAULT_NEURON_BLOCK
    min_heads_per_layer: int | None = None
    min_neurons_per_layer: int | None = None
    selection: str = "nested"
    distill_weight: float = 0.7
    temperature: float = 2.0
    class_weighting: bool = False
    calibration_rows: int = 512
    max_train_rows: int | None = None
    budgets: tuple[float, ...] = DEFAULT_BUDGETS
    seed: int = 0
    precision: str = "fp32"

    def __post_init__(self) -> None:
        """Refuse what can't be used before anything long starts."""
        check_cost_model(self.cost)
        check_budget(self.min_budget)
        descending(self.budgets)
        _one_of("adapt", self.adapt, ADAPT_METHODS)
        _one_of("selection", self.selection, SELECTIONS)
        _one_of("precision", self.precision, ("fp32", "bf16", "fp16"))
        for name in ("warm_epochs", "soft_epochs", "adapt_epochs", "learning_rate", "adapt_learning_rate"):
            _at_least(name, getattr(self, name), 0)
        for name in ("gate_learning_rate", "soft_learning_rate", "seed"):
            _at_least(name, getattr(self, name), 0)
        for name in ("batch_size", "accumulation", "calibration_rows", "neuron_block"):
            _at_least(name, getattr(self, name), 1)
        for name in ("sequence_length", "max_length", "max_train_rows"):
            if getattr(self, name) is not None:
                _at_least(name, getattr(self, name), 1)
        self._check_rates()
        if self.min_budget == 1.0:
            raise OptionError("min_budget must be below 1, so that there is something to train; got 1.0. Try 0.1")
        if not 0.0 < self.temperature < math.inf:
            raise OptionError(f"temperature must be above 0; got {self.temperature!r}. The default is 2")
        if not 0.0 <= self.distill_weight <= 1.0:
            raise OptionError(f"distill_weight must be in [0, 1]; got {self.distill_weight!r}. The default is 0.7")

    def _check_rates(self) -> None:
        """Refuse a stage that would train nothing."""
        stages = {
            "learning_rate": self.warm_epochs > 0 and not self.learning_rate,
            "gate_learning_rate": self.soft_epochs > 0 and not (self.gate_learning_rate or self.soft_learning_rate),
            "adapt_learning_rate": self.adapt != "none" and self.adapt_epochs > 0 and not self.adapt_learning_rate,
        }
        for name, trains_nothing in stages.items():
            if trains_nothing:
                raise OptionError(f"{name} must be above 0 in a stage with epochs; got 0. Set the epochs to 0 instead")


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise OptionError(f"{name} must be one of {', '.join(known)}; got {value!r}. The default is {known[0]}")


def _at_least(name: str, value: float, least: float) -> None:
    if not least <= value < math.inf:
        raise OptionError(f"{name} must be at least {least}; got {value!r}. See rheostat train --help")


@dataclass(frozen=True)
class TrainResult:
    """What :func:`train` leaves.

    Attributes:
        folder: The checkpoint.
        points: The table, on test rows where there are any, else on validation rows.
        rows_of: ``test`` or ``validation``.
        latency: The measurement behind the table, or None.
        stages: Seconds and more of every stage.
        soft: Soft evaluation on validation rows: budget, accuracy, mean gate, soft share (the estimated cost).
    """

    folder: Path
    points: list[OperatingPoint]
    rows_of: str
    latency: LatencyTable | None
    stages: dict[str, Any]
    soft: list[dict[str, float]]

    def training_seconds(self) -> float:
        """Return the wall time of all stages: steps, order, and the teacher's logits; without the table."""
        facts = [item for stage in self.stages.values() for item in stage.items()]
        return float(sum(value for name, value in facts if name.endswith("seconds")))

    def conditions(self) -> dict[str, Any]:
        """Return the conditions of the table: which rows, and how latency was measured."""
        rows = {"accuracy on": f"{self.rows_of} rows"}
        return rows if self.latency is None else {**rows, **latency_conditions(self.latency)}


@dataclass(frozen=True)
class Prepared:
    """Tokenized rows and what the model must know about them."""

    train: Any
    validation: Any
    test: Any
    collator: Collator
    tokenizer: Any
    info: CheckpointInfo
    median_length: int
    class_weights: tuple[float, ...] | None


class Work:
    """The folder beside the output that a stopped run resumes from; it goes when the run is complete."""

    def __init__(self, out: Path, key: dict[str, Any], *, restart: bool) -> None:
        """Open or make it.

        Raises:
            CheckpointError: it belongs to a run with other arguments.
        """
        self.folder = out.with_name(f"{out.name}.partial")
        self.record: dict[str, Any] = {"key": json.loads(json.dumps(key)), "stages": {}, "soft": []}
        self._fresh = restart or not self._holds_work()
        if self._fresh:
            return
        found = self._read()
        if found["key"] != self.record["key"]:
            raise CheckpointError(
                f"{str(self.folder)!r} must be of a run with the same arguments; it is of one with another "
                f"{', '.join(_changed(found['key'], self.record['key']))}. "
                "Repeat that command to finish it, or add --restart to throw it away"
            )
        self.record = found

    def open(self) -> None:
        """Make the folder, or say what it already holds; nothing is written before."""
        if self._fresh and is_main_process():
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
            self._write()
        if not self._fresh:
            done = ", ".join(self.record["stages"]) or "some steps of the first stage"
            stderr.print(f"Going on with the run in {self.folder} (done: {done}).", markup=False, soft_wrap=True)
        wait_for_all()

    def _holds_work(self) -> bool:
        """Return whether there is anything that starting anew would lose."""
        stages = any(self.folder.glob("*/rheostat.json"))
        return stages or any(self.folder.glob("*-steps/checkpoint-*/trainer_state.json"))

    def _read(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self.folder / "progress.json").read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{str(self.folder)!r} must hold a readable progress.json: {error}. Add --restart to throw it away"
            ) from None

    def done(self, stage: str) -> bool:
        """Return whether a stage is complete."""
        return stage in self.record["stages"]

    def finish(self, stage: str, facts: dict[str, Any], model: BudgetedModel) -> BudgetedModel:
        """Keep the model as it is after a stage, and return it; all ranks go on with that of rank 0."""
        self.record["stages"][stage] = facts
        if is_main_process():
            model.save_pretrained(self.folder / stage)
            self._write()
            shutil.rmtree(self.folder / f"{stage}-steps", ignore_errors=True)
        wait_for_all()
        return model if is_main_process() else self.load(stage)

    def load(self, stage: str) -> BudgetedModel:
        """Return the model as it was after a stage."""
        model: BudgetedModel = load(self.folder / stage)
        return model

    def steps(self, stage: str) -> Path:
        """Return where a stage keeps its own checkpoints."""
        return self.folder / f"{stage}-steps"

    def _write(self) -> None:
        if is_main_process():
            new = self.folder / "progress.json.new"
            new.write_text(json.dumps(self.record, indent=1), encoding="utf-8")
            os.replace(new, self.folder / "progress.json")


def _changed(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return the names of the arguments that differ between two runs."""
    parts = [(old, new), (old["options"], new["options"]), (old["read"], new["read"])]
    changed = {name for a, b in parts for name in {*a, *b} if a.get(name) != b.get(name)}
    return sorted(changed - {"options", "read"})


def wait_for_all() -> None:
    """Wait until every process of torchrun is here; alone, go on at once."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        PartialState(cpu=not torch.accelerator.is_available()).wait_for_everyone()


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
    restart: bool = False,
) -> TrainResult:
    """Train one checkpoint for all budgets: warm start, budgeted (soft gates), adapt (hard subnets), table.

    Ctrl-C leaves ``OUT.partial``; the same call goes on from it.

    Args:
        model_name: Folder or Hub name of a Hugging Face encoder.
        data: A file, a folder with train / validation / test files, or a Hub data set.
        out: Folder of the checkpoint; replaced only when the new one is complete.
        options: What decides the result.
        read_options: How ``data`` is read.
        measure_latency: Whether to time the materialized budgets for the table.
        batch: Rows a timed call.
        threads: Threads of the timing.
        restart: Throw a partial run away.

    Raises:
        RheostatError: anything that is wrong with the arguments, in one line, before anything long starts.
        Interrupted: Ctrl-C.
    """
    options = options or TrainOptions()
    out = Path(out)
    check_replaceable(out)
    config = load_config(model_name)
    key = {"model": model_name, "data": data, "options": asdict(options), "read": asdict(read_options or ReadOptions())}
    work = Work(out, key, restart=restart)
    corpus = read_corpus(data, read_options or ReadOptions(seed=options.seed))
    for note in corpus.notes:
        stderr.print(f"- {note}", markup=False, soft_wrap=True)
    transformers.set_seed(options.seed)
    rows = prepare(corpus, model_name, config, options)
    work.open()
    model = _warm(work, model_name, rows, options)
    teacher = _teacher_logits(work, model, rows)
    rows = dataclasses.replace(rows, train=rows.train.add_column("teacher_logits", list(teacher)))
    model = _soft(work, model, rows, options)
    model = _adapt(work, model, rows, options)
    return _finish(work, model, rows, options, out, measure_latency=measure_latency, batch=batch, threads=threads)


def prepare(corpus: Corpus, model_name: str, config: Any, options: TrainOptions) -> Prepared:
    """Tokenize all parts of a corpus for a model.

    Raises:
        DataError: a task that can't be trained.
    """
    if corpus.task == "regression":
        raise DataError(
            "task must be single-label or multi-label to train; got regression. Use labels that are classes"
        )
    tokenizer = load_tokenizer_of(model_name)
    limit = token_limit(tokenizer, config)
    length = limit if options.max_length is None else min(options.max_length, limit)
    labels = corpus.labels if options.warm_epochs > 0 else model_labels(config, corpus.labels)
    train_rows = corpus.train
    if options.max_train_rows is not None and options.max_train_rows < len(train_rows):
        chosen = np.random.default_rng(options.seed).permutation(len(train_rows))[: options.max_train_rows]
        train_rows = train_rows.select(np.sort(chosen))
    parts = {"train": train_rows, "validation": corpus.validation, "test": corpus.test}
    tokens = {
        name: tokenize(part, tokenizer, labels=labels, task=corpus.task, max_length=length)
        for name, part in parts.items()
        if part is not None
    }
    for name, part in tokens.items():
        stderr.print(f"- {name}: {len(part.dataset):,} rows; {part.note()}", markup=False, soft_wrap=True)
    encoded = np.asarray(tokens["train"].dataset["labels"])
    weighted = options.class_weighting and corpus.task == "single-label"
    return Prepared(
        train=tokens["train"].dataset,
        validation=tokens["validation"].dataset,
        test=tokens["test"].dataset if "test" in tokens else None,
        collator=Collator(tokenizer),
        tokenizer=tokenizer,
        info=CheckpointInfo(corpus.task, labels, length, training={"seed": options.seed}),
        median_length=int(tokens["train"].median_length),
        class_weights=tuple(class_weights(encoded, len(labels)).tolist()) if weighted else None,
    )


def model_labels(config: Any, labels: tuple[str, ...]) -> tuple[str, ...]:
    """Return the label names of a fine-tuned model, in the order of its logits, if they are those of the data.

    Raises:
        DataError: the model's classes are others than those of the data.
    """
    names = tuple(str(config.id2label[i]) for i in sorted(config.id2label))
    if set(names) == set(labels) and len(names) == len(labels):
        return names
    raise DataError(
        f"labels must be those of the fine-tuned model, {list(names)[:20]}; got {list(labels)[:20]}. "
        "Rename them in the data or the model's config, or train with warm_epochs above 0"
    )


def load_tokenizer_of(model_name: str) -> Any:
    """Return the tokenizer of a model folder or Hub name.

    Raises:
        CheckpointError: there is none; transformers then makes one that knows no word.
    """
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(model_name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise CheckpointError(f"model must have a tokenizer; got {model_name!r}: {reason}") from None
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        raise CheckpointError(
            f"model must have a tokenizer with words; {model_name!r} has none. Save the tokenizer beside the model"
        )
    return tokenizer


def load_encoder(model_name: str, info: CheckpointInfo, *, head_is_trained: bool) -> Any:
    """Return the encoder with a classifier for the labels, in float32; only the head may be new, if it is trained.

    Raises:
        CheckpointError: a weight is missing or unreadable, or the model has a classifier of another size.
    """
    names = dict(enumerate(info.labels))
    problem = "multi_label_classification" if info.task == "multi-label" else "single_label_classification"
    try:
        with quiet_transformers():
            model, report = transformers.AutoModelForSequenceClassification.from_pretrained(
                model_name,
                num_labels=len(names),
                id2label=names,
                label2id={name: i for i, name in names.items()},
                problem_type=problem,
                dtype=torch.float32,
                output_loading_info=True,
                trust_remote_code=False,
            )
    except SafetensorError as error:
        raise CheckpointError(
            f"weights of {model_name!r} must be readable; got {error}: cut short or damaged. Copy them again"
        ) from None
    except RuntimeError as error:
        if "ignore_mismatched_sizes" not in str(error):
            raise
        raise CheckpointError(
            f"model must have a classifier for the {len(names)} labels of the data, or none; {model_name!r} has one of "
            "another size. Give the encoder that it was fine-tuned from, or data with its labels"
        ) from None
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise CheckpointError(f"model must load with {len(names)} labels; got {model_name!r}: {reason}") from None
    prefix = f"{model.base_model_prefix}."
    missing = sorted(report["missing_keys"])
    lost = [name for name in missing if name.startswith(prefix) and ".pooler." not in name]
    if lost:
        raise CheckpointError(f"model must hold all encoder weights; {model_name!r} lacks {', '.join(lost[:5])}")
    if missing and not head_is_trained:
        raise CheckpointError(
            f"model must be fine-tuned already to train with warm_epochs 0; {model_name!r} lacks "
            f"{', '.join(missing[:5])}. Give a fine-tuned model, or warm_epochs above 0"
        )
    return model


def _warm(work: Work, model_name: str, rows: Prepared, options: TrainOptions) -> BudgetedModel:
    """Fine-tune densely, then sort and order units by importance."""
    if work.done("warm"):
        return work.load("warm")
    budgeted = wrap(
        load_encoder(model_name, rows.info, head_is_trained=options.warm_epochs > 0),
        cost=options.cost,
        sequence_length=options.sequence_length or max(rows.median_length, 1),
        neuron_block=options.neuron_block,
        min_heads_per_layer=options.min_heads_per_layer,
        min_neurons_per_layer=options.min_neurons_per_layer,
        selection=_selection(options),
        info=rows.info,
        tokenizer=rows.tokenizer,
    )
    if options.budgets != DEFAULT_BUDGETS:  # of the usual grid the table shows what can be reached
        for budget in options.budgets:
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
        seed=options.seed,
        precision=options.precision,
        **changes,
    )


def order_by_data(model: BudgetedModel, rows: Prepared, options: TrainOptions) -> None:
    """Order the units of a fine-tuned model by importance on training rows."""
    count = min(options.calibration_rows, len(rows.train))
    chosen = np.random.default_rng(options.seed).permutation(len(rows.train))[:count]
    picked = rows.train.select(np.sort(chosen))
    task = model.info.task or "single-label"
    batches = (
        {name: tensor.to(model.device) for name, tensor in rows.collator(list(picked.select(ids))).items()}
        for ids in length_buckets(picked["length"], 32)
    )
    importance = gradient_importance(
        model.base,
        model.spec,
        model.shape,
        batches,
        lambda output, batch: task_losses(task, output.logits, batch["labels"]),
    )
    model.order_by_importance(importance)


def _teacher_logits(work: Work, model: BudgetedModel, rows: Prepared) -> NDArray[np.float32]:
    """Return the dense model's logits of the training rows, (N, C), computed once a run."""
    path = work.folder / "teacher.npy"
    if path.is_file():
        found: NDArray[np.float32] = np.load(path, allow_pickle=False)
        if len(found) == len(rows.train):
            return found
    teacher = work.load("warm") if work.done("soft") else model
    started = time.perf_counter()
    logits = budget_logits(teacher, rows.train, rows.collator, 1.0, title="Teacher logits")
    if is_main_process():
        new = path.with_suffix(".new.npy")
        np.save(new, logits)
        os.replace(new, path)
        work.record["stages"]["warm"]["teacher_seconds"] = time.perf_counter() - started
    return logits


def _soft(work: Work, model: BudgetedModel, rows: Prepared, options: TrainOptions) -> BudgetedModel:
    """Learn the gates, evaluate them soft, and leave the soft checkpoint; the order is not frozen yet."""
    if work.done("soft"):
        return work.load("soft")
    facts: dict[str, Any] = {"seconds": 0.0, "epochs": options.soft_epochs}
    if options.soft_epochs > 0:
        losses = _losses(options, rows)
        # With the weights frozen nothing can be learned at 1.0, where every gate is 1.
        full_share = 0.1 if options.soft_learning_rate > 0 else 0.0
        sampler = BudgetSampler("soft", _low(model, options), full_share=full_share, seed=options.seed)
        stage = _stage(
            options,
            options.soft_epochs,
            options.soft_learning_rate,
            gate_learning_rate=options.gate_learning_rate,
        )
        objective = Objective(model, "soft", losses)
        facts |= train_stage(objective, rows.train, rows.collator, sampler, stage, work.steps("soft"), "Budgeted")
    work.record["soft"] = soft_evaluation(model, rows, options)
    for line in work.record["soft"]:
        stderr.print(
            f"- soft gates at {line['budget']:g}: accuracy {line['accuracy']:.4f}, mean gate {line['mean_gate']:.3f}, "
            f"estimated cost {line['soft_share']:.3f}"
        )
    return work.finish("soft", facts, model)


def _losses(options: TrainOptions, rows: Prepared) -> LossOptions:
    return LossOptions(
        distill_weight=options.distill_weight, temperature=options.temperature, class_weights=rows.class_weights
    )


def _low(model: BudgetedModel, options: TrainOptions) -> float:
    return max(options.min_budget, model.floor)


def soft_evaluation(model: BudgetedModel, rows: Prepared, options: TrainOptions) -> list[dict[str, float]]:
    """Return what soft gates score on validation rows, with their mean and their share: the paper's estimated cost."""
    labels = np.asarray(rows.validation["labels"])
    task = model.info.task or "single-label"
    lines = []
    for budget in reachable(options.budgets, model.floor):
        logits = budget_logits(model, rows.validation, rows.collator, budget, form="soft", title="Soft evaluation")
        right = accuracy(class_predictions(task, logits), labels)
        with torch.no_grad():
            mean, share = float(model.mean_gate(budget)), float(model.soft_share(budget))
        lines.append({"budget": budget, "accuracy": right, "mean_gate": mean, "soft_share": share})
    return lines


def _adapt(work: Work, model: BudgetedModel, rows: Prepared, options: TrainOptions) -> BudgetedModel:
    """Freeze the order and train the hard subnets."""
    if work.done("adapt"):
        return work.load("adapt")
    straight = options.adapt == "straight-through"
    teacher = work.load("soft") if straight else None
    model.freeze_order()
    facts: dict[str, Any] = {"seconds": 0.0, "method": options.adapt, "epochs": options.adapt_epochs}
    if options.adapt != "none" and options.adapt_epochs > 0:
        sampler = BudgetSampler(options.adapt, _low(model, options), seed=options.seed)
        stage = _stage(
            options,
            options.adapt_epochs,
            options.adapt_learning_rate,
            gate_learning_rate=options.gate_learning_rate / 10 if straight else 0.0,
            freeze_embeddings=True,
        )
        objective = Objective(model, options.adapt, _losses(options, rows), teacher)
        facts |= train_stage(objective, rows.train, rows.collator, sampler, stage, work.steps("adapt"), "Adapt")
        model.info = dataclasses.replace(model.info, trained_budgets=(sampler.low, 1.0))
    if straight and model.selection == "nested":
        model.project_gates()  # the order stays the one that was trained
    return work.finish("adapt", facts, model)


def _finish(
    work: Work,
    model: BudgetedModel,
    rows: Prepared,
    options: TrainOptions,
    out: Path,
    *,
    measure_latency: bool,
    batch: int,
    threads: int,
) -> TrainResult:
    """Evaluate, measure, and put the checkpoint in place."""
    budgets = reachable(descending((1.0, *options.budgets)), model.floor)
    validated = evaluate_budgets(model, rows.validation, rows.collator, budgets)
    tested: list[Quality] = validated
    if rows.test is not None:
        tested = evaluate_budgets(model, rows.test, rows.collator, budgets)
    stages = work.record["stages"]
    training = {**model.info.training, "stages": stages, "options": asdict(options)}
    evaluation = tuple(quality.to_json() for quality in validated)
    model.info = dataclasses.replace(model.info, evaluation=evaluation, training=training)
    latency = None
    if measure_latency and is_main_process():
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
    )
