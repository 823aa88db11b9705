"""Losses against numbers computed by hand and by torch, and budget_loss in a loop of one's own."""

import math

import pytest
import torch
from tiny import tiny_batch, tiny_budgeted, tiny_folder, weights
from torch.nn import functional as F

import rheostat
from rheostat.answers import model_inputs
from rheostat.errors import BudgetError, OptionError
from rheostat.losses import budget_loss, distillation_loss, gate_penalty, mixed_loss, task_losses

LOGITS = torch.tensor([[2.0, 0.0, -1.0], [0.0, 1.0, 0.0]])
TEACHER = torch.tensor([[1.0, 1.0, 0.0], [0.5, 0.0, -2.0]])


# --- task losses -------------------------------------------------------------------------------------------


def test_single_label_is_minus_the_log_probability_of_the_label() -> None:
    first = -2.0 + math.log(math.e**2 + 1 + 1 / math.e)
    second = -1.0 + math.log(2 + math.e)
    found = task_losses("single-label", LOGITS, torch.tensor([0, 1]))
    assert found.tolist() == pytest.approx([first, second], abs=1e-6)


def test_multi_label_is_the_mean_over_classes_of_a_row() -> None:
    labels = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    first = (math.log1p(math.exp(-2)) + math.log(2) + math.log1p(math.e)) / 3
    second = (2 * math.log(2) + math.log1p(math.e)) / 3
    assert task_losses("multi-label", LOGITS, labels).tolist() == pytest.approx([first, second], abs=1e-6)


def test_multi_label_takes_whole_numbers_as_labels() -> None:
    labels = torch.tensor([[1, 0, 1], [0, 0, 0]])
    assert torch.equal(task_losses("multi-label", LOGITS, labels), task_losses("multi-label", LOGITS, labels.float()))


@pytest.mark.parametrize("shape", [(2,), (2, 1)])
def test_regression_is_the_squared_error_of_the_first_output(shape: tuple[int, ...]) -> None:
    assert task_losses("regression", LOGITS[:, :1], torch.tensor([1.0, 3.0]).reshape(shape)).tolist() == [1.0, 9.0]


def test_class_weights_have_an_entry_for_a_class_that_the_batch_does_not_show() -> None:  # C33
    weights_of_3 = torch.tensor([2.0, 0.5, 7.0])
    plain = task_losses("single-label", LOGITS, torch.tensor([0, 1]))
    found = task_losses("single-label", LOGITS, torch.tensor([0, 1]), weights_of_3)
    assert torch.allclose(found, plain * torch.tensor([2.0, 0.5]))
    with pytest.raises(RuntimeError):
        task_losses("single-label", LOGITS, torch.tensor([0, 1]), torch.tensor([2.0, 0.5]))


def test_half_precision_logits_are_scored_in_float32() -> None:
    found = task_losses("single-label", LOGITS.bfloat16(), torch.tensor([0, 1]))
    assert found.dtype is torch.float32
    assert distillation_loss(LOGITS.bfloat16(), TEACHER.bfloat16(), task="single-label").dtype is torch.float32


def test_an_unknown_task_is_named() -> None:
    with pytest.raises(OptionError, match=r"task must be .* got 'ranking'"):
        task_losses("ranking", LOGITS, torch.tensor([0, 1]))


# --- distillation ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["single-label", "multi-label", "regression"])
def test_distillation_is_zero_when_the_student_is_the_teacher(task: str) -> None:  # C30
    assert 0 <= float(distillation_loss(LOGITS, LOGITS.clone(), task=task)) < 1e-7


def test_single_label_distillation_is_t_squared_times_the_divergence_from_the_teacher() -> None:
    p, q = torch.softmax(LOGITS / 3, -1), torch.softmax(TEACHER / 3, -1)
    expected = 9 * float((q * (q / p).log()).sum(-1).mean())
    assert float(distillation_loss(LOGITS, TEACHER, task="single-label", temperature=3.0)) == pytest.approx(expected)


