"""Every reading option of the command line reaches the reader: turning it changes what `rheostat data` understood."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny import tiny_folder
from typer.testing import CliRunner

from rheostat.cli.app import app


def understood(path: Path, *options: str) -> Any:
    found = CliRunner().invoke(app, ["data", str(path), "--json", *options])
    return json.loads(found.stdout) if found.exit_code == 0 else found.stderr


def lines(header: str, rows: list[str]) -> str:
    return "\n".join([header, *rows]) + "\n"


LETTERS = [chr(ord("a") + i) for i in range(20)]
PLAIN = [f"text {letter},{'xy'[i % 2]}" for i, letter in enumerate(LETTERS)]


@pytest.mark.parametrize(
    ("options", "content"),
    [
        (("--text-column", "body"), lines("body,label", PLAIN)),
        (("--label-column", "topic"), lines("text,topic", PLAIN)),
        (("--text-pair-column", "other"), lines("text,other,label", [f"{row[:6]},b{row}"[:9] + ",x" for row in PLAIN])),
        (("--delimiter", ";"), lines("text;label", [row.replace(",", ";") for row in PLAIN])),
        (("--no-header",), lines("text z,y", PLAIN)),
        (("--label-separator", "|"), lines("text,label", [f"{row}|z" for row in PLAIN])),
        (("--task", "multi-label", "--label-separator", "|"), lines("text,label", PLAIN)),
        (("--no-quotes",), lines("text,label", [f'"{PLAIN[0]}', *PLAIN[1:]])),
        (("--validation-share", "0.5"), lines("text,label", PLAIN)),
        (("--seed", "7"), lines("text,label", PLAIN)),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_reading_option_changes_what_was_understood(options: tuple[str, ...], content: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(content, encoding="utf-8")
    with_option = understood(path, *options)
    assert isinstance(with_option, dict), with_option
    assert with_option != understood(path)


def test_an_encoding_is_needed_and_enough(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(lines("text,label", [f"café {row}" for row in PLAIN]).encode("cp1252"))
    assert "--encoding cp1252" in understood(path)
    assert isinstance(understood(path, "--encoding", "cp1252"), dict)


def test_a_model_adds_token_lengths_with_the_limit_of_its_position_table(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(lines("text,label", [f"{'long ' * 40}{row}" for row in PLAIN]), encoding="utf-8")
    folder = tiny_folder(tmp_path / "model")
    assert understood(path) != (found := understood(path, "--model", str(folder)))
    assert found["parts"]["train"]["token_lengths"]["limit"] == 32
    assert found["parts"]["train"]["token_lengths"]["truncated"] == len(PLAIN)
