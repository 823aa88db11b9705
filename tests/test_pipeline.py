"""The whole path on a tiny model: every method, every option, what it leaves, what it refuses, and going on."""

import json
import os
import signal
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from random_models import make_model
from tiny import (
    VOCABULARY,
    labelled_rows,
    largest_difference,
    multi_label_rows,
    tiny_data,
    tiny_folder,
    tiny_tokenizer,
    weights,
    write_csv,
)

import rheostat
from rheostat import pipeline, training
from rheostat.budget import DEFAULT_BUDGETS
from rheostat.compare import compare
from rheostat.data import Collator, ReadOptions, read_rows, tokenize
from rheostat.errors import BudgetError, CheckpointError, DataError, OptionError, RheostatError
from rheostat.evaluation import class_predictions, collect_logits, evaluate_budgets
from rheostat.export import export
from rheostat.model import BudgetedModel
from rheostat.pipeline import TrainResult
from rheostat.quality import quality_at
from rheostat.recipe import TrainOptions
from rheostat.training import training_arguments

QUICK = TrainOptions(
    min_heads_per_layer=0,  # with a minimum of neurons too, 0.3 would be out of reach
    warm_epochs=1,
    soft_epochs=0.5,
    adapt_epochs=0.5,
    batch_size=16,
    neuron_block=8,
    calibration_rows=32,
    budgets=(1.0, 0.6, 0.3),
    learning_rate=1e-3,
)
THREE = ("bad", "good", "soso")
MULTI = ReadOptions(task="multi-label", label_separator="|")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_folder(tmp_path_factory.mktemp("base") / "model"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_data(tmp_path_factory.mktemp("data")))


