"""Folders: exact round trips, atomic writes, named damage, nothing unpickled, nothing half-loaded."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from random_models import FAMILIES, LABELS, make_inputs, make_model, odd_subnets
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, BertForSequenceClassification

import rheostat
from rheostat import BudgetedModel, CheckpointError, UnexpectedArgumentError
from rheostat.checkpoint import (
    FORMAT_VERSION,
    MANIFEST,
    CheckpointInfo,
    existing_folder,
    is_checkpoint,
    read_manifest,
    replacing_folder,
    write_manifest,
)
from rheostat.saving import load_config

EVALUATION = ({"budget": 1.0, "accuracy": 0.9, "macro_f1": 0.85, "rows": 120},)
INFO = CheckpointInfo("single-label", LABELS, 16, (0.1, 1.0), EVALUATION, {"seed": 3})


def budgeted(family: str = "bert", *, tokenizer: Any = None, trained: bool = True, **options: Any) -> BudgetedModel:
    model = rheostat.wrap(
        make_model(family), neuron_block=8, sequence_length=9, info=INFO, tokenizer=tokenizer, **options
    )
    if trained:
        with torch.no_grad():
            model.gates.offset.copy_(torch.randn(len(model.order.units), generator=torch.Generator().manual_seed(0)))
        model.freeze_order()
    return model


def answers(model: Any, **options: Any) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(**make_inputs(), **options).logits
    return logits


def damage(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    record = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    (folder / MANIFEST).write_text(json.dumps(change(record) or record), encoding="utf-8")


def rewrite(path: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    """Change the tensors of a safetensors file and keep the manifest's sizes true."""
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})
    damage(path.parent, lambda r: r["files_bytes"].update({path.name: path.stat().st_size}))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    budgeted().save_pretrained(folder / "budgeted")
    model = budgeted()
    model.materialize(subnet=odd_subnets(model.shape)["neither in one layer"]).save_pretrained(folder / "materialized")
    return folder


@pytest.fixture(params=["budgeted", "materialized"])
def folder(request: pytest.FixtureRequest, saved: Path, tmp_path: Path) -> Path:
    """A fresh copy of either kind of checkpoint."""
    return Path(shutil.copytree(saved / request.param, tmp_path / request.param))


