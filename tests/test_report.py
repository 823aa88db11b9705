"""report: what stands in the tables, that records survive JSON, and that the picture is written whole or not at all."""

import io
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rheostat import report
from rheostat.errors import MissingDependencyError, OptionError
from rheostat.measure import Measurement
from rheostat.quality import Quality
from rheostat.report import OperatingPoint, plot_curve, render_table, to_json, to_markdown

CONDITIONS = {"batch": 8, "sequence_length": 64, "threads": 1}


def point(budget: float, **changes: Any) -> OperatingPoint:
    fields: dict[str, Any] = {
        "share": budget - 0.004,
        "macs": int(budget * 690_000_000),
        "params": int(11_900_000 + budget * 10_600_000),
        "kept_heads": int(budget * 72),
        "kept_neurons": int(budget * 9216),
        "accuracy": 0.921,
        "macro_f1": 0.917,
        "drop_points": 0.5,
        "drop_low": -0.3,
        "drop_high": 1.24,
        "latency_ms_p50": 61.84 * budget,
        "speedup": 1 / budget,
        "speedup_low": 0.97 / budget,
        "speedup_high": 1.03 / budget,
        "verdict": "faster",
    }
    return OperatingPoint(budget=budget, **(fields | changes))


def full() -> OperatingPoint:
    return point(1.0, accuracy=0.926, drop_points=0.0, drop_low=0.0, drop_high=0.0, verdict="baseline")


def printed(points: list[OperatingPoint], conditions: dict[str, Any] = CONDITIONS) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(render_table(points, conditions))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


# --- records -----------------------------------------------------------------------------------------------


def test_join_takes_every_figure_from_its_owner() -> None:
    quality = Quality(0.5, 1000, 0.91, 0.90, 0.6, 0.1, 1.1, 0.013, 0.045)
    measurement = Measurement("half", 35, (20.0,) * 7, 19.0, 19.5, 20.0, 21.0, 22.0, 1.9, 1.85, 1.96, "faster")
    joined = OperatingPoint.join(
        budget=0.5,
        share=0.497,
        macs=345,
        params=16,
        kept_heads=36,
        kept_neurons=4608,
        quality=quality,
        measurement=measurement,
    )
    assert joined == OperatingPoint(
        0.5, 0.497, 345, 16, 36, 4608, 0.91, 0.90, 0.6, 0.1, 1.1, 20.0, 1.9, 1.85, 1.96, "faster", 0.013, 0.045
    )


def test_join_refuses_the_quality_of_another_budget() -> None:
    with pytest.raises(OptionError, match=r"quality must be that of budget 0\.5; got 0\.25\. "):
        OperatingPoint.join(
            budget=0.5,
            share=0.5,
            macs=1,
            params=1,
            kept_heads=1,
            kept_neurons=1,
            quality=Quality(0.25, 10, 0.9, 0.9, 0.0, 0.0, 0.0),
        )


def test_points_survive_json_in_the_order_of_their_budgets() -> None:
    record = json.loads(json.dumps(to_json([full(), point(0.5)], CONDITIONS)))
    assert [OperatingPoint.from_json(one) for one in record["points"]] == [point(0.5), full()]
    assert record["conditions"] == CONDITIONS
    assert to_json([])["conditions"] == {}


# --- tables ------------------------------------------------------------------------------------------------


def test_markdown_holds_each_figure_in_its_column() -> None:
    lines = to_markdown([full(), point(0.5)], CONDITIONS).splitlines()
    assert lines[0] == "| budget | accuracy | macro F1 | MACs | parameters | latency | speedup |"
    assert lines[2] == "| 0.5 | 92.1% [-1.2, +0.3] | 91.7% | 345M | 17.2M | 30.9 ms | 2.00x [1.94, 2.06] |"
    assert lines[3] == "| 1 | 92.6% | 91.7% | 690M | 22.5M | 61.8 ms | 1.00x |"
    assert lines[-1].endswith("Conditions: batch 8, sequence length 64, threads 1.")
    assert "95 % intervals" in lines[-1]


def test_the_calibration_error_of_each_budget_is_said_below_the_table() -> None:
    sure = [point(budget, calibration_error=0.013, calibration_error_raw=0.045) for budget in (0.5, 0.25)]
    last = to_markdown([full(), *sure], CONDITIONS).splitlines()[-1]
    assert "calibration error, without temperature in brackets: 0.25 1.3% (4.5%), 0.5 1.3% (4.5%). Cond" in last
    assert "alibration" not in to_markdown([full()], CONDITIONS)


def test_a_speedup_inside_the_noise_is_named_and_not_numbered() -> None:
    row = to_markdown([point(0.9, speedup=1.01, verdict="no measurable speedup")]).splitlines()[2]
    assert row.endswith("| no measurable speedup |")
    assert "1.01" not in row


def test_a_slower_variant_shows_its_number() -> None:
    slower = point(0.5, speedup=0.8, speedup_low=0.75, speedup_high=0.83, verdict="slower")
    assert "| 0.80x [0.75, 0.83] |" in to_markdown([slower])


def test_what_was_not_measured_is_a_dash() -> None:
    lines = to_markdown([OperatingPoint(0.5, 0.49, 1_234_000_000, 900, 36, 4608)]).splitlines()
    assert lines[2] == "| 0.5 | - | - | 1.23G | 900 | - | - |"
    assert len(lines) == 3  # neither intervals nor conditions, so nothing below the table


