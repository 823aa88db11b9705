"""Budgets: what is taken, what is refused, and that every refusal states value, rule and remedy."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_models import make_inputs, make_model

import rheostat
from rheostat import BudgetError
from rheostat.budget import DEFAULT_BUDGETS, check_budget, descending, parse_budget, parse_budgets, reachable


@pytest.mark.parametrize("budget", [1e-6, 0.01, 0.999, 1.0, 1, np.float32(0.5), np.float64(0.25), Fraction(1, 3)])
def test_numbers_in_range_are_taken(budget: Any) -> None:
    checked = check_budget(budget)
    assert type(checked) is float
    assert checked == float(budget)


@pytest.mark.parametrize(
    "budget",
    [
        0.0,
        -0.0,
        -1,
        1.01,
        1.0000000001,
        2,
        float("nan"),
        float("inf"),
        -float("inf"),
        "0.5",
        True,
        False,
        None,
        [0.5],
        np.bool_(True),
        0.5j,
        b"1",
        torch.tensor(0.5),
    ],
)
def test_everything_else_is_refused_with_value_and_rule(budget: Any) -> None:  # C03
    with pytest.raises(BudgetError, match=r"budget must be .*\(0, 1\]; got .*0\.5") as caught:
        check_budget(budget)
    assert repr(budget) in str(caught.value)
    assert isinstance(caught.value, ValueError)


@given(st.floats(0.0, 1.0, exclude_min=True), st.floats(0.0, 1.0))
def test_below_the_floor_states_a_budget_that_works(budget: float, floor: float) -> None:
    if budget >= floor:
        assert check_budget(budget, floor=floor) == budget
        return
    with pytest.raises(BudgetError, match="must be at least") as caught:
        check_budget(budget, floor=floor)
    stated = float(str(caught.value).split("at least ")[1].split(",")[0])
    assert check_budget(stated, floor=floor) == stated
    assert stated - floor <= 1e-6 + 1e-9


@pytest.mark.parametrize("text", ["", "half", "50%", "0,5", "nan", "0", "1.5", "-0.5", "inf"])
def test_text_that_is_no_budget(text: str) -> None:
    with pytest.raises(BudgetError, match=r"\(0, 1\]"):
        parse_budget(text)


def test_lists_of_budgets() -> None:
    assert parse_budgets(" 0.25, 1.0 ,0.5,0.50,") == (1.0, 0.5, 0.25)
    assert descending([0.1, 1, 0.1]) == (1.0, 0.1)
    assert reachable((1.0, 0.5, 0.1), 0.5) == (1.0, 0.5)
    assert descending(DEFAULT_BUDGETS) == DEFAULT_BUDGETS
    for text in ("", " , "):
        with pytest.raises(BudgetError, match="comma-separated"):
            parse_budgets(text)
    with pytest.raises(BudgetError, match="'x'"):
        parse_budgets("0.5,x")


def test_a_model_checks_every_budget_at_every_door() -> None:
    model, inputs = rheostat.wrap(make_model(), neuron_block=8, sequence_length=9), make_inputs()
    doors: list[Any] = [
        lambda b: model(**inputs, budget=b),
        lambda b: model(**inputs, budget=b, form="soft"),
        model.subnet,
        model.at,
        model.materialize,
        lambda b: model.predict([], budget=b),
    ]
    for door in doors:
        for budget in (0.0, 1.01, float("nan"), "0.5", True):
            with pytest.raises(BudgetError, match="budget must be"):
                door(budget)
        with pytest.raises(BudgetError, match="at least"):
            door(model.floor * 0.99)
    assert not model.subnet(0.999).is_full  # 0.999 is not 1.0
    assert model.subnet(1.0).is_full
    assert model.costs.share(model.subnet(model.floor)) == model.floor
