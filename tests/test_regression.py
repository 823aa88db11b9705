"""Regression: numbers as labels, from a file to predictions at a budget, a bundle and the command line."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from random_models import make_inputs, make_model
from scipy.stats import spearmanr
from tiny import FILLERS, tiny_config, tiny_folder, tiny_tokenizer, write_csv
from transformers import BertModel
from typer.testing import CliRunner

import rheostat
from rheostat import CheckpointError, OptionError
from rheostat.checkpoint import CheckpointInfo
from rheostat.cli.app import app
from rheostat.compare import compare
from rheostat.losses import budget_loss
from rheostat.model import BudgetedModel
from rheostat.pipeline import train
from rheostat.recipe import TrainOptions
from rheostat.scoring.regressions import regression_quality


def rows_of(count: int, seed: int) -> list[tuple[str, str]]:
    """Texts whose target is the share of good words among them."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        words = [rng.choice(["great", "awful", *FILLERS[:2]]) for _ in range(8)]
        rows.append((" ".join(words), f"{(words.count('great') - words.count('awful')) / 4:.2f}"))
    return rows


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Any]:
    """(checkpoint, data folder, what train returned)."""
    folder = tmp_path_factory.mktemp("regression")
    for name, count, seed in (("train", 240, 1), ("validation", 40, 2), ("test", 60, 3)):
        write_csv(folder / "data" / f"{name}.csv", rows_of(count, seed))
    BertModel(tiny_config(hidden_size=32, intermediate_size=64)).save_pretrained(folder / "encoder")
    tiny_tokenizer(folder / "words").save_pretrained(folder / "encoder")
    options = TrainOptions(
        warm_epochs=10, learning_rate=3e-3, soft_epochs=0.5, adapt_epochs=4, adapt_learning_rate=2e-3, neuron_block=8,
        budgets=(1.0, 0.5), batch_size=16, min_budget=0.2,
    )  # fmt: skip
    result = train(str(folder / "encoder"), str(folder / "data"), folder / "out", options, measure_latency=False)
    return folder / "out", folder / "data", result


def test_training_learns_numbers_at_every_budget(trained: tuple[Path, Path, Any]) -> None:
    folder, _, result = trained
    full, half = result.points
    assert full.spearman > 0.95
    assert half.spearman > 0.85
    assert 0.0 <= full.mse < 0.05
    assert half.drop_low <= half.drop_points <= half.drop_high
    assert result.conditions() == {"Spearman on": "test rows"}
    assert "spearman" in result.soft[0]
    info = rheostat.load(folder).info
    assert info.task == "regression"
    assert info.labels == ()
    assert info.temperatures == ()
    assert "| budget | Spearman | MSE |" in (folder / "README.md").read_text(encoding="utf-8")


def test_predictions_are_the_numbers(trained: tuple[Path, Path, Any]) -> None:
    model: BudgetedModel = rheostat.load(trained[0])
    texts = [text for text, _ in rows_of(20, 5)]
    found = model.predict(texts, budget=0.5)
    assert all(p.label is None and p.probabilities == {} for p in found)
    small = model.materialize(0.5)
    assert [p.score for p in small.predict(texts)] == pytest.approx([p.score for p in found], abs=1e-5)
    assert model.base.config.problem_type == "regression"
    assert model.base.config.num_labels == 1


def test_the_quality_is_that_of_scipy() -> None:
    rng = np.random.default_rng(0)
    targets, full = rng.normal(size=80), rng.normal(size=80)
    numbers = targets + rng.normal(size=80)
    found = regression_quality(0.5, numbers, full, targets)
    assert found.spearman == pytest.approx(spearmanr(numbers, targets).statistic)
    assert found.mse == pytest.approx(np.mean((numbers - targets) ** 2))
    assert found.drop_points == pytest.approx(100 * (spearmanr(full, targets).statistic - found.spearman))
    assert found.drop_low < found.drop_points < found.drop_high
    same = regression_quality(1.0, full, full, targets)
    assert (same.drop_low, same.drop_points, same.drop_high) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("family", ["bert", "deberta-v2"])
def test_whole_numbers_are_amounts(family: str) -> None:
    base = make_model(family, num_labels=1)  # transformers takes whole numbers for classes
    model = rheostat.wrap(base, neuron_block=8, info=CheckpointInfo("regression"))
    batch = make_inputs()
    targets = torch.arange(len(batch["input_ids"]))
    loss = budget_loss(model, {**batch, "labels": targets}, budgets=(1.0,))
    assert loss.item() == pytest.approx(((base(**batch).logits[:, 0] - targets.float()) ** 2).mean().item(), rel=1e-5)
    loss.backward()


def test_commands_take_regressions(trained: tuple[Path, Path, Any], tmp_path: Path) -> None:
    folder, data, result = trained
    done = CliRunner().invoke(
        app, ["evaluate", str(folder), "--data", str(data / "test.csv"), "--budgets", "1.0,0.5", "--json"]
    )
    assert done.exit_code == 0, done.output
    points = json.loads(done.stdout)["points"]
    assert [p["spearman"] for p in points] == pytest.approx([p.spearman for p in reversed(result.points)], abs=1e-6)
    said = CliRunner().invoke(app, ["predict", str(folder), "great great", "--max-drop", "90"])
    assert said.exit_code == 0, said.output
    assert "points below full" in said.stderr
    with pytest.raises(OptionError, match="task must be single-label or multi-label to compare; got regression"):
        compare(str(folder.parent / "encoder"), str(data), tmp_path / "compare")


def test_a_head_of_another_size_is_refused(trained: tuple[Path, Path, Any], tmp_path: Path) -> None:
    model = tiny_folder(tmp_path / "classifier")
    with pytest.raises(CheckpointError, match="must have a classifier for the 1 labels of the data"):
        train(str(model), str(trained[1]), tmp_path / "out")


def test_a_spread_that_does_not_fit_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = [(text, str(1000 * float(number) + 0.5)) for text, number in rows_of(60, 1)]
    write_csv(tmp_path / "train.csv", rows)
    BertModel(tiny_config()).save_pretrained(tmp_path / "encoder")
    tiny_tokenizer(tmp_path / "words").save_pretrained(tmp_path / "encoder")
    options = TrainOptions(warm_epochs=0.5, adapt="none", neuron_block=8, budgets=(1.0,))
    train(str(tmp_path / "encoder"), str(tmp_path / "train.csv"), tmp_path / "out", options, measure_latency=False)
    assert "scale them to about 1" in " ".join(capfd.readouterr().err.split())


@pytest.mark.slow
def test_a_bundle_gives_the_same_numbers(trained: tuple[Path, Path, Any], tmp_path: Path) -> None:
    from rheostat.export import export

    model: BudgetedModel = rheostat.load(trained[0])
    export(model, tmp_path / "bundle", budgets=(1.0, 0.5))
    bundle = rheostat.open_bundle(tmp_path / "bundle")
    texts = [text for text, _ in rows_of(8, 5)]
    ours, theirs = bundle.predict(texts, budget=0.5), model.predict(texts, budget=0.5)
    assert [p.score for p in ours] == pytest.approx([p.score for p in theirs], abs=1e-4)
