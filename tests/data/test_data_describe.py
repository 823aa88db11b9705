"""The report of `rheostat data`: everything it says is right, as values, as JSON and on the screen."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from word_tokenizer import WORDS

from rheostat.data import ReadOptions, describe
from rheostat.errors import DataError

FILES = Path(__file__).parent / "files"


def shown(report, width=160):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(report.render())
    return console.export_text()


@pytest.fixture
def folder(write, tmp_path):
    lines = [f"{' '.join(WORDS[: i % 10 + 1])} {i},{'ab'[i % 2]}" for i in range(40)]
    write("\n".join(["text,label", *lines, lines[0], "?!,a", ",b", "broken \ufffd,a", f"{WORDS[0]} 0,b"]), "train.csv")
    write("\n".join(["text,label", lines[0], lines[1], "new,a"]), "test.csv")
    return str(tmp_path)


def test_every_figure_of_a_folder(folder, tokenizer):
    report = describe(folder, tokenizer=tokenizer, max_length=10)
    train, test = report.parts["train"], report.parts["test"]
    assert (report.task, report.columns, report.has_pairs) == ("single-label", ("text", "label"), False)
    assert (train.rows, test.rows) == (45, 3)
    assert train.classes == {"a": 23, "b": 22} and test.classes == {"a": 2, "b": 1}
    assert (
        train.empty_texts.rows == (43,) and train.punctuation_only.rows == (42,) and train.damaged_texts.rows == (44,)
    )
    assert train.repeats == 2
    assert train.contradicting_repeats.rows == (1, 41, 45)
    assert report.overlaps == {"test in train": 2}
    lengths = train.token_lengths
    assert (lengths.limit, lengths.median, lengths.p95, lengths.longest) == (10, 8, 13, 13)
    assert (lengths.truncated, lengths.truncated_share) == (12, 12 / 45)
    assert any("of 45 rows held out" in note for note in report.notes)


def test_json_is_plain_and_says_the_same(folder, tokenizer):
    report = describe(folder, tokenizer=tokenizer, max_length=10)
    loaded = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert loaded["parts"]["train"]["empty_texts"] == {"count": 1, "rows": [43]}
    assert loaded["parts"]["train"]["classes"] == {"a": 23, "b": 22}
    assert loaded["parts"]["train"]["token_lengths"]["truncated"] == 12
    assert loaded["overlaps"] == {"test in train": 2}


def test_the_table_shows_what_was_understood(folder, tokenizer):
    text = shown(describe(folder, tokenizer=tokenizer, max_length=10))
    for part in (
        "single-label: one label a row",
        "1 (row 43)",
        "3 (rows 1, 41, 45)",
        "12 (26.7%) at 10",
        "8 / 13 / 13",
    ):
        assert part in text
    assert "overlap: test in train" in text


def test_csv_facts_and_a_file_without_a_tokenizer():
    report = describe(str(FILES / "03_semicolon.csv"), ReadOptions(delimiter=";"))
    assert (report.delimiter, report.encoding) == (";", "utf-8")
    assert report.parts["train"].token_lengths is None
    text = shown(report)
    assert "';'" in text and "utf-8" in text and "text, label" in text


def test_unicode_labels_and_markup_survive(write):
    report = describe(write("text,label\n" + "x,[bold]a[/bold]\ny,доставка 📦\n" * 3))
    text = shown(report)
    assert "[bold]a[/bold]" in text and "доставка 📦" in text
    assert shown(describe(str(FILES / "09_unicode_labels.csv")), width=20)  # narrow screens do not fail


def test_many_classes_are_cut_on_the_screen_and_whole_in_json(write):
    report = describe(write("text,label\n" + "".join(f"t{i},class {i % 60}\n" for i in range(120))))
    assert "and 10 more" in shown(report)
    assert len(report.to_json()["parts"]["train"]["classes"]) == 60


def test_regression_shows_the_range_of_targets(write):
    report = describe(write("text,label\n" + "".join(f"t{i},{i}.5\n" for i in range(20))))
    assert report.task == "regression" and report.parts["train"].target_range == (0.5, 19.5)
    assert "0.5 to 19.5" in shown(report)


def test_rows_that_training_would_refuse_are_described_and_said_so(write):
    report = describe(write("text,label\nx,a\ny,a\n"))
    assert any("not ready for training" in note and "at least 2 classes" in note for note in report.notes)
    assert "not ready for training" in shown(report)


def test_rows_that_cannot_be_read_are_an_error(write):
    with pytest.raises(DataError, match="line 2: a row must have 2 fields"):
        describe(write("text,label\nx,y,z\n"))


@pytest.mark.parametrize("name", ["12_no_header.csv", "06_empty_text.csv"])
def test_describe_and_read_corpus_say_the_same(name):
    from rheostat.data import read_corpus

    options = ReadOptions(header=not name.startswith("12"))
    corpus, report = read_corpus(str(FILES / name), options), describe(str(FILES / name), options)
    assert tuple(report.parts["train"].classes) == corpus.labels
    assert set(report.notes) <= set(corpus.notes)


def test_importing_loads_nothing_heavy():
    code = (
        "import sys, rheostat.data; "
        "print([m for m in ('torch', 'transformers', 'datasets', 'pyarrow', 'pandas', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("package", ["datasets", "pyarrow"])
def test_a_missing_package_comes_with_the_command_that_installs_it(write, monkeypatch, package):
    from rheostat.data.optional import require
    from rheostat.errors import MissingDependencyError

    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=r"datasets is not installed; .*pip install 'rheostat\[train\]'"):
        require(package)
