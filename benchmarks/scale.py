"""Measured against ideal speedup of larger shapes: BERT-base and BERT-large with random weights, equal shares a layer.

    python benchmarks/scale.py [--shapes base large] [--threads 1 2] [--lengths 32 128 512] [--rounds 7]

Ideal: multiply-accumulates of the full model over those of the subnet, at the length that is timed. Resumable.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import results
import torch
from transformers import BertConfig, BertForSequenceClassification

from rheostat.model import BudgetedModel, wrap
from rheostat.timing import time_budgets

RESULTS = results.RESULTS / "scale.json"
BUDGETS = (0.5, 0.25)
SHAPES = {
    "base": {"num_hidden_layers": 12, "num_attention_heads": 12, "hidden_size": 768, "intermediate_size": 3072},
    "large": {"num_hidden_layers": 24, "num_attention_heads": 16, "hidden_size": 1024, "intermediate_size": 4096},
}


def model_of(shape: str, length: int) -> BudgetedModel:
    """Return a random model whose budgets are shares of the MACs at ``length`` tokens."""
    torch.manual_seed(0)
    return wrap(BertForSequenceClassification(BertConfig(**SHAPES[shape])).eval(), sequence_length=length)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--lengths", nargs="+", type=int, default=[32, 128, 512])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    runs: dict[str, Any] = json.loads(RESULTS.read_text("utf-8"))["runs"] if RESULTS.is_file() else {}
    for shape in arguments.shapes:
        for length in arguments.lengths:
            model = model_of(shape, length)
            full = model.costs.total(model.subnet(1.0))
            for threads in arguments.threads:
                key = f"{shape}, batch {arguments.batch}, {length} tokens, {threads} thread(s)"
                if key in runs:
                    continue
                table = time_budgets(
                    model, BUDGETS, batch=arguments.batch, length=length, threads=threads, rounds=arguments.rounds
                )
                points = {}
                for budget in BUDGETS:
                    row, ideal = table[str(budget)], full / model.costs.total(model.subnet(budget))
                    points[f"{budget:g}"] = {
                        "speedup": row.speedup,
                        "low": row.speedup_low,
                        "high": row.speedup_high,
                        "ideal": ideal,
                        "of ideal": row.speedup / ideal,
                        "verdict": row.verdict,
                    }
                runs[key] = {
                    "full_ms": table["1.0"].latency_ms_p50,
                    "noise": [table.noise_low, table.noise_high],
                    "points": points,
                }
                headline = {
                    name: {
                        b: f"{p['speedup']:.2f}x, {100 * p['of ideal']:.0f} % of ideal" for b, p in r["points"].items()
                    }
                    for name, r in runs.items()
                }
                results.save("scale", {"headline": headline, "runs": runs})


if __name__ == "__main__":
    main()
