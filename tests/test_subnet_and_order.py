"""Units, subnets, costs and the one order: nested, exact, the same on every run; properties before examples."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rheostat import BudgetError, CheckpointError, CostTable, ModelShape, OptionError, Subnet, UnitOrder
from rheostat.cost import check_cost_model
from rheostat.order import (
    Arrangement,
    Minimum,
    arrange,
    balanced_onset,
    balanced_value,
    default_minimum,
    uniform_onset,
)
from rheostat.subnet import KINDS, LayerShape, StoredOrder, Unit, cut_units


@st.composite
def shapes(draw: Any) -> ModelShape:
    layers = draw(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 70)), min_size=1, max_size=4))
    return ModelShape(24, 8, tuple(LayerShape(h, f) for h, f in layers))


@st.composite
def arrangements(draw: Any) -> Arrangement:
    """Orders over random shapes, costs, onsets (ties included), minimums and blocks."""
    shape = draw(shapes())
    count = len(shape.layers)
    costs = st.lists(st.integers(0, 10**6), min_size=count, max_size=count).map(tuple)
    table = CostTable("macs", 7, draw(costs), draw(costs), draw(st.integers(1, 10**7)))
    kinds = draw(st.sampled_from([KINDS, ("head",), ("neuron",)]))
    units = cut_units(shape, kinds=kinds, neuron_block=draw(st.integers(1, 40)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    decimals = draw(st.sampled_from([0, 1, 15]))  # few decimals make ties
    minimum = Minimum(
        draw(st.integers(0, min(layer.num_attention_heads for layer in shape.layers))),
        draw(st.integers(0, min(layer.intermediate_size for layer in shape.layers))),
    )
    onset, importance = rng.normal(size=(2, len(units))).round(decimals)
    return arrange(shape, table, units, onset, importance=importance, minimum=minimum)


def budgets_of(order: UnitOrder) -> list[float]:
    """Return every threshold, the budgets just beside it, and some between."""
    edges = np.array([order.floor, *order.cumulative_shares.tolist()])
    near = np.concatenate([edges, np.nextafter(edges, 0), np.nextafter(edges, 2), np.linspace(0.01, 1, 12)])
    return sorted(float(b) for b in set(near.tolist()) if max(order.floor, 1e-12) <= b <= 1)


# -- properties --------------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(arrangements())
def test_subnets_are_exact_nested_and_monotone(arrangement: Arrangement) -> None:  # C04
    order = arrangement.order
    before: Subnet | None = None
    for budget in budgets_of(order):
        subnet = order.subnet(budget)
        length = order.length(budget)
        assert subnet.is_prefix
        assert order.costs.share(subnet) <= budget
        if length < len(order.units):  # the next unit does not fit any more
            assert order.costs.share(order.subnet_of_length(length + 1)) > budget
        assert before is None or subnet.contains(before)
        before = subnet
    assert order.subnet(1.0).is_full


@settings(max_examples=40)
@given(arrangements())
def test_cumulative_shares_are_the_shares_of_prefixes(arrangement: Arrangement) -> None:
    order = arrangement.order
    shares = [order.costs.share(order.subnet_of_length(n + 1)) for n in range(len(order.units))]
    assert order.cumulative_shares.tolist() == shares
    assert abs(order.unit_shares.sum() - (1 - order.costs.share(order.subnet_of_length(0)))) < 1e-9
    if order.units:
        assert shares[-1] == 1.0


@settings(max_examples=40)
@given(arrangements())
def test_the_floor_is_reachable_and_nothing_below_it(arrangement: Arrangement) -> None:
    order = arrangement.order
    if order.floor > 0:
        assert order.length(order.floor) >= order.required
        assert order.costs.share(order.subnet(order.floor)) == order.floor
        with pytest.raises(BudgetError, match="at least"):
            order.length(float(np.nextafter(order.floor, 0)))


@settings(max_examples=40)
@given(arrangements(), st.data())
def test_minimums_hold_at_every_budget(arrangement: Arrangement, data: Any) -> None:
    order = arrangement.order
    heads = data.draw(st.integers(0, min(s.num_attention_heads for s in order.shape.layers)))
    neurons = data.draw(st.integers(0, min(s.intermediate_size for s in order.shape.layers)))
    again = arrange(
        order.shape, order.costs, order.units, np.arange(len(order.units)), minimum=Minimum(heads, neurons)
    ).order
    lowest = again.subnet_of_length(again.required)
    assert min(lowest.head_counts) >= heads
    assert min(lowest.neuron_counts) >= neurons
    if again.required:  # no unit more than that
        last = again.units[again.required - 1]
        assert last.start < (heads if last.kind == "head" else neurons)


@settings(max_examples=40)
@given(arrangements())
def test_an_arrangement_is_a_permutation(arrangement: Arrangement) -> None:
    order, shape = arrangement.order, arrangement.order.shape
    assert sorted(arrangement.source) == list(range(len(order.units)))
    for kind, layers in (("head", arrangement.positions.heads), ("neuron", arrangement.positions.neurons)):
        for layer, ids in enumerate(layers):
            assert sorted(ids) == list(range(shape.size(layer, kind)))  # type: ignore[arg-type]


@settings(max_examples=40)
@given(shapes(), st.integers(1, 40), st.data())
def test_positions_and_source_tell_the_same_move(shape: ModelShape, block: int, data: Any) -> None:
    units = cut_units(shape, neuron_block=block)
    onset = np.random.default_rng(data.draw(st.integers(0, 2**32))).normal(size=len(units)).round(1)
    arrangement = arrange(shape, CostTable.heads(shape), units, onset, minimum=Minimum())
    for unit, source in zip(arrangement.order.units, arrangement.source, strict=True):
        old = units[source]
        assert (unit.layer, unit.kind, unit.size) == (old.layer, old.kind, old.size)
        ids = (arrangement.positions.heads if unit.kind == "head" else arrangement.positions.neurons)[unit.layer]
        assert ids[unit.start : unit.stop] == tuple(range(old.start, old.stop))


@settings(max_examples=40)
@given(shapes(), st.integers(1, 40), st.data())
def test_kept_widths_are_multiples_of_the_block(shape: ModelShape, block: int, data: Any) -> None:  # C06
    units = cut_units(shape, neuron_block=block)
    onset = np.random.default_rng(data.draw(st.integers(0, 2**32))).normal(size=len(units)).round(1)
    order = arrange(shape, CostTable.heads(shape), units, onset, minimum=Minimum()).order
    for length in range(len(units) + 1):
        for kept, layer in zip(order.subnet_of_length(length).neuron_counts, shape.layers, strict=True):
            assert kept % block == 0 or kept == layer.intermediate_size


@settings(max_examples=40)
@given(shapes(), st.data())
def test_order_follows_onset_then_importance_then_index(shape: ModelShape, data: Any) -> None:
    units = cut_units(shape, neuron_block=1)  # no smaller last block
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    onset, importance = rng.integers(0, 3, size=(2, len(units))).astype(float)
    arrangement = arrange(shape, CostTable.heads(shape), units, onset, importance=importance, minimum=Minimum())
    wanted = sorted(range(len(units)), key=lambda i: (onset[i], -importance[i], i))
    assert list(arrangement.source) == wanted


@settings(max_examples=40)
@given(arrangements())
def test_json_round_trips(arrangement: Arrangement) -> None:
    order = arrangement.order
    again = UnitOrder.from_json(json.loads(json.dumps(order.to_json())))
    assert again == order
    assert again.cumulative_shares.tolist() == order.cumulative_shares.tolist()
    assert ModelShape.from_json(json.loads(json.dumps(order.shape.to_json()))) == order.shape
    assert CostTable.from_json(json.loads(json.dumps(order.costs.to_json()))) == order.costs
    positions = json.loads(json.dumps(arrangement.positions.to_json()))
    assert StoredOrder.from_json(positions, order.shape) == arrangement.positions


@settings(max_examples=40)
@given(arrangements())
def test_the_same_input_gives_the_same_order(arrangement: Arrangement) -> None:
    order = arrangement.order
    onset = np.linspace(0, 1, len(order.units)) % 0.3
    one = arrange(order.shape, order.costs, order.units, onset, minimum=Minimum())
    # float noise far below the distance of two onsets moves nothing
    other = arrange(order.shape, order.costs, order.units, onset * (1 + 2**-52), minimum=Minimum())
    assert one == other


# -- examples ----------------------------------------------------------------------------------------------------------

SHAPE = ModelShape.uniform(2, 3, 8, 70, 24)


def test_units_of_a_layer() -> None:
    assert cut_units(SHAPE, neuron_block=32)[:6] == (
        Unit(0, "head", 0, 1),
        Unit(0, "head", 1, 2),
        Unit(0, "head", 2, 3),
        Unit(0, "neuron", 0, 32),
        Unit(0, "neuron", 32, 64),
        Unit(0, "neuron", 64, 70),
    )
    assert {unit.kind for unit in cut_units(SHAPE, kinds=("head",))} == {"head"}
    assert len(cut_units(SHAPE)) == len(cut_units(SHAPE, neuron_block=32))
    with pytest.raises(OptionError, match="neuron_block must be at least 1; got 0"):
        cut_units(SHAPE, neuron_block=0)


def test_29_of_100_is_the_literal_029() -> None:
    shape = ModelShape.uniform(1, 100, 8, 8, 24)
    order = arrange(shape, CostTable.heads(shape), cut_units(shape, kinds=("head",)), range(100)).order
    for percent in range(1, 101):
        assert order.subnet(percent / 100).head_counts == (percent,)


def test_the_smaller_last_block_stays_last_even_if_it_matters_most() -> None:
    units = cut_units(SHAPE, kinds=("neuron",), neuron_block=32)
    onset = [5.0, 4.0, 0.0, 5.0, 4.0, 0.0]
    arrangement = arrange(SHAPE, CostTable.heads(SHAPE), units, onset, minimum=Minimum())
    assert arrangement.positions.neurons[0] == (*range(32, 64), *range(32), *range(64, 70))
    # and it switches on no sooner than what lies before it
    assert [unit.size for unit in arrangement.order.units] == [32, 32, 32, 6, 32, 6]


def test_a_smaller_last_block_that_ties_and_matters_more_stays_last() -> None:
    units = cut_units(SHAPE, kinds=("neuron",), neuron_block=32)
    importance = [0.0, 0.0, 9.0, 0.0, 0.0, 9.0]
    arrangement = arrange(SHAPE, CostTable.heads(SHAPE), units, np.ones(6), importance=importance, minimum=Minimum())
    assert arrangement.positions.is_identity
    assert arrangement.order.subnet_of_length(3).neuron_counts == (70, 0)


def test_heads_keep_one_a_layer_and_all_neurons() -> None:
    order = arrange(SHAPE, CostTable.heads(SHAPE), cut_units(SHAPE, kinds=("head",)), np.zeros(6)).order
    assert default_minimum("heads") == Minimum(1, 0)
    assert default_minimum("macs") == Minimum(0, 0)
    assert order.floor == 2 / 6
    assert order.subnet(order.floor).head_counts == (1, 1)
    assert order.subnet(order.floor).neuron_counts == (70, 70)


def test_uniform_keeps_the_same_share_of_every_layer() -> None:
    shape = ModelShape.uniform(3, 4, 8, 128, 24)
    table = CostTable("macs", 1, (100,) * 3, (10,) * 3, 1)
    units = cut_units(shape)
    order = arrange(shape, table, units, uniform_onset(units)).order
    half = order.subnet_of_length(len(units) // 2)
    assert half.head_counts == (2, 2, 2)
    assert half.neuron_counts == (64, 64, 64)
    assert arrange(shape, table, units, uniform_onset(units)).positions.is_identity
    first = uniform_onset(units, np.arange(len(units)))
    assert first[:4].tolist() == [0.875, 0.625, 0.375, 0.125]


def test_balanced_onset_divides_by_cost_and_by_the_mean_of_the_kind() -> None:
    shape = ModelShape.uniform(1, 2, 8, 64, 24)
    table = CostTable("macs", 1, (1000,), (1,), 1)
    units = cut_units(shape, neuron_block=32)
    # raw scores would put both heads last; per kind they interleave, and heads come somewhat sooner
    scores = [30.0, 10.0, 3000.0, 5000.0]
    assert balanced_value(units, scores, table).tolist() == [1.5, 0.5, 0.75, 1.25]
    assert np.argsort(balanced_onset(units, scores, table, head_weight=1.0)).tolist() == [0, 3, 2, 1]
    assert np.argsort(balanced_onset(units, scores, table)).tolist() == [0, 3, 1, 2]
    assert balanced_onset(units, np.zeros(4), table).tolist() == [0.0, 0.25, 0.5, 0.75]


@pytest.mark.parametrize("bad", [[0.0] * 5, [0.0] * 7, [float("nan")] * 6, [float("inf")] * 6])
def test_scores_must_be_one_finite_number_a_unit(bad: list[float]) -> None:
    units = cut_units(SHAPE, kinds=("head",))
    for call in (
        lambda: arrange(SHAPE, CostTable.heads(SHAPE), units, bad),
        lambda: arrange(SHAPE, CostTable.heads(SHAPE), units, [0.0] * 6, importance=bad),
        lambda: balanced_onset(units, bad, CostTable.heads(SHAPE)),
        lambda: uniform_onset(units, bad),
    ):
        with pytest.raises(OptionError, match="6 finite numbers"):
            call()


@pytest.mark.parametrize("minimum", [Minimum(4, 0), Minimum(-1, 0), Minimum(0, 71)])
def test_minimums_that_no_layer_has(minimum: Minimum) -> None:
    with pytest.raises(OptionError, match=r"min_(head|neuron)s_per_layer must be in \[0, (3|70)\]"):
        arrange(SHAPE, CostTable.heads(SHAPE), cut_units(SHAPE), np.zeros(12), minimum=minimum)


def test_orders_that_are_none_are_refused() -> None:
    order = arrange(SHAPE, CostTable.heads(SHAPE), cut_units(SHAPE), np.zeros(12)).order
    units = order.units
    for wrong, message in (
        (units[::-1], "follow the stored order"),
        (units[:-1], "must cover all"),
        ((*units, units[-1]), "follow the stored order"),
        ((*units, Unit(2, "head", 0, 1)), "2 layers"),
        ((*units, Unit(-1, "head", 0, 1)), "2 layers"),
        ((*units, Unit(0, "layer", 0, 1)), "head or neuron"),  # type: ignore[arg-type]
    ):
        with pytest.raises(CheckpointError, match=message):
            replace(order, units=wrong)
    for required in (-1, len(units) + 1):
        with pytest.raises(CheckpointError, match="required"):
            replace(order, required=required)


def test_subnets_compare_hash_and_contain_by_what_they_keep() -> None:
    prefix = Subnet.prefix(SHAPE, [2, 0], [32, 70])
    same = Subnet.of(SHAPE, [[1, 0], []], [list(range(32)), range(70)])
    assert prefix == same
    assert hash(prefix) == hash(same)
    assert same.is_prefix
    assert len({prefix, same, Subnet.full(SHAPE)}) == 2
    other = Subnet.of(SHAPE, [[2], [0]], [range(32), range(70)])
    assert not other.is_prefix
    assert not prefix.contains(other)
    assert Subnet.full(SHAPE).contains(other)
    assert Subnet.full(SHAPE).is_full
    assert not other.is_full
    assert other.kept_shape() == ModelShape(24, 8, (LayerShape(1, 32), LayerShape(1, 70)))
    assert (other.kept(0, "head"), other.kept(0, "neuron")) == ((2,), range(32))


@pytest.mark.parametrize(
    "heads", [[[0], [3]], [[0, 0], [1]], [[-1], [0]], [range(4), [0]], [[0]], [[0], [0], [0]]]
)  # C11: positions are whole heads
def test_positions_that_do_not_exist(heads: Any) -> None:
    with pytest.raises(OptionError, match=r"must be distinct and in \[0, 3\)|one entry for each of 2 layers"):
        Subnet.of(SHAPE, heads, [range(70)] * len(heads))


def test_stored_orders_refuse_what_is_no_whole_head() -> None:  # C11
    good = StoredOrder.identity(SHAPE).to_json()
    for heads, message in (
        ([[0, 1], [0, 1, 2]], "count"),
        ([[0, 1, 1], [0, 1, 2]], "distinct"),
        ([[0, 1, 3], [0, 1, 2]], "distinct"),
        ([[0, 1, 1.5], [0, 1, 2]], "distinct"),
        ([[0, 1, -1], [0, 1, 2]], "distinct"),
        ([[0, 1, 2]], "count"),
    ):
        with pytest.raises(CheckpointError, match=message):
            StoredOrder.from_json({**good, "heads": heads}, SHAPE)
    small = ModelShape(24, 8, (LayerShape(1, 70), LayerShape(2, 70)))
    kept = {**good, "heads": [[2], [0, 1]]}
    assert StoredOrder.from_json(kept, small, SHAPE).heads == ((2,), (0, 1))
    with pytest.raises(CheckpointError, match=r"\[0, 3\)"):
        StoredOrder.from_json({**good, "heads": [[3], [0, 1]]}, small, SHAPE)


def test_stored_orders_compose() -> None:
    first = StoredOrder(((2, 0, 1),), ((0, 1),))
    second = StoredOrder(((1, 2, 0),), ((1, 0),))
    assert first.then(second) == StoredOrder(((0, 1, 2),), ((1, 0),))
    shape = ModelShape(24, 8, (LayerShape(3, 2),))
    assert first.kept(Subnet.of(shape, [[0, 2]], [[1]])) == StoredOrder(((2, 1),), ((1,),))
    assert not first.is_identity
    assert StoredOrder.identity(shape).is_identity


def test_cost_tables_add_up() -> None:
    table = CostTable("macs", 4, (100, 200), (1, 2), 50)
    full = 3 * 100 + 3 * 200 + 70 + 140 + 50
    assert table.total(Subnet.full(SHAPE)) == full
    assert table.share(Subnet.prefix(SHAPE, [1, 2], [0, 10])) == (50 + 100 + 400 + 20) / full
    assert table.unit(Unit(1, "neuron", 32, 64)) == 64
    assert table.unit(Unit(1, "head", 0, 1)) == 200
    for name in ("macs", "heads"):
        assert check_cost_model(name) == name
    with pytest.raises(OptionError, match="macs, heads; got 'flops'"):
        check_cost_model("flops")


def test_a_thousand_budgets_of_bert_large_take_less_than_a_second() -> None:
    shape = ModelShape.uniform(24, 16, 64, 4096, 1024)
    table = CostTable("macs", 128, (10_000_000,) * 24, (262_144,) * 24, 1_000_000)
    rng = np.random.default_rng(0)
    start = time.perf_counter()
    units = cut_units(shape)
    order = arrange(shape, table, units, rng.normal(size=len(units))).order
    subnets = [order.subnet(float(budget)) for budget in np.linspace(order.floor, 1, 1000)]
    assert time.perf_counter() - start < 1.0
    assert subnets[-1].is_full
