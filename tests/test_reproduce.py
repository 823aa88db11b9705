"""Experiments: files are read strictly, a tiny one runs to its page and figure, targets are judged as written."""

import csv
import json
import os
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
import yaml
from tiny import largest_difference, tiny_batch, tiny_classifier, tiny_data, tiny_folder, weights
from typer.testing import CliRunner

from rheostat.cli.app import app
from rheostat.compare import Answers, Comparison, Outcome, readings_of
from rheostat.data import ReadOptions
from rheostat.errors import OptionError
from rheostat.reproduce import find_experiments, read_experiment, reproduce, runner
from rheostat.reproduce.distilling import Distillation
from rheostat.reproduce.experiment import SCALES, Target
from rheostat.reproduce.models import make_data, make_model
from rheostat.reproduce.runner import Answered
from rheostat.reproduce.synthetic import CLASSES, DECOYS, LENGTH, MARKED, write_rows

ROOT = Path(__file__).parents[1] / "reproduce"


def target(about: str, run: str, method: str, quantity: str, **more: Any) -> dict[str, Any]:
    return {"about": about, "run": run, "method": method, "quantity": quantity, **more}


def tiny_experiment(folder: Path) -> dict[str, Any]:
    """An experiment on a tiny model and rows of its own."""
    return {
        "title": "Tiny",
        "model": {"kind": "hub", "name": str(tiny_folder(folder / "model"))},
        "data": {"kind": "folder", "path": str(tiny_data(folder / "data"))},
        "options": {
            "warm_epochs": 1, "soft_epochs": 0.5, "adapt_epochs": 1, "batch_size": 16, "neuron_block": 8,
            "calibration_rows": 16, "sequence_length": 8,
        },
        "scales": {"small": {}, "full": {"warm_epochs": 2}},
        "runs": {
            "macs": {"methods": ["dense", "post-hoc", "sandwich", "soft"], "budgets": [0.6, 0.4]},
            "heads": {"methods": ["dense", "sandwich"], "budgets": [0.5], "options": {"cost": "heads"}},
        },
        "speed": [{"run": "heads", "budgets": [0.5], "batch": 2, "length": 8}],
        "targets": [
            target("easy", "macs", "dense", "accuracy", at_least=0),
            target("hard", "macs", "sandwich", "accuracy", budget=0.4, at_least=101),
            target("near", "macs", "sandwich", "below", budget=0.6, other="post-hoc", at_most=100),
            target("cheap", "macs", "soft", "share", within=0.99, at_most=0.99),
            target("fast", "heads", "sandwich", "of_ideal", budget=0.5, at_least=0),
            target("absent", "macs", "soft", "accuracy", within=0.0001, at_least=0),
            target("other", "macs", "sandwich", "below", budget=0.6, other="dense", other_run="heads", at_most=100),
        ],
        "paper": [{"about": "theirs", "value": 90.0, "run": "heads", "method": "sandwich", "budget": 0.5}],
        "not_reproduced": ["the moon"],
    }  # fmt: skip


def write(path: Path, content: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


# --- files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(ROOT.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_experiment_of_the_project_can_be_read(path: Path) -> None:
    experiment = read_experiment(path)
    assert experiment.name == path.stem
    for scale in SCALES:
        for run in experiment.runs:
            assert experiment.train_options(run, scale).max_length == 64
    for target in experiment.targets:
        assert (target.at_least is None) != (target.at_most is None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"speeds": []}, "keys among .*; got speeds"),
        ({"title": None, "runs": {}}, "at least one run"),
        ({"scales": {"small": {}}}, "scales small and full"),
        ({"runs": {"a": {"methods": ["magic"], "budgets": [0.5]}}}, "name methods among"),
        ({"runs": {"a": {"methods": ["dense"]}}}, "must be complete"),
        ({"speed": [{"run": "none", "budgets": [0.5]}]}, "name runs among"),
        ({"options": {"epochs": 3}}, "got epochs"),
        ({"options": {"warm_epochs": -1}}, "warm_epochs must be at least 0"),
        ({"scales": {"small": 3, "full": {}}}, "NAME: VALUE"),
        ({"model": "minilm"}, "must have model as NAME: VALUE"),
        ({"runs": ["a"]}, "must have runs as NAME: VALUE"),
        ({"runs": {"a": "dense"}}, "must be NAME: VALUE"),
        ({"runs": {"a": {"methods": ["dense"], "budgets": 0.5}}}, "list of budgets"),
        ({"speed": [{"run": "macs", "budgets": [0.6]}, {"run": "macs", "budgets": [0.4]}]}, "once"),
    ],
)
def test_a_wrong_file_is_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "x.yaml", {**tiny_experiment(tmp_path), "targets": [], "paper": [], "speed": [], **change})
    with pytest.raises(OptionError, match=message):
        read_experiment(path)


