"""The folder beside the output that a stopped run resumes from, and how processes wait for each other."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState

from rheostat.checkpoint import write_whole
from rheostat.console import is_main_process, stderr
from rheostat.errors import CheckpointError
from rheostat.model import BudgetedModel, load


class Work:
    """The folder beside the output that a stopped run resumes from; it goes when the run is complete."""

    def __init__(self, out: Path, key: dict[str, Any], *, restart: bool) -> None:
        """Open or make it.

        Raises:
            CheckpointError: it belongs to a run with other arguments.
        """
        self.folder = out.with_name(f"{out.name}.partial")
        self.record: dict[str, Any] = {"key": json.loads(json.dumps(key)), "stages": {}, "soft": []}
        self._fresh = restart or not self._holds_work()
        if self._fresh:
            return
        found = self._read()
        if found["key"] != self.record["key"]:
            raise CheckpointError(
                f"{str(self.folder)!r} must be of a run with the same arguments; it is of one with another "
                f"{', '.join(_changed(found['key'], self.record['key']))}. "
                "Repeat that command to finish it, or add --restart to throw it away"
            )
        self.record = found

    def open(self) -> None:
        """Make the folder, or say what it already holds; nothing is written before."""
        if self._fresh and is_main_process():
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
            self._write()
        if not self._fresh:
            done = ", ".join(self.record["stages"]) or "some steps of the first stage"
            stderr.print(f"Going on with the run in {self.folder} (done: {done}).", markup=False, soft_wrap=True)
        wait_for_all()

    def _holds_work(self) -> bool:
        """Return whether there is anything that starting anew would lose."""
        stages = any(self.folder.glob("*/rheostat.json"))
        return stages or any(self.folder.glob("*-steps/checkpoint-*/trainer_state.json"))

    def _read(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self.folder / "progress.json").read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{str(self.folder)!r} must hold a readable progress.json: {error}. Add --restart to throw it away"
            ) from None

    def done(self, stage: str) -> bool:
        """Return whether a stage is complete."""
        return stage in self.record["stages"]

    def finish(self, stage: str, facts: dict[str, Any], model: BudgetedModel) -> BudgetedModel:
        """Keep the model as it is after a stage, and return it; all ranks go on with that of rank 0."""
        self.record["stages"][stage] = facts
        if is_main_process():
            model.save_pretrained(self.folder / stage)
            self._write()
            shutil.rmtree(self.folder / f"{stage}-steps", ignore_errors=True)
        wait_for_all()
        return model if is_main_process() else self.load(stage)

    def load(self, stage: str) -> BudgetedModel:
        """Return the model as it was after a stage."""
        model: BudgetedModel = load(self.folder / stage)
        return model

    def steps(self, stage: str) -> Path:
        """Return where a stage keeps its own checkpoints."""
        return self.folder / f"{stage}-steps"

    def _write(self) -> None:
        if is_main_process():
            write_whole(self.folder / "progress.json", json.dumps(self.record, indent=1))


def _changed(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return the names of the arguments that differ between two runs."""
    parts = [(old, new), (old["options"], new["options"]), (old["read"], new["read"])]
    changed = {name for a, b in parts for name in {*a, *b} if a.get(name) != b.get(name)}
    return sorted(changed - {"options", "read"})


def fingerprint(data: str) -> list[list[Any]]:
    """Return name, size and time of change of every local data file: a run must not go on with other rows."""
    path = Path(data)
    files = [path] if path.is_file() else sorted(path.rglob("*")) if path.is_dir() else []
    stats = [(file.name, file.stat()) for file in files if file.is_file()]
    return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]


def wait_for_all() -> None:
    """Wait until every process of torchrun is here; alone, go on at once."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        PartialState(cpu=not torch.accelerator.is_available()).wait_for_everyone()