# -- round trips -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_budgeted_round_trip_is_exact(family: str, dtype: torch.dtype, tokenizer: Any, tmp_path: Path) -> None:
    model = budgeted(family, tokenizer=tokenizer, selection="top-k" if family == "electra" else "nested")
    for parameter in model.base.parameters():  # not the buffers: rotary frequencies stay float32, as they are loaded
        parameter.data = parameter.data.to(dtype)
    model.save_pretrained(tmp_path / "out")
    loaded = rheostat.load(tmp_path / "out")
    assert not loaded.training
    assert next(loaded.base.parameters()).dtype == dtype
    assert not any(parameter.data_ptr() % 64 for parameter in loaded.base.parameters())
    for budget in (1.0, 0.5, model.floor):
        for form in ("sliced", "soft"):
            assert torch.equal(answers(model, budget=budget, form=form), answers(loaded, budget=budget, form=form))
    for name in ("order", "stored", "selection", "minimum", "info"):
        assert getattr(loaded, name) == getattr(model, name), name
    assert loaded.predict(["oil prices fall"], budget=0.5) == model.predict(["oil prices fall"], budget=0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_materialized_round_trip_is_exact(dtype: torch.dtype, tokenizer: Any, tmp_path: Path) -> None:  # C18, C22
    model = budgeted(tokenizer=tokenizer)
    model.base.to(dtype)
    small = model.materialize(0.5)
    small.save_pretrained(tmp_path / "out")
    loaded = rheostat.load(tmp_path / "out")
    assert loaded.dtype == dtype
    assert torch.equal(answers(small), answers(loaded))
    assert loaded.rheostat == small.rheostat
    assert loaded.predict(["oil"]) == small.predict(["oil"])
    assert loaded.rheostat.share <= loaded.rheostat.budget == 0.5
    assert isinstance(loaded, BertForSequenceClassification)
    # and once more, from what was loaded
    loaded.save_pretrained(tmp_path / "again")
    assert torch.equal(answers(small), answers(rheostat.load(tmp_path / "again")))


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    from transformers import BertForMaskedLM

    model = rheostat.wrap(make_model(cls=BertForMaskedLM), neuron_block=8)
    small = model.materialize(0.6)
    small.save_pretrained(tmp_path / "out")
    loaded = rheostat.load(tmp_path / "out")
    assert torch.equal(answers(small), answers(loaded))
    assert loaded.cls.predictions.decoder.weight is loaded.bert.embeddings.word_embeddings.weight
    model.save_pretrained(tmp_path / "whole")
    assert torch.equal(answers(model, budget=0.6), answers(rheostat.load(tmp_path / "whole"), budget=0.6))


def test_manifest_says_what_the_design_says(saved: Path) -> None:
    whole = json.loads((saved / "budgeted" / MANIFEST).read_text(encoding="utf-8"))
    assert whole["format_version"] == FORMAT_VERSION
    assert whole["library_version"] == rheostat.__version__
    assert (whole["kind"], whole["model_type"]) == ("budgeted", "bert")
    assert whole["order"]["costs"]["sequence_length"] == 9
    assert whole["info"]["labels"] == list(LABELS)
    small = json.loads((saved / "materialized" / MANIFEST).read_text(encoding="utf-8"))
    assert [len(ids) for ids in small["kept"]["heads"]] == [3, 0, 2]
    # base config unchanged: sizes a layer are in the manifest alone (C21)
    config = json.loads((saved / "materialized" / "config.json").read_text(encoding="utf-8"))
    assert (config["num_attention_heads"], config["intermediate_size"]) == (3, 40)


def test_kept_ids_are_those_of_the_original_model() -> None:
    model = budgeted()
    small = model.materialize(0.5)
    original = make_model()
    for layer, ids in enumerate(small.rheostat.kept.neurons):
        mine = small.bert.encoder.layer[layer].intermediate
        if len(ids):
            assert torch.equal(
                mine.dense.weight, original.bert.encoder.layer[layer].intermediate.dense.weight[list(ids)]
            )


def test_saving_changes_nothing_in_memory(tmp_path: Path) -> None:
    model = budgeted()
    config, before = model.config.to_dict(), answers(model, budget=0.5)
    small = model.materialize(0.5)
    model.save_pretrained(tmp_path / "a")
    small.save_pretrained(tmp_path / "b")
    assert {k: v for k, v in model.config.to_dict().items() if k not in ("architectures", "dtype")} == {
        k: v for k, v in config.items() if k not in ("architectures", "dtype")
    }
    assert torch.equal(before, answers(model, budget=0.5))


def test_info_round_trips_through_json() -> None:
    for info in (CheckpointInfo(), INFO):
        assert CheckpointInfo.from_json(json.loads(json.dumps(info.to_json()))) == info


# -- plain loaders -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("subnet", ["uneven", "neither in one layer", "no attention in one layer", "everything"])
def test_the_plain_loader_fails_loudly(subnet: str, tmp_path: Path) -> None:  # C18, C19
    model = budgeted()
    model.materialize(subnet=odd_subnets(model.shape)[subnet]).save_pretrained(tmp_path / "out")
    for options in ({}, {"ignore_mismatched_sizes": True}):
        with pytest.raises(OSError, match=r"no file named model\.safetensors"):
            AutoModelForSequenceClassification.from_pretrained(tmp_path / "out", **options)


def test_the_plain_loader_reads_the_base_of_a_budgeted_checkpoint(saved: Path) -> None:
    plain = AutoModelForSequenceClassification.from_pretrained(saved / "budgeted")
    assert torch.equal(answers(plain), answers(rheostat.load(saved / "budgeted")))


# -- damage ------------------------------------------------------------------------------------------------------------


def refused(folder: Path, message: str) -> str:
    with pytest.raises(CheckpointError, match=message) as caught:
        rheostat.load(folder)
    return str(caught.value)


def test_every_file_that_is_missing_or_cut_short_is_named(folder: Path, tmp_path: Path) -> None:
    names = [path.name for path in folder.iterdir() if path.name not in (MANIFEST, "README.md")]
    assert any(name.endswith(".safetensors") for name in names)
    for name in names:
        for how in ("missing", "short"):
            broken = Path(shutil.copytree(folder, tmp_path / f"{name}-{how}"))
            if how == "missing":
                (broken / name).unlink()
            else:
                (broken / name).write_bytes((folder / name).read_bytes()[:-7])
            assert name in refused(broken, "is missing" if how == "missing" else "cut short")


def test_weights_cut_short_are_named_even_if_the_sizes_agree(folder: Path) -> None:
    for path in sorted(folder.glob("*.safetensors")):
        whole = path.read_bytes()
        for content in (whole[:-64], whole[:20], b"", b"\xff" * len(whole)):
            path.write_bytes(content)
            damage(folder, lambda r, p=path: r["files_bytes"].update({p.name: p.stat().st_size}))  # type: ignore[misc]
            refused(folder, "safetensors|complete checkpoint")
        path.write_bytes(whole)
        damage(folder, lambda r, p=path: r["files_bytes"].update({p.name: p.stat().st_size}))  # type: ignore[misc]
    rheostat.load(folder)


@pytest.mark.parametrize("version", [FORMAT_VERSION + 1, 99, 0, -1, "1", 1.0, None, True])
def test_other_format_versions(folder: Path, version: Any) -> None:
    damage(folder, lambda r: r.update(format_version=version, library_version="9.9"))
    assert "9.9" in refused(folder, "format_version")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '"x"', '{"format_version": 1}', "\udcff"])
