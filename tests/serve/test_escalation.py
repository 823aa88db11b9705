"""Escalation: the promised loss holds, thresholds follow the rows, and the server runs unsure rows again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from servers import BUDGETS, serving
from tiny import labelled_rows, write_csv
from typer.testing import CliRunner

from rheostat.bundle import open_bundle
from rheostat.cli.app import app
from rheostat.errors import CheckpointError, OptionError
from rheostat.serve.calibrating import answers_of, shares_of
from rheostat.serve.escalation import (
    Escalation,
    between,
    calibrate,
    cascade,
    read_escalation,
    threshold_for,
    upper_bound,
)
from rheostat.serve.load import Rows

SHARES = {1.0: 1.0, 0.5: 0.5, 0.25: 0.25}


def made_up(rows: int, seed: int) -> tuple[dict[float, np.ndarray], np.ndarray]:
    """Two classes; smaller budgets see the truth through more noise, and their confidence is calibrated."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, rows)
    tables = {}
    for budget, noise in ((1.0, 0.6), (0.5, 0.8), (0.25, 1.0)):
        seen = (2 * labels - 1) + noise * rng.standard_normal(rows)
        p = 1 / (1 + np.exp(-2 * seen / noise**2))
        tables[budget] = np.stack([1 - p, p], axis=1)
    return tables, labels


def test_the_promised_loss_holds_on_rows_that_were_not_seen() -> None:
    tables, labels = made_up(200_000, 1)
    broken = 0
    for seed in range(60):
        found = calibrate(*made_up(1500, 100 + seed), SHARES, max_loss=0.02, confidence=0.9)
        answers, _ = cascade(found, tables, SHARES)
        lost = (tables[1.0].argmax(axis=1) == labels).mean() - (answers == labels).mean()
        broken += lost > 0.02
        assert found.harmed_bound <= 0.02 and 0.0 < found.escalated < 1.0
    assert broken <= 60 * 0.1  # 1 - confidence, and in truth far less: the bound counts harm alone


def test_more_loss_allowed_costs_less_and_more_confidence_costs_more() -> None:
    tables, labels = made_up(4000, 2)
    costs = [calibrate(tables, labels, SHARES, max_loss=loss).mean_share for loss in (0.01, 0.02, 0.05)]
    assert costs == sorted(costs, reverse=True) and costs[0] > costs[-1]
    surer = calibrate(tables, labels, SHARES, max_loss=0.02, confidence=0.9999)
    assert surer.mean_share > costs[1] and surer.threshold > 0.5
    answers, share = cascade(surer, tables, SHARES)
    assert share == pytest.approx(surer.mean_share) and (answers == labels).mean() == pytest.approx(surer.accuracy)


@given(st.integers(1, 300), st.data())
def test_the_bound_is_above_the_observed_share_and_falls_with_rows(rows: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, rows))
    bound = upper_bound(count, rows, 0.05)
    assert count / rows <= bound <= 1.0
    assert upper_bound(2 * count, 2 * rows, 0.05) <= bound + 1e-9
    assert upper_bound(count, rows, 0.01) >= bound


def test_thresholds_are_tried_from_the_safest_and_the_first_failure_ends_it() -> None:
    confidence = np.linspace(0.5, 1.0, 2000)
    harmed = np.zeros(2000, dtype=bool)
    harmed[1500:1600] = True  # below them all is well, and yet nothing below is kept
    found, bound = threshold_for(confidence, harmed, max_loss=0.01, delta=0.05)
    assert confidence[1560] < found < confidence[1610] and bound <= 0.01
    none, _ = threshold_for(confidence, np.ones(2000, dtype=bool), max_loss=0.001, delta=0.05)
    assert none > 1.0


