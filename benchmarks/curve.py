"""What decides accuracy at small budgets: an ablation of orders, sampling, distillation and more, on validation rows.

    python benchmarks/curve.py --data ag_news=DATA/ag_news --seeds 0 1 [--only order block] [--rows 8000]

Resumable: every finished run is a line of results/curve.json, and an unfinished one goes on from its last steps. All
runs of a data set and seed share one dense model; each trains one pass over the same rows with its own recipe and is
read on rows that no run trains on: the validation rows, and training rows beyond the first --rows.
"""

from __future__ import annotations

import argparse
import copy
import fcntl
import json
import math
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import curve_variants as parts
import numpy as np
import results
import torch
import transformers
from curve_variants import GRID, Sampler, Variant

from rheostat.compare.readings import packed, unpacked
from rheostat.data import ReadOptions, length_buckets, read_corpus
from rheostat.demo_assets import fetch_minilm
from rheostat.evaluation import budget_logits
from rheostat.importance import Importance, gradient_importance
from rheostat.losses import task_losses
from rheostat.model import BudgetedModel, load, wrap
from rheostat.objectives import BudgetSampler, LossOptions, Objective
from rheostat.order import arrange
from rheostat.preparing import Prepared, load_encoder, prepare
from rheostat.quality import paired_bootstrap
from rheostat.recipe import TrainOptions
from rheostat.saving import load_config
from rheostat.training import StageOptions, train_stage

LENGTH, LOW, BATCH = 64, 0.1, 32
WARM_EPOCHS, WARM_RATE = 2.0, 1e-4
SOFT_EPOCHS, GATE_RATE, JOINT_RATE = 0.25, 5e-2, 5e-5
RESULTS = results.RESULTS / "curve.json"


