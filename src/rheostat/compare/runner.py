"""Run a comparison: one folder, one finished method after the other, the same call goes on where it stopped."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from rheostat.budget import COMPARED_BUDGETS, check_budget, descending
from rheostat.calibration import CLASSIFICATIONS
from rheostat.checkpoint import is_checkpoint, task_of, write_whole
from rheostat.compare.linear import linear_logits
from rheostat.compare.methods import METHODS, Method, Plan, dense_key
from rheostat.compare.readings import Answers, Outcome, Reading, readings_of
from rheostat.compare.table import Line, lines_of
from rheostat.console import stderr
from rheostat.cost import CostTable
from rheostat.data import Corpus, ReadOptions, read_corpus
from rheostat.errors import CheckpointError, OptionError, missing
from rheostat.evaluation import budget_logits
from rheostat.families import find_spec as architecture_of
from rheostat.model import BudgetedModel, Form, load, wrap
from rheostat.pipeline import train
from rheostat.preparing import Prepared, check_reads_texts, load_tokenizer_of, prepare, some_rows
from rheostat.recipe import TrainOptions
from rheostat.saving import load_config, quiet_transformers
from rheostat.subnet import Subnet
from rheostat.training import autocast
from rheostat.work import fingerprint

# Checkpoints that later methods or people start from; those of single budgets go when they were read.
KEPT = ("dense", "sandwich")
KEY_FILE = "comparison.json"
LIKELY_LENGTH = 64  # to know the floor before the rows are tokenized, on which it hardly depends


def compare(
    model_name: str,
    data: str,
    out: str | os.PathLike[str],
    *,
    methods: Sequence[str] = ("dense", "dense-equal", "post-hoc", "recovered", "fewer-layers", "linear", "sandwich"),
    budgets: Sequence[float] = COMPARED_BUDGETS,
    options: TrainOptions | None = None,
    read_options: ReadOptions | None = None,
    seeds: Sequence[int] = (0,),
) -> list[Line]:
    """Train and read every method at every budget for every seed, and return the table.

    ``OUT`` keeps what is finished, the dense and the budgeted checkpoints, and the logits of all rows that were read:
    test rows where there are any, else validation rows. The same call goes on after Ctrl-C.

    Args:
        model_name: Folder or Hub name of a Hugging Face encoder.
        data: A file, a folder with train / validation / test files, or a Hub data set.
        out: Folder of the comparison.
        methods: Names in :data:`METHODS`; ``dense`` always runs.
        budgets: Points of the budgeted and the pruned models, below 1; the full model of each is read as well.
        options: Of the budgeted model; everything else is derived from it.
        read_options: How ``data`` is read; the seed is that of each run.
        seeds: One run each.

    Raises:
        RheostatError: anything that is wrong with the arguments, before anything long starts.
        Interrupted: Ctrl-C.
    """
    comparison = Comparison(model_name, data, Path(out), options or TrainOptions(), read_options or ReadOptions())
    return comparison.run(methods, budgets, seeds)


@dataclass(frozen=True)
class Comparison:
    """What is compared on: model, data, recipe. See :func:`compare`.

    Attributes:
        model_name: Folder or Hub name of the encoder.
        data: Where the rows are.
        out: Folder of the comparison.
        options: Of the budgeted model.
        read_options: How the rows are read.
        dense_from: Another comparison with the same dense models, which are used.
        read_precision: What all answers are computed in: ``fp32``, ``bf16`` or ``fp16``.
    """

    model_name: str
    data: str
    out: Path
    options: TrainOptions
    read_options: ReadOptions
    dense_from: Path | None = None
    read_precision: str = "fp32"

    def run(self, methods: Sequence[str], budgets: Sequence[float], seeds: Sequence[int]) -> list[Line]:
        """Run what is missing and return the table."""
        return lines_of(self.readings(methods, budgets, seeds))

    def readings(self, methods: Sequence[str], budgets: Sequence[float], seeds: Sequence[int]) -> list[Reading]:
        """Run what is missing and return which rows every model answered correctly."""
        return readings_of(*self.outcomes(methods, budgets, seeds))

    def outcomes(
        self, methods: Sequence[str], budgets: Sequence[float], seeds: Sequence[int]
    ) -> tuple[list[Outcome], dict[int, Answers]]:
        """Run what is missing and return what every model answered, and the right answers of every seed."""
        unknown = sorted(set(methods) - set(METHODS))
        if unknown or not seeds:
            raise OptionError(f"methods must be among {', '.join(METHODS)}; got {', '.join(unknown) or 'no seed'}")
        chosen = ["dense", *(name for name in METHODS if name in methods and name != "dense")]
        asked = tuple(budget for budget in descending(budgets) if budget < 1.0)
        if not asked:
            raise OptionError(f"budgets must hold one below 1; got {list(budgets)!r}. Pass for example 0.5,0.25")
        self._check(chosen, asked)
        self._claim()
        outcomes: list[Outcome] = []
        answers = {}
        for seed in dict.fromkeys(seeds):
            run = _SeedRun(self, seed)
            for name in chosen:
                outcomes += run.outcomes(name, METHODS[name], asked)
            answers[seed] = run.answers
        return outcomes, answers

    def _check(self, methods: Sequence[str], budgets: Sequence[float]) -> None:
        """Refuse what would stop the comparison after hours: no such model or data, a budget below the floor.

        Raises:
            RheostatError: what it is.
        """
        if self.options.adapt == "none":
            raise OptionError("adapt must be a way to train subnets in a comparison; got none. Choose methods instead")
        if "linear" in methods and find_spec("sklearn") is None:
            raise missing("scikit-learn", "report")
        config = load_config(self.model_name)
        check_reads_texts(config)
        task = read_corpus(self.data, self.read_options).task
        if task not in CLASSIFICATIONS:
            raise OptionError(f"task must be {' or '.join(CLASSIFICATIONS)} to compare; got {task}. Set --task")
        with torch.device("meta"):
            empty = transformers.AutoModelForSequenceClassification.from_config(config)
        length = self.options.sequence_length or LIKELY_LENGTH
        chosen = self.options
        floor = wrap(
            empty,
            cost=chosen.cost,
            sequence_length=length,
            neuron_block=chosen.neuron_block,
            min_heads_per_layer=chosen.min_heads_per_layer,
            min_neurons_per_layer=chosen.min_neurons_per_layer,
        ).floor
        for budget in budgets:
            check_budget(budget, floor=floor)

    @property
    def _key(self) -> dict[str, Any]:
        key = {
            "model": self.model_name,
            "data": self.data,
            "files": fingerprint(self.data),
            "options": asdict(dataclasses.replace(self.options, seed=0)),
            "read": asdict(dataclasses.replace(self.read_options, seed=0)),
            "read_precision": self.read_precision,
        }
        return dict(json.loads(json.dumps(key)))

    def _claim(self) -> None:
        """Keep the folder for one set of arguments: another recipe must not be mixed into its table."""
        path = self.out / KEY_FILE
        if self.dense_from is not None:
            lender, own = json.loads((self.dense_from / KEY_FILE).read_text(encoding="utf-8")), self._key
            same = all(lender[name] == own[name] for name in _SAME)
            if not same or dense_key(lender["options"]) != dense_key(own["options"]):
                raise CheckpointError(f"{str(self.dense_from)!r} must have the same dense models to lend them")
        if path.is_file():
            if json.loads(path.read_text(encoding="utf-8")) != self._key:
                raise CheckpointError(
                    f"{str(self.out)!r} must be of a comparison with the same arguments; it is of another. "
                    "Choose another folder"
                )
            return
        if self.out.exists() and any(self.out.iterdir()):
            raise CheckpointError(f"{str(self.out)!r} must be new or a comparison; it holds something else")
        self.out.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(self._key, indent=1))


_SAME = ("model", "data", "files", "read", "read_precision")  # what lent dense models and their answers depend on


class _SeedRun:
    """All methods of one seed."""

    def __init__(self, comparison: Comparison, seed: int) -> None:
        self.of, self.seed = comparison, seed
        self.options = dataclasses.replace(comparison.options, seed=seed)
        self.read = dataclasses.replace(comparison.read_options, seed=seed)
        self.folder = comparison.out / f"seed-{seed}"
        self.folder.mkdir(exist_ok=True)
        if comparison.dense_from is not None:
            self._borrow(comparison.dense_from / f"seed-{seed}")

    def _borrow(self, lender: Path) -> None:
        """Copy the dense model and its answers, the answers last."""
        answers = self._path("dense", 1.0)
        if not answers.is_file() and (lender / answers.name).is_file():
            shutil.rmtree(self.folder / "dense", ignore_errors=True)
            shutil.copytree(lender / "dense", self.folder / "dense")
            shutil.copy(lender / answers.name, answers.with_suffix(".new"))
            os.replace(answers.with_suffix(".new"), answers)

    @cached_property
    def corpus(self) -> Corpus:
        return read_corpus(self.of.data, self.read)

    @cached_property
    def rows(self) -> Prepared:
        return prepare(self.corpus, self.of.model_name, load_config(self.of.model_name), self.options)

    @property
    def read_rows(self) -> Any:
        """Return the rows that every method is read on."""
        return self.rows.validation if self.rows.test is None else self.rows.test

    @cached_property
    def answers(self) -> Answers:
        part = self.corpus.validation if self.corpus.test is None else self.corpus.test
        identity = hashlib.sha256("\0".join(texts_of(part)).encode("utf-8", "surrogatepass")).hexdigest()
        rows_of = "validation" if self.corpus.test is None else "test"
        return Answers(self.task, identity, np.asarray(self.read_rows["labels"]), rows_of)

    @property
    def task(self) -> str:
        return task_of(self.rows.info)

    @cached_property
    def layer_shares(self) -> tuple[float, ...]:
        """Return the share of the first n layers of the encoder, for n = 1, 2, ..."""
        dense: BudgetedModel = load(self.folder / "dense")
        length = self.options.sequence_length or max(self.rows.median_length, 1)
        asked = self.options.cost
        costs = asked if isinstance(asked, CostTable) else dense.spec.costs(asked, dense.shape, dense.base, length)
        layers = dense.shape.layers
        return tuple(
            costs.share(
                Subnet.prefix(
                    dense.shape,
                    [layer.num_attention_heads * (i < n) for i, layer in enumerate(layers)],
                    [layer.intermediate_size * (i < n) for i, layer in enumerate(layers)],
                )
            )
            for n in range(1, len(layers) + 1)
        )

    def outcomes(self, name: str, method: Method, budgets: Sequence[float]) -> Iterator[Outcome]:
        """Yield what a method reached, running what is missing."""
        if name == "linear":
            if not self._path("linear", 1.0).is_file():
                _save(self._path("linear", 1.0), self._linear())
            yield _read(self._path("linear", 1.0))
            return
        shares = () if name == "dense" else self.layer_shares
        for plan in method.plans(self.options, budgets, shares):
            if not all(self._path(plan.name, b).is_file() for b in plan.points):
                stderr.print(f"[bold]{name}[/bold], seed {self.seed}: {plan.name}", highlight=False)
                self._run(name, plan)
            yield from (_read(self._path(plan.name, b)) for b in plan.points)

    def _run(self, name: str, plan: Plan) -> None:
        """Train the model of a plan, and keep what it answers."""
        out = self.folder / plan.name
        soft_out = self.folder / f"{plan.name}-gates" if plan.form == "soft" else None
        logits: dict[float, NDArray[np.float32]] = {}
        if not is_checkpoint(out) or (soft_out is not None and not is_checkpoint(soft_out)):
            options = dataclasses.replace(plan.options, budgets=plan.points)
            if self.corpus.test is None:  # what units are ranked on must not be what they are read on
                options = dataclasses.replace(options, calibration_split="train")
            start = self._start(plan)
            logits = train(
                start,
                self.of.data,
                out,
                options,
                read_options=self.read,
                measure_latency=False,
                soft_out=soft_out,
                read_precision=self.of.read_precision,
            ).logits
        model: BudgetedModel = load(soft_out or out)
        stages = load(out).info.training["stages"]
        form: Form = "soft" if plan.form == "soft" else "sliced"
        for budget in plan.points:
            if budget not in logits or form == "soft":
                with autocast(self.of.read_precision, model.device):
                    logits[budget] = budget_logits(model, self.read_rows, self.rows.collator, budget, form=form)
            outcome = Outcome(
                method=name,
                model=plan.name,
                seed=self.seed,
                budget=budget if plan.budgets else None,
                share=self._share(plan, budget, model),
                epochs=self._own(stages, "epochs") + self._inherited(plan, "epochs"),
                seconds=self._own(stages, "seconds") + self._inherited(plan, "seconds"),
                inherited_epochs=self._inherited(plan, "epochs"),
                inherited_seconds=self._inherited(plan, "seconds"),
                logits=logits[budget],
            )
            _save(self._path(plan.name, budget), outcome)
        for folder in [] if plan.name in KEPT else [out, *([] if soft_out is None else [soft_out])]:
            shutil.rmtree(folder)

    def _start(self, plan: Plan) -> str:
        """Return the folder or name that a plan starts from."""
        if plan.start == "dense":
            return str(self.folder / "dense")
        if plan.layers is None:
            return self.of.model_name
        folder = self.folder / f"first-{plan.layers}"
        first_layers(self.of.model_name, plan.layers, folder)
        return str(folder)

    def _share(self, plan: Plan, budget: float, model: BudgetedModel) -> float:
        if plan.form == "soft":
            return float(model.soft_share(budget).detach())
        if plan.layers is not None:
            return self.layer_shares[plan.layers - 1]
        return model.costs.share(model.subnet(budget))

    @staticmethod
    def _own(stages: dict[str, Any], what: str) -> float:
        """Return the epochs or seconds of a model's own stages."""
        return sum(float(value) for stage in stages.values() for name, value in stage.items() if name.endswith(what))

    def _inherited(self, plan: Plan, what: str) -> float:
        """Return the epochs or seconds of the dense model that a plan starts from."""
        return float(getattr(_read(self._path("dense", 1.0)), what)) if plan.start == "dense" else 0.0

    def _linear(self) -> Outcome:
        stderr.print(f"[bold]linear[/bold], seed {self.seed}", highlight=False)
        part = self.corpus.validation if self.corpus.test is None else self.corpus.test
        rows = some_rows(self.corpus.train, self.options.max_train_rows, self.options.seed)
        train_texts, texts = texts_of(rows), texts_of(part)
        labels = np.asarray(self.rows.train["labels"])
        started = time.perf_counter()
        logits = linear_logits(
            train_texts,
            labels,
            texts,
            task=self.task,
            classes=len(self.rows.info.labels),
        )
        seconds = time.perf_counter() - started
        return Outcome("linear", "linear", self.seed, None, 0.0, 0.0, seconds, logits.astype(np.float32))

    def _path(self, model: str, budget: float) -> Path:
        return self.folder / f"{model}@{budget:g}.npz"


