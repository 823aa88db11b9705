"""The command line: parse, call, print. Nothing here loads torch before a command needs it."""

from __future__ import annotations

from rheostat.cli.app import main

__all__ = ["main"]
