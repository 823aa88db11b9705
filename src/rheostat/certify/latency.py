"""How long a subnet takes: a few readable coefficients, fitted to measured subnets. No torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rheostat.cost import LATENCY, CostTable
from rheostat.errors import OptionError, missing
from rheostat.subnet import ModelShape

STEPS = (1, 16, 32, 64)  # widths that kernels may round up to
SURE_OF_A_STEP = 0.5  # of the squared residual of a straight line: a step must explain that much
FEATURES = 5
NANOSECONDS = 1_000_000  # in a millisecond


@dataclass(frozen=True)
class Sample:
    """One measured subnet.

    Attributes:
        heads: Kept heads of each layer.
        neurons: Kept neurons of each layer.
        ms: Median latency of a call.
        low_ms: Lower end of its 95 % interval, relative to the full model of the same rounds; 0 if unknown.
        high_ms: Upper end.
        held_out: Whether the fit did not see it.
    """

    heads: tuple[int, ...]
    neurons: tuple[int, ...]
    ms: float
    held_out: bool = False
    low_ms: float = 0.0
    high_ms: float = 0.0


@dataclass(frozen=True)
class LatencyModel:
    """Milliseconds of a call, all layers alike:

        ms = fixed + sum over layers of [h > 0] * first_head + h * head + [n > 0] * first_neuron + up(n) * neuron

    for h kept heads and n kept neurons, ``up(n)`` rounded up to a whole ``neuron_step``.

    Attributes:
        fixed_ms: What no subnet can save: embeddings, norms, classifier, the call itself.
        first_head_ms: What a layer that keeps any head pays besides its heads.
        head_ms: A head.
        first_neuron_ms: What a layer that keeps any neuron pays besides them.
        neuron_ms: A neuron.
        neuron_step: Neurons are computed in whole steps of this many.
    """

    fixed_ms: float
    first_head_ms: float
    head_ms: float
    first_neuron_ms: float
    neuron_ms: float
    neuron_step: int = 1

    def predict(self, heads: Sequence[int], neurons: Sequence[int]) -> float:
        """Return the milliseconds of kept heads and neurons, a number for each layer."""
        weights = np.array(
            [self.fixed_ms, self.first_head_ms, self.head_ms, self.first_neuron_ms, self.neuron_ms], dtype=np.float64
        )
        return float(_features(heads, neurons, self.neuron_step) @ weights)

    def costs(self, shape: ModelShape, sequence_length: int, conditions: dict[str, Any]) -> CostTable:
        """Return the cost model ``latency``: the same formula in whole nanoseconds, what is free rounded up to one."""
        layers = len(shape.layers)

        def each(ms: float, least: int) -> tuple[int, ...]:
            return (max(round(ms * NANOSECONDS), least),) * layers

        return CostTable(
            LATENCY,
            sequence_length,
            each(self.head_ms, 1),
            each(self.neuron_ms, 1),
            round(self.fixed_ms * NANOSECONDS),
            each(self.first_head_ms, 0),
            each(self.first_neuron_ms, 0),
            self.neuron_step,
            tuple(sorted(conditions.items())),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the coefficients."""
        return asdict(self)


def fit_latency(samples: Sequence[Sample], neuron_step: int = 1) -> LatencyModel:
    """Return the model that fits the samples that are not held out: non-negative least squares of relative errors.

    Args:
        samples: Measured subnets.
        neuron_step: What widths are rounded up to; see :func:`step_of`.

    Raises:
        OptionError: fewer samples than coefficients.
        MissingDependencyError: scipy is not installed.
    """
    try:
        from scipy.optimize import nnls
    except ImportError as error:
        raise missing("scipy", "train") from error
    seen = [sample for sample in samples if not sample.held_out]
    if len(seen) < FEATURES:
        raise OptionError(f"samples to fit must be at least {FEATURES}; got {len(seen)}. Measure more subnets")
    rows = np.array([_features(sample.heads, sample.neurons, neuron_step) / sample.ms for sample in seen])
    scale = rows.max(axis=0)  # neurons are thousands, layers a few
    scale[scale == 0] = 1.0
    weights, _ = nnls(rows / scale, np.ones(len(seen)))
    fixed, first_head, head, first_neuron, neuron = (weights / scale).tolist()
    return LatencyModel(fixed, first_head, head, first_neuron, neuron, neuron_step)


def step_of(times_ms: Mapping[int, float]) -> int:
    """Return what widths are rounded up to, judged by the latency of fine widths; 1 where a straight line does as well.

    A step of s explains the times if a line through ``up(width)``, rounded up to whole s, leaves less than half of the
    squared residual of a line through the width itself.
    """
    if len(times_ms) < 6:
        return 1
    widths, times = np.array(sorted(times_ms), dtype=np.float64), np.array([times_ms[n] for n in sorted(times_ms)])
    residual = {}
    for step in STEPS:
        rounded = np.ceil(widths / step) * step
        if len(set(rounded)) < 3:
            continue
        line = np.polynomial.Polynomial.fit(rounded, times, 1)
        residual[step] = float(((times - line(rounded)) ** 2).sum())
    best = min(residual, key=lambda step: residual[step])
    return best if residual[best] < SURE_OF_A_STEP * residual[1] else 1


def relative_errors(model: LatencyModel, samples: Sequence[Sample]) -> NDArray[np.float64]:
    """Return |predicted - measured| / measured of each sample, (N,)."""
    return np.array([abs(model.predict(s.heads, s.neurons) - s.ms) / s.ms for s in samples])


def _features(heads: Sequence[int], neurons: Sequence[int], step: int) -> NDArray[np.float64]:
    h, n = np.asarray(heads, dtype=np.float64), np.asarray(neurons, dtype=np.float64)
    rounded = np.ceil(n / step) * step
    return np.array([1.0, (h > 0).sum(), h.sum(), (n > 0).sum(), rounded.sum()])
