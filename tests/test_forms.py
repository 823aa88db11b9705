"""Gated, sliced, materialized and loaded are one function; views are free, follow the weights, and keep nothing."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from random_models import FAMILIES, make_inputs, make_model, odd_subnets, projections
from torch import Tensor, nn

import rheostat
from rheostat import OptionError, UnexpectedArgumentError, UnsupportedModelError
from rheostat.families import BERT_LAYOUT
from rheostat.forms import OutputBias, Skip, sliced
from rheostat.importance import Importance
from rheostat.losses import task_losses
from rheostat.model import BudgetedModel
from rheostat.reorder import permute
from rheostat.subnet import StoredOrder, Subnet


def wrapped(family: str = "bert", attention: str = "sdpa", **options: Any) -> BudgetedModel:
    return rheostat.wrap(make_model(family, attention=attention), neuron_block=8, sequence_length=9, **options)


def random_importance(model: BudgetedModel, seed: int = 0) -> Importance:
    generator = torch.Generator().manual_seed(seed)
    sizes = model.shape.layers
    return Importance(
        tuple(torch.rand(s.num_attention_heads, generator=generator).double().numpy() for s in sizes),
        tuple(torch.rand(s.intermediate_size, generator=generator).double().numpy() for s in sizes),
    )


def logits(model: Any, inputs: dict[str, Tensor], **options: Any) -> Tensor:
    with torch.no_grad():
        result: Tensor = model(**inputs, **options).logits
    return result


def gap(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


# -- equality ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_forms_agree_with_gates_applied_by_hand(family: str) -> None:
    # an oracle that shares no code with the views: hooks on the two projections of every layer
    base, inputs = make_model(family), make_inputs()
    model = rheostat.wrap(copy.deepcopy(base), neuron_block=8, sequence_length=9)
    subnet = odd_subnets(model.shape)["not a prefix, and empty"]
    for i, (attention, feed_forward) in enumerate(projections(family, base)):
        heads, neurons = torch.zeros(3), torch.zeros(40)
        heads[list(subnet.heads[i])] = 1
        neurons[list(subnet.neurons[i])] = 1
        heads = heads.repeat_interleave(8)
        attention.register_forward_pre_hook(lambda _, x, g=heads: (x[0] * g,))
        feed_forward.register_forward_pre_hook(lambda _, x, g=neurons: (x[0] * g,))
    expected = logits(base, inputs)
    assert gap(expected, logits(model, inputs, subnet=subnet)) < 1e-5
    assert gap(expected, logits(model, inputs, subnet=subnet, form="gated")) < 1e-5


def test_budget_one_is_the_base_model_exactly() -> None:  # C02
    for family in FAMILIES:
        model, inputs = wrapped(family), make_inputs()
        for form in ("sliced", "gated", "soft", "straight-through"):
            assert gap(logits(model.base, inputs), logits(model, inputs, budget=1.0, form=form)) == 0.0
        dense = sum(p.numel() for p in model.base.parameters())
        assert sum(p.numel() for p in model.materialize(1.0).parameters()) == dense


@pytest.mark.parametrize("family", FAMILIES)
def test_reordering_changes_nothing_but_rounding(family: str) -> None:
    model, inputs = wrapped(family), make_inputs()
    dense = logits(model, inputs)
    addresses = [p.data_ptr() for p in model.base.parameters()]
    scores = random_importance(model)
    moved = model.order_by_importance(scores)
    assert not model.stored.is_identity
    assert gap(dense, logits(model, inputs)) < 1e-5
    for now, before, ids in zip(moved.neurons, scores.neurons, model.stored.neurons, strict=True):
        assert now.tolist() == before[list(ids)].tolist()
    for now, before, ids in zip(moved.heads, scores.heads, model.stored.heads, strict=True):
        assert now.tolist() == before[list(ids)].tolist()
    with torch.no_grad():
        model.gates.offset.normal_()
    model.freeze_order()
    assert gap(dense, logits(model, inputs)) < 1e-5
    assert [p.data_ptr() for p in model.base.parameters()] == addresses
    for ids, size in [(i, 3) for i in model.stored.heads] + [(i, 40) for i in model.stored.neurons]:
        assert sorted(ids) == list(range(size))


def test_a_reordered_prefix_is_the_subnet_of_the_original_ids() -> None:
    base, inputs = make_model(), make_inputs()
    plain = rheostat.wrap(copy.deepcopy(base), neuron_block=8, sequence_length=9)
    model = rheostat.wrap(base, neuron_block=8, sequence_length=9)
    model.order_by_importance(random_importance(model))
    for budget in (0.2, 0.5, 0.8):
        ids = model.stored.kept(model.subnet(budget))
        original = Subnet.of(plain.shape, ids.heads, ids.neurons)
        assert gap(logits(plain, inputs, subnet=original), logits(model, inputs, budget=budget)) < 1e-5


def test_importance_decides_what_a_budget_keeps() -> None:
    model = wrapped()
    scores = random_importance(model)
    for layer in range(3):
        scores.neurons[layer][:] = 0.01
        scores.neurons[layer][30:38] = 10.0
        scores.heads[layer][2] = 10.0
    model.order_by_importance(scores)
    kept = model.stored.kept(model.subnet(model.floor + 0.4))
    assert all(set(range(30, 38)) <= set(ids) for ids in kept.neurons)
    assert all(2 in ids for ids in kept.heads)


def test_permute_refuses_nothing_and_is_undone_by_its_inverse() -> None:
    model, inputs = make_model(), make_inputs()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    forward = StoredOrder(((2, 0, 1),) * 3, (tuple(reversed(range(40))),) * 3)
    backward = StoredOrder(((1, 2, 0),) * 3, (tuple(reversed(range(40))),) * 3)
    permute(model, BERT_LAYOUT, 8, forward)
    assert not torch.equal(
        before["bert.encoder.layer.0.output.dense.weight"], model.bert.encoder.layer[0].output.dense.weight
    )
    assert torch.isfinite(logits(model, inputs)).all()
    permute(model, BERT_LAYOUT, 8, backward)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert forward.then(backward).is_identity


@pytest.mark.parametrize("family", FAMILIES)
def test_soft_gates_fold_into_output_columns(family: str) -> None:  # C07
    model, inputs = wrapped(family), make_inputs()
    with torch.no_grad():
        model.gates.offset.normal_()
    soft = logits(model, inputs, budget=0.4, form="soft")
    folded = model.fold_soft_gates(0.4)
    assert gap(soft, logits(folded, inputs)) < 1e-5
    assert gap(soft, logits(model, inputs)) > 1e-3
    gate_points = {id(linear.weight) for pair in projections(family, model.base) for linear in pair}
    for name, parameter in model.base.named_parameters():
        changed = id(parameter) in gate_points
        assert torch.equal(parameter, folded.get_parameter(name)) != changed, name


def test_off_means_output_bias_then_normalise() -> None:  # C12
    model, inputs = wrapped(), make_inputs("none")
    subnet = Subnet.prefix(model.shape, [0, 3, 3], [0, 40, 40])
    layer = model.base.bert.encoder.layer[0]
    with torch.no_grad():
        states = model.base.bert.embeddings(input_ids=inputs["input_ids"])
        states = layer.attention.output.LayerNorm(states + layer.attention.output.dense.bias)
        states = layer.output.LayerNorm(states + layer.output.dense.bias)
        for form in ("sliced", "gated"):
            output = model(**inputs, subnet=subnet, form=form, output_hidden_states=True)
            assert gap(states, output.hidden_states[1]) < 1e-5
        assert gap(model.base.bert.embeddings(input_ids=inputs["input_ids"]), states) > 1e-2  # no identity


# -- gradients ---------------------------------------------------------------------------------------------------------


def gradients(model: BudgetedModel, inputs: dict[str, Tensor], subnet: Subnet, form: Any) -> dict[str, Tensor]:
    model.zero_grad()
    model(**inputs, subnet=subnet, form=form).logits.square().sum().backward()
    return {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in model.base.named_parameters()}


@pytest.mark.parametrize("family", FAMILIES)
def test_sliced_gradients_reach_the_full_weights(family: str) -> None:
    model, inputs = wrapped(family), make_inputs()
    for name, subnet in odd_subnets(model.shape).items():
        slices = gradients(model, inputs, subnet, "sliced")
        gates = gradients(model, inputs, subnet, "gated")
        for parameter, gradient in gates.items():
            assert gap(gradient, slices[parameter]) <= 1e-5 * max(1.0, float(gradient.abs().max())), (name, parameter)
    uneven = gradients(model, inputs, odd_subnets(model.shape)["uneven"], "sliced")
    first, _ = projections(family, model.base)[0]
    weight = uneven[next(name for name, p in model.base.named_parameters() if p is first.weight)]
    assert weight[:, :8].abs().sum() > 0
    assert weight[:, 8:].abs().sum() == 0


def test_straight_through_has_hard_values_and_soft_gradients() -> None:
    model, inputs = wrapped(), make_inputs()
    hard = model(**inputs, budget=0.5, form="straight-through").logits
    assert gap(hard.detach(), logits(model, inputs, budget=0.5, form="gated")) == 0.0
    hard.square().sum().backward()
    assert model.gates.offset.grad is not None
    assert model.gates.raw_slope.grad is not None
    # a removed unit feels its gradient too: that is how it can come back
    assert (model.gates.offset.grad != 0).all()
    with pytest.raises(RuntimeError, match="does not require grad"):
        model.base.requires_grad_(False)(**inputs).logits.sum().backward()


def test_soft_gradient_reaches_every_gate() -> None:
    model, inputs = wrapped(), make_inputs()
    model(**inputs, budget=0.5, form="soft").logits.square().sum().backward()
    assert model.gates.offset.grad is not None
    assert (model.gates.offset.grad != 0).all()


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("form", ["sliced", "gated", "soft", "straight-through"])
def test_gradient_checkpointing_sees_the_budget_of_its_forward(use_reentrant: bool, form: Any) -> None:  # C25
    def summed(model: BudgetedModel) -> dict[str, Tensor]:
        model.train()
        embeds = model.base.bert.embeddings.word_embeddings(inputs["input_ids"])
        rest = {"inputs_embeds": embeds, "attention_mask": inputs["attention_mask"]}
        loss = torch.stack([model(**rest, budget=b, form=form).logits.square().sum() for b in (1.0, 0.6, 0.3)]).sum()
        loss.backward()
        return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}

    inputs = make_inputs()
    base = make_model(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    plain = rheostat.wrap(base, neuron_block=8, sequence_length=9)
    checkpointed = copy.deepcopy(plain)
    checkpointed.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": use_reentrant})
    if use_reentrant and form in ("soft", "straight-through"):
        # layers share the graph of the gates, which reentrant checkpointing (not the default) walks once a layer
        with pytest.raises(RuntimeError, match="second time"):
            summed(checkpointed)
        return
    one, other = summed(plain), summed(checkpointed)
    assert one.keys() == other.keys()
    for name, gradient in one.items():
        assert gap(gradient, other[name]) <= 1e-6 * max(1.0, float(gradient.abs().max())), name


# -- views -------------------------------------------------------------------------------------------------------------


class SeenTensors(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc]
    """Remember how many bytes each operator allocated."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        known = {a.untyped_storage().data_ptr() for a in args if isinstance(a, Tensor)}
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() not in known:
                self.largest = max(self.largest, tensor.numel())
        return result