def test_manifests_that_are_none(folder: Path, text: str) -> None:
    (folder / MANIFEST).write_bytes(text.encode("utf-8", "surrogateescape"))
    refused(folder, MANIFEST)


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r.pop("kind") and r,
        lambda r: r.update(kind="half"),
        lambda r: r.update(files_bytes=None),
        lambda r: r.update(info=None),
        lambda r: r.update(info={}),
        lambda r: r.update(model_class="os"),
        lambda r: r.update(model_class="NoSuchModel"),
        lambda r: r.pop("model_class") and r,
    ],
)
def test_manifests_with_something_missing_or_wrong(folder: Path, change: Any) -> None:
    damage(folder, change)
    refused(folder, ".")


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r["order"].update(required=10_000),
        lambda r: r["order"]["units"].pop() and r,
        lambda r: r["order"]["units"].append([7, "head", 1]),
        lambda r: r["order"]["units"].append([0, "wing", 1]),
        lambda r: r["order"]["shape"].update(head_dim=4),
        lambda r: r["order"]["shape"]["intermediate_size"].pop() and r,
        lambda r: r["stored"]["heads"][0].__setitem__(0, 7),
        lambda r: r["stored"]["neurons"][1].reverse() or (r["stored"]["neurons"][1].pop() and r),
        lambda r: r.update(minimum={"wings": 1}),
        lambda r: r.update(selection="best"),
    ],
)
def test_budgeted_manifests_that_do_not_fit(saved: Path, tmp_path: Path, change: Any) -> None:
    folder = Path(shutil.copytree(saved / "budgeted", tmp_path / "x"))
    damage(folder, change)
    refused(folder, ".")


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r["kept"]["heads"][0].append(1),
        lambda r: r["kept"]["heads"][0].__setitem__(0, 3),  # C11: the model never had it
        lambda r: r["kept"]["neurons"][0].__setitem__(0, 0.5),
        lambda r: r["shape"]["num_attention_heads"].__setitem__(0, 2),
        lambda r: r["full_shape"]["num_attention_heads"].pop() and r,
        lambda r: r.update(dtype="complex9"),
        lambda r: r.update(tied={"a": "b"}),
    ],
)
def test_materialized_manifests_that_do_not_fit(saved: Path, tmp_path: Path, change: Any) -> None:
    folder = Path(shutil.copytree(saved / "materialized", tmp_path / "x"))
    damage(folder, change)
    refused(folder, ".")


