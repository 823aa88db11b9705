"""The contract that every family keeps, as a suite that a new one runs: ``check_architecture(spec)``.

>>> from rheostat.families import BERT_LAYOUT
>>> check_architecture(BERT_LAYOUT, only=("nested",))
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec as find_package
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForSequenceClassification, PreTrainedConfig

from rheostat.architectures import ArchitectureSpec, image_shape
from rheostat.corrections import Corrections
from rheostat.errors import OptionError
from rheostat.families import check_model_type, find_spec, known_model_types
from rheostat.forms import correction_sizes
from rheostat.importance import Importance
from rheostat.materialize import materialize
from rheostat.model import BudgetedModel, load, wrap
from rheostat.subnet import ModelShape, Subnet

aten = torch.ops.aten
LAYERS, HEADS, HEAD_DIM, NEURONS, HIDDEN, VOCABULARY, LENGTH = 3, 3, 8, 40, 24, 40, 9
FORMS_AGREE = 1e-5  # float32
ATTENTIONS = ("eager", "sdpa")


def tiny_config(spec: ArchitectureSpec, model_type: str | None = None, **changes: Any) -> PreTrainedConfig:
    """Return a config of a family: 3 layers, 3 heads x 8, 40 neurons, 3 labels; 40 tokens, or images of 3 x 12 x 12.

    Args:
        spec: The family.
        model_type: One of its types; by default the first.
        changes: Of the config.
    """
    texts = {"vocab_size": VOCABULARY, "max_position_embeddings": 32, "pad_token_id": 1}
    if spec.causal:
        texts |= {"bos_token_id": 3, "eos_token_id": 2}
    images = {"image_size": 12, "patch_size": 4, "num_channels": 3}
    sizes: dict[str, Any] = {
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        spec.neurons_in_config: NEURONS,
        "num_labels": 3,
        **(texts if spec.image_tokens is None else images),
    }
    return transformers.AutoConfig.for_model(model_type or spec.model_types[0], **{**sizes, **changes})


def randomize(model: nn.Module, seed: int = 0) -> None:
    """Give every parameter a value that matters: biases off zero, norms off the identity."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1 and name.endswith("weight"):  # of a norm: no other weight is a vector
                parameter.copy_(1.0 + 0.3 * noise)
            else:
                parameter.copy_((0.3 if name.endswith("bias") else 0.25) * noise)


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


def token_batch(padding: str = "right", *, batch: int = 3, length: int = LENGTH, seed: int = 1) -> dict[str, Tensor]:
    """Return token ids (B, S) with padding on one side of all rows but the first, or nowhere (``none``)."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, VOCABULARY, (batch, length), generator=generator)
    mask = torch.ones_like(ids)
    for row in range(1, batch):
        hidden = slice(length - 2 * row, None) if padding == "right" else slice(0, 2 * row)
        if padding != "none":
            mask[row, hidden] = 0
            ids[row, hidden] = 1
    return {"input_ids": ids, "attention_mask": mask}


def image_batch(config: Any, *, batch: int = 3, seed: int = 1) -> dict[str, Tensor]:
    """Return pixels (B, channels, height, width) of the size that a config names."""
    generator = torch.Generator().manual_seed(seed)
    return {"pixel_values": torch.randn(batch, *image_shape(config), generator=generator)}


class CountedMacs(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count the multiply-accumulates of every matrix product within the block, those of fused attention included."""

    def __init__(self) -> None:
        """Begin at 0."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.macs = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and count it."""
        name = func.overloadpacket
        if name in (aten.mm, aten.bmm):
            self.macs += args[0].numel() * args[1].shape[-1]
        elif name in (aten.addmm, aten.baddbmm):
            self.macs += args[1].numel() * args[2].shape[-1]
        elif name is aten.convolution:
            found = func(*args, **(kwargs or {}))
            self.macs += found.shape[0] * found[0, 0].numel() * args[1].numel()
            return found
        elif "scaled_dot_product" in str(name):
            (b, h, s, d), keys = args[0].shape, args[1].shape[-2]
            self.macs += 2 * b * h * s * keys * d
        return func(*args, **(kwargs or {}))


def counted_macs(model: nn.Module, inputs: dict[str, Tensor]) -> int:
    """Return the multiply-accumulates of one call."""
    count = CountedMacs()
    with torch.no_grad(), count:
        model(**inputs)
    return count.macs