def test_prefix_slices_copy_nothing() -> None:
    model = wrapped()
    with SeenTensors() as seen, torch.no_grad():
        view = sliced(model.base, BERT_LAYOUT, odd_subnets(model.shape)["uneven"])
    assert seen.largest == 0
    for i, layer in enumerate(model.base.bert.encoder.layer):
        cut = view.bert.encoder.layer[i]
        for path in ("attention.self.query", "attention.self.value", "attention.output.dense", "intermediate.dense"):
            whole, part = layer.get_submodule(path), cut
            for name in path.split("."):
                part = getattr(part, name)
            assert part.weight.data_ptr() == whole.weight.data_ptr()
            assert part.bias.data_ptr() == whole.bias.data_ptr()
    assert view.classifier is model.base.classifier
    assert view.bert.embeddings is model.base.bert.embeddings
    with SeenTensors() as seen, torch.no_grad():
        sliced(model.base, BERT_LAYOUT, odd_subnets(model.shape)["not a prefix"])
    assert seen.largest > 0  # the tool sees copies where there are some


def test_a_view_leaves_the_model_as_it_was() -> None:
    model, inputs = wrapped(), make_inputs()
    tree = [(name, id(module)) for name, module in model.base.named_modules()]
    state = list(model.state_dict())
    before = logits(model, inputs)
    for form in ("sliced", "gated", "soft", "straight-through"):
        model(**inputs, budget=0.4, form=form)
        logits(model, inputs, budget=0.4, form=form)
    model.materialize(0.4)
    assert [(name, id(module)) for name, module in model.base.named_modules()] == tree
    assert list(model.state_dict()) == state
    assert gap(before, logits(model, inputs)) == 0.0


