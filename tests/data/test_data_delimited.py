"""CSV and TSV as people export them: what is right is read whole, what is not is refused with line and count."""

from __future__ import annotations

import csv
import io

import pandas
import pyarrow as pa
import pyarrow.csv
import pytest

from rheostat.data import ReadOptions, read_corpus, read_rows
from rheostat.data import delimited as delimited_module
from rheostat.errors import DataError


def texts_and_labels(path, options=ReadOptions()):  # noqa: B008
    rows, _ = read_rows(path, options)
    return list(zip(rows["text"][:], rows["label"][:], strict=True))


AWKWARD = [
    ("plain", "a"),
    ("a, comma; a semicolon\tand a tab|", "b"),
    ('a "quote" and ""two""', "a"),
    ("two\nlines", "b"),
    ("two\r\nlines and a lone \r", "a"),
    ("\n", "b"),
    ('"', "a"),
    ("  blanks around  ", "b"),
    ("", "a"),
    ("\u2028 is no line end, \x0b nor is this, \x85 nor this", "b"),
    ("emoji \U0001f469\u200d\U0001f469\u200d\U0001f467, \u0627\u0644\u0639\u0631\u0628\u064a\u0629", "a"),
    ("NULL", "b"),
    ("=SUM(A1)", "a"),
    ("# not a comment", "b"),
]


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le"])
def test_awkward_cells_come_back_as_written(write, line_end, delimiter, encoding):
    buffer = io.StringIO()
    writer = csv.writer(buffer, delimiter=delimiter, lineterminator=line_end, quoting=csv.QUOTE_ALL)
    writer.writerows([("text", "label"), *AWKWARD])
    path = write(buffer.getvalue(), encoding=encoding)
    named = "utf-8" if encoding == "utf-8-sig" else encoding
    assert texts_and_labels(path, ReadOptions(delimiter=delimiter, encoding=named)) == AWKWARD


def test_what_pandas_writes_comes_back(tmp_path):
    frame = pandas.DataFrame(AWKWARD, columns=["text", "label"])
    frame.to_csv(tmp_path / "a.csv")  # with its nameless index column
    frame.to_csv(tmp_path / "a.tsv", sep="\t", index=False)
    assert texts_and_labels(tmp_path / "a.csv") == AWKWARD
    assert texts_and_labels(tmp_path / "a.tsv") == AWKWARD


def test_what_pyarrow_writes_comes_back(tmp_path):
    table = pa.table({"label": [label for _, label in AWKWARD], "text": [text for text, _ in AWKWARD]})
    pyarrow.csv.write_csv(table, tmp_path / "a.csv")
    assert texts_and_labels(tmp_path / "a.csv") == AWKWARD


# Ragged rows


@pytest.mark.parametrize(
    ("content", "line", "count"),
    [
        ("text,label\na,b,c\nd,e\nf,g\n", 2, 3),
        ("text,label\na,b\nd\nf,g\n", 3, 1),
        ("text,label\na,b\nd,e\nf,g,h,i", 4, 4),
        ("text,label\na,b\nd,e\nf\n", 4, 1),
        ('text,label\n"two\nlines",b\n\nd,e,f\n', 5, 3),  # counted in lines of the file
        ("text,label\r\na,b\r\nd,e,f\r\n", 3, 3),
        ("text,label\ra,b\rd,e,f\r", 3, 3),
        ("text,label\n" + "a,b\n" * 25_000 + "c,d,e\n" + "a,b\n" * 10, 25_002, 3),
    ],
    ids=["first", "middle", "no line end", "last", "after line breaks", "crlf", "cr", "far"],
)
def test_a_ragged_row_is_named_with_file_line_and_counts(write, content, line, count):
    path = write(content)
    with pytest.raises(DataError) as caught:
        read_rows(path)
    assert str(caught.value).startswith(f"{path}, line {line}: a row must have 2 fields like line 1; got {count}. ")


def test_the_remedy_for_an_unquoted_comma_says_so(write):
    with pytest.raises(DataError, match=r"Quote the cell that holds ','"):
        read_rows(write("text,label\nHello, world,a\n"))


def test_a_header_shorter_than_every_row_is_refused(write):
    with pytest.raises(DataError, match=r"line 2: a row must have 2 fields like line 1; got 3"):
        read_rows(write("text,label\n1,a,b\n2,c,d\n"))


# Quotes


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ('text,label\na,b\n"not closed,c\nd,e\n', 3),
        ('text,label\n"closed" too soon,b\nd,e\n', 2),
        ('text,label\na,b\nd,"e"f\n', 3),
    ],
)
def test_a_broken_quote_is_an_error_where_its_row_begins(write, content, line):
    path = write(content)
    with pytest.raises(DataError, match=rf", line {line}: .*--no-quotes") as caught:
        read_rows(path)
    assert str(caught.value).startswith(path)


