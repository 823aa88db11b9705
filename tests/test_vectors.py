"""Embedding models: sentence-transformers folders in and out, pooling, distillation, vectors at a budget, bundles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tiny import FILLERS, labelled_rows, tiny_config, tiny_tokenizer
from typer.testing import CliRunner

import rheostat
from rheostat import CheckpointError, OptionError, UnsupportedModelError
from rheostat.answers import pooled
from rheostat.checkpoint import CheckpointInfo
from rheostat.cli.app import app
from rheostat.losses import budget_loss, distillation_loss, mixed_loss, sensitivity_losses
from rheostat.model import BudgetedModel
from rheostat.pipeline import train
from rheostat.recipe import TrainOptions
from rheostat.scoring.vectors import similarity
from rheostat.sentences import Pooling, read_pooling, write_pooling

TEXTS = ["word1 great word2", "awful", "word3 word4 word5 word6 word7"]


def save_encoder(folder: Path, *, pooling: Pooling | None = None) -> Path:
    torch.manual_seed(0)
    model = transformers.BertModel(tiny_config(hidden_size=32, intermediate_size=64, num_hidden_layers=3))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_((0.2 if name.endswith("weight") else 0.1) * torch.randn_like(parameter))
    model.save_pretrained(folder)
    tiny_tokenizer(folder.parent / f"{folder.name}-words").save_pretrained(folder)
    if pooling is not None:
        write_pooling(folder, pooling, 32, 16)
    return folder


def write_texts(path: Path, count: int, seed: int) -> Path:
    rows = [text for text, _ in labelled_rows(count, seed=seed)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Any]:
    """(checkpoint, folder it was trained from, what train returned)."""
    folder = tmp_path_factory.mktemp("vectors")
    for name, count, seed in (("train", 160, 1), ("validation", 30, 2), ("test", 30, 3)):
        write_texts(folder / "data" / f"{name}.jsonl", count, seed)
    encoder = save_encoder(folder / "encoder", pooling=Pooling(library={"prompts": {}}))
    options = TrainOptions(
        adapt_epochs=6, adapt_learning_rate=2e-3, neuron_block=8, budgets=(1.0, 0.5), batch_size=16, min_budget=0.2
    )
    result = train(
        str(encoder),
        str(folder / "data"),
        folder / "out",
        options,
        read_options=rheostat.data.ReadOptions(task="embedding"),
        measure_latency=False,
    )
    return folder / "out", encoder, result


# --- folders -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["mean", "cls", "max", "lasttoken"])
@pytest.mark.parametrize("normalizes", [True, False])
def test_folders_come_back_as_they_were_written(tmp_path: Path, mode: str, normalizes: bool) -> None:
    pooling = Pooling(mode, normalizes, "query: ", 16, {"prompts": {"q": "query: "}, "default_prompt_name": "q"})
    write_pooling(tmp_path, pooling, 32, 16)
    assert read_pooling(tmp_path) == pooling


def test_other_folders_are_the_normalized_mean(tmp_path: Path) -> None:
    assert read_pooling(tmp_path) == Pooling("mean", True)


@pytest.mark.parametrize(
    ("change", "told", "error"),
    [
        (("modules.json", [{"path": str(i), "type": f"a.{kind}"} for i, kind in enumerate(("Transformer", "Dense"))]),
         "got Transformer, Dense", UnsupportedModelError),
        (("1_Pooling/config.json", {"pooling_mode": "weightedmean"}), r"got \['weightedmean'\]", UnsupportedModelError),
        (("1_Pooling/config.json", {"pooling_mode": ["mean", "cls"]}), "must be one of mean", UnsupportedModelError),
        (("modules.json", [{"path": "0_T", "type": "a.Transformer"}, {"path": "1_Pooling", "type": "a.Pooling"}]),
         "must lie in .* itself", CheckpointError),
    ],
)  # fmt: skip
def test_folders_that_do_something_else_are_refused(tmp_path: Path, change: Any, told: str, error: Any) -> None:
    write_pooling(tmp_path, Pooling(), 32, 16)
    (tmp_path / change[0]).write_text(json.dumps(change[1]), encoding="utf-8")
    with pytest.raises(error, match=told):
        read_pooling(tmp_path)


def test_damaged_folders_are_named(tmp_path: Path) -> None:
    write_pooling(tmp_path, Pooling(), 32, 16)
    (tmp_path / "1_Pooling" / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(CheckpointError, match="must be readable JSON"):
        read_pooling(tmp_path)


def test_the_library_says_the_same(trained: tuple[Path, Path, Any]) -> None:
    library = pytest.importorskip("sentence_transformers")
    folder, encoder, _ = trained
    original = library.SentenceTransformer(str(encoder), device="cpu")
    ours = rheostat.load(folder)
    again = library.SentenceTransformer(str(folder), device="cpu")
    assert again.max_seq_length == original.max_seq_length == 16
    assert np.abs(again.encode(TEXTS) - ours.encode(TEXTS)).max() < 1e-5
    untrained = rheostat.wrap(
        transformers.AutoModel.from_pretrained(encoder),
        info=CheckpointInfo("embedding", pooling=read_pooling(encoder), max_length=16),
        tokenizer=transformers.AutoTokenizer.from_pretrained(encoder),
    )
    assert np.abs(original.encode(TEXTS) - untrained.encode(TEXTS)).max() < 1e-5


# --- pooling and loss --------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["left", "right"])
def test_pooling_leaves_padding_out(side: str) -> None:
    torch.manual_seed(0)
    tokens = torch.randn(2, 3, 4)
    padded, mask = torch.randn(2, 6, 4), torch.zeros(2, 6, dtype=torch.int64)
    place = slice(0, 3) if side == "right" else slice(3, 6)
    padded[:, place], mask[:, place] = tokens, 1
    for name, expected in (
        ("mean", tokens.mean(1)), ("cls", tokens[:, 0]), ("max", tokens.amax(1)), ("lasttoken", tokens[:, -1]),
    ):  # fmt: skip
        assert torch.allclose(pooled(padded, mask, Pooling(name, False)), expected, atol=1e-6), name
        length = pooled(padded, mask, Pooling(name, True)).norm(dim=-1)
        assert torch.allclose(length, torch.ones(2), atol=1e-6)


def test_the_loss_is_one_minus_the_cosine() -> None:
    first, second = torch.tensor([[1.0, 0.0], [3.0, 0.0]]), torch.tensor([[1.0, 1.0], [0.0, 2.0]])
    assert distillation_loss(first, second, task="embedding").item() == pytest.approx(1 - 0.5 * 2**-0.5)
    assert distillation_loss(first, 7 * first, task="embedding").item() == pytest.approx(0.0, abs=1e-7)
    with pytest.raises(OptionError, match="teacher_logits must be the full model's vectors"):
        mixed_loss(first, {}, task="embedding")


def test_importance_without_labels_is_how_far_vectors_move() -> None:
    gate = torch.ones(4000, 1, requires_grad=True)
    direction = torch.tensor([3.0, 4.0])
    losses = sensitivity_losses(gate * direction)
    (gradient,) = torch.autograd.grad(losses.sum(), gate)
    assert gradient.abs().mean().item() == pytest.approx((2 / np.pi) ** 0.5 * 5.0, rel=0.05)


def test_budget_loss_takes_vectors() -> None:
    torch.manual_seed(0)
    base = transformers.BertModel(tiny_config()).eval()
    model = rheostat.wrap(base, neuron_block=8, info=CheckpointInfo("embedding"))
    batch = {"input_ids": torch.randint(5, 15, (3, 6)), "attention_mask": torch.ones(3, 6, dtype=torch.int64)}
    with torch.no_grad():
        teacher = pooled(model(**batch).last_hidden_state, batch["attention_mask"], Pooling())
    full = budget_loss(model, batch, budgets=(1.0,), teacher_logits=teacher)
    half = budget_loss(model, batch, budgets=(0.5,), teacher_logits=teacher)
    assert full.item() == pytest.approx(0.0, abs=1e-6)
    assert half.item() > full.item()
    half.backward()
    assert model.base.encoder.layer[0].attention.self.query.weight.grad.abs().sum() > 0


def test_similarity_is_the_mean_cosine() -> None:
    full = np.array([[1.0, 0.0], [0.0, 2.0]], np.float32)
    found = similarity(0.5, np.array([[2.0, 0.0], [1.0, 1.0]], np.float32), full)
    assert found.cosine == pytest.approx((1 + 0.5**0.5) / 2)
    assert found.cosine_p5 < found.cosine
    assert found.headline == found.cosine


# --- from folder to bundle ---------------------------------------------------------------------------------


def test_distillation_brings_vectors_back(trained: tuple[Path, Path, Any], tmp_path: Path) -> None:
    folder, encoder, result = trained
    full, half = result.points
    assert full.cosine > 0.98
    plain = train(
        str(encoder),
        str(encoder.parent / "data"),
        tmp_path / "plain",
        TrainOptions(adapt="none", neuron_block=8, budgets=(1.0, 0.5)),
        read_options=rheostat.data.ReadOptions(task="embedding"),
        measure_latency=False,
    )
    assert plain.points[0].cosine == pytest.approx(1.0, abs=1e-5)
    assert half.cosine > plain.points[1].cosine + 0.02
    assert result.stages["warm"]["epochs"] == 0.0
    assert result.conditions() == {"cosine on": "test rows"}
    assert "| budget | cosine to the full model |" in (folder / "README.md").read_text(encoding="utf-8")


def test_encode_gives_vectors_at_a_budget(trained: tuple[Path, Path, Any]) -> None:
    model: BudgetedModel = rheostat.load(trained[0])
    one, half = model.encode(TEXTS), model.encode(TEXTS, budget=0.5)
    assert one.shape == half.shape == (3, 32)
    assert np.allclose(np.linalg.norm(half, axis=1), 1.0, atol=1e-5)
    assert np.abs(one - half).max() > 1e-3
    assert np.abs(model.encode(TEXTS, batch_size=1, budget=0.5) - half).max() < 1e-5
    small = model.materialize(0.5)
    assert np.abs(small.encode(TEXTS) - half).max() < 1e-5
    assert model.encode([]).shape == (0, 32)
    with pytest.raises(OptionError, match="a model of task embedding has none"):
        model.predict(TEXTS)


def test_materialized_folders_load_with_ours(trained: tuple[Path, Path, Any], tmp_path: Path) -> None:
    model: BudgetedModel = rheostat.load(trained[0])
    model.materialize(0.5).save_pretrained(tmp_path / "small")
    again = rheostat.load(tmp_path / "small")
    assert np.abs(again.encode(TEXTS) - model.encode(TEXTS, budget=0.5)).max() < 1e-5


def test_a_default_prompt_goes_before_every_text(tmp_path: Path) -> None:
    told = {"prompts": {"q": f"{FILLERS[0]} "}, "default_prompt_name": "q"}
    encoder = save_encoder(tmp_path / "encoder", pooling=Pooling(prompt=f"{FILLERS[0]} ", library=told))
    prompted = read_pooling(encoder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(encoder)
    with_prompt, without = (
        rheostat.wrap(
            transformers.AutoModel.from_pretrained(encoder),
            info=CheckpointInfo("embedding", pooling=p, max_length=16),
            tokenizer=tokenizer,
        )
        for p in (prompted, Pooling())
    )
    assert np.allclose(with_prompt.encode(["great"]), without.encode([f"{FILLERS[0]} great"]), atol=1e-6)
    assert not np.allclose(with_prompt.encode(["great"]), without.encode(["great"]), atol=1e-3)


def test_commands_take_embedding_models(trained: tuple[Path, Path, Any], tmp_path: Path) -> None:
    folder, encoder, _ = trained
    test = encoder.parent / "data" / "test.jsonl"
    done = CliRunner().invoke(app, ["evaluate", str(folder), "--data", str(test), "--budgets", "1.0,0.5"])
    assert done.exit_code == 0, done.output
    assert "cosine to full" in done.stdout
    out = tmp_path / "vectors.npy"
    said = CliRunner().invoke(app, ["encode", str(folder), str(out), *TEXTS, "--budget", "0.5"])
    assert said.exit_code == 0, said.output
    assert said.stdout.strip().endswith("3 vectors of 32")
    assert np.abs(np.load(out) - rheostat.load(folder).encode(TEXTS, budget=0.5)).max() < 1e-6
    near = CliRunner().invoke(app, ["encode", str(folder), str(out), "great", "--max-drop", "90"])
    assert "a cosine of" in near.stderr
    wrong = CliRunner().invoke(app, ["encode", str(folder), str(tmp_path), "great"])
    assert "out must be a file in a folder that is there" in wrong.output.replace("\n", " ")
    refused = CliRunner().invoke(
        app,
        ["train", "--model", str(encoder), "--data", str(test), "--out", str(tmp_path / "x"), "--task", "embedding",
         "--distill-weight", "0"],
    )  # fmt: skip
    assert "distill_weight must be above 0 for embedding" in refused.output.replace("\n", " ")


@pytest.mark.slow
def test_a_bundle_gives_the_same_vectors(trained: tuple[Path, Path, Any], tmp_path: Path) -> None:
    from rheostat.export import export

    model: BudgetedModel = rheostat.load(trained[0])
    export(model, tmp_path / "bundle", budgets=(1.0, 0.5))
    bundle = rheostat.open_bundle(tmp_path / "bundle")
    assert np.abs(bundle.encode(TEXTS, budget=0.5) - model.encode(TEXTS, budget=0.5)).max() < 1e-4
    with pytest.raises(OptionError, match="Call encode"):
        bundle.predict(TEXTS)
    from rheostat.serve.service import Service
    from rheostat.serve.settings import ServeSettings

    with pytest.raises(OptionError, match="to be served; it is of embedding"):
        Service(ServeSettings(str(tmp_path / "bundle")))
