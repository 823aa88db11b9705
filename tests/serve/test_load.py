"""The load generator: open loop, misses counted, and a capacity that is found where it is."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from servers import Server
from tiny import labelled_rows, write_csv
from typer.testing import CliRunner

from rheostat.bundle import open_bundle
from rheostat.cli.app import app
from rheostat.errors import OptionError
from rheostat.serve.capacity import find_capacity, offer_load
from rheostat.serve.load import LoadReport, Rows, Seen, arrival_times, report_of


def test_arrivals_have_the_rate_that_was_asked_and_bursts_are_bursts() -> None:
    for pattern in ("poisson", "bursts"):
        times = arrival_times(200.0, 50.0, pattern, 0)
        assert len(times) / 50.0 == pytest.approx(200.0, rel=0.05)
        assert (np.diff(times) >= 0).all() and times[0] >= 0.0 and times[-1] <= 50.0
        assert (times == arrival_times(200.0, 50.0, pattern, 0)).all()
    poisson, bursts = (np.histogram(arrival_times(200.0, 50.0, p, 0), 100)[0] for p in ("poisson", "bursts"))
    assert bursts.max() > 1.8 * poisson.max() and bursts.min() < poisson.min()
    for wrong in ((0.0, 1.0, "poisson"), (1.0, float("inf"), "poisson"), (1.0, 1.0, "closed")):
        with pytest.raises(OptionError, match=r"rate and seconds|pattern must be"):
            arrival_times(*wrong, 0)


def test_refusals_and_failures_are_misses() -> None:
    rows = Rows(["a", "b"], ["x", "y"])
    seen = [
        Seen(0.0, 0.0, 10.0, 200, 0, "x", 1.0), Seen(0.1, 0.0, 60.0, 200, 1, "x", 0.5), Seen(0.2, 0.0, 3.0, 429, 0),
        Seen(0.3, 0.0, 3.0, 503, 0), Seen(0.4, 2.0, 30_000.0, 0, 1),
    ]  # fmt: skip
    found = report_of(seen, rows, rate=10, seconds=0.5, slo_ms=50, pattern="poisson", used=0.1)
    assert (found.sent, found.answered, found.refused, found.failed) == (5, 2, 2, 1)
    assert found.in_slo == 0.2 and found.accepted_in_slo == 0.5 and found.accuracy == 0.5
    assert found.budgets == {"1": 1, "0.5": 1} and found.mean_budget == 0.75
    empty = report_of([], rows, rate=10, seconds=0.5, slo_ms=50, pattern="poisson", used=0.1)
    assert empty.in_slo == 0.0 and empty.latency_ms is None and empty.accuracy is None


@given(st.floats(2, 5000), st.floats(1, 500))
def test_capacity_is_found_where_it_is(true: float, first: float) -> None:
    def offer(rate: float) -> LoadReport:
        seen = [Seen(0.0, 0.0, 1.0 if rate <= true else 99.0, 200, 0, "x", 1.0)]
        return report_of(seen, Rows(["a"], ["x"]), rate=rate, seconds=1, slo_ms=50, pattern="poisson", used=0.0)

    found = find_capacity(offer, first)
    assert found.rate <= true and found.rate >= true / 2.1
    if first <= true:
        assert found.rate >= true / 1.05


def test_load_from_another_process_measures_latency_accuracy_and_itself(server: Server, bundle: Path) -> None:
    texts = [text for text, _ in labelled_rows(20)]
    labels = [str(answer.label) for answer in open_bundle(bundle).predict(texts)]
    rows = Rows(texts, [*labels[:-1], "neither"])
    found, seen = offer_load(server.url, rows, rate=40, seconds=2, slo_ms=5000, wishes={"budget": 1.0, "exact": True})
    assert found.sent == found.answered == len(seen) > 40 and found.in_slo == 1.0
    assert found.latency_ms is not None and 0.0 < found.latency_ms["p50"] <= found.latency_ms["p99"]
    assert found.accuracy == pytest.approx(np.mean([one.row != 19 for one in seen]))
    assert 0.0 < found.generator_share < 1.0 and found.budgets == {"1": found.sent}
    gone, _ = offer_load("http://127.0.0.1:9", rows, rate=20, seconds=0.5, slo_ms=50)
    assert gone.failed == gone.sent > 0 and gone.in_slo == 0.0
    with pytest.raises(OptionError, match="the load generator must run"):
        offer_load(server.url, rows, rate=0, seconds=1, slo_ms=50)


def test_the_command_prints_what_it_saw(server: Server, tmp_path: Path) -> None:
    data = write_csv(tmp_path / "rows.csv", labelled_rows(30))
    asked = ["bench-serve", server.url, "--data", str(data), "--rate", "20", "--seconds", "1", "--slo-ms", "5000"]
    result = CliRunner().invoke(app, [*asked, "--budget", "0.5"])
    assert result.exit_code == 0, result.output
    for part in ("20.0 requests/s (poisson)", "answered within 5000 ms", "0 refused", "accuracy", "mean budget 0.500"):
        assert part in result.stdout
    found = json.loads(CliRunner().invoke(app, [*asked, "--pattern", "bursts", "--json"]).stdout)
    assert found["pattern"] == "bursts" and found["answered"] == found["sent"]
