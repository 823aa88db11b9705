"""The materialized model as a user holds it: a Hugging Face model that saves itself with its sizes a layer."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import GenerationConfig
from transformers.initialization import no_init_weights
from transformers.utils import GENERATION_CONFIG_NAME

from rheostat.answers import answers_of
from rheostat.architectures import ArchitectureSpec
from rheostat.checkpoint import CheckpointInfo, replacing_folder, write_manifest
from rheostat.cost import CostTable
from rheostat.data import with_inputs_of
from rheostat.errors import CheckpointError
from rheostat.families import check_model_type
from rheostat.materialize import materialize, shrink
from rheostat.modes import evaluating
from rheostat.predict import encode_texts, predict_images, predict_texts
from rheostat.predictions import Prediction, TaggedText
from rheostat.reorder import permute
from rheostat.saving import check_options, load_tokenizer, model_class, read_tensors
from rheostat.subnet import ModelShape, StoredOrder, Subnet

# Not model.safetensors: transformers would load it, and where whole sub-layers are gone it only warns and makes up
# random weights. So it finds no weights and says so.
WEIGHTS_FILE = "materialized.safetensors"
# Options that transformers' own callers (Trainer, push_to_hub) pass: weights are always whole and safetensors here.
_SAVE_OPTIONS = ("state_dict", "is_main_process", "max_shard_size", "safe_serialization", "token")


@dataclass(frozen=True)
class MaterializedInfo:
    """Where a materialized model comes from.

    Attributes:
        full_shape: Sizes of the model it was cut from.
        shape: Its own sizes, a layer at a time.
        kept: Original ids of the heads and neurons it holds, a layer at a time.
        budget: The budget that was asked for.
        share: The share of the full cost that it spends, at most the budget.
        costs: The cost model of both.
        info: Task, labels and lengths.
        corrected: Whether biases and norms are an operating point's own.
    """

    full_shape: ModelShape
    shape: ModelShape
    kept: StoredOrder
    budget: float
    share: float
    costs: CostTable
    info: CheckpointInfo
    corrected: bool = False


class Materialized:
    """What :meth:`BudgetedModel.materialize` adds to a Hugging Face class: saving that loads again, and ``predict``.

    Attributes:
        rheostat: Where the model comes from.
        rheostat_tokenizer: The tokenizer that :meth:`predict` uses, or None.
    """

    rheostat: MaterializedInfo
    rheostat_tokenizer: Any

    def save_pretrained(self, save_directory: str | os.PathLike[str], **kwargs: Any) -> None:
        """Write a folder that :func:`rheostat.load` reads, atomically.

        The plain ``from_pretrained`` of transformers can't load it: its config has no room for sizes a layer.

        Args:
            save_directory: The folder.
            kwargs: ``state_dict`` and ``is_main_process`` as in transformers; its other options are refused or, where
                they ask for what is done anyway, accepted.
        """
        check_options([name for name, value in kwargs.items() if value], _SAVE_OPTIONS, "save_pretrained")
        state = kwargs.get("state_dict") or self.state_dict()  # type: ignore[attr-defined]
        if kwargs.get("is_main_process", True):
            with replacing_folder(save_directory) as folder:
                _write(self, state, folder)

    def predict(self, texts: Sequence[Any], *, batch_size: int = 32) -> list[Prediction] | list[TaggedText]:
        """Return the label of each text, of its words, or of each image; see :meth:`BudgetedModel.predict`."""
        told = {"budget": self.rheostat.budget, "batch_size": batch_size, **self._place()}
        with evaluating(cast(Any, self)):
            if check_model_type(cast(Any, self).config).image_tokens is not None:
                return predict_images(self._answers, self.rheostat.info, texts, **told)
            return predict_texts(self._answers, self.rheostat_tokenizer, self.rheostat.info, texts, **told)

    def encode(self, texts: Sequence[str], *, batch_size: int = 32) -> NDArray[np.float32]:
        """Return the vector of each text, (N, E); see :func:`rheostat.predict.encode_texts`."""
        with evaluating(cast(Any, self)):
            return encode_texts(
                self._answers,
                self.rheostat_tokenizer,
                self.rheostat.info,
                texts,
                batch_size=batch_size,
                **self._place(),
            )

    def _answers(self, batch: Mapping[str, Tensor]) -> Tensor:
        model: Any = self
        return answers_of(model(**batch), batch, self.rheostat.info)

    def _place(self) -> dict[str, Any]:
        model: Any = self
        return {"device": model.device, "config": model.config}


@functools.cache
def _materialized_class(cls: Any) -> Any:
    """Return the materialized subclass of a Hugging Face class, under the same name so that configs keep it."""
    return type(cls.__name__, (Materialized, cls), {"__module__": cls.__module__})


def make_materialized(
    base: nn.Module,
    spec: ArchitectureSpec,
    subnet: Subnet,
    *,
    kept: StoredOrder,
    budget: float,
    costs: CostTable,
    info: CheckpointInfo,
    tokenizer: Any,
    corrections: Tensor | None = None,
) -> Any:
    """Return the materialized model of ``subnet``; ``base`` is unchanged."""
    small: Any = materialize(base, spec, subnet, corrections)
    small.__class__ = _materialized_class(type(base))  # type: ignore[arg-type]
    small.rheostat = MaterializedInfo(
        subnet.shape, subnet.kept_shape(), kept, budget, costs.share(subnet), costs, info, corrections is not None
    )
    small.rheostat_tokenizer = tokenizer
    return small


def _write(model: Any, state: Mapping[str, Tensor], folder: Path) -> None:
    """Write weights under their module names, config, tokenizer and, last, the manifest."""
    unique, tied = _untie(state)
    save_file(unique, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    # the dtype on disk is what a loader builds the model in
    model.config.dtype = model.dtype
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    if model.can_generate():
        model.generation_config.save_pretrained(folder)
    if model.rheostat_tokenizer is not None:
        model.rheostat_tokenizer.save_pretrained(folder)
    what: MaterializedInfo = model.rheostat
    write_manifest(
        folder,
        {
            "kind": "materialized",
            "model_type": model.config.model_type,
            "model_class": type(model).__name__,
            "dtype": str(model.dtype).removeprefix("torch."),
            "full_shape": what.full_shape.to_json(),
            "shape": what.shape.to_json(),
            "kept": what.kept.to_json(),
            "budget": what.budget,
            "share": what.share,
            "costs": what.costs.to_json(),
            "tied": tied,
            "corrected": what.corrected,
            "info": what.info.to_json(),
        },
    )


def _untie(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return each tensor once, contiguous, and for every other name of a tensor the name it is written under."""
    unique: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    first: dict[tuple[int, tuple[int, ...]], str] = {}
    for name, tensor in state.items():
        key = (tensor.data_ptr(), tuple(tensor.shape))
        if tensor.numel() and key in first:
            tied[name] = first[key]
        else:
            first[key] = name
            unique[name] = tensor.detach().contiguous()
    return unique, tied


