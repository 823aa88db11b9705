"""One stage on the Trainer: options, learning rates, frozen parts, accumulation, precision, interruption."""

import json
import os
import signal
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from tiny import largest_difference, tiny_batch, tiny_budgeted, weights
from transformers import TrainerCallback, TrainerState

from rheostat import training
from rheostat.model import BudgetedModel
from rheostat.objectives import BudgetSampler, LossOptions, Objective
from rheostat.training import (
    Clock,
    Interrupted,
    RowOrder,
    StageOptions,
    StageTrainer,
    last_checkpoint,
    train_stage,
    without_dropout,
)

QUIET = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SHORT = StageOptions(epochs=1, learning_rate=1e-3, batch_size=4, warmup_share=0.0)


def rows(count: int = 24, length: int = 7) -> Dataset:
    """Rows of ``length`` tokens, or of mixed lengths for 0."""
    batch = tiny_batch(rows=count, length=length or 12)
    lengths = [length or 3 + i % 9 for i in range(count)]
    ids = [row[:n] for row, n in zip(batch["input_ids"].tolist(), lengths, strict=True)]
    masks = [[1] * n for n in lengths]
    return Dataset.from_dict(
        {"input_ids": ids, "attention_mask": masks, "labels": batch["labels"].tolist(), "length": lengths}
    )


