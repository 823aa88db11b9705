"""The variants of the curve ablation, and the code that only variants outside the default recipe need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from rheostat.architectures import linear_at
from rheostat.forms import gated, layers_path, rebind
from rheostat.gates import Gates
from rheostat.importance import Importance
from rheostat.losses import distillation_loss, model_inputs, task_losses
from rheostat.model import BudgetedModel
from rheostat.objectives import Objective
from rheostat.order import balanced_value, ranked_onset, uniform_onset
from rheostat.subnet import KINDS

FloatArray = NDArray[np.float64]
GRID = (1.0, 0.75, 0.5, 0.35, 0.25, 0.12)


@dataclass(frozen=True)
class Variant:
    """One training recipe: the reference but for what its name says.

    Attributes:
        order: How units are ranked before training.
        gates: How the order is learned on top: not at all, with frozen weights, jointly, or with annealed slopes.
        min_heads: Heads that every layer keeps; with a floor also one block of neurons.
        block: Neurons a unit.
        sampling: Which budgets a step trains.
        distill: What is distilled.
        points: What an operating point has of its own.
        selection: ``nested`` or ``top-k``.
        dropout: Whether dropout is active while subnets are trained.
        learning_rate: Of the subnets' training.
        epochs: Of the subnets' training.
        precision: Of the subnets' training; None for that of the run.
    """

    order: str = "gradient"
    gates: str = "none"
    min_heads: int = 0
    block: int = 32
    sampling: str = "turns"
    distill: str = "logits"
    points: str = "none"
    selection: str = "nested"
    dropout: bool = False
    learning_rate: float = 1e-4
    epochs: float = 1.0
    precision: str | None = None


REFERENCE = Variant()


def variants() -> dict[str, Variant]:
    """Return every variant by name; the part before the colon is what it varies."""

    def change(**fields: Any) -> Variant:
        return replace(REFERENCE, **fields)

    sandwich = change(sampling="ends")
    default = change(epochs=4.0, order="more heads", sampling="low")
    return {
        "reference": REFERENCE,
        "epochs: two": change(epochs=2.0),
        "epochs: four": change(epochs=4.0),
        "epochs: four, to the low end": change(epochs=4.0, sampling="low"),
        "epochs: four, heads favoured": change(epochs=4.0, order="more heads"),
        "epochs: four, heads favoured, to the low end": default,
        "epochs: four, heads favoured, two budgets a step": replace(default, sampling="low, two"),
        "epochs: four, specialist for 0.5": replace(default, sampling="0.5"),
        "epochs: four, specialist for 0.25": replace(default, sampling="0.25"),
        "epochs: four, rate 2e-4": change(epochs=4.0, learning_rate=2e-4),
        "rate: 5e-5": change(learning_rate=5e-5),
        "rate: 2e-4": change(learning_rate=2e-4),
        "dropout: on": change(dropout=True),
        "sampling: sandwich": sandwich,
        "sampling: sandwich, rate 2e-4": replace(sandwich, learning_rate=2e-4),
        "sampling: sandwich, rate 4e-4": replace(sandwich, learning_rate=4e-4),
        "sampling: sandwich, dropout": replace(sandwich, dropout=True),
        "sampling: uniform": change(sampling="uniform"),
        "sampling: turns, to the low end": change(sampling="low"),
        "sampling: largest every second step": change(sampling="largest"),
        "sampling: largest every eighth step": change(sampling="rare largest"),
        "order: random": change(order="random"),
        "order: equal shares in every layer": change(order="equal"),
        "order: raw importance over cost": change(order="raw"),
        "order: mean of equal shares and importance": change(order="blend"),
        "order: second-order importance": change(order="fisher"),
        "order: importance, measured again as units leave": change(order="stepwise"),
        "order: importance, early layers favoured": change(order="early"),
        "order: importance, heads favoured": change(order="more heads"),
        "order: importance, heads favoured more": change(order="most heads"),
        "order: importance, heads and early layers favoured": change(order="early, more heads"),
        "order: importance, neurons favoured": change(order="fewer heads"),
        "order: norm of what a unit adds": change(order="activation"),
        "order: gates, from importance": change(gates="frozen"),
        "order: gates, from equal shares": change(order="equal", gates="frozen"),
        "order: gates and weights (0.25 epochs more), from importance": change(gates="joint"),
        "order: annealed gates, from importance": change(gates="annealed"),
        "floor: one head and one block a layer": change(min_heads=1),
        "block: 16": change(block=16),
        "block: 64": change(block=64),
        "distill: labels only": change(distill="labels"),
        "distill: logits only": change(distill="only"),
        "distill: logits and hidden states": change(distill="hidden"),
        "sampling: turns, on the grid": change(sampling="grid"),
        "points: own biases and norms, on the grid": change(points="norms", sampling="grid"),
        "points: mean of what was removed": change(points="mean"),
        "selection: top-k of learned gates": change(gates="frozen", selection="top-k"),
    }


# -- orders --------------------------------------------------------------------------------------------------


TILTS = {  # what a layer's importance is multiplied by for every layer below it, and that of heads
    "early": (0.8, 1.0),
    "more heads": (1.0, 1.6),
    "most heads": (1.0, 2.5),
    "early, more heads": (0.87, 1.6),
    "fewer heads": (1.0, 0.6),
}


def onset_rule(name: str, seed: int) -> Callable[..., FloatArray]:
    """Return how an order ranks units: (units, scores, costs) -> onsets (U,)."""

    def raw(units: Sequence[Any], scores: FloatArray, costs: Any) -> FloatArray:
        return -scores / np.array([costs.unit(unit) for unit in units], dtype=np.float64)

    def equal(units: Sequence[Any], scores: FloatArray, costs: Any) -> FloatArray:
        return uniform_onset(units, scores)

    def tilted(units: Sequence[Any], scores: FloatArray, costs: Any) -> FloatArray:
        early, heads = TILTS.get(name, (1.0, 1.0))
        tilt = [early**unit.layer * (heads if unit.kind == "head" else 1.0) for unit in units]
        return ranked_onset(balanced_value(units, scores, costs) * tilt)

    def blend(units: Sequence[Any], scores: FloatArray, costs: Any) -> FloatArray:
        return (uniform_onset(units, scores) + tilted(units, scores, costs)) / 2

    def random(units: Sequence[Any], scores: FloatArray, costs: Any) -> FloatArray:
        return np.random.default_rng([seed, 1]).random(len(units))

    return {"raw": raw, "equal": equal, "blend": blend, "random": random}.get(name, tilted)


def unit_importance(model: BudgetedModel, batches: Iterable[Any], how: str) -> Importance:
    """Return squared gradients (``fisher``) or the mean norm of what a unit adds (``activation``), in eval mode."""
    model.eval()
    return gate_gradients(model, batches, torch.square) if how == "fisher" else _added_norms(model, batches)


def gate_gradients(
    model: BudgetedModel,
    batches: Iterable[Any],
    fold: Callable[[Tensor], Tensor],
    kept: Importance | None = None,
) -> Importance:
    """Return the sum over rows of ``fold(dL/dg)``, ``square`` being the diagonal of the gates' Fisher information.

    Gates are 1 where ``kept`` is 1 (everywhere without it) and 0 elsewhere, as is then their score.
    """
    model.eval()
    head_dim, total = model.shape.head_dim, None
    masks = None if kept is None else [m for pair in zip(kept.heads, kept.neurons, strict=True) for m in pair]
    for batch in batches:
        rows = batch["labels"].shape[0]
        leaves = [
            torch.ones(rows, 1, count, requires_grad=True)
            for layer in model.shape.layers
            for count in (layer.num_attention_heads, layer.intermediate_size)
        ]
        gates = (
            leaves if masks is None else [a * torch.from_numpy(m).float() for a, m in zip(leaves, masks, strict=True)]
        )
        pairs = [
            (heads.repeat_interleave(head_dim, dim=-1), neurons)
            for heads, neurons in zip(gates[::2], gates[1::2], strict=True)
        ]
        logits = gated(model.base, model.spec, pairs)(**model_inputs(batch)).logits
        losses = task_losses(model.info.task or "single-label", logits, batch["labels"])
        found = [fold(g).sum(dim=(0, 1)) for g in torch.autograd.grad(losses.sum(), leaves)]
        total = found if total is None else [a + b for a, b in zip(total, found, strict=True)]
    return _importance(total or [])


@torch.no_grad()
def _added_norms(model: BudgetedModel, batches: Iterable[Any]) -> Importance:
    sums: list[Tensor] = []
    for batch in batches:
        inputs = output_inputs(model, batch)
        keep = batch["attention_mask"].bool()
        norms = []
        for (_, kind, linear), x in zip(output_linears(model), inputs, strict=True):
            tokens = x[keep]  # (T, H * D) or (T, F)
            if kind == "neuron":
                norms.append(tokens.abs().sum(0) * linear.weight.norm(dim=0))
                continue
            width = model.shape.head_dim
            parts = [
                (tokens[:, i : i + width] @ linear.weight[:, i : i + width].T).norm(dim=-1).sum()
                for i in range(0, tokens.shape[1], width)
            ]
            norms.append(torch.stack(parts))
        sums = norms if not sums else [a + b for a, b in zip(sums, norms, strict=True)]
    return _importance(sums)


def _importance(scores: Sequence[Tensor]) -> Importance:
    arrays = [score.double().numpy() for score in scores]
    return Importance(tuple(arrays[::2]), tuple(arrays[1::2]))


def output_linears(model: BudgetedModel) -> list[tuple[int, str, nn.Linear]]:
    """Return (layer, kind, output projection) of every sub-layer."""
    return [
        (i, kind, linear_at(layer, sub.output))
        for i, layer in enumerate(model.spec.layer_list(model.base))
        for kind, sub in zip(KINDS, model.spec.sub_layers(), strict=True)
    ]


@torch.no_grad()
def output_inputs(model: BudgetedModel, batch: Any) -> list[Tensor]:
    """Return what every output projection of the full model sees, (B, S, H * D) or (B, S, F)."""
    found: list[Tensor] = []
    hooks = [
        linear.register_forward_pre_hook(lambda _, args: found.append(args[0]))
        for _, _, linear in output_linears(model)
    ]
    model.base(**model_inputs(batch))
    for hook in hooks:
        hook.remove()
    return found


class AnnealedGates(Gates):
    """Gates whose log-odds are multiplied by a sharpness that grows from 1 to 10; onsets stay what they are."""

    sharpness = 1.0

    def forward(self, budget: float) -> Tensor:
        """Return g(budget), shape (U,)."""
        gates = super().forward(budget)
        if budget >= 1.0 or self.sharpness == 1.0:
            return gates
        return torch.sigmoid(self.sharpness * torch.logit(gates.clamp(1e-6, 1 - 1e-6)))


SHARES = (0.85, 0.7, 0.57, 0.46, 0.37, 0.3, 0.24, 0.19, 0.15, 0.12, 0.1)


def stepwise_onset(model: BudgetedModel, batches: Callable[[], Iterable[Any]]) -> FloatArray:
    """Return onsets (U,) by importance measured again at every share, with what has left by then gated to 0."""
    units, costs, rule = model.order.units, model.order.costs, onset_rule("", 0)
    cost = np.array([costs.unit(unit) for unit in units], dtype=np.float64)
    alive, onset, last = np.arange(len(units)), np.zeros(len(units)), len(units)
    for share in SHARES:
        scores = gate_gradients(model, batches(), torch.abs, _kept(model, alive)).of_units([units[i] for i in alive])
        ranked = alive[np.argsort(rule([units[i] for i in alive], scores, costs))]
        keep = int(np.searchsorted(np.cumsum(cost[ranked]), share * cost.sum(), side="right"))
        onset[ranked[keep:]] = np.arange(last - len(ranked) + keep, last)
        last -= len(ranked) - keep
        onset[ranked[:keep]] = np.arange(keep)
        alive = np.sort(ranked[:keep])
    return onset


def _kept(model: BudgetedModel, alive: Any) -> Importance:
    heads = tuple(np.zeros(layer.num_attention_heads) for layer in model.shape.layers)
    neurons = tuple(np.zeros(layer.intermediate_size) for layer in model.shape.layers)
    for i in alive:
        unit = model.order.units[i]
        (heads if unit.kind == "head" else neurons)[unit.layer][unit.start : unit.stop] = 1.0
    return Importance(heads, neurons)


# -- sampling ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sampler:
    """Budgets of a step, as a function of the step alone."""

    how: str
    low: float
    seed: int

    def __call__(self, step: int, part: int = 0) -> tuple[float, ...]:
        """Return the budgets of optimizer step ``step``."""
        if self.how[0].isdigit():  # a specialist
            return (float(self.how),)
        draws = np.random.default_rng([self.seed, step, part])
        low, uniform = self.low, float(draws.uniform(self.low, 1.0))
        skewed = low + (1.0 - low) * float(draws.random()) ** 2
        if self.how == "ends":  # two budgets a step, as next; all after that take one
            return (1.0 if step % 2 == 0 else low, uniform)
        if self.how == "low, two":
            return (1.0 if step % 2 == 0 else low, skewed)
        if self.how == "grid":
            inner = GRID[1:-1][int(draws.integers(len(GRID) - 2))]
            return ((1.0, inner, GRID[-1], inner)[step % 4],)
        eighth = (1.0, uniform, low, uniform, uniform, uniform, low, uniform)
        turns = {
            "turns": (1.0, uniform, low, uniform),
            "uniform": (uniform,),
            "low": (1.0, skewed, low, skewed),
            "largest": (1.0, uniform, 1.0, low),
            "rare largest": eighth,
        }[self.how]
        return (turns[step % len(turns)],)


# -- objectives ----------------------------------------------------------------------------------------------


class HiddenStates(Objective):
    """Distillation from the last hidden states of the dense model too: their mean squared error over tokens."""

    def __init__(self, *args: Any, dense: nn.Module, **kwargs: Any) -> None:
        """Keep the dense model out of what is trained."""
        super().__init__(*args, **kwargs)
        self.__dict__["dense"] = dense.eval().requires_grad_(False)

    def forward(self, budgets: Sequence[float], **batch: Tensor) -> Tensor:
        """Return the loss of one batch, averaged over ``budgets``."""
        inputs, mask = model_inputs(batch), batch["attention_mask"].bool()
        with torch.no_grad():
            wanted = self.__dict__["dense"](**inputs, output_hidden_states=True).hidden_states[-1][mask]
        losses = []
        for budget in budgets:
            output = self.model(**inputs, budget=budget, output_hidden_states=True)
            own = F.cross_entropy(output.logits, batch["labels"])
            logits = distillation_loss(output.logits, batch["teacher_logits"], task="single-label")
            states = F.mse_loss(output.hidden_states[-1][mask], wanted) / wanted.var()
            losses.append(0.3 * own + 0.7 * logits + states)
        return torch.stack(losses).mean()


class PointNorm(nn.Module):
    """A layer norm after an added constant: what an operating point owns of a sub-layer."""

    def __init__(self, norm: nn.LayerNorm) -> None:
        """Start as a copy of ``norm`` that adds nothing."""
        super().__init__()
        self.weight = nn.Parameter(norm.weight.detach().clone())
        self.bias = nn.Parameter(norm.bias.detach().clone())
        self.added = nn.Parameter(torch.zeros_like(norm.bias))
        self.eps, self.shape = norm.eps, norm.normalized_shape

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, S, E) to (B, S, E)."""
        return F.layer_norm(x + self.added, self.shape, self.weight, self.bias, self.eps)


