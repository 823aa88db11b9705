"""One small bundle for all tests of serving, and one server for those that leave it as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import BUDGETS, SIZES, Server, serving
from tiny import tiny_budgeted, tiny_tokenizer

from rheostat.export import export


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    model = tiny_budgeted(tokenizer=tiny_tokenizer(folder / "words", max_length=64), sizes=SIZES)
    export(model, folder / "news", budgets=BUDGETS)
    return folder / "news"


@pytest.fixture(scope="session")
def server(bundle: Path) -> Iterator[Server]:
    """One server for all tests that leave it as it was."""
    with serving(bundle, "--read-timeout-s", "1.5", "--max-texts", "300") as found:
        yield found


@pytest.fixture
def serve_with(bundle: Path) -> Callable[..., Any]:
    return lambda *options, **more: serving(bundle, *options, **more)
