"""The forms of one choice: views of a model whose sub-layers are gated or sliced, without copying a matrix.

A view is a second tree of modules over the same tensors: only the modules above a changed linear layer are new
objects, so a view costs a few kB, holds its own choice, and needs no state outside itself. Hence two threads may run
two budgets on one model, and a recomputed forward (gradient checkpointing) sees the choice of its first forward.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.utils.output_capturing import maybe_install_capturing_hooks

from rheostat.architectures import ArchitectureSpec, SubLayerSpec, linear_at
from rheostat.errors import UnsupportedModelError
from rheostat.subnet import KINDS, Subnet

ModuleT = TypeVar("ModuleT", bound=nn.Module)


# The changed children of one sub-layer, by layer, kind, what is kept, and mode.
Parts = dict[tuple[int, str, Sequence[int], bool], dict[str, Any]]


class SlicedLinear:
    """A linear layer over borrowed tensors: ``x @ weight.T + bias``."""

    __slots__ = ("bias", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Borrow ``weight`` (out, in) and ``bias`` (out,)."""
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        """Map (..., in) to (..., out)."""
        return F.linear(x, self.weight, self.bias)


class StackedLinear:
    """Linear layers over borrowed tensors, their outputs side by side: a cut matrix of several is no view of it."""

    __slots__ = ("biases", "weights")

    def __init__(self, weights: Tensor, biases: Tensor | None) -> None:
        """Borrow ``weights`` (matrices, out, in) and ``biases`` (matrices, out)."""
        self.weights, self.biases = weights, biases

    def __call__(self, x: Tensor) -> Tensor:
        """Map (..., in) to (..., matrices * out)."""
        biases = [None] * len(self.weights) if self.biases is None else self.biases
        return torch.cat([F.linear(x, w, b) for w, b in zip(self.weights, biases, strict=True)], dim=-1)


class GatedLinear(SlicedLinear):
    """A linear layer whose input is multiplied by a gate first."""

    __slots__ = ("gate",)

    def __init__(self, weight: Tensor, bias: Tensor | None, gate: Tensor) -> None:
        """Borrow the tensors; ``gate`` is (in,), or (B, 1, in) for a gate a row."""
        super().__init__(weight, bias)
        self.gate = gate

    def __call__(self, x: Tensor) -> Tensor:
        """Map (..., in) to (..., out)."""
        return super().__call__(x * self.gate.to(x.dtype))


class OutputBias(nn.Module):
    """What is left of an output projection without inputs: its bias, for every token."""

    def __init__(self, out_features: int, bias: Tensor | None) -> None:
        """Keep ``bias`` (E,) as it is given: borrowed, or a parameter of a materialized model."""
        super().__init__()
        self.out_features = out_features
        if isinstance(bias, nn.Parameter) or bias is None:
            self.bias = bias
        else:
            self.__dict__["bias"] = bias

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, S, anything) to (B, S, E), whatever the input holds."""
        shape = (*x.shape[:-1], self.out_features)
        return x.new_zeros(shape) if self.bias is None else self.bias.expand(shape)


class Skip(nn.Module):
    """What is left of the body of a feed-forward without neurons."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the input; the OutputBias that follows reads only its shape."""
        return x


