"""The page at / in a real browser: type a text, move the budget, and watch the server."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import Any

import pytest
from servers import Server

needs_chromium = pytest.mark.skipif(
    not (shutil.which("chromium") and shutil.which("chromedriver")), reason="needs chromium and chromedriver"
)


def test_the_page_needs_nothing_else() -> None:
    text = files("rheostat.serve").joinpath("page.html").read_text("utf-8")
    assert not re.findall(r"https?://|@import|src=|url\(", text)
    assert re.findall(r'href="([^"]*)"', text) == ["data:,"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = webdriver.Chrome(options, webdriver.ChromeService(executable_path=shutil.which("chromedriver")))
    yield found
    found.quit()


def wait(browser: Any, condition: Callable[[], Any]) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 30).until(lambda _: condition())


def complaints(browser: Any) -> list[Any]:
    return [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


@needs_chromium
@pytest.mark.parametrize("dark", [False, True])
def test_a_text_is_answered_and_the_budget_moves_by_keyboard_alone(server: Server, browser: Any, dark: bool) -> None:
    from selenium.webdriver.common.keys import Keys

    scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
    browser.get(server.url + "/")

    def text(name: str) -> str:
        return str(browser.find_element("id", name).text)

    wait(browser, lambda: browser.execute_script("return document.body.dataset.ready === 'true'"))
    assert text("model") == "news" and "budgets 1, 0.5, 0.03" in text("facts") and text("asked") == "1"
    typed = browser.switch_to.active_element
    typed.send_keys(Keys.TAB)  # the first thing that takes the keyboard is the text
    field = browser.switch_to.active_element
    assert field.get_attribute("id") == "text"
    field.clear()
    field.send_keys("awful word1", Keys.TAB)
    slider = browser.switch_to.active_element
    assert slider.get_attribute("id") == "budget"
    expected = {budget: server.predict("awful word1", budget=budget, exact=True) for budget in (1.0, 0.5, 0.03)}
    for key, budget in ((Keys.ARROW_LEFT, 0.5), (Keys.HOME, 0.03), (Keys.END, 1.0)):
        slider.send_keys(key)
        wait(browser, lambda budget=budget: text("served") == f"{budget:g}")  # type: ignore[misc]
        row = expected[budget]["predictions"][0]
        assert text("asked") == f"{budget:g}" and text("label") == row["label"]
        assert text("confidence") == f"{100 * row['confidence']:.1f} %" and text("ms").endswith(" ms")
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys("great")
    slider.send_keys(Keys.ENTER)  # submits
    wait(browser, lambda: text("label") == server.predict("great")["predictions"][0]["label"])
    wait(browser, lambda: "none" not in text("latency") and float(text("rate")) > 0.0)
    assert text("level") == "1" and text("workers") == "2 of 2" and text("refusals") == "0.0"
    assert not browser.find_element("id", "key-line").is_displayed()
    wait(browser, lambda: browser.find_element("id", "rate-line").get_attribute("points").count(",") >= 2)
    ink = browser.execute_script("return getComputedStyle(document.body).color")
    assert ink == ("rgb(230, 237, 243)" if dark else "rgb(31, 41, 51)")
    assert complaints(browser) == []


@needs_chromium
def test_the_page_asks_for_the_key_and_shows_refusals(serve_with: Callable[..., Any], browser: Any) -> None:
    with serve_with("--api-key", "secret", "--max-bytes", "200") as found:
        browser.get(found.url + "/")
        key = browser.find_element("id", "key")
        wait(browser, key.is_displayed)
        key.send_keys("secret", "\t")
        wait(browser, lambda: browser.find_element("id", "model").text == "news")
        field = browser.find_element("id", "text")
        field.send_keys("word1 " * 60)
        browser.find_element("css selector", "button").click()
        wait(browser, lambda: "bodies must be at most 200 bytes" in browser.find_element("id", "error").text)
