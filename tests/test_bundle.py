"""Bundles: one weights file for all budgets, answers as torch gives them, damage named, no torch to open one."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from random_models import make_model
from tiny import tiny_budgeted, tiny_data, tiny_tokenizer
from transformers import BertForTokenClassification
from typer.testing import CliRunner

import rheostat
from rheostat.bundle import Bundle, open_bundle
from rheostat.bundle.engines import fitted
from rheostat.checkpoint import BUNDLE_MANIFEST
from rheostat.cli.app import app
from rheostat.data import token_limit
from rheostat.errors import BudgetError, CheckpointError, OptionError, UnsupportedModelError
from rheostat.export import export, exporting, quantizing
from rheostat.export.exporting import example_inputs
from rheostat.export.int8 import METHODS, linear_layers
from rheostat.export.weights import SharedWeights, embedded_bytes
from rheostat.model import BudgetedModel

SIZES = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
    "max_position_embeddings": 64,
}  # fmt: skip
BUDGETS = (1.0, 0.5, 0.03)
TEXTS = ["awful word1", "great word2 word3 word4 unheard", "", "word1 " * 10_000, "middling"]


def labelled_by(model: BudgetedModel, folder: Path) -> Path:
    """The rows of tiny_data with the labels that the model gives: its accuracy is 1."""
    data = tiny_data(folder)
    lines = (data / "validation.csv").read_text("utf-8").splitlines()
    texts = [line.rpartition(",")[0] for line in lines[1:]]
    labels = [answer.label for answer in model.predict(texts)]
    rows = [f"{text},{label}" for text, label in zip(texts, labels, strict=True)]
    (data / "own.csv").write_text("\n".join([lines[0], *rows]) + "\n", encoding="utf-8")
    return data / "own.csv"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> BudgetedModel:
    """A model whose smallest budget has layers without heads or neurons."""
    words = tmp_path_factory.mktemp("words")
    return tiny_budgeted(tokenizer=tiny_tokenizer(words, max_length=64), sizes=SIZES)


@pytest.fixture(scope="module")
def rows(model: BudgetedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return labelled_by(model, tmp_path_factory.mktemp("rows"))


@pytest.fixture(scope="module")
def folder(model: BudgetedModel, rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bundle") / "onnx"
    export(model, out, budgets=BUDGETS, validate=str(rows), int8=True, force=True)
    return out


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


@pytest.fixture
def bundle(folder: Path) -> Bundle:
    return open_bundle(folder)


# --- answers -----------------------------------------------------------------------------------------------


def differences(model: BudgetedModel, bundle: Bundle) -> Iterator[float]:
    longest = token_limit(model.tokenizer, model.config)
    for inputs in example_inputs(model.config, bundle.info.inputs, longest):
        tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
        for budget in bundle.budgets:
            with torch.inference_mode():
                expected = model(**tensors, budget=budget).logits.numpy()
            yield float(np.abs(bundle.run(inputs, budget=budget) - expected).max())


def test_every_graph_answers_as_torch_at_every_shape(model: BudgetedModel, bundle: Bundle) -> None:
    assert 0 in model.subnet(0.03).head_counts and 0 in model.subnet(0.03).neuron_counts
    found = list(differences(model, bundle))
    shapes = [inputs["input_ids"].shape for inputs in example_inputs(model.config, bundle.info.inputs, 64)]
    assert shapes == [(1, 1), (1, 9), (2, 9), (3, 17), (4, 40)]
    assert len(found) == len(shapes) * len(BUDGETS)
    assert np.max(found) < 1e-5


def test_openvino_answers_as_torch_and_in_int8_nearly(model: BudgetedModel, rows: Path, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"budgets": (0.03,), "validate": str(rows), "int8": True, "force": True}
    info = export(model, tmp_path / "ov", format="openvino", **asked)
    assert info.engine == "openvino"
    opened = open_bundle(tmp_path / "ov")
    assert np.max(list(differences(model, opened))) < 1e-5
    expected = [answer.score for answer in model.predict(TEXTS, budget=0.03)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: [a.score for a in opened.predict(TEXTS, budget=0.03)], range(8)))
    assert all(scores == pytest.approx(expected, abs=1e-5) for scores in found)
    quantized = open_bundle(tmp_path / "ov", precision="int8")
    for point in info.points:
        graph = point.graphs["int8"]
        assert graph.method in ("static", "static, 7 bits") and graph.agreement is not None and graph.agreement > 0.8
        exact, rounded = (o.logits(TEXTS[:2], budget=point.budget) for o in (opened, quantized))
        assert 0.0 < np.abs(exact - rounded).max() < 2.0  # ten times as far as ONNX Runtime on the same graph
    with pytest.raises(OptionError, match="int8 needs --validate"):
        export(model, tmp_path / "ov8", format="openvino", budgets=(0.5,), int8=True, force=True)
    with pytest.raises(OptionError, match="memory must be fast with OpenVINO"):
        open_bundle(tmp_path / "ov", memory="shared")


def test_a_signal_is_survived_after_other_threads_let_go_of_openvino(tmp_path: Path) -> None:
    export(rheostat.wrap(make_model("bert"), sequence_length=8), tmp_path / "ov", format="openvino", budgets=(1.0,))
    code = (
        "import os, signal, sys, threading, numpy as np\n"
        "from rheostat.bundle import open_bundle\n"
        "held = [open_bundle(sys.argv[1])]\n"
        "def use():\n"
        "    bundle = held.pop()\n"
        "    bundle.run({'input_ids': np.ones((1, 4), dtype=np.int64)})\n"
        "thread = threading.Thread(target=use); thread.start(); thread.join()\n"
        "signal.signal(signal.SIGINT, lambda *_: print('survived'))\n"
        "os.kill(os.getpid(), signal.SIGINT)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "ov")], capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stdout.strip()) == (0, "survived"), found.stderr


def test_a_model_without_token_types_is_fed_none(tmp_path: Path) -> None:
    budgeted = rheostat.wrap(make_model("roberta", type_vocab_size=1), sequence_length=8, neuron_block=8)
    info = export(budgeted, tmp_path / "out", budgets=(0.5,))
    assert info.inputs == ("input_ids", "attention_mask")
    assert np.max(list(differences(budgeted, open_bundle(tmp_path / "out")))) < 1e-5
    with pytest.raises(OptionError, match="must hold a tokenizer"):
        open_bundle(tmp_path / "out").predict(["a"])


@pytest.mark.parametrize("memory", ["fast", "shared"])
@pytest.mark.parametrize("budget", BUDGETS)
def test_texts_get_the_labels_that_torch_gives(model: BudgetedModel, folder: Path, budget: float, memory: str) -> None:
    expected = model.predict(TEXTS, budget=budget)
    found = open_bundle(folder, memory=memory).predict(TEXTS, budget=budget)
    assert [answer.label for answer in found] == [answer.label for answer in expected]
    assert [answer.score for answer in found] == pytest.approx([answer.score for answer in expected], abs=1e-5)
    pair = [("awful", "great word1")]
    assert open_bundle(folder).predict(pair)[0].score == pytest.approx(model.predict(pair)[0].score, abs=1e-5)


def test_no_text_is_no_answer_and_what_is_no_text_is_refused(bundle: Bundle) -> None:
    assert bundle.predict([]) == []
    for wrong in ("awful", [1], [("a", "b", "c")]):
        with pytest.raises(OptionError, match="texts must be a list"):
            bundle.predict(wrong)  # type: ignore[arg-type]
    for size in (0, "4", 2.5, True):
        with pytest.raises(OptionError, match="batch_size"):
            bundle.predict(["a"], batch_size=size)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="valid Unicode"):
        bundle.predict(["\ud800"])


def test_many_threads_with_many_budgets_get_their_own_answers(bundle: Bundle) -> None:
    expected = {budget: [a.score for a in bundle.predict(TEXTS, budget=budget)] for budget in BUDGETS}
    asked = [BUDGETS[i % 3] for i in range(60)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda budget: [a.score for a in bundle.predict(TEXTS, budget=budget)], asked))
    assert all(scores == expected[budget] for budget, scores in zip(asked, found, strict=True))


def test_inputs_are_taken_by_name_cast_and_filled(bundle: Bundle) -> None:
    ids = np.array([[2, 7, 9, 3]], dtype=np.int32)
    plain = bundle.run({"input_ids": ids, "attention_mask": np.ones_like(ids)})
    zeros = np.zeros_like(ids)
    assert np.array_equal(plain, bundle.run({"token_type_ids": zeros, "input_ids": ids, "head_mask": zeros}))
    assert {array.dtype for array in fitted({"input_ids": ids}, bundle.info.inputs).values()} == {np.dtype("int64")}
    with pytest.raises(OptionError, match="must hold input_ids"):
        bundle.run({"attention_mask": ids})
    for wrong in ([7, 9], [[]], [[[7]]]):
        with pytest.raises(OptionError, match="one shape"):
            bundle.run({"input_ids": np.array(wrong)})
    with pytest.raises(OptionError, match="one shape"):
        bundle.run({"input_ids": ids, "attention_mask": np.ones((1, 3))})
    for outside in (np.full((1, 4), 10_000), np.full((1, 100), 7)):
        with pytest.raises(OptionError, match="must fit the model"):
            bundle.run({"input_ids": outside})
    with pytest.raises(BudgetError):
        bundle.run({"input_ids": ids}, budget=True)


# --- budgets -----------------------------------------------------------------------------------------------


def test_a_budget_between_points_is_answered_by_the_nearest_below_and_said_once(folder: Path) -> None:
    opened = open_bundle(folder)
    with pytest.warns(UserWarning, match=r"budget 0\.7 is not in the bundle; 0\.5"):
        found = opened.predict(["awful"], budget=0.7)
    assert found[0].budget == 0.5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened.predict(["awful"], budget=0.7)
    with pytest.raises(BudgetError, match=r"one of the bundle's 1, 0\.5, 0\.03; got 0\.7"):
        opened.predict(["awful"], budget=0.7, strict=True)
    with pytest.raises(BudgetError, match="or above the smallest"):
        opened.predict(["awful"], budget=0.02)
    for wrong in (0.0, 1.5, float("nan"), True):
        with pytest.raises(BudgetError, match="budget must be"):
            opened.predict(["awful"], budget=wrong)


def test_only_the_budgets_that_are_asked_for_are_opened(folder: Path) -> None:
    opened = open_bundle(folder, budgets=(0.5,))
    assert opened.budgets == (0.5,)
    with pytest.raises(BudgetError, match=r"one that was opened, 0\.5; got 0\.03"):
        opened.predict(["awful"], budget=0.03)
    with pytest.warns(UserWarning, match="nearest below"):
        assert opened.predict(["awful"])[0].budget == 0.5
    with pytest.raises(BudgetError, match=r"got 0\.3"):
        open_bundle(folder, budgets=(0.3,))


def test_the_cheapest_budget_within_a_drop_is_the_validated_one(folder: Path, bundle: Bundle) -> None:
    drops = {point.budget: point.graphs["float32"].quality["drop_points"] for point in bundle.info.points}  # type: ignore[index]
    assert drops[1.0] == 0.0 and drops[0.03] > 0.0
    assert bundle.within(100.0) == 0.03
    assert bundle.within(0.0) == min(budget for budget, drop in drops.items() if drop <= 0.0)
    assert bundle.predict(["awful"], max_drop=100.0)[0].budget == 0.03
    with pytest.raises(OptionError, match="must not both"):
        bundle.predict(["awful"], max_drop=1.0, budget=0.5)
    some = open_bundle(folder, budgets=(0.5, 0.03))  # the full model is not open, and yet the reference
    assert some.within(100.0) == 0.03
    if drops[0.5] > 0.0:
        with pytest.raises(OptionError, match="no open budget is within 0 points"):
            some.within(0.0)
    quantized = open_bundle(folder, precision="int8")
    record = bundle.info.points[1].graphs["int8"].quality
    assert record is not None
    assert quantized.within(100.0 * (1.0 - record["accuracy"]) + 0.01) <= 0.5


# --- files -------------------------------------------------------------------------------------------------


def places(path: Path) -> dict[str, tuple[str, int, int]]:
    """File, offset and length of every tensor that a graph holds elsewhere."""
    graph = onnx.load(path, load_external_data=False).graph
    found = {}
    for tensor in graph.initializer:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if entries:
            found[tensor.name] = (entries["location"], int(entries["offset"]), int(entries["length"]))
    return found


def test_smaller_graphs_point_at_prefixes_of_the_same_tensors(folder: Path) -> None:
    full, half = (places(folder / f"budget-{budget:g}.onnx") for budget in (1.0, 0.5))
    assert set(half) <= set(full)
    assert {name: place[:2] for name, place in half.items()} == {name: full[name][:2] for name in half}
    assert all(half[name][2] <= full[name][2] for name in half)
    assert (
        sum(half[name][2] < full[name][2] for name in half) >= 12
    )  # both matrices of q, k, v, o and two of each layer
    written = sum(length for _, _, length in full.values())
    assert written <= (folder / "weights.bin").stat().st_size <= written + 4096 * len(full)


def test_no_graph_holds_a_matrix(folder: Path) -> None:
    for path in folder.glob("*.onnx"):
        graph = onnx.load(path, load_external_data=False)
        inside = [tensor for tensor in graph.graph.initializer if not tensor.external_data]
        assert all(onnx.numpy_helper.to_array(tensor).nbytes <= 1024 for tensor in inside)
        if "0.03" not in path.name:  # of whose matrices some are that small
            assert sum(len(tensor.dims) > 1 for tensor in inside) <= 4  # two classes, two token types, positions
        # static int8 brings a scale and a zero a channel
        assert embedded_bytes(graph) < (32_000 if "int8" in path.name else 16_000)


def graph_of(**tensors: np.ndarray) -> onnx.ModelProto:
    """A graph with these tensors and nothing else."""
    stored = [onnx.numpy_helper.from_array(array, name) for name, array in tensors.items()]
    return onnx.helper.make_model(onnx.helper.make_graph([], "g", [], [], stored))


def test_a_tensor_that_is_no_prefix_is_an_error_and_not_a_copy(tmp_path: Path) -> None:
    full = np.arange(600, dtype=np.float32).reshape(60, 10)
    with SharedWeights(tmp_path / "w.bin") as weights:
        assert weights.add("a", full) == weights.add("a", full[:20]) == 0
        assert weights.add("b", full + 1) == 4096
        assert weights.add("c", full + 1) == 4096  # the same content under another name
        for other in (full[1:21], full.astype(np.float64), full[:, :5]):
            with pytest.raises(OptionError, match="must be prefixes of the largest; a is not"):
                weights.add("a", other)
        weights.share(graph_of(first=full))
        with pytest.raises(OptionError, match="second of 2,400 bytes is not one"):
            weights.share(graph_of(second=full + 7))


def test_axes_inputs_and_operators_are_named(bundle: Bundle, folder: Path) -> None:
    for point in bundle.info.points:
        graph = onnx.load(folder / point.graphs["float32"].file, load_external_data=False).graph
        axes = {i.name: [d.dim_param for d in i.type.tensor_type.shape.dim] for i in graph.input}
        assert axes == {name: ["batch", "sequence"] for name in bundle.info.inputs}
    full, _, smallest = bundle.info.points
    assert full.graphs["float32"].operators["MultiHeadAttention"] == 2
    assert smallest.graphs["float32"].operators.get("MultiHeadAttention", 0) < 2
    assert full.graphs["float32"].operators["SkipLayerNormalization"] == 4


def test_the_manifest_says_what_every_point_is(model: BudgetedModel, bundle: Bundle) -> None:
    assert bundle.info.info.labels == ("bad", "good")
    for point in bundle.info.points:
        subnet = model.subnet(point.budget)
        assert point.share == model.costs.share(subnet) <= point.budget
        assert point.kept == model.stored.kept(subnet).to_json()
        assert point.params == sum(p.numel() for p in model.materialize(point.budget).parameters())
        assert point.graphs["float32"].quality["rows"] == 24  # type: ignore[index]


@pytest.mark.parametrize("name", ["weights.bin", "budget-0.5.onnx", "tokenizer.json"])
def test_a_damaged_bundle_is_named(copy: Path, name: str) -> None:
    path = copy / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(CheckpointError, match=f"^{name} of .* must have {len(whole)} bytes"):
        open_bundle(copy)
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=f"^{name} of .* is damaged"):
        open_bundle(copy)
    open_bundle(copy, verify=False) if name == "weights.bin" else None  # sizes alone are right
    path.unlink()
    with pytest.raises(CheckpointError, match=f"^{name} of .* is missing"):
        open_bundle(copy)


def test_a_bundle_of_a_newer_version_or_without_its_manifest_is_refused(copy: Path) -> None:
    manifest = copy / BUNDLE_MANIFEST
    record = json.loads(manifest.read_text("utf-8"))
    manifest.write_text(json.dumps({**record, "bundle_version": 9}))
    with pytest.raises(CheckpointError, match=r"bundle_version .* must be 1 to 1; got 9"):
        open_bundle(copy)
    manifest.write_text(json.dumps({name: value for name, value in record.items() if name != "points"}))
    with pytest.raises(CheckpointError, match="must be complete; KeyError"):
        open_bundle(copy)
    outside = {**record["tokenizer"], "file": "../tokenizer.json"}
    unlisted = {name: entry for name, entry in record["files"].items() if name != "weights.bin"}
    for change, message in (
        ({"points": []}, "points, inputs and engine"),
        ({"inputs": ["pixels"]}, "points, inputs and engine"),
        ({"tokenizer": outside}, "must lie in the folder"),
        ({"tokenizer": {"file": "tokenizer.json"}}, "tokenizer lacks max_length"),
        ({"files": {**record["files"], "/etc/hosts": {"bytes": 1, "sha256": ""}}}, "must lie in the folder"),
        ({"files": {}}, "is not among the files"),
        ({"files": {name: {} for name in unlisted}}, "must be complete"),
    ):
        manifest.write_text(json.dumps({**record, **change}))
        with pytest.raises(CheckpointError, match=message):
            open_bundle(copy)
    manifest.write_text("{")
    with pytest.raises(CheckpointError, match="must be valid"):
        open_bundle(copy)
    manifest.unlink()
    with pytest.raises(CheckpointError, match=r"must hold bundle\.json"):
        open_bundle(copy)
    with pytest.raises(CheckpointError, match="does not exist"):
        open_bundle(copy / "none")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory": "big"}, "memory must be"),
        ({"threads": 0}, "threads must be"),
        ({"threads": 1.5}, "threads must be"),
        ({"precision": "int4"}, "precision must be"),
        ({"budgets": 0.5}, "budgets must be a list"),
        ({"budgets": ()}, "budgets must be a list"),
    ],
)
def test_wrong_options_are_refused(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        open_bundle(folder, **options)


def test_threads_and_memory_reach_the_runtime(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, seen = onnxruntime.InferenceSession, []

    def watched(path: str, options: Any, **kwargs: Any) -> Any:
        try:
            packed = options.get_session_config_entry("session.disable_prepacking") != "1"
        except RuntimeError:  # never set
            packed = True
        seen.append((options.intra_op_num_threads, packed))
        return real(path, options, **kwargs)

    monkeypatch.setattr(onnxruntime, "InferenceSession", watched)
    open_bundle(folder, budgets=(0.5,))
    open_bundle(folder, budgets=(0.5,), threads=2, memory="shared")
    assert seen == [(1, True), (2, False)]


def test_a_bundle_opens_and_answers_without_torch(folder: Path, bundle: Bundle) -> None:
    heavy = ["torch", "transformers", "datasets", "onnx", "safetensors", "huggingface_hub", "accelerate", "sklearn"]
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({heavy!r}))\n"
        "import rheostat; b = rheostat.open_bundle(sys.argv[1])\n"
        "print([a.score for a in b.predict(['awful word1', 'great'], budget=0.5)], b.within(100.0))"
    )
    found = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    scores = [answer.score for answer in bundle.predict(["awful word1", "great"], budget=0.5)]
    assert found.stdout.strip() == f"{scores} 0.03"


# --- writing -----------------------------------------------------------------------------------------------


def test_a_stopped_export_leaves_the_old_bundle_or_none(
    model: BudgetedModel, copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(exporting, "write_bundle_info", stop)
    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    for out in (copy, tmp_path / "new"):
        with pytest.raises(KeyboardInterrupt):
            export(model, out, budgets=(1.0,))
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")
def test_a_killed_export_leaves_the_old_bundle_or_none(model: BudgetedModel, copy: Path, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "checkpoint")
    code = (
        "import os, signal, sys\n"
        "from rheostat.export import export, exporting\n"
        "exporting.write_bundle_info = lambda *args: os.kill(os.getpid(), signal.SIGKILL)\n"
        "export(sys.argv[1], sys.argv[2], budgets=(1.0,))"
    )
    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    for out in (copy, tmp_path / "new"):
        command = [sys.executable, "-c", code, str(tmp_path / "checkpoint"), str(out)]
        found = subprocess.run(command, capture_output=True, check=False)
        assert found.returncode == -signal.SIGKILL, found.stderr
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before
    assert not (tmp_path / "new").exists()
    export(model, copy, budgets=(1.0,))  # what the kill left is in nobody's way
    assert open_bundle(copy).budgets == (1.0,)


@pytest.mark.slow
def test_twenty_budgets_take_hardly_more_disk_than_the_dense_model(tmp_path: Path) -> None:
    sizes = {"vocab_size": 30_000, "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8}
    large = tiny_budgeted(sizes={**sizes, "intermediate_size": 1024})
    with torch.no_grad():
        for parameter in large.base.parameters():
            parameter.mul_(0.1)  # or a model of this width rounds away what graphs are compared by
    total = {}
    for name, budgets in (("dense", (1.0,)), ("twenty", tuple(0.05 * i for i in range(1, 21)))):
        export(large, tmp_path / name, budgets=budgets)
        total[name] = sum(path.stat().st_size for path in (tmp_path / name).iterdir())
    assert len(open_bundle(tmp_path / "twenty").budgets) == 20
    assert total["twenty"] <= 1.05 * total["dense"]


def test_a_graph_that_answers_otherwise_is_not_written(
    model: BudgetedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = exporting.build_graph

    def wrong(*args: Any, **kwargs: Any) -> Any:
        graph = real(*args, **kwargs)
        bias = next(t for t in graph.graph.initializer if t.name.endswith("classifier.bias"))
        bias.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(bias) + 0.01, bias.name))
        return graph

    monkeypatch.setattr(exporting, "build_graph", wrong)
    with pytest.raises(CheckpointError, match=r"must answer as torch does within 0\.0001; it differs by 0\.00[1-9]"):
        export(model, tmp_path / "out", budgets=(1.0,))
    assert not (tmp_path / "out").exists()


def test_what_cannot_become_a_bundle_is_refused(model: BudgetedModel, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    for error, message, arguments in (
        (OptionError, "format must be", {"format": "tflite"}),
        (OptionError, "int8 needs --validate", {"int8": True}),
        (OptionError, "max_int8_drop must be", {"max_int8_drop": float("nan")}),
        (OptionError, "budgets must be a list", {"budgets": 0.5}),
        (OptionError, "model must be a budgeted checkpoint", {"model": make_model("bert")}),
        (BudgetError, "budget must be at least", {"budgets": (0.0001,)}),
        (CheckpointError, "output must be a new folder", {"out": tmp_path / "mine"}),
    ):
        with pytest.raises(error, match=message):
            export(**{"model": model, "out": tmp_path / "out", **arguments})  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="selection must be nested"):
        export(tiny_budgeted(selection="top-k"), tmp_path / "out")
    model.materialize(0.5).save_pretrained(tmp_path / "small")
    with pytest.raises(OptionError, match="Export the whole model, not one size"):
        export(tmp_path / "small", tmp_path / "out")
    model.save_pretrained(tmp_path / "checkpoint")
    with pytest.raises(CheckpointError, match="out must not be a checkpoint"):
        export(model, tmp_path / "checkpoint")
    assert isinstance(rheostat.load(tmp_path / "checkpoint"), BudgetedModel)
    tagger = rheostat.wrap(make_model("bert", cls=BertForTokenClassification), sequence_length=8)
    with pytest.raises(OptionError, match="one row of logits a text"):
        export(tagger, tmp_path / "out", budgets=(1.0,))
    assert not (tmp_path / "out").exists()


def test_a_model_that_torch_quantized_is_refused(tmp_path: Path) -> None:
    def quantize(module: torch.nn.Module) -> torch.nn.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found: torch.nn.Module = torch.ao.quantization.quantize_dynamic(module, {torch.nn.Linear})
        return found

    with pytest.raises(UnsupportedModelError, match="Linear"):
        rheostat.wrap(quantize(make_model("bert")))
    wrapped = rheostat.wrap(make_model("bert"), sequence_length=8)
    wrapped.base = quantize(wrapped.base)
    with pytest.raises(UnsupportedModelError, match="Linear"):
        export(wrapped, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_that_cuts_on_the_left_does_so_in_a_bundle(model: BudgetedModel, tmp_path: Path) -> None:
    left = rheostat.wrap(model.base, sequence_length=8, neuron_block=8, info=model.info)
    left.tokenizer = tiny_tokenizer(tmp_path / "words", max_length=64)
    left.tokenizer.truncation_side = "left"
    text = "great " + "word1 word2 " * 40 + "awful"
    export(left, tmp_path / "out", budgets=(1.0,))
    found, expected = open_bundle(tmp_path / "out").predict([text])[0], left.predict([text])[0]
    assert found.score == pytest.approx(expected.score, abs=1e-5)
    assert abs(found.score - model.predict([text])[0].score) > 1e-4


def test_a_graph_that_gives_no_number_is_not_written(tmp_path: Path) -> None:
    broken = rheostat.wrap(make_model("bert"), sequence_length=8)
    with torch.no_grad():
        broken.base.classifier.bias[0] = float("nan")  # type: ignore[index, union-attr]
    with pytest.raises(CheckpointError, match="it differs by nan"):
        export(broken, tmp_path / "out", budgets=(1.0,))


# --- int8 --------------------------------------------------------------------------------------------------


def test_every_linear_layer_is_int8_and_what_it_costs_is_known(folder: Path, bundle: Bundle) -> None:
    opened = open_bundle(folder, precision="int8")
    assert opened.budgets == BUDGETS
    for point in bundle.info.points:
        graph, float32 = point.graphs["int8"], point.graphs["float32"]
        assert graph.quantized == linear_layers(onnx.load(folder / float32.file, load_external_data=False))
        assert graph.method in {method.name for method in METHODS}
        assert graph.agreement is not None and graph.agreement > 0.8
        logits = opened.logits(TEXTS, budget=point.budget)
        assert 0.0 < np.abs(logits - bundle.logits(TEXTS, budget=point.budget)).max() < 0.5
    assert bundle.info.points[0].graphs["int8"].quantized == 14


def test_int8_graphs_share_what_stays_float(folder: Path) -> None:
    float32, int8 = places(folder / "budget-1.onnx"), places(folder / "budget-1-int8.onnx")
    kept = [name for name in int8 if name in float32]
    assert any("word_embeddings" in name for name in kept)
    assert all(int8[name] == float32[name] for name in kept)
    assert {place[0] for name, place in int8.items() if name not in kept} == {"weights-int8.bin"}


def test_int8_that_ruins_a_model_is_not_written_unless_forced(
    model: BudgetedModel, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = quantizing.quantized

    def ruined(*args: Any) -> Any:
        """The last layer's scales with the wrong sign."""
        graph, count = real(*args)
        scale = next(t for t in graph.graph.initializer if "classifier" in t.name and t.name.endswith("_scale"))
        scale.CopyFrom(onnx.numpy_helper.from_array(-onnx.numpy_helper.to_array(scale), scale.name))
        return graph, count

    monkeypatch.setattr(quantizing, "quantized", ruined)
    monkeypatch.setattr(quantizing, "methods_for", lambda engine: METHODS[:1])
    asked: dict[str, Any] = {"budgets": (1.0,), "validate": str(rows), "int8": True}
    with pytest.raises(OptionError, match=r"int8 must be at most 0\.5 points below float32; it is: dynamic \d+"):
        export(model, tmp_path / "out", **asked)
    assert not (tmp_path / "out").exists()
    allowances: list[dict[str, Any]] = [{"force": True}, {"max_int8_drop": 100.0}]
    for allowed in allowances:
        export(model, tmp_path / "out", **asked, **allowed)
        graph = open_bundle(tmp_path / "out", precision="int8").info.points[0].graphs["int8"]
        assert graph.agreement is not None and graph.agreement < 0.9


