"""Token classification on AG News descriptions, labelled by a stated rule: entity F1 over budgets.

    python benchmarks/token_labels.py DATA/ag_news/train_descriptions.csv

Words are runs of letters and digits, and single other marks. The rule, first match first: AGENCY is Reuters, AP, AFP or
CP between brackets; TIME a weekday or month, with the number after it; MONEY a "$" with the number after it and a word
million, billion or trillion; NAME two or more words in a row that begin with a capital and go on in small letters, not
at the start of the row. MiniLM reads lower case, so it must know a name where the rule sees capitals. Rows are split by
chance into training, validation and test rows.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import re
from pathlib import Path
from typing import Any

import results

from rheostat.data import TOKEN_CLASSIFICATION, ReadOptions
from rheostat.demo_assets import fetch_minilm
from rheostat.entities import OUTSIDE, entities_of
from rheostat.pipeline import train
from rheostat.recipe import TrainOptions

WORD = re.compile(r"\w+|[^\w\s]")
AGENCIES = {"Reuters", "AP", "AFP", "CP"}
TIMES = {
    *("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday", "January", "February", "March"),
    *("April", "May", "June", "July", "August", "September", "October", "November", "December"),
}
SIZES = {"million", "billion", "trillion"}
NAME = re.compile(r"[A-Z][a-z]+")
SPLITS = {"train": 8000, "validation": 500, "test": 4000}


def spans_of(words: list[str]) -> list[tuple[str, int, int]]:
    """Return (kind, first word, word after the last) by the rule."""
    found, place = [], 0
    while place < len(words):
        kind, size = _match(words, place)
        if kind:
            found.append((kind, place, place + size))
        place += size
    return found


def _match(words: list[str], place: int) -> tuple[str, int]:
    """Return what begins at a word and how many words it has; no kind and one word where nothing does."""
    word, rest = words[place], words[place + 1 :]
    if word in AGENCIES and words[place - 1 : place] == ["("] and rest[:1] == [")"]:
        return "AGENCY", 1
    if word in TIMES:
        return "TIME", 1 + sum(1 for _ in rest[:1] if rest[0].isdigit())
    if word == "$" and rest and rest[0].isdigit():
        size = 2
        while words[place + size : place + size + 1] in (["."], [","]) and words[place + size + 1 : place + size + 2]:
            if not words[place + size + 1].isdigit():
                break
            size += 2
        return "MONEY", size + (words[place + size : place + size + 1] != [] and words[place + size] in SIZES)
    size = 0
    while (
        place and place + size < len(words) and NAME.fullmatch(words[place + size]) and words[place + size] not in TIMES
    ):
        size += 1
    return ("NAME", size) if size > 1 else ("", max(size, 1))


def labels_of(words: list[str]) -> list[str]:
    """Return the labels of words, IOB2."""
    labels = [OUTSIDE] * len(words)
    for kind, first, end in spans_of(words):
        labels[first:end] = [f"B-{kind}", *([f"I-{kind}"] * (end - first - 1))]
    return labels


def write_splits(source: Path, folder: Path, seed: int) -> dict[str, Any]:
    """Write JSON lines of words and labels; return how many rows, words and entities there are."""
    with source.open(encoding="utf-8", newline="") as stream:
        texts = sorted({row["text"] for row in csv.DictReader(stream)})
    random.Random(seed).shuffle(texts)
    folder.mkdir(parents=True, exist_ok=True)
    counts, start = {}, 0
    for split, size in SPLITS.items():
        rows = [WORD.findall(text) for text in texts[start : start + size]]
        start += size
        lines = [json.dumps({"text": words, "label": labels_of(words)}) for words in rows if words]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        entities = sum(len(entities_of(labels_of(words))) for words in rows)
        counts[split] = {"rows": len(lines), "words": sum(map(len, rows)), "entities": entities}
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="train_descriptions.csv of AG News")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help="of training")
    parser.add_argument("--read-precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--work", type=Path, default=Path("runs/token_labels"))
    arguments = parser.parse_args()
    data = arguments.work / "data"
    counts = write_splits(arguments.source, data, arguments.seed)
    options = TrainOptions(
        warm_epochs=2.0,
        learning_rate=1e-4,
        adapt_epochs=2.0,
        max_length=64,
        sequence_length=64,
        precision=arguments.precision,
        seed=arguments.seed,
    )
    result = train(
        str(fetch_minilm()),
        str(data),
        arguments.work / "checkpoint",
        options,
        read_options=ReadOptions(task=TOKEN_CLASSIFICATION, seed=arguments.seed),
        measure_latency=False,
        read_precision=arguments.read_precision,
    )
    lines = {
        f"{p.budget:g}": {
            "entity_f1": p.entity_f1,
            "word_accuracy": p.accuracy,
            "below_full": [p.drop_points, p.drop_low, p.drop_high],
        }
        for p in result.points
    }
    results.save("token_labels", {"headline": lines, "data": counts, "training": result.stages, "budgets": lines})


if __name__ == "__main__":
    main()
