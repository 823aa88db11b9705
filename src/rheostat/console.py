"""The two consoles: results go to stdout, progress and notes to stderr."""

from __future__ import annotations

import os

from rich.console import Console


def is_main_process() -> bool:
    """Return whether this is the only process or rank 0 of torchrun."""
    return int(os.environ.get("RANK", "0")) == 0


# The other ranks would print everything again.
stdout = Console(quiet=not is_main_process())
stderr = Console(stderr=True, quiet=not is_main_process())
