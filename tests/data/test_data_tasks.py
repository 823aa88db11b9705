"""Tasks: declared or detected and stated; labels are the names that were written, whatever they look like."""

from __future__ import annotations

import numpy as np
import pytest

from rheostat.data import ReadOptions, encode_labels, read_corpus, read_rows
from rheostat.data import tasks as tasks_module
from rheostat.errors import DataError


def table(labels, header="text,label"):
    return header + "\n" + "".join(f"t{number},{label}\n" for number, label in enumerate(labels))


@pytest.mark.parametrize(
    ("labels", "task", "count"),
    [
        (["a", "b"] * 9, "single-label", 2),
        (["1", "2", "3", "4", "5"] * 4, "single-label", 5),
        (["0", "1"] * 9, "single-label", 2),
        (["3", "7", "900"] * 6, "single-label", 3),
        (["true", "false"] * 9, "single-label", 2),
        (["True", "False"] * 9, "single-label", 2),
        (["yes", "no", "1"] * 6, "single-label", 3),
        (["-1", "0", "1"] * 6, "single-label", 3),
        (["0.5", "1.25", "3"] * 6, "regression", 0),
        (["-1e-3", "2", "3.0"] * 6, "regression", 0),
        ([str(number) for number in range(200)], "regression", 0),
        ([str(number % 60) for number in range(2000)], "single-label", 60),
        (["1.0", "2.0"] * 9, "single-label", 2),
        (["1.5", "NA?"] * 9, "single-label", 2),
    ],
)
def test_the_task_is_detected_and_stated(write, labels, task, count):
    corpus = read_corpus(write(table(labels)), ReadOptions(validation_share=0.2))
    assert corpus.task == task and len(corpus.labels) == count
    assert any(note.startswith(f"task: {task} (") for note in corpus.notes)
    if task == "single-label":
        assert set(corpus.train["label"]) == set(labels)


def test_a_declared_task_wins(write):
    path = write(table(["1", "2", "3"] * 6))
    corpus = read_corpus(path, ReadOptions(task="regression"))
    assert corpus.task == "regression" and corpus.labels == () and set(corpus.train["label"]) == {1.0, 2.0, 3.0}
    corpus = read_corpus(write(table(["1.50", "2.5"] * 9)), ReadOptions(task="single-label"))
    assert corpus.labels == ("1.50", "2.5")
    assert "task: single-label (as set)" in corpus.notes


# Regression


@pytest.mark.parametrize("bad", ["nan", "NaN", "", "NA", "None", "null", "inf", "-inf", "n/a"])
def test_a_missing_target_is_refused_by_row(write, bad):
    path = write(table(["0.5", bad, "1.5", "2", bad]))
    with pytest.raises(DataError) as caught:
        read_rows(path)
    assert f"labels must be finite numbers for regression; got {bad!r} in 2 rows: 2, 5. " in str(caught.value)


def test_targets_that_are_no_numbers_when_regression_is_declared(write):
    with pytest.raises(DataError, match=r"got 'high' in 1 row: 2\. Fill them in"):
        read_rows(write(table(["1", "high"])), ReadOptions(task="regression"))
    with pytest.raises(DataError, match=r"got '0,5' in 1 row: 1\. Write decimal points"):
        read_rows(write("text;label\nx;0,5\n"), ReadOptions(task="regression", delimiter=";"))
    with pytest.raises(DataError, match=r"labels must be finite numbers; got '1e999'"):
        read_rows(write(table(["1.5", "1e999"])))
    with pytest.raises(DataError, match="got '1_000' in 1 row: 1"):
        read_rows(write(table(["1_000", "2"])), ReadOptions(task="regression"))


def test_many_bad_targets_are_counted_and_the_first_ten_named(write):
    with pytest.raises(DataError, match=r"got 'nan' in 30 rows: 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, \.\.\."):
        read_rows(write(table(["0.5", "nan"] * 30)))


def test_targets_are_exact(write):
    rows, _ = read_rows(write(table(["0.1", "+2.5", "-.5", "5.", "1e-3", "2E+2"])))
    assert rows["label"][:] == [0.1, 2.5, -0.5, 5.0, 1e-3, 200.0]


# Several labels


