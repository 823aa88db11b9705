"""One training stage on the Hugging Face Trainer: budgets a step, two learning rates, progress, Ctrl-C that resumes."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn
from torch.utils.data import Sampler
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import PrinterCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from rheostat.console import stderr
from rheostat.data import length_buckets
from rheostat.objectives import BudgetSampler, Objective


@dataclass(frozen=True)
class StageOptions:
    """How long and how fast a stage trains.

    Attributes:
        epochs: Passes over the training rows; fractions stop within an epoch.
        learning_rate: Of the weights; 0 freezes them.
        gate_learning_rate: Of the gates; 0 freezes them. They need 10 to 1,000 times that of the weights.
        batch_size: Rows a step and process.
        accumulation: Batches a step.
        weight_decay: Of matrices; never of gates, biases and norms.
        warmup_share: Share of the steps in which the learning rate rises.
        freeze_embeddings: Whether embeddings stay as they are.
        only_corrections: Whether the model's corrections are trained, and nothing else.
        dropout: Whether the model's dropout is active.
        save_every: Steps between checkpoints that a run can resume from.
        seed: Of data order and dropout.
        precision: ``fp32``, ``bf16`` or ``fp16`` (mixed precision).
        extra: Any other argument of ``transformers.TrainingArguments``.
    """

    epochs: float = 1.0
    learning_rate: float = 5e-5
    gate_learning_rate: float = 0.0
    batch_size: int = 32
    accumulation: int = 1
    weight_decay: float = 0.01
    warmup_share: float = 0.06
    freeze_embeddings: bool = False
    only_corrections: bool = False
    dropout: bool = True
    save_every: int = 200
    seed: int = 0
    precision: str = "fp32"
    extra: tuple[tuple[str, Any], ...] = ()


LOG_SECONDS = 30.0


class Interrupted(KeyboardInterrupt):
    """Training was stopped by Ctrl-C after writing a state that the same call resumes from."""


class RowOrder(Sampler[int]):
    """Rows of similar length side by side, in an order that is a function of seed and epoch alone.

    The Trainer's own sampler draws from the global generator, which a resumed run no longer has in the state that its
    epoch began with: it would train some rows twice and others never.
    """

    def __init__(self, lengths: Any, group: int, seed: int, epoch: Callable[[], int]) -> None:
        """Put ``group`` rows of similar ``lengths`` (N,) side by side; ``epoch`` tells the epoch that begins."""
        self._lengths, self._group, self._seed, self._epoch = np.asarray(lengths), group, seed, epoch

    def __len__(self) -> int:
        return len(self._lengths)

    def __iter__(self) -> Iterator[int]:
        seed = 1_000_003 * self._seed + self._epoch()
        groups = length_buckets(self._lengths, self._group, seed=seed)
        groups.sort(key=lambda rows: len(rows) < self._group)  # a short one in between would shift all that follow
        return (row for rows in groups for row in rows)


class StageTrainer(Trainer):
    """The Trainer with budgets: every rank and every resumed run samples the same ones for the same step."""

    optimizer: torch.optim.Optimizer | None

    def __init__(self, *args: Any, sampler: BudgetSampler, gate_learning_rate: float, **kwargs: Any) -> None:
        """Take the Trainer's arguments and what a stage adds."""
        super().__init__(*args, **kwargs)
        self.sampler = sampler
        self.gate_learning_rate = gate_learning_rate
        self.loss_is_scaled_for_ga = False  # the objective is a mean over one batch
        self.model_accepts_loss_kwargs = False
        self._part = (-1, -1)  # (step, batch within it)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Return the objective at this step's budgets."""
        step = self.state.global_step
        self._part = (step, self._part[1] + 1 if self._part[0] == step else 0)
        loss = model(budgets=self.sampler(*self._part), **inputs)
        return (loss, {"loss": loss}) if return_outputs else loss

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        """Write tied weights under every name: safetensors takes no memory twice, and resuming asks for all names."""
        state = cast(nn.Module, self.model).state_dict() if state_dict is None else state_dict
        super()._save(output_dir, _apart(state))

    def _get_train_sampler(self, train_dataset: Any = None) -> RowOrder:
        """Return the order of the rows, the same on every rank: batches are dealt out to the ranks in turn."""
        rows = self.train_dataset if train_dataset is None else train_dataset
        args = self.args
        group = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        return RowOrder(rows["length"], group, args.seed, lambda: int(self.state.epoch or 0))

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Give gates their own learning rate and no weight decay."""
        if self.optimizer is None:
            target = self.model if model is None else model
            decaying = set(self.get_decay_parameter_names(target))
            groups: dict[str, list[nn.Parameter]] = {"decay": [], "plain": [], "gates": []}
            for name, parameter in target.named_parameters():
                if parameter.requires_grad:
                    decays = name in decaying and ".corrections." not in name
                    kind = "gates" if ".gates." in f".{name}" else "decay" if decays else "plain"
                    groups[kind].append(parameter)
            cls, kwargs = self.get_optimizer_cls_and_kwargs(self.args, target)
            settings: dict[str, dict[str, float]] = {
                "decay": {"weight_decay": self.args.weight_decay},
                "plain": {"weight_decay": 0.0},
                "gates": {"weight_decay": 0.0, "lr": self.gate_learning_rate},
            }
            self.optimizer = cls([{"params": p, **settings[k]} for k, p in groups.items() if p], **kwargs)
        return self.optimizer


def _apart(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors of which no two share memory."""
    seen: set[int] = set()
    found = {}
    for name, tensor in state.items():
        found[name] = tensor.clone() if tensor.numel() and tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    return found


