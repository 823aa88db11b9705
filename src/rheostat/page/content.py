"""What the report of a checkpoint says, as plain values: budgets, evaluations, certificates, baselines."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rheostat.certify.certificate import Certificate, Fit, differences, read_certificates, warn_of
from rheostat.certify.certifying import refuse_top_k
from rheostat.certify.latency import LatencyModel, Sample
from rheostat.checkpoint import existing_folder
from rheostat.errors import CheckpointError, OptionError
from rheostat.measure import environment
from rheostat.model import BudgetedModel, load
from rheostat.quality import FULL_BUDGET
from rheostat.subnet import KINDS, Subnet

NEVER_FASTER = ("soft", "scratch-soft")  # an estimated cost; every unit is computed
NEAR_SHARE = 0.02
STEPS = 200  # positions of the slider, but no more than there are units


@dataclass(frozen=True)
class Content:
    """Everything that a page shows.

    Attributes:
        name: Of the folder.
        facts: Model, cost model, labels, sizes.
        budgets: One record a position of the slider, the smallest first: budget, macs, params, heads and neurons of
            each layer, and ms, measured or predicted at the first conditions of the certificate.
        evaluated: One record an evaluated budget, the smallest first, with its latency where there is a certificate.
        certificate: The certificate that latencies come from, or None.
        baselines: Lines of a comparison, with predicted latencies where there can be one.
    """

    name: str
    facts: dict[str, Any]
    budgets: list[dict[str, Any]]
    evaluated: list[dict[str, Any]]
    certificate: dict[str, Any] | None
    baselines: list[dict[str, Any]]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return dict(vars(self))


def read_content(path: str | os.PathLike[str], *, comparison: str | os.PathLike[str] | None = None) -> Content:
    """Return what is known of a checkpoint.

    Args:
        path: Folder of a budgeted checkpoint.
        comparison: Folder of a ``rheostat compare``, or its table.json, for the baselines.

    The certificate is that of this machine if there is one, ``machine`` before others; one of another machine is used
    with a warning.

    Raises:
        OptionError: not a budgeted checkpoint, not nested, or one that was never evaluated with budget 1.0.
        CheckpointError: a comparison that can't be read.
    """
    folder = existing_folder(path)
    model = load(folder)
    if not isinstance(model, BudgetedModel):
        raise OptionError(f"{str(folder)!r} must be a budgeted checkpoint; it has one size. Report on the whole model")
    refuse_top_k(model.selection)
    if any("macro_f1" not in record for record in model.info.evaluation):
        raise OptionError(f"{str(folder)!r} must be a classifier to report on it; it is a {model.info.task} checkpoint")
    if all(record["budget"] != FULL_BUDGET for record in model.info.evaluation):
        raise OptionError(
            f"{str(folder)!r} must have been evaluated, budget 1.0 too, to report on it. Train it with rheostat train"
        )
    certificate = _chosen_certificate(folder)
    fit = certificate.fits[0] if certificate is not None else None
    lines = [] if comparison is None else read_lines(Path(comparison))
    return Content(
        name=folder.resolve().name,
        facts=_facts(model),
        budgets=_budgets(model, fit),
        evaluated=_evaluated(model, fit),
        certificate=None if certificate is None else _certified(certificate),
        baselines=_baselines(model, lines, fit),
    )


def _chosen_certificate(folder: Path) -> Certificate | None:
    """Return the certificate to show: of this machine first, then the one called ``machine``, then the newest."""
    now = environment()
    known = [certificate for certificate in read_certificates(folder) if certificate.fits[0].model is not None]
    known.sort(key=lambda certificate: (bool(differences(certificate, now)), certificate.name != "machine"))
    if known:
        warn_of(known[0], known[0].fits[0], now, stacklevel=4)
    return known[0] if known else None


def _facts(model: BudgetedModel) -> dict[str, Any]:
    shape = model.shape
    return {
        "model_type": str(model.config.model_type),
        "cost": model.costs.name,
        "sequence_length": model.costs.sequence_length,
        "labels": list(model.info.labels),
        "heads": [layer.num_attention_heads for layer in shape.layers],
        "neurons": [layer.intermediate_size for layer in shape.layers],
        "floor": model.floor,
        "rows": model.info.evaluation[0].get("rows"),
    }


def _budgets(model: BudgetedModel, fit: Fit | None) -> list[dict[str, Any]]:
    order = model.order
    lengths = range(order.required, len(order.units) + 1)
    every = max(1, -(-len(lengths) // STEPS))
    chosen = sorted({*lengths[::every], lengths[-1], *(order.length(r["budget"]) for r in model.info.evaluation)})
    macs, params = model.macs_table(model.usual_length), model.params_table()
    found = []
    for length in chosen:
        subnet = order.subnet_of_length(length)
        found.append(
            {
                "budget": model.costs.share(subnet),
                "macs": macs.total(subnet),
                "params": params.total(subnet),
                "heads": list(subnet.head_counts),
                "neurons": list(subnet.neuron_counts),
                "ms": None if fit is None else _latency(fit, subnet),
                "measured": fit is not None and _sample(fit, subnet) is not None,
            }
        )
    return found


def _latency(fit: Fit, subnet: Subnet) -> float | None:
    """Return what was measured of a subnet, or else what is predicted."""
    sample = _sample(fit, subnet)
    return _predicted(fit, subnet) if sample is None else sample.ms


def _predicted(fit: Fit, subnet: Subnet) -> float | None:
    return None if fit.model is None else fit.model.predict(subnet.head_counts, subnet.neuron_counts)


def _evaluated(model: BudgetedModel, fit: Fit | None) -> list[dict[str, Any]]:
    full = next(r for r in model.info.evaluation if r["budget"] == FULL_BUDGET)
    found = []
    for record in sorted(model.info.evaluation, key=lambda r: float(r["budget"])):
        subnet = model.subnet(record["budget"])
        sample = None if fit is None else _sample(fit, subnet)
        found.append(
            {
                "budget": record["budget"],
                "share": model.costs.share(subnet),
                "accuracy": 100 * record["accuracy"],
                "low": 100 * full["accuracy"] - record["drop_high"],
                "high": 100 * full["accuracy"] - record["drop_low"],
                "macro_f1": 100 * record["macro_f1"],
                "drop": record["drop_points"],
                "calibration_error": record.get("calibration_error"),
                "class_f1": [100 * f1 for f1 in record.get("class_f1", ())],
                "ms": None if fit is None else _latency(fit, subnet),
                "low_ms": sample.low_ms if sample else None,
                "high_ms": sample.high_ms if sample else None,
                "measured": sample is not None,
            }
        )
    return found


def _sample(fit: Fit, subnet: Subnet) -> Sample | None:
    wanted = (subnet.head_counts, subnet.neuron_counts)
    return next((sample for sample in fit.samples if (sample.heads, sample.neurons) == wanted), None)


def _certified(certificate: Certificate) -> dict[str, Any]:
    environment = certificate.environment
    return {
        "name": certificate.name,
        "processor": environment.get("processor"),
        "date": str(environment.get("date_utc", ""))[:10],
        "versions": environment.get("versions", {}),
        "fits": [
            {
                "conditions": str(fit.conditions),
                "full_ms": fit.full_ms,
                "noise": fit.noise,
                "median_error": fit.median_error,
                "limit": fit.limit,
                "holds": fit.holds,
                "model": None if fit.model is None else fit.model.to_json(),
                "widths": list(fit.widths),
                "head_counts": list(fit.head_counts),
            }
            for fit in certificate.fits
        ],
    }


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a comparison.

    Raises:
        CheckpointError: not the JSON of ``rheostat compare``.
    """
    if path.is_dir():
        path = path / "table.json"
    try:
        lines = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(lines, list):
            raise TypeError(f"a list of lines, not {type(lines).__name__}")
        names = ("method", "budget", "share", "mean", "below_dense", "below_low", "below_high")
        numbers = names[2:]
        return [{**{n: line[n] for n in names}, **{n: float(line[n]) for n in numbers}} for line in lines]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise CheckpointError(
            f"{path.name} must be the table of a comparison; {type(error).__name__}: {error}. Write it with rheostat "
            "compare"
        ) from None


