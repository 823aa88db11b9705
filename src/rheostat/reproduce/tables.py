"""The record of an experiment as Markdown and as a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rheostat.compare import Line, to_markdown
from rheostat.errors import missing
from rheostat.reproduce.experiment import ONE_SIZE

VERSIONS = ("rheostat", "torch", "transformers")
COLORS = ("#1f6feb", "#d9480f", "#2b8a3e", "#862e9c", "#e8590c", "#0b7285", "#5c940d", "#a61e4d", "#495057", "#e67700")


def lines_from(records: Sequence[Mapping[str, Any]]) -> list[Line]:
    """Return the lines that a record holds."""
    return [Line(**{**r, "seeds": tuple(r["seeds"]), "accuracies": tuple(r["accuracies"])}) for r in records]


def to_page(record: Mapping[str, Any]) -> str:
    """Return the whole record as one Markdown page."""
    parts = [f"# {record['title']}", "", f"Scale {record['scale']}, seeds {', '.join(map(str, record['seeds']))}."]
    parts += [f"{_machines(record['environments'])}. `{record['command']}`", ""]
    parts += ["## What was to be reached", "", *_targets(record["targets"]), ""] if record["targets"] else []
    parts += ["## The paper beside ours", "", *_paper(record["paper"]), ""] if record["paper"] else []
    for name, lines in record["runs"].items():
        options = record["options"][name]
        count, rows_of = record["rows_read"][name]
        conditions = f"Read on {count:,} {rows_of} rows, in {record['precision']}; budgets in {options['cost']}."
        parts += [f"## {name}", "", conditions, ""]
        parts += [to_markdown(lines_from(lines), rows_of)]
    for name, speed in record["speed"].items():
        parts += [f"## Speed of {name}", "", *_speed(speed), ""]
    for title, key in (("Not reproduced", "not_reproduced"), ("Notes", "notes")):
        parts += [f"## {title}", "", *(f"- {text}" for text in record[key]), ""] if record[key] else []
    return "\n".join(parts).rstrip() + "\n"


def _machines(environments: Mapping[str, Any]) -> str:
    """Return where and when the seeds ran, those of one place together."""
    found: dict[str, list[str]] = {}
    for seed, where in environments.items():
        versions = ", ".join(f"{name} {where['versions'][name]}" for name in VERSIONS if name in where["versions"])
        cores = f"{where.get('physical_cores')} cores of {where.get('processor')}, {where.get('torch_threads')} threads"
        found.setdefault(f"{cores}; {versions}; {where['date_utc'][:10]}", []).append(seed)
    if len(found) == 1:
        return next(iter(found))
    return "; ".join(f"seeds {', '.join(seeds)}: {place}" for place, seeds in found.items())


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    head, *body = rows
    return ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *body)]


def _interval(value: float | None, low: float | None, high: float | None) -> str:
    if value is None:
        return "not run"
    return f"{value:.3f}" if low is None or high is None else f"{value:.3f} [{low:.3f}, {high:.3f}]"


def _targets(targets: Sequence[Mapping[str, Any]]) -> list[str]:
    rows: list[list[str]] = [["target", "bound", "found, 95 % interval", "reached"]]
    for target in targets:
        bounds = [(">=", target["at_least"]), ("<=", target["at_most"])]
        bound = " and ".join(f"{sign} {number:g}" for sign, number in bounds if number is not None)
        reached = {True: "yes", False: "**no**", None: "not run"}[target["reached"]]
        rows.append([target["about"], bound, _interval(target["value"], target["low"], target["high"]), reached])
    return _table(rows)


def _paper(figures: Sequence[Mapping[str, Any]]) -> list[str]:
    rows: list[list[str]] = [["figure", "paper", "ours, 95 % interval", "difference"]]
    for figure in figures:
        gap = "" if figure["difference"] is None else f"{figure['difference']:+.3f}"
        ours = _interval(figure["ours"], figure["low"], figure["high"])
        rows.append([figure["about"], f"{figure['value']:g}", ours, gap])
    return _table(rows)


def _speed(speed: Mapping[str, Any]) -> list[str]:
    rows: list[list[str]] = [["budget", "speedup, 95 % interval", "ideal", "of ideal"]]
    for budget, point in speed["points"].items():
        found = _interval(point["speedup"], point["low"], point["high"])
        rows.append([budget, found, f"{point['ideal']:.3f}", f"{100 * point['of_ideal']:.1f} %"])
    note = (
        f"Materialized models in PyTorch, float32, one thread, batch {speed['asked']['batch']} x "
        f"{speed['asked']['length']} tokens, "
        f"{speed['rounds']} interleaved rounds, A/A noise {speed['noise'][0]:.3f} to {speed['noise'][1]:.3f}; ideal: "
        "the dense model's multiply-accumulates over the subnet's."
    )
    return [*_table(rows), "", note]


def plot(record: Mapping[str, Any], path: Path) -> None:
    """Write accuracy against cost, one panel a run, with 95 % intervals over rows of the difference to dense.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing("matplotlib", "report") from error
    runs = record["runs"]
    figure = Figure(figsize=(6.4 * len(runs), 4.4), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    for number, (name, records) in enumerate(runs.items()):
        axes = figure.add_subplot(1, len(runs), number + 1)
        _panel(axes, f"{record['title']}: {name}", lines_from(records))
    new = path.with_suffix(".new.png")
    figure.savefig(new, format="png", dpi=160)
    new.replace(path)


def _panel(axes: Any, title: str, lines: Sequence[Line]) -> None:
    axes.set_title(title, loc="left", fontsize=10.5)
    axes.set_xlabel("share of the dense model's cost")
    axes.set_ylabel("accuracy (%)")
    axes.grid(color="#e4e8ec", linewidth=0.8)
    for color, method in zip(COLORS * 2, dict.fromkeys(line.method for line in lines), strict=False):
        own = sorted((line for line in lines if line.method == method), key=lambda line: line.share)
        if method in ONE_SIZE:
            axes.axhline(own[0].mean, color=color, linewidth=1.0, linestyle="--", label=method)
            continue
        errors = [
            [max(0.0, line.below_high - line.below_dense) for line in own],
            [max(0.0, line.below_dense - line.below_low) for line in own],
        ]
        shares, means = [line.share for line in own], [line.mean for line in own]
        axes.errorbar(shares, means, yerr=errors, color=color, marker="o", markersize=4, capsize=2, label=method)
    axes.legend(fontsize=8, frameon=False)
