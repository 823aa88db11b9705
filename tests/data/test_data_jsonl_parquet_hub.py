"""JSON lines, Parquet and Hub data sets: the same rows and checks, with the types that these formats bring."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rheostat.data import ReadOptions, read_corpus, read_rows
from rheostat.errors import DataError

# JSON lines


def lines(*rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def test_jsonl_texts_come_back_as_written(write):
    texts = [
        "None",
        "",
        "a\nb",
        "\u2028 \x85",
        'q"',
        "\U0001f4e6",
        "\U0001f600",
    ]
    rows, _ = read_rows(write(lines(*[{"text": text, "label": "a"} for text in texts]), "data.jsonl"))
    assert rows["text"][:] == texts


@pytest.mark.parametrize("ending", ["jsonl", "ndjson", "json", "JSONL"])
def test_jsonl_byte_order_mark_crlf_and_blank_lines(write, ending):
    content = '\ufeff{"text": "x", "label": "a"}\r\n\r\n{"label": "b", "text": "y", "more": {"z": [1]}}'
    rows, notes = read_rows(write(content, f"data.{ending}"))
    assert rows[:] == {"text": ["x", "y"], "label": ["a", "b"]}
    assert "1 blank line left out" in notes


def test_jsonl_labels_keep_their_spelling(write):
    written = ['"a"', "1", "01e0", "1.50", "true", "false", '"true "', "123456789012345678901234567890", "-0"]
    content = "".join(f'{{"text": "t", "label": {label}}}\n' for label in written if label != "01e0")
    rows, _ = read_rows(write(content, "data.jsonl"))
    assert rows["label"][:] == ["a", "1", "1.50", "true", "false", "true", "123456789012345678901234567890", "0"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "y", "label": "b"', "a line must be a JSON object; got"),
        ('{"text": "y" "label": "b"}', "a line must be a JSON object; got"),
        ("nonsense", "a line must be a JSON object; got 'nonsense'"),
        ('["y", "b"]', "a line must be a JSON object; got list"),
        ('"y"', "a line must be a JSON object; got str"),
        ('{"text": "y"}', r"column 'label' not found; found \['text'\]"),
        ('{"text": 5, "label": "b"}', "text must be a string; got 5"),
        ('{"text": 0.5, "label": "b"}', "text must be a string; got '0.5'"),
        ('{"text": ["y"], "label": "b"}', "text must be a string; got"),
        ('{"text": "y", "label": {"a": 1}}', "a label must be a string, number or true/false; got"),
        ('{"text": "y", "label": ["a"]}', "label must be one value, as in the rows before; got"),
        ('{"text": "y", "text": "z", "label": "b"}', "key 'text' is there twice"),
        ('{"text": "half \\ud83d", "label": "b"}', r"holds half of a character \(\\ud83d\)"),
        ('{"text": "y", "label": "\\udc00"}', r"holds half of a character \(\\udc00\)"),
        ("[" * 100_000, "a line must be a JSON object; got"),
        ('{"text": "y", "label": ' + "9" * 5000 + "x}", "a line must be a JSON object; got"),
    ],
)
def test_jsonl_a_bad_line_is_named(write, line, message):
    path = write(lines({"text": "x", "label": "a"}) + "\n" + line + "\n", "data.jsonl")
    with pytest.raises(DataError, match=message) as caught:
        read_rows(path)
    assert str(caught.value).startswith(f"{path}, line 3: ")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_jsonl_an_array_comes_with_the_command_that_mends_it(write):
    with pytest.raises(DataError, match=r"jq -c"):
        read_rows(write('[\n{"text": "x", "label": "a"}\n]\n', "data.json"))


def test_jsonl_null_texts_are_empty_and_counted(write):
    rows, notes = read_rows(write(lines({"text": None, "label": "a"}, {"text": "x", "label": "b"}), "data.jsonl"))
    assert rows["text"][:] == ["", "x"]
    assert "1 null among the texts, read as empty" in notes and "empty texts: 1 (row 1)" in notes


def test_jsonl_null_labels_are_refused_by_row(write):
    with pytest.raises(DataError, match=r"labels must not be empty; got '' in 1 row: 2\."):
        read_rows(write(lines({"text": "x", "label": "a"}, {"text": "x", "label": None}), "data.jsonl"))


def test_jsonl_lists_are_several_labels(write):
    content = lines({"text": "x", "label": ["b", " a "]}, {"text": "y", "label": []}, {"text": "z", "label": [1, True]})
    rows, notes = read_rows(write(content, "data.jsonl"))
    assert rows["label"][:] == [["b", "a"], [], ["1", "true"]]
    assert "task: multi-label (labels are lists)" in notes
    assert "1 row without a label, taken as none of the classes" in notes


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_jsonl_without_rows(write, content):
    with pytest.raises(DataError, match=r"empty|no rows"):
        read_rows(write(content, "data.jsonl"))


# Parquet


def parquet(tmp_path, columns, name="data.parquet"):
    path = tmp_path / name
    pq.write_table(pa.table(columns), path)
    return str(path)


def test_parquet_texts_and_labels(tmp_path):
    texts = ["None", "", "nan", "\u2028", "a\nb"]
    rows, notes = read_rows(parquet(tmp_path, {"n": range(5), "text": texts, "label": list("aabba")}))
    assert rows[:] == {"text": texts, "label": list("aabba")}
    assert notes[0] == "Parquet, columns ['n', 'text', 'label']"


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([1, 2, 10], pa.int64(), ["1", "2", "10"]),
        ([1, 2, 10], pa.uint8(), ["1", "2", "10"]),
        ([True, False, True], pa.bool_(), ["true", "false", "true"]),
        (["a ", "b", "c"], pa.large_string(), ["a", "b", "c"]),
        (["a", "b", "a"], pa.dictionary(pa.int8(), pa.string()), ["a", "b", "a"]),
        ([["a"], ["b", "c"], None], pa.list_(pa.string()), [["a"], ["b", "c"], []]),
        ([[1], [2, 3], []], pa.large_list(pa.int32()), [["1"], ["2", "3"], []]),
        ([[1, 2], [2, 3], [4, 5]], pa.list_(pa.int32(), 2), [["1", "2"], ["2", "3"], ["4", "5"]]),
        ([0.5, 1.0, -2.25], pa.float32(), [0.5, 1.0, -2.25]),
    ],
    ids=str,
)
def test_parquet_label_types(tmp_path, values, kind, expected):
    path = parquet(tmp_path, {"text": ["x", "y", "z"], "label": pa.array(values, kind)})
    assert read_rows(path)[0]["label"][:] == expected


def test_parquet_text_types(tmp_path):
    for kind in (pa.large_string(), pa.dictionary(pa.int8(), pa.string()), pa.string_view()):
        path = parquet(tmp_path, {"text": pa.array(["x", None], pa.string()).cast(kind), "label": ["a", "b"]})
        rows, notes = read_rows(path)
        assert rows["text"][:] == ["x", ""]
        assert "1 null among the texts, read as empty" in notes


def test_parquet_errors(tmp_path, write):
    with pytest.raises(DataError, match=r"column 'label' not found; found \['text', 'labels'\]: use --label-column"):
        read_rows(parquet(tmp_path, {"text": ["x"], "labels": ["a"]}))
    with pytest.raises(DataError, match=r"text must be a column of strings; got int64\. Name another with --text"):
        read_rows(parquet(tmp_path, {"text": [1], "label": ["a"]}))
    with pytest.raises(DataError, match="label must be a column of strings, numbers, true/false or lists"):
        read_rows(parquet(tmp_path, {"text": ["x"], "label": [{"a": 1}]}))
    with pytest.raises(DataError, match="has columns and no rows"):
        read_rows(parquet(tmp_path, {"text": pa.array([], pa.string()), "label": pa.array([], pa.string())}))
    with pytest.raises(DataError, match="is not a readable Parquet file"):
        read_rows(write(b"PAR1 and then nothing", "bad.parquet"))
    whole = Path(parquet(tmp_path, {"text": ["x"] * 99, "label": ["a"] * 99})).read_bytes()
    with pytest.raises(DataError, match="is not a readable Parquet file"):
        read_rows(write(whole[:-10], "cut.parquet"))
    broken = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])
    with pytest.raises(DataError, match="can't be read as text"):
        read_rows(parquet(tmp_path, {"text": broken, "label": ["a"]}))


# Hub


@pytest.fixture
def hub(monkeypatch):
    def serve(**splits):
        asked = []

        def load_dataset(name, config=None):
            asked.append((name, config))
            return datasets.DatasetDict(splits)

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        return asked

    return serve


def labelled(numbers, names=("World", "Sports"), texts=None):
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=list(names))})
    texts = texts or [f"text {number}" for number in range(len(numbers))]
    return datasets.Dataset.from_dict({"text": texts, "label": numbers}, features=features)


def test_hub_class_numbers_become_names_and_parts_are_kept(hub):
    asked = hub(train=labelled([0, 1] * 20), test=labelled([1, 0]), unsupervised=labelled([0]))
    corpus = read_corpus("ag_news")
    assert asked == [("ag_news", None)]
    assert corpus.labels == ("Sports", "World")
    assert len(corpus.train) == 36 and len(corpus.validation) == 4
    assert corpus.test["label"][:] == ["Sports", "World"]
    assert corpus.source == "ag_news"


def test_hub_configuration_and_secret_test_labels(hub):
    asked = hub(train=labelled([0, 1] * 20), validation=labelled([0, 1]), test=labelled([-1, -1]))
    corpus = read_corpus("nyu-mll/glue:sst2")
    assert asked == [("nyu-mll/glue", "sst2")]
    assert corpus.test is None and len(corpus.validation) == 2
    assert "test: has no labels and is left out" in corpus.notes


def test_hub_missing_class_numbers_in_train_are_refused(hub):
    hub(train=labelled([0, -1, 1]))
    with pytest.raises(DataError, match=r"labels must not be empty; got '' in 1 row: 2\."):
        read_corpus("ag_news")


def test_hub_several_labels_and_targets(hub):
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.Sequence(datasets.ClassLabel(names=["x", "y"]))}
    )
    hub(
        train=datasets.Dataset.from_dict(
            {"text": list("abcdefgh"), "label": [[0], [0, 1], [], [1]] * 2}, features=features
        )
    )
    corpus = read_corpus("some/emotions", ReadOptions(validation_share=0.25))
    assert corpus.task == "multi-label" and corpus.labels == ("x", "y")
    hub(train=datasets.Dataset.from_dict({"text": list("abcdefghijkl"), "label": [0.5, 1.5, 2.5] * 4}))
    assert read_corpus("some/scores").task == "regression"


def test_hub_errors_are_one_line(hub, monkeypatch):
    hub(test=labelled([0]))
    with pytest.raises(DataError, match=r"must have a train part; got \['test'\]"):
        read_corpus("ag_news")
    hub(train=labelled([0, 1]).rename_column("text", "content"))
    with pytest.raises(
        DataError, match=r"column 'text' not found; found \['content', 'label'\]: name it with --text-c"
    ):
        read_corpus("ag_news")
    for error in (
        datasets.exceptions.DatasetNotFoundError("Dataset 'x/y' doesn't exist\non the Hub"),
        ConnectionError("Couldn't reach"),
        ValueError("Config name is missing."),
    ):

        def fail(*_, error=error):
            raise error

        monkeypatch.setattr(datasets, "load_dataset", fail)
        with pytest.raises(DataError, match="the Hub says: ") as caught:
            read_corpus("x/y")
        assert "\n" not in str(caught.value)


def test_hub_is_not_asked_for_files_or_when_not_allowed(hub, tmp_path):
    asked = hub(train=labelled([0, 1] * 20))
    for source in ("missing.csv", str(tmp_path / "nothing"), "a b"):
        with pytest.raises(DataError):
            read_corpus(source)
    with pytest.raises(DataError, match="data must be a file, a folder or a Hub name; got 'ag_news'"):
        read_corpus("ag_news", hub_name_allowed=False)
    assert asked == []


def test_hub_parts_without_rows_and_columns_of_nothing(hub):
    hub(train=labelled([]))
    with pytest.raises(DataError, match=r"ag_news \(train\): has no rows"):
        read_corpus("ag_news")
    hub(train=datasets.Dataset.from_dict({"text": [None, None, None], "label": ["a", "b", "a"]}))
    assert "empty texts: 3 (rows 1, 2, 3)" in read_corpus("some/nulls", ReadOptions(validation_share=0.4)).notes


def test_jsonl_more_rows_than_a_batch_keep_their_order(write):
    rows, _ = read_rows(write(lines(*[{"text": f"t{i}", "label": i % 3} for i in range(20_001)]), "data.jsonl"))
    assert rows["text"][:] == [f"t{i}" for i in range(20_001)]
    assert rows["label"][:] == [str(i % 3) for i in range(20_001)]


def test_parquet_more_rows_than_a_batch_keep_their_order(tmp_path):
    path = parquet(tmp_path, {"text": [f"t{i}" for i in range(20_001)], "label": [i % 3 for i in range(20_001)]})
    rows, _ = read_rows(path)
    assert rows["text"][:] == [f"t{i}" for i in range(20_001)]
    assert rows["label"][:] == [str(i % 3) for i in range(20_001)]
