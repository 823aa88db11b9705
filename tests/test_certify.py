"""Certificates and targets: the fit, the promise, and what is said where there is none."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import labelled_rows, tiny_budgeted, tiny_data, tiny_folder, tiny_tokenizer, write_csv
from typer.testing import CliRunner

import rheostat
from rheostat import measure
from rheostat.certify import (
    Certificate,
    Conditions,
    LatencyModel,
    Sample,
    Target,
    budget_for,
    certify,
    certifying,
    fit_latency,
    parse_target,
    read_certificates,
    targets,
)
from rheostat.certify.certificate import differences, read_certificate
from rheostat.certify.certifying import _that_pay
from rheostat.certify.conditions import RUNTIMES
from rheostat.certify.latency import relative_errors, step_of
from rheostat.certify.runtimes import subnet_call
from rheostat.cli.app import app
from rheostat.cli.training import certified_costs
from rheostat.cost import CostTable
from rheostat.errors import BudgetError, CheckpointError, OptionError
from rheostat.export import export
from rheostat.measure import BASELINE, FASTER, NO_SPEEDUP, LatencyTable, Measurement, environment
from rheostat.model import BudgetedModel
from rheostat.order import UnitOrder, arrange, balanced_onset
from rheostat.pipeline import train
from rheostat.recipe import TrainOptions
from rheostat.subnet import ModelShape, Subnet, cut_units

SIZES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 128}
SMALL = Conditions(batch=1, length=8)
KNOWN = LatencyModel(0.3, 0.05, 0.25, 0.05, 0.008)

# --- the latency model -------------------------------------------------------------------------------------


def samples_of(model: LatencyModel, count: int, seed: int = 0, error: float = 0.0) -> list[Sample]:
    rng = np.random.default_rng(seed)
    found = []
    for i in range(count):
        heads, neurons = tuple(rng.integers(0, 5, 3).tolist()), tuple((rng.integers(0, 17, 3) * 8).tolist())
        ms = model.predict(heads, neurons) * (1 + error * rng.standard_normal())
        found.append(Sample(heads, neurons, ms, held_out=i % 2 == 1))
    return found


@pytest.mark.parametrize("step", [1, 16, 32])
def test_the_fit_finds_what_the_times_were_made_of(step: int) -> None:
    truth = LatencyModel(0.8, 0.1, 0.05, 0.07, 0.002, step)
    found = fit_latency(samples_of(truth, 40), step)
    assert np.allclose(list(vars(found).values()), list(vars(truth).values()), rtol=1e-6)


@pytest.mark.parametrize("step", [1, 16, 32, 64])
def test_a_step_is_found_in_fine_widths_and_not_in_noise(step: int) -> None:
    rng = np.random.default_rng(0)
    widths = range(192, 328, 8)

    def found(noise: float) -> int:
        times = {n: (1.0 + 0.01 * -(-n // step) * step) * (1 + noise * rng.standard_normal()) for n in widths}
        return step_of(times)

    assert found(0.001) == step
    assert [found(0.05) for _ in range(20)].count(1) >= (15 if step == 1 else 0)
    assert step_of({}) == 1


def test_held_out_samples_are_not_fitted() -> None:
    truth = LatencyModel(0.8, 0.1, 0.05, 0.07, 0.002)
    spoilt = [replace(s, ms=100.0) if s.held_out else s for s in samples_of(truth, 40)]
    assert fit_latency(spoilt) == fit_latency(samples_of(truth, 40))
    with pytest.raises(OptionError, match="samples to fit must be at least 5"):
        fit_latency([replace(s, held_out=True) for s in spoilt])


def test_errors_are_those_of_the_samples() -> None:
    truth = LatencyModel(1.0, 0.1, 0.05, 0.07, 0.002)
    noisy = samples_of(truth, 60, error=0.02)
    found = fit_latency(noisy)
    assert 0.005 < np.median(relative_errors(found, noisy)) < 0.04
    assert min(list(vars(found).values())[:5]) >= 0


# --- the cost model `latency` ------------------------------------------------------------------------------

coefficients = st.floats(0.0, 5.0)


@given(st.tuples(coefficients, coefficients, coefficients, coefficients), st.sampled_from([1, 16, 48]), st.randoms())
def test_budgets_in_time_are_exact_nested_and_what_the_model_predicts(
    chosen: tuple[float, float, float, float], step: int, random: object
) -> None:
    shape = ModelShape.uniform(3, 4, 8, 100, 32)
    model = LatencyModel(0.5, chosen[0], chosen[1], chosen[2], chosen[3] / 100, step)
    costs = model.costs(shape, 64, {"batch": 1})
    units = cut_units(shape, neuron_block=16)
    onset = [random.random() for _ in units]  # type: ignore[attr-defined]
    order = arrange(shape, costs, units, onset).order
    budgets = np.linspace(max(order.floor, 1e-9), 1.0, 23)
    subnets = [order.subnet(b) for b in budgets]
    full = costs.total(Subnet.full(shape))
    for budget, subnet in zip(budgets, subnets, strict=True):
        assert costs.total(subnet) / full <= budget
        assert costs.total(subnet) == pytest.approx(
            1e6 * model.predict(subnet.head_counts, subnet.neuron_counts), abs=900
        )
        length = order.length(budget)
        if length < len(order.units):  # the next unit would be too much, or it costs nothing and is there
            assert costs.total(order.subnet_of_length(length + 1)) / full > budget
    assert all(large.contains(small) for small, large in pairwise(subnets))
    assert UnitOrder.from_json(json.loads(json.dumps(order.to_json()))) == order


def test_a_first_head_and_a_started_step_cost_more_than_the_next() -> None:
    costs = CostTable("latency", 8, (10, 10), (2, 2), 5, (7, 7), (3, 3), 16)
    shape = ModelShape.uniform(2, 2, 4, 32, 8)
    assert costs.total(Subnet.prefix(shape, [1, 0], [0, 0])) == 5 + 7 + 10
    assert costs.total(Subnet.prefix(shape, [2, 0], [1, 0])) == 5 + 7 + 20 + 3 + 32
    assert costs.total(Subnet.prefix(shape, [2, 0], [16, 0])) == costs.total(Subnet.prefix(shape, [2, 0], [1, 0]))
    assert CostTable.from_json(costs.to_json()) == costs


def test_a_model_is_put_under_a_budget_of_time_and_saved_with_it(tmp_path: Path) -> None:
    table = KNOWN.costs(ModelShape.uniform(3, 4, 8, 128, 32), 8, {"batch": 1, "runtime": "torch"})
    model = tiny_budgeted(sizes=SIZES, cost=table)
    assert model.costs == table and model.floor == pytest.approx(0.3 / KNOWN.predict((4,) * 3, (128,) * 3), rel=1e-5)
    model.save_pretrained(tmp_path / "x")
    loaded = rheostat.load(tmp_path / "x")
    assert loaded.costs == table and loaded.order == model.order
    with pytest.raises(OptionError, match="selection must be nested for latency"):
        tiny_budgeted(sizes=SIZES, cost=table, selection="top-k")
    with pytest.raises(OptionError, match="cost must be a table of 2 layers, as the model has; got 3"):
        tiny_budgeted(sizes={**SIZES, "num_hidden_layers": 2}, cost=table)
    with pytest.raises(OptionError, match="must come with a certificate"):
        tiny_budgeted(sizes=SIZES, cost="latency")


def test_importance_is_divided_by_what_a_unit_costs_in_the_mean() -> None:
    shape = ModelShape.uniform(2, 4, 8, 32, 32)
    units = cut_units(shape, neuron_block=8)
    flat, steep = CostTable("latency", 8, (8, 8), (1, 1), 0), CostTable("latency", 8, (4, 4), (1, 1), 0, (16, 16))
    importance = np.random.default_rng(0).random(len(units))
    assert (balanced_onset(units, importance, flat) == balanced_onset(units, importance, steep)).all()


# --- certificates ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def short_rounds() -> Iterator[None]:
    """What is timed does not matter here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "ROUND_MS", 3.0)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("certified") / "checkpoint"
    tiny_budgeted(sizes=SIZES, tokenizer=tiny_tokenizer(out.parent / "words")).save_pretrained(out)
    certify(out, conditions=(SMALL,), points=12, rounds=5, name="here")
    return out


