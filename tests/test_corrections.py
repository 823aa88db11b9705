"""Corrections: between their points, in views that are kept, through a new order, in a bundle; `rheostat order`."""

from pathlib import Path

import pytest
import torch
from random_models import make_model
from tiny import labelled_rows, tiny_data, tiny_folder, write_csv
from typer.testing import CliRunner

import rheostat
from rheostat import pipeline
from rheostat.cli.app import app
from rheostat.corrections import Corrections
from rheostat.errors import CheckpointError, OptionError
from rheostat.export import export
from rheostat.forms import correction_sizes
from rheostat.importance import Importance
from rheostat.recipe import TrainOptions
from rheostat.testing import token_batch


def filled(shares: tuple[float, ...], *values: float) -> Corrections:
    made = Corrections(shares, (1, 2, 2))
    for point, value in zip(made.points, values, strict=True):
        point.data.fill_(value)
    return made


@pytest.mark.parametrize(
    ("share", "value"),
    [(0.05, 4.0), (0.2, 4.0), (0.35, 3.0), (0.5, 2.0), (0.75, 1.0), (0.9, 0.4), (1.0, None)],
)
def test_between_points_they_lie_on_a_line_that_ends_at_nothing(share: float, value: float | None) -> None:
    found = filled((0.2, 0.5), 4.0, 2.0).at(share)
    assert (found is None) == (value is None)
    if found is not None:
        torch.testing.assert_close(found, torch.full((1, 2, 2), value))


@pytest.mark.parametrize("shares", [(), (0.0,), (0.5, 0.2), (0.5, 0.5), (0.5, 1.0), (float("nan"),)])
def test_shares_must_rise_between_0_and_1(shares: tuple[float, ...]) -> None:
    with pytest.raises(OptionError, match="must rise between 0 and 1"):
        Corrections(shares, (1, 2, 2))


def test_those_of_another_model_are_refused() -> None:
    with pytest.raises(CheckpointError, match="must be of shape"):
        Corrections.from_tensors(filled((0.2,), 1.0).to_tensors(), (2, 2, 2))


def corrected_model() -> rheostat.BudgetedModel:
    model = rheostat.wrap(make_model("bert"), neuron_block=8, sequence_length=9).eval()
    model.corrections = Corrections((0.4,), correction_sizes(model.base, model.spec))
    torch.nn.init.normal_(model.corrections.points[0], std=0.5)
    return model


@torch.no_grad()
def test_a_kept_view_follows_corrections_and_biases_that_change_in_place() -> None:
    model, inputs = corrected_model(), token_batch()
    before = model(**inputs, budget=0.4).logits
    assert torch.equal(before, model(**inputs, budget=0.4).logits)
    assert model.corrections is not None
    model.corrections.points[0].mul_(2.0)
    after = model(**inputs, budget=0.4).logits
    assert (before - after).abs().max() > 1e-4
    model.spec.layer_list(model.base)[0].output.LayerNorm.bias[:4].add_(1.0)
    assert (after - model(**inputs, budget=0.4).logits).abs().max() > 1e-4
    for budget in (1.0, 0.7, 0.4):
        gap = model(**inputs, budget=budget).logits - model(**inputs, budget=budget, form="gated").logits
        assert gap.abs().max() < 1e-5


def test_a_new_order_drops_them() -> None:
    model = corrected_model()
    sizes = [(layer.num_attention_heads, layer.intermediate_size) for layer in model.shape.layers]
    heads, neurons = zip(
        *((torch.rand(h).double().numpy(), torch.rand(n).double().numpy()) for h, n in sizes), strict=True
    )
    model.order_by_importance(Importance(heads, neurons))
    assert model.corrections is None


def test_they_move_with_the_model() -> None:
    model, inputs = corrected_model(), token_batch()
    with torch.no_grad():
        single = model(**inputs, budget=0.4).logits
        double = model.double()(**inputs, budget=0.4).logits
    assert double.dtype == torch.float64
    assert (single - double).abs().max() < 1e-5


@pytest.mark.parametrize("engine", ["onnx", pytest.param("openvino", marks=pytest.mark.slow)])
def test_a_bundle_holds_them_beside_one_set_of_matrices(engine: str, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    model = rheostat.wrap(make_model("bert", hidden_size=264, intermediate_size=40), neuron_block=8, sequence_length=9)
    model.eval()
    plain, corrected = tmp_path / "plain", tmp_path / "corrected"
    export(model, plain, format=engine, budgets=(0.6, 0.4))
    sizes = correction_sizes(model.base, model.spec)
    model.corrections = Corrections((0.4,), sizes)
    for point in model.corrections.points:
        torch.nn.init.normal_(point)
    export(model, corrected, format=engine, budgets=(0.6, 0.4))  # compares every graph with torch
    written = [(folder / "weights.bin").stat().st_size for folder in (plain, corrected)]
    vectors = 2 * sizes[0] * sizes[1]  # of two points, a page each at most
    assert 0 < written[1] - written[0] <= vectors * 4096


def test_order_gives_a_checkpoint_of_the_same_weights_in_one_command(tmp_path: Path) -> None:
    data = tiny_data(tmp_path / "data")
    tuned = pipeline.train(
        str(tiny_folder(tmp_path / "base")),
        str(data),
        tmp_path / "tuned",
        TrainOptions(warm_epochs=2, learning_rate=1e-3, adapt="none", neuron_block=8),
        measure_latency=False,
    )
    out = tmp_path / "ordered"
    given = ["order", str(tuned.folder), "--data", str(data), "--out", str(out), "--neuron-block", "8"]
    more = ["--budgets", "1.0,0.6,0.4", "--rows", "24", "--validation-rows", "10", "--no-measure", "--json"]
    result = CliRunner().invoke(app, [*given, *more])
    assert result.exit_code == 0, result.output
    model, before = rheostat.load(out), rheostat.load(tuned.folder)
    assert model.corrections is not None
    assert {record["rows"] for record in model.info.evaluation} == {10}
    texts = [row[0] for row in labelled_rows(8, seed=3)]
    for one, other in zip(model.predict(texts), before.predict(texts), strict=True):
        assert one.label == other.label
    without = CliRunner().invoke(app, [*given, *more, "--no-corrections"])
    assert without.exit_code == 0, without.output
    assert rheostat.load(out).corrections is None


def test_order_needs_the_labels_of_the_fine_tuned_model(tmp_path: Path) -> None:
    data = write_csv(tmp_path / "train.csv", labelled_rows(40, seed=1))
    folder = tiny_folder(tmp_path / "base", ("no", "yes"))
    result = CliRunner().invoke(app, ["order", str(folder), "--data", str(data), "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert "labels must be those of the fine-tuned model" in " ".join(result.output.split())