def test_no_quotes_reads_quotes_as_plain_text(write):
    path = write('text\tlabel\n"closed" too soon\ta\n"not closed\tb\n5" disk\ta\n', "data.tsv")
    options = ReadOptions(quotes=False)
    assert texts_and_labels(path, options) == [('"closed" too soon', "a"), ('"not closed', "b"), ('5" disk', "a")]


def test_a_quote_inside_an_unquoted_cell_is_text(write):
    assert texts_and_labels(write('text,label\n5" disk and 7" disk,a\n')) == [('5" disk and 7" disk', "a")]


def test_rows_swallowed_by_a_quote_are_warned_of_by_line(write):
    _, notes = read_rows(write('text,label\nx,b\n"Hello there,a\ny,b\n5 inch",b\nz,a\n'))
    assert "1 row with line breaks inside quotes" in notes
    assert any("rows of their own, the first at line 3: a quote that is not closed?" in note for note in notes)


def test_honest_line_breaks_are_counted_and_not_suspected(write):
    _, notes = read_rows(write('text,label\n"Dear all,\nplease, do",a\nx,b\n"1\n2",a\n'))
    assert "2 rows with line breaks inside quotes" in notes
    assert not any("rows of their own" in note for note in notes)


# Sizes


@pytest.mark.parametrize("size", [131_072, 131_073, 5_000_000])
def test_huge_cells_are_read(write, size):
    rows, _ = read_rows(write("text,label\nsmall,a\n" + "x" * size + ",b\nsmall,a\n"))
    assert [len(text) for text in rows["text"]] == [5, size, 5]


def test_a_cell_without_end_is_refused_before_memory_runs_out(write, monkeypatch):
    old = csv.field_size_limit(1000)
    monkeypatch.setattr(delimited_module, "MAX_CELL_CHARS", 1000)
    try:
        with pytest.raises(DataError, match=r"line 2: a cell must have at most 1,000 characters; got more by line \d+"):
            read_rows(write('text,label\n"' + "x,a\n" * 1000))
    finally:
        csv.field_size_limit(old)


def test_more_rows_than_a_batch_keep_their_order(write):
    count = 2 * delimited_module.BATCH_ROWS + 1
    rows, notes = read_rows(write("text,label\n" + "".join(f"t{i},{'ab'[i % 2]}\n" for i in range(count))))
    assert rows["text"][:] == [f"t{i}" for i in range(count)]
    assert f"rows: {count:,}" in notes


def test_many_characters_end_a_batch_early(write, monkeypatch):
    monkeypatch.setattr(delimited_module, "BATCH_CHARS", 10)
    path = write("text,label\n" + "".join(f"text{i},a\n" for i in range(20)))
    source = delimited_module.DelimitedSource(__import__("pathlib").Path(path), ReadOptions())
    assert [len(columns["text"]) for columns in source.batches()] == [2] * 10


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"is empty \(0 bytes\)"),
        ("\n\n  \n", "has only blank lines"),
        ("text,label\n", "has a header and no rows"),
        ("text,label", "has a header and no rows"),
        ("\ufefftext,label\r\n", "has a header and no rows"),
    ],
)
def test_files_without_rows(write, content, message):
    with pytest.raises(DataError, match=message):
        read_corpus(write(content))


def test_one_row_is_one_class_and_refused(write):
    with pytest.raises(DataError, match=r"at least 2 classes; got \['a'\] in 1 row"):
        read_corpus(write("text,label\nx,a\n"))
    assert len(read_rows(write("text,label\nx,a\n"))[0]) == 1  # as an evaluation file it is fine


def test_one_class_is_refused_with_its_name(write):
    with pytest.raises(DataError, match=r"at least 2 classes; got \['a'\]"):
        read_corpus(write("text,label\nx,a\ny,a\nz,a\n"))


def test_blank_lines_are_left_out_and_counted(write):
    rows, notes = read_rows(write("\ntext,label\n\na,b\n   \nc,d\n\n\n"))
    assert rows["text"][:] == ["a", "c"]
    assert "5 blank lines left out" in notes


# Columns


def test_other_columns_and_orders(write):
    path = write("id,topic,body,more\n1,x,hello,z\n2,y,world,z\n")
    options = ReadOptions(text_column="body", label_column="topic")
    assert texts_and_labels(path, options) == [("hello", "x"), ("world", "y")]
    assert read_rows(path, options)[0].column_names == ["text", "label"]


def test_pairs(write):
    path = write("premise,hypothesis,label\na,b,x\nc,,y\n")
    rows, _ = read_rows(path, ReadOptions(text_column="premise", text_pair_column="hypothesis"))
    assert rows[:] == {"text": ["a", "c"], "text_pair": ["b", ""], "label": ["x", "y"]}
    assert read_corpus(
        write("text,b,label\n" + "".join(f"a,{i},{i % 2}\n" for i in range(9))), ReadOptions(text_pair_column="b")
    ).has_pairs


