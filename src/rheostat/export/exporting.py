"""`export`: a budgeted checkpoint to a bundle; every graph is checked against torch before the folder is there."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from importlib.util import find_spec
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from rich.progress import track

from rheostat.answers import answers_of
from rheostat.architectures import image_shape
from rheostat.budget import check_budget, descending
from rheostat.bundle.engines import PIXELS, Arrays, open_session
from rheostat.bundle.manifest import ENGINES, BundleInfo, Graph, Point, write_bundle_info
from rheostat.calibration import CLASSIFICATIONS
from rheostat.checkpoint import CheckpointInfo, check_replaceable, is_checkpoint, replacing_folder, task_of
from rheostat.console import stderr
from rheostat.data import EMBEDDING, REGRESSION, TOKEN_CLASSIFICATION, ReadOptions, token_limit
from rheostat.errors import CheckpointError, OptionError, missing
from rheostat.export.graphs import build_graph
from rheostat.export.operators import fused_operators, operators_of
from rheostat.export.quantizing import add_int8, validated
from rheostat.export.validation import read_validation
from rheostat.export.weights import SharedWeights
from rheostat.measure import environment
from rheostat.model import BudgetedModel, load

WEIGHTS_FILE = "weights.bin"
TOKENIZER_FILE = "tokenizer.json"
SHAPES = ((1, 1), (1, 9), (2, 9), (3, 17), (4, 40))  # rows x tokens that every graph is compared with torch at
TOLERANCE = 1e-4  # of logits; of the largest one where that is above 1, as float32 rounds
RUNTIMES = {"onnx": "onnxruntime", "openvino": "openvino"}


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
    check_request(out, format, validate, int8=int8, max_int8_drop=max_int8_drop, force=force)
    source = _checked_model(model)
    if source.spec.image_tokens is not None and (validate is not None or int8):
        raise OptionError("validate and int8 must be left out of a bundle that reads images: only texts are read here")
    if task_of(source.info) not in (*CLASSIFICATIONS, REGRESSION) and (validate is not None or int8):
        raise OptionError(
            f"validate and int8 must be left out of a bundle of task {source.info.task}: they are for classifiers of "
            "texts"
        )
    chosen = _checked_budgets(budgets, source.floor)
    with replacing_folder(out) as folder:
        tokenizer = _write_tokenizer(source, folder)
        rows = None
        if validate is not None:
            rows = read_validation(validate, source.info, tokenizer, folder, read_options)
        with SharedWeights(folder / WEIGHTS_FILE) as weights:
            info = _write_float32(source, folder, format, chosen, weights, tokenizer)
        logits: dict[float, NDArray[np.float32]] = {}
        if rows is not None:
            info, logits = validated(folder, info, rows)
        if int8:
            info = add_int8(folder, info, weights, rows, logits, max_drop=max_int8_drop, force=force)
        return write_bundle_info(folder, info)


def check_request(
    out: str | os.PathLike[str], engine: str, validate: str | None, *, int8: bool, max_int8_drop: float, force: bool
) -> None:
    """Refuse what can't be used before anything long starts."""
    if engine not in ENGINES:
        raise OptionError(f"format must be one of {', '.join(ENGINES)}; got {engine!r}")
    if find_spec(RUNTIMES[engine]) is None:
        raise missing(RUNTIMES[engine], engine)
    if is_checkpoint(out):
        raise CheckpointError(f"out must not be a checkpoint; got {str(out)!r}. Choose another folder for the bundle")
    check_replaceable(Path(out))
    if int8 and validate is None and not (force and engine == "onnx"):
        hint = "; or --force" if engine == "onnx" else ""
        raise OptionError(f"int8 needs --validate DATA, so that what it costs is known{hint}")
    if not 0.0 <= max_int8_drop < math.inf:
        raise OptionError(f"max_int8_drop must be a number of points, 0 or more; got {max_int8_drop!r}. Try 0.5")


def _checked_model(model: object) -> BudgetedModel:
    """Return the budgeted model that was given or that lies in a folder.

    Raises:
        OptionError: something else.
        UnsupportedModelError: its modules were changed after wrapping, quantized for example.
    """
    if isinstance(model, str | os.PathLike):
        model = load(model)
    if not isinstance(model, BudgetedModel):
        raise OptionError(
            f"model must be a budgeted checkpoint; got {type(model).__name__}. Export the whole model, not one size "
            "of it, and quantize while exporting"
        )
    model.spec.shape(model.base)
    if model.selection != "nested":
        raise OptionError("selection must be nested, so that one weights file serves all budgets; got top-k")
    return model


def _checked_budgets(budgets: Sequence[float], floor: float) -> tuple[float, ...]:
    """Return the budgets, 1.0 among them, largest first, rounded to six digits: they name files."""
    if isinstance(budgets, Real):
        raise OptionError(f"budgets must be a list; got {budgets!r}. Pass ({budgets!r},)")
    least = math.ceil(floor * 1e6) / 1e6  # rounded down, the floor itself would be out of reach
    return descending(max(round(check_budget(budget, floor=floor), 6), least) for budget in (1.0, *budgets))


