"""What budgets score on rows of words: word accuracy, and F1 of whole entities through seqeval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rheostat.data.tagging import NO_TOKEN
from rheostat.entities import OUTSIDE, check_entities, entities_of, names_entities
from rheostat.evaluation import answered, check_scored, view_at
from rheostat.model import BudgetedModel, Form
from rheostat.modes import evaluating
from rheostat.qualities import TagQuality

Counts = NDArray[np.int64]


def tag_qualities(
    model: BudgetedModel,
    rows: Any,
    collator: Any,
    budgets: Sequence[float],
    *,
    form: Form = "sliced",
    batch_size: int = 32,
    progress: bool = True,
) -> list[TagQuality]:
    """Return what each budget scores on rows of words, with its drop below budget 1.0 and the paired interval.

    Args:
        model: A budgeted token classifier.
        rows: A data set of token rows, as :func:`rheostat.data.tokenize_words` makes them.
        collator: Makes a batch of rows.
        budgets: What to evaluate; 1.0 is run even if it is not asked for, but then not returned.
        form: See :meth:`BudgetedModel.forward`.
        batch_size: Rows a batch.
        progress: Whether to show a bar.

    Raises:
        BudgetError: a budget that can't be reached, before anything runs.
        OptionError: no rows.
        MissingDependencyError: labels name entities, and seqeval is not installed.
    """
    check_scored(model, rows, budgets)
    names = model.info.labels
    check_entities(names)
    counts = {}
    with evaluating(model):
        for budget in dict.fromkeys([1.0, *budgets]):
            found = _predicted(model, rows, collator, budget, form, batch_size, progress)
            counts[budget] = _counts(found, rows["tags"], names)
    return [_quality(budget, counts[budget], counts[1.0], names_entities(names)) for budget in budgets]


def _predicted(
    model: BudgetedModel, rows: Any, collator: Any, budget: float, form: Form, batch_size: int, progress: bool
) -> list[list[int]]:
    """Return the number of every word's label, a row at a time; NO_TOKEN where a word has no token."""
    title = f"Evaluating budget {budget:g}" if progress else None
    told: dict[str, Any] = {"device": model.device, "info": model.info, "batch_size": batch_size, "title": title}
    found: list[list[int]] = [[] for _ in range(len(rows))]
    for batch in answered(view_at(model, budget, form), rows, collator, **told):
        chosen = batch.answers.argmax(dim=-1).cpu().numpy()  # (B, S)
        width, mask = chosen.shape[1], batch.tensors["attention_mask"]
        for row, (place, starts) in enumerate(zip(batch.ids, batch.columns["starts"], strict=True)):
            # padding may be on the left
            shift = width - len(batch.columns["input_ids"][row]) if int(mask[row, 0]) == 0 else 0
            found[place] = [NO_TOKEN if start == NO_TOKEN else int(chosen[row, start + shift]) for start in starts]
    return found


def _counts(found: Sequence[Sequence[int]], tags: Sequence[Sequence[int]], labels: Sequence[str]) -> Counts:
    """Return for every row (words right, words, entities right, entities found, entities there), (N, 5)."""
    entities = names_entities(labels)
    counts = np.zeros((len(tags), 5), np.int64)
    for row, (own, wanted) in enumerate(zip(found, tags, strict=True)):
        counts[row, :2] = sum(a == b for a, b in zip(own, wanted, strict=True)), len(wanted)
        if entities:
            first, second = (
                set(entities_of([OUTSIDE if tag == NO_TOKEN else labels[tag] for tag in part]))
                for part in (own, wanted)
            )
            counts[row, 2:] = len(first & second), len(first), len(second)
    return counts


def _headline(counts: Any, entities: bool) -> Any:
    """Return the entity F1 of summed counts (..., 5), or the word accuracy where labels name no entities."""
    right, whole = (
        (2 * counts[..., 2], counts[..., 3] + counts[..., 4]) if entities else (counts[..., 0], counts[..., 1])
    )
    return right / np.maximum(whole, 1)


def _quality(budget: float, counts: Counts, full: Counts, entities: bool) -> TagQuality:
    total = counts.sum(axis=0)
    low, high = _interval(full, counts, entities)
    drop = 100.0 * float(_headline(full.sum(axis=0), entities) - _headline(total, entities))
    return TagQuality(
        budget=float(budget),
        rows=len(counts),
        words=int(total[1]),
        accuracy=float(total[0] / max(total[1], 1)),
        entity_f1=float(_headline(total, entities)) if entities else None,
        precision=float(total[2] / max(total[3], 1)) if entities else None,
        recall=float(total[2] / max(total[4], 1)) if entities else None,
        drop_points=drop,
        drop_low=min(low, drop),
        drop_high=max(high, drop),
    )


def _interval(
    full: Counts, counts: Counts, entities: bool, samples: int = 2000, part: int = 100
) -> tuple[float, float]:
    """Return the 95 % interval of (full - this) in points, by a paired bootstrap over rows."""
    rng, rows = np.random.default_rng(0), len(counts)
    drops = []
    for _ in range(samples // part):  # all draws at once would take a gigabyte for a few thousand rows
        drawn = rng.multinomial(rows, np.full(rows, 1.0 / rows), size=part)  # (part, N)
        drops.append(_headline(drawn @ full, entities) - _headline(drawn @ counts, entities))
    low, high = np.quantile(100.0 * np.concatenate(drops), [0.025, 0.975])
    return float(low), float(high)
