"""BudgetedModel: one full-size base model, its gates and its order of units; the budget is an argument of the call."""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from huggingface_hub import ModelHubMixin
from numpy.typing import NDArray
from torch import Tensor, nn

from rheostat.answers import answers_of
from rheostat.architectures import ArchitectureSpec
from rheostat.budget import check_budget
from rheostat.checkpoint import CheckpointInfo, naming_damage, read_manifest, replacing_folder
from rheostat.corrections import Corrections
from rheostat.cost import LATENCY, CostTable
from rheostat.data import with_inputs_of, with_padding
from rheostat.errors import CheckpointError, OptionError, UnexpectedArgumentError
from rheostat.families import find_spec
from rheostat.forms import Parts, cut_modules, gated, prepare_recording, sliced
from rheostat.gates import GateLayout, Gates, hard_gates, logit, top_k_subnet
from rheostat.importance import Importance
from rheostat.materialize import fold_gates
from rheostat.materialized import make_materialized, read_materialized
from rheostat.modes import evaluating
from rheostat.order import Arrangement, Minimum, UnitOrder, arrange, balanced_onset, default_minimum, uniform_onset
from rheostat.predict import encode_texts, predict_images, predict_texts
from rheostat.predictions import Prediction, TaggedText
from rheostat.reorder import permute
from rheostat.saving import (
    HUB_OPTIONS,
    PUSH_OPTIONS,
    SAVE_OPTIONS,
    BudgetedParts,
    card_summary,
    card_table,
    check_options,
    local_folder,
    read_budgeted,
    write_budgeted,
)
from rheostat.subnet import KINDS, ModelShape, StoredOrder, Subnet, Unit, cut_units

Form = Literal["sliced", "gated", "soft", "straight-through"]
FORMS: tuple[Form, ...] = ("sliced", "gated", "soft", "straight-through")
Selection = Literal["nested", "top-k"]
SELECTIONS: tuple[Selection, ...] = ("nested", "top-k")
OnsetRule = Callable[[Sequence[Unit], NDArray[np.float64], CostTable], NDArray[np.float64]]

# Keyword arguments that Hugging Face models take beyond their signatures.
_OUTPUT_OPTIONS = frozenset({"output_attentions", "output_hidden_states", "return_dict"})
_MAX_VIEWS = 256  # a view is some 30 kB

MODEL_CARD = """---
{{ card_data }}
---

# One checkpoint, one knob

A transformer with a budget between 0 and 1: it answers with exactly that share of its compute. Made with `rheostat`.

```python
import rheostat

model = rheostat.load("this/repository")
model.predict(["..."], budget=0.5)
small = model.materialize(0.5)
```

The files load with `rheostat.load`. {{ summary }}

{{ table }}
"""


