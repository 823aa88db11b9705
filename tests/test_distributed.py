"""Two processes with torchrun and gloo: equal parameters after every step, one writer, the same result on both."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny import labelled_rows, tiny_folder, weights, write_csv

import rheostat

HERE = Path(__file__).parent

STEPS = """
import sys
sys.path.insert(0, {here!r})
import torch
torch.set_num_threads(1)
from pathlib import Path
from dataclasses import replace
from test_training import SHORT, StopAt, collate, model_of, rows
from transformers import TrainerCallback
from rheostat import training
from rheostat.objectives import BudgetSampler, Objective

folder = Path(sys.argv[1])
checks = []


class Layers(BudgetSampler):
    # whole layers off in one step and on in the next
    def __call__(self, step, part=0):
        found = super().__call__(step, part)
        return (0.05, 0.08) if self.stage == "sandwich" and step % 2 == 0 else found


class Compare(TrainerCallback):
    def on_step_end(self, args, state, control, model=None, **kwargs):
        flat = torch.cat([p.detach().flatten() for p in model.parameters()])
        both = [torch.empty_like(flat) for _ in range(2)]
        torch.distributed.all_gather(both, flat)
        checks.append(bool(torch.equal(both[0], both[1])))


class Spied(training.StageTrainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.add_callback(Compare())

    def compute_loss(self, model, inputs, *args, **kwargs):
        mine = torch.tensor(self.sampler(self.state.global_step), dtype=torch.float64)
        both = [torch.empty_like(mine) for _ in range(2)]
        torch.distributed.all_gather(both, mine)
        ids = inputs["input_ids"].flatten()[:8].clone()
        others = [torch.empty_like(ids) for _ in range(2)]
        torch.distributed.all_gather(others, ids)
        assert torch.equal(both[0], both[1]), "budgets differ"
        assert not torch.equal(others[0], others[1]), "both ranks train the same rows"
        return super().compute_loss(model, inputs, *args, **kwargs)


training.StageTrainer = Spied
for stage in ("soft", "sandwich"):
    checks.clear()
    model = model_of()
    start = {{n: p.clone() for n, p in model.named_parameters()}}
    options = replace(SHORT, gate_learning_rate=0.1, learning_rate=0.0 if stage == "soft" else 1e-3, save_every=2)
    sampler = Layers(stage, 0.05, full_share=0.0)
    training.train_stage(Objective(model, stage), rows(), collate, sampler, options, folder / stage, "Test")
    assert len(checks) == 3 and all(checks), checks
    moved = [n for n, p in model.named_parameters() if not torch.equal(p, start[n])]
    assert moved and all(n.startswith("gates") == (stage == "soft") for n in moved), moved
rank = torch.distributed.get_rank()
(folder / f"equal-{{rank}}").touch()


class StopOneRank(Spied):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if rank == 1:
            self.add_callback(StopAt(2))


training.StageTrainer = StopOneRank
try:
    training.train_stage(Objective(model, stage), rows(), collate, sampler, options, folder / "stopped", "Test")
except training.Interrupted as stopped:
    assert "step 2" in str(stopped)
    (folder / f"stopped-{{rank}}").touch()
"""


def torchrun(*command: str) -> subprocess.CompletedProcess[str]:
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run([*start, *command], capture_output=True, text=True, timeout=300)


def test_parameters_are_equal_after_every_step_and_ctrl_c_stops_all_ranks_together(tmp_path: Path) -> None:  # C26
    script = tmp_path / "steps.py"
    script.write_text(STEPS.format(here=str(HERE)), encoding="utf-8")
    done = torchrun(str(script), str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    assert sorted(path.name for path in tmp_path.glob("equal-*")) == ["equal-0", "equal-1"]
    assert sorted(path.name for path in tmp_path.glob("stopped-*")) == ["stopped-0", "stopped-1"]


@pytest.mark.slow
def test_the_whole_command_writes_and_prints_once(tmp_path: Path) -> None:
    model = tiny_folder(tmp_path / "model")
    data = write_csv(tmp_path / "train.csv", labelled_rows(48))
    quick = "--warm-epochs 1 --soft-epochs 0.5 --adapt-epochs 0.5 --batch-size 4 --neuron-block 8 --budgets 1.0,0.5"
    out = tmp_path / "out"
    command = ["-m", "rheostat", "train", "--model", str(model), "--data", str(data), "--out", str(out)]
    done = torchrun(*command, *quick.split(), "--no-measure", "--adapt", "straight-through", "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    printed = json.loads(done.stdout)  # one document, not two
    assert [point["budget"] for point in printed["points"]] == [0.5, 1.0]
    assert done.stderr.count("Checkpoint:") == 1
    assert done.stderr.count("classes: 2") == 1
    assert not (tmp_path / "out.partial").exists()
    loaded = rheostat.load(out)
    assert printed["stages"]["warm"]["steps"] == 6  # 43 rows, 4 a rank and step
    assert all(torch.isfinite(tensor).all() for tensor in weights(loaded).values())
    assert loaded.predict(["great word1"], budget=0.5)[0].label in ("bad", "good")