def test_views_are_cached_and_shared_by_budgets_with_one_subnet() -> None:
    model = wrapped()
    with torch.no_grad():
        view = model.at(0.5)
        assert model.at(0.5) is view
        assert model.at(0.5 + 1e-9) is view
        assert model.at(0.9) is not view
        assert model.at(1.0) is model.base
    assert model.at(0.5) is not view  # with gradients a view belongs to one forward


def _in_place(model: BudgetedModel) -> None:
    with torch.no_grad():
        for parameter in model.base.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))


def _optimizer_step(model: BudgetedModel) -> None:
    with torch.enable_grad():
        model(**make_inputs(), budget=0.6).logits.square().sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def _load_state(model: BudgetedModel) -> None:
    model.base.load_state_dict(make_model(seed=5).state_dict())


def _assign_state(model: BudgetedModel) -> None:
    model.base.load_state_dict(make_model(seed=5).state_dict(), assign=True)


def _replace_one_weight(model: BudgetedModel) -> None:
    dense = model.base.bert.encoder.layer[2].intermediate.dense
    dense.weight = nn.Parameter(torch.randn_like(dense.weight))


def _replace_one_bias(model: BudgetedModel) -> None:
    dense = model.base.bert.encoder.layer[2].intermediate.dense
    dense.bias.data = torch.randn_like(dense.bias)


