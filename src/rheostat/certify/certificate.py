"""A certificate: what was measured on which machine, and how well the latency model predicts what it did not see."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rheostat.certify.conditions import RUNTIMES, Conditions, engine_of
from rheostat.certify.latency import LatencyModel, Sample
from rheostat.checkpoint import write_whole
from rheostat.errors import CheckpointError
from rheostat.subnet import ModelShape

CERTIFICATE_VERSION = 1
FOLDER = "certificates"
PERCENTILES = ("90", "95")
ERROR_LIMIT = 0.05  # median error on held-out subnets, or
NOISE_FACTOR = 1.5  # this many times the A/A noise, whichever is larger


@dataclass(frozen=True)
class Fit:
    """One set of conditions.

    Attributes:
        conditions: What was run.
        samples: The measured subnets, the full model first.
        model: What was fitted to half of them; None for a bundle, whose points are all that there is.
        noise: How much the full model differs from itself in the run, as a fraction.
        median_error: Of the model on the other half, as a fraction; None without a model.
        tail: Latency of the slow calls over the median call, by percentile (``"95"``), the median over subnets.
        widths: Kept neurons of a layer that pay: no larger measured width is as fast.
        head_counts: The same for heads.
    """

    conditions: Conditions
    samples: tuple[Sample, ...]
    model: LatencyModel | None
    noise: float
    median_error: float | None
    tail: Mapping[str, float] = field(default_factory=dict, hash=False)
    widths: tuple[int, ...] = ()
    head_counts: tuple[int, ...] = ()

    @property
    def full_ms(self) -> float:
        """Return the median latency of the full model."""
        return self.samples[0].ms

    @property
    def limit(self) -> float:
        """Return the largest median error that a certificate may have."""
        return max(ERROR_LIMIT, NOISE_FACTOR * self.noise)

    @property
    def holds(self) -> bool:
        """Whether the model predicts what it did not see."""
        return self.median_error is None or self.median_error <= self.limit

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready form, with the residual of every sample."""
        found = {**asdict(self), "limit": self.limit, "holds": self.holds}
        if self.model is not None:
            predicted = [self.model.predict(sample.heads, sample.neurons) for sample in self.samples]
            found["residuals_ms"] = [sample.ms - ms for sample, ms in zip(self.samples, predicted, strict=True)]
        return found

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Fit:
        """Return what ``to_json`` wrote."""
        samples = tuple(
            Sample(**{**s, "heads": tuple(s["heads"]), "neurons": tuple(s["neurons"]), "ms": float(s["ms"])})
            for s in record["samples"]
        )
        conditions = Conditions(**record["conditions"])
        if conditions.runtime not in RUNTIMES or not samples:
            raise ValueError(f"runtime {conditions.runtime!r}, {len(samples)} samples")
        return cls(
            conditions=conditions,
            samples=samples,
            model=None
            if record["model"] is None
            else LatencyModel(**{k: _number(v) for k, v in record["model"].items()}),
            noise=float(record["noise"]),
            median_error=None if record["median_error"] is None else float(record["median_error"]),
            tail={percentile: float(record["tail"][percentile]) for percentile in PERCENTILES},
            widths=tuple(record["widths"]),
            head_counts=tuple(record["head_counts"]),
        )


@dataclass(frozen=True)
class Certificate:
    """All fits of one run of ``rheostat certify``.

    Attributes:
        name: Of its file.
        subject: What was measured: kind, model type, sizes.
        environment: As :func:`rheostat.measure.environment` tells it.
        fits: By conditions.
    """

    name: str
    subject: Mapping[str, Any] = field(hash=False)
    environment: Mapping[str, Any] = field(hash=False)
    fits: tuple[Fit, ...]

    def fit(self, conditions: Conditions) -> Fit | None:
        """Return the fit of these conditions, if they were measured."""
        return next((fit for fit in self.fits if fit.conditions == conditions), None)

    def to_json(self) -> dict[str, Any]:
        """Return the content of the file."""
        return {
            "certificate_version": CERTIFICATE_VERSION,
            "name": self.name,
            "subject": dict(self.subject),
            "environment": dict(self.environment),
            "fits": [fit.to_json() for fit in self.fits],
        }

    def save(self, folder: Path) -> Path:
        """Write ``certificates/NAME.json`` whole or not at all."""
        path = folder / FOLDER / f"{self.name}.json"
        path.parent.mkdir(exist_ok=True)
        write_whole(path, json.dumps(self.to_json(), indent=1) + "\n")
        return path


