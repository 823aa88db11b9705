"""Put counts of rows into words, alike in every note and error."""

from __future__ import annotations

from collections.abc import Sequence


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun.

    >>> counted(1, "row"), counted(2000, "row"), counted(2, "class", "classes")
    ('1 row', '2,000 rows', '2 classes')
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def listed(names: Sequence[object], shown: int = 10) -> str:
    """Return the first few names with the count of the others.

    >>> listed(["b", "a"]), listed(range(12))
    ("'b', 'a'", '0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more')
    """
    rest = len(names) - shown
    return ", ".join(map(repr, names[:shown])) + (f" and {rest:,} more" if rest > 0 else "")
