"""Any table comes back from any conforming writer; any damage is an error with its place, or counted, never silent."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from rheostat.data import ReadOptions, describe, read_rows
from rheostat.errors import DataError

FUZZ = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])

characters = st.characters(exclude_categories=["Cs"])
texts = st.text(st.one_of(characters, st.sampled_from('",;\t\r\n |\u2028\ufeff\u00a0NA')), max_size=12)
names = st.text(st.one_of(characters, st.sampled_from('",;\n')), min_size=1, max_size=6).map(
    lambda name: re.sub(r"[\s\u200b-\u200d\u2060\ufeff\u0000-\u001f\u0085]", "", name)
)
names = names.filter(lambda name: name and name.strip() == name)
tables = st.lists(st.tuples(texts, names), min_size=1, max_size=12)
dialects = st.fixed_dictionaries(
    {
        "delimiter": st.sampled_from([",", ";", "\t", "|", "^"]),
        "lineterminator": st.sampled_from(["\r\n", "\n", "\r"]),
        "quoting": st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC, csv.QUOTE_MINIMAL]),
    }
)
encodings = st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32", "gb18030"])


def written(table, dialect):
    # Before Python 3.13 `csv` leaves a lone "\r" unquoted unless it is in the line end: then it is not conforming.
    if dialect["quoting"] == csv.QUOTE_MINIMAL:
        dialect = {**dialect, "lineterminator": "\r\n"}
    buffer = io.StringIO()
    csv.writer(buffer, **dialect).writerows([("text", "label"), *table])
    return buffer.getvalue()


@given(tables, dialects, encodings)
@FUZZ
@example([("a\x00b", "x")], {"delimiter": ",", "lineterminator": "\n", "quoting": csv.QUOTE_ALL}, "utf-8")
def test_any_table_comes_back_from_csv(tmp_path, table, dialect, encoding):
    path = tmp_path / "table.csv"
    path.write_bytes(written(table, dialect).encode(encoding))
    named = "utf-8" if encoding == "utf-8-sig" else encoding
    options = ReadOptions(delimiter=dialect["delimiter"], encoding=named, task="single-label")
    rows, _ = read_rows(path, options)
    assert list(zip(rows["text"][:], rows["label"][:], strict=True)) == table


@given(tables, st.booleans(), st.sampled_from(["\n", "\r\n"]))
@FUZZ
def test_any_table_comes_back_from_jsonl(tmp_path, table, ascii_only, line_end):
    path = tmp_path / "table.jsonl"
    lines = [json.dumps({"text": t, "label": n}, ensure_ascii=ascii_only) for t, n in table]
    path.write_bytes(line_end.join(lines).encode())
    rows, _ = read_rows(path, ReadOptions(task="single-label"))
    assert list(zip(rows["text"][:], rows["label"][:], strict=True)) == table


@given(tables)
@FUZZ
def test_any_table_comes_back_from_parquet(tmp_path, table):
    path = tmp_path / "table.parquet"
    pq.write_table(pa.table({"text": [text for text, _ in table], "label": [name for _, name in table]}), path)
    rows, _ = read_rows(path, ReadOptions(task="single-label"))
    assert list(zip(rows["text"][:], rows["label"][:], strict=True)) == table


def cells(row, dialect):
    buffer = io.StringIO()
    csv.writer(buffer, **dialect).writerow(row)
    return buffer.getvalue()


@given(tables, dialects, st.data())
@FUZZ
def test_a_row_of_another_width_is_named_with_line_and_count(tmp_path, table, dialect, data):
    dialect = {**dialect, "quoting": csv.QUOTE_ALL}
    place = data.draw(st.integers(0, len(table)))
    bad = data.draw(st.lists(st.text("xyz", min_size=1), max_size=5).filter(lambda row: len(row) not in (0, 2)))
    before = written(table[:place], dialect)
    path = tmp_path / "table.csv"
    content = before + cells(bad, dialect) + "".join(cells(row, dialect) for row in table[place:])
    path.write_bytes(content.encode())
    line = len(re.findall(r"\r\n|\r|\n", before)) + 1
    with pytest.raises(DataError) as caught:
        read_rows(path, ReadOptions(delimiter=dialect["delimiter"], task="single-label"))
    assert str(caught.value).startswith(f"{path}, line {line}: a row must have 2 fields like line 1; got {len(bad)}. ")


@given(tables, st.data())
@FUZZ
def test_a_lost_quote_is_an_error_or_a_counted_warning(tmp_path, table, data):
    content = written(table, {"delimiter": ",", "lineterminator": "\n", "quoting": csv.QUOTE_ALL})
    quotes = [place for place, letter in enumerate(content) if letter == '"']
    lost = data.draw(st.sampled_from(quotes[4:]))  # in a row, not in the header
    path = tmp_path / "table.csv"
    path.write_bytes((content[:lost] + content[lost + 1 :]).encode())
    try:
        rows, notes = read_rows(path, ReadOptions(task="single-label"))
    except DataError as error:
        assert re.match(rf"{re.escape(str(path))}(, line \d+)?: ", str(error))
        return
    # What is left can be a conforming file of its own: no row may be gone unless line breaks in quotes are counted.
    if len(rows) != len(table):
        assert any("line break" in note or "blank line" in note for note in notes)


@given(st.binary(max_size=200), st.sampled_from(["csv", "tsv", "jsonl", "parquet"]), st.booleans())
@FUZZ
@example(b"\xff\xfe", "csv", True)
@example(b"text,label\n\xff,a\n", "csv", True)
@example(b"\x00", "csv", False)
@example(b"[" * 200, "jsonl", True)
@example(b'{"text": "\\ud800", "label": "a"}', "jsonl", True)
def test_any_bytes_give_rows_or_one_line(tmp_path, content, ending, header):
    path = tmp_path / f"bytes.{ending}"
    path.write_bytes(content)
    assume(header or ending in ("csv", "tsv"))
    try:
        rows, _ = read_rows(path, ReadOptions(header=header))
    except DataError as error:
        assert str(path) in str(error) and "\n" not in str(error) and len(str(error)) < 1500
    else:
        assert len(rows) > 0


@given(tables, st.integers(0, 10**6), st.binary(max_size=3), st.integers(0, 3), st.sampled_from(["csv", "jsonl"]))
@FUZZ
def test_any_damage_gives_rows_or_one_line(tmp_path, table, place, put, cut, ending):
    dialect = {"delimiter": ",", "lineterminator": "\n", "quoting": csv.QUOTE_MINIMAL}
    whole = (
        written(table, dialect) if ending == "csv" else "\n".join(json.dumps({"text": t, "label": n}) for t, n in table)
    )
    content = whole.encode()
    place %= len(content) + 1
    path = tmp_path / f"damaged.{ending}"
    path.write_bytes(content[:place] + put + content[place + cut :])
    try:
        report = describe(str(path), ReadOptions())
    except DataError as error:
        assert str(path) in str(error) and "\n" not in str(error)
    else:
        assert sum(part.rows for part in report.parts.values()) > 0
        json.dumps(report.to_json(), allow_nan=False)


def test_the_case_files_lose_nothing_when_cut_anywhere(tmp_path):
    whole = (Path(__file__).parent / "files" / "01_utf8_bom_crlf.csv").read_bytes()
    for end in range(0, len(whole), 37):
        path = tmp_path / "cut.csv"
        path.write_bytes(whole[:end])
        lines = whole[:end].count(b"\r\n") + (not whole[:end].endswith(b"\r\n"))
        try:
            rows, _ = read_rows(path)
        except DataError:
            continue
        assert len(rows) == lines - 1
