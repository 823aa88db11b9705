"""Reading options: wrong values are refused before a file is opened, and every option changes something."""

from __future__ import annotations

from dataclasses import fields

import pytest

from rheostat.data import ReadOptions, read_corpus, read_rows
from rheostat.errors import OptionError


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"delimiter": ""}, "delimiter must be one character; got ''"),
        ({"delimiter": ";;"}, "delimiter must be one character"),
        ({"delimiter": '"'}, "delimiter must be one character"),
        ({"delimiter": "\n"}, "delimiter must be one character"),
        ({"encoding": "utf-99"}, "encoding must be one that Python knows; got 'utf-99'"),
        ({"encoding": "hex"}, "encoding must be one that Python knows"),
        ({"task": "ner"}, "regression, token-classification, causal-lm, embedding; got 'ner'"),
        ({"label_separator": ""}, "label_separator must be text"),
        ({"label_separator": "|", "task": "regression"}, "label_separator must go with task multi-label"),
        ({"validation_share": 0}, "validation_share must be between 0 and 1; got 0"),
        ({"validation_share": 1.0}, "validation_share must be between 0 and 1"),
        ({"validation_share": float("nan")}, "validation_share must be between 0 and 1"),
        ({"validation_share": True}, "validation_share must be between 0 and 1"),
        ({"seed": -1}, "seed must be a whole number, 0 or larger; got -1"),
        ({"seed": 1.5}, "seed must be a whole number"),
        ({"seed": True}, "seed must be a whole number"),
        ({"text_column": ""}, "a column name must be text; got ''"),
        ({"label_column": "text"}, "text, text pair and label must be different columns"),
        ({"text_pair_column": "text"}, "text, text pair and label must be different columns"),
    ],
)
def test_values_that_cannot_be_used(options, rule):
    with pytest.raises(OptionError) as caught:
        ReadOptions(**options)
    message = str(caught.value)
    assert rule in message and "\n" not in message
    assert message.count(". ") >= 1  # what to do


@pytest.mark.parametrize("name", ["data.jsonl", "data.parquet"])
@pytest.mark.parametrize("options", [{"delimiter": ";"}, {"header": False}, {"quotes": False}])
def test_options_for_csv_are_refused_where_nothing_reads_them(write, name, options):
    with pytest.raises(OptionError, match=rf"{next(iter(options))} must be left out"):
        read_rows(write("x", name), ReadOptions(**options))


def test_an_encoding_is_refused_for_parquet(write):
    with pytest.raises(OptionError, match="encoding must be left out"):
        read_rows(write("x", "data.parquet"), ReadOptions(encoding="cp1252"))


CONTENT = "text;label;body;topic\n" + "".join(f"é{i};a|{i % 2};b{i};{i % 4}\n" for i in range(40))


@pytest.mark.parametrize("name", [field.name for field in fields(ReadOptions)])
def test_every_option_changes_what_is_read(write, name):
    base = {"delimiter": ";", "encoding": "cp1252"}
    changed = {
        "text_column": "body",
        "text_pair_column": "body",
        "label_column": "topic",
        "encoding": "utf-8",
        "delimiter": ",",
        "header": False,
        "task": "regression",
        "label_separator": "|",
        "validation_share": 0.3,
        "seed": 1,
        "quotes": False,
    }[name]
    path = write(CONTENT + ('"q";a|1;b;1\n' if name == "quotes" else ""), encoding="cp1252")

    def outcome(options):
        try:
            corpus = read_corpus(path, ReadOptions(**options))
        except ValueError as error:
            return str(error)
        return corpus.train[:], corpus.validation[:]

    assert outcome(base) == outcome(base)
    assert outcome(base) != outcome(base | {name: changed})
