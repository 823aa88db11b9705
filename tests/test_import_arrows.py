"""Imports inside the package point one way: from the command line down to the vocabulary, never back."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "rheostat"

# Each module once, the lowest layer first. A module imports from its own layer and from those above it in this table.
LAYERS = (
    {"console", "errors"},
    {"budget", "cost", "order", "subnet"},
    {
        "architectures",
        "corrections",
        "data",
        "families",
        "forms",
        "gates",
        "materialize",
        "modes",
        "reorder",
    },
    {
        "answers",
        "calibration",
        "checkpoint",
        "entities",
        "importance",
        "materialized",
        "model",
        "predict",
        "predictions",
        "saving",
        "sentences",
    },
    {"losses", "objectives", "training"},
    {"evaluation", "measure", "qualities", "quality", "scoring"},
    {"report", "timing"},
    {"bundle", "pipeline", "preparing", "recipe", "work"},
    {"export"},
    {"certify", "compare", "demo_assets", "testing"},
    {"page", "reproduce", "serve"},
    {"__main__", "cli"},
)
LAYER_OF = {name: number for number, names in enumerate(LAYERS) for name in names}
ROOT_NAMES = {"__version__"}  # all that a module may take from the package itself; other names come from their homes


def module_name(path: Path, source: Path) -> str:
    """`src/rheostat/data/text.py` is `data.text`; a package's `__init__.py` is the package; the root is ''."""
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def source_files(source: Path) -> dict[str, Path]:
    return {module_name(path, source): path for path in sorted(source.rglob("*.py"))}


def statements(tree: ast.Module, *, deferred: bool) -> Iterator[ast.stmt]:
    """Every statement, or without those inside functions, which run later than the import of the module."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.stmt):
            yield node
        if deferred or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            waiting.extend(ast.iter_child_nodes(node))


def imported(name: str, files: dict[str, Path], *, deferred: bool = True) -> set[str]:
    """The package's modules that module `name` imports, `TYPE_CHECKING` blocks included."""
    path = files[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found: set[str] = set()
    for node in statements(ast.parse(path.read_text("utf-8")), deferred=deferred):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = absolute(node, package)
            taken = [alias.name for alias in node.names]
            # `from a import b`: b may be a module of a, or a name in it
            targets = [
                f"{base}.{n}" if as_module(f"{base}.{n}", files) else base for n in taken if not is_free(base, n)
            ]
        else:
            continue
        found |= {t.removeprefix("rheostat").removeprefix(".") for t in targets if t.split(".")[0] == "rheostat"}
    return found


def absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = ["rheostat", *filter(None, package.split("."))]
    return ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [node.module])])


def as_module(dotted: str, files: dict[str, Path]) -> bool:
    return dotted.startswith("rheostat.") and dotted.removeprefix("rheostat.") in files


def is_free(base: str, name: str) -> bool:
    return base == "rheostat" and name in ROOT_NAMES


def wrong_arrows(files: dict[str, Path]) -> list[str]:
    found = []
    for name in filter(None, files):  # the root only names its members' homes
        layer = LAYER_OF.get(top(name))
        if layer is None:
            found.append(f"rheostat.{name} is not in LAYERS: give it a place there")
            continue
        for target in sorted(imported(name, files)):
            if not target:
                found.append(
                    f"rheostat.{name} imports from the package itself: import from the module that owns the name"
                )
            elif LAYER_OF.get(top(target), -1) > layer:
                found.append(
                    f"rheostat.{name} (layer {layer}) imports rheostat.{target} (layer {LAYER_OF[top(target)]})"
                )
    return found


def top(name: str) -> str:
    return name.split(".")[0]


def cycle(files: dict[str, Path]) -> list[str]:
    """One cycle of modules that need each other while they load, or nothing."""
    graph = {name: imported(name, files, deferred=False) - {name} for name in filter(None, files)}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_each_module_has_one_layer() -> None:
    assert sum(map(len, LAYERS)) == len(LAYER_OF)


def test_imports_point_down() -> None:
    assert wrong_arrows(source_files(SOURCE)) == []


def test_no_import_cycles() -> None:
    assert cycle(source_files(SOURCE)) == []


@pytest.fixture
def package(tmp_path: Path) -> Iterable[Path]:
    (tmp_path / "data").mkdir()
    for name in ("__init__", "errors", "budget", "cost", "model", "data/__init__", "data/rows"):
        (tmp_path / f"{name}.py").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("file", "statement"),
    [
        ("budget.py", "import rheostat.model"),
        ("budget.py", "from rheostat.model import load"),
        ("budget.py", "from rheostat import model"),
        ("budget.py", "from .model import load"),
        ("budget.py", "def late():\n    from rheostat import model"),
        ("budget.py", "if TYPE_CHECKING:\n    from rheostat.model import load"),
        ("budget.py", "from rheostat import load"),
        ("data/rows.py", "from ..model import load"),
        ("surprise.py", "import os"),
    ],
)
def test_a_wrong_arrow_is_found(package: Path, file: str, statement: str) -> None:
    (package / file).write_text(statement)
    assert len(wrong_arrows(source_files(package))) == 1


@pytest.mark.parametrize(
    ("file", "statement"),
    [
        ("model.py", "from rheostat.budget import parse"),
        ("model.py", "from rheostat import __version__, data"),
        ("cost.py", "from . import budget"),
        ("data/__init__.py", "from .rows import read"),
        ("data/rows.py", "from ..budget import parse\nimport rheostatic"),
    ],
)
def test_a_right_arrow_passes(package: Path, file: str, statement: str) -> None:
    (package / file).write_text(statement)
    assert wrong_arrows(source_files(package)) == []
    assert cycle(source_files(package)) == []


def test_a_cycle_is_found_and_a_late_import_is_none(package: Path) -> None:
    (package / "budget.py").write_text("from rheostat import cost")
    (package / "cost.py").write_text("def late():\n    import rheostat.budget")
    assert cycle(source_files(package)) == []
    (package / "cost.py").write_text("import rheostat.budget")
    assert set(cycle(source_files(package))) == {"budget", "cost"}
