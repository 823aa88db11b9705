"""`rheostat reproduce`: the paper's experiments, one command each."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rheostat.cli import options as shared
from rheostat.errors import OptionError

if TYPE_CHECKING:
    from rheostat.reproduce import Experiment


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Example: rheostat reproduce pretrained --seeds 3 --scale small")(reproduce)


def reproduce(
    name: Annotated[str | None, typer.Argument(help="Name of an experiment; see --list.")] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="How many: seeds 0, 1, ...; by default what the experiment says, mostly 3."),
    ] = None,
    scale: Annotated[str, typer.Option(help="small (hours on two cores) or full.")] = "small",
    precision: Annotated[
        str, typer.Option(help="Of training and reading: fp32, or bf16 or fp16 for mixed precision.")
    ] = "fp32",
    device: Annotated[str | None, typer.Option(help="cpu or cuda; by default what is there.")] = None,
    folder: Annotated[Path, typer.Option(help="Folder of the experiments; results go to its results/.")] = Path(
        "reproduce"
    ),
    work: Annotated[Path, typer.Option(help="Folder for models and answers; a stopped run goes on from it.")] = Path(
        "runs/reproduce"
    ),
    keep: Annotated[
        bool,
        typer.Option(
            "--keep", help="Take the seeds that the results hold already, with the same set-up, and run the others."
        ),
    ] = False,
    list_all: Annotated[bool, typer.Option("--list", help="Show all experiments and where they stand.")] = False,
    as_json: shared.AsJson = False,
) -> None:
    """Run an experiment and print its page: targets, the paper's numbers beside ours, tables; and draw its figure."""
    if device not in (None, "cpu", "cuda"):
        raise OptionError(f"device must be cpu or cuda; got {device!r}")
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before torch is loaded
    shared.needs_training_extra()
    from rheostat.checkpoint import write_whole
    from rheostat.console import stdout
    from rheostat.reproduce import find_experiments, read_experiment
    from rheostat.reproduce import reproduce as run
    from rheostat.reproduce.experiment import SCALES
    from rheostat.reproduce.tables import plot, to_page

    found = {key: read_experiment(path) for key, path in find_experiments(folder).items()}
    if list_all:
        status = [status_of(experiment, folder / "results") for experiment in found.values()]
        if as_json:
            shared.print_json(status)
        else:
            for line in status:
                stdout.print(_status_text(line), markup=False, highlight=False, soft_wrap=True)
        return
    if name not in found or scale not in SCALES:
        raise OptionError(
            f"an experiment must be one of {', '.join(found)} and a scale one of {', '.join(SCALES)}; got {name!r} and "
            f"{scale!r}. See rheostat reproduce --list"
        )
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise OptionError("device cuda must be there; torch sees none. Leave --device out")
    chosen = range(found[name].seeds if seeds is None else seeds)
    results = folder / "results"
    earlier = results / f"{name}-{scale}.json"
    kept = json.loads(earlier.read_text(encoding="utf-8")) if keep and earlier.is_file() else None
    record = run(found[name], scale=scale, seeds=chosen, work=work / name / scale, precision=precision, kept=kept)
    results.mkdir(exist_ok=True)
    for suffix, text in ((".json", json.dumps(record, indent=1) + "\n"), (".md", to_page(record))):
        write_whole(results / f"{name}-{scale}{suffix}", text)
    plot(record, results / f"{name}-{scale}.png")
    if as_json:
        shared.print_json(record)
    else:
        stdout.print(to_page(record), markup=False, highlight=False, soft_wrap=True)


def status_of(experiment: Experiment, results: Path) -> dict[str, Any]:
    """Return what is known of an experiment: results by scale, targets reached, and what is not reproduced."""
    scales = {}
    for path in (results / f"{experiment.name}-{scale}.json" for scale in ("small", "full")):
        if not path.is_file():
            continue
        record = json.loads(path.read_text(encoding="utf-8"))
        reached = [target["reached"] for target in record["targets"]]
        scales[record["scale"]] = {
            "seeds": len(record["seeds"]),
            "targets": len(reached),
            "reached": sum(value is True for value in reached),
            "missed": [target["about"] for target in record["targets"] if target["reached"] is False],
        }
    return {
        "name": experiment.name,
        "title": experiment.title,
        "results": scales,
        "not_reproduced": list(experiment.not_reproduced),
    }


def _status_text(status: dict[str, Any]) -> str:
    lines = [f"{status['name']}: {status['title']}"]
    for scale, found in status["results"].items():
        lines.append(f"  {scale}: {found['seeds']} seeds, {found['reached']} of {found['targets']} targets reached")
        lines += [f"    missed: {about}" for about in found["missed"]]
    lines += [] if status["results"] else ["  not run yet"]
    lines += [f"  not reproduced: {reason}" for reason in status["not_reproduced"]]
    return "\n".join(lines)