def _number(value: Any) -> Any:
    """Return a whole number as it is, and anything else as a float; text and None are errors."""
    return value if type(value) is int else float(value)


def read_certificate(path: Path) -> Certificate:
    """Return a certificate.

    Raises:
        CheckpointError: missing, damaged, or of a newer version.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        version = record["certificate_version"]
        if type(version) is not int or not 1 <= version <= CERTIFICATE_VERSION:
            raise CheckpointError(
                f"certificate_version of {path.name} must be 1 to {CERTIFICATE_VERSION}; got {version!r}. "
                "Install a newer rheostat, or certify again"
            )
        fits = tuple(Fit.from_json(fit) for fit in record["fits"])
        where, subject = record["environment"], record["subject"]
        parts = (where, subject, where.get("versions", {}), where.get("variables", {}))
        if not fits or not all(isinstance(part, dict) for part in parts):
            raise ValueError("fits, environment and subject must be there")
        if subject.get("kind") == "checkpoint":
            ModelShape.from_json(subject["shape"])
        return Certificate(record["name"], record["subject"], record["environment"], fits)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(
            f"{path.name} must be a certificate; {type(error).__name__}: {error}. Run rheostat certify again"
        ) from None


def read_certificates(folder: Path) -> list[Certificate]:
    """Return the certificates of a checkpoint or bundle, the newest first."""
    found = [read_certificate(path) for path in sorted((folder / FOLDER).glob("*.json"))]
    return sorted(found, key=lambda c: str(c.environment.get("date_utc", "")), reverse=True)


# What a latency depends on, and how a difference is told.
_COMPARED = ("processor", "available_threads", "platform")


def differences(certificate: Certificate, now: Mapping[str, Any]) -> list[str]:
    """Return what differs between the machine of a certificate and this one, in words; empty for the same."""
    then = certificate.environment
    found = [
        f"{name.replace('_', ' ')} {then.get(name)!r}, now {now.get(name)!r}"
        for name in _COMPARED
        if then.get(name) != now.get(name)
    ]
    before, after = then.get("versions", {}), now.get("versions", {})
    found += [
        f"{package} {before.get(package)}, now {after.get(package)}"
        for package in _packages(certificate.fits)
        if before.get(package) != after.get(package)
    ]
    if then.get("variables", {}) != now.get("variables", {}):
        found.append(f"variables {then.get('variables', {})!r}, now {now.get('variables', {})!r}")
    return found


def warn_of(certificate: Certificate, fit: Fit, now: Mapping[str, Any], *, stacklevel: int) -> None:
    """Warn where a certificate is of another machine, or predicts badly."""
    changed = differences(certificate, now)
    if changed:
        warnings.warn(
            f"certificate {certificate.name!r} was measured elsewhere: {'; '.join(changed)}. Run rheostat certify here",
            stacklevel=stacklevel,
        )
    if not fit.holds:
        warnings.warn(
            f"certificate {certificate.name!r} predicts {100 * (fit.median_error or 0):.1f} % wrong at the median, "
            f"more than {100 * fit.limit:.1f} %. Run rheostat certify again on a quiet machine",
            stacklevel=stacklevel,
        )


def _packages(fits: Sequence[Fit]) -> list[str]:
    packages = {"torch": "torch", "onnx": "onnxruntime", "openvino": "openvino"}
    return sorted({packages[engine_of(fit.conditions.runtime)] for fit in fits})
