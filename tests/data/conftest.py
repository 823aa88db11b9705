"""What the data tests share: files written from text, a tokenizer, no progress bars."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import datasets
import pytest
from transformers import PreTrainedTokenizerFast
from word_tokenizer import word_tokenizer

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(autouse=True, scope="session")
def _quiet_datasets(tmp_path_factory: pytest.TempPathFactory) -> None:
    datasets.disable_progress_bars()
    datasets.config.HF_DATASETS_CACHE = tmp_path_factory.mktemp("datasets")


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """Write text (in an encoding) or bytes to a named file and return its path."""

    def write_file(content: str | bytes, name: str = "data.csv", encoding: str = "utf-8") -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode(encoding))
        return str(path)

    return write_file


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    return word_tokenizer(model_max_length=512, model_input_names=["input_ids", "token_type_ids", "attention_mask"])
