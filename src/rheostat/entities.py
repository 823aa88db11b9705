"""Entities in rows of labels, by seqeval, the library that the field scores them with. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from rheostat.errors import missing

OUTSIDE = "O"  # the label of a word that is part of no entity


def names_entities(labels: Sequence[str]) -> bool:
    """Return whether labels name parts of entities: B-PER, I-PER, O, as IOB, IOBES and the like have them.

    >>> names_entities(["B-PER", "O"]), names_entities(["NOUN", "VERB"])
    (True, False)
    """
    parts = [label for label in labels if label != OUTSIDE]
    return bool(parts) and all(label[:2] in ("B-", "I-", "E-", "S-", "L-", "U-") for label in parts)


def check_entities(labels: Sequence[str]) -> None:
    """Refuse to score entities without the library that knows what one is.

    Raises:
        MissingDependencyError: seqeval is not installed.
    """
    if names_entities(labels) and find_spec("seqeval") is None:
        raise missing("seqeval", "tokens")


def entities_of(labels: Sequence[str]) -> list[tuple[str, int, int]]:
    """Return (kind, first word, last word) of the entities in a row of labels, by seqeval's lenient rule."""
    from seqeval.metrics.sequence_labeling import get_entities

    return [(str(kind), int(first), int(last)) for kind, first, last in get_entities(list(labels))]