def texts_of(rows: Any) -> list[str]:
    """Return the texts of a part of a corpus, both of a pair in one."""
    if "text_pair" not in rows.column_names:
        return list(rows["text"])
    return [f"{first} {second}" for first, second in zip(rows["text"], rows["text_pair"], strict=True)]


def first_layers(model_name: str, count: int, folder: Path) -> None:
    """Write the encoder's first ``count`` layers and its tokenizer to ``folder``, in the Hugging Face layout."""
    with quiet_transformers():
        kinds = getattr(transformers.AutoConfig.from_pretrained(model_name), "layer_types", None)
        changes = {} if kinds is None else {"layer_types": kinds[:count]}
        config = transformers.AutoConfig.from_pretrained(model_name, num_hidden_layers=count, **changes)
        model = transformers.AutoModel.from_pretrained(model_name, config=config, trust_remote_code=False)
    if len(architecture_of(model).layer_list(model)) != count:
        raise OptionError(
            f"fewer-layers must be able to cut {type(model).__name__}; its config has no number of layers"
        )
    model.save_pretrained(folder)
    load_tokenizer_of(model_name).save_pretrained(folder)


def _save(path: Path, outcome: Outcome) -> None:
    """Write an outcome whole or not at all: its logits, and the rest as JSON beside them."""
    record = {name: value for name, value in vars(outcome).items() if name != "logits"}
    new = path.with_suffix(".new.npz")
    np.savez(new, logits=outcome.logits, record=np.array(json.dumps(record)))
    os.replace(new, path)


def _read(path: Path) -> Outcome:
    with np.load(path, allow_pickle=False) as found:
        return Outcome(**json.loads(str(found["record"])), logits=found["logits"])
