"""Run any subnet of a checkpoint in any runtime, and any point of a bundle: what a certificate times."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rheostat.certify.conditions import Conditions, engine_of

if TYPE_CHECKING:
    from rheostat.bundle import Bundle
    from rheostat.model import BudgetedModel
    from rheostat.subnet import Subnet

Call = Callable[[], object]


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
        small: Any = model.base
        if not subnet.is_full:
            small = model.materialize(subnet=subnet).eval()
            embeddings: Any = model.base
            small.set_input_embeddings(embeddings.get_input_embeddings())  # two dozen copies would fill the memory
        return partial(run_once, small, inputs)
    from rheostat.bundle.engines import open_session
    from rheostat.export.exporting import input_names
    from rheostat.export.graphs import build_graph

    engine = engine_of(conditions.runtime)
    names = input_names(model)
    small = model.materialize(subnet=subnet).eval().float().cpu()
    graph = build_graph(small, model.spec, names, fused=engine == "onnx")
    path = scratch / f"{len(list(scratch.iterdir()))}.onnx"
    _save(graph, path)
    arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
    if conditions.runtime != engine:
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


def _save(graph: Any, path: Path) -> None:
    import onnx

    onnx.save(graph, path, save_as_external_data=True, location=f"{path.stem}.bin")
