"""What an experiment is: model, data, runs, what must be reached, what the paper says; read from YAML, strictly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import yaml

from rheostat.compare import METHODS
from rheostat.errors import OptionError
from rheostat.recipe import TrainOptions

SCALES = ("small", "full")
QUANTITIES = ("accuracy", "below", "share", "speedup", "of_ideal")
ONE_SIZE = ("dense", "dense-equal", "linear")
T = TypeVar("T")


@dataclass(frozen=True)
class Run:
    """One comparison of an experiment.

    Attributes:
        methods: Names in ``rheostat.compare.METHODS``.
        budgets: Points of the budgeted and the pruned models.
        options: What differs from the options of the experiment.
    """

    methods: tuple[str, ...]
    budgets: tuple[float, ...]
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Speed:
    """Which checkpoint is timed, and how; one thread against the full model of the same checkpoint."""

    run: str
    budgets: tuple[float, ...]
    batch: int = 8
    length: int = 64


@dataclass(frozen=True)
class Target:
    """What must be reached.

    Attributes:
        about: In words.
        run: Name of the run.
        method: The method.
        budget: The point; None for a model of one size.
        quantity: ``accuracy`` (percent), ``below`` (points below ``other``), ``share`` (of the cost),
            ``speedup``, or ``of_ideal`` (speedup over what the multiply-accumulates promise).
        within: Instead of a budget: the costliest point that costs at most this share.
        other: The method that ``below`` compares with.
        other_run: The run that ``other`` is of; by default the same.
        at_least: Smallest value.
        at_most: Largest value.
    """

    about: str
    run: str
    method: str
    quantity: str
    budget: float | None = None
    within: float | None = None
    other: str | None = None
    other_run: str | None = None
    at_least: float | None = None
    at_most: float | None = None

    def reached(self, value: float) -> bool:
        """Return whether a value is within the bounds."""
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)


@dataclass(frozen=True)
class PaperFigure:
    """A number of the paper, and the line of ours that stands beside it."""

    about: str
    value: float
    run: str
    method: str
    budget: float | None = None
    quantity: str = "accuracy"
    within: float | None = None


@dataclass(frozen=True)
class Experiment:
    """One experiment.

    Attributes:
        name: Of the file.
        title: In words.
        model: ``kind`` and what it needs; see :mod:`rheostat.reproduce.models`.
        data: ``kind`` and what it needs; see :mod:`rheostat.reproduce.models`.
        options: Training options of all runs.
        scales: Training options of ``small`` and ``full``.
        runs: By name; runs with the same dense models share them.
        speed: What is timed.
        targets: What must be reached.
        paper: What the paper says.
        not_reproduced: What of the paper is not, and why.
        notes: Printed below the tables.
        seeds: How many are usual.
    """

    name: str
    title: str
    model: Mapping[str, Any]
    data: Mapping[str, Any]
    options: Mapping[str, Any]
    scales: Mapping[str, Mapping[str, Any]]
    runs: Mapping[str, Run]
    speed: tuple[Speed, ...] = ()
    targets: tuple[Target, ...] = ()
    paper: tuple[PaperFigure, ...] = ()
    not_reproduced: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seeds: int = 3

    def train_options(self, run: str, scale: str) -> TrainOptions:
        """Return the training options of a run at a scale."""
        changes = [self.options, self.scales[scale] or {}, self.runs[run].options or {}]
        if not all(isinstance(change, Mapping) for change in changes):
            raise OptionError(f"{self.name} must have options and scales of NAME: VALUE; {run} has others")
        merged = {name: value for change in changes for name, value in change.items()}
        return make(TrainOptions, merged, self.name)


def read_experiment(path: Path) -> Experiment:
    """Return the experiment of a file.

    Raises:
        OptionError: unreadable, an unknown key, or a run, method or scale that is not there.
    """
    try:
        record = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise OptionError(f"{str(path)!r} must be a readable YAML file; {' '.join(str(error).split())}") from None
    if not isinstance(record, dict):
        raise OptionError(f"{str(path)!r} must hold the keys of an experiment; it does not")
    for name, wanted in (("runs", dict), ("scales", dict), ("model", dict), ("data", dict), ("options", dict)):
        if not isinstance(record.get(name), wanted):
            raise OptionError(f"{path.name} must have {name} as NAME: VALUE; got {record.get(name)!r:.60}")
    nested: dict[str, Any] = {
        "runs": {name: make(Run, run, f"{path.name} {name}") for name, run in (record.get("runs") or {}).items()}
    }
    for key, kind in (("speed", Speed), ("targets", Target), ("paper", PaperFigure)):
        nested[key] = tuple(make(kind, item, f"{path.name} {key}") for item in record.get(key) or ())
    found = make(Experiment, {**record, **nested, "name": path.stem}, path.name)
    _check(found)
    return found


def make(kind: type[T], record: Mapping[str, Any], where: str) -> T:
    """Return a dataclass of a mapping; lists become tuples.

    Raises:
        OptionError: a key that it has not, or one that it lacks.
    """
    if not isinstance(record, Mapping):
        raise OptionError(f"{where} must be NAME: VALUE; got {record!r:.60}")
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(record) - known)
    if unknown:
        raise OptionError(f"{where} must have keys among {', '.join(sorted(known))}; got {', '.join(unknown)}")
    try:
        return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in record.items()})
    except TypeError as error:
        raise OptionError(f"{where} must be complete: {error}") from None


def _check(experiment: Experiment) -> None:
    """Refuse an experiment whose parts do not fit together: found out now, and not after hours."""
    if set(experiment.scales) != set(SCALES) or not experiment.runs:
        raise OptionError(f"{experiment.name} must have the scales {' and '.join(SCALES)} and at least one run")
    for name, run in experiment.runs.items():
        unknown = sorted(set(run.methods) - set(METHODS))
        if unknown:
            raise OptionError(f"{experiment.name} {name} must name methods among {', '.join(METHODS)}; got {unknown}")
        if not isinstance(run.budgets, tuple) or not run.budgets:
            raise OptionError(f"{experiment.name} {name} must have a list of budgets; got {run.budgets!r}")
    timed = [item.run for item in experiment.speed]
    numbers: tuple[Target | PaperFigure, ...] = (*experiment.targets, *experiment.paper)
    for run_name in (*timed, *(item.run for item in numbers)):
        if run_name not in experiment.runs:
            raise OptionError(f"{experiment.name} must name runs among {', '.join(experiment.runs)}; got {run_name!r}")
    for speed in experiment.speed:
        if "sandwich" not in experiment.runs[speed.run].methods or timed.count(speed.run) > 1:
            raise OptionError(f"{experiment.name} speed must be of a run with sandwich, once; got {speed.run!r}")
    for item in numbers:
        _check_point(experiment, item)
    for target in experiment.targets:
        if target.at_least is None and target.at_most is None:
            raise OptionError(f"{experiment.name} target {target.about!r} must have at_least or at_most")
    for scale in SCALES:
        for run_name in experiment.runs:
            experiment.train_options(run_name, scale)


def _check_point(experiment: Experiment, item: Target | PaperFigure) -> None:
    """Refuse a number that no line of its run can give."""
    run, where = experiment.runs[item.run], f"{experiment.name} {item.about!r}"
    if item.quantity not in QUANTITIES:
        raise OptionError(f"{where} must have a quantity among {', '.join(QUANTITIES)}; got {item.quantity!r}")
    if item.method not in run.methods:
        raise OptionError(f"{where} must name a method of {item.run}; got {item.method!r}")
    if item.quantity in ("speedup", "of_ideal"):
        timed = [speed.budgets for speed in experiment.speed if speed.run == item.run]
        if item.method != "sandwich" or not timed or item.budget not in timed[0]:
            raise OptionError(f"{where} must be of sandwich at a budget that is timed; got {item.budget!r}")
        return
    if item.method not in ONE_SIZE and (item.budget is None) == (item.within is None):
        raise OptionError(f"{where} must have a budget or within")
    if item.budget is not None and item.budget not in (1.0, *run.budgets):
        raise OptionError(f"{where} must be at a budget of {item.run}; got {item.budget!r}")
    if isinstance(item, Target) and (item.quantity == "below") != (item.other is not None):
        raise OptionError(f"{where} must have other with below, and only then")
    if isinstance(item, Target) and item.other is not None:
        other = experiment.runs.get(item.other_run or item.run)
        if other is None or item.other not in other.methods:
            raise OptionError(f"{where} must compare with a method that is run; got {item.other!r}")


def find_experiments(folder: Path) -> dict[str, Path]:
    """Return the experiment files of a folder by name.

    Raises:
        OptionError: there is none.
    """
    found = {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    if not found:
        raise OptionError(
            f"{str(folder)!r} must be a folder of experiments (*.yaml); it holds none. Run it in a clone of the "
            "project, or pass --folder"
        )
    return found