class _Views:
    """Cached views by what they keep; a copy starts empty, since views belong to one set of weights."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Weights and the views of them, replaced together: readers take no lock.
        self._current: tuple[object, dict[object, nn.Module], Parts] = (None, {}, {})

    def __reduce__(self) -> tuple[type[_Views], tuple[()]]:
        return _Views, ()

    def clear(self) -> None:
        with self._lock:
            self._current = (None, {}, {})

    def get(self, key: object, weights: object, build: Callable[[Parts], nn.Module]) -> nn.Module:
        """Return the view of ``key``; all are forgotten when ``weights``, what they point at, has changed.

        Views share the parts that they have in common.
        """
        seen, views, _ = self._current
        if weights == seen and key in views:
            return views[key]
        with self._lock:
            seen, views, parts = self._current
            if weights != seen or (key not in views and len(views) >= _MAX_VIEWS):
                views, parts = {}, {}
                self._current = (weights, views, parts)
            if key not in views:
                views[key] = build(parts)
            return views[key]


class BudgetedModel(
    nn.Module,
    ModelHubMixin,
    library_name="rheostat",
    tags=["rheostat", "budgeted", "structured-pruning"],
    model_card_template=MODEL_CARD,
):
    """A base model with a knob: ``model(**inputs, budget=b)`` computes the subnet whose share is at most b.

    Build one with :func:`wrap` or :func:`load`. Nothing about a call is kept: threads may use different budgets on
    one model, and a backward pass sees the budget of its own forward.

    Attributes:
        base: The full-size Hugging Face model, heads and neurons in stored order.
        gates: One monotone gate a unit, in order.
        order: All units, most important first, with the cost model.
        stored: The original id of every head and neuron.
        selection: ``nested`` (prefixes of the order) or ``top-k`` (largest gates at the budget; not nested).
        info: Task, labels, evaluation.
        tokenizer: The Hugging Face tokenizer that :meth:`predict` uses, or None.
        corrections: What every operating point adds to output biases and norms, or None; a new order drops them.
    """

    _hub_mixin_config: dict[str, Any] = {}  # noqa: RUF012 - the base model writes config.json

    def __init__(
        self,
        base: nn.Module,
        order: UnitOrder,
        *,
        stored: StoredOrder | None = None,
        gates: Gates | None = None,
        selection: Selection = "nested",
        minimum: Minimum | None = None,
        info: CheckpointInfo | None = None,
        tokenizer: Any = None,
        corrections: Corrections | None = None,
    ) -> None:
        """Put ``base`` under ``order``; most callers want :func:`wrap`.

        Raises:
            UnsupportedModelError: unknown family, or a model that is not full size.
            OptionError: unknown selection.
        """
        super().__init__()
        if selection not in SELECTIONS:
            raise OptionError(f"selection must be one of {', '.join(SELECTIONS)}; got {selection!r}")
        self.spec: ArchitectureSpec = find_spec(base)
        if self.spec.prepare is not None:
            self.spec.prepare(base)
        shape = self.spec.shape(base)
        if shape != order.shape:
            raise OptionError(
                f"order must be of the model's shape {shape}; got {order.shape}. Build it with rheostat.wrap"
            )
        self.base = base
        self.gates = gates if gates is not None else Gates(len(order.units))
        self.stored = stored or StoredOrder.identity(shape)
        self.selection: Selection = selection
        self.minimum = minimum or default_minimum(order.costs.name)
        self.info = info or CheckpointInfo()
        self.tokenizer = with_inputs_of(tokenizer, base.config)
        self._views = _Views()
        self._subnets: dict[int, Subnet] = {}
        self._set_order(order)
        self.corrections: Corrections | None = corrections
        named = inspect.signature(base.forward).parameters.values()
        self._allowed_inputs = _OUTPUT_OPTIONS | {p.name for p in named if p.kind is not p.VAR_KEYWORD}
        self._cut_modules = cut_modules(base, self.spec)
        prepare_recording(base)
        self.train(base.training)

    def _set_order(self, order: UnitOrder) -> None:
        self.order = order
        self._layout = GateLayout(order)
        self.corrections = None
        self._subnets = {}
        self._views.clear()

    # -- choosing --------------------------------------------------------------------------------------------

    @property
    def shape(self) -> ModelShape:
        """Sizes of the full model."""
        return self.order.shape

    @property
    def costs(self) -> CostTable:
        """The cost model whose share a budget means."""
        return self.order.costs

    @property
    def floor(self) -> float:
        """Smallest budget that can be asked for."""
        return self.order.floor

    @property
    def config(self) -> Any:
        """The config of the base model."""
        return self.base.config

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.base.parameters()).device

    @property
    def usual_length(self) -> int:
        """The S that a share of MACs is exact at, or is meant at where the cost does not depend on it."""
        return self.costs.sequence_length or self.spec.usual_length(self.config)

    @property
    def vocabulary_share(self) -> float:
        """Share of the full model's MACs that the projection to a vocabulary takes, which no budget removes; else 0."""
        projection = cast(Any, self.base).get_output_embeddings()
        if projection is None:
            return 0.0
        macs = self.macs_table(self.usual_length)
        return float(projection.weight.numel() * self.usual_length / macs.total(Subnet.full(self.shape)))

    def params_table(self) -> CostTable:
        """Return parameters in closed form."""
        return self.spec.params(self.shape, self.base)

    def macs_table(self, sequence_length: int) -> CostTable:
        """Return MACs in closed form at S = ``sequence_length`` tokens."""
        return self.spec.costs("macs", self.shape, self.base, sequence_length)

    def subnet(self, budget: float) -> Subnet:
        """Return what ``budget`` keeps: share <= budget, and below it by less than the next unit.

        Raises:
            BudgetError: outside (0, 1], not a number, or below :attr:`floor`.
        """
        if self.selection == "top-k":
            slope = self.gates.slope().detach().double().cpu()
            scores = self.gates.offset.detach().double().cpu() + slope * logit(check_budget(budget))
            return top_k_subnet(self.order, scores.numpy(), budget)
        length = self.order.length(budget)
        found = self._subnets.get(length)
        if found is None:
            found = self._subnets[length] = self.order.subnet_of_length(length)
        return found

    def soft_share(self, budget: float) -> Tensor:
        """Return the share that soft gates spend, a scalar with gradient: the paper's estimated cost."""
        gates: Tensor = self.gates(budget)  # (U,)
        shares = torch.as_tensor(self.order.unit_shares, dtype=gates.dtype, device=gates.device)
        return (1.0 - shares.sum()) + (shares * gates).sum()

    def mean_gate(self, budget: float) -> Tensor:
        """Return the cost-weighted mean gate, a scalar with gradient."""
        gates: Tensor = self.gates(budget)  # (U,)
        shares = torch.as_tensor(self.order.unit_shares, dtype=gates.dtype, device=gates.device)
        return (shares * gates).sum() / shares.sum()

    # -- running ---------------------------------------------------------------------------------------------

    def forward(
        self, *, budget: float = 1.0, subnet: Subnet | None = None, form: Form = "sliced", **inputs: Any
    ) -> Any:
        """Run the base model at a budget and return what it returns.

        Args:
            budget: Share of the full cost, in (0, 1].
            subnet: An explicit choice instead of the budget's.
            form: ``sliced`` computes only what is kept. ``gated`` computes everything and multiplies by 0 or 1.
                ``soft`` multiplies by the soft gates. ``straight-through`` has the values of ``gated`` and the
                gradients of ``soft`` for the gates.
            inputs: What the base model takes, for example ``input_ids`` (B, S) and ``attention_mask`` (B, S).

        Raises:
            BudgetError: see :meth:`subnet`.
            OptionError: unknown form.
            UnexpectedArgumentError: an input that the base model would accept and ignore, ``head_mask`` above all.
        """
        self._check_inputs(inputs)
        return self.at(budget, subnet=subnet, form=form)(**inputs)

    def at(self, budget: float, *, subnet: Subnet | None = None, form: Form = "sliced") -> nn.Module:
        """Return the view of the base model that :meth:`forward` would run; call it like the base model."""
        if form not in FORMS:
            raise OptionError(f"form must be one of {', '.join(FORMS)}; got {form!r}. The default is sliced")
        budget = check_budget(budget, floor=self.floor if subnet is None else 0.0)
        if form == "soft":
            return gated(self.base, self.spec, self._layout.expand(self.gates(budget)))
        chosen = self.subnet(budget) if subnet is None else self._checked(subnet)
        if form == "sliced":
            return self._sliced_view(chosen)
        corrections = self._corrections(chosen)
        hard = hard_gates(chosen, self.device)
        if form == "straight-through":
            soft = self.gates(budget)
            pull = self._layout.expand(soft - soft.detach())  # zeros, with the gradient of the soft gates
            hard = [(h + ph, n + pn) for (h, n), (ph, pn) in zip(hard, pull, strict=True)]
        return gated(self.base, self.spec, hard, corrections)

    def _corrections(self, subnet: Subnet) -> Tensor | None:
        """Return what is added to the vectors of a subnet's layers, (L, K, E), or None."""
        return None if self.corrections is None else self.corrections.at(self.costs.share(subnet))

    def _checked(self, subnet: Subnet) -> Subnet:
        if subnet.shape != self.shape:
            raise OptionError(f"subnet must be of the model's shape {self.shape}; got {subnet.shape}")
        return subnet

    def _sliced_view(self, subnet: Subnet) -> nn.Module:
        if subnet.is_full:
            return self.base
        # With gradients a view belongs to its forward's graph; without a prefix it copies rows, which would go stale.
        if torch.is_grad_enabled() or not subnet.is_prefix:
            return sliced(self.base, self.spec, subnet, corrections=self._corrections(subnet))
        return self._views.get(
            (subnet, self.base.training),
            self._weights_identity(),
            lambda parts: sliced(self.base, self.spec, subnet, parts, self._corrections(subnet)),
        )

    def _weights_identity(self) -> object:
        """Return what changes when a tensor that views cut moves to other memory, as for a new device or dtype.

        Views keep the old memory alive, so an address is never used again while it is compared.
        """
        identity = [  # on every call: some 10 us for 6 layers, hence neither paths nor module attributes are looked up
            tensor.data_ptr()
            for children, name in self._cut_modules
            for tensor in children[name]._parameters.values()
            if tensor is not None
        ]
        if self.corrections is None:
            return identity
        # corrected vectors are sums: what changes a part of them in place must be noticed as well
        parts = [*(tensor for tensor in self.base.parameters() if tensor.dim() == 1), *self.corrections.parameters()]
        return [*identity, *((part.data_ptr(), part._version) for part in parts)]

    def _check_inputs(self, inputs: Mapping[str, Any]) -> None:
        unknown = [name for name in inputs if name not in self._allowed_inputs]
        if "head_mask" in unknown:
            raise UnexpectedArgumentError(
                "head_mask is not an input: transformers 5 accepts and ignores it. Pass budget=, or subnet= for an "
                "explicit choice of heads"
            )
        if unknown:
            raise UnexpectedArgumentError(
                f"inputs must be those of {type(self.base).__name__}; got {', '.join(unknown)}, which it would ignore"
            )

    @torch.no_grad()
    def generate(self, inputs: Tensor | None = None, *, budget: float = 1.0, **options: Any) -> Any:
        """Continue tokens (B, S) at a budget; what transformers' ``generate`` takes and returns.

        Raises:
            BudgetError: see :meth:`subnet`.
            OptionError: the base model is no decoder with a vocabulary.
        """
        can_generate = getattr(self.base, "can_generate", None)
        if can_generate is None or not can_generate():
            raise OptionError(
                f"model must have a causal language head to generate; got {type(self.base).__name__}. "
                "Load one with transformers.AutoModelForCausalLM"
            )
        with evaluating(self):
            view: Any = self.at(budget)
            return view.generate(inputs, **options)

    def predict(
        self, texts: Sequence[Any], *, budget: float = 1.0, batch_size: int = 32
    ) -> list[Prediction] | list[TaggedText]:
        """Return the label of each text (or of its words) at a budget; of a model that reads images, of each image.

        See :func:`rheostat.predict.predict_texts` and :func:`rheostat.predict.predict_images`.
        """
        told: dict[str, Any] = {
            "budget": budget,
            "device": self.device,
            "config": self.config,
            "batch_size": batch_size,
        }
        with evaluating(self):
            if self.spec.image_tokens is not None:
                return predict_images(self._answers(budget), self.info, texts, **told)
            return predict_texts(self._answers(budget), self.tokenizer, self.info, texts, **told)

    def encode(self, texts: Sequence[str], *, budget: float = 1.0, batch_size: int = 32) -> NDArray[np.float32]:
        """Return the vector of each text at a budget, (N, E); see :func:`rheostat.predict.encode_texts`."""
        with evaluating(self):
            return encode_texts(
                self._answers(budget),
                self.tokenizer,
                self.info,
                texts,
                device=self.device,
                config=self.config,
                batch_size=batch_size,
            )

    def _answers(self, budget: float) -> Callable[[Mapping[str, Tensor]], Tensor]:
        """Return what maps a batch to its answers at a budget."""
        check_budget(budget, floor=self.floor)  # a wrong one is an error for an empty list too
        return lambda batch: answers_of(self(**batch, budget=budget), batch, self.info)

    def _apply(self, fn: Any, recurse: bool = True) -> BudgetedModel:
        """Forget views when weights move (``to``, ``half``, ``cuda``)."""
        self._views.clear()
        return super()._apply(fn, recurse)  # type: ignore[no-any-return,no-untyped-call]

    def _replicate_for_data_parallel(self) -> Any:
        """Refuse torch.nn.DataParallel, whose replicas are no copies of the weights."""
        raise UnexpectedArgumentError(
            "torch.nn.DataParallel is not supported: use torch.nn.parallel.DistributedDataParallel (torchrun)"
        )

    def activation_checkpointing_enable(
        self, activation_checkpointing_kwargs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """Recompute layers in the backward pass, as the base model does."""
        base = cast(Any, self.base)
        if hasattr(base, "activation_checkpointing_enable"):
            base.activation_checkpointing_enable(
                activation_checkpointing_kwargs=activation_checkpointing_kwargs, **kwargs
            )
        else:  # the name before transformers 5.24 or so; until that is the oldest that we take
            base.gradient_checkpointing_enable(gradient_checkpointing_kwargs=activation_checkpointing_kwargs, **kwargs)

    def gradient_checkpointing_enable(
        self, gradient_checkpointing_kwargs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """Recompute layers in the backward pass; transformers' older name."""
        self.activation_checkpointing_enable(gradient_checkpointing_kwargs, **kwargs)

    # -- ordering --------------------------------------------------------------------------------------------

    def rearrange(self, arrangement: Arrangement) -> None:
        """Store heads and neurons in the order of ``arrangement`` and take its order, in place.

        The model computes the same at budget 1 up to float rounding. Gates move with their units.
        """
        permute(self.base, self.spec, self.shape.width("head"), arrangement.positions)
        self.gates.rearrange(arrangement.source)
        self.stored = self.stored.then(arrangement.positions)
        self._set_order(arrangement.order)

    def order_by_importance(self, importance: Importance, *, onset: OnsetRule = balanced_onset) -> Importance:
        """Sort neurons by importance inside their layers, then order all units by it, and start the gates there.

        Returns the scores in the new positions.

        Args:
            importance: Scores of single heads and neurons in present positions.
            onset: (units, scores (U,), costs) -> (U,): ranks the units, smaller = earlier.
        """
        ranking = importance.neuron_ranking()
        permute(self.base, self.spec, self.shape.width("head"), ranking)
        self.stored = self.stored.then(ranking)
        importance = importance.moved(ranking)
        units = sorted(self.order.units, key=lambda u: (u.layer, KINDS.index(u.kind), u.start))
        scores = importance.of_units(units)
        arrangement = arrange(
            self.shape, self.costs, units, onset(units, scores, self.costs), importance=scores, minimum=self.minimum
        )
        permute(self.base, self.spec, self.shape.width("head"), arrangement.positions)
        self.stored = self.stored.then(arrangement.positions)
        self._set_order(arrangement.order)
        self.project_gates()
        return importance.moved(arrangement.positions)

    def freeze_order(self) -> None:
        """Make the gates' onsets the order, and store units in it; ties keep their order.

        Nested gates are projected onto it. Those of ``top-k`` stay as they were learned: projected, they would choose
        what the order chooses.
        """
        rank = -torch.arange(len(self.order.units), dtype=torch.float64).numpy()
        arrangement = arrange(
            self.shape, self.costs, self.order.units, self.gates.onset(), importance=rank, minimum=self.minimum
        )
        self.rearrange(arrangement)
        if self.selection == "nested":
            self.project_gates()

    def project_gates(self) -> None:
        """Move every gate so that it crosses 1/2 at the budget where its unit switches on."""
        self.gates.project(self.order.cumulative_shares, self.order.unit_shares)

    # -- leaving ---------------------------------------------------------------------------------------------

    def materialize(self, budget: float = 1.0, *, subnet: Subnet | None = None) -> Any:
        """Return a physically smaller Hugging Face model for a budget, or for an explicit subnet.

        Its ``save_pretrained`` writes a folder that :func:`rheostat.load` reads. Call again for another budget.
        """
        chosen = self.subnet(budget) if subnet is None else self._checked(subnet)
        asked = check_budget(budget) if subnet is None else self.costs.share(chosen)
        return make_materialized(
            self.base,
            self.spec,
            chosen,
            kept=self.stored.kept(chosen),
            budget=asked,
            costs=self.costs,
            info=self.info,
            tokenizer=self.tokenizer,
            corrections=self._corrections(chosen),
        )

    def fold_soft_gates(self, budget: float) -> Any:
        """Return a full-size copy of the base model with the soft gates of ``budget`` in its weights; for research."""
        with torch.no_grad():
            gates = self._layout.expand(self.gates(check_budget(budget)))
        return fold_gates(self.base, self.spec, gates)

    def save_pretrained(
        self,
        save_directory: str | os.PathLike[str],
        *,
        repo_id: str | None = None,
        push_to_hub: bool = False,
        **kwargs: Any,
    ) -> str | None:
        """Write the checkpoint folder, atomically; see ``docs/design.md``, section 6.

        Raises:
            CheckpointError: the folder exists and is something else.
            UnexpectedArgumentError: an option that would be ignored.
        """
        check_options(kwargs, (*SAVE_OPTIONS, *(PUSH_OPTIONS if push_to_hub else ())), "save_pretrained")
        with replacing_folder(save_directory) as folder:
            super().save_pretrained(folder, **{k: v for k, v in kwargs.items() if k == "model_card_kwargs"})
        if push_to_hub:
            others = {k: v for k, v in kwargs.items() if k not in ("model_card_kwargs", "config")}
            return self.push_to_hub(repo_id=repo_id or Path(save_directory).name, **others)
        return None

    def _save_pretrained(self, save_directory: Path) -> None:
        write_budgeted(
            save_directory,
            BudgetedParts(
                self.base,
                self.order,
                self.stored,
                self.gates,
                self.selection,
                self.minimum,
                self.info,
                self.tokenizer,
                self.corrections,
            ),
        )

    @classmethod
    def _from_pretrained(cls, *, model_id: str, **kwargs: Any) -> BudgetedModel:
        model = load(model_id, **{name: value for name, value in kwargs.items() if name in HUB_OPTIONS})
        if not isinstance(model, BudgetedModel):
            raise CheckpointError(
                f"{model_id!r} must be a budgeted checkpoint; it is a materialized one. Use rheostat.load"
            )
        return model

    def generate_model_card(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model card: how to load it, and the evaluation table."""
        summary, table = card_summary(self.order, self.info), card_table(self.info)
        return super().generate_model_card(*args, summary=summary, table=table, **kwargs)


def wrap(
    model: nn.Module,
    *,
    cost: str | CostTable = "macs",
    sequence_length: int | None = None,
    order: Importance | Literal["uniform"] = "uniform",
    neuron_block: int = 32,
    min_heads_per_layer: int | None = None,
    min_neurons_per_layer: int | None = None,
    selection: Selection = "nested",
    info: CheckpointInfo | None = None,
    tokenizer: Any = None,
) -> BudgetedModel:
    """Put a supported Hugging Face model under a budget.

    Args:
        model: A full-size model of a known family; it becomes ``.base`` and is not copied. A decoder whose config has
            no padding token gets the tokenizer's, or the one that ends a text.
        cost: What a budget is a share of: ``macs``, ``heads`` (the paper: heads only, neurons all stay), or the table
            of a certificate: time (:meth:`rheostat.certify.LatencyModel.costs`).
        sequence_length: Tokens a sequence for ``macs``; a share is exact only at this length. By default 128, or what
            the images of the model have.
        order: ``uniform`` keeps the same share of every layer and moves nothing, so that budget 1.0 stays exactly
            the base model; an :class:`~rheostat.importance.Importance` sorts heads and neurons **in place**.
        neuron_block: Neurons a unit; kept widths are multiples of it.
        min_heads_per_layer: What every layer keeps; by default 1 for ``heads`` and 0 for ``macs``.
        min_neurons_per_layer: The same for neurons; by default 0.
        selection: ``nested``, or ``top-k`` as in the paper.
        info: Task, labels and lengths, if known.
        tokenizer: For :meth:`BudgetedModel.predict`; saved with the checkpoint.

    Raises:
        UnsupportedModelError: a family that is not known, an encoder-decoder, or a model that was changed.
        OptionError: an option with a value that can't be used.
    """
    spec = find_spec(model)
    shape = spec.shape(model)
    if spec.causal:
        tokenizer = with_padding(tokenizer)
        _choose_padding(cast(Any, model).config, tokenizer)
    if sequence_length is None:
        sequence_length = spec.usual_length(model.config)
    costs = cost if isinstance(cost, CostTable) else spec.costs(cost, shape, model, sequence_length)
    if len(costs.per_head) != len(shape.layers):
        raise OptionError(
            f"cost must be a table of {len(shape.layers)} layers, as the model has; got {len(costs.per_head)}. "
            "Certify a checkpoint of this size"
        )
    measured = dict(costs.conditions).get("shape", shape.to_json())
    if measured != shape.to_json():
        raise OptionError(
            f"cost must be measured on the model's sizes, {shape.to_json()}; got {measured}. Certify a checkpoint of "
            "this size"
        )
    if costs.neuron_step > neuron_block and costs.neuron_step % neuron_block == 0:
        neuron_block = costs.neuron_step  # a block within a step would cost nothing, and pay nothing
    if costs.name == LATENCY and selection == "top-k":
        raise OptionError("selection must be nested for latency, which is no sum over units; got top-k")
    default = default_minimum(costs.name)
    minimum = Minimum(
        default.heads if min_heads_per_layer is None else min_heads_per_layer,
        default.neurons if min_neurons_per_layer is None else min_neurons_per_layer,
    )
    units = cut_units(shape, kinds=("head",) if costs.name == "heads" else KINDS, neuron_block=neuron_block)
    arrangement = arrange(shape, costs, units, uniform_onset(units), minimum=minimum)
    budgeted = BudgetedModel(
        model, arrangement.order, selection=selection, minimum=minimum, info=info, tokenizer=tokenizer
    )
    budgeted.project_gates()
    if isinstance(order, Importance):
        budgeted.order_by_importance(order)
    elif order != "uniform":
        raise OptionError(f"order must be 'uniform' or an Importance; got {order!r}. See rheostat.importance")
    return budgeted


def _choose_padding(config: Any, tokenizer: Any) -> None:
    """Give a decoder's config a padding token if it has none: its classifier must know where a text ends."""
    if config.pad_token_id is None:
        ends = config.eos_token_id
        end = ends[0] if isinstance(ends, list) else ends
        config.pad_token_id = end if tokenizer is None else tokenizer.pad_token_id


def load(path: str | os.PathLike[str], **kwargs: Any) -> Any:
    """Load what :meth:`BudgetedModel.save_pretrained` or a materialized model's ``save_pretrained`` wrote.

    Args:
        path: A folder, or the name of a Hub repository.
        kwargs: ``revision``, ``cache_dir``, ``token``, ``local_files_only`` and ``force_download`` for the Hub.

    Returns:
        A :class:`BudgetedModel`, or a materialized Hugging Face model, in eval mode.

    Raises:
        CheckpointError: missing, damaged, unfinished, or of a newer format.
        UnexpectedArgumentError: another keyword argument.
    """
    check_options(kwargs, HUB_OPTIONS, "rheostat.load")
    folder = local_folder(path, **kwargs)
    manifest = read_manifest(folder)
    with naming_damage(folder):
        if manifest["kind"] == "materialized":
            return read_materialized(folder, manifest)
        if manifest["kind"] != "budgeted":
            raise CheckpointError(f"kind must be budgeted or materialized; got {manifest['kind']!r}. Save it again")
        parts = read_budgeted(folder, manifest)
        model = BudgetedModel(
            parts.base,
            parts.order,
            stored=parts.stored,
            gates=parts.gates,
            selection=cast(Selection, parts.selection),
            minimum=parts.minimum,
            info=parts.info,
            tokenizer=parts.tokenizer,
            corrections=parts.corrections,
        )
    return model.eval()