@pytest.mark.parametrize(("drop", "shown"), [(0.0, "+0.0"), (0.04, "+0.0"), (0.06, "-0.1"), (-0.06, "+0.1")])
def test_a_difference_is_never_minus_zero(drop: float, shown: str) -> None:
    assert f"[{shown}, {shown}]" in to_markdown([point(0.5, drop_low=drop, drop_high=drop)])


def test_the_rich_table_fits_eighty_columns_with_all_its_intervals() -> None:
    text = printed([full(), point(0.5), point(0.125)])
    rows = text.splitlines()
    assert rows[0].split() == ["budget", "accuracy", "macro", "F1", "MACs", "parameters", "latency", "speedup"]
    assert rows[2].split()[0] == "0.125"
    assert "92.1% [-1.2, +0.3]" in rows[3]
    assert rows[3].endswith("2.00x [1.94, 2.06]")
    assert "Conditions: batch 8" in " ".join(text.split())


def test_conditions_are_printed_as_they_are() -> None:
    assert "model [bold]x" in printed([full()], conditions={"model": "[bold]x"})


# --- the curve ---------------------------------------------------------------------------------------------


def png_size(path: Path) -> tuple[int, int]:
    header = path.read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(header[16:20], "big"), int.from_bytes(header[20:24], "big")


def test_the_curve_is_a_whole_png_of_readme_width(tmp_path: Path) -> None:
    target = tmp_path / "curve.png"
    plot_curve([full(), point(0.5), point(0.25), OperatingPoint(0.1, 0.1, 1, 1, 1, 1)], target, "a title")
    assert png_size(target) == (1280, 800)
    assert [path.name for path in tmp_path.iterdir()] == ["curve.png"]


def drawn_axes(points: list[OperatingPoint], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    figures, kept = pytest.importorskip("matplotlib.figure"), []
    monkeypatch.setattr(figures.Figure, "savefig", lambda self, path, **options: (kept.append(self), path.touch()))
    plot_curve(points, folder / "kept.png", "a title")
    return kept[0].axes[0]


def test_the_curve_shows_points_intervals_and_labels_where_they_belong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = [point(0.25), point(0.5, verdict="no measurable speedup"), full()]
    axes = drawn_axes(points, tmp_path, monkeypatch)
    line = axes.lines[0]
    assert list(line.get_xdata()) == pytest.approx([15.46, 30.92, 61.84])
    assert list(line.get_ydata()) == pytest.approx([92.1, 92.1, 92.6])
    *labels, explanation = [text.get_text() for text in axes.texts]
    assert labels == ["dense", "0.5", "0.25\n4.0x"]
    assert "95 % intervals" in explanation
    assert axes.get_title(loc="left") == "a title"
    assert report._accuracy_error(points[0]) == pytest.approx((0.74, 0.8))
    below, above = report._latency_error(points[0])
    assert 15.46 - below == pytest.approx(15.46 / 1.03)
    assert 15.46 + above == pytest.approx(15.46 / 0.97)
    assert report._latency_error(points[2]) == (0.0, 0.0)
    assert axes.get_xlim()[0] == 0


def test_labels_that_would_overlap_are_left_out_and_dense_never_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = [point(budget / 100) for budget in range(10, 100, 2)] + [full()]
    axes = drawn_axes(points, tmp_path, monkeypatch)
    labels = axes.texts[:-1]
    positions = [label.xy[0] for label in labels]
    assert labels[0].get_text() == "dense"
    assert 8 <= len(labels) < len(points)
    assert min(left - right for left, right in itertools.pairwise(positions)) >= 0.07 * 61.84
    assert len(axes.lines[0].get_xdata()) == len(points)  # every point is drawn all the same
    slower = drawn_axes([point(0.9, latency_ms_p50=62.5), full()], tmp_path, monkeypatch)
    assert [text.get_text() for text in slower.texts[:-1]] == ["dense"]


def test_a_figure_of_one_point_without_intervals_is_drawn(tmp_path: Path) -> None:
    lonely = OperatingPoint(0.5, 0.5, 1, 1, 1, 1, accuracy=0.9, latency_ms_p50=3.0)
    plot_curve([lonely], tmp_path / "curve.png", "one point")
    assert png_size(tmp_path / "curve.png") == (1280, 800)


def test_nothing_to_draw_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"points must hold one with both accuracy and latency; got 1 without\. "):
        plot_curve([point(0.5, latency_ms_p50=None)], tmp_path / "curve.png", "nothing")
    assert not list(tmp_path.iterdir())


def test_a_failure_while_writing_leaves_the_old_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = pytest.importorskip("matplotlib.figure")
    target = tmp_path / "curve.png"
    target.write_bytes(b"old")

    def half_written(self: Any, path: Path, **options: Any) -> None:
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(figures.Figure, "savefig", half_written)
    with pytest.raises(OSError, match="disk full"):
        plot_curve([full()], target, "a title")
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["curve.png"]


def test_without_matplotlib_the_error_tells_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'rheostat\[report\]'"):
        plot_curve([full()], tmp_path / "curve.png", "a title")


def test_tables_load_neither_matplotlib_nor_torch_and_the_curve_needs_no_display(tmp_path: Path) -> None:
    code = (
        "import sys, rheostat.report as r\n"
        "loaded = {'matplotlib', 'torch'} & set(sys.modules)\n"
        "p = r.OperatingPoint(0.5, 0.5, 1, 1, 1, 1, accuracy=0.9, latency_ms_p50=3.0)\n"
        "r.plot_curve([p], sys.argv[1], 'x')\n"
        "sys.exit(bool(loaded) or 'matplotlib.pyplot' in sys.modules)"
    )
    finished = subprocess.run([sys.executable, "-c", code, str(tmp_path / "curve.png")], check=False)
    assert finished.returncode == 0
