"""Tiny random models with the features that hide faults when missing: biases, LayerNorms, padding, uneven layers."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    ElectraConfig,
    ElectraForSequenceClassification,
    ModernBertConfig,
    ModernBertForSequenceClassification,
    MPNetConfig,
    MPNetForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from rheostat.families import find_spec
from rheostat.testing import odd_subnets, randomize
from rheostat.testing import token_batch as make_inputs

__all__ = ["FAMILIES", "LABELS", "WORDS", "make_inputs", "make_model", "odd_subnets", "projections", "randomize"]

FAMILIES = ("bert", "roberta", "electra", "distilbert", "modernbert", "deberta-v2", "mpnet")
LABELS = ("negative", "neutral", "positive")
WORDS = (
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *["oil", "prices", "fall", "rise", "stocks", "rally", "the", "a", "team", "wins", "match"],
)

_SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 24,
    "num_attention_heads": 3,
    "num_hidden_layers": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 32,
    "num_labels": 3,
}


def make_model(family: str = "bert", *, attention: str = "sdpa", seed: int = 0, cls: Any = None, **changes: Any) -> Any:
    """Return a tiny random classifier in eval mode: 3 layers, 3 heads x 8, 40 neurons."""
    sizes = {**_SIZES, "attn_implementation": attention, **changes}
    if family == "bert":
        model: Any = (cls or BertForSequenceClassification)(BertConfig(**sizes))
    elif family == "roberta":
        # positions begin after the padding id
        model = (cls or RobertaForSequenceClassification)(RobertaConfig(**{"pad_token_id": 1, **sizes}))
    elif family == "distilbert":
        sizes["hidden_dim"] = sizes.pop("intermediate_size")
        model = (cls or DistilBertForSequenceClassification)(DistilBertConfig(**sizes))
    elif family == "deberta-v2":
        positions = {
            "relative_attention": True, "position_buckets": 4, "pos_att_type": ["c2p", "p2c"], "share_att_key": True,
            "norm_rel_ebd": "layer_norm", "pad_token_id": 1,
        }  # fmt: skip
        model = (cls or DebertaV2ForSequenceClassification)(
            DebertaV2Config(**{**positions, **sizes, "attn_implementation": "eager"})
        )
    elif family == "mpnet":
        sizes["attn_implementation"] = "eager"  # it has no other
        model = (cls or MPNetForSequenceClassification)(MPNetConfig(**{"pad_token_id": 1, **sizes}))
    elif family == "modernbert":
        layers = ["full_attention", "sliding_attention"] * 2
        more = {"pad_token_id": 0, "layer_types": layers[: sizes["num_hidden_layers"]], "local_attention": 4}
        biases = dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), True)
        model = (cls or ModernBertForSequenceClassification)(ModernBertConfig(**more, **biases, **sizes))
    else:
        model = (cls or ElectraForSequenceClassification)(ElectraConfig(**{"embedding_size": 16, **sizes}))
    randomize(model, seed)
    prepare = find_spec(model).prepare
    if prepare is not None:
        prepare(model)
    return model.eval()


def projections(family: str, model: Any) -> list[tuple[nn.Linear, nn.Linear]]:
    """Return the output projections of attention and feed-forward of every layer, found without a spec."""
    if family == "modernbert":
        return [(layer.attn.Wo, layer.mlp.Wo) for layer in model.base_model.layers]
    if family == "mpnet":
        return [(layer.attention.attn.o, layer.output.dense) for layer in model.base_model.encoder.layer]
    if family == "distilbert":
        return [(layer.attention.out_lin, layer.ffn.lin2) for layer in model.base_model.transformer.layer]
    return [(layer.attention.output.dense, layer.output.dense) for layer in model.base_model.encoder.layer]
