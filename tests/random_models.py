"""Tiny random models with the features that hide faults when missing: biases, LayerNorms, padding, uneven layers."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import AutoModelForImageClassification, AutoModelForSequenceClassification

from rheostat.architectures import ArchitectureSpec
from rheostat.families import BERT_LAYOUT, DEBERTA_V2, DISTILBERT, GPT2, LLAMA_LAYOUT, MODERNBERT, MPNET, VIT
from rheostat.testing import odd_subnets, randomize, tiny_config
from rheostat.testing import token_batch as make_inputs

__all__ = [
    "CONFIGS",
    "FAMILIES",
    "LABELS",
    "WORDS",
    "make_config",
    "make_inputs",
    "make_model",
    "odd_subnets",
    "projections",
    "randomize",
]

LABELS = ("negative", "neutral", "positive")
WORDS = (
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *["oil", "prices", "fall", "rise", "stocks", "rally", "the", "a", "team", "wins", "match"],
)

_WINDOWS = {"layer_types": ["full_attention", "sliding_attention", "full_attention"], "local_attention": 4}
_BIASES = dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), True)
_POSITIONS = {"relative_attention": True, "position_buckets": 4, "pos_att_type": ["c2p", "p2c"]}
_GROUPS = {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8}
# Every family, and its choices: spec, model type, and what differs from the usual tiny config.
CONFIGS: dict[str, tuple[ArchitectureSpec, str, dict[str, Any]]] = {
    "bert": (BERT_LAYOUT, "bert", {}),
    "roberta": (BERT_LAYOUT, "roberta", {}),
    "electra": (BERT_LAYOUT, "electra", {"embedding_size": 16}),
    "distilbert": (DISTILBERT, "distilbert", {}),
    "modernbert": (MODERNBERT, "modernbert", {**_BIASES, **_WINDOWS}),
    "modernbert without biases": (MODERNBERT, "modernbert", _WINDOWS),
    "deberta-v2": (DEBERTA_V2, "deberta-v2", {**_POSITIONS, "share_att_key": True, "norm_rel_ebd": "layer_norm"}),
    "deberta-v2 with projections of positions": (DEBERTA_V2, "deberta-v2", {**_POSITIONS, "share_att_key": False}),
    "deberta-v2 as bert": (DEBERTA_V2, "deberta-v2", {}),
    "mpnet": (MPNET, "mpnet", {}),
    "vit": (VIT, "vit", {}),
    "gpt2": (GPT2, "gpt2", {}),
    "llama": (LLAMA_LAYOUT, "llama", _GROUPS),
    "llama with biases": (LLAMA_LAYOUT, "llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral": (LLAMA_LAYOUT, "mistral", {**_GROUPS, "sliding_window": 4}),
    "qwen2": (
        LLAMA_LAYOUT,
        "qwen2",
        {**_GROUPS, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    ),
}
FAMILIES = ("bert", "roberta", "electra", "distilbert", "modernbert", "deberta-v2", "mpnet")  # encoders of texts


def make_config(name: str, **changes: Any) -> Any:
    """Return the tiny config of a name in ``CONFIGS``."""
    spec, model_type, usual = CONFIGS[name]
    return tiny_config(spec, model_type, **{**usual, **changes})


def make_model(family: str = "bert", *, attention: str = "sdpa", seed: int = 0, cls: Any = None, **changes: Any) -> Any:
    """Return a tiny random model in eval mode, 3 layers, 3 heads x 8, 40 neurons: a classifier, or of class ``cls``."""
    spec, config = CONFIGS[family][0], make_config(family, **changes)
    config._attn_implementation = "eager" if family.startswith(("deberta", "mpnet")) else attention  # have no other
    auto = AutoModelForSequenceClassification if spec.image_tokens is None else AutoModelForImageClassification
    model: Any = auto.from_config(config) if cls is None else cls(config)
    randomize(model, seed)
    if spec.prepare is not None:
        spec.prepare(model)
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