BIAS = "bert.encoder.layer.0.output.dense.bias"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t: t.pop(BIAS), BIAS),
        (lambda t: t.update({BIAS: torch.zeros(5)}), BIAS),
        (lambda t: t.update({"bert.surplus": torch.zeros(5)}), "bert.surplus"),
        (lambda t: t.pop("classifier.weight"), "classifier.weight"),
    ],
)
def test_tensors_missing_mismatched_or_extra_are_named(folder: Path, change: Any, named: str) -> None:  # C19
    weights = next(p for p in folder.glob("*.safetensors") if p.name != "gates.safetensors")
    rewrite(weights, change)
    assert named in refused(folder, ".")


def test_gates_missing_or_mismatched_are_named(saved: Path, tmp_path: Path) -> None:
    for i, change in enumerate((lambda t: t.pop("offset"), lambda t: t.update(offset=torch.zeros(2)))):
        folder = Path(shutil.copytree(saved / "budgeted", tmp_path / str(i)))
        rewrite(folder / "gates.safetensors", change)
        assert "offset" in refused(folder, ".")


def test_pruned_heads_in_a_config_are_refused(folder: Path) -> None:  # C20
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**config, "pruned_heads": {"0": [1]}}), encoding="utf-8")
    damage(folder, lambda r: r["files_bytes"].update({"config.json": path.stat().st_size}))
    refused(folder, "pruned_heads")
    with pytest.raises(rheostat.UnsupportedModelError, match="pruned_heads"):
        load_config(str(folder))


class Bomb:
    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["BOMB_FOLDER"],)


