"""What all tests share: one thread, no network, no deadlines, and the tiny models of `random_models`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test needs the network; before huggingface_hub is imported

import pytest
import torch
from hypothesis import Phase, settings
from random_models import WORDS, make_inputs, make_model
from torch import Tensor
from transformers import BertTokenizerFast

# No deadline: machines are shared. No explain phase: it takes minutes to say which lines a failing example ran.
settings.register_profile("rheostat", deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink])
settings.load_profile("rheostat")


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Same sums in the same order, and no fight for the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def bert() -> Any:
    return make_model("bert")


@pytest.fixture
def inputs() -> dict[str, Tensor]:
    return make_inputs()


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> BertTokenizerFast:
    """A WordPiece tokenizer made here, without a length limit of its own."""
    path: Path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    return BertTokenizerFast(vocab=str(path))
