"""MiniLM-L6 as an embedding model, distilled on AG News texts: cosine to the full model, and neighbours, over budgets.

    python benchmarks/embeddings.py DATA/ag_news

No label is read in training. On test texts: the mean cosine to the vectors of the model as it came, and the accuracy of
the topic that the 10 nearest of the training texts vote for, both sides encoded at the budget, against the model as it
came. To reach at 0.5: a mean cosine of 0.97, and at most 0.5 points fewer neighbours' votes that are right.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import results
from numpy.typing import NDArray

from rheostat.budget import DEFAULT_BUDGETS
from rheostat.data import EMBEDDING, ReadOptions, read_corpus
from rheostat.demo_assets import fetch_minilm
from rheostat.model import BudgetedModel, load
from rheostat.pipeline import train
from rheostat.quality import paired_bootstrap
from rheostat.recipe import TrainOptions
from rheostat.scoring.vectors import similarity
from rheostat.training import autocast

NEIGHBOURS = 10
Vectors = NDArray[np.float32]


def right_votes(index: Vectors, labels: NDArray[Any], queries: Vectors, wanted: NDArray[Any]) -> NDArray[np.bool_]:
    """Return for which queries (Q, E) the label that most of their nearest in the index (N, E) have is the wanted one.

    Of labels with as many votes the one whose voters are nearer in all wins.
    """
    names = np.unique(labels)
    found = []
    for start in range(0, len(queries), 500):
        cosines = queries[start : start + 500] @ index.T  # (500, N)
        nearest = np.argpartition(-cosines, NEIGHBOURS, axis=1)[:, :NEIGHBOURS]
        near = np.take_along_axis(cosines, nearest, axis=1)
        votes = np.stack([((labels[nearest] == name) * (1.0 + 1e-3 * near)).sum(axis=1) for name in names], axis=1)
        found.append(names[votes.argmax(axis=1)])
    return np.asarray(np.concatenate(found) == wanted)


def vectors_of(model: BudgetedModel, texts: list[str], budget: float, precision: str) -> Vectors:
    """Return the vectors of texts at a budget."""
    with autocast(precision, model.device):
        return model.encode(texts, budget=budget, batch_size=64)


def trained(data: str, work: Path, arguments: argparse.Namespace, *, epochs: float) -> BudgetedModel:
    """Return the model distilled for some epochs, or with 0 only ordered; trained where it is not there yet."""
    out = work / (f"epochs-{epochs:g}" if epochs else "ordered")
    if not out.is_dir():
        options = TrainOptions(
            adapt="sandwich" if epochs else "none",
            adapt_epochs=epochs,
            max_length=64,
            sequence_length=64,
            max_train_rows=arguments.rows,
            max_validation_rows=500,
            precision=arguments.precision,
            seed=arguments.seed,
        )
        read = ReadOptions(task=EMBEDDING, seed=arguments.seed)
        train(str(fetch_minilm()), data, out, options, read_options=read, measure_latency=False, reads_test=False)
    model: BudgetedModel = load(out)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="AG News: a folder with train.csv and test.csv")
    parser.add_argument("--rows", type=int, default=8000, help="texts to distil on")
    parser.add_argument("--index", type=int, default=10_000, help="training texts among which neighbours are found")
    parser.add_argument("--epochs", type=float, default=4.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help="of distillation")
    parser.add_argument("--read-precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--work", type=Path, default=Path("runs/embeddings"))
    arguments = parser.parse_args()
    plain = trained(arguments.data, arguments.work, arguments, epochs=0)
    model = trained(arguments.data, arguments.work, arguments, epochs=arguments.epochs)
    corpus = read_corpus(arguments.data, ReadOptions(seed=arguments.seed))
    index, test = corpus.train.select(range(min(arguments.index, len(corpus.train)))), corpus.test
    texts, queries = list(index["text"]), list(test["text"])
    labels, wanted = np.asarray(index["label"]), np.asarray(test["label"])
    precision = arguments.read_precision
    full = vectors_of(plain, queries, 1.0, precision)  # in another order only: the model as it came
    best = right_votes(vectors_of(plain, texts, 1.0, precision), labels, full, wanted)
    lines: dict[str, Any] = {}
    for budget in DEFAULT_BUDGETS:
        found = vectors_of(model, queries, budget, precision)
        right = right_votes(vectors_of(model, texts, budget, precision), labels, found, wanted)
        gap = paired_bootstrap(best, right)
        near = similarity(budget, found, full)
        ordered = similarity(budget, vectors_of(plain, queries, budget, precision), full)
        lines[f"{budget:g}"] = {
            "cosine": round(near.cosine, 4),
            "cosine_p5": round(near.cosine_p5, 4),
            "cosine_of_the_order_alone": round(ordered.cosine, 4),
            "votes_right": float(right.mean()),
            "votes_below_full": [round(value, 2) for value in (gap.value, gap.low, gap.high)],
        }
        print(budget, json.dumps(lines[f"{budget:g}"]), flush=True)
    told = {name: value for name, value in vars(arguments).items() if name not in ("data", "work")}
    content = {
        "conditions": {**told, "queries": len(queries), "neighbours": NEIGHBOURS, "max_length": 64},
        "full_votes_right": float(best.mean()),
        "training": model.info.training["stages"],
        "budgets": lines,
    }
    results.save("embeddings", {"headline": lines, **content})


if __name__ == "__main__":
    main()
