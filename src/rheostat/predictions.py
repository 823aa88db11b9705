"""From logits to answers, without torch: probabilities at the budget's temperature, and the names of the classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from rheostat.calibration import probabilities
from rheostat.checkpoint import CheckpointInfo
from rheostat.entities import entities_of


@dataclass(frozen=True)
class Prediction:
    """The answer for one text.

    Attributes:
        label: The class as it was written in the training data; several for multi-label; None for regression.
        score: Probability of the label (the smallest of several), or the predicted value for regression.
        probabilities: Probability of every class, calibrated where the checkpoint holds temperatures; empty for
            regression.
        budget: The budget that answered.
    """

    label: str | tuple[str, ...] | None
    score: float
    probabilities: dict[str, float]
    budget: float

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        return asdict(self)


@dataclass(frozen=True)
class Word:
    """A word of a text and its label.

    Attributes:
        text: As it stands there.
        label: Its label.
        score: The label's probability.
        start: Its first character.
        end: The character after its last.
    """

    text: str
    label: str
    score: float
    start: int
    end: int


@dataclass(frozen=True)
class Entity:
    """Words of a text that belong together.

    Attributes:
        kind: What follows ``B-`` and ``I-`` in their labels.
        text: As it stands there.
        score: The smallest probability of their labels.
        start: Its first character.
        end: The character after its last.
    """

    kind: str
    text: str
    score: float
    start: int
    end: int


@dataclass(frozen=True)
class TaggedText:
    """The answer of a token classifier for one text.

    Attributes:
        text: The text.
        words: Its words, as the tokenizer cuts it; those behind the longest input are missing.
        budget: The budget that answered.
    """

    text: str
    words: tuple[Word, ...]
    budget: float

    def entities(self) -> list[Entity]:
        """Return the entities in their order, by seqeval's rule.

        Raises:
            MissingDependencyError: seqeval is not installed.
        """
        found = []
        for kind, first, last in entities_of([word.label for word in self.words]):
            part = self.words[first : last + 1]
            start, end = part[0].start, part[-1].end
            found.append(Entity(kind, self.text[start:end], min(word.score for word in part), start, end))
        return found

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        return asdict(self)


def interpret_words(
    text: str,
    logits: ArrayLike,
    word_ids: Sequence[int | None],
    offsets: Sequence[tuple[int, int]],
    info: CheckpointInfo,
    budget: float,
) -> TaggedText:
    """Return the labels that the logits (S, C) of a text's tokens mean: a word has that of its first token.

    Args:
        text: The text.
        logits: Of its S tokens.
        word_ids: The word of every token, None for special ones.
        offsets: The characters of every token: first, and the one after the last.
        info: Label names.
        budget: Reported with the answer.
    """
    table = probabilities(np.asarray(logits, dtype=np.float64), "single-label")  # (S, C)
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for token, word in enumerate(word_ids):
        if word is not None:
            first.setdefault(word, token)
            last[word] = token
    words = []
    for word, token in first.items():
        start, end = offsets[token][0], offsets[last[word]][1]
        start += len(text[start:end]) - len(text[start:end].lstrip())  # some tokenizers count the blank before a word
        best = int(table[token].argmax())
        words.append(Word(text[start:end], info.labels[best], float(table[token, best]), start, end))
    return TaggedText(text, tuple(words), budget)


def interpret(logits: ArrayLike, info: CheckpointInfo, budget: float) -> list[Prediction]:
    """Return the predictions that logits (B, C) of ``budget`` mean: its temperature divides them first."""
    values = np.asarray(logits, dtype=np.float64)
    names = info.labels or tuple(f"LABEL_{i}" for i in range(values.shape[-1]))
    if info.task == "regression":
        return [Prediction(None, value, {}, budget) for value in values[:, 0].tolist()]
    multi = info.task == "multi-label"
    rows = probabilities(values / info.temperature_at(budget), "multi-label" if multi else "single-label").tolist()
    return [_classified(names, row, multi, budget) for row in rows]


def _classified(names: Sequence[str], row: Sequence[float], multi: bool, budget: float) -> Prediction:
    table = dict(zip(names, row, strict=True))
    if multi:
        chosen = tuple(name for name, p in table.items() if p > 0.5)
        return Prediction(chosen, min((table[name] for name in chosen), default=1.0 - max(row)), table, budget)
    best = max(range(len(row)), key=row.__getitem__)
    return Prediction(names[best], row[best], table, budget)