def _replace_data(model: BudgetedModel) -> None:
    for parameter in model.base.parameters():
        parameter.data = parameter.data * 1.5


def _double(model: BudgetedModel) -> None:
    model.double().float()
    _in_place(model)


def _base_double(model: BudgetedModel) -> None:
    model.base.double()


def _norms_and_head(model: BudgetedModel) -> None:
    model.base.classifier = nn.Linear(24, 3)
    norm = model.base.bert.encoder.layer[1].output.LayerNorm
    norm.weight = nn.Parameter(torch.randn_like(norm.weight))


def _reorder(model: BudgetedModel) -> None:
    model.order_by_importance(random_importance(model, seed=9))


CHANGES = [
    _in_place, _optimizer_step, _load_state, _assign_state, _replace_one_weight, _replace_one_bias, _replace_data,
    _double, _base_double, _norms_and_head, _reorder,
]  # fmt: skip


@pytest.mark.parametrize("subnet_name", ["uneven", "not a prefix", "neither in one layer"])
@pytest.mark.parametrize("change", CHANGES)
def test_cached_views_follow_the_weights(change: Callable[[BudgetedModel], None], subnet_name: str) -> None:
    model, inputs = wrapped(), make_inputs()
    subnet = odd_subnets(model.shape)[subnet_name]
    torch.manual_seed(0)
    before = logits(model, inputs, subnet=subnet)  # the view is made and kept
    change(model)
    after = logits(model, inputs, subnet=subnet)
    assert gap(after, logits(model, inputs, subnet=subnet, form="gated")) < 1e-5
    if change is not _base_double:
        assert gap(before, after) > 1e-3


def test_half_precision_after_a_view_was_made() -> None:
    model, inputs = wrapped(), make_inputs()
    logits(model, inputs, budget=0.5)
    model.to(torch.bfloat16)
    for form in ("sliced", "gated", "soft", "straight-through"):
        answer = logits(model, inputs, budget=0.5, form=form)
        assert answer.dtype == torch.bfloat16
        assert torch.isfinite(answer).all()


def test_inference_mode_and_no_grad_share_views() -> None:
    model, inputs = wrapped(), make_inputs()
    expected = logits(model, inputs, budget=0.5, form="gated")
    with torch.inference_mode():
        first = model(**inputs, budget=0.5).logits
    assert gap(expected, first) < 1e-5
    assert gap(expected, logits(model, inputs, budget=0.5)) < 1e-5
    model(**inputs, budget=0.5).logits.sum().backward()


