"""The charts of the page, in Altair (Vega-Lite): colors that suit light and dark, text in the color of the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rheostat.errors import missing

CURVE, DENSE, OTHER = "#1f6feb", "#d9480f", "#868e96"
PAIR = {"heads": "#1f6feb", "neurons": "#2b8a3e"}
WIDTH = 640
Chart = Any


def altair() -> Any:
    """Return the library.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        import altair as found
    except ImportError as error:
        raise missing("altair", "report") from error
    return found


def styled(chart: Chart, ink: str) -> dict[str, Any]:
    """Return the Vega-Lite specification of a chart whose text and lines have the color ``ink``."""
    soft = {"gridColor": ink, "gridOpacity": 0.15, "domainOpacity": 0.3, "tickOpacity": 0.3, "domainColor": ink}
    text = {"labelColor": ink, "titleColor": ink, "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": 500}
    found: dict[str, Any] = (
        chart.configure(
            background="transparent", font="system-ui, sans-serif"
        )  # first: it replaces what was configured
        .configure_axis(**soft, **text, tickColor=ink)
        .configure_legend(labelColor=ink, titleColor=ink, labelFontSize=12, orient="bottom", title=None)
        .configure_view(stroke=None)
        .to_dict()
    )
    return found


def curve(evaluated: Sequence[dict[str, Any]], baselines: Sequence[dict[str, Any]]) -> Chart:
    """Return accuracy against latency, with 95 % intervals, baselines, and a line where the slider stands.

    Without latencies the share of the cost takes their place.
    """
    alt = altair()
    field = "ms" if all(row["ms"] is not None for row in evaluated) else "share"
    title = "latency of a call (ms)" if field == "ms" else "share of the full model's cost"
    rows = [{**row, "series": "full" if row["budget"] == 1.0 else "budgets", "x": row[field]} for row in evaluated]
    others = [{**row, "series": row["method"], "x": row[field]} for row in baselines if row[field] is not None]
    x = alt.X("x:Q", title=title, scale=alt.Scale(zero=True))
    y = alt.Y("accuracy:Q", title="accuracy (%)", scale=alt.Scale(zero=False, padding=12))
    names = ["budgets", "full", *dict.fromkeys(row["series"] for row in others)]
    shades = ["#868e96", "#be4bdb", "#e8590c", "#1098ad", "#66a80f", "#d6336c", "#7950f2", "#e67700"]
    colors = [CURVE, DENSE, *(shades[i % len(shades)] for i in range(len(names) - 2))]
    color = alt.Color("series:N", scale=alt.Scale(domain=names, range=colors))
    forms = ["circle", "circle", "square", "cross", "diamond", "triangle-up", "triangle-down", "triangle-right"]
    shape = alt.Shape("series:N", scale=alt.Scale(domain=names, range=[forms[i % 8] for i in range(len(names))]))
    hollow = alt.condition("datum.measured === false", alt.value(0.25), alt.value(1.0))
    tips = [alt.Tooltip(name) for name in ("budget:Q", "accuracy:Q", "x:Q")]
    base = alt.Chart(alt.Data(values=rows))
    layers = [
        base.mark_line(color=CURVE, opacity=0.5).encode(x=x, y=y, order="x:Q"),
        base.mark_rule(color=CURVE, opacity=0.6).encode(x=x, y=alt.Y("low:Q", title="accuracy (%)"), y2="high:Q"),
        base.mark_point(filled=True, size=70).encode(
            x=x, y=y, color=color, shape=shape, fillOpacity=hollow, strokeOpacity=alt.value(1), tooltip=tips
        ),
        alt.Chart(alt.NamedData(name="chosen")).mark_rule(color=DENSE, strokeDash=[4, 4]).encode(x="x:Q"),
    ]
    if field == "ms":
        layers.append(
            base.transform_filter("datum.low_ms != null")
            .mark_rule(color=CURVE, opacity=0.6)
            .encode(x="low_ms:Q", x2="high_ms:Q", y=y)
        )
    if others:
        layers.append(
            alt.Chart(alt.Data(values=others))
            .mark_point(size=60, filled=False, opacity=1)
            .encode(x=x, y=y, color=color, shape=shape, tooltip=[alt.Tooltip("method:N"), *tips])
        )
        layers.append(
            alt.Chart(alt.Data(values=others))
            .mark_rule(opacity=0.4)
            .encode(x="x:Q", y=alt.Y("low:Q", title="accuracy (%)"), y2="high:Q", color=color)
        )
    return alt.layer(*layers).properties(width=WIDTH, height=320)


def kept(layers: int) -> Chart:
    """Return what every layer keeps, in percent of its heads and of its neurons; data come from the page."""
    alt = altair()
    return (
        alt.Chart(alt.NamedData(name="kept"))
        .mark_bar()
        .encode(
            x=alt.X("layer:O", title="layer", axis=alt.Axis(labelAngle=0)),
            xOffset=alt.XOffset("kind:N"),
            y=alt.Y("percent:Q", title="kept (%)", scale=alt.Scale(domain=[0, 100])),
            color=alt.Color("kind:N", scale=alt.Scale(domain=list(PAIR), range=list(PAIR.values()))),
            tooltip=[alt.Tooltip(name) for name in ("layer:O", "kind:N", "count:Q", "of:Q")],
        )
        .properties(width=min(WIDTH, max(180, 56 * layers)), height=200)
    )


def classes(count: int) -> Chart:
    """Return the change of F1 of every class against the full model, in points; data come from the page."""
    alt = altair()
    return (
        alt.Chart(alt.NamedData(name="classes"))
        .mark_bar(color=CURVE)
        .encode(
            y=alt.Y("label:N", title=None, sort=None),
            x=alt.X("change:Q", title="F1 against the full model (points)"),
            tooltip=[alt.Tooltip(name) for name in ("label:N", "f1:Q", "change:Q")],
        )
        .properties(width=WIDTH - 160, height=max(80, 20 * count))
    )
