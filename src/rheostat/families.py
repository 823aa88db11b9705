"""The families that are known: one spec each, found by the exact ``config.model_type``."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

from rheostat.architectures import KNOWN_HINT, ArchitectureSpec, SubLayerSpec
from rheostat.errors import OptionError, UnsupportedModelError

BERT_LAYOUT = ArchitectureSpec(
    model_types=("bert", "roberta", "xlm-roberta", "camembert", "electra"),
    layers="encoder.layer",
    attention=SubLayerSpec(
        body="attention.self",
        inputs=("attention.self.query", "attention.self.key", "attention.self.value"),
        output="attention.output.dense",
        records_attention=True,
    ),
    feed_forward=SubLayerSpec(body="intermediate", inputs=("intermediate.dense",), output="output.dense"),
)

DISTILBERT = ArchitectureSpec(
    model_types=("distilbert",),
    layers="transformer.layer",
    attention=SubLayerSpec(
        body="attention",
        inputs=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
        output="attention.out_lin",
        records_attention=True,
    ),
    feed_forward=SubLayerSpec(body="ffn", inputs=("ffn.lin1",), output="ffn.lin2"),
    neurons_in_config="hidden_dim",
)

MODERNBERT = ArchitectureSpec(
    model_types=("modernbert",),
    layers="layers",
    attention=SubLayerSpec(body="attn", inputs=("attn.Wqkv",), output="attn.Wo", records_attention=True, stacked=3),
    feed_forward=SubLayerSpec(body="mlp", inputs=("mlp.Wi",), output="mlp.Wo", stacked=2),
)


def _disentangled_macs(config: Any, S: int, E: int, D: int) -> int:
    """Return what DeBERTa's relative positions cost a head.

    Their table of 2 * span rows is projected once a call, here one of a single sequence, and multiplied with queries or
    keys of every token.
    """
    if not config.relative_attention:
        return 0
    positions = config.max_relative_positions
    span = config.position_buckets if config.position_buckets > 0 else positions
    span = span if span > 0 else config.max_position_embeddings
    uses = len({"c2p", "p2c"} & set(config.pos_att_type or ()))
    projections = 2 if config.share_att_key else uses
    return int(2 * span * (projections * E * D + uses * S * D))


DEBERTA_V2 = ArchitectureSpec(
    model_types=("deberta-v2",),
    layers="encoder.layer",
    attention=SubLayerSpec(
        body="attention.self",
        inputs=("attention.self.query_proj", "attention.self.key_proj", "attention.self.value_proj"),
        optional_inputs=("attention.self.pos_key_proj", "attention.self.pos_query_proj"),
        output="attention.output.dense",
        records_attention=True,
        counts=("attention.self.num_attention_heads",),
        widths=("attention.self.all_head_size",),
    ),
    feed_forward=BERT_LAYOUT.feed_forward,
    more_head_macs=_disentangled_macs,
)


@functools.cache
def _by_head(cls: Any) -> Any:
    """Return a subclass of MPNet's attention that takes its heads' part of the position bias of all heads."""

    def forward(self: Any, hidden_states: Any, attention_mask: Any, position_bias: Any, **kwargs: Any) -> Any:
        return cls.forward(self, hidden_states, attention_mask, position_bias[:, self.head_ids], **kwargs)

    return type(cls.__name__, (cls,), {"forward": forward, "__module__": __name__, "moves_heads": True})


def _let_heads_move(model: nn.Module) -> None:
    """Give every attention of an MPNet the ids of its heads in the table of positions that all layers share."""
    for layer in MPNET.layer_list(model):
        attention: Any = layer.get_submodule(MPNET.attention.body)
        if not getattr(attention, "moves_heads", False):
            ids = torch.arange(attention.num_attention_heads, device=attention.q.weight.device)
            attention.register_buffer("head_ids", ids, persistent=False)
            cls: Any = type(attention)
            attention.__class__ = _by_head(cls)


MPNET = ArchitectureSpec(
    model_types=("mpnet",),
    layers="encoder.layer",
    attention=SubLayerSpec(
        body="attention.attn",
        inputs=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
        output="attention.attn.o",
        records_attention=True,
        counts=("attention.attn.num_attention_heads",),
        widths=("attention.attn.all_head_size",),
        per_unit=("attention.attn.head_ids",),
    ),
    feed_forward=BERT_LAYOUT.feed_forward,
    prepare=_let_heads_move,
)


def _patches(config: Any) -> int:
    """Return the tokens of an image: its patches and the class token."""
    (height, width), (down, across) = (
        (size, size) if isinstance(size, int) else size for size in (config.image_size, config.patch_size)
    )
    return int((height // down) * (width // across) + 1)


VIT = ArchitectureSpec(
    model_types=("vit",),
    layers="layers",
    attention=SubLayerSpec(
        body="attention",
        inputs=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
        output="attention.o_proj",
        records_attention=True,
    ),
    feed_forward=SubLayerSpec(body="mlp", inputs=("mlp.fc1",), output="mlp.fc2"),
    image_tokens=_patches,
)

GPT2 = ArchitectureSpec(
    model_types=("gpt2",),
    layers="h",
    attention=SubLayerSpec(
        body="attn",
        inputs=("attn.c_attn",),
        output="attn.c_proj",
        records_attention=True,
        stacked=3,
        counts=("attn.num_heads",),
        widths=("attn.split_size",),
    ),
    feed_forward=SubLayerSpec(body="mlp", inputs=("mlp.c_fc",), output="mlp.c_proj"),
    neurons_in_config="n_inner",
    causal=True,
)

LLAMA_LAYOUT = ArchitectureSpec(
    model_types=("llama", "mistral", "qwen2"),
    layers="layers",
    attention=SubLayerSpec(
        body="self_attn",
        inputs=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        output="self_attn.o_proj",
        records_attention=True,
    ),
    feed_forward=SubLayerSpec(body="mlp", inputs=("mlp.gate_proj", "mlp.up_proj"), output="mlp.down_proj"),
    causal=True,
)

_REGISTRY: dict[str, ArchitectureSpec] = {}


def register(spec: ArchitectureSpec) -> ArchitectureSpec:
    """Add a family.

    Raises:
        OptionError: one of its model types is taken.
    """
    taken = [name for name in spec.model_types if name in _REGISTRY]
    if taken:
        raise OptionError(f"model types must be registered once; got {taken!r} again. Change the spec's model_types")
    _REGISTRY.update(dict.fromkeys(spec.model_types, spec))
    return spec


register(BERT_LAYOUT)
register(DISTILBERT)
register(MODERNBERT)
register(DEBERTA_V2)
register(MPNET)
register(VIT)
register(GPT2)
register(LLAMA_LAYOUT)

# Families that never fit, with the reason; everything else unknown just gets the list of known ones.
_REFUSED: dict[str, str] = {
    "albert": "its layers share one set of weights, so nothing can be removed from one layer alone",
    "t5": "encoder-decoder models are not supported",
    "bart": "encoder-decoder models are not supported",
}


def known_model_types() -> tuple[str, ...]:
    """Return every registered ``config.model_type``, sorted."""
    return tuple(sorted(_REGISTRY))


def check_model_type(config: Any) -> ArchitectureSpec:
    """Return the spec for a config, before any weights are loaded.

    Raises:
        UnsupportedModelError: unknown or refused family, a decoder, or a config that lists pruned heads.
    """
    model_type = getattr(config, "model_type", None)
    known = ", ".join(known_model_types())
    if model_type in _REFUSED or getattr(config, "is_encoder_decoder", False):
        reason = _REFUSED.get(str(model_type), "encoder-decoder models are not supported")
        raise UnsupportedModelError(f"model type must be one of {known}; got {model_type!r}: {reason}")
    if model_type not in _REGISTRY:
        raise UnsupportedModelError(f"model type must be one of {known}; got {model_type!r}. {KNOWN_HINT}")
    if getattr(config, "add_cross_attention", False):
        raise UnsupportedModelError(
            f"{model_type} must attend to nothing but its own input; got add_cross_attention=True. Load it without"
        )
    if getattr(config, "is_decoder", False) and not _REGISTRY[model_type].causal:
        raise UnsupportedModelError(f"{model_type} must be an encoder; got is_decoder=True. Load it as an encoder")
    # transformers 5 keeps the field and builds every head: silently another model than the one that was saved.
    pruned = getattr(config, "pruned_heads", None)
    if pruned:
        raise UnsupportedModelError(
            f"config.pruned_heads must be empty; got {pruned!r}: transformers 5 ignores it and builds every head. "
            "Load and save the model with transformers 4 without pruned heads, or use the checkpoint before pruning"
        )
    return _REGISTRY[model_type]


def find_spec(model: nn.Module) -> ArchitectureSpec:
    """Return the spec for a live model.

    Raises:
        UnsupportedModelError: see :func:`check_model_type`; or not a Hugging Face model.
    """
    if not hasattr(model, "config") or not hasattr(model, "base_model"):
        raise UnsupportedModelError(
            f"model must be a Hugging Face PreTrainedModel; got {type(model).__name__}. "
            "Load one with transformers.AutoModelForSequenceClassification.from_pretrained"
        )
    return check_model_type(model.config)
