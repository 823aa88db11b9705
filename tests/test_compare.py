"""Every method on a tiny model: what is trained, what is counted, what goes on after a stop, what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import multi_label_rows, tiny_data, tiny_folder, write_csv
from typer.testing import CliRunner

import rheostat
from rheostat.cli.app import app
from rheostat.cli.comparing import chosen_options, parse_seeds
from rheostat.compare import (
    METHODS,
    Answers,
    Comparison,
    Line,
    Outcome,
    compare,
    difference,
    lines_of,
    readings_of,
    runner,
    to_markdown,
)
from rheostat.compare.linear import linear_logits
from rheostat.data import Collator, ReadOptions, read_rows, tokenize
from rheostat.errors import CheckpointError, OptionError, RheostatError
from rheostat.evaluation import evaluate_budgets
from rheostat.recipe import TrainOptions

QUICK = TrainOptions(
    min_heads_per_layer=0,  # 0.12 of a tiny model is below one head a layer
    warm_epochs=2,
    soft_epochs=0,
    adapt_epochs=1,
    batch_size=16,
    neuron_block=8,
    calibration_rows=32,
    learning_rate=3e-3,
    adapt_learning_rate=1e-3,
)
BUDGETS = (0.6, 0.4)
PER_BUDGET = ("recovered", "static", "specialist")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_folder(tmp_path_factory.mktemp("base") / "model"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_data(tmp_path_factory.mktemp("data")))


@pytest.fixture(scope="module")
def done(model: str, data: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Line]]:
    out = tmp_path_factory.mktemp("compare") / "out"
    return out, compare(model, data, out, methods=list(METHODS), budgets=BUDGETS, options=QUICK, seeds=(0, 1))


def of(lines: list[Line], method: str) -> list[Line]:
    return [line for line in lines if line.method == method]


def test_every_method_has_its_lines_and_models(done: tuple[Path, list[Line]]) -> None:
    _, lines = done
    assert {line.method for line in lines} == set(METHODS)
    for line in lines:
        assert line.seeds == (0, 1)
        assert line.models == (2 if line.method in PER_BUDGET else 1)
        assert line.below_low <= line.below_dense <= line.below_high
        assert line.mean == pytest.approx(np.mean(line.accuracies))
    for method in ("post-hoc", *PER_BUDGET):
        assert [line.budget for line in of(lines, method)] == [0.6, 0.4]
    for method in ("sandwich", "straight-through"):
        assert [line.budget for line in of(lines, method)] == [1.0, 0.6, 0.4]


def test_a_cut_model_costs_at_most_its_budget_and_a_soft_one_its_estimate(done: tuple[Path, list[Line]]) -> None:
    _, lines = done
    for line in lines:
        if line.budget is not None and line.method != "soft":
            assert line.budget - 0.1 < line.share <= line.budget
    assert [line.share for line in of(lines, "dense")] == [1.0]
    assert 0.0 < of(lines, "fewer-layers")[0].share <= 0.6
    assert all(0.0 < line.share < 1.0 and line.share not in BUDGETS for line in of(lines, "soft"))


def test_epochs_are_counted_from_the_pretrained_encoder(done: tuple[Path, list[Line]]) -> None:
    _, lines = done
    expected = {
        "dense": 2.0, "dense-equal": 3.0, "post-hoc": 2.0, "recovered": 3.0, "static": 3.25, "specialist": 3.0,
        "fewer-layers": 3.0, "linear": 0.0, "sandwich": 3.0, "straight-through": 3.25, "soft": 2.25,
        "scratch": 3.25, "scratch-soft": 2.25,
    }  # fmt: skip
    assert {line.method: line.epochs for line in lines} == expected
    in_all = {line.method: line.total_epochs for line in lines}
    assert in_all == {**expected, "recovered": 4.0, "static": 4.5, "specialist": 4.0}  # two models on one dense
    assert all(line.minutes > 0 for line in lines)


def test_the_table_says_what_the_saved_checkpoint_answers(done: tuple[Path, list[Line]], data: str) -> None:
    out, lines = done
    loaded = rheostat.load(out / "seed-1" / "sandwich")
    rows, _ = read_rows(str(Path(data) / "test.csv"), ReadOptions(task="single-label"))
    tokens = tokenize(rows, loaded.tokenizer, labels=loaded.info.labels, task="single-label", max_length=32)
    found = evaluate_budgets(loaded, tokens.dataset, Collator(loaded.tokenizer), [1.0, *BUDGETS], progress=False)
    assert [100 * quality.accuracy for quality in found] == pytest.approx(
        [line.accuracies[1] for line in of(lines, "sandwich")]
    )


def test_checkpoints_of_single_budgets_go_and_those_that_others_start_from_stay(done: tuple[Path, list[Line]]) -> None:
    out, _ = done
    folders = {path.name for path in (out / "seed-0").iterdir() if path.is_dir()}
    assert folders == {"dense", "sandwich", "first-1"}


def test_a_second_call_trains_nothing(
    done: tuple[Path, list[Line]], model: str, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, lines = done

    def never(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(runner, "train", never)
    monkeypatch.setattr(runner, "linear_logits", never)
    again = compare(model, data, out, methods=list(METHODS), budgets=BUDGETS, options=QUICK, seeds=(0, 1))
    assert again == lines
    some = compare(model, data, out, methods=["sandwich"], budgets=(0.4,), options=QUICK, seeds=(1,))
    assert [(line.method, line.budget) for line in some] == [("dense", None), ("sandwich", 1.0), ("sandwich", 0.4)]


def test_a_stopped_comparison_goes_on_to_the_same_table(
    done: tuple[Path, list[Line]], model: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = runner.train, []

    def stopping(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(runner, "train", stopping)
    asked: dict[str, Any] = {"methods": ["recovered", "sandwich"], "budgets": BUDGETS, "options": QUICK, "seeds": (0,)}
    with pytest.raises(KeyboardInterrupt):
        compare(model, data, tmp_path / "out", **asked)
    lines = compare(model, data, tmp_path / "out", **asked)
    assert len(calls) == 5  # dense, recovered at 0.6, 0.4 (stopped), 0.4, sandwich
    of_first = {(line.method, line.budget): line.accuracies[0] for line in done[1]}
    assert {(line.method, line.budget): line.accuracies[0] for line in lines}.items() <= of_first.items()


def test_a_checkpoint_without_its_answers_is_read_and_not_trained_again(
    done: tuple[Path, list[Line]], model: str, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, lines = done
    (out / "seed-0" / "sandwich@0.4.npz").unlink()
    monkeypatch.setattr(runner, "train", None)
    again = compare(model, data, out, methods=["sandwich"], budgets=BUDGETS, options=QUICK, seeds=(0, 1))
    assert [line.accuracies for line in of(again, "sandwich")] == [line.accuracies for line in of(lines, "sandwich")]


def test_a_folder_of_another_recipe_or_of_something_else_is_refused(
    done: tuple[Path, list[Line]], model: str, data: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match="same arguments"):
        compare(model, data, done[0], options=replace(QUICK, adapt_epochs=2))
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="something else"):
        compare(model, data, tmp_path, options=QUICK)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ["magic"]}, "methods must be among dense, .*; got magic"),
        ({"budgets": (1.0,)}, "budgets must hold one below 1"),
        ({"budgets": (0.5, 1.5)}, "budget must be in"),
        ({"seeds": ()}, "got no seed"),
        ({"budgets": (0.5, 0.0001)}, "budget must be at least"),
        ({"options": replace(QUICK, adapt="none")}, "adapt must be a way to train"),
        ({"data": "/no/such/rows.csv"}, "rows.csv"),
        ({"model_name": "/no/such/model"}, "model must be a folder or Hub name"),
    ],
)
def test_what_cannot_be_compared_is_refused_at_once(
    changes: dict[str, Any], message: str, model: str, data: str, tmp_path: Path
) -> None:
    asked: dict[str, Any] = {"model_name": model, "data": data, "options": QUICK, **changes}
    with pytest.raises(RheostatError, match=message):
        compare(out=tmp_path / "out", **asked)
    assert not (tmp_path / "out").exists()


def test_multi_label_data_without_a_test_part_is_read_on_validation_rows(model: str, tmp_path: Path) -> None:
    write_csv(tmp_path / "train.csv", multi_label_rows(60, seed=1))
    labels = ("bad", "good", "soso")
    base = str(tiny_folder(tmp_path / "three", labels=labels))
    read = ReadOptions(task="multi-label", label_separator="|", validation_share=0.3)
    comparison = Comparison(base, str(tmp_path / "train.csv"), tmp_path / "out", replace(QUICK, warm_epochs=1), read)
    outcomes, answers = comparison.outcomes(("dense", "linear", "sandwich"), (0.5,), (0, 1))
    assert answers[0].rows != answers[1].rows  # another seed holds out other rows
    assert {o.logits.shape for o in outcomes} == {answers[0].labels.shape}
    assert len(lines_of(readings_of(outcomes, answers))) == 4


def test_a_fixed_budget_has_gates_of_its_own_and_a_specialist_the_whole_recipe() -> None:
    static, specialist = (METHODS[name].plans(TrainOptions(), BUDGETS, ()) for name in ("static", "specialist"))
    for one, other in zip(static, specialist, strict=True):
        assert one.options != other.options and one.options.train_budgets == other.options.train_budgets
        assert one.options.soft_learning_rate > 0.0 == other.options.soft_learning_rate


def test_labels_of_the_model_keep_their_order_whatever_is_trained(data: str, tmp_path: Path) -> None:
    swapped = str(tiny_folder(tmp_path / "model", labels=("good", "bad")))
    lines = compare(swapped, data, tmp_path / "out", methods=["dense", "scratch"], budgets=(0.5,), options=QUICK)
    for folder in ("dense",):
        assert rheostat.load(tmp_path / "out" / "seed-0" / folder).info.labels == ("good", "bad")
    assert {line.method for line in lines} == {"dense", "scratch"}


def test_units_are_never_ranked_on_the_rows_that_are_read(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, seen = runner.train, []

    def watched(start: str, source: str, out: Path, options: TrainOptions, **kwargs: Any) -> Any:
        seen.append(options.calibration_split)
        return real(start, source, out, options, **kwargs)

    monkeypatch.setattr(runner, "train", watched)
    for test, expected in ((True, "validation"), (False, "train")):
        data = str(tiny_data(tmp_path / f"data-{test}", test=test))
        compare(model, data, tmp_path / f"out-{test}", methods=["post-hoc"], budgets=(0.5,), options=QUICK)
        assert seen[-1] == expected


# --- the table ---------------------------------------------------------------------------------------------


def test_a_table_can_be_checked_by_hand() -> None:
    labels = np.array([0, 0, 1, 1])
    answers = {seed: Answers("single-label", "same", labels) for seed in (0, 1)}

    def outcome(method: str, seed: int, classes: list[int]) -> Outcome:
        logits = np.eye(2, dtype=np.float32)[classes]
        return Outcome(method, method, seed, None if method == "dense" else 0.5, 0.5, 3.0, 120.0, logits)

    found = [
        outcome("dense", 0, [0, 0, 1, 1]), outcome("dense", 1, [0, 0, 1, 0]),
        outcome("sandwich", 0, [0, 0, 1, 0]), outcome("sandwich", 1, [0, 1, 1, 0]),
    ]  # fmt: skip
    dense, ours = lines_of(readings_of(found, answers))
    assert (dense.accuracies, ours.accuracies) == ((100.0, 75.0), (75.0, 50.0))
    assert ours.mean == 62.5 and ours.below_dense == 25.0 and ours.minutes == 2.0
    assert ours.deviation == pytest.approx(17.678, abs=1e-3)
    assert (ours.seeds_low, ours.seeds_high) == pytest.approx((62.5 - 12.706 * 12.5, 62.5 + 12.706 * 12.5))
    text = to_markdown([dense, ours])
    assert "| sandwich | 0.5 | 0.500 | 62.50 ± 17.68 | 25.00 [" in text


def test_seeds_on_the_same_rows_are_averaged_a_row_at_a_time() -> None:
    rng = np.random.default_rng(0)
    hard = rng.random(400) < 0.5
    right = [np.ones(400, dtype=bool)] * 2
    wrong = [~hard] * 2  # the same rows are wrong for both seeds
    same, apart = difference(right, wrong, ["a", "a"]), difference(right, wrong, ["a", "b"])
    assert same[0] == apart[0] == pytest.approx(100 * hard.mean())
    assert same[2] - same[1] > 1.2 * (apart[2] - apart[1])


# --- the linear model --------------------------------------------------------------------------------------


def test_the_linear_model_learns_words_and_never_predicts_a_class_without_rows() -> None:
    texts = [f"{word} thing number {i}" for i in range(20) for word in ("red", "green", "blue")]
    labels = np.array([0, 1, 3] * 20)
    logits = linear_logits(texts, labels, ["a blue one", "red"], task="single-label", classes=4)
    assert logits.shape == (2, 4)
    assert logits.argmax(1).tolist() == [3, 0]
    two = linear_logits(texts[:2] * 9, np.array([0, 1] * 9), ["green", "red"], task="single-label", classes=2)
    assert two.argmax(1).tolist() == [1, 0]
    table = np.array([[1, 0], [0, 1], [1, 1]] * 20)
    multi = linear_logits(texts, table, ["red", "green", "blue"], task="multi-label", classes=2)
    assert (multi > 0).astype(int).tolist() == [[1, 0], [0, 1], [1, 1]]


# --- the command -------------------------------------------------------------------------------------------


def test_the_command_prints_the_table_and_leaves_it(model: str, data: str, tmp_path: Path) -> None:
    command = ["compare", "--model", model, "--data", data, "--out", str(tmp_path / "out"), "--methods", "sandwich"]
    settings = ["warm_epochs=1", "soft_epochs=0", "adapt-epochs=1", "batch_size=16", "neuron_block=8"]
    given = [part for setting in settings for part in ("--set", setting)]
    found = CliRunner().invoke(app, [*command, "--budgets", "0.5", *given])
    assert found.exit_code == 0, found.output
    assert found.stdout.startswith("| method | budget |")
    table = json.loads((tmp_path / "out" / "table.json").read_text("utf-8"))
    assert [(line["method"], line["budget"]) for line in table] == [
        ("dense", None),
        ("sandwich", 1.0),
        ("sandwich", 0.5),
    ]
    found = CliRunner().invoke(app, [*command, "--budgets", "0.5", "--json", *given])
    assert json.loads(found.stdout) == table


def test_settings_become_options() -> None:
    given = ["adapt_epochs=1.5", "adapt=straight-through", "batch-size=8", "adapt_dropout=false", "max_length=64"]
    assert chosen_options([*given, "train_budgets=0.25,0.5"]) == TrainOptions(
        adapt_epochs=1.5, adapt="straight-through", batch_size=8, adapt_dropout=False, max_length=64,
        train_budgets=(0.5, 0.25),
    )  # fmt: skip
    assert chosen_options([]) == TrainOptions()
    assert parse_seeds("0, 2,2") == (0, 2)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("adapt_epochs", "NAME=VALUE"),
        ("speed=3", "name among"),
        ("seed=3", "name among"),
        ("batch_size=2.5", "must be a number"),
        ("batch_size=true", "must be a number"),
        ("adapt_dropout=3", "true or false"),
        ("learning_rate=fast", "must be a number"),
        ("batch_size=1e999", "must be a number"),
        ("adapt=fast", "adapt must be one of"),
    ],
)
def test_a_wrong_setting_is_refused(setting: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        chosen_options([setting])


@pytest.mark.parametrize("text", ["", "a", "1,-2", "0.5"])
def test_wrong_seeds_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="whole numbers"):
        parse_seeds(text)
