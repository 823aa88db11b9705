"""Find the text and label columns among those a file has, and say what to type when they are not there."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from rheostat.data.options import DEFAULTS, UNLABELLED, ReadOptions
from rheostat.errors import DataError

_OTHER_DELIMITERS = (";", "\t", "|", ",", ":")
_SHOWN_NAMES = 12
_SHOWN_CHARS = 60


def roles(options: ReadOptions) -> dict[str, str]:
    """Return the wanted column of each role, in the order in which the rows keep them.

    >>> roles(ReadOptions(text_column="body"))
    {'text': 'body', 'label': 'label'}
    """
    wanted = {"text": options.text_column}
    if options.text_pair_column is not None:
        wanted["text_pair"] = options.text_pair_column
    return wanted if options.task in UNLABELLED else {**wanted, "label": options.label_column}


def find_columns(
    names: Sequence[str], options: ReadOptions, where: str, delimiter: str | None = None
) -> dict[str, int]:
    """Return the position of each role's column.

    Raises DataError when a column is not there (with the ones that are and the likely remedy) or is there twice.

    >>> find_columns(["id", "text", "label"], ReadOptions(), "a.csv")
    {'text': 1, 'label': 2}
    """
    stripped = [name.strip() for name in names]
    for role, name in roles(options).items():
        count = stripped.count(name.strip())
        if count == 0:
            remedy = _remedy(role, name, stripped, options, delimiter)
            raise DataError(f"{where}: column {name!r} not found; found {_shown(names)}: {remedy}")
        if count > 1:
            raise DataError(
                f"{where}: column {name!r} must be there once; got {count} in {_shown(names)}. Rename one of them"
            )
    return {role: stripped.index(name.strip()) for role, name in roles(options).items()}


def number_columns(width: int, options: ReadOptions, where: str) -> dict[str, int]:
    """Return the position of each role's column in a file without a header.

    Columns are counted from 1. Left at their defaults, the text is the first column and the label the last.

    >>> number_columns(2, ReadOptions(header=False), "a.csv")
    {'text': 0, 'label': 1}
    """
    found = {}
    for role, name in roles(options).items():
        if role == "text" and name == DEFAULTS.text_column:
            found[role] = 0
        elif role == "label" and name == DEFAULTS.label_column:
            found[role] = width - 1
        else:
            found[role] = _column_number(role, name, width, where)
    if len(set(found.values())) != len(found):
        raise DataError(
            f"{where}: text and label must be different columns; got {width} column(s) in the first row. "
            "Set --delimiter, or --text-column and --label-column to column numbers"
        )
    return found


def _column_number(role: str, name: str, width: int, where: str) -> int:
    if name.isdecimal() and 1 <= int(name) <= width:
        return int(name) - 1
    raise DataError(
        f"{where}: without a header {option(role)} must be a column number from 1 to {width}; got {name!r}. "
        "Give the number, or leave out --no-header"
    )


def option(role: str) -> str:
    """Return the command-line option of a role.

    >>> option("text_pair")
    '--text-pair-column'
    """
    return f"--{role.replace('_', '-')}-column"


def _shown(names: Sequence[str]) -> str:
    short = [name if len(name) <= _SHOWN_CHARS else name[: _SHOWN_CHARS - 3] + "..." for name in names[:_SHOWN_NAMES]]
    rest = len(names) - len(short)
    return f"{short!r}" + (f" and {rest} more" if rest > 0 else "")


def _remedy(role: str, name: str, names: Sequence[str], options: ReadOptions, delimiter: str | None) -> str:
    if delimiter is not None and names and names[0].lower().startswith("sep="):
        return "the first line is a note for Excel? delete it"
    other = _likely_delimiter(name, names, delimiter)
    if other is not None:
        return f"delimiter? use --delimiter {'tab' if other == chr(9) else repr(other)}"
    close = difflib.get_close_matches(name.lower(), [known.lower() for known in names], n=1, cutoff=0.75)
    if close:
        meant = next(known for known in names if known.lower() == close[0])
        return f"use {option(role)} {meant!r}"
    if delimiter is not None and not set(names) & set(roles(options).values()):
        return f"is the first line data? use --no-header; else name it with {option(role)}"
    return f"name it with {option(role)}"


def _likely_delimiter(name: str, names: Sequence[str], delimiter: str | None) -> str | None:
    if delimiter is None:
        return None
    line = delimiter.join(names)
    for other in _OTHER_DELIMITERS:
        if other != delimiter and name in [part.strip().strip('"') for part in line.split(other)]:
            return other
    # One field without the wanted name: still a wrong delimiter, if another one cuts it in two or more.
    cuts = [other for other in (";", "\t", "|", ",") if other != delimiter and len(names) == 1 and other in line]
    return cuts[0] if cuts else None