def test_nothing_is_ever_unpickled(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOMB_FOLDER", str(tmp_path / "exploded"))
    for path in [p for p in folder.glob("*.safetensors") if p.name != "gates.safetensors"]:
        path.unlink()
        damage(folder, lambda r, p=path: r["files_bytes"].pop(p.name) and r)  # type: ignore[misc]
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    refused(folder, "safetensors")
    # not even a harmless one
    torch.save(make_model().state_dict(), folder / "pytorch_model.bin")
    refused(folder, "safetensors")
    assert not (tmp_path / "exploded").exists()


def test_remote_code_in_a_tokenizer_is_not_run(tokenizer: Any, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    budgeted(tokenizer=tokenizer).save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    (folder / "evil.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'exploded')!r})\n", encoding="utf-8")
    config = json.loads(path.read_text(encoding="utf-8"))
    config.update(tokenizer_class="Evil", auto_map={"AutoTokenizer": [None, "evil.Evil"]})
    path.write_text(json.dumps(config), encoding="utf-8")
    damage(folder, lambda r: r["files_bytes"].update({path.name: path.stat().st_size}))
    with contextlib.suppress(CheckpointError):
        rheostat.load(folder)
    assert not (tmp_path / "exploded").exists()


# -- atomic writes -----------------------------------------------------------------------------------------------------


def test_an_error_at_any_step_leaves_the_old_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, model = tmp_path / "out", budgeted()
    model.save_pretrained(target)
    before = answers(model, budget=0.5)
    files = {p.name: p.read_bytes() for p in target.iterdir()}
    other = budgeted(trained=False)
    for where in (
        "rheostat.saving.save_file",
        "rheostat.saving.write_manifest",
        "rheostat.checkpoint._flush_to_disk",
        "transformers.modeling_utils.PreTrainedModel.save_pretrained",
        "huggingface_hub.ModelCard.save",
    ):

        def fail(*args: Any, **kwargs: Any) -> None:
            raise OSError("disk full")

        with monkeypatch.context() as patch:
            patch.setattr(where, fail)
            with pytest.raises(OSError, match="disk full"):
                other.save_pretrained(target)
        assert {p.name: p.read_bytes() for p in target.iterdir()} == files, where
        assert [p.name for p in tmp_path.iterdir()] == ["out"], where
    assert torch.equal(before, answers(rheostat.load(target), budget=0.5))


@pytest.mark.parametrize("step", ["aside", "new"])
def test_a_crash_between_the_two_moves_leaves_the_old_folder(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, model = tmp_path / "out", budgeted()
    model.save_pretrained(target)
    real = os.replace

    def crash(source: Any, destination: Any) -> None:
        if (Path(destination).name == "out") == (step == "new"):
            raise KeyboardInterrupt
        real(source, destination)

    with monkeypatch.context() as patch:
        patch.setattr("rheostat.checkpoint.os.replace", crash)
        with pytest.raises(KeyboardInterrupt):
            budgeted(trained=False).save_pretrained(target)
    assert target.exists() == (step == "aside")
    for _ in range(2):  # reading heals nothing that another process may be writing, and may be done again
        assert torch.equal(answers(model, budget=0.5), answers(rheostat.load(target), budget=0.5))
    other = budgeted(trained=False)
    other.save_pretrained(target)
    assert torch.equal(answers(other, budget=0.5), answers(rheostat.load(target), budget=0.5))
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


KILLED = """
import os, signal, sys
from pathlib import Path
from rheostat import checkpoint
target, step = Path(sys.argv[1]), int(sys.argv[2])
calls = 0
def traced(name):
    real = getattr(os, name)
    def call(*args, **kwargs):
        global calls
        if calls == step:
            os.kill(os.getpid(), signal.SIGKILL)
        calls += 1
        return real(*args, **kwargs)
    setattr(os, name, call)
traced("replace"); traced("fsync"); traced("open")
with checkpoint.replacing_folder(target) as folder:
    (folder / "a.bin").write_bytes(b"new" * 1000)
    if step < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    (folder / "b.bin").write_bytes(b"new" * 1000)
    checkpoint.write_manifest(folder, {"content": "new"})
"""


@pytest.mark.parametrize("step", [-1, 0, 1, 2, 3, 4, 5, 50])
def test_a_killed_writer_leaves_old_or_new(step: int, tmp_path: Path) -> None:
    target = tmp_path / "out"
    with replacing_folder(target) as folder:
        (folder / "a.bin").write_bytes(b"old")
        write_manifest(folder, {"content": "old"})
    run = subprocess.run([sys.executable, "-c", KILLED, str(target), str(step)], check=False, capture_output=True)
    finished = run.returncode == 0
    assert finished or run.returncode == -signal.SIGKILL, run.stderr
    manifest = read_manifest(existing_folder(target))
    assert manifest["content"] in ("old", "new")
    if finished or step < 0:
        assert manifest["content"] == ("new" if finished else "old")
    if step == 50:
        assert finished


@pytest.mark.parametrize("what", ["file", "folder"])
def test_something_else_is_never_overwritten(what: str, tmp_path: Path) -> None:
    target = tmp_path / "thesis"
    if what == "file":
        target.write_text("years of work", encoding="utf-8")
    else:
        target.mkdir()
        (target / "chapter.txt").write_text("years of work", encoding="utf-8")
    model = budgeted()
    for saver in (model, model.materialize(0.5)):
        with pytest.raises(CheckpointError, match="must be a new folder, an empty one or a rheostat checkpoint"):
            saver.save_pretrained(target)
    assert (target if what == "file" else target / "chapter.txt").read_text(encoding="utf-8") == "years of work"


def test_empty_new_linked_and_current_folders_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = budgeted().materialize(0.5)
    (tmp_path / "empty").mkdir()
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "here").mkdir()
    for name in ("empty", "a/b/c", "link", "link"):
        small.save_pretrained(tmp_path / name)
        assert is_checkpoint(tmp_path / name)
        assert torch.equal(answers(small), answers(rheostat.load(tmp_path / name)))
    assert (tmp_path / "link").is_symlink()
    monkeypatch.chdir(tmp_path / "here")
    small.save_pretrained(".")
    assert is_checkpoint(tmp_path / "here")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "empty", "here", "link", "real"]


# -- names and the Hub -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["no/such-folder", "nonsense", "./nonsense", "/no/such/folder", "a/b/c", "~x", "a b", ""]
)
def test_names_of_nothing_are_one_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(CheckpointError) as caught:
        rheostat.load(name)
    assert "\n" not in str(caught.value)
    assert Path(name).name in str(caught.value)