def test_requires_grad_is_read_at_the_call() -> None:
    model, inputs = wrapped(), make_inputs()
    model.base.requires_grad_(False)
    logits(model, inputs, budget=0.5)
    assert not model(**inputs, budget=0.5).logits.requires_grad
    model.base.bert.encoder.layer[0].output.dense.weight.requires_grad_(True)
    model(**inputs, budget=0.5).logits.sum().backward()
    assert model.base.bert.encoder.layer[0].output.dense.weight.grad.abs().sum() > 0


def test_dropout_follows_train_and_eval() -> None:
    model, inputs = wrapped(), make_inputs()
    still = logits(model, inputs, budget=0.5)
    model.train()
    noisy = [logits(model, inputs, budget=0.5) for _ in range(2)]
    assert gap(*noisy) > 1e-4
    model.eval()
    assert gap(still, logits(model, inputs, budget=0.5)) == 0.0


def test_attention_dropout_follows_train_and_eval() -> None:
    model = rheostat.wrap(make_model(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.5), neuron_block=8)
    inputs = make_inputs()
    still = logits(model, inputs, budget=0.5)
    model.train()
    assert gap(logits(model, inputs, budget=0.5), logits(model, inputs, budget=0.5)) > 1e-4
    model.eval()
    assert gap(still, logits(model, inputs, budget=0.5)) == 0.0


def test_wrapping_keeps_the_mode_of_the_model() -> None:
    assert not rheostat.wrap(make_model().eval()).training
    assert rheostat.wrap(make_model().train()).training


def test_a_deep_copy_has_views_of_its_own_weights() -> None:
    model, inputs = wrapped(), make_inputs()
    before = logits(model, inputs, budget=0.5)
    twin = copy.deepcopy(model)
    assert gap(before, logits(twin, inputs, budget=0.5)) == 0.0
    _in_place(twin)
    assert gap(before, logits(model, inputs, budget=0.5)) == 0.0
    assert gap(before, logits(twin, inputs, budget=0.5)) > 1e-3
    assert gap(logits(twin, inputs, budget=0.5), logits(twin, inputs, budget=0.5, form="gated")) < 1e-5
    _replace_one_weight(twin)
    assert gap(logits(twin, inputs, budget=0.5), logits(twin, inputs, budget=0.5, form="gated")) < 1e-5


def test_views_are_small_in_number() -> None:
    model, inputs = wrapped(selection="top-k"), make_inputs()
    for budget in torch.linspace(model.floor + 0.001, 1.0, 40).clamp(max=1.0).tolist():
        logits(model, inputs, budget=budget)
    assert len(model._views._current[1]) <= len(model.order.units) + 1


def test_threads_with_different_budgets_get_the_serial_answers() -> None:  # C49
    model = wrapped()
    budgets = [1.0, 0.3, 0.6, 0.45]
    batches = [make_inputs(seed=s, batch=2) for s in range(8)]
    serial = {(b, i): logits(model, batch, budget=b) for b in budgets for i, batch in enumerate(batches)}
    model._views.clear()

    def run(budget: float) -> list[tuple[tuple[float, int], Tensor]]:
        return [((budget, i % 8), logits(model, batches[i % 8], budget=budget)) for i in range(48)]

    with ThreadPoolExecutor(4) as pool:
        for answers in pool.map(run, budgets):
            assert all(torch.equal(serial[key], answer) for key, answer in answers)


def test_threads_may_run_backward_at_two_budgets() -> None:
    model, inputs = wrapped(), make_inputs()

    def gradient(budget: float) -> Tensor:
        loss = model(**inputs, budget=budget).logits.square().sum()
        return torch.autograd.grad(loss, model.base.bert.encoder.layer[1].output.dense.weight)[0]

    serial = {budget: gradient(budget) for budget in (1.0, 0.4)}
    with ThreadPoolExecutor(2) as pool:
        jobs = [(budget, pool.submit(gradient, budget)) for budget in (1.0, 0.4) * 8]
        assert all(torch.equal(serial[budget], job.result()) for budget, job in jobs)


