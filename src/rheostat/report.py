"""Records to what people read: one operating point a budget, as a table, as Markdown, as JSON and as a curve."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from rheostat.errors import OptionError, missing
from rheostat.measure import NO_SPEEDUP, LatencyTable, Measurement
from rheostat.qualities import AnyQuality
from rheostat.quality import FULL_BUDGET

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The columns of what was scored, by the field that only points of that kind have.
QUALITY = {
    "perplexity": ("perplexity",),
    "cosine": ("cosine to full", "of 95 %"),
    "entity_f1": ("word accuracy", "entity F1"),
    "spearman": ("Spearman", "MSE"),
    "accuracy": ("accuracy", "macro F1"),
}
HEADLINES = {
    "perplexity": "perplexity",
    "cosine": "cosine",
    "entity_f1": "entity F1",
    "spearman": "Spearman",
    "accuracy": "accuracy",
}
COSTS = ("MACs", "parameters", "latency", "speedup")
BRACKETS = "In brackets: 95 % intervals of the {}'s difference to the full model, in points, and of the speedup."
NOTHING = "-"


@dataclass(frozen=True)
class OperatingPoint:
    """Everything known about one budget: what was asked, what is kept, what it scores, and how fast it is.

    `budget` was asked for and `share` is what the subnet costs (fractions of the full model). Kept units are
    totals over all layers. Accuracy, macro F1 and the expected calibration errors (raw: without temperature) are
    fractions; the drop is in points against the full model. A language model has a perplexity instead, a token
    classifier an entity F1 (which its drop is of) beside the accuracy of words, a regression the rank correlation (its
    drop in hundredths) and the mean squared error, an embedding model the mean cosine to the full model's vectors and
    the one that 5 % of the texts are below. What was not measured is None.
    """

    budget: float
    share: float
    macs: int
    params: int
    kept_heads: int
    kept_neurons: int
    accuracy: float | None = None
    macro_f1: float | None = None
    drop_points: float | None = None
    drop_low: float | None = None
    drop_high: float | None = None
    latency_ms_p50: float | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    verdict: str | None = None
    calibration_error: float | None = None
    calibration_error_raw: float | None = None
    perplexity: float | None = None
    entity_f1: float | None = None
    cosine: float | None = None
    cosine_p5: float | None = None
    spearman: float | None = None
    mse: float | None = None

    @classmethod
    def join(
        cls,
        *,
        budget: float,
        share: float,
        macs: int,
        params: int,
        kept_heads: int,
        kept_neurons: int,
        quality: AnyQuality | None = None,
        measurement: Measurement | None = None,
    ) -> OperatingPoint:
        """Return one point from a subnet's figures and, where there are any, its quality and its latency.

        Raises OptionError if the quality is that of another budget.
        """
        if quality is not None and quality.budget != budget:
            raise OptionError(f"quality must be that of budget {budget!r}; got {quality.budget!r}. Join equal budgets.")
        return cls(
            budget,
            share,
            macs,
            params,
            kept_heads,
            kept_neurons,
            **_quality_fields(quality),
            **_speed_fields(measurement),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> OperatingPoint:
        """Rebuild a point from `to_json`."""
        return cls(**record)


_QUALITY_FIELDS = (
    "accuracy", "macro_f1", "drop_points", "drop_low", "drop_high", "calibration_error", "calibration_error_raw",
    "perplexity", "entity_f1", "cosine", "cosine_p5", "spearman", "mse",
)  # fmt: skip


def _quality_fields(quality: AnyQuality | None) -> dict[str, Any]:
    return {name: getattr(quality, name) for name in _QUALITY_FIELDS if hasattr(quality, name)}


def _speed_fields(measurement: Measurement | None) -> dict[str, Any]:
    names = ("latency_ms_p50", "speedup", "speedup_low", "speedup_high", "verdict")
    return {} if measurement is None else {name: getattr(measurement, name) for name in names}


# --- tables ------------------------------------------------------------------------------------------------


def render_table(points: Sequence[OperatingPoint], conditions: Mapping[str, Any] | None = None) -> Table:
    """Return the points as a rich table, smallest budget first, with the conditions in its caption."""
    # No padding and no edge: with all its intervals the table just fits the 80 columns of a pipe.
    table = Table(box=SIMPLE_HEAD, padding=0, show_edge=False, caption_justify="left")
    table.caption = _caption(points, conditions)
    for column in _header(points):
        table.add_column(column, justify="right")
    for point in _sorted(points):
        table.add_row(*_cells(point, points))
    return table


def to_markdown(points: Sequence[OperatingPoint], conditions: Mapping[str, Any] | None = None) -> str:
    """Return the points as a Markdown table, smallest budget first, the conditions below it."""
    header = _header(points)
    rows = (_pipes(_cells(point, points)) for point in _sorted(points))
    lines = [_pipes(header), _pipes(["---:"] * len(header)), *rows]
    caption = _caption(points, conditions).plain
    return "\n".join([*lines, *(["", caption] if caption else [])]) + "\n"


def to_json(points: Sequence[OperatingPoint], conditions: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the points, smallest budget first, and the conditions as plain JSON values."""
    return {"points": [point.to_json() for point in _sorted(points)], "conditions": dict(conditions or {})}