def test_a_certificate_says_what_was_measured_and_reads_back(folder: Path) -> None:
    (found,) = read_certificates(folder)
    assert found.name == "here" and found.subject["kind"] == "checkpoint"
    assert differences(found, environment()) == []
    (fit,) = found.fits
    assert fit.conditions == SMALL and len(fit.samples) == 12
    assert sum(sample.held_out for sample in fit.samples) == 6
    assert fit.samples[0].heads == (4, 4, 4) and fit.samples[0].neurons == (128,) * 3 and not fit.samples[0].held_out
    assert fit.full_ms > 0 and fit.model is not None and fit.median_error is not None
    assert fit.tail["95"] >= fit.tail["90"] >= 1.0
    assert set(fit.widths) and fit.head_counts[-1] == 4
    residuals = json.loads((folder / "certificates" / "here.json").read_text("utf-8"))["fits"][0]["residuals_ms"]
    assert residuals == [s.ms - fit.model.predict(s.heads, s.neurons) for s in fit.samples]
    assert len({(s.heads, s.neurons) for s in fit.samples}) == 12
    assert all(s.low_ms <= s.ms * 1.5 and s.high_ms > 0 for s in fit.samples)


def test_a_damaged_or_newer_certificate_is_named(folder: Path, tmp_path: Path) -> None:
    record = json.loads((folder / "certificates" / "here.json").read_text("utf-8"))
    path = tmp_path / "x.json"
    path.write_text(json.dumps({**record, "certificate_version": 2}), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"certificate_version of x\.json must be 1 to 1; got 2"):
        read_certificate(path)
    fit = record["fits"][0]
    changes: list[dict[str, Any]] = [
        {"fits": [{}]}, {"fits": []}, {"environment": None}, {"environment": {"versions": None}},
        {"subject": {"kind": "checkpoint"}},
        {"fits": [{**fit, "median_error": "x"}]}, {"fits": [{**fit, "tail": {}}]},
        {"fits": [{**fit, "model": {**fit["model"], "head_ms": None}}]},
        {"fits": [{**fit, "samples": [{**fit["samples"][0], "ms": None}]}]},
        {"fits": [{**fit, "conditions": {**fit["conditions"], "runtime": "abacus"}}]},
    ]  # fmt: skip
    for content in ("{", "[]", *(json.dumps({**record, **change}) for change in changes)):
        path.write_text(content, encoding="utf-8")
        with pytest.raises(CheckpointError, match=r"x\.json must be a certificate"):
            read_certificate(path)


