"""The package as its users get it: the wheel runs elsewhere, stays light, and offers exactly the listed names."""

from __future__ import annotations

import ast
import email
import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from email.message import Message
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tiny import tiny_budgeted, tiny_tokenizer

import rheostat
from rheostat.export import export

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "rheostat"
HEAVY = ("torch", "transformers", "datasets", "onnxruntime")

# The public surface. A name joins or leaves it here first, with a reason in the commit.
PUBLIC = {
    "BudgetError",
    "BudgetedModel",
    "CheckpointError",
    "CostTable",
    "DataError",
    "Measurement",
    "MissingDependencyError",
    "ModelShape",
    "OptionError",
    "RheostatError",
    "Subnet",
    "UnexpectedArgumentError",
    "UnitOrder",
    "UnsupportedModelError",
    "__version__",
    "budget_loss",
    "load",
    "open_bundle",
    "wrap",
}


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run in the root folder of the file system, so that nothing is found by being next to it."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT.anchor, env={**clean, **environment}
    )


# The public names


def test_public_names_are_the_listed_ones() -> None:
    assert set(rheostat.__all__) == PUBLIC
    assert len(rheostat.__all__) == len(PUBLIC)


def test_every_public_name_has_one_home_for_people_and_for_type_checkers() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text("utf-8"))
    typed = {
        alias.name: str(node.module).removeprefix("rheostat.")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("rheostat.")
        for alias in node.names
    }
    assert typed == rheostat._HOMES
    assert set(rheostat._HOMES) == PUBLIC - {"__version__"}


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_public_name_loads(name: str) -> None:
    assert getattr(rheostat, name) is getattr(rheostat, name)
    assert name in dir(rheostat)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'rheostat' has no attribute 'sparsity'"):
        _ = rheostat.sparsity  # type: ignore[attr-defined]


def test_no_public_name_can_be_hidden_by_a_module() -> None:
    modules = {path.stem for path in PACKAGE.iterdir()}
    assert not modules & PUBLIC


# What an import brings with it


def modules_loaded_by(statement: str) -> set[str]:
    code = f"import json, sys\n{statement}\nprint(json.dumps(sorted(sys.modules)), file=sys.__stderr__)"
    result = run(sys.executable, "-c", code)
    assert result.returncode == 0, result.stderr
    return set(json.loads(result.stderr.splitlines()[-1]))


@pytest.mark.parametrize(
    "statement",
    [
        "import rheostat",
        "from rheostat import BudgetError, CostTable, Measurement, ModelShape, Subnet, UnitOrder",
        "import rheostat.cli",
        "sys.argv = ['rheostat', '--help']\nfrom rheostat.cli import main\ntry: main()\nexcept SystemExit: pass",
    ],
    ids=["package", "vocabulary", "cli", "help"],
)
def test_nothing_heavy_is_loaded(statement: str) -> None:
    loaded = modules_loaded_by(statement)
    assert "rheostat" in loaded
    assert not loaded & set(HEAVY)


# The wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    result = run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    assert result.returncode == 0, result.stdout + result.stderr
    (path,) = folder.glob("*.whl")
    return path


def read_metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def base_requirements(requires: list[str] | None) -> Iterator[str]:
    for requirement in map(Requirement, requires or ()):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement.name


def with_their_needs(names: Iterator[str]) -> dict[str, metadata.Distribution]:
    found: dict[str, metadata.Distribution] = {}
    waiting = list(names)
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name not in found:
            found[name] = metadata.distribution(name)
            waiting.extend(base_requirements(found[name].requires))
    return found


def lend(distribution: metadata.Distribution, site_packages: Path) -> None:
    """Make an installed distribution visible in another environment, by links to what it put into site-packages."""
    for top in {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}:
        link = site_packages / top
        if not link.exists():
            link.symlink_to(Path(str(distribution.locate_file(top))).resolve())


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts folder of a new environment that holds our wheel, what its base install asks for, and no more."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=os.name != "nt")
    scripts = folder / ("Scripts" if os.name == "nt" else "bin")
    python = scripts / "python"
    install = run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel)
    assert install.returncode == 0, install.stderr
    site_packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip())
    for distribution in with_their_needs(base_requirements(read_metadata(wheel).get_all("Requires-Dist"))).values():
        lend(distribution, site_packages)
    return scripts


def test_the_wheel_holds_the_package_its_types_and_the_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {"rheostat/__init__.py", "rheostat/py.typed"} <= names
    assert {Path(name).parts[0] for name in names if ".dist-info" not in name} == {"rheostat"}
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_wheel_states_the_version_and_a_light_base(wheel: Path) -> None:
    stated = read_metadata(wheel)
    assert stated["Version"] == rheostat.__version__
    assert stated["License-Expression"] == "Apache-2.0"
    assert set(base_requirements(stated.get_all("Requires-Dist"))) == {"numpy", "rich", "tokenizers", "typer"}


def test_the_installed_wheel_imports_with_the_base_install_alone(environment: Path) -> None:
    code = "import rheostat; print(rheostat.__file__, rheostat.__version__, rheostat.Subnet.__name__)"
    result = run(environment / "python", "-c", code)
    assert result.returncode == 0, result.stderr
    file, version, name = result.stdout.split()
    assert Path(file).is_relative_to(environment.parent) and not Path(file).is_relative_to(ROOT)
    assert (version, name) == (rheostat.__version__, "Subnet")
    for package in HEAVY:
        assert run(environment / "python", "-c", f"import {package}").returncode != 0


def test_the_installed_command_prints_its_help_with_the_base_install_alone(environment: Path) -> None:
    result = run(environment / "rheostat", "--help", COLUMNS="100")
    assert result.returncode == 0, result.stderr
    for command in ("train", "evaluate", "materialize", "predict", "measure", "demo"):
        assert command in result.stdout


def test_a_bundle_answers_where_only_onnxruntime_is_installed(environment: Path, tmp_path: Path) -> None:
    model = tiny_budgeted(tokenizer=tiny_tokenizer(tmp_path / "words"))
    export(model, tmp_path / "bundle", budgets=(0.5,))
    python = environment / "python"
    site_packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip())
    for distribution in with_their_needs(iter(["onnxruntime"])).values():
        lend(distribution, site_packages)
    code = (
        "import sys, rheostat; bundle = rheostat.open_bundle(sys.argv[1]); "
        "print([round(a.score, 4) for a in bundle.predict(['awful word1', 'great'], budget=0.5)])"
    )
    result = run(python, "-c", code, tmp_path / "bundle")
    assert result.returncode == 0, result.stderr
    expected = [round(answer.score, 4) for answer in model.predict(["awful word1", "great"], budget=0.5)]
    assert result.stdout.strip() == str(expected)
    for package in ("torch", "transformers"):
        assert run(python, "-c", f"import {package}").returncode != 0


# The scripts


@pytest.mark.skipif(shutil.which("bash") is None, reason="the scripts need bash")
@pytest.mark.parametrize("script", ["setup", "demo", "test"])
def test_a_script_without_a_python_says_so_in_one_line(script: str) -> None:
    result = run("bash", ROOT / "scripts" / script, PYTHON="no-such-python")
    assert result.returncode == 1
    assert result.stderr == "setup: error: PYTHON must name an interpreter; got 'no-such-python', which was not found\n"