def _sorted(points: Sequence[OperatingPoint]) -> list[OperatingPoint]:
    return sorted(points, key=lambda point: point.budget)


def _pipes(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _header(points: Sequence[OperatingPoint]) -> tuple[str, ...]:
    return ("budget", *QUALITY[_kind(points)], *COSTS)


def _kind(points: Sequence[OperatingPoint]) -> str:
    """Return the field that tells what kind of quality the points have: accuracy, where they have none."""
    return next((name for name in QUALITY if any(getattr(point, name) is not None for point in points)), "accuracy")


def headline_of(points: Sequence[OperatingPoint]) -> str:
    """Return what budgets are judged by, in words."""
    return HEADLINES[_kind(points)]


def _scored(point: OperatingPoint, kind: str) -> tuple[str, ...]:
    """Return the cells of what was scored."""
    if kind == "perplexity":
        return (NOTHING if point.perplexity is None else _digits(point.perplexity),)
    if kind == "cosine":
        return tuple(NOTHING if value is None else f"{value:.4f}" for value in (point.cosine, point.cosine_p5))
    if kind == "entity_f1":
        return _percent(point.accuracy), _with_drop(point.entity_f1, point)
    if kind == "spearman":
        return _with_drop(point.spearman, point), NOTHING if point.mse is None else f"{point.mse:.3g}"
    return _with_drop(point.accuracy, point), _percent(point.macro_f1)


def _cells(point: OperatingPoint, points: Sequence[OperatingPoint]) -> tuple[str, ...]:
    return (
        f"{point.budget:g}",
        *_scored(point, _kind(points)),
        _short(point.macs),
        _short(point.params),
        NOTHING if point.latency_ms_p50 is None else f"{_digits(point.latency_ms_p50)} ms",
        _speedup(point),
    )


def _with_drop(fraction: float | None, point: OperatingPoint) -> str:
    if point.drop_low is None or point.drop_high is None or point.budget == FULL_BUDGET:
        return _percent(fraction)
    # A difference reads best with losses below zero; the record keeps the drop, with losses above it.
    return f"{_percent(fraction)} [{_signed(-point.drop_high)}, {_signed(-point.drop_low)}]"


def _speedup(point: OperatingPoint) -> str:
    if point.speedup is None:
        return NOTHING
    if point.budget == FULL_BUDGET:
        return f"{point.speedup:.2f}x"
    if point.verdict == NO_SPEEDUP:
        return NO_SPEEDUP
    return f"{point.speedup:.2f}x [{point.speedup_low:.2f}, {point.speedup_high:.2f}]"


def _percent(fraction: float | None) -> str:
    return NOTHING if fraction is None else f"{fraction * 100:.1f}%"


def _signed(points: float) -> str:
    return f"{points:+.1f}".replace("-0.0", "+0.0")


def _short(count: int) -> str:
    """Return a count with three digits and a unit: 1234567 -> 1.23M."""
    for size, unit in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{_digits(count / size)}{unit}"
    return str(count)


def _digits(value: float) -> str:
    decimals = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{decimals}f}"