def norm_paths(model: BudgetedModel) -> list[tuple[int, str, str]]:
    """Return (layer, kind, path from the base model) of the norm after every sub-layer of a BERT."""
    prefix = layers_path(model.base, model.spec)
    found = []
    for i in range(len(model.shape.layers)):
        for kind, sub in zip(KINDS, model.spec.sub_layers(), strict=True):
            found.append((i, kind, f"{prefix}.{i}.{sub.output.rpartition('.')[0]}.LayerNorm"))
    return found


class OwnNorms(BudgetedModel):
    """Every operating point of the grid has output biases and layer norms of its own; budgets between use the next."""

    def give_points(self) -> OwnNorms:
        """Copy the norms for every point; the model must be in its final order."""
        base: Any = self.base
        points = {
            self._key(budget): nn.ModuleList(PointNorm(base.get_submodule(path)) for _, _, path in norm_paths(self))
            for budget in GRID[1:]
        }
        base.operating_points = nn.ModuleDict(points)  # a child of the base, so that it is trained and saved with it
        return self

    @staticmethod
    def _key(budget: float) -> str:
        return f"b{round(budget * 100)}"

    def at(self, budget: float, **kwargs: Any) -> nn.Module:
        """Return the view with the norms of the smallest point at or above ``budget``."""
        view = super().at(budget, **kwargs)
        point = min((b for b in GRID if b >= budget), default=1.0)
        if point == 1.0:
            return view
        own: Any = self.base.operating_points[self._key(point)]  # type: ignore[index, union-attr]
        return rebind(view, {path: norm for (_, _, path), norm in zip(norm_paths(self), own, strict=True)})


