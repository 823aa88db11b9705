"""Tiny random models with the features that hide faults when missing: biases, LayerNorms, padding, uneven layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
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
    RobertaConfig,
    RobertaForSequenceClassification,
)

from rheostat.subnet import ModelShape, Subnet

FAMILIES = ("bert", "roberta", "electra", "distilbert", "modernbert", "deberta-v2")
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


def randomize(model: nn.Module, seed: int = 0) -> None:
    """Give every parameter a value that matters: biases off zero, LayerNorms off the identity."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name.lower() and name.endswith("weight"):
                parameter.copy_(1.0 + 0.3 * noise)
            else:
                parameter.copy_((0.3 if name.endswith("bias") else 0.25) * noise)


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
            "norm_rel_ebd": "layer_norm", "pad_token_id": 1, "attn_implementation": "eager",
        }  # fmt: skip
        model = (cls or DebertaV2ForSequenceClassification)(
            DebertaV2Config(**{**positions, **sizes, "attn_implementation": "eager"})
        )
    elif family == "modernbert":
        layers = ["full_attention", "sliding_attention"] * 2
        more = {"pad_token_id": 0, "layer_types": layers[: sizes["num_hidden_layers"]], "local_attention": 4}
        biases = dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), True)
        model = (cls or ModernBertForSequenceClassification)(ModernBertConfig(**more, **biases, **sizes))
    else:
        model = (cls or ElectraForSequenceClassification)(ElectraConfig(**{"embedding_size": 16, **sizes}))
    randomize(model, seed)
    return model.eval()


def make_inputs(padding: str = "right", *, batch: int = 3, length: int = 9, seed: int = 1) -> dict[str, Tensor]:
    """Return token ids (B, S) with padding on one side of all rows but the first, or nowhere (``none``)."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 40, (batch, length), generator=generator)
    mask = torch.ones_like(ids)
    for row in range(1, batch):
        hidden = slice(length - 2 * row, None) if padding == "right" else slice(0, 2 * row)
        if padding != "none":
            mask[row, hidden] = 0
            ids[row, hidden] = 1
    return {"input_ids": ids, "attention_mask": mask}


def odd_subnets(shape: ModelShape) -> dict[str, Subnet]:
    """Return choices at every edge, for 3 layers x 3 heads x 40 neurons."""
    return {
        "everything": Subnet.full(shape),
        "uneven": Subnet.prefix(shape, [1, 3, 2], [16, 40, 8]),
        "no attention in one layer": Subnet.prefix(shape, [2, 0, 3], [16, 40, 40]),
        "no feed-forward in one layer": Subnet.prefix(shape, [2, 3, 1], [0, 32, 40]),
        "neither in one layer": Subnet.prefix(shape, [3, 0, 2], [40, 0, 16]),
        "nothing": Subnet.prefix(shape, [0, 0, 0], [0, 0, 0]),
        "not a prefix": Subnet.of(shape, [[0, 2], [1], [2]], [range(8, 24), [0, 3, 5, 39], range(40)]),
        "not a prefix, and empty": Subnet.of(shape, [[1, 2], [], [0]], [[], [7], range(16)]),
    }


def projections(family: str, model: Any) -> list[tuple[nn.Linear, nn.Linear]]:
    """Return the output projections of attention and feed-forward of every layer, found without a spec."""
    if family == "modernbert":
        return [(layer.attn.Wo, layer.mlp.Wo) for layer in model.base_model.layers]
    if family == "distilbert":
        return [(layer.attention.out_lin, layer.ffn.lin2) for layer in model.base_model.transformer.layer]
    return [(layer.attention.output.dense, layer.output.dense) for layer in model.base_model.encoder.layer]
