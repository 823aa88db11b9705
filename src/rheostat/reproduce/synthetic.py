"""The marked-token task: among 63 symbols a few are marked, and the class that most marked ones belong to is the label.

    s7 d19 s11 m3 d0 s29 m14 s8 m7 ...   ->   the class of 3 and 7, say

Symbol i belongs to class i mod 4. Symbols marked by a decoy (d) belong to classes too and do not count, and there are
more of them; unmarked ones (s) are noise. Every symbol, decoy and marked symbol is a word of its own. Without attention
the classifier's position sees none of them. The generator was fixed on dense and head-less models before any model with
gates was trained.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

LENGTH = 63  # symbols a row; [CLS] makes 64
SYMBOLS, CLASSES = 32, 4
MARKED, DECOYS = 5, 10
PARTS = {"train": 8_000, "validation": 1_000, "test": 4_000}


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
    """Return a text and its label: three marked symbols of one class, and two of two others."""
    label, *others = rng.permutation(CLASSES)[:3]
    marked = [symbol_of(rng, c) for c in (label, label, label, *others)]
    words = [f"s{i}" for i in rng.integers(SYMBOLS, size=LENGTH)]
    places = rng.choice(LENGTH, size=MARKED + DECOYS, replace=False)
    for place, symbol in zip(places, marked, strict=False):
        words[place] = f"m{symbol}"
    for place in places[MARKED:]:
        words[place] = f"d{rng.integers(SYMBOLS)}"
    return " ".join(words), f"c{label}"


def symbol_of(rng: np.random.Generator, label: int) -> int:
    """Return a random symbol of a class."""
    return int(label + CLASSES * rng.integers(SYMBOLS // CLASSES))
