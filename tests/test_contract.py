"""Every family keeps the contract, and the suite that says so can fail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from random_models import CONFIGS, make_config

from rheostat import families, testing
from rheostat.architectures import ArchitectureSpec
from rheostat.errors import OptionError, UnsupportedModelError
from rheostat.families import BERT_LAYOUT, DEBERTA_V2, MODERNBERT
from rheostat.testing import check_architecture, checks_of, families_table, tiny_config

TWINS = {  # of another one with the same layout
    "roberta", "electra", "mistral", "qwen2", "llama with biases", "modernbert without biases", "deberta-v2 as bert",
}  # fmt: skip
QUICK_OF_TWINS = {"equal", "costs", "saving"}
EXPORTED = {"bert"}  # in every run of the tests; the others in the slow ones


def is_slow(name: str, check: str) -> bool:
    return check not in QUICK_OF_TWINS if name in TWINS else check == "export" and name not in EXPORTED


CASES = [
    pytest.param(name, check, marks=pytest.mark.slow if is_slow(name, check) else ())
    for name, (spec, _, _) in CONFIGS.items()
    for check in checks_of(spec)
    if check != "export" or name not in TWINS
]


@pytest.mark.parametrize(("name", "check"), CASES)
def test_the_contract(name: str, check: str) -> None:
    before = torch.random.get_rng_state()
    check_architecture(CONFIGS[name][0], make_config(name), only=(check,))
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.fixture
def swap(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that registers a changed spec in the place of its own."""

    def changed(spec: ArchitectureSpec, **fields: Any) -> ArchitectureSpec:
        other = replace(spec, **fields)
        for name in spec.model_types:
            monkeypatch.setitem(families._REGISTRY, name, other)
        return other

    return changed


def test_a_forgotten_attribute_input_or_cost_is_found(swap: Any) -> None:
    positions, windows = CONFIGS["deberta-v2"][2], CONFIGS["modernbert without biases"][2]
    spec = swap(DEBERTA_V2, attention=replace(DEBERTA_V2.attention, counts=()))
    with pytest.raises(RuntimeError):
        check_architecture(spec, tiny_config(spec, **positions), only=("equal",))
    spec = swap(DEBERTA_V2, more_head_macs=None)
    with pytest.raises(AssertionError, match=r"deberta-v2, eager, costs: .* multiply-accumulates counted, .* told"):
        check_architecture(spec, tiny_config(spec, **positions), only=("costs",))
    spec = swap(MODERNBERT, feed_forward=replace(MODERNBERT.feed_forward, stacked=1))
    with pytest.raises(UnsupportedModelError, match="inputs and output of one width"):
        check_architecture(spec, tiny_config(spec, **windows), only=("equal",))
    lacking = replace(BERT_LAYOUT.attention, inputs=("attention.self.query", "attention.self.key"))
    spec = swap(BERT_LAYOUT, attention=lacking)
    with pytest.raises((AssertionError, RuntimeError)):
        check_architecture(spec, only=("equal",))


def test_forms_that_differ_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testing, "FORMS_AGREE", -1.0)
    with pytest.raises(AssertionError, match="bert, eager, equal: everything, none padding: sliced differs from gated"):
        check_architecture(BERT_LAYOUT, only=("equal",))
    with pytest.raises(AssertionError, match="order: the full model changed by"):
        check_architecture(BERT_LAYOUT, only=("order",))


def test_what_cannot_be_checked_is_refused() -> None:
    with pytest.raises(OptionError, match=r"only must hold names among equal, .*; got speed"):
        check_architecture(BERT_LAYOUT, only=("speed",))
    with pytest.raises(OptionError, match="config must be of 3 layers"):
        check_architecture(BERT_LAYOUT, tiny_config(BERT_LAYOUT, num_hidden_layers=2))
    with pytest.raises(OptionError, match="registered one of 'bert'"):
        check_architecture(replace(BERT_LAYOUT))


def test_the_readme_lists_the_families_that_keep_the_contract() -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
    assert readme.split("<!-- families -->\n")[1].split("<!-- /families -->")[0] == families_table()
    listed = {name for spec, _, _ in CONFIGS.values() for name in spec.model_types}
    assert listed == set(families.known_model_types())
