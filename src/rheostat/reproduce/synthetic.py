"""The marked-token task: one symbol counts, the one after the mark; decoys and other symbols are in the way.

    s7 d2 s11 s3 d0 s29 m s14 s8 ...   ->   the class of s14

A model must tell the mark from the decoys, carry it one position on, and read a single position out of 63: without
attention a position does not know what stands before it, and counts of symbols say almost nothing. The generator was
fixed on dense and head-less models before any model with gates was trained.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

LENGTH = 63  # symbols a row; [CLS] makes 64
SYMBOLS, CLASSES, DECOYS = 32, 4, 4
DECOYS_A_ROW = 8
PARTS = {"train": 12_000, "validation": 1_000, "test": 4_000}


def write_rows(folder: Path, *, seed: int = 0, parts: dict[str, int] | None = None) -> Path:
    """Write train, validation and test CSV files; the same seed gives the same files."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (part, count) in enumerate((parts or PARTS).items()):
        rng = np.random.default_rng([seed, number])
        new = folder / f"{part}.csv.new"
        with new.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["text", "label"])
            writer.writerows(row(rng) for _ in range(count))
        new.replace(folder / f"{part}.csv")
    return folder


def row(rng: np.random.Generator) -> tuple[str, str]:
    """Return a text and its label."""
    words = [f"s{i}" for i in rng.integers(SYMBOLS, size=LENGTH)]
    # Marks stand at even places, so that each is followed by a symbol.
    places = 2 * rng.choice(LENGTH // 2, size=1 + DECOYS_A_ROW, replace=False)
    for place in places[1:]:
        words[place] = f"d{rng.integers(DECOYS)}"
    words[places[0]] = "m"
    return " ".join(words), f"c{int(words[places[0] + 1][1:]) % CLASSES}"