def test_wrong_requests_are_refused_before_anything_runs(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = read_certificates(folder)[0]
    own = replace(own, fits=(replace(own.fits[0], conditions=Conditions()),))
    wrong = (
        (Conditions(runtime="tflite"), {}, "runtime must be one of torch, onnx"),
        (Conditions(length=1000), {}, "length must be at most"),
        (replace(SMALL, batch=0), {}, "batch, length and threads must be at least 1"),
        (SMALL, {"points": 4}, "points must be at least 12"),
        (SMALL, {"name": "../x"}, "name must be that of a file"),
    )
    monkeypatch.setattr(certifying, "measure", None)
    for conditions, options, message in wrong:
        with pytest.raises(OptionError, match=message):
            certify(folder, conditions=(SMALL, conditions), save=False, **options)  # type: ignore[arg-type]
    tiny_budgeted(sizes=SIZES, selection="top-k").save_pretrained(tmp_path / "top-k")
    for refused in (lambda path: certify(path), lambda path: budget_for(path, "2x", certificate=own)):
        with pytest.raises(OptionError, match="selection must be nested"):
            refused(tmp_path / "top-k")


def test_a_width_pays_if_no_larger_one_is_as_fast() -> None:
    assert _that_pay({8: 1.0, 16: 1.0, 24: 1.4, 32: 1.41, 40: 2.0}, noise=0.04) == (16, 32, 40)
    assert _that_pay({}, noise=0.1) == ()


# --- targets -----------------------------------------------------------------------------------------------


def test_targets_are_read() -> None:
    assert parse_target("2x") == Target(speedup=2.0) and parse_target(" 1.5 X ") == Target(speedup=1.5)
    assert parse_target("8ms") == Target(ms=8.0) and parse_target("0.5s") == Target(ms=500.0)
    assert parse_target("250us") == Target(ms=0.25)


@pytest.mark.parametrize("text", ["2", "0x", "-3ms", "nanx", "infms", "8 minutes", "", "x", "2x3", "0.5x", "1e400ms"])
def test_targets_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"target must be .*; got "):
        parse_target(text)