class ProgressToStderr(TrainerCallback):
    """A progress bar on stderr with the loss, or a line now and then in a log; stdout belongs to results."""

    def __init__(self, title: str) -> None:
        """Show ``title`` beside the bar."""
        self._title = title
        self._loss = ""
        self._next_line = 0.0
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[loss]}"),
            console=stderr,
        )
        self._task = self._bar.add_task(title, total=None, loss="")

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the bar."""
        if state.is_world_process_zero:
            if stderr.is_terminal:
                self._bar.start()
            self._bar.update(self._task, total=state.max_steps, completed=state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Move the bar; without a terminal, print a line every half minute."""
        self._bar.update(self._task, completed=state.global_step)
        if not stderr.is_terminal and state.is_world_process_zero and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LOG_SECONDS
            stderr.print(f"{self._title}: step {state.global_step} of {state.max_steps} {self._loss}", highlight=False)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        """Show the loss."""
        if logs and "loss" in logs:
            self._loss = f"loss {float(logs['loss']):.3f}"
            self._bar.update(self._task, loss=self._loss)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop the bar; without a terminal it never began, and to stop it would print an empty line."""
        if self._bar.live.is_started:
            self._bar.stop()


class Clock(TrainerCallback):
    """Adds up the wall time of a stage over the sessions that it took; steps that a kill lost count again."""

    def __init__(self, folder: Path, *, resumed: bool) -> None:
        """Go on from what ``folder`` says, if a stage is resumed."""
        self._file = folder / "seconds.json"
        self._before = float(json.loads(self._file.read_text("utf-8"))) if resumed and self._file.is_file() else 0.0
        self._start = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Return the seconds so far."""
        return self._before + time.perf_counter() - self._start

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start."""
        self._start = time.perf_counter()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Remember the time of the saved state."""
        if state.is_world_process_zero:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.write_text(json.dumps(self.seconds), encoding="utf-8")


class StopOnInterrupt(TrainerCallback):
    """Ctrl-C ends training after the running step, with a checkpoint; a second one ends it at once."""

    def __init__(self) -> None:
        """Nothing was asked for yet."""
        self.interrupted = False
        self._previous: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take over SIGINT; only the main thread may."""
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, frame: Any) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        stderr.print(
            "Stopping after this step; press Ctrl-C again to stop at once and lose the steps since the last save.",
            soft_wrap=True,
        )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save and stop if asked to; all ranks after the same step, or some would wait for ever."""
        if args.world_size > 1:
            asked = torch.tensor(int(self.interrupted), device=args.device)
            torch.distributed.all_reduce(asked, torch.distributed.ReduceOp.MAX)
            self.interrupted = bool(asked.item())
        if self.interrupted:
            control.should_save = control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Give SIGINT back."""
        self.restore()

    def restore(self) -> None:
        """Give SIGINT back to whoever had it."""
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
            self._previous = None


def set_trainable(objective: Objective, options: StageOptions) -> None:
    """Freeze what a stage does not train."""
    model = objective.model
    model.base.requires_grad_(options.learning_rate > 0 and not options.only_corrections)
    model.gates.requires_grad_(options.gate_learning_rate > 0)
    if model.corrections is not None:
        model.corrections.requires_grad_(options.only_corrections)
    if options.freeze_embeddings and options.learning_rate > 0 and not options.only_corrections:
        cast(Any, model.base).get_input_embeddings().requires_grad_(False)


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Set the probability of every dropout of ``model`` to 0 within the block."""
    modules = [module for module in model.modules() if isinstance(module, nn.modules.dropout._DropoutNd)]
    before = [module.p for module in modules]
    for module in modules:
        module.p = 0.0
    try:
        yield
    finally:
        for module, p in zip(modules, before, strict=True):
            module.p = p


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """Return the block in which a model computes in ``precision``: ``fp32``, ``bf16`` or ``fp16``.

    Never around training: torch keeps the rounded weights until the outermost block ends, so steps would be lost.
    """
    dtype = torch.float16 if precision == "fp16" else torch.bfloat16
    return torch.autocast(device.type, dtype, enabled=precision != "fp32")