def _baselines(model: BudgetedModel, lines: Sequence[Mapping[str, Any]], fit: Fit | None) -> list[dict[str, Any]]:
    """Return every line of a comparison with the latency of what it runs, None where nothing is known.

    The budgeted model is among them: a comparison reads all its methods on the same rows, which may be others than
    those that the checkpoint was evaluated on.
    """
    found = []
    for line in lines:
        spread = [line["below_dense"] - line["below_high"], line["below_dense"] - line["below_low"]]
        mean = float(line["mean"])
        found.append(
            {
                "method": line["method"],
                "budget": line["budget"],
                "share": line["share"],
                "accuracy": mean,
                "low": mean + spread[0],
                "high": mean + spread[1],
                "ms": None if fit is None or fit.model is None else _line_ms(model, fit.model, line),
            }
        )
    return found


def _line_ms(model: BudgetedModel, latency: LatencyModel, line: Mapping[str, Any]) -> float | None:
    """Return the predicted latency of a line: of the whole model for soft gates, of layers, or of a budget's share."""
    full = Subnet.full(model.shape)
    if line["method"] in NEVER_FASTER:
        return latency.predict(full.head_counts, full.neuron_counts)
    if line["method"] == "fewer-layers":
        return _layers_ms(model, latency, float(line["share"]))
    share = min(float(line["share"]) + 1e-9, 1.0)
    if line["method"] == "linear" or share < model.floor:
        return None
    subnet = model.subnet(share)
    return latency.predict(subnet.head_counts, subnet.neuron_counts)


def _layers_ms(model: BudgetedModel, latency: LatencyModel, share: float) -> float | None:
    """Return the predicted latency of the first layers whose share is nearest, if one is near."""
    sizes = {kind: [model.shape.size(i, kind) for i in range(len(model.shape.layers))] for kind in KINDS}
    counted = []
    for count in range(1, len(model.shape.layers) + 1):
        kept = {kind: [n * (i < count) for i, n in enumerate(sizes[kind])] for kind in KINDS}
        subnet = Subnet.prefix(model.shape, kept["head"], kept["neuron"])
        counted.append(
            (abs(model.costs.share(subnet) - share), latency.predict(subnet.head_counts, subnet.neuron_counts))
        )
    gap, ms = min(counted)
    return ms if gap < NEAR_SHARE else None
