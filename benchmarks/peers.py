"""What other tools make of the same fine-tuned model at 2x and 4x, against one checkpoint of ours at equal latency.

    pip install torch-pruning
    python benchmarks/peers.py ag_news=DATA/ag_news [--seed 0] [--max-length 64] [--precision bf16]

All start from the dense model of the run and train on for the same epochs, rows, rate and distillation: Torch-Pruning,
the first layers, LayerDrop (one model for all its points). Beside them the dense model in ONNX Runtime, float32 and
int8, and TF-IDF with logistic regression. Latency: one interleaved run in PyTorch, one in ONNX Runtime; for each peer
our budget is the largest that is as fast by the certificate. Accuracy on the test rows, paired intervals. Resumable.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import peers_models as peers
import results
import transformers
from latency_cost import budget_at, certified
from safetensors.torch import load_file, save_file

from rheostat.bundle import open_bundle
from rheostat.certify import Conditions, Fit
from rheostat.compare import Comparison
from rheostat.data import ReadOptions, length_buckets, read_corpus
from rheostat.demo_assets import fetch_minilm
from rheostat.evaluation import budget_logits, collect_logits
from rheostat.export import export
from rheostat.measure import measure
from rheostat.model import BudgetedModel, load
from rheostat.preparing import Prepared, prepare
from rheostat.quality import paired_bootstrap
from rheostat.recipe import TrainOptions
from rheostat.saving import load_config
from rheostat.timing import random_inputs, run_once
from rheostat.training import StageOptions

RESULTS = results.RESULTS / "peers.json"
ROUNDS = 15
SHARES = {"2x": 0.5, "4x": 0.25}


class Run:
    """One data set and seed: the dense model, ours, the rows, and what peers have answered so far."""

    def __init__(self, arguments: Any) -> None:
        name, folder = arguments.data.split("=", 1)
        self.name, self.seed, self.folder = name, arguments.seed, folder
        self.options = TrainOptions(
            max_length=arguments.max_length,
            sequence_length=arguments.max_length,
            max_train_rows=arguments.max_train_rows,
            precision=arguments.precision,
            seed=arguments.seed,
        )
        self.work = arguments.work / name / f"peers-{arguments.seed}"
        self.comparison = Comparison(
            str(fetch_minilm()), folder, arguments.work / name, self.options, ReadOptions(seed=arguments.seed)
        )
        budgets = tuple(SHARES.values())
        found, answers = self.comparison.outcomes(("dense", "linear", "sandwich"), budgets, (self.seed,))
        self.outcomes, self.labels = found, answers[self.seed].labels
        own = self.comparison.out / f"seed-{self.seed}"
        self.ours: BudgetedModel = load(own / "sandwich")
        self.dense: BudgetedModel = load(own / "dense")
        self.work.mkdir(parents=True, exist_ok=True)
        corpus = read_corpus(folder, ReadOptions(seed=self.seed))
        model_name = str(fetch_minilm())
        self.rows: Prepared = prepare(corpus, model_name, load_config(model_name), self.options)
        self.read = self.rows.test if self.rows.test is not None else self.rows.validation

    def teacher_rows(self) -> Any:
        """Return the training rows with the dense model's logits, computed once."""
        path = self.work / "teacher.npy"
        if not path.is_file():
            np.save(path, budget_logits(self.dense, self.rows.train, self.rows.collator, 1.0, title="Teacher"))
        return self.rows.train.add_column("teacher_logits", list(np.load(path, allow_pickle=False)))

    def batches(self) -> Any:
        """Yield calibration rows, as many as ours ranks units on."""
        chosen = np.random.default_rng(self.seed).permutation(len(self.rows.train))[: self.options.calibration_rows]
        picked = self.rows.train.select(np.sort(chosen))
        for ids in length_buckets(picked["length"], 32):
            yield self.rows.collator(list(picked.select(ids)))

    def trained(self, name: str, model: Any, *, drop: float = 0.0) -> Any:
        """Return a peer after its epochs; what is finished is kept."""
        path = self.work / f"{name}.safetensors"
        objective = peers.Distilled(model, drop=drop, seed=self.seed)
        if path.is_file():
            model.load_state_dict(load_file(path))
            return model.eval()
        options = self.options
        stage = StageOptions(
            epochs=options.adapt_epochs,
            learning_rate=options.adapt_learning_rate,
            batch_size=options.batch_size,
            weight_decay=options.weight_decay,
            save_every=10**9 if drop else options.save_every,  # a step of LayerDrop holds some of the layers only
            seed=self.seed,
            precision=options.precision,
        )
        transformers.set_seed(self.seed)
        layers = list(model.base_model.encoder.layer)
        peers.train_on(objective, self.teacher_rows(), self.rows.collator, stage, self.work / f"{name}-steps", name)
        peers.set_layers(model, layers)
        save_file(model.state_dict(), path)
        return model.eval()

    def models(self) -> dict[str, Any]:
        """Return the trained peers by name: physically smaller Hugging Face models."""
        base, count = self.dense.base.eval(), len(self.dense.shape.layers)
        found = {}
        for label, share in SHARES.items():
            kept = list(range(max(1, round(count * share))))
            found[f"first {len(kept)} layers"] = self.trained(f"layers-{len(kept)}", peers.fewer_layers(base, kept))
            pruned = peers.torch_pruned(base, self.batches, share)
            found[f"Torch-Pruning {label}"] = self.trained(f"torch-pruning-{label}", pruned)
        whole = self.trained("layerdrop", peers.fewer_layers(base, range(count)), drop=peers.DROP_RATE)
        for share in SHARES.values():
            kept = peers.spread(count, max(1, round(count * share)))
            found[f"LayerDrop {len(kept)} layers"] = peers.fewer_layers(whole, kept)
        return found

    def right(self, logits: np.ndarray) -> np.ndarray:
        """Return which rows are right, (N,)."""
        return np.asarray(logits.argmax(1) == self.labels)