def test_what_can_not_be_promised_is_said() -> None:
    tables, labels = made_up(50, 3)
    with pytest.raises(OptionError, match="max_loss must be promised by 50 rows"):
        calibrate(tables, labels, SHARES, max_loss=0.01)
    with pytest.raises(OptionError, match="must hold a smaller budget"):
        calibrate({1.0: tables[1.0]}, labels, SHARES, max_loss=0.1)
    for wrong in ({"max_loss": 0.0}, {"max_loss": 0.1, "confidence": 1.0}):
        with pytest.raises(OptionError, match="between 0 and 1"):
            calibrate(tables, labels, SHARES, **wrong)
    assert between([(0.25, 0.8), (1.0, 0.95), (0.5, 0.9)], 0.375) == pytest.approx(0.85)


def rule(threshold: float, first: float = 0.5) -> Escalation:
    return Escalation(first, 1.0, threshold, "float32", 0.01, 0.95, 100, 0.01, 0.0, 0.9, 0.5, 1.0)


def test_a_file_is_read_as_written_and_damage_is_named(tmp_path: Path) -> None:
    assert read_escalation(tmp_path) is None
    path = rule(0.8).save(tmp_path)
    assert read_escalation(tmp_path) == rule(0.8)
    record = json.loads(path.read_text())
    for change in ({"escalation_version": 9}, {"first": 1.0}, {"threshold": "high"}, {"more": 1}):
        path.write_text(json.dumps({**record, **change}))
        with pytest.raises(CheckpointError, match=r"escalation\.json of .* must be valid"):
            read_escalation(tmp_path)


def test_the_command_calibrates_a_bundle_and_the_server_escalates(
    bundle: Path, tmp_path: Path, serve_with: Callable[..., Any]
) -> None:
    copy = Path(shutil.copytree(bundle, tmp_path / "news"))
    opened = open_bundle(copy)
    texts = [text for text, _ in labelled_rows(400)]
    labels = [answer.label for answer in opened.predict(texts)]
    data = write_csv(tmp_path / "own.csv", [(t, str(label)) for t, label in zip(texts, labels, strict=True)])
    asked = ["escalation", str(copy), "--data", str(data), "--max-loss", "40", "--json"]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0, result.output
    found = read_escalation(copy)
    assert found is not None and json.loads(result.stdout)["threshold"] == found.threshold
    assert found.max_loss == 0.4 and found.rows == 400 and found.accuracy >= 0.6
    tables, ids = answers_of(opened, Rows(texts, [str(label) for label in labels]))
    expected, share = cascade(found, tables, shares_of(opened))
    assert found.accuracy == pytest.approx((expected == ids).mean()) and share == pytest.approx(found.mean_share)
    with serving(copy) as server:
        answer = server.predict(*texts[:60], escalate=True)
        rows = answer["predictions"]
        names = opened.info.info.labels
        assert [row["label"] for row in rows] == [names[i] for i in expected[:60]]
        for row, first in zip(rows, tables[found.first][:60], strict=True):
            assert row["escalated"] == (first.max() < found.threshold)
            assert row["budget_served"] == (1.0 if row["escalated"] else found.first)
        assert 0 < sum(row["escalated"] for row in rows) < 60
        assert server.post(texts=["a"], escalate=True, budget=0.5).status_code == 422
        assert server.post(texts=["a"], escalate=True, exact=True).status_code == 422
        assert server.status()["escalation"]["first"] == found.first
    with serving(copy, "--min-budget", "0.9") as server:  # the small budget is not there
        assert server.post(texts=["a"], escalate=True).status_code == 422
    assert found.first in BUDGETS


def test_the_command_says_what_it_needs(bundle: Path, tmp_path: Path) -> None:
    wrong = write_csv(tmp_path / "wrong.csv", [("word1", "ugly"), ("word2", "good")] * 10)
    result = CliRunner().invoke(app, ["escalation", str(bundle), "--data", str(wrong)])
    assert result.exit_code == 2 and "labels must be those of the model, bad, good; got 'ugly'" in result.output
