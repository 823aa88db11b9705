"""The report: what it says, that it needs nothing else, and that it moves in a real browser."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny import tiny_budgeted
from typer.testing import CliRunner

import rheostat
from rheostat.certify import Certificate, Conditions, Fit, LatencyModel, Sample
from rheostat.cli.app import app
from rheostat.errors import CheckpointError, OptionError
from rheostat.measure import environment
from rheostat.page import Content, read_content, write_page, write_picture
from rheostat.quality import quality_at

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
LABELS = ("good </script><!-- <b>", "bad & worse")
LATENCY = LatencyModel(0.3, 0.05, 0.25, 0.05, 0.008)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An evaluated and certified checkpoint."""
    model = tiny_budgeted(labels=LABELS, sizes=SIZES)
    labels = [0, 1] * 20
    answers = {1.0: labels, 0.5: [0] * 4 + labels[4:], 0.25: [0] * 40}
    evaluation = tuple(
        quality_at(b, found, labels, full_predictions=labels, label_set=[0, 1]).to_json()
        for b, found in answers.items()
    )
    model.info = replace(model.info, evaluation=evaluation)
    out = tmp_path_factory.mktemp("page") / "my-model"
    model.save_pretrained(out)
    full, half = model.subnet(1.0), model.subnet(0.5)
    samples = tuple(
        Sample(s.head_counts, s.neuron_counts, ms, False, ms * 0.98, ms * 1.02) for s, ms in ((full, 3.4), (half, 1.8))
    )
    fit = Fit(Conditions(1, 8), samples, LATENCY, 0.01, 0.02, {"90": 1.05, "95": 1.1}, (16, 32), (1, 2))
    Certificate("here", {"shape": model.shape.to_json()}, environment(), (fit,)).save(out)
    return out


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compared")
    lines = [
        {
            "method": method, "budget": budget, "share": share, "mean": mean, "below_dense": 91.0 - mean,
            "below_low": 90.0 - mean, "below_high": 92.0 - mean,
        }
        for method, budget, share, mean in (
            ("dense", None, 1.0, 91.0), ("post-hoc", 0.5, 0.49, 70.0), ("linear", None, 0.0, 80.0),
            ("soft", 0.5, 0.49, 85.0), ("fewer-layers", None, 0.507, 84.0), ("fewer-layers", None, 0.3, 84.0),
        )
    ]  # fmt: skip
    (out / "table.json").write_text(json.dumps(lines), encoding="utf-8")
    return out


def test_the_content_is_that_of_the_checkpoint(folder: Path, comparison: Path) -> None:
    found = read_content(folder, comparison=comparison)
    model = rheostat.load(folder)
    assert found.name == "my-model" and found.facts["labels"] == list(LABELS)
    assert [row["budget"] for row in found.evaluated] == [0.25, 0.5, 1.0]
    half = found.evaluated[1]
    assert half["accuracy"] == pytest.approx(95.0) and half["drop"] == pytest.approx(5.0)
    assert half["low"] <= half["accuracy"] <= half["high"]
    assert (half["ms"], half["measured"]) == (1.8, True)
    subnet = model.subnet(0.25)
    assert found.evaluated[0]["ms"] == pytest.approx(LATENCY.predict(subnet.head_counts, subnet.neuron_counts))
    assert not found.evaluated[0]["measured"]
    assert found.evaluated[0]["class_f1"] == pytest.approx([200 / 3, 0.0])
    shares = [row["budget"] for row in found.budgets]
    assert shares == sorted(shares) and shares[-1] == 1.0 and shares[0] == model.floor
    assert {row["share"] for row in found.evaluated} <= set(shares)  # the slider can stand where it was evaluated
    assert all(a["macs"] <= b["macs"] for a, b in zip(found.budgets[:-1], found.budgets[1:], strict=True))
    full_ms, one_layer = LATENCY.predict((4, 4), (64, 64)), LATENCY.predict((4, 0), (64, 0))
    half = model.subnet(0.49)
    assert [(row["method"], row["ms"]) for row in found.baselines] == [
        ("dense", full_ms),
        ("post-hoc", LATENCY.predict(half.head_counts, half.neuron_counts)),
        ("linear", None),  # a linear model has no such latency
        ("soft", full_ms),  # nothing is faster with soft gates
        ("fewer-layers", one_layer),
        ("fewer-layers", None),  # no number of layers has this share
    ]
    assert (found.baselines[1]["low"], found.baselines[1]["high"]) == (69.0, 71.0)


