"""Objectives and budget samplers: which budgets a step trains, and what it minimizes."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny import tiny_batch, tiny_budgeted
from torch.utils.flop_counter import FlopCounterMode

from rheostat.answers import model_inputs
from rheostat.errors import OptionError
from rheostat.losses import budget_loss, gate_penalty, mixed_loss
from rheostat.model import BudgetedModel
from rheostat.objectives import STAGES, BudgetSampler, LossOptions, Objective

LOW = 0.2
POINTS = {"corrections": (LOW, 0.5, 0.99)}  # the budgets of the one stage that has some of its own


# --- budgets of a step -------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", STAGES)
def test_budgets_are_a_function_of_the_step_alone(stage: str) -> None:
    sampler = BudgetSampler(stage, LOW, seed=5, only=POINTS.get(stage, ()))
    first = [sampler(step, part) for step in range(20) for part in range(2)]
    again = BudgetSampler(stage, LOW, seed=5, only=POINTS.get(stage, ()))
    torch.rand(3)
    backwards = [again(step, part) for step in reversed(range(20)) for part in reversed(range(2))]
    assert first == backwards[::-1]


@pytest.mark.parametrize("stage", STAGES)
def test_budgets_lie_between_the_smallest_and_1(stage: str) -> None:
    sampler = BudgetSampler(stage, LOW, random_budgets=3, only=POINTS.get(stage, ()))
    budgets = [budget for step in range(300) for budget in sampler(step)]
    assert all(isinstance(budget, float) and LOW <= budget <= 1.0 for budget in budgets)
    if stage != "dense":  # the whole range is used
        assert min(budgets) < LOW + 0.02
        assert max(budgets) > 0.98


def test_corrections_train_one_point_a_step_and_small_ones_more_often() -> None:
    sampler = BudgetSampler("corrections", LOW, only=(0.2, 0.5))
    steps = [sampler(step) for step in range(700)]
    assert {len(budgets) for budgets in steps} == {1}
    assert 450 < steps.count((0.2,)) < 550  # 5 / 7 of them


def test_the_dense_stage_trains_the_full_model_alone() -> None:
    assert {BudgetSampler("dense", LOW)(step) for step in range(50)} == {(1.0,)}


def test_sandwich_takes_the_largest_and_the_smallest_in_turn() -> None:
    sampler = BudgetSampler("sandwich", LOW, random_budgets=2)
    steps = [sampler(step) for step in range(40)]
    assert [step[0] for step in steps] == [1.0, LOW] * 20
    assert all(len(step) == 3 and LOW < step[1] < 1 and step[1] != step[2] for step in steps)
    # and within a step, when it has several batches
    assert [sampler(4, part)[0] for part in range(4)] == [1.0, LOW] * 2


def test_without_random_ones_beside_them_the_ends_and_one_between_take_turns() -> None:
    steps = [BudgetSampler("sandwich", LOW, random_budgets=0, seed=1)(step) for step in range(80)]
    assert all(len(step) == 1 for step in steps)
    taken = [step[0] for step in steps]
    assert taken[::4] == [1.0] * 20 and taken[2::4] == [LOW] * 20
    between = taken[1::2]
    assert len(set(between)) == 40 and all(LOW < budget < 1.0 for budget in between)
    assert sum(budget < LOW + (1 - LOW) / 4 for budget in between) > 14  # half of them, as u < 1/2
    # and within a step, when it has several batches
    parts = [BudgetSampler("sandwich", LOW, random_budgets=0, seed=1)(0, part)[0] for part in range(4)]
    assert (parts[0], parts[2]) == (1.0, LOW)


def test_a_specialist_trains_its_budgets_alone() -> None:
    for stage in ("soft", "straight-through", "sandwich"):
        assert {BudgetSampler(stage, LOW, only=(0.5, 0.25))(step) for step in range(9)} == {(0.5, 0.25)}


@pytest.mark.parametrize("stage", ["soft", "straight-through"])
def test_the_full_model_is_a_point_of_its_own(stage: str) -> None:
    def full(share: float) -> int:
        return sum(BudgetSampler(stage, LOW, full_share=share)(step) == (1.0,) for step in range(1000))

    assert full(0.0) == 0  # nothing to learn at 1.0 while the weights are frozen
    assert 200 < full(0.25) < 300
    assert full(1.0) == 1000


@pytest.mark.parametrize("stage", ["soft", "straight-through", "sandwich"])
def test_steps_parts_and_seeds_differ(stage: str) -> None:
    draws = {
        BudgetSampler(stage, LOW, seed=seed, full_share=0.0, random_budgets=1)(step, part)[-1]
        for seed in range(3)
        for step in range(5)
        for part in range(3)
    }
    assert len(draws) == 45


def test_the_smallest_budget_and_the_number_of_random_ones_are_read() -> None:
    assert BudgetSampler("sandwich", 0.4)(2) == (0.4,)
    assert [len(BudgetSampler("sandwich", 0.4, random_budgets=n)(0)) for n in (0, 1, 5)] == [1, 2, 6]


def test_an_unknown_stage_is_named() -> None:
    with pytest.raises(
        OptionError, match="stage must be one of dense, soft, straight-through, sandwich, corrections; got 'hard'"
    ):
        BudgetSampler("hard", LOW)


# --- what a step minimizes ---------------------------------------------------------------------------------

FORMS = {
    "dense": "sliced",
    "soft": "soft",
    "straight-through": "straight-through",
    "sandwich": "sliced",
    "corrections": "sliced",
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_runs_its_own_form_and_averages_over_its_budgets(stage: str) -> None:
    model, batch, budgets = tiny_budgeted(), tiny_batch(), (1.0, 0.5, 0.3)
    form: Any = FORMS[stage]
    expected = torch.stack([budget_loss(model, batch, budgets=(b,), form=form) for b in budgets]).mean()
    if stage == "soft":
        prices = [gate_penalty(model, b, gate_weight=0.2, over_weight=7.0) for b in budgets]
        expected = expected + torch.stack(prices).mean()
    found = Objective(model, stage, LossOptions(gate_weight=0.2, over_weight=7.0))(budgets=budgets, **batch)
    assert torch.allclose(found, expected)


def test_each_loss_option_changes_the_loss() -> None:
    model = tiny_budgeted()
    torch.nn.init.constant_(model.gates.offset, 1.0)  # above the budget, so that the excess costs something
    batch = tiny_batch() | {"teacher_logits": torch.randn(6, 2)}
    base = LossOptions(gate_weight=0.1)
    changes: dict[str, Any] = {
        "distill_weight": 0.2,
        "temperature": 5.0,
        "gate_weight": 0.3,
        "over_weight": 1.0,
        "class_weights": (0.1, 3.0),
    }
    assert set(changes) == set(LossOptions.__dataclass_fields__)

    def loss(options: LossOptions) -> float:
        with torch.no_grad():
            return float(Objective(model, "soft", options)(budgets=(0.5,), **batch))

    before = loss(base)
    for name, value in changes.items():
        assert abs(loss(replace(base, **{name: value})) - before) > 1e-4, name


def test_gates_cost_nothing_outside_the_soft_stage() -> None:
    model, batch = tiny_budgeted(), tiny_batch()
    for stage in ("dense", "straight-through", "sandwich"):
        cheap, dear = (
            Objective(model, stage, LossOptions(gate_weight=weight, over_weight=weight))(budgets=(0.4,), **batch)
            for weight in (0.0, 100.0)
        )
        assert torch.equal(cheap, dear)


def test_class_weights_fit_a_batch_that_shows_fewer_classes() -> None:  # C33
    model = tiny_budgeted(labels=("a", "b", "c"))
    batch = tiny_batch() | {"labels": torch.tensor([0, 0, 1, 1, 0, 1])}
    found = Objective(model, "dense", LossOptions(class_weights=(1.0, 2.0, 5.0)))(budgets=(1.0,), **batch)
    losses = torch.nn.functional.cross_entropy(model(**model_inputs(batch)).logits, batch["labels"], reduction="none")
    assert torch.allclose(found, (losses * torch.tensor([1.0, 1.0, 2.0, 2.0, 1.0, 2.0])).mean())


# --- the soft checkpoint as teacher ------------------------------------------------------------------------


def test_the_soft_teacher_answers_at_the_same_budget_in_eval_mode_without_gradients() -> None:  # C30
    model, batch = tiny_budgeted(), tiny_batch()
    teacher = tiny_budgeted(seed=1).train()
    objective = Objective(model, "straight-through", LossOptions(distill_weight=1.0), teacher)
    objective.train()
    assert not teacher.training
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    assert not any(name.startswith("teacher") for name in objective.state_dict())
    model.eval()
    expected = torch.stack(
        [
            mixed_loss(
                model(**model_inputs(batch), budget=b, form="straight-through").logits,
                batch,
                task="single-label",
                teacher_logits=teacher(**model_inputs(batch), budget=b, form="soft").logits,
                distill_weight=1.0,
            )
            for b in (0.5, 0.3)
        ]
    ).mean()
    loss = objective(budgets=(0.5, 0.3), **batch)
    assert torch.allclose(loss, expected)
    loss.backward()
    assert all(parameter.grad is None for parameter in teacher.parameters())


def test_a_student_that_is_its_own_dense_model_has_nothing_to_learn() -> None:  # C30
    model, batch = tiny_budgeted(), tiny_batch()
    objective = Objective(model, "straight-through", LossOptions(distill_weight=1.0), tiny_budgeted())
    model.eval()
    assert 0 <= float(objective(budgets=(1.0,), **batch).detach()) < 1e-7


def test_straight_through_has_hard_values_and_trains_gates_of_removed_units() -> None:
    model, batch = tiny_budgeted(), tiny_batch()
    loss = Objective(model, "straight-through")(budgets=(0.3,), **batch)
    assert torch.allclose(loss, budget_loss(model, batch, budgets=(0.3,), form="gated"))
    loss.backward()
    assert model.gates.offset.grad is not None
    assert int((model.gates.offset.grad != 0).sum()) == len(model.order.units)


# --- what a step costs -------------------------------------------------------------------------------------


def flops(call: Callable[[], torch.Tensor]) -> int:
    """Multiplications and additions of a forward and a backward, attention products included."""
    with FlopCounterMode(display=False) as counter:
        call().backward()
    return int(counter.get_total_flops())


@pytest.mark.parametrize("budget", [0.75, 0.5, 0.25])
def test_a_sandwich_step_costs_about_its_budget(budget: float) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 128, "attn_implementation": "eager"}
    model: BudgetedModel = tiny_budgeted(sequence_length=16, sizes=sizes)
    batch = tiny_batch(rows=4, length=16) | {"attention_mask": torch.ones(4, 16, dtype=torch.long)}
    objective = Objective(model, "sandwich")
    dense = flops(lambda: objective(budgets=(1.0,), **batch))
    share = flops(lambda: objective(budgets=(budget,), **batch)) / dense
    exact = model.costs.share(model.subnet(budget))
    assert abs(share - exact) < 0.03
    assert share <= 1.1 * budget
