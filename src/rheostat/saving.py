"""Write and read the folder of a budgeted checkpoint: base model, gates, manifest, tokenizer, model card."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rheostat.checkpoint import CheckpointInfo, existing_folder, write_manifest
from rheostat.corrections import Corrections
from rheostat.errors import CheckpointError, UnexpectedArgumentError
from rheostat.families import check_model_type, find_spec
from rheostat.forms import correction_sizes
from rheostat.gates import Gates
from rheostat.order import Minimum, UnitOrder
from rheostat.reorder import permute, restored
from rheostat.sentences import write_pooling
from rheostat.subnet import StoredOrder

GATES_FILE = "gates.safetensors"
CORRECTIONS_FILE = "corrections.safetensors"
HUB_OPTIONS = ("revision", "cache_dir", "token", "local_files_only", "force_download")
SAVE_OPTIONS = ("config", "model_card_kwargs")
# What ModelHubMixin.push_to_hub takes besides.
PUSH_OPTIONS = (
    "commit_message", "private", "token", "branch", "create_pr", "allow_patterns", "ignore_patterns", "delete_patterns",
)  # fmt: skip


def check_options(given: Iterable[str], known: Collection[str], call: str) -> None:
    """Refuse keyword arguments that ``call`` would ignore.

    Raises:
        UnexpectedArgumentError: one of ``given`` is not in ``known``.
    """
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise UnexpectedArgumentError(
            f"options of {call} must be among {', '.join(sorted(known))}; got {', '.join(unknown)}, which it would "
            "ignore. Leave it out"
        )


@dataclass(frozen=True)
class BudgetedParts:
    """Everything that a budgeted checkpoint holds."""

    base: nn.Module
    order: UnitOrder
    stored: StoredOrder
    gates: Gates
    selection: str
    minimum: Minimum
    info: CheckpointInfo
    tokenizer: Any
    corrections: Corrections | None = None


def write_budgeted(folder: Path, parts: BudgetedParts) -> None:
    """Write all files of a budgeted checkpoint into an empty ``folder``, the manifest last."""
    base: Any = parts.base
    spec = find_spec(base)
    with quiet_transformers():
        if spec.prepare is None:
            base.save_pretrained(folder)
        else:
            restored(base, spec, parts.order.shape.width("head"), parts.stored).save_pretrained(folder)  # type: ignore[operator]
    save_file({name: tensor.contiguous() for name, tensor in parts.gates.state_dict().items()}, folder / GATES_FILE)
    if parts.corrections is not None:
        save_file(parts.corrections.to_tensors(), folder / CORRECTIONS_FILE)
    if parts.tokenizer is not None:
        parts.tokenizer.save_pretrained(folder)
    if parts.info.pooling is not None:
        write_pooling(folder, parts.info.pooling, base.config.hidden_size, parts.info.max_length)
    write_manifest(
        folder,
        {
            "kind": "budgeted",
            "model_type": base.config.model_type,
            "model_class": type(base).__name__,
            "selection": parts.selection,
            "minimum": asdict(parts.minimum),
            "order": parts.order.to_json(),
            "stored": parts.stored.to_json(),
            "info": parts.info.to_json(),
            "corrected": parts.corrections is not None,
        },
    )


def read_budgeted(folder: Path, manifest: dict[str, Any]) -> BudgetedParts:
    """Return what :func:`write_budgeted` wrote; strictly: a missing or mismatched tensor is an error that names it."""
    order = UnitOrder.from_json(manifest["order"])
    stored = StoredOrder.from_json(manifest["stored"], order.shape)
    gates = Gates(len(order.units))
    gates.load_state_dict(read_tensors(folder / GATES_FILE), strict=True)
    base = load_base(folder, model_class(manifest["model_class"]))
    spec = find_spec(base)
    if spec.prepare is not None:
        spec.prepare(base)
        permute(base, spec, order.shape.width("head"), stored)
    corrections = None
    if manifest.get("corrected"):
        corrections = Corrections.from_tensors(read_tensors(folder / CORRECTIONS_FILE), correction_sizes(base, spec))
    return BudgetedParts(
        base=base,
        order=order,
        stored=stored,
        gates=gates,
        selection=manifest["selection"],
        minimum=Minimum(**manifest["minimum"]),
        info=CheckpointInfo.from_json(manifest["info"]),
        tokenizer=load_tokenizer(folder),
        corrections=corrections,
    )


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file.

    Raises:
        CheckpointError: it is missing, cut short or damaged.
    """
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{str(path)!r} must be a whole safetensors file; {error}. Save it again") from None


def model_class(name: str) -> Any:
    """Return the transformers class that a manifest names.

    Raises:
        CheckpointError: transformers has no such class.
    """
    found = getattr(transformers, name, None)
    if not (isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)):
        raise CheckpointError(
            f"model_class must be a model of transformers; got {name!r}, unknown to {transformers.__version__}. "
            "Install the version of transformers that saved it"
        )
    return found