@pytest.fixture(scope="module")
def plain(model: str, data: str, tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    return pipeline.train(model, data, tmp_path_factory.mktemp("plain") / "out", QUICK, measure_latency=False)


def scored(model: BudgetedModel, path: Path, budgets: tuple[float, ...], read: ReadOptions | None = None) -> list[Any]:
    """What the checkpoint scores on a file, from the saved folder alone."""
    rows, _ = read_rows(str(path), read or ReadOptions(task=model.info.task))
    tokens = tokenize(
        rows,
        model.tokenizer,
        labels=model.info.labels,
        task=str(model.info.task),
        max_length=model.info.max_length or 32,
    )
    return evaluate_budgets(model, tokens.dataset, Collator(model.tokenizer), budgets, progress=False)


# --- every method ------------------------------------------------------------------------------------------

METHODS: dict[str, dict[str, Any]] = {
    "sandwich, macs": {},
    "straight-through, macs": {"adapt": "straight-through", "soft_learning_rate": 1e-4},
    "sandwich, heads": {"cost": "heads", "budgets": (1.0, 0.5, 0.25)},
    "straight-through, heads, top-k": {
        "cost": "heads", "adapt": "straight-through", "selection": "top-k", "budgets": (1.0, 0.5, 0.25),
    },
    "corrections, macs": {"adapt": "corrections"},
    "corrections, heads": {"adapt": "corrections", "cost": "heads", "budgets": (1.0, 0.5, 0.25)},
    "no adapt, no soft": {"adapt": "none", "soft_epochs": 0},
    "dense only": {"adapt_epochs": 0, "soft_epochs": 0},
    "floors": {"min_heads_per_layer": 1, "min_neurons_per_layer": 8},
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_every_method_leaves_a_checkpoint_that_is_what_its_table_says(
    name: str, model: str, data: str, tmp_path: Path
) -> None:
    options = replace(QUICK, **METHODS[name])
    result = pipeline.train(model, data, tmp_path / "out", options, measure_latency=False)
    loaded = rheostat.load(result.folder)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]  # no partial folder is left
    assert [point.budget for point in result.points] == list(options.budgets)
    assert result.rows_of == "test"
    for point, quality in zip(result.points, scored(loaded, Path(data) / "test.csv", options.budgets), strict=True):
        subnet = loaded.subnet(point.budget)
        assert point.share == loaded.costs.share(subnet) <= point.budget
        assert point.macs == loaded.macs_table(loaded.costs.sequence_length or 128).total(subnet)
        assert point.params == sum(p.numel() for p in loaded.materialize(point.budget).parameters())
        assert (point.kept_heads, point.kept_neurons) == (sum(subnet.head_counts), sum(subnet.neuron_counts))
        assert (point.accuracy, point.macro_f1) == (quality.accuracy, quality.macro_f1)
    validated = [q.to_json() for q in scored(loaded, Path(data) / "validation.csv", options.budgets)]
    assert list(loaded.info.evaluation) == validated
    assert loaded.info.labels == ("bad", "good")
    assert loaded.predict(["word1 great"], budget=0.77)[0].label in ("bad", "good")
    if options.adapt in ("none", "corrections") or not options.adapt_epochs:
        assert loaded.info.trained_budgets is None
    else:
        assert loaded.info.trained_budgets == (max(options.min_budget, loaded.floor), 1.0)
    assert [line["budget"] for line in result.soft] == (list(options.budgets) if options.soft_epochs else [])
    assert all(0 <= line["macro_f1"] <= 1 and 0 <= line["accuracy"] <= 1 for line in result.soft)


def test_training_learns_the_word_that_decides_the_label(model: str, tmp_path: Path) -> None:
    data = tiny_data(tmp_path / "data", train=240)
    options = replace(QUICK, warm_epochs=8, adapt_epochs=4, learning_rate=3e-3, adapt_learning_rate=2e-3)
    result = pipeline.train(model, str(data), tmp_path / "out", options, measure_latency=False)
    accuracies = {point.budget: point.accuracy for point in result.points}
    assert accuracies[1.0] is not None
    assert accuracies[1.0] > 0.9
    assert accuracies[0.6] is not None
    assert accuracies[0.6] > 0.9


def test_several_labels_a_row(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "model", THREE)
    write_csv(tmp_path / "data" / "train.csv", multi_label_rows(64))
    write_csv(tmp_path / "data" / "validation.csv", multi_label_rows(20, seed=5))
    result = pipeline.train(
        str(folder), str(tmp_path / "data"), tmp_path / "out", QUICK, read_options=MULTI, measure_latency=False
    )
    loaded = rheostat.load(result.folder)
    assert (loaded.info.task, loaded.info.labels) == ("multi-label", THREE)
    qualities = scored(loaded, tmp_path / "data" / "validation.csv", QUICK.budgets, MULTI)
    assert [(p.accuracy, p.macro_f1) for p in result.points] == [(q.accuracy, q.macro_f1) for q in qualities]
    assert isinstance(loaded.predict(["great awful"], budget=0.5)[0].label, tuple)


def test_multi_label_quality_is_exact_match_and_the_mean_f1_of_the_classes() -> None:
    labels = np.array([[1, 0], [0, 0], [1, 1], [0, 1]])
    found = quality_at(0.5, np.array([[1, 0], [0, 1], [1, 0], [0, 1]]), labels, full_predictions=np.array(labels))
    assert (found.accuracy, found.macro_f1, found.drop_points) == (0.5, (1.0 + 0.5) / 2, 50.0)
    assert class_predictions("multi-label", np.array([[0.1, -0.1]], np.float32)).tolist() == [[1, 0]]
    assert class_predictions("single-label", np.array([[0.1, 0.3]], np.float32)).tolist() == [1]


def test_a_model_that_is_fine_tuned_already_keeps_the_order_of_its_labels(data: str, tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "model", ("good", "bad"))  # the data's sorted order is bad, good
    options = replace(QUICK, warm_epochs=0, soft_epochs=0, adapt="none")
    result = pipeline.train(str(folder), data, tmp_path / "out", options, measure_latency=False)
    loaded = rheostat.load(result.folder)
    assert loaded.info.labels == ("good", "bad")
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    original = AutoModelForSequenceClassification.from_pretrained(folder)
    tokens = AutoTokenizer.from_pretrained(folder)(["great word1 word2"], return_tensors="pt")
    with torch.no_grad():
        name = original.config.id2label[int(original(**tokens).logits.argmax())]
        assert torch.allclose(original(**tokens).logits, loaded(**tokens).logits, atol=1e-5)
    assert loaded.predict(["great word1 word2"])[0].label == name


def test_without_a_validation_file_rows_are_held_out_of_train_and_never_of_test(model: str, tmp_path: Path) -> None:
    folder = tiny_data(tmp_path / "data", validation=False)
    result = pipeline.train(model, str(folder), tmp_path / "out", QUICK, measure_latency=False)
    assert result.rows_of == "test"
    assert rheostat.load(result.folder).info.evaluation[0]["rows"] == 6  # a tenth of 64


def test_without_a_test_file_the_table_is_of_validation_rows(model: str, tmp_path: Path) -> None:
    folder = tiny_data(tmp_path / "data", test=False)
    result = pipeline.train(model, str(folder), tmp_path / "out", QUICK, measure_latency=False)
    assert result.rows_of == "validation"
    assert result.conditions() == {"accuracy on": "validation rows"}
    assert [p.accuracy for p in result.points] == [r["accuracy"] for r in rheostat.load(result.folder).info.evaluation]


def test_test_rows_choose_nothing(model: str, plain: TrainResult, tmp_path: Path) -> None:
    folder = tiny_data(tmp_path / "data")
    swapped = [(text, {"bad": "good", "good": "bad"}[label]) for text, label in labelled_rows(30, seed=9)]
    write_csv(folder / "test.csv", swapped)
    other = pipeline.train(model, str(folder), tmp_path / "out", QUICK, measure_latency=False)
    first, second = rheostat.load(plain.folder), rheostat.load(other.folder)
    assert largest_difference(weights(first), weights(second)) == 0.0
    assert first.info.evaluation == second.info.evaluation
    assert first.order == second.order


# --- every option ------------------------------------------------------------------------------------------

OPTIONS: dict[str, Any] = {
    "warm_epochs": 2,
    "soft_epochs": 2,
    "adapt": "straight-through",
    "adapt_epochs": 2,
    "train_budgets": (0.4,),
    "adapt_dropout": True,
    "learning_rate": 3e-3,
    "adapt_learning_rate": 1e-3,
    "gate_learning_rate": 1.0,
    "soft_learning_rate": 1e-3,
    "batch_size": 6,
    "accumulation": 2,
    "cost": "heads",
    "sequence_length": 30,
    "max_length": 4,
    "min_budget": 0.5,
    "neuron_block": 4,
    "min_heads_per_layer": 2,
    "min_neurons_per_layer": 16,
    "selection": "top-k",
    "distill_weight": 0.1,
    "temperature": 8.0,
    "gate_weight": 100.0,
    "over_weight": 0.0,
    "weight_decay": 10.0,
    "random_budgets": 2,
    "class_weighting": True,
    "calibration_rows": 3,
    "calibration_split": "validation",
    "max_train_rows": 20,
    "budgets": (1.0, 0.5),
    "seed": 4,
    "precision": "bf16",
}


# What does not change this result, each with a test of its own below.
ASIDE = {"save_every", "report_to", "correction_learning_rate", "max_validation_rows"}


def test_no_option_is_without_a_test() -> None:
    assert {field.name for field in fields(TrainOptions)} == set(OPTIONS) | ASIDE


def test_save_every_and_report_to_change_what_a_stage_leaves(
    model: str, uneven: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}
    original = pipeline.train_stage

    def watched(objective: Any, rows: Any, collator: Any, sampler: Any, options: Any, folder: Path, title: str) -> Any:
        facts = original(objective, rows, collator, sampler, options, folder, title)
        events = [path for path in folder.rglob("events.out.tfevents*")]
        seen[title] = (training_arguments(options, folder).save_steps, bool(events))
        return facts

    monkeypatch.setattr(pipeline, "train_stage", watched)
    changed = replace(SMALL, save_every=1, report_to="tensorboard")
    pipeline.train(model, uneven, tmp_path / "out", changed, measure_latency=False)
    assert seen["Warm start"] == seen["Adapt"] == (1, True)
    pipeline.train(model, uneven, tmp_path / "other", SMALL, measure_latency=False)
    assert seen["Warm start"] == seen["Adapt"] == (SMALL.save_every, False)


def test_corrections_change_no_weight_and_follow_their_learning_rate(model: str, data: str, tmp_path: Path) -> None:
    results = {}
    for rate in (1e-2, 3e-2):
        options = replace(QUICK, adapt="corrections", adapt_epochs=2, correction_learning_rate=rate)
        results[rate] = rheostat.load(
            pipeline.train(model, data, tmp_path / "out", options, measure_latency=False).folder
        )
    plain_options = replace(QUICK, adapt="none")
    plain = rheostat.load(pipeline.train(model, data, tmp_path / "none", plain_options, measure_latency=False).folder)
    slow, fast = results.values()
    for one in (slow, fast):
        assert largest_difference(weights(plain.base), weights(one.base)) == 0.0
        assert one.corrections.shares == tuple(one.costs.share(one.subnet(b)) for b in (0.3, 0.6))
    assert largest_difference(weights(slow.corrections), weights(fast.corrections)) > 1e-3
    inputs = plain.tokenizer(["word1 great", "word2 awful"], return_tensors="pt", padding=True)
    with torch.no_grad():
        for budget, changes in ((1.0, False), (0.8, True), (0.6, True), (0.3, True)):
            gap = (plain(**inputs, budget=budget).logits - slow(**inputs, budget=budget).logits).abs().max()
            assert (float(gap) > 1e-4) == changes, budget


def test_corrections_are_of_the_budgets_that_were_asked_for(
    model: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = replace(QUICK, adapt="corrections")
    chosen = replace(options, train_budgets=(0.5,), adapt_dropout=True)
    one = rheostat.load(pipeline.train(model, data, tmp_path / "one", chosen, measure_latency=False).folder)
    assert one.corrections.shares == (one.costs.share(one.subnet(0.5)),)
    plain = replace(chosen, adapt_dropout=False)
    other = rheostat.load(pipeline.train(model, data, tmp_path / "other", plain, measure_latency=False).folder)
    assert largest_difference(weights(one.corrections), weights(other.corrections)) > 1e-6
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "train_stage", stopped_in("corrections", patch))
        with pytest.raises(training.Interrupted):
            pipeline.train(model, data, tmp_path / "out", options, measure_latency=False)
    changed = replace(options, budgets=(1.0, 0.5))
    refused(CheckpointError, "another budgets.*--restart", model, data, tmp_path / "out", changed)


def test_the_validation_table_is_read_on_as_many_rows_as_asked_for(model: str, data: str, tmp_path: Path) -> None:
    options = replace(QUICK, adapt="none", warm_epochs=0.1, soft_epochs=0, max_validation_rows=7)
    result = pipeline.train(model, data, tmp_path / "out", options, measure_latency=False, reads_test=False)
    assert {record["rows"] for record in rheostat.load(result.folder).info.evaluation} == {7}
    assert result.rows_of == "validation"


SMALL = replace(QUICK, batch_size=8, adapt_epochs=1, soft_epochs=1, calibration_rows=16, max_train_rows=32)


def facts_of(result: TrainResult) -> tuple[dict[str, torch.Tensor], str]:
    loaded = rheostat.load(result.folder)
    shape = [loaded.order.to_json(), loaded.selection, loaded.info.max_length, [p.budget for p in result.points]]
    return weights(loaded), json.dumps(shape)


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One file with more rows of one label than of the other."""
    rows = labelled_rows(40, seed=1)
    kept = [row for i, row in enumerate(rows) if row[1] == "bad" or i % 3]
    return str(write_csv(tmp_path_factory.mktemp("uneven") / "train.csv", kept))


@pytest.fixture(scope="module")
def unchanged(model: str, uneven: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, torch.Tensor], str]:
    out = tmp_path_factory.mktemp("unchanged") / "out"
    return facts_of(pipeline.train(model, uneven, out, SMALL, measure_latency=False))


@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_changes_the_result(
    name: str, model: str, uneven: str, unchanged: tuple[dict[str, torch.Tensor], str], tmp_path: Path
) -> None:
    changed = replace(SMALL, **{name: OPTIONS[name]})
    new, facts = facts_of(pipeline.train(model, uneven, tmp_path / "out", changed, measure_latency=False))
    assert facts != unchanged[1] or largest_difference(unchanged[0], new) > 1e-6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budgets": (1.0, 1.01)}, "budget must be in"),
        ({"budgets": (1.0, float("nan"))}, "budget must be in"),
        ({"min_budget": 0.0}, "budget must be in"),
        ({"train_budgets": (0.5, 1.5)}, "budget must be in"),
        ({"min_budget": 1.0}, "min_budget must be below 1"),
        ({"cost": "latency"}, "latency"),
        ({"adapt": "sandwhich"}, "adapt must be one of sandwich, straight-through, corrections, none"),
        ({"calibration_split": "test"}, "calibration_split must be one of train, validation"),
        ({"selection": "best"}, "selection must be one of"),
        ({"precision": "int8"}, "precision must be one of"),
        ({"warm_epochs": float("inf")}, "warm_epochs must be at least 0"),
        ({"learning_rate": float("nan")}, "learning_rate must be at least 0"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0"),
        ({"adapt_learning_rate": 0.0}, "adapt_learning_rate must be above 0"),
        ({"adapt": "corrections", "correction_learning_rate": 0.0}, "correction_learning_rate must be above 0"),
        ({"max_validation_rows": 0}, "max_validation_rows must be at least 1"),
        ({"gate_learning_rate": 0.0, "soft_epochs": 1.0}, "gate_learning_rate must be above 0"),
        ({"gate_learning_rate": -1.0}, "gate_learning_rate must be at least 0"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"sequence_length": 0}, "sequence_length must be at least 1"),
        ({"max_train_rows": 0}, "max_train_rows must be at least 1"),
        ({"neuron_block": 0}, "neuron_block must be at least 1"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"temperature": 0.0}, "temperature must be above 0"),
        ({"distill_weight": 1.5}, "distill_weight must be in"),
    ],
)
def test_an_option_that_cannot_be_used_is_refused_at_once(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RheostatError, match=message):
        TrainOptions(**changes)


# --- what is refused before anything long starts ---------------------------------------------------------------


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("training started")

    monkeypatch.setattr(pipeline, "train_stage", never)
    monkeypatch.setattr(pipeline, "order_by_data", never)


def refused(error: type[Exception], message: str, *args: Any, **kwargs: Any) -> None:
    with pytest.raises(error, match=message) as caught:
        pipeline.train(*args, **kwargs)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("no_training")
def test_what_is_wrong_with_the_model_comes_before_training(model: str, data: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    refused(BudgetError, "at least 0.00", model, data, out, replace(QUICK, budgets=(1.0, 0.001)))
    refused(OptionError, "min_heads_per_layer", model, data, out, replace(QUICK, min_heads_per_layer=9))
    refused(CheckpointError, "classifier for the 2 labels", str(tiny_folder(tmp_path / "m3", THREE)), data, out, QUICK)
    words_gone = tiny_folder(tmp_path / "bare")
    for path in [*words_gone.glob("tokenizer*"), *words_gone.glob("vocab*")]:
        path.unlink()
    refused(CheckpointError, "tokenizer with words", str(words_gone), data, out, QUICK)
    cut = tiny_folder(tmp_path / "cut")
    whole = (cut / "model.safetensors").read_bytes()
    (cut / "model.safetensors").write_bytes(whole[:3000])
    refused(CheckpointError, "cut short or damaged", str(cut), data, out, QUICK)
    refused(CheckpointError, "folder or Hub name", str(tmp_path / "nowhere"), data, out, QUICK)
    # and after all these, the right command still starts afresh
    assert not pipeline.Work(out, {"options": {}, "read": {}}, restart=False).record["stages"]


@pytest.mark.usefixtures("no_training")
def test_warm_epochs_0_needs_a_classifier_and_its_labels(data: str, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    options = replace(QUICK, warm_epochs=0)
    other = tiny_folder(tmp_path / "other", ("no", "yes"))
    refused(
        DataError,
        r"fine-tuned model, \['no', 'yes'\]; got \['bad', 'good'\]",
        str(other),
        data,
        tmp_path / "o",
        options,
    )
    headless = tiny_folder(tmp_path / "headless")
    full = AutoModelForSequenceClassification.from_pretrained(headless)
    full.bert.save_pretrained(headless)
    refused(CheckpointError, "fine-tuned already .* lacks classifier", str(headless), data, tmp_path / "o", options)


@pytest.mark.usefixtures("no_training")
def test_a_missing_encoder_weight_is_named(data: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = tiny_folder(tmp_path / "model")
    path = folder / "model.safetensors"
    kept = {n: t for n, t in load_file(path).items() if "layer.1.attention.self.query.weight" not in n}
    save_file(kept, path, metadata={"format": "pt"})
    refused(
        CheckpointError,
        "lacks bert.encoder.layer.1.attention.self.query.weight",
        str(folder),
        data,
        tmp_path / "o",
        QUICK,
    )


@pytest.mark.usefixtures("no_training")
def test_a_foreign_output_folder_is_refused_first(model: str, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    refused(CheckpointError, "output must be a new folder", model, "no such data", tmp_path, QUICK)


@pytest.mark.usefixtures("no_training")
def test_a_single_class_is_refused(model: str, tmp_path: Path) -> None:
    one = write_csv(tmp_path / "one.csv", [(f"word{i} great", "good") for i in range(12)])
    refused(DataError, "good", model, str(one), tmp_path / "o", QUICK)


def test_the_usual_grid_is_cut_to_what_can_be_reached(model: str, data: str, tmp_path: Path) -> None:
    # one of 4 heads a layer stays: 0.25
    options = replace(QUICK, cost="heads", min_heads_per_layer=1, budgets=DEFAULT_BUDGETS)
    result = pipeline.train(model, data, tmp_path / "out", options, measure_latency=False)
    assert [point.budget for point in result.points] == [1.0, 0.75, 0.5, 0.35, 0.25]


# --- stopping and going on ---------------------------------------------------------------------------------


def stopped_in(stage: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A train_stage that is stopped by Ctrl-C in its first step, if it is ``stage``."""
    original = pipeline.train_stage

    def train_stage(objective: Any, *args: Any, **kwargs: Any) -> Any:
        if objective.stage == stage:
            begun = training.StopOnInterrupt.on_train_begin

            def on_train_begin(self: Any, *inner: Any, **more: Any) -> None:
                begun(self, *inner, **more)
                os.kill(os.getpid(), signal.SIGINT)

            with monkeypatch.context() as patch:
                patch.setattr(training.StopOnInterrupt, "on_train_begin", on_train_begin)
                return original(objective, *args, **kwargs)
        return original(objective, *args, **kwargs)

    return train_stage


@pytest.mark.parametrize("adapt", ["sandwich", "straight-through", "corrections"])
def test_a_run_stopped_in_every_stage_ends_as_one_that_never_was(
    adapt: str, model: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = replace(QUICK, adapt=adapt, soft_learning_rate=1e-4)
    whole = pipeline.train(model, data, tmp_path / "whole", options, measure_latency=False)
    for stage in ("dense", "soft", adapt):
        with monkeypatch.context() as patch:
            patch.setattr(pipeline, "train_stage", stopped_in(stage, patch))
            with pytest.raises(training.Interrupted, match="run the same command again"):
                pipeline.train(model, data, tmp_path / "stopped", options, measure_latency=False)
        assert not (tmp_path / "stopped").exists()
    resumed = pipeline.train(model, data, tmp_path / "stopped", options, measure_latency=False)
    first, second = rheostat.load(whole.folder), rheostat.load(resumed.folder)
    assert largest_difference(weights(first), weights(second)) == 0.0
    assert first.info.evaluation == second.info.evaluation
    assert whole.soft == resumed.soft
    assert whole.points == resumed.points


def test_a_partial_run_belongs_to_its_command(
    model: str, data: str, plain: TrainResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "train_stage", stopped_in("soft", patch))
        with pytest.raises(training.Interrupted):
            pipeline.train(model, data, out, QUICK, measure_latency=False)
    with monkeypatch.context() as patch:  # refused before the data are read
        patch.setattr(pipeline, "read_corpus", lambda *args, **kwargs: pytest.fail("data were read"))
        refused(CheckpointError, "another seed.*--restart", model, data, out, replace(QUICK, seed=1))
        read = ReadOptions(encoding="cp1252")
        refused(CheckpointError, "another encoding.*--restart", model, data, out, QUICK, read_options=read)
    again = pipeline.train(model, data, out, QUICK, measure_latency=False, restart=True)
    assert largest_difference(weights(rheostat.load(plain.folder)), weights(rheostat.load(again.folder))) == 0.0
    (tmp_path / "out.partial" / "warm").mkdir(parents=True)
    (tmp_path / "out.partial" / "warm" / "rheostat.json").write_text("{}")
    (tmp_path / "out.partial" / "progress.json").write_text('{"key": ')
    refused(CheckpointError, "readable progress.json.*--restart", model, data, out, QUICK)


def test_a_command_that_failed_at_once_does_not_stand_in_the_way(model: str, data: str, tmp_path: Path) -> None:
    bad = replace(QUICK, budgets=(1.0, 0.001))
    refused(BudgetError, "at least", model, data, tmp_path / "out", bad)
    pipeline.train(model, data, tmp_path / "out", QUICK, measure_latency=False)


def test_the_precision_of_reading_changes_answers_and_no_weight(
    plain: TrainResult, model: str, data: str, tmp_path: Path
) -> None:
    rounded = pipeline.train(model, data, tmp_path / "out", QUICK, measure_latency=False, read_precision="bf16")
    for budget, logits in plain.logits.items():
        assert 0 < np.abs(rounded.logits[budget] - logits).max() < 0.05
    first, second = (weights(rheostat.load(result.folder)) for result in (plain, rounded))
    assert all(torch.equal(first[name], second[name]) for name in first)


# --- parts -------------------------------------------------------------------------------------------------


def test_the_teacher_is_the_dense_model_row_by_row(model: str, data: str, tmp_path: Path) -> None:
    """Row i of the stored logits belongs to row i of the data, though rows are run by length."""  # C30
    options = replace(QUICK, warm_epochs=0)
    config = pipeline.load_config(model)
    corpus = pipeline.read_corpus(data, ReadOptions())
    rows = pipeline.prepare(corpus, model, config, options)
    base = pipeline.load_encoder(model, rows.info, head_is_trained=False)
    wrapped = rheostat.wrap(base, sequence_length=8, neuron_block=8, info=rows.info)
    work = pipeline.Work(tmp_path / "out", {"options": {}, "read": {}}, restart=False)
    work.open()
    work.record["stages"]["warm"] = {}
    wrapped.train()
    logits = pipeline._teacher_answers(work, wrapped, rows.train, rows.collator, "train", "fp32")
    assert wrapped.training  # the mode is put back
    (work.folder / "teacher-train.npy").unlink()
    rounded = pipeline._teacher_answers(
        work, wrapped, rows.train, rows.collator, "train", "bf16"
    )  # in the precision that training has
    assert 0 < np.abs(rounded - logits).max() < 0.05
    base.eval()
    for i in (0, 5, 63):
        batch = rows.collator([rows.train[i]])
        with torch.no_grad():
            alone = base(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[0]
        assert np.allclose(logits[i], alone.numpy(), atol=1e-5)


def test_no_rows_to_evaluate_is_an_error() -> None:
    from datasets import Dataset

    empty = Dataset.from_dict({"input_ids": [], "length": []})
    with pytest.raises(OptionError, match="rows to evaluate must not be empty"):
        collect_logits(lambda **inputs: None, empty, None, device=torch.device("cpu"))


@pytest.mark.parametrize(
    "family",
    ["distilbert", "mpnet", *(pytest.param(name, marks=pytest.mark.slow) for name in ("modernbert", "deberta-v2"))],
)
def test_a_family_goes_all_the_way_with_a_tokenizer_that_makes_token_types(
    family: str, data: str, tmp_path: Path
) -> None:
    """transformers 5 gives DistilBERT the tokenizer of BERT."""
    make_model(family, vocab_size=len(VOCABULARY), num_labels=2).save_pretrained(tmp_path / "model")
    tokenizer = tiny_tokenizer(tmp_path / "words")
    tokenizer.save_pretrained(tmp_path / "model")
    assert "token_type_ids" in tokenizer("great")
    pipeline.train(str(tmp_path / "model"), data, tmp_path / "out", QUICK, measure_latency=False)
    trained: BudgetedModel = rheostat.load(tmp_path / "out")
    texts = ["awful word1", "great word2 word3"]
    expected = trained.predict(texts, budget=0.5)
    trained.materialize(0.5).save_pretrained(tmp_path / "small")
    export(trained, tmp_path / "bundle", budgets=(1.0, 0.5))
    bundle = rheostat.open_bundle(tmp_path / "bundle")
    types = ("token_type_ids",) if family == "deberta-v2" else ()
    assert bundle.info.inputs == ("input_ids", "attention_mask", *types)
    for found in (rheostat.load(tmp_path / "small").predict(texts), bundle.predict(texts, budget=0.5)):
        assert [answer.label for answer in found] == [answer.label for answer in expected]
        assert [answer.score for answer in found] == pytest.approx([answer.score for answer in expected], abs=1e-5)
    lines = compare(
        str(tmp_path / "model"), data, tmp_path / "compared", methods=["fewer-layers"], budgets=(0.9,), options=QUICK
    )
    assert [line.method for line in lines] == ["dense", "fewer-layers"]