# -- recording, hooks, what can't be rebound ---------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["view", "base"])
@pytest.mark.parametrize("family", FAMILIES)
def test_recorded_attentions_and_hidden_states_are_complete(family: str, first: str) -> None:  # C15
    model, inputs = wrapped(family, "eager"), make_inputs()
    wanted = {"output_attentions": True, "output_hidden_states": True}
    subnet = odd_subnets(model.shape)["no attention in one layer"]

    def check(output: Any, heads: list[int]) -> None:
        assert [a.shape[1] for a in output.attentions] == heads
        assert len(output.hidden_states) == 4

    with torch.no_grad():
        if first == "base":
            check(model.base(**inputs, **wanted), [3, 3, 3])
        else:
            model(**inputs, subnet=subnet)  # a view from before anybody asked
        check(model(**inputs, subnet=subnet, **wanted), [2, 0, 3])
        check(model(**inputs, subnet=subnet, form="gated", **wanted), [3, 3, 3])
        check(model.base(**inputs, **wanted), [3, 3, 3])
        check(model.materialize(subnet=subnet)(**inputs, **wanted), [2, 0, 3])
        check(model(**inputs, subnet=subnet, **wanted), [2, 0, 3])
        states = model(**inputs, subnet=subnet, **wanted).hidden_states
        gated = model(**inputs, subnet=subnet, form="gated", **wanted).hidden_states
        assert all(gap(a, b) < 1e-5 for a, b in zip(states, gated, strict=True))


def test_a_compiled_base_does_not_answer_for_its_views(inputs: dict[str, Tensor]) -> None:
    model = wrapped()
    expected = logits(model, inputs, budget=0.4)
    for module in model.base.modules():
        module._compiled_call_impl = module._call_impl  # what nn.Module.compile sets, bound to the original
    model._views.clear()
    assert gap(expected, logits(model, inputs, budget=0.4)) == 0.0


def test_a_replaced_forward_is_refused(inputs: dict[str, Tensor]) -> None:
    model = wrapped()
    layer = model.base.bert.encoder.layer[0]
    layer.forward = layer.forward  # as accelerate's hooks do
    with pytest.raises(UnsupportedModelError, match="device_map"):
        logits(model, inputs, budget=0.4)


# -- what a call refuses -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_head_mask_is_refused_and_gates_off_matter(family: str) -> None:  # C01
    model, inputs = wrapped(family), make_inputs()
    with pytest.raises(UnexpectedArgumentError, match=r"budget=.*subnet="):
        model(**inputs, head_mask=torch.zeros(3, 3))
    assert issubclass(UnexpectedArgumentError, TypeError)
    off = Subnet.prefix(model.shape, [0, 0, 0], [40, 40, 40])
    assert gap(logits(model, inputs), logits(model, inputs, subnet=off)) > 1e-3


@pytest.mark.parametrize("name", ["bugdet", "kwargs", "encoder_hidden_state"])
def test_inputs_that_would_be_ignored_are_refused(name: str, inputs: dict[str, Tensor]) -> None:
    with pytest.raises(UnexpectedArgumentError, match=name):
        wrapped()(**inputs, **{name: torch.zeros(1)})


def test_labels_and_options_are_taken(inputs: dict[str, Tensor]) -> None:
    output = wrapped()(**inputs, labels=torch.tensor([0, 1, 2]), budget=0.5, return_dict=True)
    assert torch.isfinite(output.loss)


def test_unknown_form_and_foreign_subnets_are_refused(inputs: dict[str, Tensor]) -> None:
    model = wrapped()
    with pytest.raises(OptionError, match="form must be one of sliced"):
        model(**inputs, budget=0.5, form="hard")  # type: ignore[arg-type]
    foreign = Subnet.full(rheostat.ModelShape.uniform(4, 3, 8, 40, 24))
    with pytest.raises(OptionError, match="shape"):
        model(**inputs, subnet=foreign)
    with pytest.raises(OptionError, match="shape"):
        model.materialize(subnet=foreign)


def test_data_parallel_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:  # C27
    def broadcast(tensors: list[Tensor], devices: list[Any], detach: bool = False) -> list[list[Tensor]]:
        return [list(tensors) for _ in devices]  # torch's own refuses CPU tensors

    monkeypatch.setattr(sys.modules["torch.nn.parallel.replicate"], "_broadcast_coalesced_reshape", broadcast)
    with pytest.raises(UnexpectedArgumentError, match="DistributedDataParallel"):
        torch.nn.parallel.replicate(wrapped(), [torch.device("meta"), torch.device("meta")])


# -- materialized ------------------------------------------------------------------------------------------------------