def _caption(points: Sequence[OperatingPoint], conditions: Mapping[str, Any] | None) -> Text:
    has_intervals = any("[" in cell for point in points for cell in _cells(point, points))
    stated = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in (conditions or {}).items())
    errors = ", ".join(_calibration(point) for point in _sorted(points) if point.calibration_error is not None)
    calibration = f"Expected calibration error, without temperature in brackets: {errors}."
    sentences = (
        [BRACKETS.format(headline_of(points))] * has_intervals
        + [calibration] * bool(errors)
        + [f"Conditions: {stated}."] * bool(stated)
    )
    return Text(" ".join(sentences))  # not str, in which rich would read a user's [words] as markup


def _calibration(point: OperatingPoint) -> str:
    return f"{point.budget:g} {_percent(point.calibration_error)} ({_percent(point.calibration_error_raw)})"


def latency_conditions(table: LatencyTable) -> dict[str, Any]:
    """Return what a latency is worth nothing without: what was run, how often, on what, and the noise of the run."""
    where = table.environment
    versions = where.get("versions", {})
    return {
        **table.conditions,
        "threads": table.threads,
        "rounds": table.rounds,
        "A/A noise": f"{table.noise_low:.3f} to {table.noise_high:.3f}",
        "processor": where.get("processor"),
        "torch": versions.get("torch"),
        "date": str(where.get("date_utc", ""))[:10],
    }


# --- the curve ---------------------------------------------------------------------------------------------

INK, MUTED, GRID, CURVE, DENSE = "#1f2933", "#667380", "#e4e8ec", "#1f6feb", "#d9480f"
PIXELS_PER_INCH = 200
SIZE_INCHES = (6.4, 4.0)  # 1280 x 800 pixels: sharp at the width of a README
SMALLEST_SPAN_POINTS = 3.0  # a closer look would turn noise into a cliff
LABEL_WIDTH = 0.07  # of the largest latency


def plot_curve(points: Sequence[OperatingPoint], path_png: str | os.PathLike[str], title: str) -> None:
    """Write a PNG of accuracy against measured latency: a point a budget, its intervals, the dense model marked.

    Points without an accuracy or a latency are left out. No display is needed, and the file appears whole
    or not at all. Raises OptionError if no point can be drawn, MissingDependencyError without matplotlib.
    """
    drawn = [point for point in _sorted(points) if point.accuracy is not None and point.latency_ms_p50 is not None]
    if not drawn:
        raise OptionError(
            f"points must hold one with both accuracy and latency; got {len(points)} without. "
            "Evaluate and measure first."
        )
    figure = _new_figure()
    axes = figure.add_subplot()
    _style(axes, title)
    _draw(axes, drawn)
    _leave_room(axes, drawn)
    _explain(axes)
    with _replacing(Path(path_png)) as unfinished:
        figure.savefig(unfinished, format="png", dpi=PIXELS_PER_INCH)


def _new_figure() -> Figure:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing("matplotlib", "report") from error
    figure = Figure(figsize=SIZE_INCHES, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)  # not pyplot, which would look for a display and keep the figure for ever
    return figure