def test_a_file_that_is_no_yaml_and_a_folder_without_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("{", encoding="utf-8")
    with pytest.raises(OptionError, match="readable YAML"):
        read_experiment(tmp_path / "x.yaml")
    (tmp_path / "x.yaml").write_text("[1, 2]", encoding="utf-8")
    with pytest.raises(OptionError, match="keys of an experiment"):
        read_experiment(tmp_path / "x.yaml")
    with pytest.raises(OptionError, match="clone of the project"):
        find_experiments(tmp_path / "none")


# --- a run -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """The folder, what the command printed as JSON, and what the library returns when it is asked again."""
    folder = tmp_path_factory.mktemp("reproduce")
    path = write(folder / "reproduce" / "tiny.yaml", tiny_experiment(folder))
    command = [
        "reproduce",
        "tiny",
        "--seeds",
        "2",
        "--folder",
        str(path.parent),
        "--work",
        str(folder / "work"),
        "--precision",
        "bf16",
        "--json",
    ]
    found = CliRunner().invoke(app, command)
    assert found.exit_code == 0, found.output
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rheostat.compare.runner.train", None)
        patch.setattr(runner, "time_budgets", None)
        work = folder / "work" / "tiny" / "small"
        again = reproduce(read_experiment(path), scale="small", seeds=(0, 1), work=work, precision="bf16")
    return folder, json.loads(found.stdout), again


def test_targets_are_judged_by_what_was_found(ran: tuple[Path, dict[str, Any], dict[str, Any]]) -> None:
    _, record, _ = ran
    reached = {target["about"]: target["reached"] for target in record["targets"]}
    assert reached == {
        "easy": True, "hard": False, "near": True, "cheap": True, "fast": True, "absent": None, "other": True,
    }  # fmt: skip
    by_about = {target["about"]: target for target in record["targets"]}
    assert by_about["near"]["low"] <= by_about["near"]["value"] <= by_about["near"]["high"]
    line = next(x for x in record["runs"]["macs"] if (x["method"], x["budget"]) == ("sandwich", 0.4))
    assert by_about["hard"]["value"] == line["mean"]
    theirs = record["paper"][0]
    assert theirs["difference"] == pytest.approx(theirs["ours"] - 90.0)
    point = record["speed"]["heads"]["points"]["0.5"]
    assert point["of_ideal"] == pytest.approx(point["speedup"] / point["ideal"])


def test_a_second_run_trains_and_times_nothing(ran: tuple[Path, dict[str, Any], dict[str, Any]]) -> None:
    _, record, again = ran
    known = ("runs", "speed", "targets", "paper", "options")
    assert json.loads(json.dumps({key: again[key] for key in known})) == {key: record[key] for key in known}


