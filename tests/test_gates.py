"""Gates: monotone in the budget, projected onto the hard choice; top-k is exact and not nested."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import make_inputs, make_model

import rheostat
from rheostat import CostTable, ModelShape, UnitOrder
from rheostat.gates import CROSSING_MARGIN, EPS, MIN_SLOPE, GateLayout, Gates, hard_gates, logit, top_k_subnet
from rheostat.order import Minimum, arrange
from rheostat.subnet import Subnet, cut_units

SHAPE = ModelShape.uniform(2, 3, 8, 70, 24)


def random_order(seed: int, minimum: Minimum | None = None) -> UnitOrder:
    rng = np.random.default_rng(seed)
    units = cut_units(SHAPE, neuron_block=int(rng.integers(4, 40)))
    heads, neurons = (tuple(int(c) for c in rng.integers(1, 10**4, size=2)) for _ in range(2))
    table = CostTable("macs", 9, heads, neurons, int(rng.integers(1, 10**4)))
    return arrange(SHAPE, table, units, rng.normal(size=len(units)), minimum=minimum or Minimum()).order


def random_gates(count: int, seed: int, spread: float = 3.0) -> Gates:
    generator = torch.Generator().manual_seed(seed)
    gates = Gates(count)
    with torch.no_grad():
        gates.offset.copy_(spread * torch.randn(count, generator=generator))
        gates.raw_slope.copy_(spread * torch.randn(count, generator=generator))
    return gates


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.floats(0.1, 30), st.lists(st.floats(0, 1, exclude_min=True), min_size=2, max_size=6))
def test_gates_are_monotone_and_in_range(seed: int, spread: float, budgets: list[float]) -> None:
    gates = random_gates(20, seed, spread)
    values = torch.stack([gates(budget) for budget in sorted([*budgets, 1.0])]).detach()
    assert (values >= 0).all()
    assert (values <= 1).all()
    assert (values.diff(dim=0) >= 0).all()
    assert (values[-1] == 1).all()
    assert (gates.slope() >= MIN_SLOPE).all()


def test_fresh_gates_are_the_budget() -> None:
    for budget in (1e-3, 0.1, 0.5, 0.9, 0.999):
        assert torch.allclose(Gates(4)(budget), torch.full((4,), budget), atol=1e-6)
    assert abs(float(Gates(1, slope=5.0).slope().detach()) - 5.0) < 1e-5
    assert (Gates(4)(1.0) == 1).all()
    assert logit(0.5) == 0.0
    assert logit(0.0) == logit(EPS) == pytest.approx(-logit(1.0))


def test_gates_by_hand() -> None:
    gates = Gates(2)
    with torch.no_grad():
        gates.offset.copy_(torch.tensor([1.0, -2.0]))
        gates.raw_slope.copy_(torch.tensor([0.0, 3.0]))
    slope = np.log1p(np.exp([0.0, 3.0])) + 1e-3
    wanted = 1 / (1 + np.exp(-(np.array([1.0, -2.0]) + slope * np.log(0.3 / 0.7))))
    assert np.allclose(gates(0.3).detach().numpy(), wanted, atol=1e-6)
    assert np.allclose(gates.onset(), -np.array([1.0, -2.0]) / slope, atol=1e-9)
    assert gates.onset().dtype == np.float64


def test_gates_stay_float32_under_autocast_and_in_half_precision() -> None:  # C31
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert Gates(3)(0.3).dtype == torch.float32
    assert Gates(3).to(torch.bfloat16)(0.3).dtype == torch.float32
    assert Gates(3).to(torch.bfloat16)(1.0).dtype == torch.float32


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.floats(0.2, 8.0))
def test_projected_gates_above_one_half_are_the_hard_subnet(seed: int, slope: float) -> None:
    order = random_order(seed)
    gates = Gates(len(order.units), slope=slope)
    with torch.no_grad():
        gates.raw_slope.add_(torch.rand(len(order.units), generator=torch.Generator().manual_seed(seed % 2**31)))
    gates.project(order.cumulative_shares, order.unit_shares)
    shares = order.cumulative_shares
    # where a unit switches on, and everywhere else but in the last hundredth of its own share
    budgets = [*shares.tolist(), *(shares - 2 * CROSSING_MARGIN * order.unit_shares).tolist()]
    budgets += (shares - 0.5 * order.unit_shares).tolist()
    for budget in budgets:
        if order.floor <= budget <= 1.0:
            soft = gates(budget).detach() > 0.5
            assert soft.tolist() == [i < order.length(budget) for i in range(len(order.units))], budget


@settings(max_examples=20)
@given(st.integers(0, 2**32))
def test_freezing_keeps_the_order_of_the_onsets(seed: int) -> None:
    gates, order = random_gates(12, seed), random_order(seed)
    onset = gates.onset()
    budget_of = 0.5 * (1 + np.tanh(onset / 2))
    for i, budget in enumerate(budget_of):
        if 0.01 < budget < 0.99 and float(gates.slope()[i].detach()) > 0.1:
            assert abs(float(gates(float(budget))[i].detach()) - 0.5) < 1e-4
    gates = Gates(len(order.units))
    gates.project(order.cumulative_shares, order.unit_shares)
    assert (np.diff(gates.onset()) >= 0).all()  # so a second freeze moves nothing


def test_freezing_twice_moves_nothing() -> None:
    model = rheostat.wrap(make_model(), neuron_block=16, sequence_length=9)
    with torch.no_grad():
        model.gates.offset.copy_(torch.randn(len(model.order.units), generator=torch.Generator().manual_seed(0)))
        model.gates.raw_slope.add_(torch.rand(len(model.order.units), generator=torch.Generator().manual_seed(1)))
    model.freeze_order()
    order, stored = model.order, model.stored
    assert not stored.is_identity
    model.freeze_order()
    assert model.order == order
    assert model.stored == stored


def test_rearranged_gates_move_with_their_units() -> None:
    gates = random_gates(3, 0)
    offset, slope = gates.offset.clone(), gates.raw_slope.clone()
    gates.rearrange((2, 0, 1))
    assert torch.equal(gates.offset, offset[[2, 0, 1]])
    assert torch.equal(gates.raw_slope, slope[[2, 0, 1]])


def test_layout_spreads_units_over_columns() -> None:
    units = cut_units(SHAPE, kinds=("head",))
    order = arrange(SHAPE, CostTable.heads(SHAPE), units, [0, 1, 2, 3, 4, 5], minimum=Minimum()).order
    (heads, neurons), (second, _) = GateLayout(order).expand(torch.arange(6) / 10.0)
    assert heads.tolist() == pytest.approx([0.0] * 8 + [0.1] * 8 + [0.2] * 8)
    assert second[-1] == pytest.approx(0.5)
    assert (neurons == 1).all()  # in no unit
    hard = hard_gates(Subnet.of(SHAPE, [[1], []], [[0, 69], range(70)]), torch.device("cpu"))
    assert hard[0][0].tolist() == [0] * 8 + [1] * 8 + [0] * 8
    assert hard[0][1].nonzero().flatten().tolist() == [0, 69]
    assert hard[1][0].sum() == 0


def test_shares_and_mean_gates_of_a_model() -> None:
    model = rheostat.wrap(make_model(), neuron_block=16, sequence_length=9)
    for budget in (1.0, 0.5):
        gates = model.gates(budget).detach().double().numpy()
        share = 1 - model.order.unit_shares.sum() + (model.order.unit_shares * gates).sum()
        assert float(model.soft_share(budget).detach()) == pytest.approx(share, abs=1e-6)
        mean = (model.order.unit_shares * gates).sum() / model.order.unit_shares.sum()
        assert float(model.mean_gate(budget).detach()) == pytest.approx(mean, abs=1e-6)
    model.soft_share(0.5).backward()
    assert (model.gates.offset.grad > 0).all()  # type: ignore[operator]


# -- top-k -------------------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.floats(0, 1, exclude_min=True))
def test_top_k_is_exact_and_keeps_the_largest(seed: int, budget: float) -> None:
    order = random_order(seed, Minimum(1, 0))
    gates = np.random.default_rng(seed).random(len(order.units)).round(2)
    if budget < order.floor:
        return
    subnet = top_k_subnet(order, gates, budget)
    kept = [u.start in set(subnet.kept(u.layer, u.kind)) for u in order.units]
    assert order.costs.share(subnet) <= budget
    assert all(kept[: order.required])
    rest = [(gates[i], kept[i], i) for i in range(order.required, len(gates))]
    removed = sorted((-g, i) for g, k, i in rest if not k)
    chosen = sorted((-g, i) for g, k, i in rest if k)
    assert not chosen or not removed or chosen[-1] < removed[0]
    if removed:  # the next one does not fit
        unit = order.units[removed[0][1]]
        cost = order.costs.total(subnet) + order.costs.unit(unit)
        assert cost / order.costs.total(Subnet.full(SHAPE)) > budget


def test_top_k_is_not_nested_where_rankings_cross() -> None:
    shape = ModelShape.uniform(1, 3, 8, 8, 24)
    order = arrange(
        shape, CostTable.heads(shape), cut_units(shape, kinds=("head",)), [0, 1, 2], minimum=Minimum()
    ).order
    gates = Gates(3)
    with torch.no_grad():
        gates.offset.copy_(torch.tensor([0.0, 0.1, -4.0]))  # the first two are flat, the third steep
        gates.raw_slope.copy_(torch.tensor([-3.0, -3.0, 2.0]))

    def at(budget: float) -> Any:
        return top_k_subnet(order, gates(budget).detach().double().numpy(), budget)

    assert at(0.34).heads == ((1,),)
    assert at(0.99).heads == (Subnet.of(shape, [[1, 2]], [range(8)]).heads[0],)
    steep = top_k_subnet(order, gates(0.99).detach().double().numpy(), 0.34)
    assert not at(0.99).contains(Subnet.of(shape, [[0]], [range(8)]))
    assert steep.heads == ((2,),)
    assert not steep.contains(at(0.34))
    assert at(1.0).is_full


def test_selection_changes_what_a_model_keeps() -> None:
    torch.manual_seed(0)
    models = {s: rheostat.wrap(make_model(), cost="heads", selection=s) for s in ("nested", "top-k")}  # type: ignore[arg-type]
    for model in models.values():
        with torch.no_grad():
            model.gates.offset.copy_(torch.linspace(-3, 3, len(model.order.units)))
    assert models["nested"].subnet(0.5) != models["top-k"].subnet(0.5)
    assert models["nested"].subnet(0.5).is_prefix
    assert models["top-k"].subnet(1.0).is_full
    assert models["top-k"].costs.share(models["top-k"].subnet(0.5)) <= 0.5
    inputs = make_inputs()
    one = models["top-k"](**inputs, budget=0.5).logits
    other = models["top-k"](**inputs, budget=0.5, form="gated").logits
    assert torch.allclose(one, other, atol=1e-5)
    with pytest.raises(rheostat.OptionError, match="nested, top-k"):
        rheostat.wrap(make_model(), selection="best")  # type: ignore[arg-type]