def table_of(full_ms: float, asked_ms: float, tail: float = 1.2) -> LatencyTable:
    def row(name: str, ms: float) -> Measurement:
        speedup = full_ms / ms
        verdict = BASELINE if name == "full" else FASTER
        return Measurement(name, 9, (ms,) * 9, ms, ms, ms, ms, ms * tail, speedup, speedup, speedup, verdict)

    return LatencyTable("full", 9, 0, 1, 0.99, 1.01, (row("full", full_ms), row("asked", asked_ms)), {}, {})


@pytest.fixture
def fake(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], Certificate]:
    """A certificate, and a machine that is slower than it says, by a share that grows as models shrink."""

    def install(wrong: float) -> Certificate:
        order = rheostat_order(folder)

        def predict(subnet: Subnet) -> float:
            return KNOWN.predict(subnet.head_counts, subnet.neuron_counts)

        full_ms = predict(Subnet.full(order.shape))

        def afresh(path: Path, budget: float, conditions: Conditions) -> LatencyTable:
            ms = predict(order.subnet(budget))
            return table_of(full_ms, ms * (1 + wrong * (1 - ms / full_ms)))

        monkeypatch.setattr(targets, "_measured_afresh", afresh)
        own = read_certificates(folder)[0]
        full = Sample((4, 4, 4), (128,) * 3, full_ms)
        fit = replace(
            own.fits[0], samples=(full,), model=KNOWN, noise=0.01, median_error=0.02, tail={"90": 1.1, "95": 1.2}
        )
        return replace(own, name="known", fits=(fit,))

    return install


def rheostat_order(folder: Path) -> UnitOrder:
    return UnitOrder.from_json(json.loads((folder / "rheostat.json").read_text("utf-8"))["order"])


@pytest.mark.parametrize("wrong", [0.0, 0.3, -0.2])
@pytest.mark.parametrize("speedup", [1.1, 2.0, 3.5])
def test_a_promise_holds_and_is_nearly_the_largest(
    folder: Path, fake: Callable[[float], Certificate], wrong: float, speedup: float
) -> None:
    found = budget_for(folder, f"{speedup}x", conditions=SMALL, certificate=fake(wrong))
    order = rheostat_order(folder)
    held = [
        b
        for b in [order.floor, *order.cumulative_shares]
        if b >= order.floor and targets._measured_afresh(folder, b, SMALL)["asked"].speedup >= speedup
    ]
    assert found.speedup is not None and found.speedup[0] >= speedup
    assert found.budget >= 0.9 * max(held)


def test_a_latency_holds_for_the_percentile_that_was_asked_for(
    folder: Path, fake: Callable[[float], Certificate]
) -> None:
    known = fake(0.0)
    full_ms = known.fits[0].full_ms
    found = {
        p: budget_for(folder, f"{1.05 * full_ms}ms", conditions=SMALL, percentile=p, certificate=known)
        for p in (50, 95)
    }
    assert found[95].measured_ms is not None and found[95].measured_ms <= 1.05 * full_ms
    assert found[95].budget < found[50].budget == 1.0


def test_a_target_out_of_reach_is_refused_with_the_fastest(folder: Path, fake: Callable[[float], Certificate]) -> None:
    known = fake(0.0)
    with pytest.raises(
        BudgetError, match=r"target must be within reach; got 1000x, and the fastest is .* ms at budget"
    ):
        budget_for(folder, "1000x", conditions=SMALL, certificate=known)
    with pytest.raises(BudgetError, match="within reach"):
        budget_for(folder, "1us", conditions=SMALL, verify=False, certificate=known)


def test_what_the_noise_hides_is_no_promise(
    folder: Path, monkeypatch: pytest.MonkeyPatch, fake: Callable[[float], Certificate]
) -> None:
    known = fake(0.0)
    real = targets._measured_afresh

    def unsure(path: Path, budget: float, conditions: Conditions) -> LatencyTable:
        table = real(path, budget, conditions)
        rows = [
            replace(m, verdict=NO_SPEEDUP) if m.speedup < 1.3 and m.name == "asked" else m for m in table.measurements
        ]
        return replace(table, measurements=tuple(rows))

    monkeypatch.setattr(targets, "_measured_afresh", unsure)
    found = budget_for(folder, "1.1x", conditions=SMALL, certificate=known)
    assert found.speedup is not None and found.speedup[0] >= 1.3 and found.verdict == FASTER


