"""What a sentence-transformers folder says besides the encoder: how tokens become one vector; read and written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rheostat.errors import CheckpointError, UnsupportedModelError

MODULES_FILE = "modules.json"
POOLING_FOLDER, NORMALIZE_FOLDER = "1_Pooling", "2_Normalize"
LENGTH_FILE = "sentence_bert_config.json"
LIBRARY_FILE = "config_sentence_transformers.json"
POOLINGS = ("mean", "cls", "max", "lasttoken")
# Before sentence-transformers 5 every way had a flag of its own.
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True)
class Pooling:
    """How the vectors of tokens become the vector of a text.

    Attributes:
        mode: ``mean`` over the tokens, ``cls`` (the first), ``max`` or ``lasttoken``.
        normalizes: Whether the vector is divided by its length.
        prompt: What is put before every text, the folder's default prompt.
        max_length: Longest text in tokens, or None for what the model takes.
        library: ``config_sentence_transformers.json`` as it was.
    """

    mode: str = "mean"
    normalizes: bool = True
    prompt: str = ""
    max_length: int | None = None
    library: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Pooling:
        """Return the pooling that ``to_json`` wrote."""
        return cls(**record)


def read_pooling(folder: Path) -> Pooling:
    """Return what a sentence-transformers folder says; of any other folder the mean of the tokens, normalized.

    Raises:
        UnsupportedModelError: it does something to vectors that is not supported.
        CheckpointError: a file can't be read, or the encoder is not in the folder itself.
    """
    if not (folder / MODULES_FILE).is_file():
        return Pooling()
    modules = _read(folder / MODULES_FILE)
    kinds = [str(module["type"]).rpartition(".")[2] for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise UnsupportedModelError(
            f"modules of {str(folder)!r} must be Transformer, Pooling and perhaps Normalize; got {', '.join(kinds)}. "
            "Only these can be trained here"
        )
    if modules[0]["path"]:
        raise CheckpointError(
            f"the encoder must lie in {str(folder)!r} itself; it is in {modules[0]['path']!r}. Save the model with a "
            "newer sentence-transformers"
        )
    library = _read(folder / LIBRARY_FILE) if (folder / LIBRARY_FILE).is_file() else {}
    length = _read(folder / LENGTH_FILE).get("max_seq_length") if (folder / LENGTH_FILE).is_file() else None
    name = library.get("default_prompt_name")
    return Pooling(
        mode=_mode_of(_read(folder / modules[1]["path"] / "config.json"), folder),
        normalizes=kinds[-1] == "Normalize",
        prompt=str(library["prompts"][name]) if name else "",
        max_length=length,
        library=library,
    )


def _mode_of(config: Mapping[str, Any], folder: Path) -> str:
    named = config.get("pooling_mode") or [mode for flag, mode in _FLAGS.items() if config.get(flag)] or "mean"
    modes = [named] if isinstance(named, str) else list(named)
    if len(modes) != 1 or modes[0] not in POOLINGS or not config.get("include_prompt", True):
        raise UnsupportedModelError(
            f"pooling of {str(folder)!r} must be one of {', '.join(POOLINGS)}, prompt included; got {modes}"
        )
    return str(modes[0])


def write_pooling(folder: Path, pooling: Pooling, size: int, max_length: int | None) -> None:
    """Write what makes a folder with an encoder one that sentence-transformers loads.

    Args:
        folder: Where the encoder is.
        pooling: What follows it.
        size: Numbers of a vector.
        max_length: Longest text in tokens.
    """
    package = "sentence_transformers.models"
    parts = [("", "Transformer"), (POOLING_FOLDER, "Pooling"), (NORMALIZE_FOLDER, "Normalize")]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"{package}.{kind}"}
        for i, (path, kind) in enumerate(parts[: 3 if pooling.normalizes else 2])
    ]
    (folder / POOLING_FOLDER).mkdir()
    flags = {flag: mode == pooling.mode for flag, mode in _FLAGS.items()}
    settings = {"word_embedding_dimension": size, **flags, "include_prompt": True}
    for path, content in (
        (folder / POOLING_FOLDER / "config.json", settings),
        (folder / LENGTH_FILE, {"max_seq_length": max_length, "do_lower_case": False}),
        (folder / LIBRARY_FILE, dict(pooling.library)),
        (folder / MODULES_FILE, modules),
    ):
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{str(path)!r} must be readable JSON; {error}. Copy it again") from None