class Bench:
    """One data set and seed: rows, and the dense model that all variants start from."""

    def __init__(self, name: str, folder: str, seed: int, arguments: Any) -> None:
        """Read and tokenize; train the dense model unless it is there."""
        rows, held_out = arguments.rows, arguments.held_out
        self.name, self.seed, self.precision = name, seed, arguments.precision
        self.work = arguments.work / f"{name}-{seed}-{rows}-{held_out}-{self.precision}"
        model_name = str(fetch_minilm())
        corpus = read_corpus(folder, ReadOptions(seed=seed))
        options = TrainOptions(max_length=LENGTH, seed=seed)
        transformers.set_seed(seed)
        self.rows: Prepared = prepare(corpus, model_name, load_config(model_name), options)
        order = np.random.default_rng(seed).permutation(len(self.rows.train))
        self.train = self.rows.train.select(np.sort(order[:rows]))
        extra = self.rows.train.select(np.sort(order[rows : rows + held_out]))
        self.validation = _joined(self.rows.validation, extra)
        self.labels = np.asarray(self.validation["labels"])
        self._dense(model_name)

    def _dense(self, model_name: str) -> None:
        folder = self.work / "dense"
        if not folder.is_dir():
            model = wrap(
                load_encoder(model_name, self.rows.info, head_is_trained=True),
                sequence_length=LENGTH,
                info=self.rows.info,
                tokenizer=self.rows.tokenizer,
            )
            stage = StageOptions(
                epochs=WARM_EPOCHS,
                learning_rate=WARM_RATE,
                batch_size=BATCH,
                seed=self.seed,
                precision=self.precision,
            )
            objective = Objective(model, "dense", LossOptions(distill_weight=0.0))
            sampler = BudgetSampler("dense", 1.0)
            train_stage(
                objective, self.train, self.rows.collator, sampler, stage, self.work / "dense-steps", "Warm start"
            )
            model.save_pretrained(folder)
            shutil.rmtree(self.work / "dense-steps", ignore_errors=True)
        self.dense: BudgetedModel = load(folder)
        self.train = self.train.add_column("teacher_logits", list(self._dense_logits("train", self.train)))
        self.dense_logits = self._dense_logits("validation", self.validation)
        self._importance: dict[str, Importance] = {}

    def logits(self, model: BudgetedModel, rows: Any, budget: float) -> np.ndarray:
        """Return logits (N, C), computed in the precision of the run."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.precision == "bf16"):
            return budget_logits(model, rows, self.rows.collator, budget)

    def _dense_logits(self, part: str, rows: Any) -> np.ndarray:
        """Return the dense model's logits (N, C), computed once."""
        path = self.work / f"{part}.npy"
        if not path.is_file():
            new = path.with_suffix(f".{os.getpid()}.npy")
            np.save(new, self.logits(self.dense, rows, 1.0))
            os.replace(new, path)
        return np.asarray(np.load(path, allow_pickle=False))

    def batches(self) -> Iterator[Any]:
        """Yield calibration rows."""
        chosen = np.random.default_rng(self.seed).permutation(len(self.train))[:512]
        picked = self.train.select(np.sort(chosen))
        for ids in length_buckets(picked["length"], 32):
            yield self.rows.collator(list(picked.select(ids)))

    def importance(self, how: str) -> Importance:
        """Return the scores of heads and neurons of the dense model."""
        if how not in self._importance:
            model = self.dense
            self._importance[how] = (
                parts.unit_importance(model, self.batches(), how)
                if how in ("fisher", "activation")
                else gradient_importance(
                    model.base,
                    model.spec,
                    model.shape,
                    self.batches(),
                    lambda output, batch: task_losses("single-label", output.logits, batch["labels"]),
                )
            )
        return self._importance[how]

    def start(self, variant: Variant) -> BudgetedModel:
        """Return a copy of the dense model in the order of a variant."""
        model = wrap(
            copy.deepcopy(self.dense.base),
            sequence_length=LENGTH,
            neuron_block=variant.block,
            min_heads_per_layer=variant.min_heads,
            min_neurons_per_layer=variant.block if variant.min_heads else 0,
            selection="top-k" if variant.selection == "top-k" else "nested",
            info=self.rows.info,
            tokenizer=self.rows.tokenizer,
        )
        importance = self.importance(variant.order)
        model.order_by_importance(importance, onset=parts.onset_rule(variant.order, self.seed))
        if variant.order == "stepwise":
            onset = parts.stepwise_onset(model, self.batches)
            model.rearrange(arrange(model.shape, model.costs, model.order.units, onset, minimum=model.minimum))
            model.project_gates()
        return model

    def run(self, variant: Variant, steps: Path) -> tuple[BudgetedModel, dict[str, Any]]:
        """Train a variant; return its model, and seconds and losses."""
        transformers.set_seed(self.seed)
        model, facts = self.start(variant), {}
        if variant.gates != "none":
            facts["gates"] = self._learn_gates(model, variant, steps / "gates")
        model.freeze_order()
        if variant.points != "none":
            model = self._with_points(model, variant)
        low = max(LOW, model.floor)
        sampler: Any = Sampler(variant.sampling, low, self.seed)
        weight = {"labels": 0.0, "only": 1.0}.get(variant.distill, 0.7)
        objective = Objective(model, "sandwich", LossOptions(distill_weight=weight))
        if variant.distill == "hidden":
            objective = parts.HiddenStates(model, "sandwich", LossOptions(), dense=copy.deepcopy(self.dense.base))
        stage = StageOptions(
            epochs=variant.epochs,
            learning_rate=variant.learning_rate,
            batch_size=BATCH,
            freeze_embeddings=True,
            dropout=variant.dropout,
            seed=self.seed,
            precision=variant.precision or self.precision,
        )
        facts["adapt"] = train_stage(
            objective, self.train, self.rows.collator, sampler, stage, steps / "adapt", "Adapt"
        )
        if isinstance(model, parts.MeanBack):  # the weights that the means went through have changed
            model.give_means(self.batches())
        return model, facts

    def _learn_gates(self, model: BudgetedModel, variant: Variant, steps: Path) -> dict[str, float]:
        if variant.gates == "annealed":
            gates = parts.AnnealedGates(len(model.order.units))
            gates.load_state_dict(model.gates.state_dict())
            model.gates = gates
        objective = _Annealing(model, "soft", LossOptions(), steps=math.ceil(len(self.train) / BATCH * SOFT_EPOCHS))
        sampler = BudgetSampler("soft", LOW, full_share=0.0, seed=self.seed)
        stage = StageOptions(
            epochs=SOFT_EPOCHS,
            learning_rate=JOINT_RATE if variant.gates == "joint" else 0.0,
            gate_learning_rate=GATE_RATE,
            batch_size=BATCH,
            freeze_embeddings=True,
            dropout=variant.dropout,
            seed=self.seed,
            precision=variant.precision or self.precision,
        )
        return train_stage(objective, self.train, self.rows.collator, sampler, stage, steps, "Gates")

    def _with_points(self, model: BudgetedModel, variant: Variant) -> BudgetedModel:
        kind = parts.OwnNorms if variant.points == "norms" else parts.MeanBack
        changed = kind(
            model.base,
            model.order,
            stored=model.stored,
            gates=model.gates,
            minimum=model.minimum,
            info=model.info,
            tokenizer=model.tokenizer,
        )
        return changed.give_points() if isinstance(changed, parts.OwnNorms) else changed.give_means(self.batches())

    def read(self, model: BudgetedModel) -> tuple[dict[str, dict[str, float]], np.ndarray]:
        """Return accuracy, loss and divergence from the dense model on held-out rows; and what was right, (K, N)."""
        points, right = {}, []
        teacher = _log_softmax(self.dense_logits)
        for budget in GRID:
            logits = _log_softmax(self.logits(model, self.validation, budget))
            correct = logits.argmax(1) == self.labels
            points[f"{budget:g}"] = {
                "accuracy": float(correct.mean() * 100),
                "loss": float(-logits[np.arange(len(logits)), self.labels].mean()),
                "divergence": float((np.exp(teacher) * (teacher - logits)).sum(1).mean()),
                "drop": float((self.dense_logits.argmax(1) == self.labels).mean() * 100 - correct.mean() * 100),
            }
            right.append(correct)
        return points, np.stack(right)


