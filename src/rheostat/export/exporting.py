"""`export`: a budgeted checkpoint to a bundle; every graph is checked against torch before the folder is there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from rich.progress import track

from rheostat.budget import check_budget, descending
from rheostat.bundle.engines import open_session
from rheostat.bundle.manifest import ENGINES, BundleInfo, Graph, Point, write_bundle_info
from rheostat.checkpoint import check_replaceable, replacing_folder
from rheostat.console import stderr
from rheostat.data import ReadOptions, token_limit
from rheostat.errors import CheckpointError, OptionError
from rheostat.export.graphs import build_graph
from rheostat.export.quantizing import add_int8, validated
from rheostat.export.validation import read_validation
from rheostat.export.weights import SharedWeights, count_operators
from rheostat.model import BudgetedModel, load

WEIGHTS_FILE = "weights.bin"
TOKENIZER_FILE = "tokenizer.json"
SHAPES = ((1, 1), (1, 9), (2, 9), (3, 17), (4, 40))  # rows x tokens that every graph is compared with torch at
TOLERANCE = 1e-4


def export(
    model: BudgetedModel | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    format: str = "onnx",
    budgets: Sequence[float] = (1.0, 0.75, 0.5, 0.35, 0.25),
    validate: str | None = None,
    read_options: ReadOptions | None = None,
    int8: bool = False,
    max_int8_drop: float = 0.5,
    force: bool = False,
) -> BundleInfo:
    """Write a bundle: one weights file, a small graph a budget, tokenizer, ``bundle.json``.

    Args:
        model: A budgeted model, its folder, or its Hub name.
        out: Folder of the bundle; replaced only when the new one is complete.
        format: ``onnx``, or ``openvino`` (the same graphs without ONNX Runtime's own operators).
        budgets: Operating points; budget 1.0 is always one of them.
        validate: Labelled rows that every graph is scored on.
        read_options: How they are read.
        int8: Whether to write int8 graphs too; what they cost is measured on ``validate``.
        max_int8_drop: Most points that an int8 graph may score below float32 at the same budget.
        force: Whether to write int8 graphs that score lower, or without rows to know.

    Raises:
        OptionError: an option that can't be used, or a checkpoint that is not nested.
        BudgetError: a budget that can't be reached.
        CheckpointError: a graph that does not answer as torch does.
    """
    if format not in ENGINES:
        raise OptionError(f"format must be one of {', '.join(ENGINES)}; got {format!r}")
    check_replaceable(Path(out))
    source = model if isinstance(model, BudgetedModel) else load(model)
    if not isinstance(source, BudgetedModel):
        raise OptionError(f"{str(model)!r} must be a budgeted checkpoint; it is a materialized one. Export the whole")
    if source.selection != "nested":
        raise OptionError("selection must be nested, so that one weights file serves all budgets; got top-k")
    if int8 and validate is None and not force:
        raise OptionError("int8 needs --validate DATA, so that what it costs is known; or --force")
    chosen = tuple(check_budget(b, floor=source.floor) for b in descending((1.0, *budgets)))
    with replacing_folder(out) as folder:
        with SharedWeights(folder / WEIGHTS_FILE) as weights:
            info = _write_float32(source, folder, format, chosen, weights)
            rows, logits = None, {}
            if validate is not None:
                rows = read_validation(validate, info.info, info.tokenizer, folder, read_options)
                info, logits = validated(folder, info, rows)
            if int8:
                info = add_int8(folder, info, weights, rows, logits, max_drop=max_int8_drop, force=force)
        write_bundle_info(folder, info)
    return info


def _write_float32(
    model: BudgetedModel, folder: Path, engine: str, budgets: Sequence[float], weights: SharedWeights
) -> BundleInfo:
    """Write the graphs, the weights and the tokenizer, and check the graphs against torch."""
    names = input_names(model)
    shown = track(budgets, "Exporting", console=stderr, transient=True) if stderr.is_terminal else budgets
    for budget in shown:
        graph = build_graph(_prepared(model, budget), model.spec, names, fused=engine == "onnx")
        weights.share(graph)
        onnx.save(graph, folder / graph_file(budget))
    weights.flush()
    points = tuple(_point(model, folder, engine, names, budget) for budget in budgets)
    return BundleInfo(
        engine=engine,
        model_type=str(model.config.model_type),
        cost={"name": model.costs.name, "sequence_length": model.costs.sequence_length},
        inputs=tuple(names),
        info=model.info,
        tokenizer=_write_tokenizer(model, folder),
        points=points,
    )


def graph_file(budget: float, suffix: str = "") -> str:
    """Return the name of a budget's graph; it lies beside the weights, as ONNX Runtime wants it."""
    return f"budget-{budget:g}{suffix}.onnx"


def input_names(model: BudgetedModel) -> list[str]:
    """Return the names of the graphs' inputs: what the tokenizer gives, or what the model tells apart."""
    names = ["input_ids", "attention_mask"]
    if model.tokenizer is not None:
        has_types = "token_type_ids" in model.tokenizer.model_input_names
    else:
        has_types = getattr(model.config, "type_vocab_size", 1) > 1
    return [*names, "token_type_ids"] if has_types else names


def _prepared(model: BudgetedModel, budget: float) -> Any:
    """Return a materialized copy to build a graph from."""
    return model.materialize(budget).eval().float().cpu()


def _point(model: BudgetedModel, folder: Path, engine: str, names: Sequence[str], budget: float) -> Point:
    """Return a point after checking its graph against torch."""
    file = graph_file(budget)
    check_parity(model, folder / file, engine, names, budget)
    subnet = model.subnet(budget)
    macs = model.macs_table(model.costs.sequence_length or 128)
    operators = (
        fused_operators(folder / file)
        if engine == "onnx"
        else count_operators(onnx.load(folder / file, load_external_data=False))
    )
    return Point(
        budget=budget,
        share=model.costs.share(subnet),
        macs=macs.total(subnet),
        params=model.params_table().total(subnet),
        kept=model.stored.kept(subnet).to_json(),
        graphs={"float32": Graph(file, operators)},
    )


def check_parity(model: BudgetedModel, path: Path, engine: str, names: Sequence[str], budget: float) -> float:
    """Return the largest difference between a graph and torch over the shapes.

    Raises:
        CheckpointError: it is above 1e-4.
    """
    session = open_session(engine, path, names, memory="fast", threads=1)
    view = model.eval()
    worst = 0.0
    longest = token_limit(model.tokenizer, model.config)
    for inputs in example_inputs(model.config.vocab_size, names, longest):
        tensors = {name: torch.from_numpy(array).to(model.device) for name, array in inputs.items()}
        with torch.inference_mode():
            expected = view(**tensors, budget=budget).logits.float().cpu().numpy()
        worst = max(worst, float(np.abs(session.run(inputs) - expected).max()))
    if not worst <= TOLERANCE:  # NaN included
        raise CheckpointError(
            f"{path.name} must answer as torch does within {TOLERANCE:g}; it differs by {worst:g}. Report it with the "
            "model's family"
        )
    return worst


def example_inputs(vocabulary: int, names: Sequence[str], longest: int) -> list[dict[str, NDArray[np.int64]]]:
    """Return token arrays of every checked shape, with padding where there is more than one row."""
    rng = np.random.default_rng(0)
    found = []
    for rows, length in ((rows, min(length, longest)) for rows, length in SHAPES):
        mask = np.ones((rows, length), dtype=np.int64)
        if rows > 1:
            mask[1, length // 2 + 1 :] = 0
        arrays = {"input_ids": rng.integers(0, vocabulary, (rows, length)), "attention_mask": mask}
        found.append({name: arrays.get(name, np.zeros_like(mask)) for name in names})
    return found


def fused_operators(path: Path) -> dict[str, int]:
    """Return how many of each operator ONNX Runtime is left with after fusing what it can."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / "optimized.onnx"
        options.optimized_model_filepath = str(target)
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights")
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return _operators(target)


def _operators(path: Path) -> dict[str, int]:
    return count_operators(onnx.load(path, load_external_data=False))


def _write_tokenizer(model: BudgetedModel, folder: Path) -> dict[str, Any] | None:
    """Write ``tokenizer.json`` and return what the runtime must know besides.

    Raises:
        OptionError: a tokenizer that the tokenizers library can't read.
    """
    tokenizer = model.tokenizer
    if tokenizer is None:
        return None
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise OptionError(f"tokenizer must be a fast one to go into a bundle; got {type(tokenizer).__name__}")
    (folder / TOKENIZER_FILE).write_text(backend.to_str(), encoding="utf-8")
    return {
        "file": TOKENIZER_FILE,
        "pad_id": int(tokenizer.pad_token_id or 0),
        "pad_type_id": int(tokenizer.pad_token_type_id),
        "max_length": model.info.max_length or token_limit(tokenizer, model.config),
    }