def test_seeds_are_added_to_results_of_which_nothing_else_is_left(
    ran: tuple[Path, dict[str, Any], dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, record, _ = ran
    copy = Path(shutil.copytree(folder / "reproduce", tmp_path / "reproduce"))
    path = copy / "results" / "tiny-small.json"
    old = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps({**old, "environments": {"0": {**old["environments"]["0"], "processor": "Z80"}}}))
    monkeypatch.setattr(runner, "time_budgets", None)  # the speed is kept as well
    trained, real = [], Comparison.readings

    def readings(self: Comparison, *arguments: Any) -> Any:
        trained.append(arguments[-1])
        return real(self, *arguments)

    monkeypatch.setattr(Comparison, "readings", readings)
    words = ["reproduce", "tiny", "--folder", str(copy), "--work", str(tmp_path / "work"), "--precision", "bf16"]
    found = CliRunner().invoke(app, [*words, "--seeds", "3", "--keep"])
    assert found.exit_code == 0, found.output
    new = json.loads(path.read_text("utf-8"))
    assert trained == [(2,), (2,)] and new["seeds"] == [0, 1, 2]
    for name, lines in new["runs"].items():
        assert [line["accuracies"][:2] for line in lines] == [line["accuracies"] for line in record["runs"][name]]
        assert all(len(line["accuracies"]) == 3 for line in lines)
    assert "seeds 0: 2 cores of Z80" in found.stdout.replace(
        f"{old['environments']['0']['physical_cores']} cores", "2 cores"
    )
    assert "; seeds 1, 2: " in found.stdout

    def lacking(*arguments: Any) -> None:
        raise OptionError(json.dumps({name: len(kept) for name, kept in arguments[-1].items()}))

    monkeypatch.setattr(runner, "answered_runs", lacking)
    content = tiny_experiment(tmp_path)
    content |= {"model": read_experiment(copy / "tiny.yaml").model, "data": read_experiment(copy / "tiny.yaml").data}
    content["runs"]["heads"]["budgets"] = [0.5, 0.4]
    write(copy / "tiny.yaml", content)
    again = CliRunner().invoke(app, [*words, "--seeds", "3", "--keep"])
    assert '"heads": 0, "macs": 24}' in again.stderr  # another set-up is run anew
    fresh = CliRunner().invoke(app, [*words, "--seeds", "3"])
    assert '{"heads": 0, "macs": 0}' in fresh.stderr


def test_the_precision_is_that_of_training_and_reading(ran: tuple[Path, dict[str, Any], dict[str, Any]]) -> None:
    folder, record, _ = ran
    read = [np.load(path)["logits"] for path in folder.rglob("seed-0/*.npz") if "linear" not in path.name]
    assert read and all((torch.tensor(x).bfloat16().float().numpy() == x).all() for x in read)
    assert {options["precision"] for options in record["options"].values()} == {"bf16"}
    assert record["command"].endswith("--seeds 2 --precision bf16")


def test_runs_with_the_same_dense_model_share_it(
    ran: tuple[Path, dict[str, Any], dict[str, Any]],
) -> None:
    _, record, _ = ran
    runs = {name: next(x for x in lines if x["method"] == "dense") for name, lines in record["runs"].items()}
    assert runs["macs"]["accuracies"] == runs["heads"]["accuracies"]
    assert runs["macs"]["minutes"] == runs["heads"]["minutes"]
    assert all(x["share"] <= 0.5 for x in record["runs"]["heads"] if x["budget"] == 0.5)


def test_the_page_and_the_figure_are_left_beside_the_experiments(
    ran: tuple[Path, dict[str, Any], dict[str, Any]],
) -> None:
    folder, record, _ = ran
    results = folder / "reproduce" / "results"
    assert {path.name for path in results.iterdir()} == {"tiny-small.json", "tiny-small.md", "tiny-small.png"}
    page = (results / "tiny-small.md").read_text("utf-8")
    for text in (
        "| hard | >= 101 |",
        "| **no** |",
        "| absent | >= 0 | not run | not run |",
        "| theirs | 90 |",
        "- the moon",
    ):
        assert text in page
    assert (results / "tiny-small.png").read_bytes().startswith(b"\x89PNG")
    assert str(folder) not in page + json.dumps(record)


def test_the_list_shows_where_every_experiment_stands(ran: tuple[Path, dict[str, Any], dict[str, Any]]) -> None:
    folder, _, _ = ran
    found = CliRunner().invoke(app, ["reproduce", "--list", "--folder", str(folder / "reproduce")])
    assert found.exit_code == 0
    for text in ("tiny: Tiny", "small: 2 seeds, 5 of 7 targets reached", "missed: hard", "not reproduced: the moon"):
        assert text in found.stdout


@pytest.mark.parametrize(
    "arguments", [["magic"], ["pretrained", "--scale", "huge"], ["pretrained", "--device", "tpu"], []]
)
def test_a_wrong_name_scale_or_device_is_refused(arguments: list[str], tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["reproduce", *arguments, "--folder", str(ROOT), "--work", str(tmp_path / "w")])
    assert found.exit_code == 2
    assert not (tmp_path / "w").exists()


def test_the_device_is_hidden_or_must_be_there(
    ran: tuple[Path, dict[str, Any], dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _, _ = ran
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    words = ["reproduce", "--folder", str(folder / "reproduce"), "--work", str(tmp_path / "w")]
    found = CliRunner().invoke(app, [*words, "--list", "--device", "cpu"])
    assert found.exit_code == 0 and os.environ["CUDA_VISIBLE_DEVICES"] == ""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = CliRunner().invoke(app, [*words, "tiny", "--device", "cuda"])
    assert found.exit_code == 2 and "device cuda must be there; torch sees none" in found.stderr


def answered(*points: tuple[str, float | None, float, list[int]]) -> Answered:
    """A run of one seed whose points (method, budget, share, classes) were read on four rows of class 0."""
    answers = {0: Answers("single-label", "rows", np.zeros(4, dtype=np.int64))}
    outcomes = [
        Outcome(method, f"{method}-{share}", 0, budget, share, 1.0, 60.0, np.eye(2, dtype=np.float32)[classes])
        for method, budget, share, classes in (("dense", None, 1.0, [0, 0, 0, 0]), *points)
    ]
    outcomes[0] = replace(outcomes[0], model="dense")
    return Answered(readings_of(outcomes, answers))


def test_within_picks_the_costliest_point_of_a_share() -> None:
    run = answered(("soft", 0.9, 0.8, [0] * 4), ("soft", 0.5, 0.29, [0, 0, 0, 1]), ("soft", 0.1, 0.2, [0, 0, 1, 1]))

    def found(within: float, quantity: str = "accuracy") -> float | None:
        return runner.value_of(Target("x", "r", "soft", quantity, within=within), {"r": run}, {})[0]

    assert [found(0.303), found(0.29), found(0.25), found(0.1)] == [75.0, 75.0, 50.0, None]
    assert found(0.303, "share") == 0.29


def test_of_several_models_of_one_size_the_costliest_within_the_budget_is_compared() -> None:
    run = answered(
        ("fewer-layers", None, 0.7, [0] * 4), ("fewer-layers", None, 0.4, [0, 0, 0, 1]), ("sandwich", 0.5, 0.5, [0] * 4)
    )
    target = Target("x", "r", "sandwich", "below", budget=0.5, other="fewer-layers", at_most=0)
    assert runner.value_of(target, {"r": run}, {})[0] == -25.0
    line = Target("x", "r", "fewer-layers", "accuracy", budget=0.5)
    assert runner.value_of(line, {"r": run}, {})[0] == 75.0


def test_a_target_is_reached_within_its_bounds() -> None:
    target = Target("x", "r", "m", "share", within=0.5, at_least=0.2, at_most=0.4)
    assert [target.reached(value) for value in (0.1, 0.2, 0.4, 0.5)] == [False, True, True, False]
    assert not replace(target, at_most=None).reached(0.1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quantity": "of-ideal"}, "quantity among"),
        ({"method": "sandwhich"}, "name a method of macs"),
        ({"budget": 0.7}, "at a budget of macs"),
        ({"budget": None}, "a budget or within"),
        ({"quantity": "below"}, "other with below"),
        ({"quantity": "below", "other": "linear"}, "a method that is run"),
        ({"quantity": "speedup"}, "a budget that is timed"),
        ({"at_least": None}, "at_least or at_most"),
    ],
)
def test_a_target_that_no_line_can_answer_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    wanted = {**target("x", "macs", "sandwich", "accuracy", budget=0.6, at_least=0), **change}
    path = write(tmp_path / "x.yaml", {**tiny_experiment(tmp_path), "targets": [wanted]})
    with pytest.raises(OptionError, match=message):
        read_experiment(path)


def test_experiments_whose_names_begin_alike_are_listed_apart(
    ran: tuple[Path, dict[str, Any], dict[str, Any]], tmp_path: Path
) -> None:
    folder, _, _ = ran
    shutil.copytree(folder / "reproduce", tmp_path / "r")
    shutil.copy(tmp_path / "r" / "tiny.yaml", tmp_path / "r" / "ti.yaml")
    shutil.copy(tmp_path / "r" / "results" / "tiny-small.json", tmp_path / "r" / "results" / "ti-ny-small.json")
    found = CliRunner().invoke(app, ["reproduce", "--list", "--folder", str(tmp_path / "r"), "--json"])
    assert {line["name"]: bool(line["results"]) for line in json.loads(found.stdout)} == {"tiny": True, "ti": False}


# --- models and rows ---------------------------------------------------------------------------------------


def test_the_marked_symbols_alone_decide_and_the_rows_are_the_same_every_time(tmp_path: Path) -> None:
    parts = {"train": 200, "validation": 20, "test": 50}
    write_rows(tmp_path / "a", parts=parts)
    write_rows(tmp_path / "b", parts=parts)
    for part, count in parts.items():
        text = (tmp_path / "a" / f"{part}.csv").read_text("utf-8")
        assert text == (tmp_path / "b" / f"{part}.csv").read_text("utf-8")
        rows = list(csv.DictReader(text.splitlines()))
        assert len(rows) == count
        for row in rows:
            words = row["text"].split()
            marked = Counter(int(word[1:]) % CLASSES for word in words if word.startswith("m"))
            decoys = sum(word.startswith("d") for word in words)
            assert (len(words), marked.total(), decoys) == (LENGTH, MARKED, DECOYS)
            (first, most), (_, second) = marked.most_common(2)
            assert row["label"] == f"c{first}" and most > second
    texts = [(tmp_path / "a" / f"{part}.csv").read_text("utf-8").splitlines()[1:] for part in parts]
    assert not set(texts[0]) & set(texts[2])


def test_a_word_level_model_is_an_ordinary_folder_and_another_one_a_seed(tmp_path: Path) -> None:
    data, read = make_data({"kind": "folder", "path": str(tiny_data(tmp_path / "data"))}, tmp_path)
    spec = {
        "kind": "words", "hidden_size": 16, "layers": 2, "heads": 4, "intermediate_size": 32, "vocabulary": 50,
        "max_length": 12,
    }  # fmt: skip
    folders = [make_model(spec, data, read, tmp_path, seed) for seed in (0, 1, 0)]
    assert folders[0] == folders[2] != folders[1]
    models = [transformers.AutoModelForSequenceClassification.from_pretrained(folder) for folder in folders]
    first, second = (model.bert.encoder.layer[0].attention.self.query.weight for model in models[:2])
    assert (first - second).abs().max() > 1e-3
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders[0])
    ids = tokenizer("Great WORD1 unheard-of", truncation=True)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == ["[CLS]", "great", "word1", "[UNK]", "[UNK]", "[UNK]"]
    assert len(tokenizer("word1 " * 50, truncation=True)["input_ids"]) == 12
    assert models[0].config.id2label == {0: "bad", 1: "good"}


def test_the_dropout_of_the_encoder_is_the_one_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tiny_folder(tmp_path / "source")
    monkeypatch.setattr("rheostat.reproduce.models.fetch_minilm", lambda: source)
    asked: dict[str, Any] = {"kind": "minilm"}
    assert make_model(asked, "", ReadOptions(), tmp_path, 0) == str(source)
    changed = make_model({**asked, "dropout": 0.0}, "", ReadOptions(), tmp_path, 0)
    before, after = (json.loads((Path(folder) / "config.json").read_text("utf-8")) for folder in (source, changed))
    differ = {name for name in before if before[name] != after[name]}
    assert differ == {"hidden_dropout_prob", "attention_probs_dropout_prob"}
    assert sorted(p.name for p in Path(changed).iterdir()) == sorted(p.name for p in source.iterdir())


def test_unknown_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="model kind must be"):
        make_model({"kind": "llama"}, "", ReadOptions(), tmp_path, 0)
    with pytest.raises(OptionError, match=r"model must have what its kind needs: .*heads"):
        make_model({"kind": "words", "layers": 2}, "", ReadOptions(), tmp_path, 0)
    with pytest.raises(OptionError, match="data kind must be"):
        make_data({"kind": "imdb"}, tmp_path)