def _write_float32(
    model: BudgetedModel,
    folder: Path,
    engine: str,
    budgets: Sequence[float],
    weights: SharedWeights,
    tokenizer: dict[str, Any] | None,
) -> BundleInfo:
    """Write the graphs and the weights, and check the graphs against torch."""
    names = input_names(model)
    examples = (
        example_images(model.config)
        if tuple(names) == PIXELS
        else example_inputs(model.config, names, token_limit(model.tokenizer, model.config))
    )
    expected = []
    shown = track(budgets, "Exporting", console=stderr, transient=True) if stderr.is_terminal else budgets
    for budget in shown:
        small = model.materialize(budget).eval().float().cpu()
        expected.append([torch_answers(small, inputs, model.info) for inputs in examples])
        graph = build_graph(small, model.spec, names, fused=engine == "onnx")
        own = model.corrections is not None and budget < 1.0
        weights.share(graph, own_vectors=own, own_prefix=f"{budget:g}/")
        onnx.save(graph, folder / graph_file(budget))
    weights.close()
    for budget, wanted in zip(budgets, expected, strict=True):
        check_parity(folder / graph_file(budget), engine, names, examples, wanted)
    points = tuple(_point(model, folder, engine, budget) for budget in budgets)
    return BundleInfo(
        engine=engine,
        model_type=str(model.config.model_type),
        cost={"name": model.costs.name, "sequence_length": model.costs.sequence_length},
        inputs=tuple(names),
        info=model.info,
        tokenizer=tokenizer,
        points=points,
        environment=environment(),
    )


def graph_file(budget: float) -> str:
    """Return the name of a budget's graph; it lies beside the weights, as ONNX Runtime wants it."""
    return f"budget-{budget:g}.onnx"


def input_names(model: BudgetedModel) -> list[str]:
    """Return the names of the graphs' inputs: what the tokenizer gives, or what the model tells apart."""
    if model.spec.image_tokens is not None:
        return list(PIXELS)
    names = ["input_ids", "attention_mask"]
    if model.tokenizer is not None:
        has_types = "token_type_ids" in model.tokenizer.model_input_names
    else:
        has_types = getattr(model.config, "type_vocab_size", 1) > 1
    return [*names, "token_type_ids"] if has_types else names


def _point(model: BudgetedModel, folder: Path, engine: str, budget: float) -> Point:
    """Return what a point keeps, costs and computes."""
    subnet, length = model.subnet(budget), model.usual_length
    path = folder / graph_file(budget)
    return Point(
        budget=budget,
        share=model.costs.share(subnet),
        macs=model.macs_table(length).total(subnet),
        macs_length=length,
        params=model.params_table().total(subnet),
        kept=model.stored.kept(subnet).to_json(),
        graphs={"float32": Graph(path.name, fused_operators(path) if engine == "onnx" else operators_of(path))},
    )


def torch_answers(model: Any, inputs: Arrays, info: CheckpointInfo) -> NDArray[np.float32]:
    """Return what a model answers on the CPU: logits (B, C), of tokens (B, S, C), or vectors (B, E).

    Raises:
        OptionError: a model that does not give one row of logits a text, or a token where these are labelled.
    """
    given = {name: torch.from_numpy(array) for name, array in inputs.items()}
    with torch.inference_mode():
        output = model(**given)
    task = task_of(info)
    if task != EMBEDDING:
        logits = getattr(output, "logits", None)
        rank = 3 if task == TOKEN_CLASSIFICATION else 2
        if logits is None or logits.dim() != rank or (info.labels and logits.shape[-1] not in (1, len(info.labels))):
            raise OptionError(
                f"model must give one row of logits a text, one a label, to become a bundle; {type(model).__name__} "
                "does not. Export a classifier or an embedding model"
            )
    found: NDArray[np.float32] = answers_of(output, given, info).numpy()
    return found


def check_parity(
    path: Path,
    engine: str,
    names: Sequence[str],
    examples: Sequence[Arrays],
    expected: Sequence[NDArray[np.float32]],
) -> float:
    """Return the largest difference between a graph and torch over the shapes, over the largest logit above 1.

    Raises:
        CheckpointError: it is above 1e-4, or not a number.
    """
    session = open_session(engine, path, names, memory="fast", threads=1)
    found = [session.run(inputs) for inputs in examples]
    same = all(a.shape == b.shape for a, b in zip(found, expected, strict=True))
    gaps = [np.abs(a - b).max() for a, b in zip(found, expected, strict=True)] if same else [np.inf]
    scale = max(1.0, *(float(np.abs(array).max()) for array in expected))
    worst = float(np.max(gaps)) / scale  # which keeps NaN, as Python's max does not
    if not worst <= TOLERANCE:
        raise CheckpointError(
            f"{path.name} must answer as torch does within {TOLERANCE:g}; it differs by {worst:g}. Report it with the "
            "model's family"
        )
    return worst


def example_inputs(config: Any, names: Sequence[str], longest: int) -> list[dict[str, NDArray[Any]]]:
    """Return token arrays of every checked shape, with padding where there is more than one row."""
    rng = np.random.default_rng(0)
    found = []
    for rows, length in ((rows, min(length, longest)) for rows, length in SHAPES):
        mask = np.ones((rows, length), dtype=np.int64)
        if rows > 1:
            mask[1, length // 2 + 1 :] = 0
        arrays = {
            "input_ids": rng.integers(0, config.vocab_size, (rows, length)),
            "attention_mask": mask,
            "token_type_ids": rng.integers(0, max(getattr(config, "type_vocab_size", 1), 1), (rows, length)),
        }
        found.append({name: arrays[name] for name in names})
    return found


def example_images(config: Any) -> list[dict[str, NDArray[Any]]]:
    """Return pixels of every checked number of images."""
    rng = np.random.default_rng(0)
    counts = sorted({rows for rows, _ in SHAPES})
    return [{PIXELS[0]: rng.standard_normal((rows, *image_shape(config)), np.float32)} for rows in counts]


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
        "truncation_side": str(tokenizer.truncation_side),
    }