def test_blanks_around_column_names_do_not_matter(write):
    assert texts_and_labels(write(" text , label\na,b\n")) == [("a", "b")]


@pytest.mark.parametrize(
    ("header", "options", "remedy"),
    [
        ("text;label", ReadOptions(), "delimiter? use --delimiter ';'"),
        ("text\tlabel", ReadOptions(), "delimiter? use --delimiter tab"),
        ("text,label", ReadOptions(delimiter=";"), "delimiter? use --delimiter ','"),
        ("a|b", ReadOptions(), "delimiter? use --delimiter '|'"),
        ("sep=;", ReadOptions(), "the first line is a note for Excel? delete it"),
        ("Text,label", ReadOptions(), "use --text-column 'Text'"),
        ("text,labels", ReadOptions(), "use --label-column 'labels'"),
        ("text,category", ReadOptions(), "name it with --label-column"),
        ("hello there,good", ReadOptions(), "is the first line data? use --no-header; else name it with --text-column"),
        ("text,label", ReadOptions(text_pair_column="second"), "name it with --text-pair-column"),
    ],
)
def test_a_missing_column_comes_with_the_likely_remedy(write, header, options, remedy):
    with pytest.raises(DataError, match=r"column '\w+' not found; found \[") as caught:
        read_rows(write(f"{header}\na,b\n"), options)
    assert str(caught.value).endswith(f": {remedy}")


def test_a_long_header_is_shortened_in_the_message(write):
    with pytest.raises(DataError) as caught:
        read_rows(write(",".join("x" * 500 for _ in range(100)) + "\n"))
    assert len(str(caught.value)) < 1500 and "and 88 more" in str(caught.value)


def test_a_column_that_is_there_twice_is_refused(write):
    with pytest.raises(DataError, match=r"column 'text' must be there once; got 2"):
        read_rows(write("text,text,label\na,b,c\n"))
    assert texts_and_labels(write("x,x,text,label\n1,2,a,b\n")) == [("a", "b")]


def test_without_header_columns_are_numbered(write):
    path = write("7,x,hello\n8,y,world\n")
    assert texts_and_labels(path, ReadOptions(header=False, text_column="3", label_column="2")) == [
        ("hello", "x"),
        ("world", "y"),
    ]
    assert texts_and_labels(path, ReadOptions(header=False)) == [("7", "hello"), ("8", "world")]
    for wrong in ("0", "4", "body", "-1"):
        with pytest.raises(DataError, match=r"--text-column must be a column number from 1 to 3; got"):
            read_rows(path, ReadOptions(header=False, text_column=wrong))
    with pytest.raises(DataError, match="must be different columns"):
        read_rows(path, ReadOptions(header=False, text_column="3"))


def test_a_header_read_as_data_is_refused(write):
    with pytest.raises(DataError, match=r"line 1: looks like a header .* Leave out --no-header"):
        read_rows(write("Text,Label\na,b\n"), ReadOptions(header=False))


def test_column_names_in_the_middle_are_warned_of(write):
    _, notes = read_rows(write("text,label\na,b\ntext,label\nc,d\n"))
    assert any("1 row with the column names again, the first at line 3" in note for note in notes)


def test_cells_shifted_by_an_unquoted_comma_into_a_column_that_is_left_out_are_warned_of(write):
    content = "text,label,comment\n" + "a,pos,x\nb,neg,x\n" * 3 + "".join(f"Hello, world {i},pos\n" for i in range(3))
    _, notes = read_rows(write(content))
    assert any("most labels (3 of 5) have a single row, such as 'world 0'" in note for note in notes)
    assert "3 labels with blanks around, which were taken away" in notes


# Names of files


def test_the_ending_settles_the_delimiter_and_an_option_overrules_it(write):
    assert texts_and_labels(write("text\tlabel\na,b\tc\n", "data.TSV")) == [("a,b", "c")]
    assert texts_and_labels(write("text|label\na,b|c\n", "data.txt"), ReadOptions(delimiter="|")) == [("a,b", "c")]
    for spelled in ("\t", "\\t", "tab"):
        assert texts_and_labels(write("text\tlabel\na\tc\n"), ReadOptions(delimiter=spelled)) == [("a", "c")]
    with pytest.raises(DataError, match=r"must end with one of \.csv.*; got '\.xlsx'"):
        read_rows(write("x", "data.xlsx"))


def test_a_file_that_is_not_there(tmp_path):
    for name in ("a.csv", "a.jsonl", "a.parquet"):
        with pytest.raises(DataError, match=r"can't be opened \(No such file"):
            read_rows(tmp_path / name)
    with pytest.raises(DataError, match="can't be opened"):
        read_corpus(str(tmp_path / "a.csv"))
