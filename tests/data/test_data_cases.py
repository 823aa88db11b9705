"""Cases that people met in the field (docs: cases C32, C33, C44 to C47), each with its right answer."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from transformers import BertConfig, RobertaConfig
from word_tokenizer import WORDS, word_tokenizer

from rheostat.data import ReadOptions, class_weights, describe, read_corpus, read_rows, token_limit, tokenize
from rheostat.errors import DataError

FILES = Path(__file__).parent / "files"


def all_labels(corpus):
    return Counter(corpus.train["label"]) + Counter(corpus.validation["label"])


# The six files


def test_file_01_a_byte_order_mark_and_crlf_read_as_plain_utf8():
    corpus = read_corpus(str(FILES / "01_utf8_bom_crlf.csv"))
    assert corpus.train.column_names == ["text", "label"]
    assert len(corpus.train) + len(corpus.validation) == 60
    assert corpus.labels == ("billing", "shipping", "technical")
    assert not any("\r" in label or "\ufeff" in label for label in corpus.labels)
    assert not any("\r" in text for text in corpus.train["text"])


def test_file_03_semicolons_are_never_split_at_the_commas():
    path = str(FILES / "03_semicolon.csv")
    with pytest.raises(DataError) as caught:
        read_corpus(path)
    assert str(caught.value) == f"{path}: column 'text' not found; found ['text;label']: delimiter? use --delimiter ';'"
    corpus = read_corpus(path, ReadOptions(delimiter=";"))
    assert len(corpus.train) + len(corpus.validation) == 60
    assert corpus.labels == ("billing", "shipping", "technical")
    assert "How do I reset the password, for order 1182?" in set(corpus.train["text"]) | set(corpus.validation["text"])


def test_file_06_empty_texts_are_kept_counted_and_named_by_row():
    path = str(FILES / "06_empty_text.csv")
    corpus = read_corpus(path)
    assert len(corpus.train) + len(corpus.validation) == 48
    assert "empty texts: 3 (rows 6, 21, 34)" in corpus.notes
    assert "texts of punctuation only: 1 (row 41)" in corpus.notes
    rows, _ = read_rows(path)
    assert rows["text"][5] == "" and rows["text"][20] == "   " and rows["text"][33] == "\u200b\u00a0"
    assert rows["text"][40] == "..."


def test_file_06_empty_texts_become_tokens_and_no_nan(tokenizer):
    corpus = read_corpus(str(FILES / "06_empty_text.csv"))
    tokens = tokenize(corpus.train, tokenizer, labels=corpus.labels, task=corpus.task, max_length=64)
    assert min(tokens.lengths) >= 2 and len(tokens.dataset) == len(corpus.train)


def test_file_09_labels_with_blanks_around_them_are_three_classes_as_written():
    corpus = read_corpus(str(FILES / "09_unicode_labels.csv"))
    assert corpus.labels == ("Rechnung & Zahlung", "доставка 📦", "技術 (サポート)")
    assert all_labels(corpus) == dict.fromkeys(corpus.labels, 20)
    assert "6 labels with blanks around, which were taken away" in corpus.notes
    report = describe(str(FILES / "09_unicode_labels.csv"))
    assert report.parts["train"].classes == dict.fromkeys(corpus.labels, 20)


def test_file_12_without_a_header_the_first_row_is_data():
    path = str(FILES / "12_no_header.csv")
    with pytest.raises(DataError, match=r"column 'text' not found; found \['Please.*is the first line data\?"):
        read_corpus(path)
    corpus = read_corpus(path, ReadOptions(header=False))
    assert sum(all_labels(corpus).values()) == 60 and len(corpus.labels) == 3
    first = "Please send me a corrected invoice for the subscription."
    assert first in set(corpus.train["text"]) | set(corpus.validation["text"])


def test_file_16_rare_classes_stay_in_train_with_a_warning():
    corpus = read_corpus(str(FILES / "16_rare_classes.csv"))
    assert corpus.labels == ("billing", "opening hours", "sales", "shipping", "technical")
    assert Counter(corpus.train["label"])["sales"] == 1
    assert Counter(corpus.train["label"])["opening hours"] >= 1
    assert "labels with a single row, which stays in train: 'sales'" in corpus.notes
    assert "labels without a row in validation: 'opening hours'" in corpus.notes


# C32, C33


@pytest.mark.parametrize("seed", range(20))
def test_c32_a_class_with_one_row_stays_in_train_for_every_seed(seed):
    corpus = read_corpus(str(FILES / "16_rare_classes.csv"), ReadOptions(seed=seed, validation_share=0.5))
    assert set(corpus.train["label"]) == set(corpus.labels)
    assert "sales" not in corpus.validation["label"]
    assert corpus.seed == seed


def test_c32_labels_come_from_all_of_train_and_weights_are_finite():
    corpus = read_corpus(str(FILES / "16_rare_classes.csv"))
    encoded = np.array([corpus.labels.index(label) for label in corpus.validation["label"]])
    weights = class_weights(encoded, len(corpus.labels))
    assert weights.shape == (5,) and np.isfinite(weights).all() and (weights > 0).all()


def test_c33_a_batch_that_shows_two_of_three_labels_has_three_weights():
    weights = class_weights(np.array([0, 2, 2, 2]), 3)
    assert weights.shape == (3,)
    assert weights.tolist() == pytest.approx([2.0, 1.0, 2 / 3])


# C44


@pytest.mark.parametrize("name", ["data.csv", "data.tsv"])
@pytest.mark.parametrize("quote", ["", '"'])
def test_c44_words_that_look_like_missing_values_are_texts(write, name, quote):
    words = ["None", "NA", "null", "nan", "N/A", "NULL", "#N/A", "NaN", "true", "1.0", "2020-01-01"]
    separator = "," if name.endswith("csv") else "\t"
    lines = [f"text{separator}label"] + [f"{quote}{w}{quote}{separator}{'ab'[i % 2]}" for i, w in enumerate(words)]
    rows, notes = read_rows(write("\n".join(lines), name))
    assert rows["text"][:] == words
    assert not any("empty" in note for note in notes)


def test_c44_such_words_are_classes_too(write):
    corpus = read_corpus(write("text,label\na,NA\nb,None\nc,NA\nd,None\ne,nan\n"))
    assert corpus.labels == ("NA", "None", "nan")


def test_c44_truly_empty_cells_are_reported_by_row_number(write):
    rows, notes = read_rows(write('text,label\nNone,a\n,b\nnan,a\n"",b\n'))
    assert rows["text"][:] == ["None", "", "nan", ""]
    assert "empty texts: 2 (rows 2, 4)" in notes


# C45


def test_c45_cp1252_names_the_byte_and_the_option(write):
    path = write("text,label\nna\u00efve,a\nb,b\n", encoding="cp1252")
    with pytest.raises(DataError) as caught:
        read_corpus(path)
    assert str(caught.value) == (
        f"{path}, line 2, byte offset 13: 0xef is not utf-8. Set --encoding cp1252, or the one it was written in"
    )
    rows, _ = read_rows(path, ReadOptions(encoding="cp1252"))
    assert rows["text"][0] == "na\u00efve"


def test_c45_the_byte_offset_is_right_far_into_a_large_file(write):
    good = "text,label\n" + "word,a\nother,b\n" * 200_000  # beyond the blocks in which it is read
    content = good.encode() + "caf\u00e9,a\n".encode("cp1252") + b"more,b\n"
    with pytest.raises(DataError, match=rf"line 400002, byte offset {len(good) + 3}: 0xe9 is not utf-8"):
        read_corpus(write(content))


@pytest.mark.parametrize(
    ("encoding", "advice"),
    [("utf-16", "utf-16"), ("utf-16-le", "utf-16-le"), ("utf-16-be", "utf-16-be"), ("utf-32", "utf-32")],
)
def test_c45_utf16_names_the_offset_and_the_option_which_then_works(write, encoding, advice):
    path = write("text,label\n\u043d\u00efve \U0001f4e6,a\nb,b\n", encoding=encoding)
    with pytest.raises(DataError, match=rf"byte offset \d+: .* Set --encoding {advice}$") as caught:
        read_corpus(path)
    assert "\n" not in str(caught.value)
    if encoding != "utf-32":
        rows, _ = read_rows(path, ReadOptions(encoding=advice))
        assert rows["text"][:] == ["\u043d\u00efve \U0001f4e6", "b"]


def test_c45_utf16_with_its_own_mark_and_named_byte_order_has_no_mark_in_the_header(write):
    content = b"\xff\xfe" + "text,label\nx,a\ny,b\n".encode("utf-16-le")
    rows, _ = read_rows(write(content), ReadOptions(encoding="utf-16-le"))
    assert rows["text"][:] == ["x", "y"]


def test_c45_a_byte_order_mark_contradicts_another_encoding(write):
    with pytest.raises(DataError, match=r"byte-order mark of utf-8 and can't be cp1252\. Set --encoding utf-8"):
        read_rows(write(b"\xef\xbb\xbftext,label\nx,a\n"), ReadOptions(encoding="cp1252"))


def test_c45_utf8_read_as_cp1252_is_doubted(write):
    path = write("text,label\ncaf\u00e9,a\n")
    _, notes = read_rows(path, ReadOptions(encoding="cp1252"))
    assert "this file also reads as UTF-8: is --encoding cp1252 meant?" in notes
    assert not any("UTF-8" in note for note in read_rows(path)[1])


def test_c45_right_cp1252_is_not_doubted(write):
    _, notes = read_rows(write("text,label\ncaf\u00e9,a\n", encoding="cp1252"), ReadOptions(encoding="cp1252"))
    assert not any("UTF-8" in note for note in notes)


@pytest.mark.parametrize("name", ["data.csv", "data.jsonl"])
def test_c45_a_byte_that_the_chosen_encoding_lacks_is_named(write, name):
    with pytest.raises(DataError, match=r"byte offset 3: 0x81 is not cp1252\. Set --encoding to the right one"):
        read_rows(write(b"tex\x81", name), ReadOptions(encoding="cp1252"))


# C46


def test_c46_whole_numbers_are_class_names(write):
    corpus = read_corpus(write("text,label\n" + "".join(f"t{i},{i % 3 + 1}\n" for i in range(30))))
    assert corpus.task == "single-label" and corpus.labels == ("1", "2", "3")


def test_c46_01_and_1_are_different_classes_with_a_warning(write):
    corpus = read_corpus(write("text,label\na,01\nb,1\nc,01\nd,1\n"), ReadOptions(validation_share=0.25))
    assert corpus.labels == ("01", "1")
    assert "labels '01' and '1' are different classes: is that meant?" in corpus.notes


def test_c46_sorted_order_is_that_of_the_text(write):
    corpus = read_corpus(write("text,label\n" + "".join(f"t{i},{i % 12}\n" for i in range(48))))
    assert corpus.labels == ("0", "1", "10", "11", "2", "3", "4", "5", "6", "7", "8", "9")
    assert read_corpus(write("text,label\na,pos\nb,neg\nc,pos\nd,neg\n")).labels == ("neg", "pos")


def test_c46_labels_that_train_lacks_are_listed(write, tmp_path):
    write("text,label\na,neg\nb,pos\nc,neg\nd,pos\n", "train.csv")
    write("text,label\na,neg\nb,other\nc,mixed\nd,other\n", "test.csv")
    with pytest.raises(DataError, match=r"got 2 unknown: 'mixed' \(1 row\), 'other' \(2 rows\)\. Known: 'neg', 'pos'"):
        read_corpus(str(tmp_path))


def test_c46_an_unknown_label_stops_tokenizing_too(write, tokenizer):
    rows, _ = read_rows(write("text,label\na,neg\nb,other\n"))
    with pytest.raises(DataError, match="'other'"):
        tokenize(rows, tokenizer, labels=("neg", "pos"), task="single-label", max_length=8)


# C47


def test_c47_the_limit_is_the_smaller_of_tokenizer_and_position_table():
    assert token_limit(word_tokenizer(), BertConfig(max_position_embeddings=512)) == 512
    assert token_limit(word_tokenizer(model_max_length=128), BertConfig(max_position_embeddings=512)) == 128
    assert token_limit(word_tokenizer(model_max_length=1024), BertConfig(max_position_embeddings=512)) == 512
    assert token_limit(word_tokenizer(), RobertaConfig(max_position_embeddings=514, pad_token_id=1)) == 512


def test_c47_513_tokens_on_512_positions_are_cut_with_a_count(write):
    texts = [" ".join(WORDS[:1] * 511), " ".join(WORDS[:1] * 510), " ".join(WORDS[:1] * 10_000)]
    rows, _ = read_rows(write("text,label\n" + "".join(f"{text},a\n" for text in texts)))
    tokens = tokenize(rows, word_tokenizer(), labels=("a",), task="single-label", max_length=512)
    assert tokens.lengths.tolist() == [513, 512, 10_002]
    assert tokens.dataset["length"][:] == [512, 512, 512]
    assert [len(ids) for ids in tokens.dataset["input_ids"]] == [512, 512, 512]
    assert tokens.truncated == 2 and tokens.truncated_share == pytest.approx(2 / 3)
    assert "2 of 3 rows cut at 512 (66.7%)" in tokens.note()


def test_c45_utf16_without_a_mark_read_as_utf16_is_one_line(write):
    path = write("text,label\nx,a\n")
    with pytest.raises(DataError) as caught:
        read_rows(path, ReadOptions(encoding="utf-16"))
    assert str(caught.value).startswith(f"{path}: is not utf-16") and "\n" not in str(caught.value)


def test_texts_that_were_damaged_before_are_counted(write):
    _, notes = read_rows(write("text,label\nfine,a\nbro\ufffdken,b\n"))
    assert "texts with U+FFFD, so damaged before they came here: 1 (row 2)" in notes


def test_c45_the_byte_offset_is_right_where_a_letter_is_cut_by_the_end_of_a_block(write):
    head = b"text,label\n"
    content = head + b"x" * ((1 << 20) - 1 - len(head)) + b"\xc3(,a\n"
    with pytest.raises(DataError, match=rf"line 2, byte offset {(1 << 20) - 1}: 0xc3 is not utf-8"):
        read_corpus(write(content))
