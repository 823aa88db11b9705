"""Families: found by exact type, validated on the live model, and their closed forms equal to what a run counts."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers
from random_models import CONFIGS, FAMILIES, make_inputs, make_model, odd_subnets
from torch import Tensor, nn

import rheostat
from rheostat import CostTable, ModelShape, OptionError, Subnet, UnsupportedModelError
from rheostat.families import (
    BERT_LAYOUT,
    DEBERTA_V2,
    check_model_type,
    find_spec,
    known_model_types,
    register,
)
from rheostat.materialize import materialize
from rheostat.testing import CountedMacs, counted_macs


def test_the_counter_sees_fused_attention() -> None:
    q = torch.zeros(1, 12, 64, 64)
    with CountedMacs() as count:
        nn.functional.scaled_dot_product_attention(q, q, q)
    assert 2 * count.macs == 12_582_912


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", FAMILIES)
def test_closed_form_macs_and_parameters_are_the_counted_ones(family: str, attention: str) -> None:
    model = make_model(family, attention=attention)
    spec = find_spec(model)
    shape = spec.shape(model)
    params = spec.params(shape, model)
    for batch, length in ((1, 7), (3, 9)):
        table = spec.costs("macs", shape, model, length)
        inputs = make_inputs("none", batch=batch, length=length)
        for name, subnet in odd_subnets(shape).items():
            small = materialize(model, spec, subnet)
            if family == "deberta-v2" and batch > 1:  # it projects its positions once a call
                assert counted_macs(small, inputs) <= batch * table.total(subnet), name
            else:
                assert counted_macs(small, inputs) == batch * table.total(subnet), name
            assert sum(p.numel() for p in small.parameters()) == params.total(subnet), name


@pytest.mark.parametrize("uses", [["c2p"], ["p2c"], ["c2p", "p2c"], []])
def test_projections_of_positions_alone_are_cut_and_counted(uses: list[str]) -> None:
    model = make_model("deberta-v2", share_att_key=False, pos_att_type=uses)
    wrapped, inputs = rheostat.wrap(model, neuron_block=8, sequence_length=9), make_inputs("none", batch=1, length=9)
    table = DEBERTA_V2.costs("macs", wrapped.shape, model, 9)
    for name, subnet in odd_subnets(wrapped.shape).items():
        small = materialize(model, DEBERTA_V2, subnet)
        with torch.no_grad():
            cut, gates = wrapped(**inputs, subnet=subnet).logits, wrapped(**inputs, subnet=subnet, form="gated").logits
            assert torch.equal(cut, small(**inputs).logits), name
        assert torch.allclose(cut, gates, atol=1e-5), name
        assert counted_macs(small, inputs) == table.total(subnet), name
        params = DEBERTA_V2.params(wrapped.shape, model)
        assert sum(p.numel() for p in small.parameters()) == params.total(subnet), name


def test_the_executed_slice_costs_what_it_should() -> None:  # C34: only slices get cheaper
    model, inputs = rheostat.wrap(make_model(), neuron_block=8, sequence_length=9), make_inputs("none")

    class Run(nn.Module):
        def __init__(self, form: str) -> None:
            super().__init__()
            self.form = form

        def forward(self, **rows: Tensor) -> Any:
            return model(**rows, budget=0.4, form=self.form)

    dense = counted_macs(model.base, inputs)
    assert counted_macs(Run("sliced"), inputs) == 3 * model.costs.total(model.subnet(0.4)) <= 0.4 * dense
    assert counted_macs(Run("gated"), inputs) == dense


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("BertForTokenClassification", "bert"),
        ("BertForMaskedLM", "bert"),
        ("BertForQuestionAnswering", "bert"),
        ("BertForNextSentencePrediction", "bert"),
        ("BertForPreTraining", "bert"),
        ("BertModel", "bert"),
        ("RobertaForTokenClassification", "roberta"),
        ("RobertaForMaskedLM", "roberta"),
        ("ElectraForTokenClassification", "electra"),
        ("ElectraForPreTraining", "electra"),
        ("ElectraModel", "electra"),
    ],
)
def test_what_cannot_be_removed_is_counted_once_or_per_token(name: str, family: str) -> None:
    model = make_model(family, cls=getattr(transformers, name), num_labels=2)  # question answering takes no other
    shape = BERT_LAYOUT.shape(model)
    table = BERT_LAYOUT.costs("macs", shape, model, 9)
    assert counted_macs(model, make_inputs("none")) == 3 * table.total(Subnet.full(shape))
    params = BERT_LAYOUT.params(shape, model)
    assert params.total(Subnet.full(shape)) == sum(p.numel() for p in model.parameters())
    subnet = odd_subnets(shape)["uneven"]
    small = rheostat.wrap(model, neuron_block=8).materialize(subnet=subnet)
    assert counted_macs(small, make_inputs("none")) == 3 * table.total(subnet)


def test_bert_base_layer_constants() -> None:  # C05
    with torch.device("meta"):
        config = transformers.BertConfig(num_hidden_layers=1)
        model = transformers.BertForSequenceClassification(config)
    shape = BERT_LAYOUT.shape(model)
    table = BERT_LAYOUT.params(shape, model)
    assert (table.per_head, table.per_neuron) == ((196_800,), (1_537,))
    assert sum(p.numel() for p in model.bert.encoder.layer.parameters()) == 7_087_872
    small = materialize(model, BERT_LAYOUT, Subnet.of(shape, [[0, 2, 4, 6, 8, 9, 10, 11]], [range(3072)]))
    before, after = (sum(p.numel() for p in m.parameters()) for m in (model, small))
    assert before - after == 787_200
    attention = small.bert.encoder.layer[0].attention
    assert attention.self.query.weight.shape == attention.self.key.weight.shape == (512, 768)
    assert attention.self.value.bias.shape == (512,)
    assert attention.output.dense.weight.shape == (768, 512)
    assert attention.output.dense.bias.shape == (768,)


def test_head_size_is_stated_and_never_derived() -> None:  # C21
    model = make_model(hidden_size=48, num_attention_heads=3)
    shape = BERT_LAYOUT.shape(model)
    assert shape.head_dim == 16
    small = materialize(model, BERT_LAYOUT, Subnet.prefix(shape, [1, 2, 3], [40, 40, 40]))
    for layer in small.bert.encoder.layer:
        assert layer.attention.self.attention_head_size == 16
        assert layer.attention.self.scaling == 16**-0.5
    assert small.config.num_attention_heads == 3


def test_cost_models() -> None:
    model = make_model()
    shape = BERT_LAYOUT.shape(model)
    assert shape == ModelShape.uniform(3, 3, 8, 40, 24)
    macs = BERT_LAYOUT.costs("macs", shape, model, 10)
    assert macs.per_head == (10 * (4 * 24 * 8 + 2 * 10 * 8),) * 3
    assert macs.per_neuron == (10 * 2 * 24,) * 3
    assert macs.fixed == 24 * 24 + 24 * 3
    assert macs.sequence_length == 10
    assert BERT_LAYOUT.costs("heads", shape, model, 10) == CostTable.heads(shape)
    for length in (0, -1, 1.5, True, "128"):
        with pytest.raises(OptionError, match="sequence_length"):
            BERT_LAYOUT.costs("macs", shape, model, length)  # type: ignore[arg-type]
    # every option of wrap changes something
    assert rheostat.wrap(model, sequence_length=9).costs != rheostat.wrap(model, sequence_length=10).costs
    assert len(rheostat.wrap(model, neuron_block=8).order.units) > len(rheostat.wrap(model).order.units)
    assert rheostat.wrap(model, cost="heads").floor == 1 / 3
    assert rheostat.wrap(model, cost="heads", min_heads_per_layer=2).floor == 2 / 3
    assert min(rheostat.wrap(model, min_neurons_per_layer=33).order.subnet_of_length(6).neuron_counts) == 40
    with pytest.raises(OptionError, match="'uniform' or an Importance"):
        rheostat.wrap(model, order="random")  # type: ignore[arg-type]


def test_families_are_found_by_exact_type() -> None:
    assert known_model_types() == (
        "bert",
        "camembert",
        "deberta-v2",
        "distilbert",
        "electra",
        "gpt2",
        "llama",
        "mistral",
        "modernbert",
        "mpnet",
        "qwen2",
        "roberta",
        "vit",
        "xlm-roberta",
    )
    for name, (spec, _, _) in CONFIGS.items():
        assert find_spec(make_model(name)) is spec
    known = ", ".join(known_model_types())
    for config in (transformers.GPTNeoConfig(), transformers.BigBirdConfig(), transformers.XLMRobertaXLConfig()):
        with pytest.raises(UnsupportedModelError, match=f"must be one of {known}; got '{config.model_type}'"):
            check_model_type(config)
    with pytest.raises(UnsupportedModelError, match="got Linear"):
        find_spec(nn.Linear(2, 2))


def test_families_that_never_fit_are_refused_with_the_reason() -> None:  # C14
    for config, reason in (
        (transformers.AlbertConfig(), "share one set of weights"),
        (transformers.T5Config(), "encoder-decoder"),
        (transformers.BartConfig(), "encoder-decoder"),
        (transformers.MarianConfig(), "encoder-decoder"),
        (transformers.WhisperConfig(), "encoder-decoder"),
        (transformers.BertConfig(is_decoder=True), "must be an encoder"),
        (transformers.GPT2Config(add_cross_attention=True), "nothing but its own input"),
    ):
        with pytest.raises(UnsupportedModelError, match=reason):
            check_model_type(config)


def test_pruned_heads_are_refused(tmp_path: Any) -> None:  # C20
    config = transformers.BertConfig()
    config.pruned_heads = {"0": [1]}
    with pytest.raises(UnsupportedModelError, match=r"pruned_heads must be empty; got \{'0': \[1\]\}"):
        check_model_type(config)
    model = make_model()
    model.config.pruned_heads = {0: [1]}
    with pytest.raises(UnsupportedModelError, match="pruned_heads"):
        rheostat.wrap(model)


def test_live_models_that_are_not_what_the_spec_says() -> None:
    model = rheostat.wrap(make_model(), neuron_block=8, sequence_length=9)
    for subnet in ("uneven", "neither in one layer"):
        with pytest.raises(UnsupportedModelError):
            rheostat.wrap(model.materialize(subnet=odd_subnets(model.shape)[subnet]))
    adapted = make_model()
    adapted.bert.encoder.layer[1].intermediate.dense = nn.Sequential(nn.Linear(24, 40))
    with pytest.raises(UnsupportedModelError, match=r"intermediate.dense must be torch.nn.Linear; got Sequential"):
        rheostat.wrap(adapted)
    gone = make_model()
    del gone.bert.encoder.layer[2].attention.self.value
    with pytest.raises(UnsupportedModelError, match="layer 2 must have"):
        rheostat.wrap(gone)
    uneven = make_model()
    uneven.bert.encoder.layer[0].output.dense = nn.Linear(39, 24)
    with pytest.raises(UnsupportedModelError, match="layer 0"):
        rheostat.wrap(uneven)


def test_specs_are_registered_once() -> None:
    with pytest.raises(OptionError, match=r"registered once; got \['bert'"):
        register(copy.copy(BERT_LAYOUT))
