"""Run any subnet of a checkpoint in any runtime, and any point of a bundle: what a certificate times."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rheostat.errors import OptionError

if TYPE_CHECKING:
    from rheostat.bundle import Bundle
    from rheostat.certify.certificate import Conditions
    from rheostat.model import BudgetedModel
    from rheostat.subnet import Subnet

RUNTIMES = ("torch", "onnx", "openvino", "onnx-int8", "openvino-int8")
Call = Callable[[], object]


def check_runtime(name: str) -> str:
    """Return the name of a known runtime.

    Raises:
        OptionError: it is not one of ``RUNTIMES``.
    """
    if name not in RUNTIMES:
        raise OptionError(f"runtime must be one of {', '.join(RUNTIMES)}; got {name!r}. The default is torch")
    return name


def subnet_call(model: BudgetedModel, subnet: Subnet, conditions: Conditions, scratch: Path) -> Call:
    """Return a call that runs a subnet, materialized, on random tokens without padding.

    Args:
        model: The checkpoint.
        subnet: What is kept.
        conditions: Batch, length, threads (torch takes those of the run) and runtime.
        scratch: Folder for graphs.
    """
    from rheostat.timing import random_inputs, run_once

    inputs: dict[str, Any] = dict(random_inputs(model, conditions.batch, conditions.length))
    if conditions.runtime == "torch":
        small = model.base if subnet.is_full else model.materialize(subnet=subnet).eval()
        return partial(run_once, small, inputs)
    from rheostat.bundle.engines import open_session
    from rheostat.export.exporting import input_names
    from rheostat.export.graphs import build_graph

    engine, _, precision = conditions.runtime.partition("-")
    names = input_names(model)
    small = model.materialize(subnet=subnet).eval().float().cpu()
    graph = build_graph(small, model.spec, names, fused=engine == "onnx")
    path = scratch / f"{len(list(scratch.iterdir()))}.onnx"
    _save(graph, path)
    arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
    if precision:
        from rheostat.export.int8 import methods_for, quantized

        known = {name: arrays.get(name, np.zeros_like(arrays["input_ids"])) for name in names}
        graph, _ = quantized(path, methods_for(engine)[0], [known])
        path.with_suffix(".bin").unlink()
        _save(graph, path)
    session = open_session(engine, path, names, memory="fast", threads=conditions.threads)
    path.with_suffix(".bin").unlink()  # opened graphs hold their weights
    return partial(session.run, arrays)


def bundle_call(bundle: Bundle, budget: float, conditions: Conditions) -> Call:
    """Return a call that runs a point of an opened bundle on tokens without padding."""
    session = bundle.session(budget, strict=True)
    ids = np.ones((conditions.batch, conditions.length), dtype=np.int64)  # any vocabulary has a second word
    return partial(session.run, {"input_ids": ids, "attention_mask": np.ones_like(ids)})


def bundle_runtime(bundle: Bundle) -> str:
    """Return the runtime of an opened bundle."""
    return bundle.info.engine if bundle.precision == "float32" else f"{bundle.info.engine}-int8"


def _save(graph: Any, path: Path) -> None:
    import onnx

    onnx.save(graph, path, save_as_external_data=True, location=f"{path.stem}.bin")
