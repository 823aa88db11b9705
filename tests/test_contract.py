"""Every family keeps the contract, and the suite that says so can fail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from rheostat import families, testing
from rheostat.architectures import ArchitectureSpec
from rheostat.errors import OptionError, UnsupportedModelError
from rheostat.families import BERT_LAYOUT, DEBERTA_V2, DISTILBERT, MODERNBERT, MPNET
from rheostat.testing import CHECKS, check_architecture, tiny_config

BIASES = dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), True)
WINDOWS = {"layer_types": ["full_attention", "sliding_attention", "full_attention"], "local_attention": 4}
POSITIONS = {"relative_attention": True, "position_buckets": 4, "pos_att_type": ["c2p", "p2c"]}
CONFIGS: dict[str, tuple[ArchitectureSpec, dict[str, Any]]] = {
    "bert": (BERT_LAYOUT, {}),
    "distilbert": (DISTILBERT, {}),
    "modernbert": (MODERNBERT, {**BIASES, **WINDOWS}),
    "modernbert without biases": (MODERNBERT, WINDOWS),
    "deberta-v3": (DEBERTA_V2, {**POSITIONS, "share_att_key": True, "norm_rel_ebd": "layer_norm"}),
    "deberta-v2": (DEBERTA_V2, {**POSITIONS, "share_att_key": False}),
    "deberta-v2 as bert": (DEBERTA_V2, {}),
    "mpnet": (MPNET, {}),
}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", CONFIGS)
def test_the_contract(name: str, check: str) -> None:
    spec, changes = CONFIGS[name]
    before = torch.random.get_rng_state()
    check_architecture(spec, tiny_config(spec, **changes), only=(check,))
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
    _, positions = CONFIGS["deberta-v3"]
    spec = swap(DEBERTA_V2, attention=replace(DEBERTA_V2.attention, counts=()))
    with pytest.raises(RuntimeError):
        check_architecture(spec, tiny_config(spec, **positions), only=("equal",))
    spec = swap(DEBERTA_V2, more_head_macs=None)
    with pytest.raises(AssertionError, match=r"deberta-v2, eager, costs: .* multiply-accumulates counted, .* told"):
        check_architecture(spec, tiny_config(spec, **positions), only=("costs",))
    spec = swap(MODERNBERT, feed_forward=replace(MODERNBERT.feed_forward, stacked=1))
    with pytest.raises(UnsupportedModelError, match="inputs and output of one width"):
        check_architecture(spec, tiny_config(spec, **WINDOWS), only=("equal",))
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
