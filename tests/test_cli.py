"""The command line: help, JSON on stdout, errors in one line, going on after Ctrl-C and after a kill."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny import labelled_rows, largest_difference, tiny_data, tiny_folder, weights, write_csv, write_json
from typer.testing import CliRunner, Result

import rheostat
from rheostat import pipeline
from rheostat.cli.app import app
from rheostat.recipe import TrainOptions

COMMANDS = ("train", "demo", "evaluate", "materialize", "predict", "measure", "data")
QUICK = TrainOptions(
    warm_epochs=1,
    soft_epochs=0.5,
    adapt_epochs=0.5,
    batch_size=16,
    neuron_block=8,
    budgets=(1.0, 0.6, 0.3),
)
QUICK_ARGUMENTS = [
    *("--warm-epochs", "1", "--soft-epochs", "0.5", "--adapt-epochs", "0.5", "--batch-size", "16"),
    *("--neuron-block", "8", "--budgets", "1.0,0.6,0.3", "--no-measure"),
]


def run(*arguments: object, text: str | None = None) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=text)


def fails(*arguments: object, says: str, text: str | None = None) -> str:
    """Assert a user's mistake: exit code 2, one line on stderr, nothing on stdout; return the line."""
    found = run(*arguments, text=text)
    assert found.exit_code == 2, (found.exit_code, found.output, found.exception)
    assert found.stdout == ""
    last = found.stderr.splitlines()[-1]
    assert last.startswith("Error: "), found.stderr
    assert sum(line.startswith("Error") for line in found.stderr.splitlines()) == 1
    assert re.search(says, last), last
    return last


