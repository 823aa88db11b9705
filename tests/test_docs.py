"""What the pages show is what the code does."""

import doctest
from pathlib import Path

import pytest

from rheostat.families import DISTILBERT
from rheostat.testing import CHECKS

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize("page", ["method.md", "serving.md"])
def test_the_examples_of_a_page_run(page: str) -> None:
    failures, tried = doctest.testfile(
        str(DOCS / page), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE
    )
    assert tried > 0
    assert failures == 0


def test_the_family_on_its_page_is_the_one_that_ships() -> None:
    code = (DOCS / "add-a-family.md").read_text("utf-8").split("```python\n")[1].split("```")[0]
    code = code.replace(", register", "").replace("register(", "(")
    found: dict[str, object] = {}
    exec(code, found)
    assert found["DISTILBERT"] == DISTILBERT


def test_every_check_of_the_contract_is_on_its_page() -> None:
    page = (DOCS / "add-a-family.md").read_text("utf-8")
    assert all(f"| {name} | " in page for name in CHECKS)