def _style(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", color=INK, fontsize=12, fontweight="bold", pad=12)
    axes.set_xlabel("measured latency (ms)", color=INK, fontsize=10.5)
    axes.set_ylabel("accuracy (%)", color=INK, fontsize=10.5)
    axes.tick_params(colors=MUTED, labelsize=10, length=0)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(GRID)


def _draw(axes: Axes, points: Sequence[OperatingPoint]) -> None:
    axes.plot(*zip(*map(_position, points), strict=True), color=CURVE, linewidth=1.8, alpha=0.55, zorder=2)
    for point in points:
        is_dense = point.budget == FULL_BUDGET
        x, y = _position(point)
        axes.errorbar(
            x,
            y,
            xerr=[[side] for side in _latency_error(point)],
            yerr=[[side] for side in _accuracy_error(point)],
            fmt="D" if is_dense else "o",
            color=DENSE if is_dense else CURVE,
            markersize=7,
            markeredgecolor="white",
            markeredgewidth=1.0,
            elinewidth=1.1,
            capsize=2.5,
            ecolor=(DENSE if is_dense else CURVE, 0.5),
            zorder=3,
        )
    for point in _apart(points):
        _label(axes, point)


def _apart(points: Sequence[OperatingPoint]) -> list[OperatingPoint]:
    """Return the points whose labels have room: the dense one, then from the slowest down."""
    room_ms = LABEL_WIDTH * max(_position(point)[0] for point in points)
    chosen: list[OperatingPoint] = []
    for point in sorted(points, key=lambda point: (point.budget != FULL_BUDGET, -_position(point)[0])):
        if all(abs(_position(point)[0] - _position(other)[0]) >= room_ms for other in chosen):
            chosen.append(point)
    return chosen


def _label(axes: Axes, point: OperatingPoint) -> None:
    is_dense = point.budget == FULL_BUDGET
    name = "dense" if is_dense else f"{point.budget:g}"
    faster = point.speedup is not None and not is_dense and point.verdict != NO_SPEEDUP
    axes.annotate(
        f"{name}\n{point.speedup:.1f}x" if faster else name,
        _position(point),
        xytext=(7, -7),
        textcoords="offset points",
        va="top",
        color=DENSE if is_dense else INK,
        fontsize=9.5,
        fontweight="bold" if is_dense else "normal",
        linespacing=1.15,
    )


def _position(point: OperatingPoint) -> tuple[float, float]:
    """Return (latency in ms, accuracy in percent) of a point that has both."""
    return point.latency_ms_p50 or 0.0, (point.accuracy or 0.0) * 100


def _latency_error(point: OperatingPoint) -> tuple[float, float]:
    """Return how far the latency may lie below and above: the interval of the speedup, at this latency."""
    if not (point.speedup and point.speedup_low and point.speedup_high) or point.budget == FULL_BUDGET:
        return 0.0, 0.0
    latency_ms, _ = _position(point)
    return (
        latency_ms * max(0.0, 1 - point.speedup / point.speedup_high),
        latency_ms * max(0.0, point.speedup / point.speedup_low - 1),
    )


def _accuracy_error(point: OperatingPoint) -> tuple[float, float]:
    """Return how far the accuracy may lie below and above, in points, the full model's taken as it was measured."""
    if point.drop_points is None or point.drop_low is None or point.drop_high is None:
        return 0.0, 0.0
    return max(0.0, point.drop_high - point.drop_points), max(0.0, point.drop_points - point.drop_low)


def _leave_room(axes: Axes, points: Sequence[OperatingPoint]) -> None:
    """Start the latency at 0, so that twice as fast looks twice as fast, and keep labels inside the picture."""
    axes.set_xlim(0, 1.12 * max(_position(point)[0] + _latency_error(point)[1] for point in points))
    low = min(_position(point)[1] - _accuracy_error(point)[0] for point in points)
    high = max(_position(point)[1] + _accuracy_error(point)[1] for point in points)
    span = max(high - low, SMALLEST_SPAN_POINTS)
    axes.set_ylim(high - 1.2 * span, high + 0.08 * span)


def _explain(axes: Axes) -> None:
    axes.text(
        0.99,
        0.03,
        "labels: budget, speedup over dense\nbars: 95 % intervals",
        transform=axes.transAxes,
        ha="right",
        va="bottom",
        color=MUTED,
        fontsize=9,
        linespacing=1.35,
    )


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Give a file to write beside `path`, and put it in its place once it is whole."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