class _Annealing(Objective):
    """Sharpens annealed gates with every training batch; other gates are left as they are."""

    def __init__(self, *args: Any, steps: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._step, self._steps = 0, steps

    def forward(self, budgets: Any, **batch: Any) -> torch.Tensor:
        gates: Any = self.model.gates
        if isinstance(gates, parts.AnnealedGates):
            gates.sharpness = 10.0 ** (self._step / self._steps)
            self._step += 1
        return super().forward(budgets, **batch)


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    return torch.log_softmax(torch.from_numpy(logits).double(), dim=1).numpy()


def _joined(first: Any, second: Any) -> Any:
    import datasets

    return datasets.concatenate_datasets([first, second]) if len(second) else first


def record_of() -> dict[str, Any]:
    """Return what was measured so far."""
    return dict(json.loads(RESULTS.read_text("utf-8"))) if RESULTS.is_file() else {"runs": {}}


def add_run(key: str, run: dict[str, Any]) -> None:
    """Add one run to the results, and renew the summary; several processes may do so."""
    with RESULTS.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        runs = {**record_of()["runs"], key: run}
        results.save("curve", {"headline": summary(runs), "runs": runs})


def summary(runs: dict[str, Any]) -> dict[str, Any]:
    """Return by data set and variant the points gained on the reference over the grid, all seeds, with the interval."""
    groups: dict[tuple[str, str], list[str]] = {}
    for key in runs:
        data, seed, name = key.split(" | ")
        base = runs.get(f"{data} | {seed} | reference", {})
        if all(base.get(field) == runs[key][field] for field in ("rows", "read_on", "precision")):
            groups.setdefault((data, name), []).append(seed)
    table: dict[str, Any] = {}
    for (data, name), seeds in groups.items():
        own = [runs[f"{data} | {seed} | {name}"] for seed in seeds]
        base = [runs[f"{data} | {seed} | reference"] for seed in seeds]
        right = [[unpacked(run["right"], run["read_on"]) for run in group] for group in (own, base)]
        axis = 0 if len({run["read_on"] for run in own}) == 1 else 1  # other rows are laid end to end
        gain = paired_bootstrap(*(np.concatenate(group, axis=axis) for group in right))
        table.setdefault(data, {})[name] = {
            "gain": round(gain.value, 2),
            "low": round(gain.low, 2),
            "high": round(gain.high, 2),
            "drop": {b: round(float(np.mean([r["points"][b]["drop"] for r in own])), 2) for b in own[0]["points"]},
            "divergence": round(float(np.mean([r["mean_divergence"] for r in own])), 4),
            "seeds": len(seeds),
        }
    return table


def table_of(name: str, variants: dict[str, Any]) -> str:
    """Return the summary of a data set as Markdown, the best first."""
    head = ["variant", *(f"{b:g}" for b in GRID), "gain on the reference", "divergence", "seeds"]
    rows = [head, ["---", *["---:"] * (len(head) - 1)]]
    for variant, line in sorted(variants.items(), key=lambda item: -item[1]["gain"]):
        gain = "" if variant == "reference" else f"{line['gain']:+.2f} [{line['low']:+.2f}, {line['high']:+.2f}]"
        drops = [f"{line['drop'][f'{b:g}']:.2f}" for b in GRID]
        rows.append([variant, *drops, gain, f"{line['divergence']:.4f}", str(line["seeds"])])
    return "\n".join([f"### {name}", "", *("| " + " | ".join(row) + " |" for row in rows), ""])


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--rows", type=int, default=8000)
    parser.add_argument("--held-out", type=int, default=1000, help="training rows beyond --rows to read on as well")
    parser.add_argument("--only", nargs="+", help="variants to run: names, or beginnings of names")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help="of training and reading")
    parser.add_argument("--work", type=Path, default=Path("runs/curve"))
    parser.add_argument("--table", action="store_true", help="print what was measured so far as Markdown")
    arguments = parser.parse_args()
    if arguments.table:
        print("\n".join(table_of(name, found) for name, found in summary(record_of()["runs"]).items()))
        return
    known = parts.variants()
    chosen = {
        name: variant
        for name, variant in known.items()
        if not arguments.only or any(name == s or (s not in known and name.startswith(s)) for s in arguments.only)
    }
    for seed in arguments.seeds:
        for name, folder in (word.split("=", 1) for word in arguments.data):
            missing = [v for v in chosen if f"{name} | {seed} | {v}" not in record_of()["runs"]]
            if not missing:
                continue
            bench = Bench(name, folder, seed, arguments)
            for variant in missing:
                one(bench, variant, chosen[variant], arguments)


def one(bench: Bench, name: str, variant: Variant, arguments: Any) -> None:
    """Run, read and record one variant."""
    key = f"{bench.name} | {bench.seed} | {name}"
    steps = bench.work / "steps" / name.replace(" ", "-").replace(":", "").replace(",", "")
    started = time.perf_counter()
    model, facts = bench.run(variant, steps)
    points, right = bench.read(model)
    run = {
        "variant": asdict(variant),
        "rows": arguments.rows,
        "read_on": len(bench.labels),
        "precision": bench.precision,
        "points": points,
        "right": packed(right),
        "mean_accuracy": float(np.mean([p["accuracy"] for p in points.values()])),
        "mean_divergence": float(np.mean([p["divergence"] for p in points.values()])),
        "facts": facts,
        "seconds": time.perf_counter() - started,
    }
    add_run(key, run)
    print(key, {b: round(p["drop"], 2) for b, p in points.items()}, round(run["mean_divergence"], 4), flush=True)
    shutil.rmtree(steps)


if __name__ == "__main__":
    main()
