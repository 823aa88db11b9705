"""Temperatures: they are the best ones, they change confidence and no label, and they are saved with the checkpoint."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import tiny_budgeted, tiny_data, tiny_folder, tiny_tokenizer

import rheostat
from rheostat import pipeline
from rheostat.calibration import (
    HIGHEST,
    LOWEST,
    expected_calibration_error,
    fit_temperature,
    fit_temperatures,
    probabilities,
)
from rheostat.checkpoint import CheckpointInfo
from rheostat.errors import OptionError
from rheostat.predictions import interpret
from rheostat.recipe import TrainOptions

TASKS = ("single-label", "multi-label")


def drawn(task: str, temperature: float, rows: int = 20_000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Logits (N, 3), and labels that come true with the probabilities of ``logits / temperature``."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=3.0, size=(rows, 3))
    chances = probabilities(logits / temperature, task)
    if task == "multi-label":
        return logits, (rng.random(chances.shape) < chances).astype(int)
    return logits, (rng.random((rows, 1)) > chances.cumsum(axis=1)).sum(axis=1)


def loss(logits: np.ndarray, labels: np.ndarray, task: str, temperature: float) -> float:
    values, wanted = torch.from_numpy(logits / temperature), torch.from_numpy(labels)
    if task == "multi-label":
        return float(torch.nn.functional.binary_cross_entropy_with_logits(values, wanted.double()))
    return float(torch.nn.functional.cross_entropy(values, wanted))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5])
def test_the_temperature_that_rows_were_drawn_with_is_found(task: str, temperature: float) -> None:
    logits, labels = drawn(task, temperature)
    found = fit_temperature(logits, labels, task)
    assert found == pytest.approx(temperature, rel=0.05)
    for other in (found * 0.98, found * 1.02):
        assert loss(logits, labels, task, found) < loss(logits, labels, task, other)
    before, after = (expected_calibration_error(logits, labels, task, temperature=t) for t in (1.0, found))
    assert after < 0.02
    assert after < before or temperature == 1.0


@pytest.mark.parametrize("task", TASKS)
def test_rows_that_are_all_right_or_all_wrong_leave_it_within_bounds(task: str) -> None:
    labels = np.eye(3, dtype=int) if task == "multi-label" else np.arange(3)
    logits = 4.0 * np.eye(3) - 2.0
    assert fit_temperature(logits, labels, task) == pytest.approx(LOWEST, rel=1e-3)
    assert fit_temperature(-logits, labels, task) == pytest.approx(HIGHEST, rel=1e-3)


def test_huge_logits_do_not_overflow() -> None:
    logits, labels = drawn("single-label", 2.0, rows=500)
    for task, wanted in (("single-label", labels), ("multi-label", np.eye(3, dtype=int)[labels])):
        with np.errstate(over="raise", invalid="raise"):
            assert LOWEST <= fit_temperature(logits * 1e6, wanted, task) <= HIGHEST * 1.001


def test_the_error_is_that_of_its_definition() -> None:
    logits, labels = drawn("single-label", 2.0, rows=3000)
    table = torch.softmax(torch.from_numpy(logits), 1).numpy()
    confidence, correct = table.max(1), table.argmax(1) == labels
    expected = 0.0
    for low in range(15):
        inside = (confidence > low / 15) & (confidence <= (low + 1) / 15)
        if inside.any():
            expected += inside.mean() * abs(correct[inside].mean() - confidence[inside].mean())
    assert expected_calibration_error(logits, labels, "single-label") == pytest.approx(expected, abs=1e-12)


def test_a_sure_and_always_wrong_model_has_an_error_of_one() -> None:
    logits = np.array([[50.0, 0.0], [0.0, 50.0]])
    assert expected_calibration_error(logits, [1, 0], "single-label") == pytest.approx(1.0)
    assert expected_calibration_error(logits, [0, 1], "single-label") == pytest.approx(0.0, abs=1e-9)
    assert expected_calibration_error(logits - 25, [[1, 0], [0, 1]], "multi-label") == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("logits", "labels", "task"),
    [
        (np.ones((2, 2)), [0, 1], "regression"),
        (np.ones((2, 2)), [0], "single-label"),
        (np.ones((2, 2)), [0, 1], "multi-label"),
        (np.ones((0, 2)), [], "single-label"),
        (np.ones(2), [0, 1], "single-label"),
    ],
)
def test_what_does_not_fit_is_refused(logits: Any, labels: Any, task: str) -> None:
    for call in (fit_temperature, expected_calibration_error):
        with pytest.raises(OptionError):
            call(logits, labels, task)


# --- saved and used ----------------------------------------------------------------------------------------


def test_between_fitted_budgets_the_logarithm_is_on_a_line() -> None:
    logits, labels = drawn("single-label", 2.0, rows=500)
    fitted = fit_temperatures({1.0: logits, 0.5: 2.0 * logits, 0.25: logits}, labels, "single-label")
    assert [budget for budget, _ in fitted] == [0.25, 0.5, 1.0]
    info = CheckpointInfo(temperatures=fitted)
    for budget, temperature in fitted:
        assert info.temperature_at(budget) == pytest.approx(temperature, rel=1e-12)
    middle = info.temperature_at(0.75)
    assert middle == pytest.approx((fitted[1][1] * fitted[2][1]) ** 0.5, rel=1e-12)
    assert info.temperature_at(0.1) == fitted[0][1]
    assert CheckpointInfo().temperature_at(0.3) == 1.0
    assert CheckpointInfo.from_json(info.to_json()) == info


def test_a_checkpoint_from_before_temperatures_still_loads() -> None:
    record = CheckpointInfo("single-label", ("a", "b")).to_json()
    del record["temperatures"]
    assert CheckpointInfo.from_json(record).temperatures == ()


@pytest.mark.parametrize("task", TASKS)
def test_a_temperature_changes_confidence_and_no_label(task: str) -> None:
    logits = torch.tensor([[2.0, -1.0, 0.5], [-3.0, 1.0, 0.1]])
    names = ("a", "b", "c")
    plain = interpret(logits, CheckpointInfo(task, names), 0.5)
    warm = interpret(logits, CheckpointInfo(task, names, temperatures=((0.5, 3.0),)), 0.5)
    assert [p.label for p in plain] == [p.label for p in warm]
    assert all(a.score > b.score for a, b in zip(plain, warm, strict=True))
    expected = probabilities(logits.double().numpy() / 3.0, task)
    assert np.allclose([list(p.probabilities.values()) for p in warm], expected, atol=1e-6)


def test_a_regression_is_not_divided() -> None:
    info = CheckpointInfo("regression", temperatures=((1.0, 3.0),))
    assert interpret(torch.tensor([[2.5]]), info, 1.0)[0].score == 2.5


def test_a_budget_and_its_materialized_model_are_equally_sure(tmp_path: Path) -> None:
    model = tiny_budgeted(tokenizer=tiny_tokenizer(tmp_path / "words"))
    texts = ["awful word1 word2", "great"]
    before = model.predict(texts, budget=0.5)
    model.info = CheckpointInfo("single-label", ("bad", "good"), 32, temperatures=((0.4, 2.0), (0.6, 4.0)))
    after = model.predict(texts, budget=0.5)
    assert all(abs(a.score - 0.5) < abs(b.score - 0.5) for a, b in zip(after, before, strict=True))
    model.materialize(0.5).save_pretrained(tmp_path / "small")
    small = rheostat.load(tmp_path / "small").predict(texts)
    assert [p.score for p in small] == pytest.approx([p.score for p in after], abs=1e-6)


def test_training_fits_saves_and_reports_them(tmp_path: Path) -> None:
    options = TrainOptions(
        warm_epochs=2, soft_epochs=0, adapt_epochs=1, batch_size=16, neuron_block=8, budgets=(1.0, 0.5, 0.3)
    )
    data = tiny_data(tmp_path / "data")
    folder = str(tiny_folder(tmp_path / "model"))
    result = pipeline.train(folder, str(data), tmp_path / "out", options, measure_latency=False)
    info = rheostat.load(result.folder).info
    assert [budget for budget, _ in info.temperatures] == [0.3, 0.5, 1.0]
    assert any(abs(temperature - 1.0) > 0.01 for _, temperature in info.temperatures)
    for record in info.evaluation:
        assert 0.0 <= record["calibration_error"] <= 1.0
        assert record["calibration_error"] != record["calibration_error_raw"]
