"""Decoders: whole key/value groups, attributes that follow, places in the cache, and one vocabulary for both ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from random_models import make_inputs, make_model

import rheostat
from rheostat import BudgetError, ModelShape, OptionError, Subnet, UnexpectedArgumentError, UnsupportedModelError
from rheostat.families import GPT2, LLAMA_LAYOUT
from rheostat.materialize import materialize

LANGUAGE = {"gpt2": transformers.GPT2LMHeadModel, "llama": transformers.LlamaForCausalLM}
GREEDY = {"do_sample": False, "min_new_tokens": 4, "max_new_tokens": 4}


def language_model(family: str, **changes: Any) -> rheostat.BudgetedModel:
    return rheostat.wrap(make_model(family, cls=LANGUAGE[family], **changes), neuron_block=8, sequence_length=9)


def test_part_of_a_group_of_query_heads_is_refused_when_planned() -> None:  # C10
    shape = ModelShape.uniform(2, 2, 8, 40, 24, query_heads=2)
    whole = Subnet.of_query_heads(shape, [[2, 3], range(4)], [range(40)] * 2)
    assert whole.heads == ((1,), range(2))
    with pytest.raises(OptionError, match=r"layer 1 must be whole groups of 2 .*; got 1 of 2 of group 1"):
        Subnet.of_query_heads(shape, [range(4), [0, 1, 2]], [range(40)] * 2)
    with pytest.raises(OptionError, match=r"heads of layer 0 must be distinct and in \[0, 2\)"):
        Subnet.of_query_heads(shape, [[4, 5], []], [range(40)] * 2)
    with pytest.raises(OptionError, match="one entry for each of 2 layers"):
        Subnet.of_query_heads(shape, [range(4)], [range(40)] * 2)
    plain = ModelShape.uniform(2, 2, 8, 40, 24)
    assert Subnet.of_query_heads(plain, [[0], [1]], [[], []]) == Subnet.of(plain, [[0], [1]], [[], []])


def test_the_shape_of_groups_survives_json_and_is_told_only_where_there_are_any() -> None:
    grouped = ModelShape.uniform(2, 2, 8, 40, 24, query_heads=3)
    assert ModelShape.from_json(grouped.to_json()) == grouped
    assert grouped.width("head") == 24
    assert Subnet.prefix(grouped, [1, 0], [3, 4]).kept_shape().query_heads == 3
    assert "query_heads" not in ModelShape.uniform(2, 2, 8, 40, 24).to_json()


def test_query_heads_that_do_not_divide_are_refused() -> None:
    model = make_model("llama", num_attention_heads=3, num_key_value_heads=3)
    model.config.num_key_value_heads = 2
    with pytest.raises(UnsupportedModelError, match="multiple of num_key_value_heads; got 3 and 2"):
        rheostat.wrap(model)


def test_a_group_is_cut_whole() -> None:
    model = make_model("llama")
    shape = LLAMA_LAYOUT.shape(model)
    assert shape == ModelShape.uniform(3, 3, 8, 40, 24, query_heads=2)
    small = materialize(model, LLAMA_LAYOUT, Subnet.of_query_heads(shape, [[2, 3]] * 3, [range(40)] * 3))
    full, cut = model.model.layers[0].self_attn, small.model.layers[0].self_attn
    assert torch.equal(cut.q_proj.weight, full.q_proj.weight[16:32])
    assert torch.equal(cut.k_proj.weight, full.k_proj.weight[8:16])
    assert torch.equal(cut.v_proj.weight, full.v_proj.weight[8:16])
    assert torch.equal(cut.o_proj.weight, full.o_proj.weight[:, 16:32])
    assert cut.num_key_value_groups == 2


def test_what_a_group_costs() -> None:
    model = make_model("llama")
    table = LLAMA_LAYOUT.costs("macs", LLAMA_LAYOUT.shape(model), model, 9)
    assert table.per_head == (9 * (2 * 24 * 8 * 3 + 2 * 9 * 8 * 2),) * 3
    assert table.per_neuron == (9 * 3 * 24,) * 3


def test_conv1d_stays_what_it_is_and_its_attributes_follow() -> None:  # C08
    model = make_model("gpt2")
    shape = GPT2.shape(model)
    small = materialize(model, GPT2, Subnet.prefix(shape, [1, 3, 2], [16, 40, 8]))
    full, cut = model.transformer.h[0].attn, small.transformer.h[0].attn
    assert type(cut.c_attn) is type(full.c_attn)
    assert (cut.c_attn.nx, cut.c_attn.nf, cut.c_proj.nx, cut.c_proj.nf) == (24, 24, 8, 24)
    query, key, value = full.c_attn.weight.split(24, dim=1)
    assert torch.equal(cut.c_attn.weight, torch.cat([query[:, :8], key[:, :8], value[:, :8]], dim=1))
    assert (cut.num_heads, cut.split_size, full.num_heads, full.split_size) == (1, 8, 3, 24)
    assert [block.attn.layer_idx for block in small.transformer.h] == [0, 1, 2]


@pytest.mark.parametrize("family", LANGUAGE)
def test_generation_at_a_budget(family: str, tmp_path: Path) -> None:
    model, prompt = language_model(family), make_inputs("left", batch=2, length=5)
    full = model.generate(**prompt, **GREEDY)
    assert torch.equal(full, model.base.generate(**prompt, **GREEDY))
    cut = model.generate(**prompt, budget=0.6, **GREEDY)
    assert cut.shape == full.shape == (2, 9)
    assert not torch.equal(cut, full)
    assert torch.equal(cut, model.at(0.6).generate(**prompt, **GREEDY))
    small = model.materialize(0.6)
    small.generation_config.max_new_tokens = 4
    small.save_pretrained(tmp_path / "small")
    loaded = rheostat.load(tmp_path / "small")
    assert torch.equal(loaded.generate(**prompt, do_sample=False, min_new_tokens=4), cut)
    with pytest.raises(BudgetError, match=r"0\.01"):
        model.generate(**prompt, budget=0.01)
    with pytest.raises(OptionError, match="must have a causal language head"):
        rheostat.wrap(make_model(family)).generate(**prompt)


@pytest.mark.parametrize("family", LANGUAGE)
def test_a_materialized_decoder_can_be_trained_on(family: str) -> None:  # C28
    model, inputs = language_model(family), make_inputs("none")
    small = model.materialize(subnet=Subnet.prefix(model.shape, [1, 3, 2], [16, 40, 8])).train()
    optimizer = torch.optim.SGD(small.parameters(), lr=0.1)
    before = {name: parameter.detach().clone() for name, parameter in small.named_parameters()}
    small(**inputs, labels=inputs["input_ids"]).loss.backward()
    optimizer.step()
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    assert held == {id(parameter) for parameter in small.parameters()}
    assert all(not torch.equal(parameter, before[name]) for name, parameter in small.named_parameters())


def test_generation_keeps_the_mode_of_the_model() -> None:
    model = language_model("gpt2").train()
    model.generate(**make_inputs(batch=1, length=3), budget=0.7, max_new_tokens=1)
    assert model.training


@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_vocabulary_is_counted_once_and_stays_tied(tied: bool, tmp_path: Path) -> None:
    model = language_model("llama", tie_word_embeddings=tied)
    size = 40 * 24
    assert model.params_table().total(Subnet.full(model.shape)) == sum(p.numel() for p in model.base.parameters())
    assert model.params_table().fixed == size * (1 if tied else 2) + 7 * 24  # and norms: two a layer, and the last
    assert model.costs.fixed == 9 * size
    model.save_pretrained(tmp_path / "all")
    again = rheostat.load(tmp_path / "all")
    for loaded in (again.base, again.materialize(0.7)):
        assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) == tied
    assert torch.equal(again(**make_inputs(), budget=0.7).logits, model(**make_inputs(), budget=0.7).logits)


@pytest.mark.parametrize("family", ["gpt2", "llama", "vit"])
def test_head_mask_is_refused(family: str) -> None:  # C01
    with pytest.raises(UnexpectedArgumentError, match=r"budget=.*subnet="):
        rheostat.wrap(make_model(family))(head_mask=torch.zeros(3, 3))