def collate(items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    width = max(len(item["input_ids"]) for item in items)
    batch = {n: [i[n] + [0] * (width - len(i[n])) for i in items] for n in ("input_ids", "attention_mask")}
    return {name: torch.tensor(cells) for name, cells in {**batch, "labels": [i["labels"] for i in items]}.items()}


def model_of(**sizes: Any) -> BudgetedModel:
    return tiny_budgeted(sizes=QUIET | sizes)


def run(
    folder: Path,
    options: StageOptions = SHORT,
    stage: str = "sandwich",
    model: BudgetedModel | None = None,
    data: Dataset | None = None,
    losses: LossOptions | None = None,
) -> BudgetedModel:
    model = model or model_of()
    sampler = BudgetSampler(stage, 0.2, full_share=0.0 if stage == "soft" else 0.1)
    train_stage(Objective(model, stage, losses), data or rows(), collate, sampler, options, folder, "Test")
    return model


# --- every option is read ----------------------------------------------------------------------------------

CHANGES: dict[str, Any] = {
    "epochs": 0.5,
    "learning_rate": 2e-3,
    "gate_learning_rate": 0.3,
    "batch_size": 6,
    "accumulation": 2,
    "weight_decay": 0.5,
    "warmup_share": 0.5,
    "freeze_embeddings": True,
    "seed": 3,
    "precision": "bf16",
    "extra": (("max_grad_norm", 1e-3), ("optim", "sgd")),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    options = replace(SHORT, gate_learning_rate=0.1)
    return weights(run(tmp_path_factory.mktemp("plain"), options, "straight-through"))


@pytest.mark.parametrize("name", CHANGES)
def test_each_stage_option_changes_the_result(name: str, plain: dict[str, torch.Tensor], tmp_path: Path) -> None:
    options = replace(SHORT, gate_learning_rate=0.1, **{name: CHANGES[name]}) if name != "gate_learning_rate" else None
    options = options or replace(SHORT, gate_learning_rate=CHANGES[name])
    assert largest_difference(plain, weights(run(tmp_path, options, "straight-through"))) > 1e-5


def test_no_stage_option_is_without_a_test() -> None:
    assert {field.name for field in fields(StageOptions)} == {*CHANGES, "save_every", "dropout", "only_corrections"}


def test_the_same_stage_twice_gives_the_same_weights(plain: dict[str, torch.Tensor], tmp_path: Path) -> None:
    again = run(tmp_path, replace(SHORT, gate_learning_rate=0.1), "straight-through")
    assert largest_difference(plain, weights(again)) == 0.0


def test_save_every_leaves_the_newest_checkpoint(tmp_path: Path) -> None:
    run(tmp_path, replace(SHORT, save_every=4))
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-6"]
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint-6"


# --- learning rates, decay, what is frozen -----------------------------------------------------------------


def trainer_of(model: BudgetedModel, options: StageOptions, stage: str, folder: Path) -> StageTrainer:
    objective = Objective(model, stage)
    training.set_trainable(objective, options)
    return StageTrainer(
        model=objective,
        args=training.training_arguments(options, folder),
        train_dataset=rows(),
        data_collator=collate,
        sampler=BudgetSampler(stage, 0.2),
        gate_learning_rate=options.gate_learning_rate,
    )


def test_gates_have_their_own_learning_rate_and_no_decay(tmp_path: Path) -> None:
    model = model_of()
    options = StageOptions(learning_rate=1e-3, gate_learning_rate=0.2, weight_decay=0.1)
    optimizer = trainer_of(model, options, "soft", tmp_path).create_optimizer()
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        group = groups[id(parameter)]
        gate, decays = name.startswith("gates."), not name.endswith("bias") and "LayerNorm" not in name
        assert group["lr"] == (0.2 if gate else 1e-3), name
        assert group["weight_decay"] == (0.1 if decays and not gate else 0.0), name
    assert len(groups) == len(list(model.parameters()))


def test_the_soft_stage_moves_gates_and_leaves_frozen_weights_as_they_are(tmp_path: Path) -> None:
    model = model_of()
    before = weights(model)
    run(tmp_path, StageOptions(learning_rate=0.0, gate_learning_rate=0.1, batch_size=4), "soft", model)
    after = weights(model)
    for name, tensor in before.items():
        if name.startswith("gates."):
            assert (after[name] - tensor).abs().max() > 1e-3, name
        else:
            assert torch.equal(after[name], tensor), name
    assert all(parameter.requires_grad for parameter in model.parameters())  # as it was before the stage


def test_gates_stay_when_their_learning_rate_is_0(tmp_path: Path) -> None:
    model = model_of()
    before = weights(model.gates)
    run(tmp_path, SHORT, "straight-through", model)
    assert largest_difference(before, weights(model.gates)) == 0.0


def test_frozen_embeddings_are_the_word_embeddings_alone(tmp_path: Path) -> None:
    model = model_of()
    before = weights(model)
    run(tmp_path, replace(SHORT, freeze_embeddings=True, weight_decay=0.1), model=model)
    after = weights(model)
    words = "base.bert.embeddings.word_embeddings.weight"
    assert torch.equal(after[words], before[words])
    assert not torch.equal(after["base.classifier.weight"], before["base.classifier.weight"])


# --- accumulation, order of rows ---------------------------------------------------------------------------


class OneBudget(BudgetSampler):
    """The same budgets for every batch of a step, so that two halves are one whole."""

    def __call__(self, step: int, part: int = 0) -> tuple[float, ...]:
        return super().__call__(step)


def test_accumulated_batches_equal_one_large_batch(tmp_path: Path) -> None:
    results = []
    for size, parts in ((8, 1), (4, 2), (2, 4)):
        model = model_of()
        options = replace(SHORT, batch_size=size, accumulation=parts, extra=(("max_grad_norm", 0.0), ("optim", "sgd")))
        sampler = OneBudget("sandwich", 0.2)
        options = replace(options, learning_rate=0.05)
        train_stage(Objective(model, "sandwich"), rows(), collate, sampler, options, tmp_path / str(size), "Test")
        results.append(weights(model))
    assert largest_difference(results[0], results[1]) < 1e-5
    assert largest_difference(results[0], results[2]) < 1e-5
    assert largest_difference(results[0], weights(model_of())) > 1e-3


def test_the_parts_of_a_step_get_budgets_of_their_own(tmp_path: Path) -> None:
    seen: list[tuple[float, ...]] = []

    class Spy(Objective):
        def forward(self, budgets: Any, **batch: torch.Tensor) -> torch.Tensor:
            seen.append(tuple(budgets))
            return super().forward(budgets, **batch)

    sampler = BudgetSampler("sandwich", 0.2)
    options = replace(SHORT, accumulation=3)
    train_stage(Spy(model_of(), "sandwich"), rows(), collate, sampler, options, tmp_path, "Test")
    assert seen == [sampler(step, part) for step in range(2) for part in range(3)]


def test_row_order_is_a_permutation_by_seed_and_epoch_with_similar_lengths_together() -> None:
    lengths = [i % 40 for i in range(1030)]
    orders = {(seed, epoch): list(RowOrder(lengths, 8, seed, lambda e=epoch: e)) for seed in (0, 1) for epoch in (0, 1)}
    assert all(sorted(order) == list(range(1030)) for order in orders.values())
    assert len({tuple(order) for order in orders.values()}) == 4
    assert orders[0, 1] == list(RowOrder(lengths, 8, 0, lambda: 1))
    groups = [orders[0, 0][start : start + 8] for start in range(0, 1024, 8)]
    spread = [max(lengths[i] for i in group) - min(lengths[i] for i in group) for group in groups]
    assert sum(spread) / len(spread) < 3  # 33 and more at random


# --- precision ---------------------------------------------------------------------------------------------


def test_bf16_keeps_gates_in_float32_and_finite(tmp_path: Path) -> None:  # C31
    model = model_of()
    torch.nn.init.constant_(model.gates.offset, 30.0)
    seen: list[torch.dtype] = []
    model.gates.register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    linear: list[torch.dtype] = []
    model.base.classifier.register_forward_hook(lambda module, args, output: linear.append(output.dtype))
    options = StageOptions(learning_rate=1e-3, gate_learning_rate=0.1, batch_size=4, precision="bf16")
    run(tmp_path, options, "soft", model)
    assert set(linear) == {torch.bfloat16}  # autocast is on
    assert set(seen) == {torch.float32}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert all(torch.isfinite(tensor).all() for tensor in weights(model).values())


@pytest.mark.parametrize(("precision", "attention"), [("bf16", "eager"), ("fp32", "sdpa")])
@pytest.mark.skipif(torch.accelerator.is_available(), reason="the fused backward pass is slow in bfloat16 on CPUs only")
def test_bf16_computes_attention_as_plain_products(tmp_path: Path, precision: str, attention: str) -> None:
    model = model_of(attn_implementation="sdpa")
    seen: list[str] = []
    model.base.classifier.register_forward_hook(lambda *_: seen.append(model.base.config._attn_implementation))
    run(tmp_path, replace(SHORT, precision=precision), "sandwich", model)
    assert set(seen) == {attention}
    assert model.base.config._attn_implementation == "sdpa"


# --- what a stage returns and leaves -----------------------------------------------------------------------


def test_a_stage_returns_its_facts_and_leaves_eval_mode(tmp_path: Path) -> None:
    model = model_of()
    objective, sampler = Objective(model, "sandwich"), BudgetSampler("sandwich", 0.2)
    facts = train_stage(objective, rows(), collate, sampler, SHORT, tmp_path, "Test")
    assert facts["steps"] == 6
    assert facts["seconds"] > 0
    assert 0 < facts["train_loss"] < 5
    assert not model.training


def test_the_seconds_of_a_stage_add_up_over_its_sessions(tmp_path: Path) -> None:
    def saved(clock: Clock) -> float:
        clock.on_save(None, TrainerState(is_world_process_zero=True), None)
        return float(json.loads((tmp_path / "seconds.json").read_text("utf-8")))

    first = Clock(tmp_path, resumed=False)
    first.on_train_begin(None, TrainerState(), None)
    time.sleep(0.02)
    before = saved(first)
    second = Clock(tmp_path, resumed=True)
    time.sleep(0.02)
    second.on_train_begin(None, TrainerState(), None)  # what came before training does not count
    assert before >= 0.02
    assert before <= second.seconds < before + 0.02
    assert Clock(tmp_path, resumed=False).seconds < 0.02


def test_a_stage_without_dropout_trains_as_a_model_that_has_none(tmp_path: Path) -> None:
    options = replace(SHORT, dropout=False)
    found = [
        weights(run(tmp_path / name, chosen, model=tiny_budgeted(sizes=sizes)))
        for name, chosen, sizes in (("with", SHORT, {}), ("without", options, {}), ("none", SHORT, QUIET))
    ]
    assert largest_difference(found[1], found[2]) == 0.0
    assert largest_difference(found[0], found[1]) > 1e-5


def test_dropout_that_is_off_for_a_stage_is_back_after_it() -> None:
    model = tiny_budgeted()
    dropouts = [module for module in model.modules() if isinstance(module, torch.nn.Dropout)]
    before = [module.p for module in dropouts]
    with pytest.raises(RuntimeError), without_dropout(model):
        assert {module.p for module in dropouts} == {0.0}
        raise RuntimeError
    assert [module.p for module in dropouts] == before != [0.0] * len(before)


def test_gradient_checkpointing_gives_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # C25
    plain_run = run(tmp_path / "a")
    options = replace(SHORT, extra=(("activation_checkpointing", True),))
    calls: list[bool] = []
    original = BudgetedModel.activation_checkpointing_enable

    def spy(self: BudgetedModel, *args: Any, **kwargs: Any) -> None:
        calls.append(True)
        original(self, *args, **kwargs)

    monkeypatch.setattr(BudgetedModel, "activation_checkpointing_enable", spy)
    recomputed = run(tmp_path / "b", options)
    assert calls
    assert largest_difference(weights(plain_run), weights(recomputed)) < 1e-6


def test_data_parallel_is_refused_with_what_to_use() -> None:  # C27
    with pytest.raises(TypeError, match="DistributedDataParallel"):
        model_of()._replicate_for_data_parallel()


# --- stopping and going on ---------------------------------------------------------------------------------


class StopAt(TrainerCallback):
    """Send this process SIGINT during a step."""

    def __init__(self, step: int, times: int = 1) -> None:
        self.step, self.times = step, times

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step - 1:
            for _ in range(self.times):
                os.kill(os.getpid(), signal.SIGINT)


def interrupted_run(folder: Path, monkeypatch: pytest.MonkeyPatch, options: StageOptions, at: int) -> BudgetedModel:
    class Stopping(StageTrainer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.add_callback(StopAt(at))

    dropout = tiny_budgeted(sizes={"hidden_dropout_prob": 0.3})
    with monkeypatch.context() as patch:
        patch.setattr(training, "StageTrainer", Stopping)
        with pytest.raises(Interrupted, match=f"stopped at step {at}"):
            run(folder, options, model=dropout, data=rows(22, 0))
    return run(folder, options, model=tiny_budgeted(sizes={"hidden_dropout_prob": 0.3}), data=rows(22, 0))


@pytest.mark.parametrize("at", [2, 3, 5, 6, 8])  # 6 batches, hence 3 steps an epoch; 9 in all
def test_a_run_that_was_stopped_ends_with_the_weights_of_one_that_was_not(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = replace(SHORT, epochs=3, accumulation=2, warmup_share=0.2)
    whole = run(tmp_path / "a", options, model=tiny_budgeted(sizes={"hidden_dropout_prob": 0.3}), data=rows(22, 0))
    resumed = interrupted_run(tmp_path / "b", monkeypatch, options, at)
    assert largest_difference(weights(whole), weights(resumed)) == 0.0


def test_the_first_ctrl_c_gives_the_signal_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGINT)
    interrupted_run(tmp_path, monkeypatch, SHORT, 2)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_stops_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopping(StageTrainer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.add_callback(StopAt(2, times=2))

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(training, "StageTrainer", Stopping)
    model = model_of()
    with pytest.raises(KeyboardInterrupt) as stopped:
        run(tmp_path, model=model)
    assert not isinstance(stopped.value, Interrupted)
    assert last_checkpoint(tmp_path) is None
    assert signal.getsignal(signal.SIGINT) is before


def test_a_checkpoint_that_a_kill_cut_short_is_passed_over(tmp_path: Path) -> None:
    whole = run(tmp_path / "a", replace(SHORT, save_every=3))
    run(tmp_path / "b", replace(SHORT, save_every=3))
    broken = tmp_path / "b" / "checkpoint-9"
    broken.mkdir()
    (broken / "model.safetensors").write_bytes(b"\x00" * 10)
    (tmp_path / "b" / "checkpoint-12").mkdir()
    (tmp_path / "b" / "checkpoint-12" / "trainer_state.json").touch()
    assert last_checkpoint(tmp_path / "b") == tmp_path / "b" / "checkpoint-6"
    assert largest_difference(weights(whole), weights(run(tmp_path / "b", replace(SHORT, save_every=3)))) == 0.0
