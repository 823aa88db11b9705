"""The README keeps its word: its commands exist with their options, and its Python runs on a real checkpoint."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer
from tiny import tiny_budgeted, tiny_tokenizer

from rheostat.cli.app import app

README = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
COMMANDS = [
    shlex.split(line, comments=True)
    for block in re.findall(r"```bash\n(.*?)```", README, flags=re.DOTALL)
    for line in block.splitlines()
    if line.startswith("rheostat ")
]


def test_the_readme_shows_every_main_command() -> None:
    shown = {words[1] for words in COMMANDS}
    assert {"data", "train", "evaluate", "predict", "measure", "materialize"} <= shown


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words[:2]))
def test_a_command_of_the_readme_parses(words: list[str]) -> None:
    group = typer.main.get_command(app)
    command = group.commands[words[1]]
    context = command.make_context(words[1], words[2:])
    assert context.params  # every option was known and every required one given


def test_the_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    model = tiny_budgeted(tokenizer=tiny_tokenizer(tmp_path / "words"))
    model.save_pretrained(tmp_path / "runs" / "demo" / "checkpoint")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(code, names)  # the README's own code
    assert (tmp_path / "runs" / "demo" / "small" / "rheostat.json").is_file()
    assert (tmp_path / "runs" / "demo" / "copy" / "rheostat.json").is_file()


def test_every_file_that_the_readme_names_exists() -> None:
    root = Path(__file__).parents[1]
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (root / target).exists(), target