def test_a_machine_that_never_holds_still_is_said_to_be_noisy(
    folder: Path, monkeypatch: pytest.MonkeyPatch, fake: Callable[[float], Certificate]
) -> None:
    known = fake(0.0)
    smallest = rheostat_order(folder).floor
    monkeypatch.setattr(
        targets, "_measured_afresh", lambda path, budget, asked: table_of(8.0, 1.0 if budget <= smallest else 4.1)
    )
    with pytest.raises(BudgetError, match="too noisy"):
        budget_for(folder, "2x", conditions=SMALL, certificate=known)


def test_a_certificate_of_another_machine_is_used_with_a_warning(
    folder: Path, fake: Callable[[float], Certificate]
) -> None:
    own = fake(0.0)
    versions = {**own.environment["versions"], "torch": "1.0"}
    other = replace(own, environment={**own.environment, "processor": "abacus", "versions": versions})
    with pytest.warns(UserWarning, match=r"measured elsewhere: processor 'abacus', now .*torch 1\.0, now"):
        budget_for(folder, "1.1x", conditions=SMALL, certificate=other)


def test_a_certificate_that_predicts_badly_is_used_with_a_warning(
    folder: Path, fake: Callable[[float], Certificate]
) -> None:
    own = fake(0.0)
    bad = replace(own, fits=tuple(replace(fit, median_error=0.6, noise=0.01) for fit in own.fits))
    assert not bad.fits[0].holds and bad.fits[0].limit == 0.05
    assert replace(bad.fits[0], noise=0.5).limit == 0.75
    with pytest.warns(UserWarning, match=r"predicts 60\.0 % wrong at the median, more than 5\.0 %"):
        budget_for(folder, "1.1x", conditions=SMALL, certificate=bad)


def test_the_real_measurement_runs_in_a_process_of_its_own(folder: Path) -> None:
    table = targets._measured_afresh(folder, 0.5, SMALL)
    assert [row.name for row in table.measurements] == ["full", "full (again)", "asked"]
    assert table.conditions["length"] == 8