def test_a_distilled_model_has_a_shape_of_its_own_and_leaves_no_steps(tmp_path: Path) -> None:
    teacher = str(tiny_folder(tmp_path / "teacher"))
    data, read = make_data({"kind": "folder", "path": str(tiny_data(tmp_path / "data"))}, tmp_path)
    spec = {
        "kind": "distilled", "teacher": teacher, "hidden_size": 8, "layers": 1, "heads": 2, "intermediate_size": 16,
        "max_length": 12, "epochs": 1,
    }  # fmt: skip
    folder = make_model(spec, data, read, tmp_path / "work", 0)
    assert make_model(spec, data, read, tmp_path / "work", 1) == folder  # the same for every seed
    student = transformers.AutoModel.from_pretrained(folder)
    assert (student.config.hidden_size, student.config.num_hidden_layers) == (8, 1)
    assert [path.name for path in (tmp_path / "work").iterdir()] == [Path(folder).name]
    assert make_model({**spec, "layers": 2}, data, read, tmp_path / "work", 0) != folder  # another specification
    assert len(transformers.AutoTokenizer.from_pretrained(folder)) == student.config.vocab_size


def test_distillation_brings_the_student_to_the_teacher_and_leaves_the_teacher_alone() -> None:
    teacher, student = tiny_classifier(seed=1).bert, tiny_classifier(seed=2, num_hidden_layers=1).bert
    before = weights(teacher)
    objective = Distillation(student, teacher).train()
    optimizer = torch.optim.AdamW(objective.parameters(), lr=1e-2)
    batch = tiny_batch(rows=8)
    losses = []
    for _ in range(60):
        loss = objective(batch["input_ids"], batch["attention_mask"])["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert largest_difference(before, weights(teacher)) == 0.0
    padded = {**batch, "input_ids": torch.where(batch["attention_mask"] == 0, 6, batch["input_ids"])}
    objective.eval()
    with torch.no_grad():  # what stands in the padding does not count
        first, second = (objective(b["input_ids"], b["attention_mask"])["loss"] for b in (batch, padded))
    assert first.item() == pytest.approx(second.item(), rel=1e-5)
