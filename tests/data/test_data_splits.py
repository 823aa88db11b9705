"""Parts of the data: folders, held-out rows, repeats on one side, and test rows that choose nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rheostat.data import ReadOptions, read_corpus, store
from rheostat.data.checks import first_rows, shared_rows
from rheostat.data.splits import hold_out
from rheostat.errors import DataError


def rows(labels, first="t", header="text,label\n"):
    return header + "".join(f"{first}{number},{label}\n" for number, label in enumerate(labels))


# Held-out rows

problems = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 30)), min_size=1, max_size=120)


@given(problems, st.sampled_from([0.05, 0.1, 0.25, 0.5, 0.9]), st.integers(0, 5))
@settings(deadline=None)
def test_held_out_rows_keep_every_promise(problem, share, seed):
    strata = np.array([stratum for stratum, _ in problem], np.int32)
    groups = first_rows(np.array([key for _, key in problem], np.int64))
    held = hold_out(strata, groups, share, seed)
    assert held.shape == strata.shape
    sides = {group: set(held[groups == group].tolist()) for group in groups.tolist()}
    assert all(len(side) == 1 for side in sides.values())  # repeats on one side
    assert set(strata[~held].tolist()) == set(strata.tolist())  # no stratum without a row in train
    single = np.flatnonzero(np.bincount(strata)[strata] == 1)
    assert not held[single].any()
    assert held.sum() <= max(1, round(share * len(strata)))
    assert (held == hold_out(strata, groups, share, seed)).all()


@given(st.lists(st.integers(2, 40), min_size=1, max_size=6), st.sampled_from([0.1, 0.2, 0.5]), st.integers(0, 3))
@settings(deadline=None)
def test_without_repeats_the_share_is_exact_in_sum_and_to_a_row_in_each_class(sizes, share, seed):
    strata = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    held = hold_out(strata, np.arange(len(strata), dtype=np.int32), share, seed)
    assert held.sum() == max(1, round(share * len(strata)))
    per_class = np.bincount(strata[held], minlength=len(sizes))
    assert (np.abs(per_class - share * np.array(sizes)) <= 1).all()


def test_the_seed_changes_the_rows_and_is_recorded(write):
    path = write(rows("ab" * 50))
    first, again, other = (read_corpus(path, ReadOptions(seed=seed)) for seed in (0, 0, 1))
    assert first.validation[:] == again.validation[:] != other.validation[:]
    assert (first.seed, other.seed) == (0, 1)
    assert any("seed 1" in note for note in other.notes)


def test_the_chosen_rows_are_the_same_in_every_process_and_release(write):
    corpus = read_corpus(write(rows("ab" * 20)))
    # Another list here means that everyone's validation rows change: say so in the release notes.
    assert corpus.validation["text"][:] == ["t4", "t11", "t24", "t27"]


def test_train_and_validation_are_all_rows_in_their_order(write):
    corpus = read_corpus(write(rows("abc" * 20)), ReadOptions(validation_share=0.3))
    assert sorted([*corpus.train["text"], *corpus.validation["text"]]) == sorted(f"t{i}" for i in range(60))
    numbers = [int(text[1:]) for text in corpus.train["text"]]
    assert numbers == sorted(numbers)
    assert Counter(corpus.validation["label"]) == {"a": 6, "b": 6, "c": 6}
    assert (
        "validation: 18 of 60 rows held out (share 0.3, seed 0), stratified by label, repeats on one side"
        in corpus.notes
    )


@pytest.mark.parametrize("seed", range(5))
def test_repeats_stay_together_and_are_counted(write, seed):
    content = "text,label\n" + "".join(f"same {i // 3},{'ab'[i // 3 % 2]}\n" for i in range(90))
    corpus = read_corpus(write(content), ReadOptions(seed=seed))
    assert not set(corpus.train["text"]) & set(corpus.validation["text"])
    assert len(corpus.validation) in (6, 7, 8, 9)
    assert "repeats: 60 rows with the text of an earlier row" in corpus.notes


@pytest.mark.parametrize("seed", range(10))
def test_a_single_row_is_not_drawn_into_validation_by_a_repeat_of_its_text(write, seed):
    content = rows("ab" * 10) + "t0,rare\n" + "t1,rare too\n"
    corpus = read_corpus(write(content), ReadOptions(seed=seed, validation_share=0.5))
    assert {"rare", "rare too"} <= set(corpus.train["label"])


def test_contradicting_repeats_are_counted_by_row(write):
    corpus = read_corpus(write(rows("ab" * 10) + "x,a\nx,b\ny,a\ny,a\n"))
    assert "contradicting repeats: 2 (rows 21, 22), the same text with different labels" in corpus.notes
    assert "repeats: 2 rows with the text of an earlier row" in corpus.notes


def test_a_pair_repeats_only_as_a_whole(write):
    content = "text,second,label\n" + "".join(f"same,{i},{'ab'[i % 2]}\n" for i in range(20)) + "same,0,a\n"
    corpus = read_corpus(write(content), ReadOptions(text_pair_column="second"))
    assert "repeats: 1 row with the text of an earlier row" in corpus.notes


def test_empty_texts_are_not_repeats_of_each_other(write):
    corpus = read_corpus(write(rows("ab" * 10) + ",a\n,b\n"))
    assert not any("repeats:" in note for note in corpus.notes)


def test_targets_are_spread(write):
    corpus = read_corpus(write(rows([f"{i}.5" for i in range(100)])))
    tenths = Counter(int(target // 10) for target in corpus.validation["label"])
    assert tenths == dict.fromkeys(range(10), 1)
    assert any("spread over the targets" in note for note in corpus.notes)


def test_several_labels_are_stratified_by_the_rarest(write):
    labels = ["common"] * 50 + ["common|rare"] * 10 + ["once|common"]
    corpus = read_corpus(write(rows(labels)), ReadOptions(label_separator="|"))
    held = Counter(name for names in corpus.validation["label"] for name in names)
    assert held["rare"] == 1 and held["once"] == 0 and held["common"] == 6
    assert "labels with a single row, which stays in train: 'once'" in corpus.notes


# Folders


def test_a_folder_with_all_parts(write, tmp_path):
    write(rows("ab" * 10), "train.csv")
    write('{"text": "v", "label": "a"}\n{"text": "t3", "label": "b"}\n', "validation.jsonl")
    pq.write_table(pa.table({"text": ["x", "t1", "v"], "label": ["a", "b", "b"]}), tmp_path / "test.parquet")
    write("not read", "notes.txt")
    corpus = read_corpus(str(tmp_path))
    assert len(corpus.train) == 20 and corpus.validation["text"][:] == ["v", "t3"]
    assert corpus.test["text"][:] == ["x", "t1", "v"]
    assert "overlap: 1 validation row with a text that is also in train" in corpus.notes
    assert "overlap: 1 test row with a text that is also in train" in corpus.notes
    assert "overlap: 1 test row with a text that is also in validation" in corpus.notes
    assert "train: rows: 20" in corpus.notes and "test: rows: 3" in corpus.notes
    assert not any("held out" in note for note in corpus.notes)


@pytest.mark.parametrize("name", ["val", "valid", "dev", "validation", "Validation"])
def test_other_names_of_the_validation_part(write, tmp_path, name):
    write(rows("ab" * 10), "train.csv")
    write(rows("ab"), f"{name}.csv")
    assert len(read_corpus(str(tmp_path)).validation) == 2


def test_shards_are_one_part_in_order(write, tmp_path):
    write(rows("ab" * 5, "first"), "train-00000-of-00002.csv")
    write(rows("ab" * 5, "second"), "train-00001-of-00002.csv")
    write(rows("ab"), "dev.csv")
    corpus = read_corpus(str(tmp_path))
    assert corpus.train["text"][:] == [f"first{i}" for i in range(10)] + [f"second{i}" for i in range(10)]


def test_labels_are_those_of_all_training_files(write, tmp_path):
    write(rows("bc"), "train_1.csv")
    write(rows("ab"), "train_2.csv")
    write(rows("a"), "dev.csv")
    assert read_corpus(str(tmp_path)).labels == ("a", "b", "c")


def test_lists_in_one_shard_only_are_refused(write, tmp_path):
    write('{"text": "x", "label": ["a"]}\n', "train_1.jsonl")
    write('{"text": "x", "label": "a"}\n', "train_2.jsonl")
    with pytest.raises(DataError, match="labels must be lists in all files or in none"):
        read_corpus(str(tmp_path))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["test.csv"], r"must hold a train file .*; got \['test.csv'\]"),
        ([], r"must hold a train file .*; got \[\]"),
        (["training_data.csv"], "must hold a train file"),
        (
            ["train.csv", "train.jsonl"],
            r"must hold one train file, or shards of one; got \['train.csv', 'train.jsonl'\]",
        ),
        (["train.csv", "dev.csv", "validation.csv"], "must hold one validation file"),
        (["train.csv", "train_1.csv"], "must hold one train file"),
    ],
)
def test_folders_that_are_unclear(write, tmp_path, names, message):
    for name in names:
        write(rows("ab" * 5), name)
    with pytest.raises(DataError, match=message):
        read_corpus(str(tmp_path))


def test_test_rows_choose_nothing(write, tmp_path):
    write(rows(["1", "2"] * 20), "train.csv")
    outcomes = []
    for test in (None, rows("1"), rows("2121212", "t"), rows(["1"] * 300, "other")):
        if test is not None:
            write(test, "test.csv")
        corpus = read_corpus(str(tmp_path))
        outcomes.append((corpus.train[:], corpus.validation[:], corpus.labels, corpus.task))
    assert all(outcome == outcomes[0] for outcome in outcomes)


def test_the_training_rows_settle_the_task_for_all_parts(write, tmp_path):
    write(rows(["0.5", "1.5", "2.5"] * 10), "train.csv")
    write(rows(["1", "2"]), "test.csv")  # alone these would be class names
    assert read_corpus(str(tmp_path)).test["label"][:] == [1.0, 2.0]


def test_an_empty_validation_file_is_refused(write, tmp_path):
    write(rows("ab" * 5), "train.csv")
    write("text,label\n", "validation.csv")
    with pytest.raises(DataError, match=r"validation.csv: has a header and no rows"):
        read_corpus(str(tmp_path))


# What repeats


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=60))
def test_first_rows_are_those_of_a_plain_search(keys):
    assert first_rows(np.array(keys, np.int64)).tolist() == [keys.index(key) for key in keys]


@given(st.lists(st.integers(0, 9), max_size=30), st.lists(st.integers(0, 9), max_size=30))
def test_shared_rows_are_those_of_a_plain_search(keys, others):
    expected = sum(key in others for key in keys)
    assert shared_rows(np.array(keys, np.int64), np.array(others, np.int64)) == expected


def test_files_on_disk_go_when_the_process_ends(tmp_path):
    (tmp_path / "data.csv").write_text(rows("ab" * 10))
    code = (
        "from rheostat.data import read_corpus; from rheostat.data.store import scratch_folder; "
        f"read_corpus({str(tmp_path / 'data.csv')!r}); print(scratch_folder())"
    )
    environment = {**os.environ, "HF_DATASETS_CACHE": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    folder = Path(done.stdout.strip())
    assert folder.parent == tmp_path / "cache" and not folder.exists()


def test_a_read_only_cache_folder_is_no_obstacle(write, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "file" / "cache")
    folder = store.scratch_folder.__wrapped__()
    assert folder.is_dir() and tmp_path not in folder.parents
    store._remove(folder, owner=-1)  # as in a forked worker
    assert folder.is_dir()
    store._remove(folder, os.getpid())
    assert not folder.exists()


def test_a_label_that_only_validation_has_is_warned_of(write):
    # "wide" is never the rarest label of a row, so nothing keeps one of its rows in train.
    labels = ["a|wide", "b|wide"] * 2 + ["a", "b"]
    found = set()
    for seed in range(60):
        corpus = read_corpus(write(rows(labels)), ReadOptions(label_separator="|", validation_share=0.6, seed=seed))
        lost = "wide" not in {name for names in corpus.train["label"] for name in names}
        assert ("labels without a row in train: 'wide'" in corpus.notes) == lost
        found.add(lost)
    assert found == {True, False}


@pytest.mark.slow
def test_a_large_file_is_read_fast_and_in_flat_memory(tmp_path):
    """Fewer rows than benchmarks/big_csv.py reads, and the least speed that is promised."""
    benchmark = Path(__file__).parents[2] / "benchmarks" / "big_csv.py"
    command = [sys.executable, str(benchmark), "--rows", "400000", "--rounds", "1"]
    result = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    (small,), (large,) = result["runs"]["tenth"], result["runs"]["all"]
    assert large["rows"] == 400_000 and large["rows_per_s"] > 50_000
    grown = large["peak_added_anonymous_bytes"] - small["peak_added_anonymous_bytes"]
    assert grown < 360_000 * 60  # the rows themselves are 125 bytes each
