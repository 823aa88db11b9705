"""Where every benchmark leaves its result: JSON with the command, the conditions and the environment."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rheostat.measure import environment

RESULTS = Path(__file__).parent / "results"


def _shown(word: str) -> str:
    """Return an argument without the folders of a machine: ``a=/b/c`` is ``a=c``."""
    name, equals, path = word.rpartition("=")
    return f"{name}{equals}{Path(path).name}" if "/" in path else word


def save(name: str, content: dict[str, Any]) -> Path:
    """Write ``results/NAME.json`` and print its headline."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    command = " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *map(_shown, sys.argv[1:])])
    record = {"command": command, "environment": environment(), **content}
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(content.get("headline", {}), indent=1))
    return path