def test_what_cannot_be_reported_is_refused(folder: Path, tmp_path: Path) -> None:
    tiny_budgeted(sizes=SIZES).save_pretrained(tmp_path / "new")
    with pytest.raises(OptionError, match="must have been evaluated"):
        read_content(tmp_path / "new")
    tiny_budgeted(sizes=SIZES, selection="top-k").save_pretrained(tmp_path / "top-k")
    with pytest.raises(OptionError, match="selection must be nested"):
        read_content(tmp_path / "top-k")
    rheostat.load(folder).materialize(0.5).save_pretrained(tmp_path / "small")
    with pytest.raises(OptionError, match="must be a budgeted checkpoint"):
        read_content(tmp_path / "small")
    (tmp_path / "table.json").write_text("{}", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"table\.json must be the table of a comparison"):
        read_content(folder, comparison=tmp_path)


def test_the_page_holds_all_it_needs_and_escapes_what_it_is_given(
    folder: Path, comparison: Path, tmp_path: Path
) -> None:
    path = write_page(read_content(folder, comparison=comparison), tmp_path / "x.html")
    text = path.read_text("utf-8")
    assert path.stat().st_size < 2_000_000
    assert "good </script>" not in text and text.count("</script>") == 4
    embedded = text.split('id="content">')[1].split("</script>")[0]
    assert json.loads(embedded)["facts"]["labels"] == list(LABELS)
    assert text.count("<th scope='row'>") == 6
    own = text[: text.index("<script>")]
    assert "http://" not in own and " src=" not in own and "<link" not in own


def test_the_picture_is_a_png(folder: Path, tmp_path: Path) -> None:
    path = write_picture(read_content(folder), tmp_path / "x.png")
    assert path.read_bytes().startswith(b"\x89PNG") and [p.name for p in tmp_path.iterdir()] == ["x.png"]


def test_without_a_certificate_the_share_takes_the_place_of_time(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    shutil.rmtree(copy / "certificates")
    found = read_content(copy)
    assert found.certificate is None and all(row["ms"] is None for row in found.budgets)
    text = write_page(found, tmp_path / "x.html").read_text("utf-8")
    assert "run rheostat certify" in text and "share of the full model" in text


def test_the_command(folder: Path, comparison: Path, tmp_path: Path) -> None:
    command = ["report", str(folder), "--out", str(tmp_path / "r.html"), "--comparison", str(comparison)]
    found = CliRunner().invoke(app, [*command, "--picture", str(tmp_path / "r.png")])
    assert found.exit_code == 0, found.output
    assert "Report: " in found.stderr and (tmp_path / "r.html").is_file() and (tmp_path / "r.png").is_file()


# --- in a browser ------------------------------------------------------------------------------------------

needs_chromium = pytest.mark.skipif(
    not (shutil.which("chromium") and shutil.which("chromedriver")), reason="needs chromium and chromedriver"
)


@pytest.fixture
def browser() -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()


@needs_chromium
@pytest.mark.parametrize("dark", [False, True])
def test_the_slider_moves_and_the_numbers_change(
    folder: Path, comparison: Path, tmp_path: Path, browser: Any, dark: bool
) -> None:
    content: Content = read_content(folder, comparison=comparison)
    scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
    browser.get(write_page(content, tmp_path / "x.html").as_uri())
    wait(browser, "return document.body.dataset.ready === 'true'")

    def text(name: str) -> str:
        return str(browser.find_element("id", name).text)

    def bars() -> str:
        return str(browser.execute_script("return document.querySelector('#kept svg').innerHTML"))

    slider = browser.find_element("id", "budget")
    assert (
        text("now-budget") == "1.000"
        and text("now-accuracy") == "100.00 %"
        and text("now-ms") == "3.40 ms"
        and text("now-ms-name") == "latency"
    )
    before = bars()
    slider.send_keys("\ue012")  # the left arrow key
    smaller = content.budgets[-2]
    assert text("now-budget") == f"{smaller['budget']:.3f}"
    assert text("now-kept") == f"{sum(smaller['heads'])}, {sum(smaller['neurons'])}"
    assert (
        text("now-accuracy-name") == "accuracy at 0.5, the next below" and text("now-ms-name") == "latency, predicted"
    )
    slider.send_keys("\ue011")  # home
    assert text("now-budget") == f"{content.budgets[0]['budget']:.3f}" and text("now-accuracy") == "not evaluated"
    wait(browser, "return document.querySelector('#kept svg').innerHTML !== arguments[0]", before)
    shown = browser.execute_script("return [...document.querySelectorAll('#kept-table td')].map((x) => x.textContent)")
    assert shown == ["0", "0", "0", "0"]
    assert not browser.find_element("id", "classes").is_displayed()  # rather than those of another budget
    assert len(browser.execute_script("return document.querySelectorAll('#table tbody tr')")) == 3
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
    ink = browser.execute_script("return getComputedStyle(document.body).color")
    axis = browser.execute_script("return getComputedStyle(document.querySelector('#curve svg text')).fill")
    assert ink == axis == ("rgb(230, 237, 243)" if dark else "rgb(31, 41, 51)")


def wait(browser: Any, script: str, *arguments: Any) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 20).until(lambda driver: driver.execute_script(script, *arguments))