def test_methods_are_ranked_by_what_they_lose_then_by_speed_and_seven_bits_come_first() -> None:
    def order(*measured: tuple[float, float]) -> list[int]:
        trials = [quantizing.Trial(m, *pair) for m, pair in zip(METHODS, measured, strict=True)]
        return [METHODS.index(method) for method in quantizing.ranked(trials)]

    assert order((9.0, 1.0), (0.2, 3.0), (0.0, 4.0), (0.4, 2.0)) == [3, 1, 2, 0]
    assert order((0.0, 1.00), (0.0, 1.04), (0.0, 2.0), (0.0, 3.0))[:2] == [1, 0]  # about as fast: the careful one
    assert order((0.0, 1.00), (0.0, 1.50), (0.0, 2.0), (0.0, 3.0))[0] == 0


def test_without_onnx_the_error_says_what_to_install() -> None:
    code = (
        "import importlib.util, sys\n"
        "real = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name == 'onnx' else real(name, *a)\n"
        "from typer.testing import CliRunner; from rheostat.cli.app import app\n"
        "import rheostat.cli.options as o; o.load_budgeted = lambda folder: None\n"
        "found = CliRunner().invoke(app, ['export', 'x', 'y']); print(found.exit_code, found.stderr)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.stdout.startswith("2 Error: onnx is not installed"), found.stderr
    assert "rheostat[export]" in found.stdout


# --- the command -------------------------------------------------------------------------------------------


def test_the_command_writes_and_describes_a_bundle(model: BudgetedModel, rows: Path, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "checkpoint")
    command = [
        "export",
        str(tmp_path / "checkpoint"),
        str(tmp_path / "out"),
        "--budgets",
        "0.5",
        "--validate",
        str(rows),
    ]
    found = CliRunner().invoke(app, command)
    assert found.exit_code == 0, found.output
    assert "budget 1, share 1.0000" in found.stdout and "2 fused attentions" in found.stdout
    assert "budget 0.5, share 0." in found.stdout and "float32 accuracy" in found.stdout
    assert open_bundle(tmp_path / "out").budgets == (1.0, 0.5)
    as_json = CliRunner().invoke(app, ["export", command[1], str(tmp_path / "json"), "--budgets", "0.5", "--json"])
    assert json.loads(as_json.stdout) == open_bundle(tmp_path / "json").info.to_json()
    found = CliRunner().invoke(app, ["export", str(tmp_path / "out"), str(tmp_path / "again")])
    assert found.exit_code == 2