def load_base(folder: Path, cls: Any) -> Any:
    """Return the full-size base model of a folder; every tensor must be there and fit."""
    try:
        with quiet_transformers():
            model, report = cls.from_pretrained(
                folder,
                output_loading_info=True,
                ignore_mismatched_sizes=False,
                local_files_only=True,
                use_safetensors=True,  # never a pickled file, whatever else lies in the folder
            )
    except SafetensorError as error:
        raise CheckpointError(
            f"weights of {str(folder)!r} must be whole safetensors files; {error}. Save it again"
        ) from None
    except RuntimeError as error:  # transformers names mismatched tensors only in the report that it would print
        named = _mismatched(folder, cls) or [str(error).strip().splitlines()[0]]
        raise CheckpointError(
            f"weights of {str(folder)!r} must fit the model exactly; {'; '.join(named[:5])}. Save it again"
        ) from None
    wrong = {what: sorted(map(str, names)) for what, names in report.items() if names and what != "error_msgs"}
    if wrong:
        listed = "; ".join(f"{what.replace('_', ' ')}: {', '.join(names[:5])}" for what, names in wrong.items())
        raise CheckpointError(f"weights of {str(folder)!r} must fit the model exactly; {listed}. Save it again")
    _align(model)
    return model


ALIGNMENT = 64  # bytes, as torch allocates


def _align(model: Any) -> None:
    """Move weights to memory that is aligned as torch allocates it.

    A safetensors file is mapped as it is, its tensors wherever they lie; kernels round otherwise there, and a loaded
    model would answer a little differently from the one that was saved.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.data_ptr() % ALIGNMENT:
            tensor.data = tensor.data.clone()


def _mismatched(folder: Path, cls: Any) -> list[str]:
    """Return a line for each tensor on disk whose shape is not that of the model."""
    config = cls.config_class.from_pretrained(folder, local_files_only=True)
    with torch.device("meta"):
        wanted = {name: tuple(tensor.shape) for name, tensor in cls(config).state_dict().items()}
    found: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            found |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    return [f"{name}: {found[name]} for {shape}" for name, shape in wanted.items() if found.get(name, shape) != shape]


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers from printing its loading report and progress: what is wrong becomes an error instead."""
    logger = transformers.utils.logging
    level, bars = logger.get_verbosity(), logger.is_progress_bar_enabled()
    logger.set_verbosity_error()
    logger.disable_progress_bar()
    try:
        yield
    finally:
        logger.set_verbosity(level)
        if bars:
            logger.enable_progress_bar()


def load_tokenizer(folder: Path) -> Any:
    """Return the tokenizer of a folder, or None if it holds none."""
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt")):
        return None
    return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def local_folder(path: str | os.PathLike[str], **hub: Any) -> Path:
    """Return a local folder for a path or for the name of a Hub repository, which is downloaded.

    Raises:
        CheckpointError: neither a folder nor a repository that can be had.
    """
    name = os.fspath(path)
    looks_like_repo = name.count("/") <= 1 and not name.startswith((".", "/", "~")) and not Path(name).parent.is_dir()
    if Path(name).exists() or not looks_like_repo:
        return existing_folder(name)
    try:
        return existing_folder(name)
    except CheckpointError:
        return _downloaded(name, hub)


def _downloaded(name: str, hub: dict[str, Any]) -> Path:
    try:
        return Path(snapshot_download(name, **hub))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            f"{name!r} must be a folder or a Hub repository that can be reached; it is not: {reason}. Check the name"
        ) from None


def load_config(name: str) -> Any:
    """Return the config of a model folder or Hub name after checking that its family is known.

    Raises:
        CheckpointError: no such folder or repository.
        UnsupportedModelError: see :func:`rheostat.families.check_model_type`.
    """
    try:
        config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise CheckpointError(
            f"model must be a folder or Hub name of a Hugging Face model; got {name!r}: {reason}"
        ) from None
    check_model_type(config)
    return config


def card_summary(order: UnitOrder, info: CheckpointInfo) -> str:
    """Return one paragraph on what a budget means here."""
    at = f" at {order.costs.sequence_length} tokens" if order.costs.sequence_length else ""
    low, high = info.trained_budgets or (0.0, 0.0)
    trained = f" Trained for budgets {low:g} to {high:g}." if info.trained_budgets else ""
    return (
        f"A budget is a share of the full model's {order.costs.name}{at}; the smallest is {order.floor:.4f}.{trained}"
    )


def card_table(info: CheckpointInfo) -> str:
    """Return the evaluation table as Markdown, or an empty text."""
    if not info.evaluation:
        return ""
    first = info.evaluation[0]
    columns = next(columns for columns in _CARD_COLUMNS if all(first.get(name) is not None for name in columns))
    counted = "tokens" if "tokens" in first else "rows"
    head = ["budget", *(columns[name][0] for name in columns)]
    rows = [
        f"| {r['budget']:g} | " + " | ".join(form.format(r[name]) for name, (_, form) in columns.items()) + " |"
        for r in info.evaluation
    ]
    table = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head), *rows]
    return "\n".join([f"Validation {counted}: {first.get(counted)}.", "", *table])


# What a card tells of an evaluation, by the fields that its records have: name and form of each column.
_CARD_COLUMNS: tuple[dict[str, tuple[str, str]], ...] = (
    {"perplexity": ("perplexity", "{:.2f}")},
    {"cosine": ("cosine to the full model", "{:.4f}")},
    {"spearman": ("Spearman", "{:.4f}"), "mse": ("MSE", "{:.4g}")},
    {"accuracy": ("word accuracy", "{:.4f}"), "entity_f1": ("entity F1", "{:.4f}")},
    {"accuracy": ("accuracy", "{:.4f}"), "macro_f1": ("macro F1", "{:.4f}")},
    {"accuracy": ("accuracy", "{:.4f}")},
)