def test_multi_label_distillation_is_the_mean_over_rows_and_classes_of_two_outcomes() -> None:
    p, q = torch.sigmoid(LOGITS / 2), torch.sigmoid(TEACHER / 2)
    pairs = q * (q / p).log() + (1 - q) * ((1 - q) / (1 - p)).log()
    found = distillation_loss(LOGITS, TEACHER, task="multi-label", temperature=2.0)
    assert float(found) == pytest.approx(4 * float(pairs.mean()), rel=1e-5)


def test_regression_distillation_is_the_mean_squared_error() -> None:
    expected = float((LOGITS[:, :1] - TEACHER[:, :1]).square().mean())
    assert float(distillation_loss(LOGITS[:, :1], TEACHER[:, :1], task="regression")) == pytest.approx(expected)


def test_distillation_gives_the_student_a_gradient() -> None:
    student = LOGITS.clone().requires_grad_()
    distillation_loss(student, TEACHER, task="single-label").backward()
    assert student.grad is not None
    assert student.grad.abs().sum() > 0


def test_mixed_loss_weighs_the_two_terms() -> None:
    batch = {"labels": torch.tensor([0, 1])}
    own = task_losses("single-label", LOGITS, batch["labels"]).mean()
    distilled = distillation_loss(LOGITS, TEACHER, task="single-label", temperature=4.0)
    for weight in (0.0, 0.3, 1.0):
        found = mixed_loss(
            LOGITS, batch, task="single-label", teacher_logits=TEACHER, distill_weight=weight, temperature=4.0
        )
        assert torch.allclose(found, (1 - weight) * own + weight * distilled)
    assert torch.equal(mixed_loss(LOGITS, batch, task="single-label"), own)


# --- gates -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [0.2, 0.7, 1.0])
@torch.no_grad()
def test_gate_penalty_is_the_formula_of_the_design(budget: float) -> None:
    model = tiny_budgeted()
    torch.manual_seed(0)
    torch.nn.init.normal_(model.gates.offset, mean=1.0)
    gates = torch.sigmoid(model.gates.offset + model.gates.slope() * math.log(budget / max(1 - budget, 1e-9)))
    gates = torch.ones_like(gates) if budget == 1.0 else gates
    shares = torch.tensor(model.order.unit_shares, dtype=torch.float32)
    mean = float((shares * gates).sum() / shares.sum())
    over = max(0.0, float(1 - shares.sum() + (shares * gates).sum()) - budget)
    found = gate_penalty(model, budget, gate_weight=0.5, over_weight=3.0)
    assert float(found) == pytest.approx(0.5 * mean + 3 * over**2, rel=1e-5)


@torch.no_grad()
def test_gate_penalty_charges_nothing_below_the_budget() -> None:
    model = tiny_budgeted()
    torch.nn.init.constant_(model.gates.offset, -20.0)
    assert float(gate_penalty(model, 0.5, gate_weight=0.0, over_weight=100.0)) == 0.0


# --- budget_loss -------------------------------------------------------------------------------------------


def test_budget_loss_is_the_mean_over_budgets_of_the_loss_of_each_forward() -> None:
    model, batch = tiny_budgeted(), tiny_batch()
    inputs = model_inputs(batch)
    expected = [F.cross_entropy(model(**inputs, budget=b).logits, batch["labels"]) for b in (1.0, 0.4)]
    assert torch.allclose(budget_loss(model, batch, budgets=(1.0, 0.4)), torch.stack(expected).mean())


@pytest.mark.parametrize("form", ["sliced", "gated", "soft", "straight-through"])
def test_budget_loss_runs_the_form_that_is_asked_for(form: str) -> None:
    model, batch = tiny_budgeted(), tiny_batch()
    expected = F.cross_entropy(model(**model_inputs(batch), budget=0.4, form=form).logits, batch["labels"])  # type: ignore[arg-type]
    assert torch.allclose(budget_loss(model, batch, budgets=(0.4,), form=form), expected)  # type: ignore[arg-type]