def read_materialized(folder: Path, manifest: dict[str, Any]) -> Any:
    """Return the materialized model of a folder, in eval mode: shapes first, then every tensor strictly."""
    cls = model_class(manifest["model_class"])
    full, shape = ModelShape.from_json(manifest["full_shape"]), ModelShape.from_json(manifest["shape"])
    kept = StoredOrder.from_json(manifest["kept"], shape, full)
    config = cls.config_class.from_pretrained(folder, local_files_only=True)
    spec = check_model_type(config)
    with no_init_weights():
        model: Any = cls(config)
    if spec.prepare is not None:
        spec.prepare(model)
        everything = StoredOrder.identity(full)
        permute(model, spec, full.width("head"), StoredOrder(_first(kept.heads, everything.heads), everything.neurons))
    heads = [layer.num_attention_heads for layer in shape.layers]
    neurons = [layer.intermediate_size for layer in shape.layers]
    state = read_tensors(folder / WEIGHTS_FILE)
    # the full model of some families has no output biases, and a corrected one does
    more = torch.zeros(len(full.layers), 2, full.hidden_size) if manifest.get("corrected") else None
    shrink(model, spec, Subnet.prefix(full, heads, neurons), more)
    model.to(getattr(torch, manifest["dtype"]))
    _load_strictly(model, state, manifest["tied"])
    model.__class__ = _materialized_class(cls)
    if model.can_generate() and (folder / GENERATION_CONFIG_NAME).is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder, local_files_only=True)
    costs, info = CostTable.from_json(manifest["costs"]), CheckpointInfo.from_json(manifest["info"])
    model.rheostat = MaterializedInfo(
        full, shape, kept, manifest["budget"], manifest["share"], costs, info, more is not None
    )
    model.rheostat_tokenizer = with_inputs_of(load_tokenizer(folder), config)
    return model.eval()


def _first(kept: Sequence[Sequence[int]], everything: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Return all ids of every layer, those that are kept before the others."""
    return tuple((*ids, *(i for i in all_ids if i not in ids)) for ids, all_ids in zip(kept, everything, strict=True))


def _load_strictly(model: Any, state: dict[str, Tensor], tied: Mapping[str, str]) -> None:
    """Load every tensor; one missing, left over or of another shape is an error that names it."""
    state = {**state, **{name: state[written] for name, written in tied.items()}}
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in state.items()}
    wrong = [f"{name}: {found.get(name)} for {shape}" for name, shape in wanted.items() if found.get(name) != shape]
    wrong += [f"{name} is not in the model" for name in found if name not in wanted]
    if wrong:
        raise CheckpointError(f"weights must fit the manifest exactly; {'; '.join(wrong[:5])}. Save the model again")
    model.load_state_dict(state, strict=True)
    if tied:
        model.tie_weights()
