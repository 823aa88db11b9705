"""Run an experiment: every comparison for every seed, the timing, and what was reached of what was promised."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from rheostat.checkpoint import write_whole
from rheostat.compare import Comparison, Line, Reading, below, lines_of
from rheostat.compare.methods import dense_key
from rheostat.console import stderr
from rheostat.measure import environment
from rheostat.model import BudgetedModel, load
from rheostat.recipe import TrainOptions
from rheostat.reproduce.experiment import Experiment, PaperFigure, Speed, Target
from rheostat.reproduce.models import make_data, make_model
from rheostat.timing import time_budgets

ROUNDS = 15


@dataclasses.dataclass(frozen=True)
class Answered:
    """What all seeds of a run answered."""

    readings: list[Reading]

    @cached_property
    def lines(self) -> list[Line]:
        """Return the table."""
        return lines_of(self.readings)

    @property
    def rows_read(self) -> tuple[int, str]:
        """Return how many rows were read, and whether they are test or validation rows."""
        return len(self.readings[0].right), self.readings[0].rows_of

    def of(self, method: str, budget: float | None) -> list[Reading]:
        """Return the readings of a point by seed.

        A model of one size is found at any budget; of several (fewer layers) the costliest within the budget.
        """
        found = [r for r in self.readings if r.method == method and r.budget in (budget, None)]
        if len({r.model for r in found if r.budget is None}) > 1 and budget is not None:
            most = max((r.share for r in found if r.share <= budget), default=0.0)
            found = [r for r in found if r.share == most]
        return sorted(found, key=lambda reading: reading.seed)


def reproduce(
    experiment: Experiment,
    *,
    scale: str,
    seeds: Sequence[int],
    work: Path,
    precision: str = "fp32",
    kept: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Run what is missing of an experiment and return its record.

    Args:
        experiment: What to run.
        scale: ``small`` or ``full``.
        seeds: One run each.
        work: Folder that keeps what is finished; the same call goes on after Ctrl-C.
        precision: Of training and reading: ``fp32``, ``bf16`` or ``fp16``; speed is measured in float32.
        kept: An earlier record; of runs with the same set-up its seeds and speeds are taken as they are.

    Returns:
        JSON-ready: lines of every run, speed, targets and whether they were reached, paper figures beside ours; and
        the readings that they come from.
    """
    work.mkdir(parents=True, exist_ok=True)
    options = {
        name: dataclasses.replace(experiment.train_options(name, scale), precision=precision)
        for name in experiment.runs
    }
    setups = {name: _setup(experiment, name, options[name]) for name in experiment.runs}
    known = kept or {}
    same = {name for name, setup in setups.items() if known.get("setups", {}).get(name) == setup}
    readings = {
        name: [Reading.from_json(r) for r in known["readings"][name] if r["seed"] in seeds] if name in same else []
        for name in experiment.runs
    }
    before = set.intersection(*({r.seed for r in found} for found in readings.values()))
    runs = answered_runs(experiment, options, scale, seeds, work, readings)
    speed = {item.run: (known["speed"].get(item.run, {}) if item.run in same else {}) for item in experiment.speed}
    for item in experiment.speed:
        if speed[item.run].get("asked") != _plain(item):
            speed[item.run] = speed_of(item, folder_of(work, item.run, seeds[0]) / f"seed-{seeds[0]}")
    here, earlier = environment(), known.get("environments", {})
    return {
        "title": experiment.title,
        "scale": scale,
        "seeds": list(seeds),
        "command": f"rheostat reproduce {experiment.name} --scale {scale} --seeds {len(seeds)} --precision {precision}",
        "environments": {str(s): earlier.get(str(s), here) if s in before else here for s in seeds},
        "precision": precision,
        "options": {name: asdict(chosen) for name, chosen in options.items()},
        "rows_read": {name: run.rows_read for name, run in runs.items()},
        "runs": {name: [line.to_json() for line in run.lines] for name, run in runs.items()},
        "speed": speed,
        "targets": [target_record(target, runs, speed) for target in experiment.targets],
        "paper": [paper_record(figure, runs, speed) for figure in experiment.paper],
        "not_reproduced": list(experiment.not_reproduced),
        "notes": list(experiment.notes),
        "setups": setups,
        "readings": {name: [reading.to_json() for reading in run.readings] for name, run in runs.items()},
    }


def _plain(item: Any) -> Any:
    """Return a dataclass as JSON brings it back."""
    return json.loads(json.dumps(asdict(item)))


