"""Write the page and the picture, whole or not at all."""

from __future__ import annotations

import html
import json
import os
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from rheostat.checkpoint import write_whole
from rheostat.errors import missing
from rheostat.page.charts import classes, curve, kept, styled
from rheostat.page.content import Content

INK = "#1f2933"
# What the page's own code takes from the bundle of the charting library.
SNIPPET = "window.vegaEmbed = vegaEmbed;"


def write_page(content: Content, path: str | os.PathLike[str]) -> Path:
    """Write one HTML file that needs nothing else: data, charts and their library are in it.

    Raises:
        MissingDependencyError: altair or vl-convert-python is not installed.
    """
    charts = {
        "curve": styled(curve(content.evaluated, content.baselines), "currentColor"),
        "kept": styled(kept(len(content.facts["heads"])), "currentColor"),
    }
    if any(row["class_f1"] for row in content.evaluated):
        charts["classes"] = styled(classes(len(content.facts["labels"])), "currentColor")
    facts = content.facts
    length = f" at {facts['sequence_length']} tokens" if facts["sequence_length"] else ""
    rows = "" if facts["rows"] is None else f", evaluated on {facts['rows']:,} validation rows"
    page = Template(files("rheostat.page").joinpath("template.html").read_text("utf-8")).substitute(
        title=html.escape(f"{content.name}: one checkpoint, one knob"),
        subtitle=html.escape(f"{facts['model_type']}, budgets in {facts['cost']}{length}{rows}."),
        curve_note=html.escape(_curve_note(content)),
        cost=html.escape(facts["cost"]),
        last=len(content.budgets) - 1,
        certificate=_certificate(content.certificate),
        compared=_compared(content.baselines),
        content=_embedded(content.to_json()),
        charts=_embedded(charts),
        library=_converter().javascript_bundle(SNIPPET).replace("</script", "<\\/script"),
        code=files("rheostat.page").joinpath("code.js").read_text("utf-8"),
    )
    write_whole(Path(path), page)
    return Path(path)


def write_picture(content: Content, path: str | os.PathLike[str]) -> Path:
    """Write the main plot as a PNG on white.

    Raises:
        MissingDependencyError: altair or vl-convert-python is not installed.
    """
    chart = curve(content.evaluated, content.baselines)
    spec = {**styled(chart, INK), "datasets": {"chosen": []}}
    spec["config"] = {**spec["config"], "background": "white", "font": "sans-serif"}
    picture: bytes = _converter().vegalite_to_png(json.dumps(spec), scale=2)
    write_whole(Path(path), picture)
    return Path(path)


def _converter() -> Any:
    try:
        import vl_convert
    except ImportError as error:
        raise missing("vl-convert-python", "report") from error
    return vl_convert


def _embedded(value: object) -> str:
    """Return JSON that can't end the element it stands in."""
    return json.dumps(value, ensure_ascii=False).replace("<", "\\u003c")


def _curve_note(content: Content) -> str:
    if content.certificate is None:
        return "Lines up and down: 95 % intervals. No latency is known: run rheostat certify, and report again."
    fit = content.certificate["fits"][0]
    told = (
        f"Lines: 95 % intervals, of accuracy as the paired difference to the full model. Latency: {fit['conditions']}, "
        f"{content.certificate['processor']}, {content.certificate['date']}."
    )
    others = (
        " Other marks: what was compared with, read on the comparison's own rows, at predicted latencies; pruned "
        "models as budgets of their share. Hollow: predicted."
    )
    return told + others * bool(content.baselines)


def _compared(lines: list[dict[str, Any]]) -> str:
    """Return the comparison as a table; the plot leaves out what has no latency."""
    if not lines:
        return ""
    rows = []
    for line in lines:
        budget = "" if line["budget"] is None else f"{line['budget']:g}"
        ms = "none" if line["ms"] is None else f"{line['ms']:.2f} ms"
        cells = (budget, f"{line['accuracy']:.2f} %", f"{line['low']:.2f} to {line['high']:.2f}", ms)
        name = f"<th scope='row'>{html.escape(str(line['method']))}</th>"
        rows.append(f"<tr>{name}{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    names = ("method", "budget", "accuracy", "95 % interval of the difference to dense", "predicted latency")
    head = "".join(f"<th scope='col'>{name}</th>" for name in names)
    return (
        f"<h2>Compared with</h2><div class='scroll' tabindex='0'><table id='compared'><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _certificate(record: dict[str, Any] | None) -> str:
    if record is None:
        return "<p>None. <code>rheostat certify</code> measures this machine.</p>"
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    where = html.escape(f"{record['processor']}, {record['date']}; {versions}")
    parts = [f"<p class='muted'>{where}</p>"]
    for fit in record["fits"]:
        lines = [f"full model {fit['full_ms']:.2f} ms, A/A noise {100 * fit['noise']:.1f} %"]
        if fit["model"] is not None:
            m = fit["model"]
            lines += [
                f"ms = {m['fixed_ms']:.3f} + {m['first_head_ms']:.3f} a layer with heads + {m['head_ms']:.4f} a head + "
                f"{m['first_neuron_ms']:.3f} a layer with neurons + {32 * m['neuron_ms']:.4f} for 32 neurons, "
                f"in steps of {m['neuron_step']}",
                f"median error on held-out subnets {100 * fit['median_error']:.1f} %, "
                f"{'within' if fit['holds'] else 'above'} {100 * fit['limit']:.1f} %",
            ]
        for name, title in (("widths", "neurons"), ("head_counts", "heads")):
            lines += [f"{title} a layer that pay: {', '.join(map(str, fit[name]))}"] if fit[name] else []
        items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
        parts.append(f"<h3>{html.escape(fit['conditions'])}</h3><ul>{items}</ul>")
    return "\n".join(parts)
