"""How to find heads and neurons in a live model: the fields of an ArchitectureSpec, one a family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from rheostat.cost import CostTable, check_cost_model
from rheostat.errors import OptionError, UnsupportedModelError
from rheostat.subnet import LayerShape, ModelShape

KNOWN_HINT = "Use a model of a known family, or describe yours with an ArchitectureSpec"


@dataclass(frozen=True)
class SubLayerSpec:
    """Where the units of one kind live in a layer; paths are relative to the layer.

    Attributes:
        body: The module that is skipped when no unit is left; it maps (B, S, E) to the input of ``output``, or holds
            ``output`` and maps to what that returns.
        inputs: Linear modules whose output rows belong to units, in stored order: as many a unit as it has columns in
            ``output``, or fewer where query heads share a key/value head.
        optional_inputs: Such that some models of the family have and others have not.
        output: The linear module whose input columns belong to units: the one gate point.
        records_attention: Whether ``body`` returns ``(context, attention weights)``.
        stacked: How many matrices the rows of an input hold one below the other: 3 for query, key and value in one, 2
            for a gated feed-forward in one.
        counts: Attributes that hold how many units there are, which a smaller sub-layer must have changed.
        widths: Attributes that hold how many columns of ``output`` there are.
        per_unit: Buffers with one entry a unit, which are moved and cut with the units; ``prepare`` of the family
            makes them.
    """

    body: str
    inputs: tuple[str, ...]
    output: str
    optional_inputs: tuple[str, ...] = ()
    records_attention: bool = False
    stacked: int = 1
    counts: tuple[str, ...] = ()
    widths: tuple[str, ...] = ()
    per_unit: tuple[str, ...] = ()

    @property
    def output_in_body(self) -> str | None:
        """Return the path of ``output`` from ``body``, or None if it is elsewhere."""
        return self.output.removeprefix(f"{self.body}.") if self.output.startswith(f"{self.body}.") else None

    def inputs_of(self, layer: nn.Module) -> tuple[str, ...]:
        """Return the inputs that a layer has."""
        if not self.optional_inputs:  # views are made of it, so nothing is looked up in vain
            return self.inputs
        modules = dict(layer.named_modules())
        return (*self.inputs, *(path for path in self.optional_inputs if path in modules))

    def rows_a_unit(self, linear: Linear, units: int) -> int:
        """Return how many rows of each matrix of an input belong to one of its ``units``."""
        return linear.out_features // self.stacked // units

    def sizes(self, units: int, width: int) -> dict[str, int]:
        """Return what the attributes must hold for ``units`` of ``width`` columns each, by path from the layer."""
        return {**dict.fromkeys(self.counts, units), **dict.fromkeys(self.widths, units * width)}


@dataclass(frozen=True)
class ArchitectureSpec:
    """One family of models, by its exact ``config.model_type``.

    Attributes:
        model_types: The model types of the family.
        layers: Path of the list of layers inside ``model.base_model``.
        attention: The head sub-layer.
        feed_forward: The neuron sub-layer.
        neurons_in_config: What the config calls the number of neurons of a layer; None there is 4 * hidden_size.
        causal: Whether tokens see only those before them, and a cache keeps their keys and values: a decoder.
        image_tokens: Of models that read images, (config) -> S, the tokens of an image; a budget is exact at that S.
        prepare: What must be done to a live model so that its heads can be moved, once or again. Such a model is saved
            with its heads where they were, since without this nobody else could read it.
        more_head_macs: What a head costs beside its projections and its attention: (config, S, E, D) -> MACs of a
            sequence of S tokens.
    """

    model_types: tuple[str, ...]
    layers: str
    attention: SubLayerSpec
    feed_forward: SubLayerSpec
    neurons_in_config: str = "intermediate_size"
    prepare: Callable[[nn.Module], None] | None = None
    more_head_macs: Callable[[Any, int, int, int], int] | None = None
    causal: bool = False
    image_tokens: Callable[[Any], int] | None = None

    def __post_init__(self) -> None:
        """Refuse sub-layers that share a child of the layer: each is cut without looking at the other."""
        children = [{path.split(".")[0] for path in (sub.body, *sub.inputs, sub.output)} for sub in self.sub_layers()]
        if children[0] & children[1]:
            raise OptionError(
                f"attention and feed_forward must live in different children of a layer; got both in "
                f"{sorted(children[0] & children[1])!r}. Name deeper paths or another split"
            )

    def layer_list(self, model: nn.Module) -> nn.ModuleList:
        """Return the live list of layers."""
        layers = model.base_model.get_submodule(self.layers)  # type: ignore[union-attr]
        if not isinstance(layers, nn.ModuleList):
            raise UnsupportedModelError(
                f"{self.layers} must be a ModuleList; got {type(layers).__name__}. {KNOWN_HINT}"
            )
        return layers

    def sub_layers(self) -> tuple[SubLayerSpec, SubLayerSpec]:
        """Return the specs of heads and neurons."""
        return self.attention, self.feed_forward

    def shape(self, model: nn.Module) -> ModelShape:
        """Return the sizes of a live full-size model, read off its weights and checked against its config.

        Raises:
            UnsupportedModelError: the live modules are not what this spec describes.
        """
        config: Any = model.config
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        if config.num_attention_heads % heads:
            raise UnsupportedModelError(
                f"num_attention_heads must be a multiple of num_key_value_heads; got {config.num_attention_heads} and "
                f"{heads}. {KNOWN_HINT}"
            )
        intermediate_size = getattr(config, self.neurons_in_config) or 4 * config.hidden_size
        layers = []
        for i, layer in enumerate(self.layer_list(model)):
            shared = heads * head_dim  # rows of keys and values
            head_width = self._checked_width(layer, i, self.attention, config.hidden_size, shared)
            neurons = self._checked_width(layer, i, self.feed_forward, config.hidden_size)
            if head_width != config.num_attention_heads * head_dim or neurons != intermediate_size:
                raise UnsupportedModelError(
                    f"layer {i} must have {config.num_attention_heads} heads x {head_dim} and "
                    f"{intermediate_size} neurons as its config says; got widths {head_width} and {neurons}. "
                    "Load a materialized folder with rheostat.load"
                )
            layers.append(LayerShape(heads, neurons))
        return ModelShape(config.hidden_size, head_dim, tuple(layers), config.num_attention_heads // heads)

    @staticmethod
    def _checked_width(
        layer: nn.Module, index: int, spec: SubLayerSpec, hidden_size: int, shared: int | None = None
    ) -> int:
        """Return the width between the inputs and the output of one sub-layer; inputs may have ``shared`` rows too."""
        try:
            *inputs, output = (linear_at(layer, path) for path in (*spec.inputs_of(layer), spec.output))
        except AttributeError as error:
            raise UnsupportedModelError(f"layer {index} must have {spec.inputs} and {spec.output}: {error}") from None
        widths = {linear.out_features / spec.stacked for linear in inputs} | {output.in_features}
        if widths - {output.in_features, shared} or output.out_features != hidden_size:
            raise UnsupportedModelError(f"layer {index} must have inputs and output of one width; got {sorted(widths)}")
        return output.in_features

    def usual_length(self, config: Any) -> int:
        """Return the S that a share of MACs is meant at if nothing else is said: that of an image, or 128 tokens."""
        return 128 if self.image_tokens is None else self.image_tokens(config)

    def costs(self, name: str, shape: ModelShape, model: nn.Module, sequence_length: int) -> CostTable:
        """Return the cost table of a cost model.

        MACs of a sequence of S tokens: a head ``S * (4*E*D + 2*S*D)``, one of r query heads that share keys and values
        ``S * (2*E*D*(r + 1) + 2*S*D*r)``, a neuron ``S * 2*E``, or ``S * 3*E`` with a gate of its own; embedding
        projection, tagging heads and vocabulary projection count every token, pooler and classifier count once. A
        causal model is counted like any other: kernels compute scores of later tokens, or skip some of them.

        Args:
            name: ``macs`` or ``heads``.
            shape: The sizes that :meth:`shape` returned.
            model: The live model, for what can't be removed.
            sequence_length: S in tokens.
        """
        if check_cost_model(name) == "heads":
            return CostTable.heads(shape)
        if self.image_tokens is not None and sequence_length != self.usual_length(model.config):
            raise OptionError(
                f"sequence_length must be {self.usual_length(model.config)}, the tokens of an image of "
                f"the model; got {sequence_length!r}. Leave it out"
            )
        if isinstance(sequence_length, bool) or not isinstance(sequence_length, int) or sequence_length < 1:
            raise OptionError(
                f"sequence_length must be a whole number of tokens, 1 or more; got {sequence_length!r}. "
                "Pass the usual length of your texts, for example 128"
            )
        S, E, D, L = sequence_length, shape.hidden_size, shape.head_dim, len(shape.layers)
        r = shape.query_heads
        fixed = _fixed_macs(model, self.layer_list(model), S)
        head = S * (2 * E * D * (r + 1) + 2 * S * D * r)
        if self.more_head_macs is not None:
            head += self.more_head_macs(model.config, S, E, D)
        feed_forward = len(self.feed_forward.inputs) * self.feed_forward.stacked + 1
        return CostTable("macs", S, (head,) * L, (S * feed_forward * E,) * L, fixed)

    def params(self, shape: ModelShape, model: nn.Module) -> CostTable:
        """Return parameters in closed form, as a cost table named ``params``; tied parameters count once."""
        layers = self.layer_list(model)
        per_head = tuple(self._unit_params(layer, self.attention, shape.width("head")) for layer in layers)
        per_neuron = tuple(self._unit_params(layer, self.feed_forward, shape.width("neuron")) for layer in layers)
        removable = sum(
            heads * sizes.num_attention_heads + neurons * sizes.intermediate_size
            for heads, neurons, sizes in zip(per_head, per_neuron, shape.layers, strict=True)
        )
        return CostTable("params", None, per_head, per_neuron, sum(p.numel() for p in model.parameters()) - removable)

    @staticmethod
    def _unit_params(layer: nn.Module, spec: SubLayerSpec, width: int) -> int:
        """Return the parameters of a unit: its rows of the inputs, and its ``width`` columns of the output."""
        output = linear_at(layer, spec.output)
        units = output.in_features // width
        inputs = [linear_at(layer, path) for path in spec.inputs_of(layer)]
        rows = sum(linear.out_features // units * (linear.in_features + (linear.bias is not None)) for linear in inputs)
        return rows + width * output.out_features


def image_shape(config: Any) -> tuple[int, int, int]:
    """Return the (channels, height, width) of the images that a config names."""
    size = config.image_size
    return (config.num_channels, *((size, size) if isinstance(size, int) else size))


class Transposed:
    """A ``Conv1D`` of transformers as a linear layer: its matrix (in, out) seen as (out, in), nothing copied.

    Attributes:
        module: The module.
    """

    __slots__ = ("module",)

    def __init__(self, module: Conv1D) -> None:
        """Look at ``module``."""
        self.module = module

    @property
    def weight(self) -> Tensor:
        """A view (out, in) of the matrix."""
        weight: nn.Parameter = self.module.weight
        return weight.T

    @property
    def bias(self) -> nn.Parameter:
        """The bias (out,)."""
        bias: nn.Parameter = self.module.bias
        return bias

    @property
    def out_features(self) -> int:
        """How many outputs there are."""
        return self.weight.shape[0]

    @property
    def in_features(self) -> int:
        """How many inputs there are."""
        return self.weight.shape[1]


Linear = nn.Linear | Transposed


def linear_at(layer: nn.Module, path: str) -> Linear:
    """Return the linear module of a layer at ``path``.

    Raises:
        UnsupportedModelError: it is exactly neither ``torch.nn.Linear`` nor the ``Conv1D`` of transformers: a quantised
            or adapter-wrapped layer would be sliced wrongly.
    """
    module = layer.get_submodule(path)
    if type(module) is Conv1D:
        return Transposed(module)
    if type(module) is not nn.Linear:
        raise UnsupportedModelError(
            f"{path} must be torch.nn.Linear; got {type(module).__name__}. "
            "Merge adapters and use an unquantised model (quantise after export)"
        )
    return module


# Modules outside the layers that see one vector a sequence rather than one a token.
_ONCE_A_SEQUENCE = frozenset({"pooler", "classifier", "pre_classifier", "head", "summary", "seq_relationship"})


def _fixed_macs(model: nn.Module, layers: nn.ModuleList, sequence_length: int) -> int:
    """Return the MACs of all linear modules and convolutions outside the layers, for one sequence.

    The convolution of an image runs once for each of its S - 1 patches; the first token has no pixels.
    """
    inside = {id(module) for module in layers.modules()}
    tags_tokens = type(model).__name__.endswith(("ForTokenClassification", "ForMaskedLM", "ForQuestionAnswering"))
    total = 0
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Conv1d) and id(module) not in inside:
            parts = set(name.split("."))
            once = "pooler" in parts if tags_tokens else bool(parts & _ONCE_A_SEQUENCE)
            total += module.weight.numel() * (1 if once else sequence_length)
        elif isinstance(module, nn.Conv2d):
            total += module.weight.numel() * (sequence_length - 1)
    return total
