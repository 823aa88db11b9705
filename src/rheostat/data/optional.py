"""Import the optional packages that reading data needs, only when they are needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from rheostat.errors import missing


def require(module: str) -> Any:
    """Import `module`, or raise the error that says how to install it.

    pyarrow comes with datasets, so a missing pyarrow names datasets.

    >>> require("json").__name__
    'json'
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise missing("datasets" if package == "pyarrow" else package, "train") from error