@contextmanager
def eager_attention(model: Any) -> Iterator[None]:
    """Compute attention as plain matrix products within the block.

    On CPUs the backward pass of the fused attention does not use their bfloat16 units: it takes half of a step, and
    plain products a tenth.
    """
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def train_stage(
    objective: Objective,
    rows: Any,
    collator: Any,
    sampler: BudgetSampler,
    options: StageOptions,
    folder: Path,
    title: str,
) -> dict[str, float]:
    """Train one stage, resuming from the last checkpoint in ``folder`` if there is one.

    Args:
        objective: What to minimize; its model is trained in place.
        rows: A data set of tokenized rows with a ``length`` column.
        collator: Makes a batch of rows.
        sampler: Budgets of each step.
        options: How long and how fast.
        folder: Where checkpoints go.
        title: Shown beside the progress bar.

    Returns:
        Seconds, steps and final training loss.

    Raises:
        Interrupted: Ctrl-C; the state is saved and the same call goes on from it.
    """
    before = {parameter: parameter.requires_grad for parameter in objective.parameters()}
    set_trainable(objective, options)
    interrupt = StopOnInterrupt()
    last = last_checkpoint(folder)
    clock = Clock(folder, resumed=last is not None)
    trainer = StageTrainer(
        model=objective,
        args=training_arguments(options, folder),
        train_dataset=rows,
        data_collator=collator,
        sampler=sampler,
        gate_learning_rate=options.gate_learning_rate,
        callbacks=[ProgressToStderr(title), interrupt, clock],
    )
    trainer.remove_callback(PrinterCallback)
    try:
        with ExitStack() as changed:
            if not options.dropout:
                changed.enter_context(without_dropout(objective))
            if options.precision == "bf16" and objective.model.device.type == "cpu":
                changed.enter_context(eager_attention(objective.model.base))
            result = trainer.train(resume_from_checkpoint=None if last is None else str(last))
        seconds = clock.seconds
    finally:
        interrupt.restore()
        for parameter, flag in before.items():
            parameter.requires_grad_(flag)
        objective.model.eval()
    if interrupt.interrupted:
        raise Interrupted(f"stopped at step {trainer.state.global_step}; run the same command again to go on")
    return {
        "seconds": seconds,
        "steps": float(trainer.state.global_step),
        "train_loss": float(result.training_loss),
    }


def last_checkpoint(folder: Path) -> Path | None:
    """Return the newest complete checkpoint of a stage; where a kill cut one short its last file is missing or cut."""
    found = [path.parent for path in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*/{TRAINER_STATE_NAME}") if _is_json(path)]
    return max(found, key=lambda path: int(path.name.rpartition("-")[2]), default=None)


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return False
    return True


def training_arguments(options: StageOptions, folder: Path) -> TrainingArguments:
    """Return the Trainer's arguments for a stage."""
    given: dict[str, Any] = {
        "output_dir": str(folder),
        "num_train_epochs": options.epochs,
        "learning_rate": options.learning_rate if options.learning_rate > 0 else options.gate_learning_rate,
        "per_device_train_batch_size": options.batch_size,
        "gradient_accumulation_steps": options.accumulation,
        "weight_decay": options.weight_decay,
        "warmup_steps": options.warmup_share,  # a fraction is a share of all steps
        "lr_scheduler_type": "linear",
        "save_strategy": "steps",
        "save_steps": options.save_every,
        "save_total_limit": 1,
        "logging_steps": 20,
        "report_to": "none",
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "seed": options.seed,
        "use_cpu": not torch.accelerator.is_available(),  # bf16 is refused on a CPU that is not named
        "bf16": options.precision == "bf16",
        "fp16": options.precision == "fp16",
        "log_level": "error",
        "dataloader_pin_memory": torch.cuda.is_available(),
    }
    return TrainingArguments(**{**given, **dict(options.extra)})
