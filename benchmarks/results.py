"""Where every benchmark leaves its result: JSON with the command, the conditions and the environment."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

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


def packed(right: np.ndarray) -> str:
    """Return which rows are right, (K, N) for K models or points, as text."""
    return base64.b64encode(np.packbits(right, axis=1).tobytes()).decode("ascii")


def unpacked(text: str, rows: int) -> np.ndarray:
    """Return what :func:`packed` wrote, (K, N)."""
    bits = np.frombuffer(base64.b64decode(text), dtype=np.uint8).reshape(-1, (rows + 7) // 8)
    return np.unpackbits(bits, axis=1, count=rows)