def fails_at_once(*arguments: object, says: str, text: str | None = None) -> None:
    """Assert that the error is all there is: nothing was read, loaded or started before."""
    found = run(*arguments, text=text)
    fails(*arguments, says=says, text=text)
    assert len(found.stderr.splitlines()) == 1, found.stderr


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, data, and a trained checkpoint ``run``."""
    home = tmp_path_factory.mktemp("cli")
    tiny_folder(home / "model")
    tiny_data(home / "data")
    pipeline.train(str(home / "model"), str(home / "data"), home / "run", QUICK, measure_latency=False)
    return home


@pytest.fixture(autouse=True)
def _in_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(home)
    yield
    for path in ("small", "out", "out.partial"):
        shutil.rmtree(home / path, ignore_errors=True)


# --- help --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_has_an_example_and_explains_every_option(command: str) -> None:
    found = run(command, "--help")
    assert found.exit_code == 0
    assert f"Example: rheostat {command}" in " ".join(found.stdout.split())
    assert found.stderr == ""
    for line in found.stdout.splitlines():
        bare = re.match(r"^│ +\*? *--[\w-]+( +-\w)? +[A-Z]* *│$", line)
        assert bare is None, f"no help: {line}"


def test_the_first_help_lists_the_commands() -> None:
    found = run("--help")
    assert all(re.search(rf"│ {command} ", found.stdout) for command in COMMANDS)
    assert run("--version").stdout.strip() == rheostat.__version__


def test_help_loads_no_torch() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from rheostat.cli.app import app\n"
        f"for command in {COMMANDS!r}: assert CliRunner().invoke(app, [command, '--help']).exit_code == 0\n"
        "heavy = {'torch', 'transformers', 'datasets', 'onnxruntime', 'numpy.linalg'} & set(sys.modules)\n"
        "assert not heavy - {'numpy.linalg'}, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_python_dash_m_runs_the_same_command() -> None:
    done = subprocess.run([sys.executable, "-m", "rheostat", "bogus"], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "Error: No such command 'bogus'. See rheostat --help\n".replace(
        "rheostat --", "python -m rheostat --"
    )


# --- a user's mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        ("0", r"in \(0, 1\]; got 0.0"),
        ("1.01", r"in \(0, 1\]; got 1.01"),
        ("-1", r"in \(0, 1\]; got -1.0"),
        ("nan", r"in \(0, 1\]; got nan"),
        ("half", r"a number in \(0, 1\]; got 'half'.*such as 0.5"),
        ("True", r"a number in \(0, 1\]; got 'True'"),
        ("", r"a number in \(0, 1\]; got ''"),
        ("0.001", r"at least 0\.\d+, the share of what can't be removed; got 0.001"),
    ],
)
def test_budgets_that_cannot_be_had(budget: str, says: str) -> None:  # C03
    fails_at_once("predict", "run", "great", f"--budget={budget}", says=says)
    fails_at_once("materialize", "run", "small", f"--budget={budget}", says=says)
    assert not Path("small").exists()
    if budget:
        fails("evaluate", "run", "--data", "data/test.csv", f"--budgets=1.0,{budget}", says=says)
        fails_at_once("measure", "run", f"--budgets=1.0,{budget}", says=says)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["bogus"], "No such command 'bogus'.* See .*--help"),
        (["train", "--model", "model"], "Missing option '--data'.* See .* train --help"),
        (["train", "--bugets", "1"], "No such option: --bugets"),
        (["predict"], "(?i)Missing argument 'folder'"),
        (["train", "--model", "m", "--data", "d", "--out", "o", "--batch-size", "0"], "--batch-size"),
        (["train", "--model", "m", "--data", "d", "--out", "o", "--adapt", "x"], "adapt must be one of sandwich"),
        (["train", "--model", "m", "--data", "d", "--out", "o", "--budgets", ","], "budgets must be a comma-separated"),
        (["train", "--model", "m", "--data", "d", "--out", "o", "--encoding", "klingon"], "encoding must be one"),
        (["measure", "run", "--rounds", "2"], "--rounds"),
        (["measure", "run", "--form", "soft"], "form must be one of materialized, sliced; got 'soft'"),
        (["measure", "run", "--length", "33"], "length must be at most 32, what the model takes; got 33"),
        (["evaluate", "run", "--data", "data/test.csv", "--form", "hard"], "form must be one of sliced, gated, soft"),
        (["predict", "nowhere", "great"], "checkpoint must be a folder; got 'nowhere'"),
        (["predict", "model", "great"], "'model' must hold rheostat.json"),
        (["predict", "run", "great", "--budget", "0.5", "--max-drop", "1"], "exactly one .* got --budget and"),
        (["materialize", "run", "small", "--budget", "0.5", "--max-drop", "1"], "exactly one .* got --budget and"),
        (["materialize", "nowhere", "small"], "exactly one .* got neither.* Try --budget 0.5"),
        (["materialize", "run", "small", "--max-drop", "-1"], "at least 0"),
        (["materialize", "run", "small", "--max-drop", "nan"], "at least 0"),
        (["materialize", "nowhere", "data", "--budget", "0.5"], "output must be a new folder.*'data'"),
        (["data", "data", "--model", "empty"], "tokenizer|folder"),
    ],
)
def test_other_mistakes_are_one_line_and_come_at_once(arguments: list[str], says: str) -> None:
    fails_at_once(*arguments, says=says)


def test_nothing_at_all_shows_the_help() -> None:
    found = run()
    assert "Usage" in found.stdout
    assert found.stderr == ""


@pytest.mark.parametrize("family", ["t5", "albert", "gpt_neox"])
def test_unknown_families_are_refused_with_the_known_ones(family: str, tmp_path: Path) -> None:  # C14
    folder = tmp_path / family
    folder.mkdir()
    write_json(folder / "config.json", {"model_type": family})
    says = f"must be one of bert, .*roberta.*; got '{family}'"
    fails_at_once("train", "--model", folder, "--data", "data", "--out", "out", says=says)


def test_data_that_cannot_be_used(tmp_path: Path) -> None:
    start = ["train", "--model", "model", "--out", "out", *QUICK_ARGUMENTS, "--data"]
    fails_at_once(*start, "data", "--text-column", "txet", says="'txet' not found")
    fails_at_once(*start, tmp_path / "no.csv", says="no.csv")
    one = write_csv(tmp_path / "one.csv", [(f"word{i}", "good") for i in range(9)])
    fails(*start, one, says="good")
    assert not Path("out.partial").exists()
    strange = write_csv(tmp_path / "strange.csv", [("word1", "good"), ("word2", "ugly")])
    fails("evaluate", "run", "--data", strange, says="ugly")  # C46
    fails_at_once("evaluate", "run", "--data", "data/test.csv", "--label-column", "stars", says="'stars' not found")


def copy_of(name: str, target: Path) -> Path:
    return Path(shutil.copytree(name, target))


def test_damaged_and_newer_checkpoints_are_named(tmp_path: Path) -> None:
    newer = copy_of("run", tmp_path / "newer")
    manifest = json.loads((newer / "rheostat.json").read_text())
    write_json(newer / "rheostat.json", {**manifest, "format_version": 99})
    cut = copy_of("run", tmp_path / "cut")
    weights_file = cut / "model.safetensors"
    weights_file.write_bytes(weights_file.read_bytes()[:-100])
    halfway = copy_of("run", tmp_path / "halfway")
    (halfway / "rheostat.json").unlink()
    for folder, says in ((newer, "format_version .* got 99"), (cut, "cut short"), (halfway, "must hold rheostat.json")):
        fails_at_once("predict", folder, "great", says=says)
        fails_at_once("measure", folder, says=says)


def test_a_foreign_output_folder_stays_as_it_is() -> None:
    before = sorted(path.name for path in Path("data").iterdir())
    fails_at_once("train", "--model", "model", "--data", "data", "--out", "data", says="output must be a new folder")
    fails_at_once("materialize", "run", "data", "--budget", "0.5", says="output must be a new folder")
    assert sorted(path.name for path in Path("data").iterdir()) == before


def test_an_output_that_cannot_be_written_is_one_line() -> None:
    fails("materialize", "run", "model/config.json/small", "--budget", "0.5", says="config.json")


# --- results -----------------------------------------------------------------------------------------------


def json_of(*arguments: object, text: str | None = None) -> Any:
    found = run(*arguments, "--json", text=text)
    assert found.exit_code == 0, (found.output, found.exception)
    return json.loads(found.stdout)


def test_train_prints_json_on_stdout_and_progress_on_stderr() -> None:
    found = run("train", "--model", "model", "--data", "data", "--out", "out", *QUICK_ARGUMENTS, "--json")
    assert found.exit_code == 0, found.output
    result = json.loads(found.stdout)
    assert [point["budget"] for point in result["points"]] == [0.3, 0.6, 1.0]
    assert {"warm", "soft", "adapt"} == set(result["stages"])
    assert "Checkpoint: out" in found.stderr
    assert "Tokenizing" not in found.stdout


def test_evaluate_repeats_the_validation_table_of_the_checkpoint() -> None:
    result = json_of("evaluate", "run", "--data", "data/validation.csv", "--budgets", "1.0,0.6,0.3")
    saved = {record["budget"]: record for record in rheostat.load("run").info.evaluation}
    for point in result["points"]:
        for name in ("accuracy", "macro_f1", "drop_points", "drop_low", "drop_high"):
            assert point[name] == saved[point["budget"]][name]
        assert point["share"] <= point["budget"]
    assert result["conditions"] == {"data": "validation.csv", "rows": 24, "form": "sliced"}
    gated = json_of("evaluate", "run", "--data", "data/validation.csv", "--budgets", "1.0,0.6,0.3", "--form", "gated")
    assert [p["accuracy"] for p in gated["points"]] == [p["accuracy"] for p in result["points"]]


def test_evaluate_prints_a_whole_table_without_a_terminal() -> None:
    found = run("evaluate", "run", "--data", "data/test.csv", "--budgets", "1.0,0.6")
    assert found.exit_code == 0
    assert "0.6" in found.stdout
    assert "…" not in found.stdout


def test_windows_line_ends_and_a_byte_order_mark_change_nothing(tmp_path: Path) -> None:
    text = Path("data/test.csv").read_text()
    windows = tmp_path / "test.csv"
    windows.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    plain = json_of("evaluate", "run", "--data", "data/test.csv", "--budgets", "1.0")
    assert json_of("evaluate", "run", "--data", windows, "--budgets", "1.0") == plain


def test_predict_answers_texts_lines_of_stdin_and_at_a_budget() -> None:
    texts = ["great word1", "word2 awful word3", "middling"]
    given = json_of("predict", "run", *texts, "--budget", "0.6")
    assert [row["text"] for row in given] == texts
    assert all(row["budget"] == 0.6 and row["label"] in ("bad", "good") for row in given)
    assert json_of("predict", "run", "--budget", "0.6", text="\r\n".join(texts) + "\r\n") == given
    full = json_of("predict", "run", *texts)
    assert all(row["budget"] == 1.0 for row in full)
    assert [row["score"] for row in full] != [row["score"] for row in given]
    lines = run("predict", "run", *texts).stdout.splitlines()
    assert [line.split("\t")[2] for line in lines] == texts
    assert json_of("predict", "run", text="") == []


def test_materialize_writes_the_model_that_the_budget_means() -> None:
    result = json_of("materialize", "run", "small", "--budget", "0.5")
    small, full = rheostat.load("small"), rheostat.load("run")
    assert result["folder"] == "small"
    assert (
        result["params"] == sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in full.base.parameters())
    )
    assert result["share"] == small.rheostat.share <= 0.5
    answers = json_of("predict", "small", "great word1")
    sliced = json_of("predict", "run", "great word1", "--budget", "0.5")
    assert answers[0]["score"] == pytest.approx(sliced[0]["score"], abs=1e-5)
    fails_at_once("predict", "small", "great", "--budget", "0.5", says="one size")
    fails_at_once("evaluate", "small", "--data", "data/test.csv", says="one size")
    assert run("materialize", "run", "small", "--budget", "0.3").exit_code == 0  # over an older one


def test_max_drop_takes_the_cheapest_budget_of_the_validation_table(home: Path, tmp_path: Path) -> None:
    folder = copy_of("run", tmp_path / "run")
    model = rheostat.load(folder)
    accuracies = {1.0: 0.9, 0.6: 0.895, 0.3: 0.8}
    manifest = json.loads((folder / "rheostat.json").read_text())
    for record in manifest["info"]["evaluation"]:
        record["accuracy"] = accuracies[record["budget"]]
        record["drop_points"] = 90 - 100 * record["accuracy"]
    write_json(folder / "rheostat.json", manifest)
    for drop, budget in ((0.0, 1.0), (0.5, 0.6), (50.0, 0.3)):
        found = run("materialize", folder, "small", "--max-drop", drop, "--json")
        assert json.loads(found.stdout)["budget"] == budget
        assert re.search(rf"Budget {budget:g}: .* points below full .*interval.* on 24 validation rows", found.stderr)
        assert json_of("predict", folder, "great", "--max-drop", drop)[0]["budget"] == budget
    manifest["info"]["evaluation"] = []
    write_json(folder / "rheostat.json", manifest)
    fails_at_once("materialize", folder, "small", "--max-drop", "1", says="checkpoint has none")
    assert model.info.evaluation


def test_measure_says_all_that_one_needs_to_believe_it() -> None:
    arguments = ["run", "--budgets", "0.5", "--batch", "2", "--length", "8", "--rounds", "5"]
    result = json_of("measure", *arguments, "--form", "sliced")
    text = json.dumps(result)
    for word in ("cpu", "torch", "python", "threads", "noise", "0.5", "1.0", '"batch": 2', '"length": 8', "rounds"):
        assert word in text, word


def test_two_budgets_that_print_alike_are_measured_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    from rheostat import timing

    seen: list[list[str]] = []
    monkeypatch.setattr(timing, "measure", lambda variants, **kwargs: seen.append(list(variants)))
    timing.time_budgets(rheostat.load("run"), (0.9999999, 0.5), length=8)
    assert seen == [["1.0", "0.9999999", "0.5"]]


def test_the_usual_grid_is_cut_to_what_can_be_reached_but_a_wish_is_not(tmp_path: Path) -> None:
    wide = tmp_path / "wide"
    rheostat.wrap(rheostat.load("run").base, cost="heads", tokenizer=rheostat.load("run").tokenizer).save_pretrained(
        wide
    )
    manifest = json.loads((wide / "rheostat.json").read_text())
    manifest["info"] |= {"task": "single-label", "labels": ["bad", "good"]}
    write_json(wide / "rheostat.json", manifest)
    result = json_of("evaluate", wide, "--data", "data/test.csv")
    assert [point["budget"] for point in result["points"]] == [0.25, 0.35, 0.5, 0.75, 1.0]
    fails("evaluate", wide, "--data", "data/test.csv", "--budgets", "1.0,0.12", says="at least 0.25")


def test_data_is_described(tmp_path: Path) -> None:
    result = json_of("data", "data", "--model", "model")
    assert "good" in json.dumps(result)
    assert run("data", "data").exit_code == 0


# --- Ctrl-C and kills --------------------------------------------------------------------------------------

# 700 steps of some milliseconds; a checkpoint is written every 200.
SLOW = [*QUICK_ARGUMENTS, "--warm-epochs", "100", "--batch-size", "2"]


def start(home: Path, out: str, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "rheostat", "train", "--model", "model", "--data", "short.csv", "--out", out]
    return subprocess.Popen(
        [*command, *more], cwd=home, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def wait_for(condition: Any, process: subprocess.Popen[str], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "it never came that far"
        time.sleep(0.05)


def test_ctrl_c_and_a_kill_leave_a_run_that_the_same_command_finishes(home: Path) -> None:
    write_csv(home / "short.csv", labelled_rows(16))
    steps = home / "out.partial" / "warm-steps"
    process = start(home, "out", *SLOW)
    wait_for(lambda: any(steps.glob("checkpoint-*/trainer_state.json")), process)  # after 200 steps
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (130, "")
    assert "Traceback" not in stderr
    assert re.fullmatch(
        r"Interrupted: stopped at step \d+; run the same command again to go on", stderr.splitlines()[-1]
    )
    assert not (home / "out").exists()

    fails_at_once(
        "train", "--model", "model", "--data", "short.csv", "--out", "out", *QUICK_ARGUMENTS, says="--restart"
    )
    stopped_at = max(int(path.name.split("-")[1]) for path in steps.glob("checkpoint-*"))
    process = start(home, "out", *SLOW)  # goes on, and is killed without warning
    wait_for(lambda: any(int(p.parent.name[11:]) > stopped_at for p in steps.glob("*/trainer_state.json")), process)
    process.kill()
    process.communicate()
    assert not (home / "out").exists()

    arguments = ["train", "--model", "model", "--data", "short.csv", *SLOW]
    found = run(*arguments, "--out", "out")
    assert found.exit_code == 0, found.output
    assert "Going on with the run in out.partial" in found.stderr
    assert run(*arguments, "--out", "small").exit_code == 0  # never stopped
    assert largest_difference(weights(rheostat.load("out")), weights(rheostat.load("small"))) < 1e-6
