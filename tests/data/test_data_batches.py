"""Tokens and batches: limits, counts of what was cut, padding, buckets of similar length, class weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BertConfig, GPT2Config, LlamaConfig, ModernBertConfig, XLMRobertaConfig
from word_tokenizer import WORDS, word_tokenizer

from rheostat.data import (
    Collator,
    ReadOptions,
    class_weights,
    length_buckets,
    read_rows,
    token_limit,
    tokenize,
)
from rheostat.errors import DataError, OptionError


@pytest.fixture
def rows(write):
    content = "text,label\n" + "".join(f"{' '.join(WORDS[:count])},{'ab'[count % 2]}\n" for count in range(1, 9))
    return read_rows(write(content))[0]


# Limits


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        (XLMRobertaConfig(max_position_embeddings=514, pad_token_id=1), 512),
        (GPT2Config(n_positions=1024), 1024),
        (LlamaConfig(max_position_embeddings=2048), 2048),
        (ModernBertConfig(max_position_embeddings=8192), 8192),
        (BertConfig(max_position_embeddings=64), 64),
    ],
    ids=lambda value: getattr(value, "model_type", value),
)
def test_the_position_table_limits(config, limit):
    assert token_limit(word_tokenizer(), config) == limit


def test_no_limit_at_all_is_an_error():
    with pytest.raises(OptionError, match=r"max_length must be given .* Use --max-length 512"):
        token_limit(word_tokenizer())
    assert token_limit(word_tokenizer(model_max_length=128)) == 128


@pytest.mark.parametrize("max_length", [0, -1, 1.5, True, "64", 2])
def test_lengths_that_leave_no_room_are_refused(rows, tokenizer, max_length):
    with pytest.raises(OptionError, match="max_length must be"):
        tokenize(rows, tokenizer, labels=("a", "b"), task="single-label", max_length=max_length)


# Tokens


def test_tokens_labels_and_counts(rows, tokenizer):
    tokens = tokenize(rows, tokenizer, labels=("a", "b"), task="single-label", max_length=6)
    assert set(tokens.dataset.column_names) == {"input_ids", "attention_mask", "token_type_ids", "labels", "length"}
    assert tokens.dataset["labels"][:] == [1, 0] * 4
    assert tokens.dataset["length"][:] == [3, 4, 5, 6, 6, 6, 6, 6]
    assert tokens.lengths.tolist() == [3, 4, 5, 6, 7, 8, 9, 10]
    assert (tokens.truncated, tokens.truncated_share, tokens.median_length, tokens.longest) == (4, 0.5, 6, 10)
    assert tokens.dataset["input_ids"][0] == [2, 4, 3]
    assert tokens.dataset["input_ids"][7] == [2, 4, 5, 6, 7, 3]  # [SEP] stays at the end of what was cut
    assert tokens.note() == "tokens: median 6, longest 10; 4 of 8 rows cut at 6 (50.0%)"


def test_nothing_is_cut_where_all_fits(rows, tokenizer):
    tokens = tokenize(rows, tokenizer, labels=("a", "b"), task="single-label", max_length=10)
    assert tokens.truncated == 0 and tokens.dataset["length"][:] == tokens.lengths.tolist()


def test_keep_text_keeps_texts_and_labels_are_optional(rows, tokenizer):
    bare = rows.remove_columns("label")
    tokens = tokenize(bare, tokenizer, labels=(), task="single-label", max_length=6, keep_text=True)
    assert tokens.dataset["text"][:] == rows["text"][:] and "labels" not in tokens.dataset.column_names
    batch = Collator(tokenizer)([tokens.dataset[row] for row in range(3)])
    assert set(batch) == {"input_ids", "attention_mask", "token_type_ids"}


def test_pairs_are_told_apart_and_cut_at_the_longer_side(write, tokenizer):
    path = write(f"text,second,label\n{' '.join(WORDS[:9])},{WORDS[20]},a\n{WORDS[1]},{WORDS[2]},a\n")
    pairs, _ = read_rows(path, ReadOptions(text_pair_column="second"))
    tokens = tokenize(pairs, tokenizer, labels=("a",), task="single-label", max_length=8)
    assert tokens.lengths.tolist() == [13, 5] and tokens.truncated == 1
    assert tokens.dataset["token_type_ids"][1] == [0, 0, 0, 1, 1]
    assert tokens.dataset["input_ids"][0][-2:] == [24, 3]
    path = write(f"text,second,label\n{WORDS[20]},{' '.join(WORDS[:9])},a\n")
    pairs, _ = read_rows(path, ReadOptions(text_pair_column="second"))
    tokens = tokenize(pairs, tokenizer, labels=("a",), task="single-label", max_length=8)
    assert tokens.dataset["input_ids"][0] == [2, 24, 3, 4, 5, 6, 7, 3]


def test_a_text_without_tokens_gets_one_that_is_attended_to(write):
    tokenizer = word_tokenizer(special=False, model_max_length=16)
    rows, _ = read_rows(write(f"text,label\n,a\n{WORDS[0]},b\n"))
    tokens = tokenize(rows, tokenizer, labels=("a", "b"), task="single-label", max_length=16)
    assert tokens.dataset["input_ids"][:] == [[3], [4]] and tokens.dataset["attention_mask"][:] == [[1], [1]]


def test_two_tokenizations_do_not_share_a_cache(rows, tokenizer):
    arguments = {"labels": ("a", "b"), "task": "single-label"}
    short = tokenize(rows, tokenizer, max_length=4, **arguments)
    long = tokenize(rows, tokenizer, max_length=10, **arguments)
    assert max(short.dataset["length"]) == 4 and max(long.dataset["length"]) == 10
    assert short.lengths.tolist() == long.lengths.tolist()


def test_more_rows_than_a_batch_keep_labels_beside_texts(write, tokenizer):
    content = "text,label\n" + "".join(f"{WORDS[i % 50]},c{i % 3}\n" for i in range(2500))
    rows, _ = read_rows(write(content))
    tokens = tokenize(rows, tokenizer, labels=("c0", "c1", "c2"), task="single-label", max_length=8)
    assert [ids[1] - 4 for ids in tokens.dataset["input_ids"]] == [i % 50 for i in range(2500)]
    assert tokens.dataset["labels"][:] == [i % 3 for i in range(2500)]
    assert len(tokens.lengths) == 2500


# Batches


def row(ids, **more):
    return {"input_ids": ids, "attention_mask": [1] * len(ids), "length": len(ids), "text": "x", **more}


def test_padding_to_the_longest_row_of_the_batch(tokenizer):
    batch = Collator(tokenizer)([row([2, 5, 3], labels=1), row([2, 5, 6, 7, 3], labels=0)])
    assert set(batch) == {"input_ids", "attention_mask", "labels"}
    assert batch["input_ids"].tolist() == [[2, 5, 3, 0, 0], [2, 5, 6, 7, 3]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]
    assert batch["labels"].tolist() == [1, 0]
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}


def test_padding_on_the_left_and_with_another_id():
    tokenizer = word_tokenizer(padding_side="left")
    tokenizer.pad_token = "[SEP]"
    batch = Collator(tokenizer)([row([5]), row([5, 6, 7])])
    assert batch["input_ids"].tolist() == [[3, 3, 5], [5, 6, 7]]
    assert batch["attention_mask"].tolist() == [[0, 0, 1], [1, 1, 1]]


def test_no_padding_token_is_an_error_with_the_remedy():
    with pytest.raises(OptionError, match=r"Set tokenizer\.pad_token"):
        Collator(word_tokenizer(special=False))


@pytest.mark.parametrize(
    ("labels", "dtype", "shape"),
    [
        ([0, 1], torch.int64, (2,)),
        ([0.5, 2.0], torch.float32, (2,)),
        ([[0.0, 1.0, 1.0], [0.0, 0.0, 0.0]], torch.float32, (2, 3)),
    ],
)
def test_label_types(tokenizer, labels, dtype, shape):
    batch = Collator(tokenizer)([row([2, 3], labels=label) for label in labels])
    assert batch["labels"].dtype == dtype and tuple(batch["labels"].shape) == shape
    assert batch["labels"].tolist() == labels


def test_label_types_survive_the_way_from_file_to_batch(write, tokenizer):
    for content, options, task, dtype in [
        ("text,label\nx,a\ny,b\n", ReadOptions(), "single-label", torch.int64),
        ("text,label\nx,1\ny,2\n", ReadOptions(task="regression"), "regression", torch.float32),
        ("text,label\nx,a|b\ny,b\n", ReadOptions(label_separator="|"), "multi-label", torch.float32),
    ]:
        rows, _ = read_rows(write(content), options)
        tokens = tokenize(rows, tokenizer, labels=("a", "b"), task=task, max_length=8)
        batch = Collator(tokenizer)([tokens.dataset[0], tokens.dataset[1]])
        assert batch["labels"].dtype == dtype


def test_teacher_logits_are_carried_over(tokenizer):
    rows = [row([2, 3], teacher_logits=[0.5, -1.5]), row([2, 3], teacher_logits=np.array([1.0, 2.0]))]
    logits = Collator(tokenizer)(rows)["teacher_logits"]
    assert logits.dtype == torch.float32 and logits.tolist() == [[0.5, -1.5], [1.0, 2.0]]


# Buckets

lengths_lists = st.lists(st.integers(0, 200), max_size=200)


@given(lengths_lists, st.integers(1, 20), st.one_of(st.none(), st.integers(0, 9)), st.integers(1, 4))
@settings(deadline=None)
def test_each_row_is_in_exactly_one_batch(lengths, batch_size, seed, bucket):
    batches = length_buckets(lengths, batch_size, seed=seed, bucket=bucket)
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
    assert all(1 <= len(batch) <= batch_size for batch in batches)
    assert sum(len(batch) < batch_size for batch in batches) <= 1
    assert batches == length_buckets(lengths, batch_size, seed=seed, bucket=bucket)


def test_evaluation_is_sorted_and_training_is_shuffled_but_alike_in_length():
    lengths = np.random.default_rng(0).integers(1, 500, 5000)
    in_order = length_buckets(lengths, 32)
    assert [lengths[row] for batch in in_order for row in batch] == sorted(lengths)
    shuffled = length_buckets(lengths, 32, seed=1)
    assert shuffled != length_buckets(lengths, 32, seed=2)
    spread = np.mean([np.ptp(lengths[batch]) for batch in shuffled])
    at_random = np.mean([np.ptp(batch) for batch in lengths[: 32 * 156].reshape(156, 32)])
    assert spread < at_random / 10
    first = [np.mean(lengths[batch]) for batch in shuffled]
    assert first != sorted(first)  # the order of batches says nothing about their length


@pytest.mark.parametrize("arguments", [{"batch_size": 0}, {"batch_size": 2.0}, {"batch_size": 2, "bucket": 0}])
def test_sizes_that_make_no_batches(arguments):
    with pytest.raises(OptionError, match="must be a whole number, 1 or larger"):
        length_buckets([1, 2], **arguments)


# Weights


@given(st.lists(st.integers(0, 5), min_size=1, max_size=100), st.integers(6, 9))
def test_class_weights_are_finite_of_the_right_size_and_mean_one(labels, num_classes):
    weights = class_weights(labels, num_classes)
    assert weights.shape == (num_classes,) and np.isfinite(weights).all() and (weights > 0).all()
    assert weights[labels].mean() == pytest.approx(1)
    totals = {name: weights[name] * labels.count(name) for name in set(labels)}
    assert list(totals.values()) == pytest.approx([len(labels) / len(totals)] * len(totals))  # classes weigh alike


def test_class_weights_refuse_what_they_are_not_for():
    for wrong in ([[0.0, 1.0]], [0.5], []):
        with pytest.raises(DataError, match="They are for single-label tasks"):
            class_weights(wrong, 2)
    for wrong in ([-1, 0], [0, 2]):
        with pytest.raises(DataError, match="class numbers must be between 0 and 1"):
            class_weights(wrong, 2)