def test_materialize_keeps_dtype_requires_grad_and_mode() -> None:  # C17
    model = wrapped()
    model.to(torch.bfloat16)
    for name, parameter in model.base.named_parameters():
        parameter.requires_grad_("layer.1" not in name)
    model.base.bert.encoder.layer[0].train()
    small = model.materialize(subnet=odd_subnets(model.shape)["uneven"])
    for name, parameter in small.named_parameters():
        assert parameter.dtype == torch.bfloat16
        assert parameter.requires_grad == ("layer.1" not in name), name
        assert parameter.is_contiguous()
    assert small.bert.encoder.layer[0].output.dense.training
    assert not small.bert.encoder.layer[2].output.dense.training


def test_materialized_owns_its_weights() -> None:
    model, inputs = wrapped(), make_inputs()
    small = model.materialize(0.5)
    before = logits(small, inputs)
    owned = {p.untyped_storage().data_ptr() for p in model.base.parameters()}
    assert not owned & {p.untyped_storage().data_ptr() for p in small.parameters()}
    stored = sum(p.untyped_storage().nbytes() for p in small.parameters())
    assert stored == sum(p.numel() * p.element_size() for p in small.parameters())
    _in_place(model)
    assert gap(before, logits(small, inputs)) == 0.0


def test_materialized_modules_are_plain() -> None:
    model = wrapped()
    small = model.materialize(subnet=odd_subnets(model.shape)["neither in one layer"])
    layers = small.bert.encoder.layer
    assert type(layers[0].attention.self.query) is nn.Linear
    assert (layers[2].attention.self.query.out_features, layers[2].output.dense.in_features) == (16, 16)
    assert type(layers[1].attention.output.dense) is OutputBias
    assert type(layers[1].output.dense) is OutputBias
    assert type(layers[1].intermediate) is Skip
    assert layers[1].attention.output.dense.bias.shape == (24,)
    # nothing of what was removed is left behind
    assert not list(layers[1].attention.self.parameters())
    assert small.config.to_dict() == model.base.config.to_dict()  # C21


def test_materialized_trains_and_copies() -> None:  # C28
    model, inputs = wrapped(), make_inputs()
    small = model.materialize(subnet=odd_subnets(model.shape)["neither in one layer"])
    twin = copy.deepcopy(small)
    assert gap(logits(small, inputs), logits(twin, inputs)) == 0.0
    optimizer = torch.optim.SGD(small.parameters(), lr=0.1)
    small(**inputs, labels=torch.tensor([0, 1, 2])).loss.backward()
    before = {name: parameter.clone() for name, parameter in small.named_parameters()}
    optimizer.step()
    still = [n for n, p in small.named_parameters() if torch.equal(before[n], p)]
    # adding the same number to every key changes no softmax
    assert all("key.bias" in name for name in still), still


# -- importance --------------------------------------------------------------------------------------------------------


def test_importance_is_the_gradient_of_gates_row_by_row() -> None:
    from rheostat.importance import gradient_importance

    model, labels = wrapped("roberta"), torch.tensor([0, 1, 2])
    batch = {**make_inputs(), "labels": labels}

    def losses(output: Any, rows: Any) -> Tensor:
        return task_losses("single-label", output.logits, rows["labels"])

    whole = gradient_importance(model.base, model.spec, model.shape, [batch], losses)
    rows = [{name: tensor[i : i + 1] for name, tensor in batch.items()} for i in range(3)]
    single = gradient_importance(model.base, model.spec, model.shape, rows, losses)
    # oracle: the finite difference of the loss as one head fades
    for head in range(3):
        total = 0.0
        for row in rows:
            faded = []
            for step in (1e-2, -1e-2):
                twin = copy.deepcopy(model.base)
                with torch.no_grad():
                    twin.roberta.encoder.layer[1].attention.output.dense.weight[:, head * 8 : head * 8 + 8] *= 1 + step
                    faded.append(float(losses(twin(**{k: v for k, v in row.items() if k != "labels"}), row)))
            total += abs(faded[0] - faded[1]) / 2e-2
        assert abs(total - whole.heads[1][head]) < 2e-2 * max(1.0, total)
    for one, other in zip((*whole.heads, *whole.neurons), (*single.heads, *single.neurons), strict=True):
        assert abs(one - other).max() < 1e-4
    with pytest.raises(OptionError, match="calibration rows"):
        gradient_importance(model.base, model.spec, model.shape, [], losses)