def test_folders_that_are_no_checkpoint(tmp_path: Path) -> None:
    make_model().save_pretrained(tmp_path / "plain")
    refused(tmp_path / "plain", "not a rheostat checkpoint")
    (tmp_path / "file").write_text("x", encoding="utf-8")
    refused(tmp_path / "file", "must be a folder")
    assert not is_checkpoint(tmp_path / "plain")
    with pytest.raises(CheckpointError, match="Hugging Face model"):
        load_config(str(tmp_path / "nothing"))


def test_options_that_nobody_reads_are_refused(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(UnexpectedArgumentError, match="device"):
        rheostat.load(saved / "budgeted", device="cuda")
    with pytest.raises(UnexpectedArgumentError, match="max_size"):
        budgeted().save_pretrained(tmp_path / "a", max_size=1)
    with pytest.raises(UnexpectedArgumentError, match="push_to_hub"):
        budgeted().materialize(0.5).save_pretrained(tmp_path / "b", push_to_hub=True)
    assert list(tmp_path.iterdir()) == []


def test_the_mixin_loads_budgeted_folders(saved: Path) -> None:
    loaded = BudgetedModel.from_pretrained(saved / "budgeted")
    assert torch.equal(answers(loaded, budget=0.5), answers(rheostat.load(saved / "budgeted"), budget=0.5))
    with pytest.raises(CheckpointError, match=r"Use rheostat\.load"):
        BudgetedModel.from_pretrained(saved / "materialized")


@pytest.mark.parametrize("through", ["push_to_hub", "save_pretrained"])
def test_push_to_hub_uploads_a_folder_that_loads(through: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = budgeted()
    pushed: dict[str, Any] = {}

    class FakeApi:
        def __init__(self, token: str | None = None) -> None:
            pushed["token"] = token

        def create_repo(self, repo_id: str, **options: Any) -> Any:
            pushed.update(options)
            return type("Url", (), {"repo_id": f"me/{repo_id.rpartition('/')[2]}"})

        def upload_folder(self, *, folder_path: Path, **options: Any) -> str:
            pushed["files"] = Path(shutil.copytree(folder_path, tmp_path / "remote"))
            return f"https://hub/{options['repo_id']}"

    monkeypatch.setattr("huggingface_hub.hub_mixin.HfApi", FakeApi)
    if through == "push_to_hub":
        url = model.push_to_hub("me/knob", private=True, token="t")
    else:
        url = model.save_pretrained(tmp_path / "knob", push_to_hub=True, private=True, token="t")
        assert is_checkpoint(tmp_path / "knob")
    assert url == "https://hub/me/knob"
    assert (pushed["private"], pushed["token"]) == (True, "t")
    assert torch.equal(answers(model, budget=0.5), answers(rheostat.load(pushed["files"]), budget=0.5))


def test_the_model_card_says_what_a_budget_is(saved: Path) -> None:
    card = (saved / "budgeted" / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\n")
    for part in ("library_name: rheostat", "at 9 tokens", "budgets 0.1 to 1", "| 1 | 0.9000 | 0.8500 |", "rows: 120",
                 f"{budgeted().floor:.4f}", "rheostat.load"):  # fmt: skip
        assert part in card, part
    bare = budgeted()
    bare.info = replace(INFO, evaluation=(), trained_budgets=None)
    assert "accuracy" not in str(bare.generate_model_card())


def test_a_copy_saves_like_the_original(tmp_path: Path) -> None:
    small = copy.deepcopy(budgeted().materialize(0.5))
    small.save_pretrained(tmp_path / "out")
    assert torch.equal(answers(small), answers(rheostat.load(tmp_path / "out")))
