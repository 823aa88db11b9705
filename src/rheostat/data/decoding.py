"""Open text files in the right encoding, and say at which byte and with which option when it is the wrong one."""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import TextIO

from rheostat.errors import DataError

_BLOCK_BYTES = 1 << 20
_HEAD_BYTES = 4096
# UTF-32 before UTF-16: its little-endian mark begins with that of UTF-16.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def open_text(path: Path, encoding: str, newline: str) -> TextIO:
    """Open `path` for reading, without its byte-order mark; `newline` as in `open`."""
    return path.open("r", encoding=text_codec(path, encoding), newline=newline)


def text_codec(path: Path, encoding: str) -> str:
    """Return the codec that reads `path`; raise DataError when its first bytes contradict `encoding`."""
    head = read_head(path)
    wanted = codecs.lookup(encoding).name
    marked = next((name for mark, name in _MARKS if head.startswith(mark)), None)
    if marked is not None:
        if not wanted.startswith(marked):
            raise DataError(
                f"{path}, byte offset 0: begins with the byte-order mark of {marked} and can't be {encoding}. "
                f"Set --encoding {marked}"
            )
        return "utf-8-sig" if marked == "utf-8" else marked
    unmarked = _unmarked_utf16(head) if wanted.startswith("utf-8") else None
    if unmarked is not None:
        raise DataError(
            f"{path}, byte offset {head.index(0)}: has a zero byte beside every letter and can't be {encoding}. "
            f"Set --encoding {unmarked}"
        )
    return encoding


def read_head(path: Path) -> bytes:
    """Return the first bytes of a file; raise DataError when it can't be opened or is empty."""
    try:
        with path.open("rb") as handle:
            head = handle.read(_HEAD_BYTES)
    except OSError as error:
        raise DataError(f"{path}: can't be opened ({error.strerror}). Check the path and its permissions") from error
    if not head:
        raise DataError(f"{path}: is empty (0 bytes). Give a file with a text and a label in each row")
    return head


def _unmarked_utf16(head: bytes) -> str | None:
    even, odd = head[0::2].count(0), head[1::2].count(0)
    if even + odd < len(head) // 8 or (even and odd) or not (even or odd):
        return None
    return "utf-16-le" if odd else "utf-16-be"


def decode_error(path: Path, encoding: str, error: UnicodeError) -> DataError:
    """Return the one-line error for a file that is not written in `encoding`, with the byte offset."""
    found = _first_bad_byte(path, encoding)
    if found is None:  # a codec that fails without saying where
        return DataError(f"{path}: is not {encoding} ({error}). Set --encoding to the one it was written in")
    offset, line, byte = found
    is_utf8 = codecs.lookup(encoding).name.startswith("utf-8")
    remedy = "Set --encoding cp1252, or the one it was written in" if is_utf8 else "Set --encoding to the right one"
    return DataError(f"{path}, line {line}, byte offset {offset}: {byte} is not {encoding}. {remedy}")


def mojibake_note(path: Path, encoding: str) -> list[str]:
    """Return a warning when a file read in an encoding of one byte a character would also read as UTF-8.

    cp1252 and its like accept nearly every byte, so UTF-8 read with them becomes "Ã©" without an error.
    """
    if len("é".encode("utf-8" if codecs.lookup(encoding).name.startswith("utf") else encoding, "replace")) != 1:
        return []
    with path.open("rb") as handle:
        head = handle.read(_BLOCK_BYTES)
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return []
    return [] if head.isascii() else [f"this file also reads as UTF-8: is --encoding {encoding} meant?"]


def _first_bad_byte(path: Path, encoding: str) -> tuple[int, int, str] | None:
    decoder = codecs.getincrementaldecoder(text_codec(path, encoding))()
    read, line = 0, 1
    with path.open("rb") as handle:
        while True:
            block = handle.read(_BLOCK_BYTES)
            try:
                text = decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                # error.object is what the decoder had kept back plus this block, less a byte-order mark.
                offset = read - (len(error.object) - len(block)) + error.start
                good = error.object[: error.start].decode(encoding, errors="replace")
                return offset, line + good.count("\n"), f"0x{error.object[error.start]:02x}"
            except UnicodeError:
                return None
            if not block:
                return None
            read += len(block)
            line += text.count("\n")
