"""Open a bundle and ask it: a budget per call, many threads, no torch."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rheostat.budget import check_budget
from rheostat.bundle.engines import Arrays, Session, open_session
from rheostat.bundle.manifest import NEAR, PRECISIONS, BundleInfo, Point, read_bundle_info
from rheostat.bundle.texts import TextEncoder
from rheostat.checkpoint import existing_folder, task_of
from rheostat.data.options import EMBEDDING, MULTI_LABEL, REGRESSION, SINGLE_LABEL, TOKEN_CLASSIFICATION
from rheostat.errors import BudgetError, OptionError
from rheostat.predictions import Prediction, TaggedText, interpret, interpret_words
from rheostat.quality import Quality, cheapest_within

TEXT_TASKS = (SINGLE_LABEL, MULTI_LABEL, REGRESSION)


class Bundle:
    """An opened bundle; every method may be called from many threads.

    Attributes:
        info: What ``bundle.json`` says.
        precision: ``float32`` or ``int8``.
    """

    def __init__(
        self,
        folder: Path,
        info: BundleInfo,
        *,
        precision: str = "float32",
        memory: str = "fast",
        threads: int = 1,
        budgets: Sequence[float] | None = None,
    ) -> None:
        """Open the graphs; most callers want :func:`open_bundle`."""
        self.info, self.precision = info, precision
        if isinstance(budgets, Real) or (budgets is not None and not len(budgets)):
            raise OptionError(f"budgets must be a list with at least one; got {budgets!r}. Leave it out to open all")
        points = info.points if budgets is None else tuple(info.point(b, strict=True) for b in budgets)
        held = [point for point in points if precision in point.graphs]
        if precision not in PRECISIONS or not held:
            raise OptionError(
                f"precision must be one that the bundle holds; got {precision!r}. Export it with --int8, or ask for "
                "float32"
            )
        self._sessions: dict[float, Session] = {
            point.budget: open_session(
                info.engine, folder / point.graphs[precision].file, info.inputs, memory=memory, threads=threads
            )
            for point in held
        }
        self._encoder = None if info.tokenizer is None else TextEncoder.of(folder, info.tokenizer)
        self._warned: set[float] = set()
        self._lock = threading.Lock()

    @property
    def budgets(self) -> tuple[float, ...]:
        """Return the budgets that are open, largest first."""
        return tuple(sorted(self._sessions, reverse=True))

    def point(self, budget: float, *, strict: bool = False) -> Point:
        """Return the open point of ``budget``, or the nearest one below it, which is said once.

        Raises:
            BudgetError: none at or below ``budget``; with ``strict``, none at it.
        """
        point = self.info.point(budget, strict=strict)
        if point.budget not in self._sessions:
            below = [known for known in self.budgets if known <= budget]
            if strict or not below:
                listed = ", ".join(f"{known:g}" for known in self.budgets)
                raise BudgetError(f"budget must be one that was opened, {listed}; got {budget!r}. Open it too")
            point = self.info.point(below[0])
        if abs(point.budget - budget) > NEAR:
            self._say(budget, point.budget)
        return point

    def _say(self, asked: float, used: float) -> None:
        """Warn once for each point that answers in the place of another budget."""
        with self._lock:
            known = used in self._warned
            self._warned.add(used)
        if not known:
            warnings.warn(f"budget {asked:g} is not in the bundle; {used:g}, the nearest below, answers", stacklevel=4)

    def within(self, max_drop: float) -> float:
        """Return the cheapest open budget whose validated accuracy is within ``max_drop`` points of the full model's.

        The full model is the float32 graph of budget 1.0, whatever is open.

        Raises:
            OptionError: the bundle was not validated, or no open budget is that good.
        """
        full = self.info.points[0].graphs["float32"].quality
        found = {budget: self.info.point(budget).graphs[self.precision].quality for budget in self.budgets}
        qualities = [Quality.from_json(record) for record in found.values() if record is not None]
        if full is None or not qualities:
            raise OptionError("max_drop needs a validated bundle; this one is not. Export it with --validate DATA")
        reference = Quality.from_json(full)
        others = [quality for quality in qualities if quality.budget != reference.budget]
        chosen = cheapest_within([reference, *others], max_drop).budget
        if chosen not in self._sessions:
            raise OptionError(f"no open budget is within {max_drop:g} points of the full model. Open budget 1.0 too")
        return chosen

    def run(self, inputs: Arrays, *, budget: float = 1.0, strict: bool = False) -> NDArray[np.float32]:
        """Return the logits (B, C) of token arrays (B, S) by name; unknown names are left out.

        Raises:
            BudgetError: see :meth:`point`.
        """
        return self.session(budget, strict=strict).run(inputs)

    def session(self, budget: float, *, strict: bool = False) -> Session:
        """Return the opened graph that :meth:`run` would run.

        Raises:
            BudgetError: see :meth:`point`.
        """
        found = self._sessions.get(check_budget(budget))
        return self._sessions[self.point(budget, strict=strict).budget] if found is None else found

    def logits(
        self, texts: Sequence[str | tuple[str, str]], *, budget: float = 1.0, batch_size: int = 32, strict: bool = False
    ) -> NDArray[np.float32]:
        """Return the logits of texts or pairs of texts, (N, C), in their order.

        Raises:
            OptionError: no tokenizer in the bundle, or not a list of texts.
            BudgetError: see :meth:`point`.
        """
        self._check_task(TEXT_TASKS, "logits")
        used = self.point(budget, strict=strict).budget
        return self._rows(texts, used, batch_size, max(len(self.info.info.labels), 1))

    def encode(
        self, texts: Sequence[str], *, budget: float = 1.0, batch_size: int = 32, strict: bool = False
    ) -> NDArray[np.float32]:
        """Return the vectors of texts, (N, E), in their order; of a bundle of an embedding model.

        Raises:
            OptionError: a bundle of another task, no tokenizer in it, or not a list of texts.
            BudgetError: see :meth:`point`.
        """
        self._check_task((EMBEDDING,), "encode")
        prompt = self.info.info.prompt
        used = self.point(budget, strict=strict).budget
        given = [prompt + text if isinstance(text, str) else text for text in texts] if prompt else texts
        return self._rows(given, used, batch_size, 0)

    def _check_task(self, tasks: Sequence[str], call: str) -> None:
        """Refuse a call that a model of another task has no answer to."""
        task = task_of(self.info.info)
        if task not in tasks:
            known = "encode" if task == EMBEDDING else "predict"
            raise OptionError(f"{call} must be of a bundle of task {' or '.join(tasks)}; got {task}. Call {known}")

    def _rows(
        self, texts: Sequence[str | tuple[str, str]], budget: float, batch_size: int, width: int
    ) -> NDArray[np.float32]:
        """Return an answer a text, (N, C), in their order; without texts it is ``width`` wide."""
        found = np.zeros((0, width), np.float32)
        for places, encodings, answers in self._answered(texts, budget, batch_size):
            if not len(found):
                found = np.empty((len(encodings), answers.shape[1]), np.float32)
            found[places] = answers
        return found

    def _answered(
        self, texts: Sequence[str | tuple[str, str]], budget: float, batch_size: int
    ) -> Iterator[tuple[list[int], list[Any], NDArray[np.float32]]]:
        """Yield (places, all encodings, answers) of batches of similar length."""
        if self._encoder is None:
            raise OptionError("the bundle must hold a tokenizer to read texts; it does not. Call run with token ids")
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise OptionError(f"batch_size must be a whole number, 1 or more; got {batch_size!r}. The default is 32")
        encodings = self._encoder.encode(texts)
        for places, batch in self._encoder.batches(encodings, batch_size):
            yield places, encodings, self.run(batch, budget=budget)

    def predict(
        self,
        texts: Sequence[str | tuple[str, str]],
        *,
        budget: float | None = None,
        max_drop: float | None = None,
        batch_size: int = 32,
        strict: bool = False,
    ) -> list[Prediction] | list[TaggedText]:
        """Return one prediction a text, in order; its budget is the one that answered. Words have labels of their own.

        Args:
            texts: Texts or pairs of texts; longer ones are cut at the bundle's longest input.
            budget: Share of the full cost; 1.0 if nothing is said.
            max_drop: Instead: the cheapest budget within this many points of the full model on validation rows.
            batch_size: Rows a run.
            strict: Whether a budget that is not in the bundle is an error.

        Raises:
            OptionError: both ``budget`` and ``max_drop``, no tokenizer, or not a list of texts.
            BudgetError: see :meth:`point`.
        """
        if budget is not None and max_drop is not None:
            raise OptionError("budget and max_drop must not both be given; choose one")
        asked = self.within(max_drop) if max_drop is not None else 1.0 if budget is None else budget
        used = self.point(asked, strict=strict).budget
        if self.info.info.task != TOKEN_CLASSIFICATION:
            return interpret(self.logits(texts, budget=used, batch_size=batch_size), self.info.info, used)
        tagged: dict[int, TaggedText] = {}
        for places, encodings, answers in self._answered(texts, used, batch_size):
            for place, logits in zip(places, answers, strict=True):
                row, text = encodings[place], str(texts[place])
                own = logits[: len(row.ids)]  # padding is on the right
                tagged[place] = interpret_words(text, own, row.word_ids, row.offsets, self.info.info, used)
        return [tagged[i] for i in range(len(texts))]


def open_bundle(
    path: str | os.PathLike[str],
    *,
    precision: str = "float32",
    memory: str = "fast",
    threads: int = 1,
    budgets: Sequence[float] | None = None,
    verify: bool = True,
) -> Bundle:
    """Open a folder that ``rheostat export`` wrote. Needs onnxruntime (or openvino), tokenizers and numpy.

    Args:
        path: The folder.
        precision: ``float32`` or ``int8``.
        memory: ``fast`` packs the weights for the processor; ``shared`` (ONNX Runtime) lets all budgets and
            processes use one copy as it lies on disk, more slowly.
        threads: Threads of a call.
        budgets: Which points to open; None for all.
        verify: Whether the hash of every file is checked.

    Raises:
        CheckpointError: no bundle, of a newer version, or damaged.
        OptionError: an option with a value that can't be used.
        MissingDependencyError: the runtime is not installed.
    """
    folder = existing_folder(path)
    info = read_bundle_info(folder, verify=verify)
    return Bundle(folder, info, precision=precision, memory=memory, threads=threads, budgets=budgets)