def _setup(experiment: Experiment, run: str, options: TrainOptions) -> str:
    """Return the digest of all that decides what a run answers, but for its seeds."""
    about = {"model": dict(experiment.model), "data": dict(experiment.data), "run": asdict(experiment.runs[run])}
    text = json.dumps({**about, "options": asdict(options)}, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def folder_of(work: Path, run: str, seed: int) -> Path:
    """Return the folder of a comparison: one a seed, since an encoder with random weights is another one a seed."""
    return work / run / f"model-{seed}"


def answered_runs(
    experiment: Experiment,
    options_of: Mapping[str, TrainOptions],
    scale: str,
    seeds: Sequence[int],
    work: Path,
    readings: Mapping[str, list[Reading]],
) -> dict[str, Answered]:
    """Run every comparison and seed that ``readings`` lacks; those with the same dense models share them."""
    data, read = make_data(experiment.data, work)
    found: dict[str, Answered] = {}
    first: dict[tuple[Any, ...], str] = {}
    for name, run in experiment.runs.items():
        options = options_of[name]
        own = list(readings[name])
        for seed in seeds:
            if seed in {r.seed for r in readings[name]}:
                continue
            stderr.print(f"[bold]{experiment.name}[/bold] {name}, {scale}, seed {seed}", highlight=False)
            lender = first.setdefault((seed, *dense_key(asdict(options))), name)
            comparison = Comparison(
                make_model(experiment.model, data, read, work, seed),
                data,
                folder_of(work, name, seed),
                options,
                read,
                dense_from=None if lender == name else folder_of(work, lender, seed),
                read_precision=options.precision,
            )
            own += comparison.readings(run.methods, run.budgets, (seed,))
        found[name] = Answered(own)
    return found


def speed_of(item: Speed, folder: Path) -> dict[str, Any]:
    """Return the speedup of materialized budgets on one thread, beside what the multiply-accumulates promise."""
    asked = _plain(item)
    path = folder / "speed.json"
    if path.is_file():
        found = dict(json.loads(path.read_text(encoding="utf-8")))
        if found["asked"] == asked:
            return found
    model: BudgetedModel = load(folder / "sandwich")
    stderr.print(f"Measuring {item.run}: batch {item.batch}, {item.length} tokens, 1 thread", highlight=False)
    table = time_budgets(model, item.budgets, batch=item.batch, length=item.length, rounds=ROUNDS)
    macs = model.macs_table(item.length)
    full = macs.total(model.subnet(1.0))
    points = {}
    for budget in item.budgets:
        timed, ideal = table[str(float(budget))], full / macs.total(model.subnet(budget))
        points[f"{budget:g}"] = {
            "speedup": timed.speedup,
            "low": timed.speedup_low,
            "high": timed.speedup_high,
            "ideal": ideal,
            "of_ideal": (timed.speedup or 0.0) / ideal,
        }
    noise = [table.noise_low, table.noise_high]
    record = {"asked": asked, "environment": environment(), "rounds": ROUNDS, "noise": noise, "points": points}
    write_whole(path, json.dumps(record))
    return record


def target_record(target: Target, runs: Mapping[str, Answered], speed: Mapping[str, Any]) -> dict[str, Any]:
    """Return a target, what was found, its interval, and whether it was reached."""
    value, low, high = value_of(target, runs, speed)
    reached = None if value is None else target.reached(value)
    return {**asdict(target), "value": value, "low": low, "high": high, "reached": reached}


def paper_record(figure: PaperFigure, runs: Mapping[str, Answered], speed: Mapping[str, Any]) -> dict[str, Any]:
    """Return a number of the paper beside ours, and their difference."""
    beside = Target(figure.about, figure.run, figure.method, figure.quantity, figure.budget, within=figure.within)
    value, low, high = value_of(beside, runs, speed)
    return {
        **asdict(figure),
        "ours": value,
        "low": low,
        "high": high,
        "difference": None if value is None else value - figure.value,
    }


Value = tuple[float | None, float | None, float | None]


def value_of(target: Target, runs: Mapping[str, Answered], speed: Mapping[str, Any]) -> Value:
    """Return what a target asks for, with its 95 % interval where there is one; None where it was not run."""
    if target.quantity in ("speedup", "of_ideal"):
        point = speed.get(target.run, {}).get("points", {}).get(f"{target.budget:g}")
        if point is None:
            return None, None, None
        scale = point["ideal"] if target.quantity == "of_ideal" else 1.0
        return point["speedup"] / scale, point["low"] / scale, point["high"] / scale
    run = runs[target.run]
    line = _line(run, target)
    if line is None:
        return None, None, None
    if target.quantity == "share":
        return line.share, None, None
    if target.quantity == "below":
        budget = target.budget if line.budget is None else line.budget
        return _below(run, target.method, budget, str(target.other), runs[target.other_run or target.run])
    return line.mean, line.seeds_low, line.seeds_high


def _line(run: Answered, target: Target) -> Line | None:
    """Return the line of a target's point; with ``within`` the costliest one that costs no more than that."""
    found = [line for line in run.lines if line.method == target.method]
    if target.within is not None:
        return max((line for line in found if line.share <= target.within), key=lambda line: line.share, default=None)
    fitting = [line for line in found if line.budget in (target.budget, None)]
    if len(fitting) > 1 and target.budget is not None:  # several models of one size
        fitting = sorted((line for line in fitting if line.share <= target.budget), key=lambda line: -line.share)
    return fitting[0] if fitting else None


def _below(run: Answered, method: str, budget: float | None, other: str, other_run: Answered) -> Value:
    """Return how many points a method is below another one at a budget, with the paired interval over rows."""
    own, rival = run.of(method, budget), other_run.of(other, budget)
    if not own or [r.seed for r in own] != [r.seed for r in rival]:
        return None, None, None
    return below(rival, own)