class _Added(nn.Module):
    def __init__(self, norm: nn.Module, added: Tensor) -> None:
        super().__init__()
        self.__dict__.update(norm=norm, added=added)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.__dict__["norm"](x + self.__dict__["added"])
        return result


class MeanBack(BudgetedModel):
    """What removed units add on average comes back as a bias: ``W[:, removed] @ mean(input[removed])``."""

    def give_means(self, batches: Iterable[Any]) -> MeanBack:
        """Measure the mean inputs of the output projections; the model must be in its final order."""
        self.eval()
        sums, count = None, 0
        for batch in batches:
            keep = batch["attention_mask"].bool()
            found = [x[keep].sum(0) for x in output_inputs(self, batch)]
            sums = found if sums is None else [a + b for a, b in zip(sums, found, strict=True)]
            count += int(keep.sum())
        self.__dict__["means"] = [x / count for x in sums or []]
        return self

    def at(self, budget: float, **kwargs: Any) -> nn.Module:
        """Return the view with the means of what it lacks."""
        view = super().at(budget, **kwargs)
        subnet, replacements = self.subnet(budget), {}
        for (i, kind, linear), mean, (_, _, path) in zip(
            output_linears(self), self.__dict__["means"], norm_paths(self), strict=True
        ):
            kept = len(subnet.kept(i, kind)) * (self.shape.head_dim if kind == "head" else 1)
            if kept < len(mean):
                added = linear.weight[:, kept:] @ mean[kept:]
                replacements[path] = _Added(self.base.get_submodule(path), added)
        return rebind(view, replacements)