def torch_table(run: Run, models: dict[str, Any], fit: Fit, conditions: Conditions) -> list[dict[str, Any]]:
    """Return a line a peer: its accuracy and speed, ours at the same latency, and the paired difference."""
    inputs = random_inputs(run.ours, conditions.batch, conditions.length)
    calls = {"dense": partial(run_once, run.dense.base.eval(), inputs)}
    calls |= {name: partial(run_once, model, inputs) for name, model in models.items()}
    first = measure(calls, baseline="dense", conditions=vars(conditions), rounds=7, threads=conditions.threads)
    budgets = {name: budget_at(run.ours, fit, first[name].speedup) for name in models}
    smaller = {f"ours for {name}": run.ours.materialize(budget).eval() for name, budget in budgets.items()}
    calls |= {name: partial(run_once, model, inputs) for name, model in smaller.items()}
    table = measure(calls, baseline="dense", conditions=vars(conditions), rounds=ROUNDS, threads=conditions.threads)
    lines = []
    for name, model in models.items():
        device = run.ours.device
        theirs = run.right(collect_logits(model, run.read, run.rows.collator, device=device, title=name))
        ours = run.right(budget_logits(run.ours, run.read, run.rows.collator, budgets[name]))
        gain = paired_bootstrap(ours, theirs)
        own, other = table[f"ours for {name}"], table[name]
        lines.append(
            {
                "peer": name,
                "accuracy": float(theirs.mean() * 100),
                "speedup": [other.speedup, other.speedup_low, other.speedup_high],
                "parameters": sum(p.numel() for p in model.parameters()),
                "our budget": budgets[name],
                "our accuracy": float(ours.mean() * 100),
                "our speedup": [own.speedup, own.speedup_low, own.speedup_high],
                "ours less theirs, points": [gain.value, gain.low, gain.high],
            }
        )
    return lines


def onnx_table(run: Run, conditions: Conditions) -> list[dict[str, Any]]:
    """Return the dense model and ours in ONNX Runtime, float32 and int8."""
    own = run.comparison.out / f"seed-{run.seed}"
    validation = Path(run.folder) / "validation.csv"
    lines, calls, sessions = [], {}, {}
    for name, budgets in (("dense", (1.0,)), ("sandwich", (1.0, 0.5, 0.25))):
        folder = run.work / f"bundle-{name}"
        if not folder.is_dir():
            rows = next(iter(sorted(validation.parent.glob("validation.*"))), None)
            export(own / name, folder, budgets=budgets, int8=True, force=True, validate=str(rows) if rows else None)
        for precision in ("float32", "int8"):
            bundle = open_bundle(folder, precision=precision)
            for budget in bundle.budgets:
                key = f"{'dense' if name == 'dense' else f'ours {budget:g}'}, {precision}"
                ids = np.ones((conditions.batch, conditions.length), dtype=np.int64)
                calls[key] = partial(bundle.run, {"input_ids": ids}, budget=budget)
                sessions[key] = (bundle, budget)
    table = measure(calls, baseline="dense, float32", conditions=vars(conditions), rounds=ROUNDS)
    for key, (bundle, budget) in sessions.items():
        logits = np.concatenate(
            [
                bundle.run({n: np.asarray(t) for n, t in batch.items() if n in bundle.info.inputs}, budget=budget)
                for batch in (run.rows.collator(list(run.read.select(ids))) for ids in _slices(len(run.read), 64))
            ]
        )
        row = table[key]
        lines.append(
            {
                "graph": key,
                "accuracy": float(run.right(logits).mean() * 100),
                "speedup": [row.speedup, row.speedup_low, row.speedup_high],
            }
        )
    return lines


def _slices(count: int, size: int) -> list[range]:
    return [range(i, min(i + size, count)) for i in range(0, count, size)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", metavar="NAME=FOLDER")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-length", type=int, default=64)
    parser.add_argument("--max-train-rows", type=int)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help="of training; read in float32")
    parser.add_argument("--work", type=Path, default=Path("runs/peers"))
    arguments = parser.parse_args()
    run = Run(arguments)
    conditions = Conditions(arguments.batch, arguments.max_length)
    models = run.models()
    fit = certified(run.comparison.out / f"seed-{run.seed}" / "sandwich", conditions)
    single = {
        o.method: float(run.right(o.logits).mean() * 100) for o in run.outcomes if o.method in ("dense", "linear")
    }
    record = {
        "rows_read": len(run.labels),
        "accuracy": single,
        "peers": torch_table(run, models, fit, conditions),
        "onnx": onnx_table(run, conditions),
        "files": {"ours": 1, "Torch-Pruning": 2, "first layers": 2, "LayerDrop": 1},
    }
    runs = json.loads(RESULTS.read_text("utf-8"))["runs"] if RESULTS.is_file() else {}
    runs[f"{run.name}, seed {run.seed}"] = record
    headline = {
        key: {line["peer"]: line["ours less theirs, points"][0] for line in found["peers"]}
        for key, found in runs.items()
    }
    results.save("peers", {"headline": headline, "runs": runs})


if __name__ == "__main__":
    main()