def test_teacher_logits_come_from_the_argument_before_the_batch() -> None:
    model, batch = tiny_budgeted(), tiny_batch()
    here, there = torch.randn(6, 2), torch.randn(6, 2)
    logits = model(**model_inputs(batch), budget=0.4).logits
    for given, used in ((None, there), (here, here)):
        found = budget_loss(
            model, {**batch, "teacher_logits": there}, budgets=(0.4,), teacher_logits=given, distill_weight=1.0
        )
        assert torch.allclose(found, distillation_loss(logits, used, task="single-label"))


@torch.no_grad()
def test_the_student_at_budget_1_has_no_distance_from_its_dense_model() -> None:  # C30
    model, batch = tiny_budgeted().eval(), tiny_batch()
    teacher = model.base(**model_inputs(batch)).logits
    assert float(budget_loss(model, batch, budgets=(1.0,), teacher_logits=teacher, distill_weight=1.0)) < 1e-7


def test_the_task_of_the_model_decides_the_loss() -> None:
    model = tiny_budgeted("multi-label", ("a", "b", "c"))
    batch = tiny_batch(classes=3) | {"labels": torch.randint(0, 2, (6, 3)).float()}
    logits = model(**model_inputs(batch), budget=0.5).logits
    expected = F.binary_cross_entropy_with_logits(logits, batch["labels"])
    assert torch.allclose(budget_loss(model, batch, budgets=(0.5,)), expected)


def test_ones_own_training_loop_lowers_the_loss_at_every_budget() -> None:
    model, batch = tiny_budgeted(), tiny_batch(rows=12)
    optimizer = torch.optim.AdamW(model.base.parameters(), lr=2e-3)

    def losses() -> list[float]:
        with torch.no_grad():
            return [float(budget_loss(model.eval(), batch, budgets=(b,))) for b in (1.0, 0.5, 0.2)]

    before = losses()
    for _ in range(25):
        optimizer.zero_grad()
        rheostat.budget_loss(model.train(), batch, budgets=(1.0, 0.5, 0.2)).backward()
        optimizer.step()
    assert all(after < 0.8 * first for after, first in zip(losses(), before, strict=True))


def test_budget_loss_refuses_no_budget_and_one_that_cannot_be_reached() -> None:
    model, batch = tiny_budgeted(), tiny_batch()
    with pytest.raises(OptionError, match="budgets must not be empty"):
        budget_loss(model, batch, budgets=())
    with pytest.raises(BudgetError, match="at least"):
        budget_loss(model, batch, budgets=(model.floor / 2,))


# --- materialized, then fine-tuned (C28), loaded in another precision (C24) -------------------------------------


def test_a_materialized_model_is_fine_tuned_whole() -> None:
    small = tiny_budgeted().materialize(0.5).train()
    names = {parameter: name for name, parameter in small.named_parameters()}
    optimizer = torch.optim.AdamW(small.parameters(), lr=1e-2)
    held = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    assert held == set(names)
    before = weights(small)
    batch = tiny_batch(rows=16, length=20)
    batch["attention_mask"] = torch.ones_like(batch["attention_mask"])
    loss = small(**batch, token_type_ids=torch.arange(20).expand(16, 20) % 2).loss
    loss.backward()
    optimizer.step()
    still = [n for n, p in small.named_parameters() if p.requires_grad and p.numel() and torch.equal(p, before[n])]
    assert still == []


def test_a_float16_checkpoint_is_trained_in_float32(tmp_path) -> None:  # type: ignore[no-untyped-def]  # C24
    from transformers import AutoModelForSequenceClassification

    from rheostat.checkpoint import CheckpointInfo
    from rheostat.preparing import load_encoder

    folder = tiny_folder(tmp_path / "half")
    AutoModelForSequenceClassification.from_pretrained(folder).half().save_pretrained(folder)
    model = load_encoder(str(folder), CheckpointInfo("single-label", ("bad", "good")), head_is_trained=True)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
