"""The two consoles: results go to stdout, progress and notes to stderr."""

from __future__ import annotations

from rich.console import Console

stdout = Console()
stderr = Console(stderr=True)