@functools.cache
def _empty_class(cls: Any, output: str | None, *, records_attention: bool) -> Any:
    """Return a subclass of a body's class without units, whose ``output`` if it has one sees what came in.

    A subclass, so that recording hooks by class still find one attention a layer; what it records is (B, 0, S, S).
    In a decoder it tells the cache how many tokens there were: positions and masks are made from what a layer holds.
    """

    def forward(self: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        result = hidden_states if output is None else self.get_submodule(output)(hidden_states)
        batch, length = hidden_states.shape[:2]
        cache = kwargs.get("cache", kwargs.get("past_key_values"))  # the name until transformers 5.24 or so
        if cache is not None:
            tokens = hidden_states.new_zeros(batch, 1, length, 1)
            cache.update(tokens, tokens, self.layer_idx)
        return (result, hidden_states.new_zeros(batch, 0, length, length)) if records_attention else result

    return type(f"Empty{cls.__name__}", (cls,), {"forward": forward, "__module__": __name__})


def empty_body(body: nn.Module, spec: SubLayerSpec) -> nn.Module:
    """Return what takes the place of a body without units: an attention that records nothing, or a Skip.

    A body that holds the output projection keeps it and applies it, so put an OutputBias there.
    """
    if not spec.records_attention and spec.output_in_body is None:
        return Skip()
    empty = _shallow(body, {})
    gone = {path.removeprefix(f"{spec.body}.") for path in (*spec.inputs, *spec.optional_inputs)}
    empty.__dict__["_modules"] = {name: child for name, child in empty._modules.items() if name not in gone}
    cls: Any = type(body)
    empty.__class__ = _empty_class(cls, spec.output_in_body, records_attention=spec.records_attention)
    return empty


def _shallow(module: ModuleT, children: Mapping[str, Any]) -> ModuleT:
    """Return a second object over the same tensors and hooks; ``children`` are found before the shared ones.

    Raises:
        UnsupportedModelError: the object has a ``forward`` of its own, which would run the original's children.
    """
    if "forward" in module.__dict__:
        raise UnsupportedModelError(
            f"{type(module).__name__} must not have its forward replaced on the object (accelerate's device_map does); "
            "got one. Load the model without device_map and move it with .to(device)"
        )
    clone = object.__new__(type(module))
    # One merge makes a dictionary of the right size; twenty cached views are to stay below 1 % of the weights.
    clone.__dict__ = {**module.__dict__, **children}
    clone.__dict__.pop("_compiled_call_impl", None)  # module.compile() binds the original
    if isinstance(module, nn.ModuleList):  # iterates over its dictionary of children
        clone.__dict__["_modules"] = {**module._modules, **children}
    return clone


def prepare_recording(model: nn.Module) -> None:
    """Let transformers hook ``model`` now, so that every view made later records attentions and hidden states.

    Left to itself it hooks the first view that is asked for them: that view's unchanged modules, which the model
    shares, and not the changed ones.
    """
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            maybe_install_capturing_hooks(module)


def rebind(module: ModuleT, replacements: Mapping[str, Any]) -> ModuleT:
    """Return a view of ``module`` in which the objects at these paths are replaced; ``module`` is unchanged.

    Args:
        module: Any module; everything that is not above a replacement is shared.
        replacements: Path -> callable that takes the place of the module there.
    """
    if not replacements:
        return module
    return _shallow(module, _rebound_children(module, replacements))


def _rebound_children(module: nn.Module, replacements: Mapping[str, Any]) -> dict[str, Any]:
    """Return the children of ``module`` that change, by name."""
    children: dict[str, Any] = {}
    below: dict[str, dict[str, Any]] = {}
    for path, replacement in replacements.items():
        head, _, rest = path.partition(".")
        if rest:
            below.setdefault(head, {})[rest] = replacement
        else:
            children[head] = replacement
    return {**children, **{head: rebind(module.get_submodule(head), inner) for head, inner in below.items()}}


def kept_rows(kept: Sequence[int], width: int, device: torch.device) -> slice | Tensor:
    """Return the index of the rows that belong to kept units of ``width`` rows: a slice for a prefix."""
    if isinstance(kept, range):
        return slice(0, len(kept) * width)
    starts = torch.tensor(list(kept), device=device)[:, None] * width  # (K, 1)
    return (starts + torch.arange(width, device=device)).flatten()  # (K * width,)


def stacked(tensor: Tensor, matrices: int) -> Tensor:
    """Return the view (matrices, rows of one, ...) of a tensor (rows, ...) of matrices one below the other."""
    return tensor[None] if matrices == 1 else tensor.view(matrices, -1, *tensor.shape[1:])


def corrected_vectors(layer: nn.Module, spec: ArchitectureSpec) -> list[tuple[str, str]]:
    """Return (path, name) of the vectors (E,) of a layer that corrections add to.

    The output biases of attention and feed-forward, there or not, then weights and biases of the norms.
    """
    width = linear_at(layer, spec.attention.output).out_features
    found = [(sub.output, "bias") for sub in spec.sub_layers()]
    for path, module in layer.named_modules():
        if "norm" in type(module).__name__.lower():
            found += [(path, name) for name, p in module.named_parameters(recurse=False) if p.shape == (width,)]
    return found


def correction_sizes(model: nn.Module, spec: ArchitectureSpec) -> tuple[int, int, int]:
    """Return (L, K, E) of the corrections of a model: layers, vectors of the layer that has most, width."""
    layers = spec.layer_list(model)
    width = linear_at(layers[0], spec.attention.output).out_features
    return len(layers), max(len(corrected_vectors(layer, spec)) for layer in layers), width


def _corrected(vector: Tensor | None, correction: Tensor | None) -> Tensor | None:
    if correction is None:
        return vector
    return correction if vector is None else vector + correction.to(vector.dtype)


def _corrected_norms(layer: nn.Module, spec: ArchitectureSpec, corrections: Tensor) -> dict[str, nn.Module]:
    """Return views of the norms of a layer with corrections (K, E) added, by path."""
    changed: dict[str, dict[str, Tensor]] = {}
    for (path, name), correction in list(zip(corrected_vectors(layer, spec), corrections, strict=False))[2:]:
        vector = getattr(layer.get_submodule(path), name)
        changed.setdefault(path, {})[name] = vector + correction.to(vector.dtype)
    return {path: _shallow(layer.get_submodule(path), vectors) for path, vectors in changed.items()}


def slice_sub_layer(
    layer: nn.Module, spec: SubLayerSpec, kept: Sequence[int], width: int, correction: Tensor | None = None
) -> dict[str, Any]:
    """Return the replacements that leave only the kept units of one sub-layer.

    Args:
        layer: The full layer.
        spec: Where the units live.
        kept: Kept heads or neurons, as stored positions; a prefix is cut as views.
        width: Columns of a unit in the output: see :meth:`ModelShape.width`.
        correction: Added to the output bias, (E,).
    """
    output = linear_at(layer, spec.output)
    bias = _corrected(output.bias, correction)
    if len(kept) == 0:
        empty, left = empty_body(layer.get_submodule(spec.body), spec), OutputBias(output.out_features, bias)
        inside = spec.output_in_body
        return {spec.body: empty, spec.output: left} if inside is None else {spec.body: rebind(empty, {inside: left})}
    if len(kept) * width == output.in_features:
        return {spec.output: SlicedLinear(output.weight, bias)}
    device, units = output.weight.device, output.in_features // width
    replacements: dict[str, Any] = {
        spec.output: SlicedLinear(output.weight[:, kept_rows(kept, width, device)], bias),
        **spec.sizes(len(kept), width),
        **{path: layer.get_buffer(path)[kept_rows(kept, 1, device)] for path in spec.per_unit},
    }
    for path in spec.inputs_of(layer):
        linear = linear_at(layer, path)
        rows = kept_rows(kept, spec.rows_a_unit(linear, units), device)
        weights = stacked(linear.weight, spec.stacked)[:, rows]  # (matrices, kept rows, E)
        biases = None if linear.bias is None else stacked(linear.bias, spec.stacked)[:, rows]
        replacements[path] = _cut(weights, biases)
    return replacements


def _cut(weights: Tensor, biases: Tensor | None) -> SlicedLinear | StackedLinear:
    if len(weights) == 1:
        return SlicedLinear(weights[0], None if biases is None else biases[0])
    return StackedLinear(weights, biases)


def sliced(
    model: ModuleT,
    spec: ArchitectureSpec,
    subnet: Subnet,
    parts: Parts | None = None,
    corrections: Tensor | None = None,
) -> ModuleT:
    """Return the view of ``model`` that computes only ``subnet``; gradients reach the full weights.

    Args:
        model: The full model.
        spec: Its architecture.
        subnet: What is kept; a prefix is cut without copying a matrix.
        parts: Changed sub-layers of other views of the same weights, to share and add to.
        corrections: Added to the vectors of every layer, (L, K, E); such a view shares nothing.
    """
    if corrections is not None:
        return _sliced_and_corrected(model, spec, subnet, corrections)
    parts = {} if parts is None else parts
    replacements: dict[str, Any] = {}
    for i, layer in enumerate(spec.layer_list(model)):
        children: dict[str, Any] = {}
        for kind, sub in zip(KINDS, spec.sub_layers(), strict=True):
            kept = subnet.kept(i, kind)
            if len(kept) == subnet.shape.size(i, kind):
                continue
            key = (i, kind, kept, model.training)
            if key not in parts:
                changed = slice_sub_layer(layer, sub, kept, subnet.shape.width(kind))
                parts[key] = _rebound_children(layer, changed)
            children.update(parts[key])
        if children:
            replacements[str(i)] = _shallow(layer, children)
    return _with_layers(model, spec, replacements)


def _sliced_and_corrected(model: ModuleT, spec: ArchitectureSpec, subnet: Subnet, corrections: Tensor) -> ModuleT:
    """Return :func:`sliced` with corrections: every layer is changed, those that keep everything too."""
    replacements: dict[str, Any] = {}
    for i, layer in enumerate(spec.layer_list(model)):
        changed: dict[str, Any] = dict(_corrected_norms(layer, spec, corrections[i]))
        for j, (kind, sub) in enumerate(zip(KINDS, spec.sub_layers(), strict=True)):
            width = subnet.shape.width(kind)
            changed |= slice_sub_layer(layer, sub, subnet.kept(i, kind), width, corrections[i, j])
        replacements[str(i)] = rebind(layer, changed)
    return _with_layers(model, spec, replacements)


def gated(
    model: ModuleT,
    spec: ArchitectureSpec,
    gates: Sequence[tuple[Tensor, Tensor]],
    corrections: Tensor | None = None,
) -> ModuleT:
    """Return the view of ``model`` whose output projections see gated inputs; nothing is removed.

    Args:
        model: The full model.
        spec: Its architecture.
        gates: For each layer the gates of the attention output (H * D,) and of the neurons (F,); a leading
            (B, 1, ...) gives every row its own.
        corrections: Added to the vectors of every layer, (L, K, E).
    """
    replacements: dict[str, Any] = {}
    for i, (layer, pair) in enumerate(zip(spec.layer_list(model), gates, strict=True)):
        changed: dict[str, Any] = {} if corrections is None else dict(_corrected_norms(layer, spec, corrections[i]))
        for j, (sub, gate) in enumerate(zip(spec.sub_layers(), pair, strict=True)):
            output = linear_at(layer, sub.output)
            bias = _corrected(output.bias, None if corrections is None else corrections[i, j])
            changed[sub.output] = GatedLinear(output.weight, bias, gate)
        replacements[str(i)] = rebind(layer, changed)
    return _with_layers(model, spec, replacements)


def cut_modules(model: nn.Module, spec: ArchitectureSpec) -> list[tuple[dict[str, Any], str]]:
    """Return where every linear layer that views cut hangs: its parent's children, and its name among them."""
    found = []
    for layer in spec.layer_list(model):
        for path in (path for sub in spec.sub_layers() for path in (*sub.inputs_of(layer), sub.output)):
            parent, _, name = path.rpartition(".")
            found.append((layer.get_submodule(parent)._modules, name))
    return found


def _with_layers(model: ModuleT, spec: ArchitectureSpec, layers: Mapping[str, nn.Module]) -> ModuleT:
    prefix = layers_path(model, spec)
    return rebind(model, {f"{prefix}.{name}": layer for name, layer in layers.items()})


def layers_path(model: nn.Module, spec: ArchitectureSpec) -> str:
    """Return the path of the list of layers from ``model`` itself, its task head included."""
    base = model.base_model
    if base is model:
        return spec.layers
    prefix = next(name for name, module in model.named_modules() if module is base)
    return f"{prefix}.{spec.layers}"