def test_names_joined_by_a_separator(write):
    path = write(table(["red| blue ", "blue", "", "red||red", "green"]))
    rows, notes = read_rows(path, ReadOptions(label_separator="|"))
    assert rows["label"][:] == [["red", "blue"], ["blue"], [], ["red"], ["green"]]
    assert "task: multi-label (labels are split at '|')" in notes
    assert "classes: 3 ('blue' 2, 'green' 1, 'red' 2)" in notes
    assert "1 row without a label, taken as none of the classes" in notes


def test_several_labels_need_a_separator_or_lists(write):
    with pytest.raises(DataError, match=r"labels must be lists, or names with a separator.*--label-separator"):
        read_rows(write(table(["a", "b"])), ReadOptions(task="multi-label"))


def test_lists_are_refused_for_one_label_tasks(write):
    path = write('{"text": "x", "label": ["a"]}\n', "data.jsonl")
    for task in ("single-label", "regression"):
        with pytest.raises(DataError, match=rf"one value a row for {task}; got lists. Use --task multi-label"):
            read_rows(path, ReadOptions(task=task))


def test_joined_labels_are_noticed(write):
    _, notes = read_rows(write(table(["a", "b", "c", "a|b", "b|c", "a|c"])))
    assert any("labels look joined by '|'" in note and "--label-separator '|'" in note for note in notes)
    _, notes = read_rows(write(table(["a|b", "c|d"])))
    assert not any("joined" in note for note in notes)


# Labels


def test_empty_labels_are_refused_by_row(write):
    with pytest.raises(DataError, match=r"labels must not be empty; got '' in 2 rows: 2, 3\."):
        read_rows(write(table(["a", "", "\u00a0\u200b", "b"])))


def test_blanks_of_every_kind_are_taken_away_and_counted(write):
    rows, notes = read_rows(write(table(["a", " a", "a\u00a0", "\u200ba\u2003", "\ta", "a b"])))
    assert rows["label"][:] == ["a"] * 5 + ["a b"]
    assert "4 labels with blanks around, which were taken away" in notes


def test_look_alikes_are_noticed(write):
    _, notes = read_rows(write(table(["Spam", "spam", "ham"])))
    assert "labels 'Spam' and 'spam' are different classes: is that meant?" in notes
    _, notes = read_rows(write(table(["caf\u00e9", "cafe\u0301", "tea"])))
    assert any("are different classes: is that meant?" in note for note in notes)


def test_too_many_classes(write, monkeypatch):
    monkeypatch.setattr(tasks_module, "MAX_CLASSES", 5)
    with pytest.raises(DataError, match="at most 5 classes; got more"):
        read_rows(write(table("abcdef")))
    assert len(read_rows(write(table("abcde")))[0]) == 5


def test_a_label_of_its_own_in_each_row_cannot_be_split(write):
    with pytest.raises(DataError, match="some label must have two rows with different texts"):
        read_corpus(write(table("abcdef")))


# Numbers for labels


def test_encode_single_labels(write):
    rows, _ = read_rows(write(table(["b", "a", "b"])))
    encoded = encode_labels(rows, ("a", "b"), "single-label")
    assert encoded.dtype == np.int64 and encoded.tolist() == [1, 0, 1]


def test_encode_several_labels(write):
    rows, _ = read_rows(write(table(["b|a", "", "c"])), ReadOptions(label_separator="|"))
    encoded = encode_labels(rows, ("a", "b", "c", "d"), "multi-label")
    assert encoded.dtype == np.float32
    assert encoded.tolist() == [[1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0]]


def test_encode_targets(write):
    rows, _ = read_rows(write(table(["0.5", "2"])))
    encoded = encode_labels(rows, (), "regression")
    assert encoded.dtype == np.float32 and encoded.tolist() == [0.5, 2.0]


def test_encode_refuses_unknown_labels_and_lists_them(write):
    rows, _ = read_rows(write(table(["b", "x", "y", "x"])))
    with pytest.raises(DataError, match=r"got 2 unknown: 'x' \(2 rows\), 'y' \(1 row\)\. Known: 'a', 'b'"):
        encode_labels(rows, ("a", "b"), "single-label")
    rows, _ = read_rows(write(table([f"u{number}" for number in range(30)])))
    with pytest.raises(DataError, match=r"got 30 unknown: .* and 20 more"):
        encode_labels(rows, ("a",), "single-label")