@dataclass(frozen=True)
class Case:
    """A family on a tiny random model.

    Attributes:
        spec: The family.
        config: Of the model.
        attention: The implementation of its attention, ``eager`` or ``sdpa``.
    """

    spec: ArchitectureSpec
    config: PreTrainedConfig
    attention: str
    base: Any = field(init=False)

    def __post_init__(self) -> None:
        """Make the model."""
        images = self.spec.image_tokens is not None
        auto = transformers.AutoModelForImageClassification if images else AutoModelForSequenceClassification
        object.__setattr__(self, "base", self.made(auto))

    def made(self, auto: Any) -> Any:
        """Return a model of random weights with the head of an ``AutoModelFor`` class."""
        made = auto.from_config(copy.deepcopy(self.config), attn_implementation=self.attention)
        randomize(made)
        if self.spec.prepare is not None:
            self.spec.prepare(made)
        return made.eval()

    @property
    def paddings(self) -> tuple[str, ...]:
        """Where there may be padding."""
        return ("none",) if self.spec.image_tokens else ("none", "right", "left")

    def batch(self, padding: str = "right", *, batch: int = 3, length: int = LENGTH) -> dict[str, Tensor]:
        """Return inputs of the model: see :func:`token_batch`; pixels for one that reads images."""
        if self.spec.image_tokens is not None:
            return image_batch(self.config, batch=batch)
        return token_batch(padding, batch=batch, length=length)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Return how many tokens inputs may have: two examples, or what an image has."""
        return (7, LENGTH) if self.spec.image_tokens is None else (self.spec.image_tokens(self.config),)

    def sorted(self) -> BudgetedModel:
        """Return a copy of the model under a budget, its heads and neurons moved about."""
        model, rng = self.wrapped(), np.random.default_rng(0)
        model.order_by_importance(Importance(*(tuple(rng.random(n) for _ in range(LAYERS)) for n in (HEADS, NEURONS))))
        return model

    def wrapped(self, base: Any = None, **options: Any) -> BudgetedModel:
        """Return a copy of the model, or of another ``base``, under a budget."""
        return wrap(copy.deepcopy(base or self.base), neuron_block=8, sequence_length=self.lengths[-1], **options)

    def subnets(self) -> Iterator[tuple[str, Subnet]]:
        """Yield choices at every edge, with a name."""
        yield from odd_subnets(self.spec.shape(self.base)).items()


def check_architecture(
    spec: ArchitectureSpec, config: PreTrainedConfig | None = None, *, only: Sequence[str] | None = None
) -> None:
    """Run the contract of a registered family on tiny random models, eager and, where it has it, sdpa.

    Args:
        spec: The family; :func:`rheostat.families.register` it first.
        config: Of a model with 3 layers, 3 heads of width 8 (or 3 key/value heads) and 40 neurons, 40 tokens and
            3 labels; by default :func:`tiny_config`.
        only: Names in :data:`CHECKS`; by default those of :func:`checks_of`.

    Raises:
        AssertionError: what does not hold, where.
        OptionError: an unknown check, another size, or a spec that is not registered.
    """
    names = checks_of(spec) if only is None else tuple(only)
    unknown = sorted(set(names) - set(CHECKS))
    if unknown:
        raise OptionError(f"only must hold names among {', '.join(CHECKS)}; got {', '.join(unknown)}")
    chosen = tiny_config(spec) if config is None else config
    with torch.random.fork_rng(devices=[]):
        for attention in ATTENTIONS:
            case = _case(spec, chosen, attention)
            if case is None:
                continue
            if find_spec(case.base) is not spec:
                raise OptionError(f"spec must be the registered one of {case.base.config.model_type!r}; it is another")
            shape = spec.shape(case.base)
            if shape != ModelShape.uniform(LAYERS, HEADS, HEAD_DIM, NEURONS, HIDDEN, query_heads=shape.query_heads):
                raise OptionError(f"config must be of 3 layers x 3 heads x 8 and 40 neurons; got {shape}")
            for name in names:
                try:
                    CHECKS[name](case)
                except AssertionError as error:
                    raise AssertionError(f"{chosen.model_type}, {attention}, {name}: {error}") from None


def checks_of(spec: ArchitectureSpec) -> tuple[str, ...]:
    """Return the names of the checks that say something about a family."""
    return tuple(name for name in CHECKS if spec.causal or name != "generation")


def families_table() -> str:
    """Return what is supported, a registered family a line, as a Markdown table."""
    specs = {id(spec): spec for spec in map(_spec_of, known_model_types())}.values()  # in order of their first type
    header = ("`config.model_type`", "reads", "a head is", "neurons", "attention", "checks")
    lines = [f"| {' | '.join(header)} |", f"| {' | '.join(['---'] * len(header))} |"]
    with torch.random.fork_rng(devices=[]):
        return "\n".join([*lines, *(_family_line(spec) for spec in specs)]) + "\n"


def _spec_of(model_type: str) -> ArchitectureSpec:
    return check_model_type(transformers.AutoConfig.for_model(model_type))


def _family_line(spec: ArchitectureSpec) -> str:
    config = tiny_config(spec)
    inputs = len(spec.feed_forward.inputs) * spec.feed_forward.stacked
    cells = (
        ", ".join(f"`{name}`" for name in sorted(spec.model_types)),
        "images" if spec.image_tokens is not None else "texts, and writes them" if spec.causal else "texts",
        "a key/value head with its query heads" if hasattr(config, "num_key_value_heads") else "a head",
        "gated" if inputs > 1 else "plain",
        ", ".join(name for name in ATTENTIONS if _case(spec, config, name) is not None),
        str(len(checks_of(spec))),
    )
    return f"| {' | '.join(cells)} |"


def _case(spec: ArchitectureSpec, config: PreTrainedConfig, attention: str) -> Case | None:
    """Return a model with an implementation of attention, or None if the family has no such."""
    try:
        return Case(spec, config, attention)
    except ValueError as error:  # as transformers says it
        if attention == "eager" or "attention implementation" not in str(error).lower():
            raise
        return None


def _require(holds: object, message: str) -> None:
    if not holds:
        raise AssertionError(message)


def _logits(model: Any, inputs: dict[str, Tensor], **options: Any) -> Tensor:
    with torch.no_grad():
        result: Tensor = model(**inputs, **options).logits
    return result


def _gap(one: Tensor, other: Tensor) -> float:
    return float((one.float() - other.float()).abs().max())


def _check_equal(case: Case) -> None:
    """Gated = sliced = straight-through = materialized, whatever is kept and on whichever side the padding is."""
    model = case.wrapped()
    for padding in case.paddings:
        inputs = case.batch(padding)
        for name, subnet in case.subnets():
            expected = _logits(model, inputs, subnet=subnet, form="gated")
            _require(torch.isfinite(expected).all(), f"{name}: not finite")
            trained = model(**inputs, subnet=subnet).logits.detach()
            small = model.materialize(subnet=subnet)
            found = {form: _logits(model, inputs, subnet=subnet, form=form) for form in ("sliced", "straight-through")}
            found |= {"sliced, with gradients": trained, "materialized": _logits(small, inputs)}
            for form, answer in found.items():
                gap = _gap(expected, answer)
                _require(gap < FORMS_AGREE, f"{name}, {padding} padding: {form} differs from gated by {gap:.2g}")
    full = _logits(model.base, inputs)
    for form in ("sliced", "gated", "soft", "straight-through"):
        _require(torch.equal(full, _logits(model, inputs, budget=1.0, form=form)), f"{form} at 1.0 is not the model")
    off = odd_subnets(model.shape)["nothing"]
    _require(_gap(full, _logits(model, inputs, subnet=off)) > 1e-3, "nothing at all answers like everything")


def _check_gradients(case: Case) -> None:
    """Gradients of slices are those of gates."""
    model, inputs = case.wrapped(), case.batch()

    def gradients(subnet: Subnet, form: Any) -> dict[str, Tensor]:
        loss = model(**inputs, subnet=subnet, form=form).logits.square().sum()
        named = dict(model.base.named_parameters())
        found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        return {
            name: torch.zeros_like(p) if gradient is None else gradient
            for (name, p), gradient in zip(named.items(), found, strict=True)
        }

    for name, subnet in case.subnets():
        gates, slices = gradients(subnet, "gated"), gradients(subnet, "sliced")
        for parameter, wanted in gates.items():
            gap = _gap(wanted, slices[parameter])
            limit = 1e-5 * max(1.0, float(wanted.abs().max()))
            _require(gap <= limit, f"{name}: the gradient of {parameter} differs by {gap:.2g}")


def _check_nested(case: Case) -> None:
    """A larger budget keeps all that a smaller one keeps; a budget is never exceeded, nor missed by a unit."""
    model = case.wrapped()
    before = model.subnet(model.floor)
    for budget in np.linspace(model.floor, 1.0, 60):
        subnet = model.subnet(float(budget))
        for kind in ("head", "neuron"):
            for i in range(LAYERS):
                kept, smaller = set(subnet.kept(i, kind)), set(before.kept(i, kind))
                _require(kept >= smaller, f"{budget:.3f} keeps less than a smaller budget")
        share = model.costs.share(subnet)
        _require(share <= budget + 1e-12, f"{budget:.3f} costs {share:.4f}")
        larger = [s for s in model.order.cumulative_shares if s > share + 1e-12]
        _require(not larger or larger[0] > budget, f"{budget:.3f} leaves room for another unit")
        before = subnet


def _check_costs(case: Case) -> None:
    """Multiply-accumulates and parameters of every choice are the counted ones."""
    shape = case.spec.shape(case.base)
    params = case.spec.params(shape, case.base)
    for length in case.lengths:
        table = case.spec.costs("macs", shape, case.base, length)
        inputs = case.batch("none", batch=1, length=length)
        for name, subnet in case.subnets():
            small = materialize(case.base, case.spec, subnet)
            found, wanted = counted_macs(small, inputs), table.total(subnet)
            _require(found == wanted, f"{name}, {length} tokens: {found} multiply-accumulates counted, {wanted} told")
            found, wanted = sum(p.numel() for p in small.parameters()), params.total(subnet)
            _require(found == wanted, f"{name}: {found} parameters counted, {wanted} told")


def _check_order(case: Case) -> None:
    """Sorting heads and neurons in place changes nothing but the rounding."""
    model, inputs = case.sorted(), case.batch()
    gap = _gap(_logits(case.base, inputs), _logits(model, inputs))
    _require(gap < FORMS_AGREE, f"the full model changed by {gap:.2g}")
    moved = any(ids != tuple(range(len(ids))) for ids in (*model.stored.heads, *model.stored.neurons))
    _require(moved, "nothing was moved")
    for name, subnet in case.subnets():
        gap = _gap(_logits(model, inputs, subnet=subnet, form="gated"), _logits(model, inputs, subnet=subnet))
        _require(gap < FORMS_AGREE, f"{name}: sliced differs from gated by {gap:.2g} once units were moved")


def _check_saving(case: Case) -> None:
    """What is loaded answers exactly as what was saved, and transformers alone reads the model of a checkpoint."""
    inputs = case.batch()
    with tempfile.TemporaryDirectory() as folder:
        model, whole = case.sorted(), Path(folder) / "whole"
        model.save_pretrained(whole)
        again: Any = load(whole)
        again.base.set_attn_implementation(case.attention)
        for budget in (1.0, 0.5, model.floor):
            same = torch.equal(_logits(model, inputs, budget=budget), _logits(again, inputs, budget=budget))
            _require(same, f"the checkpoint answers otherwise at {budget:.3f}")
        plain = type(case.base).from_pretrained(whole)
        gap = _gap(_logits(case.base, inputs), _logits(plain.eval(), inputs))
        _require(gap < FORMS_AGREE, f"transformers alone reads a model that differs by {gap:.2g}")
        for i, (name, subnet) in enumerate(case.subnets()):
            small = model.materialize(subnet=subnet)
            small.save_pretrained(Path(folder) / str(i))
            loaded: Any = load(Path(folder) / str(i))
            loaded.set_attn_implementation(case.attention)
            _require(torch.equal(_logits(small, inputs), _logits(loaded, inputs)), f"{name}: materialized")


def _check_recording(case: Case) -> None:
    """Attentions and hidden states of every layer are recorded, those of removed heads are not."""
    if case.attention != "eager":  # no other computes attentions
        return
    model, inputs = case.wrapped(), case.batch()
    wanted = {"output_attentions": True, "output_hidden_states": True}
    subnet = odd_subnets(model.shape)["no attention in one layer"]
    with torch.no_grad():
        cut = model(**inputs, subnet=subnet, **wanted)
        gated = model(**inputs, subnet=subnet, form="gated", **wanted)
        small = model.materialize(subnet=subnet)(**inputs, **wanted)
        full = model.base(**inputs, **wanted)
    for name, output, heads in (
        ("sliced", cut, [2, 0, 3]),
        ("materialized", small, [2, 0, 3]),
        ("full", full, [3] * 3),
    ):
        heads = [count * model.shape.query_heads for count in heads]
        found = [a.shape[1] for a in output.attentions]
        _require(found == heads, f"{name}: attentions of {found} heads instead of {heads}")
        _require(len(output.hidden_states) == LAYERS + 1, f"{name}: {len(output.hidden_states)} hidden states")
    for one, other in zip(cut.hidden_states, gated.hidden_states, strict=True):
        _require(_gap(one, other) < FORMS_AGREE, "hidden states of sliced and gated differ")


def _check_kept(case: Case) -> None:
    """A materialized model keeps dtype, device, mode and what is trained, and owns its memory."""
    model = case.wrapped()
    for parameter in model.base.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    case.spec.layer_list(model.base)[0].get_submodule(case.spec.attention.output).requires_grad_(False)
    for name, subnet in case.subnets():
        small = model.materialize(subnet=subnet)
        _require({p.dtype for p in small.parameters()} == {torch.bfloat16}, f"{name}: another dtype")
        _require({p.device for p in small.parameters()} == {model.device}, f"{name}: another device")
        cut = case.spec.layer_list(small)[0].get_submodule(case.spec.attention.output)
        _require(not any(p.requires_grad for p in cut.parameters()), f"{name}: a frozen projection thawed")
        trained = [p for n, p in small.named_parameters() if p.requires_grad]
        _require(trained, f"{name}: all is frozen")
        shared = {p.data_ptr() for p in small.parameters() if p.numel()} & {p.data_ptr() for p in model.parameters()}
        _require(not shared, f"{name}: memory is shared with the full model")


def _check_checkpointing(case: Case) -> None:
    """Recomputed forwards see the budget of their first one."""
    if not case.base.supports_gradient_checkpointing:
        return
    inputs = case.batch()

    def gradients(model: BudgetedModel) -> dict[str, Tensor]:
        model.train()
        for module in model.modules():
            if isinstance(module, nn.modules.dropout._DropoutNd):
                module.p = 0.0
        loss = torch.stack([model(**inputs, budget=b).logits.square().sum() for b in (1.0, 0.6)]).sum()
        named = dict(model.base.named_parameters())
        found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
        return {name: g for name, g in zip(named, found, strict=True) if g is not None}

    plain, recomputed = case.wrapped(), case.wrapped()
    recomputed.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    wanted, found = gradients(plain), gradients(recomputed)
    _require(wanted.keys() == found.keys(), "other parameters have gradients")
    for name, gradient in wanted.items():
        gap = _gap(gradient, found[name])
        _require(gap <= 1e-5 * max(1.0, float(gradient.abs().max())), f"the gradient of {name} differs by {gap:.2g}")


def _check_export(case: Case) -> None:
    """Graphs of all budgets answer as torch does, from one file of weights; for every runtime that is installed."""
    if case.attention != "eager" or any(find_package(name) is None for name in ("onnx", "onnxscript")):
        return
    from rheostat.export import export

    for engine, package in (("onnx", "onnxruntime"), ("openvino", "openvino")):
        if find_package(package) is not None:
            with tempfile.TemporaryDirectory() as folder:  # export itself compares every graph at several shapes
                model = case.wrapped()
                if engine == "onnx":  # and in the other one without
                    model.corrections = Corrections((0.5,), correction_sizes(model.base, case.spec))
                    torch.nn.init.normal_(model.corrections.points[0], std=0.2)
                export(model, Path(folder) / "bundle", format=engine, budgets=(0.5, model.floor))


def _check_corrections(case: Case) -> None:
    """Corrected biases and norms are the same in every form, saved, and exported; they are nothing at budget 1."""
    model, plain, inputs = case.wrapped(), case.wrapped(), case.batch()
    model.corrections = Corrections((0.3, 0.6), correction_sizes(model.base, case.spec))
    generator = torch.Generator().manual_seed(0)
    for point in model.corrections.points:
        point.data = 0.3 * torch.randn(point.shape, generator=generator)
    with tempfile.TemporaryDirectory() as folder:
        for i, (name, subnet) in enumerate(case.subnets()):
            small = model.materialize(subnet=subnet)
            small.save_pretrained(Path(folder) / str(i))
            loaded: Any = load(Path(folder) / str(i))
            loaded.set_attn_implementation(case.attention)
            found = {form: _logits(model, inputs, subnet=subnet, form=form) for form in ("gated", "straight-through")}
            found |= {
                "sliced": _logits(model, inputs, subnet=subnet),
                "sliced, with gradients": model(**inputs, subnet=subnet).logits.detach(),
                "materialized": _logits(small, inputs),
                "loaded": _logits(loaded, inputs),
            }
            changed = _gap(found["gated"], _logits(plain, inputs, subnet=subnet))
            _require(changed == 0.0 if subnet.is_full else changed > 1e-3, f"{name}: corrections change {changed:.2g}")
            for form, answer in found.items():
                gap = _gap(found["gated"], answer)
                _require(gap < FORMS_AGREE, f"{name}: corrected, {form} differs from gated by {gap:.2g}")
        model.save_pretrained(Path(folder) / "whole")
        again: Any = load(Path(folder) / "whole")
        again.base.set_attn_implementation(case.attention)
        for budget in (1.0, 0.8, 0.45, model.floor):
            same = torch.equal(_logits(model, inputs, budget=budget), _logits(again, inputs, budget=budget))
            _require(same, f"the corrected checkpoint answers otherwise at {budget:.3f}")


def _check_generation(case: Case) -> None:
    """A decoder writes the same with and without a cache, whatever is gone, and its vocabulary stays tied."""
    if not case.spec.causal:
        return
    model = case.wrapped(case.made(transformers.AutoModelForCausalLM))
    prompt, wanted = token_batch("left", batch=2, length=5), {"min_new_tokens": 6, "max_new_tokens": 6}
    tables = {"macs": model.macs_table(5), "params": model.params_table()}
    # The first layer is where transformers looks how long the cache is.
    first = {"no attention in the first layer": Subnet.prefix(model.shape, [0, 3, 2], [16, 40, 0])}
    with tempfile.TemporaryDirectory() as folder:
        for i, (name, subnet) in enumerate((*first.items(), *case.subnets())):
            small = model.materialize(subnet=subnet)
            small.save_pretrained(Path(folder) / str(i))
            loaded: Any = load(Path(folder) / str(i))
            loaded.set_attn_implementation(case.attention)
            forms: dict[str, Any] = {"sliced": model.at(1.0, subnet=subnet), "materialized": small, "loaded": loaded}
            expected = _greedy(model.at(1.0, subnet=subnet, form="gated"), prompt, 6)
            for form, view in forms.items():
                for cached in (True, False):
                    found = view.generate(**prompt, use_cache=cached, do_sample=False, **wanted)
                    how = f"{form}, {'with' if cached else 'without'} cache"
                    _require(torch.equal(found, expected), f"{name}: {how} it writes otherwise")
            tied = loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight
            _require(tied == model.config.tie_word_embeddings, f"{name}: loaded, the vocabulary is {tied} tied")
            _require(len(case.spec.layer_list(small)) == small.config.num_hidden_layers, f"{name}: other layers")
            macs = counted_macs(small, token_batch("none", batch=1, length=5))
            _require(macs == tables["macs"].total(subnet), f"{name}: {macs} multiply-accumulates counted")
            params = sum(p.numel() for p in small.parameters())
            _require(params == tables["params"].total(subnet), f"{name}: {params} parameters counted")


@torch.no_grad()
def _greedy(model: Any, prompt: dict[str, Tensor], count: int) -> Tensor:
    """Return the prompt and ``count`` tokens more, (B, S + count), each the likeliest; no cache, nothing shared."""
    ids, mask = prompt["input_ids"], prompt["attention_mask"]
    for _ in range(count):
        places = (mask.cumsum(-1) - 1).clamp(min=0)
        scores = model(input_ids=ids, attention_mask=mask, position_ids=places).logits[:, -1]
        scores[:, model.config.eos_token_id] = -torch.inf
        ids = torch.cat([ids, scores.argmax(-1, keepdim=True)], dim=1)
        mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
    return ids


CHECKS: dict[str, Callable[[Case], None]] = {
    "equal": _check_equal,
    "gradients": _check_gradients,
    "nested": _check_nested,
    "costs": _check_costs,
    "order": _check_order,
    "saving": _check_saving,
    "corrections": _check_corrections,
    "recording": _check_recording,
    "kept": _check_kept,
    "checkpointing": _check_checkpointing,
    "generation": _check_generation,
    "export": _check_export,
}