def test_certify_as_a_command(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    words = ["--length", "8", "--points", "12", "--rounds", "5", "--name", "again", "--no-widths", "--batch", "1,2"]
    found = CliRunner().invoke(app, ["certify", str(copy), *words])
    assert found.exit_code == 0, found.output
    assert "batch 1, 8 tokens, 1 thread(s), torch: full" in found.stdout and "batch 2, 8 tokens" in found.stdout
    assert "median error on held-out subnets" in found.stdout and "that pay" not in found.stdout
    assert sorted(path.name for path in (copy / "certificates").iterdir()) == ["again.json", "here.json"]
    found = CliRunner().invoke(app, ["certify", str(copy), "--batch", "one"])
    assert found.exit_code == 2 and "batch must be whole numbers" in found.stderr


def test_a_target_in_the_place_of_a_budget(folder: Path, tmp_path: Path, fake: Callable[[float], Certificate]) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    (copy / "certificates" / "here.json").unlink()
    fake(0.0).save(copy)
    small = ["materialize", str(copy), str(tmp_path / "small"), "--target", "2x", "--length", "8"]
    found = CliRunner().invoke(app, small)
    assert found.exit_code == 0, found.output
    assert "holds 2x" in found.stderr and rheostat.load(tmp_path / "small").rheostat.budget < 0.6
    for more, message in (
        (["--target", "2 parsecs"], "target must be a number above 0 and a unit"),
        (["--target", "2x", "--budget", "0.5"], "exactly one of"),
        (["--budget", "0.5", "--length", "8", "--percentile", "95"], "--length, --percentile must come with --target"),
        (["--target", "2x", "--length", "8", "--percentile", "99"], "percentile must be 50, 90 or 95; got 99"),
        (["--target", "2x", "--runtime", "tflite"], "runtime must be one of"),
    ):
        found = CliRunner().invoke(app, ["materialize", str(copy), str(tmp_path / "other"), *more])
        assert found.exit_code == 2 and message in found.stderr
    assert not (tmp_path / "other").exists()


@pytest.fixture
def slow_ones(folder: Path, tmp_path: Path, fake: Callable[[float], Certificate]) -> Path:
    """A checkpoint with the known certificate, on which a command line can ask for a speed."""
    copy = Path(shutil.copytree(folder, tmp_path / "slow"))
    (copy / "certificates" / "here.json").unlink()
    fake(0.0).save(copy)
    return copy


def told_budget(stderr: str) -> float:
    return float(stderr.split("Budget ")[1].split(" holds ")[0])


def test_a_target_wherever_a_budget_is_accepted(slow_ones: Path, tmp_path: Path) -> None:
    data = write_csv(tmp_path / "rows.csv", labelled_rows(8))

    def run(*words: str) -> Any:
        found = CliRunner().invoke(app, [*words, "--target", "2x"])
        assert found.exit_code == 0, found.output
        return found

    at_length = ("--length", "8")
    predicted = run("predict", str(slow_ones), "a good one", *at_length, "--json")
    asked = told_budget(predicted.stderr)
    assert json.loads(predicted.stdout)[0]["budget"] == pytest.approx(asked, abs=1e-4) and asked < 0.6
    timed = run("measure", str(slow_ones), *at_length, "--batch", "1", "--rounds", "5", "--json")
    rows = [row["name"] for row in json.loads(timed.stdout)["measurements"]]
    assert len(rows) == 3 and float(rows[-1]) == pytest.approx(asked, abs=1e-4)
    scored = run("evaluate", str(slow_ones), "--data", str(data), *at_length, "--json")
    assert [p["budget"] for p in json.loads(scored.stdout)["points"]] == [pytest.approx(asked, abs=1e-4), 1.0]
    run("export", str(slow_ones), str(tmp_path / "bundle"), *at_length, "--budgets", "1.0", "--runtime", "torch")
    budgets = rheostat.open_bundle(tmp_path / "bundle").budgets
    assert budgets == (1.0, pytest.approx(asked, abs=1e-4))
    lone = CliRunner().invoke(app, ["measure", str(slow_ones), "--percentile", "95"])
    assert lone.exit_code == 2 and "--percentile must come with --target" in lone.stderr


def test_a_higher_percentile_takes_a_smaller_budget_on_the_command_line(slow_ones: Path) -> None:
    full_ms = read_certificates(slow_ones)[0].fits[0].full_ms
    words = ["predict", str(slow_ones), "a good one", "--target", f"{1.05 * full_ms}ms", "--length", "8"]
    found = [CliRunner().invoke(app, [*words, "--percentile", p]) for p in ("50", "95")]
    assert [run.exit_code for run in found] == [0, 0]
    assert told_budget(found[1].stderr) < told_budget(found[0].stderr)


@pytest.mark.parametrize(("option", "conditions"), [("--batch", {"batch": 2}), ("--threads", {"threads": 2})])
def test_the_budget_that_is_promised_is_of_the_conditions_that_were_asked_for(
    slow_ones: Path, monkeypatch: pytest.MonkeyPatch, option: str, conditions: dict[str, int]
) -> None:
    """Under the other conditions every removed unit saves half as much, so the same speed takes a smaller budget."""
    (known,) = read_certificates(slow_ones)
    model = known.fits[0].model
    assert model is not None
    order, other = rheostat_order(slow_ones), replace(SMALL, **conditions)
    half = replace(model, fixed_ms=model.fixed_ms + model.predict((4,) * 3, (128,) * 3))
    models = {SMALL: model, other: half}

    def predict(asked: Conditions, budget: float) -> float:
        subnet = order.subnet(budget)
        return models[asked].predict(subnet.head_counts, subnet.neuron_counts)

    full = replace(known.fits[0].samples[0], ms=predict(other, 1.0))
    fit = replace(known.fits[0], conditions=other, samples=(full,), model=half)
    replace(known, name="other", fits=(fit,)).save(slow_ones)
    monkeypatch.setattr(
        targets, "_measured_afresh", lambda path, b, asked: table_of(predict(asked, 1.0), predict(asked, b))
    )
    words = ["predict", str(slow_ones), "a good one", "--target", "1.3x", "--length", "8"]
    found = [CliRunner().invoke(app, [*words, *more]) for more in ([], [option, "2"])]
    assert [run.exit_code for run in found] == [0, 0], [run.output for run in found]
    assert told_budget(found[1].stderr) < 0.9 * told_budget(found[0].stderr)


def test_certify_takes_threads_and_points(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    words = ["--length", "8", "--rounds", "5", "--name", "two", "--no-widths", "--threads", "2", "--points", "14"]
    found = CliRunner().invoke(app, ["certify", str(copy), *words, "--json"])
    assert found.exit_code == 0, found.output
    (fit,) = json.loads(found.stdout)["fits"]
    assert fit["conditions"]["threads"] == 2 and len(fit["samples"]) == 14


def test_bundles_are_measured_as_they_are(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export(folder, tmp_path / "bundle", budgets=(1.0, 0.5, 0.25))
    found = certify(tmp_path / "bundle", conditions=(SMALL, replace(SMALL, runtime="onnx")), rounds=5)
    assert [fit.conditions.runtime for fit in found.fits] == ["onnx"]  # torch means the engine of the bundle
    assert len(found.fits[0].samples) == 3 and found.fits[0].model is None and found.fits[0].holds
    assert found.subject["budgets"] == [1.0, 0.5, 0.25]
    bundle = rheostat.open_bundle(tmp_path / "bundle")  # its hashes still fit
    latency = bundle.info.points[1].graphs["float32"].latency
    assert latency is not None and latency["ms"] == found.fits[0].samples[1].ms and latency["length"] == 8
    with pytest.raises(OptionError, match="runtime of this bundle must be onnx or onnx-int8; got 'openvino'"):
        certify(tmp_path / "bundle", conditions=(replace(SMALL, runtime="openvino"),))
    with pytest.raises(OptionError, match="precision must be one that the bundle holds"):
        certify(tmp_path / "bundle", conditions=(replace(SMALL, runtime="onnx-int8"),))
    monkeypatch.setattr(certifying, "measure", None)  # the certificate is found again
    asked = []

    def afresh(path: Path, budget: float, conditions: Conditions) -> LatencyTable:
        asked.append(budget)
        return table_of(8.0, {1.0: 8.0, 0.5: 4.5, 0.25: 2.0}[budget])

    monkeypatch.setattr(targets, "_measured_afresh", afresh)
    assert budget_for(tmp_path / "bundle", "2x", conditions=SMALL).budget == 0.25
    assert budget_for(tmp_path / "bundle", "1x", conditions=SMALL).budget == 1.0
    with pytest.raises(BudgetError, match=r"got 5x, and the fastest is 2 ms at budget 0\.25, 4x\. Ask for 3\.96x,"):
        budget_for(tmp_path / "bundle", "5x", conditions=SMALL)
    assert set(asked) == {1.0, 0.5, 0.25} or 0.25 in asked


def test_a_model_is_trained_under_a_budget_of_time(folder: Path, tmp_path: Path) -> None:
    (path,) = (folder / "certificates").iterdir()
    table = certified_costs("latency", path)
    fit = read_certificates(folder)[0].fits[0]
    assert fit.model is not None and table.fixed == round(1e6 * fit.model.fixed_ms)
    with pytest.raises(OptionError, match="goes with --cost latency"):
        certified_costs("macs", path)
    with pytest.raises(OptionError, match="cost must be measured on the model's sizes"):
        tiny_budgeted(sizes={**SIZES, "intermediate_size": 64}, cost=table)
    data, encoder = tiny_data(tmp_path / "data"), tiny_folder(tmp_path / "encoder", **SIZES)
    options = TrainOptions(warm_epochs=1, adapt_epochs=1, batch_size=16, neuron_block=8, cost=table, budgets=(1.0,))
    trained = train(str(encoder), str(data), tmp_path / "out", options, measure_latency=False)
    model: BudgetedModel = rheostat.load(trained.folder)
    assert model.costs == table
    assert "latency" in (tmp_path / "out" / "README.md").read_text("utf-8")


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_every_runtime_runs_any_subnet(tmp_path: Path, runtime: str) -> None:
    model: BudgetedModel = tiny_budgeted(sizes=SIZES)
    subnet = Subnet.prefix(model.shape, [4, 0, 1], [16, 128, 0])
    call = subnet_call(model, subnet, replace(SMALL, batch=2, runtime=runtime), tmp_path)
    answer = call()
    assert runtime == "torch" or np.shape(answer) == (2, 2)
    assert not list(tmp_path.glob("*.bin"))
