"""What users install is what the folders hold."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from configparser import ConfigParser
from email import message_from_string
from pathlib import Path, PurePosixPath

import pytest

from batchpolicy.errors import EngineUnavailable

ROOT = Path(__file__).resolve().parents[2]
SOURCE_ROOTS = ("", "adapters", "predictors", "tuning")


def folder_packages() -> Iterator[Path]:
    """Top-level import packages of the source roots."""
    for name in SOURCE_ROOTS:
        for init in sorted((ROOT / name).glob("batchpolicy*/__init__.py")):
            yield init.parent


def folder_files() -> set[str]:
    """Files of all packages under their names in a wheel."""
    found: set[str] = set()
    for package in folder_packages():
        for path in package.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                found.add(path.relative_to(package.parent).as_posix())
    return found


def build(source: Path, out: Path, what: str) -> Path:
    """Build ``wheel`` or ``sdist`` with the tools of this environment; nothing is fetched."""
    pytest.importorskip("build", reason="the development environment has it")
    pytest.importorskip("hatchling", reason="the development environment has it")
    command = [sys.executable, "-m", "build", "--no-isolation", f"--{what}", "--outdir", str(out)]
    # Equal file times, so that equal content gives equal archives.
    environment = os.environ | {"SOURCE_DATE_EPOCH": "1700000000"}
    done = subprocess.run(
        [*command, str(source)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("wheel"), "wheel")


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("sdist"), "sdist")


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def metadata(files: dict[str, bytes], name: str) -> str:
    """Text of one file of ``.dist-info``."""
    (found,) = (path for path in files if path.endswith(f".dist-info/{name}"))
    return files[found].decode()


def entry_points(files: dict[str, bytes]) -> dict[str, str]:
    """Object reference by ``group:name``, console scripts included."""
    parser = ConfigParser(delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their case
    parser.read_string(metadata(files, "entry_points.txt"))
    return {
        f"{group}:{name}": reference
        for group in parser.sections()
        for name, reference in parser.items(group)
    }


def defines(module: str, name: str) -> bool:
    """Whether the source of ``module`` binds ``name`` at its top level; nothing is imported."""
    spec = importlib.util.find_spec(module)
    assert spec is not None, module
    assert spec.origin is not None, module
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    bound: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            bound.add(node.name)
        elif isinstance(node, ast.Assign):
            bound.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return name in bound


def test_the_wheel_holds_the_packages_of_the_folders_and_nothing_else(wheel: Path) -> None:
    files = {name for name in contents(wheel) if ".dist-info/" not in name}
    assert files == folder_files()


def test_every_package_says_that_it_is_typed(wheel: Path) -> None:
    files = contents(wheel)
    packages = {PurePosixPath(name).parts[0] for name in files if ".dist-info/" not in name}
    assert packages == {package.name for package in folder_packages()}
    assert {f"{package}/py.typed" for package in packages} <= set(files)


def test_the_license_and_the_readme_travel_with_the_wheel(wheel: Path) -> None:
    files = contents(wheel)
    assert metadata(files, "licenses/LICENSE") == (ROOT / "LICENSE").read_text(encoding="utf-8")
    headers = message_from_string(metadata(files, "METADATA"))
    assert headers["License-Expression"] == "Apache-2.0"
    assert headers["Requires-Python"] == ">=3.11"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert str(headers.get_payload()).strip() == readme.strip()


def test_the_extra_all_holds_what_the_other_extras_hold(wheel: Path) -> None:
    headers = message_from_string(metadata(contents(wheel), "METADATA"))
    wanted: dict[str, set[str]] = {name: set() for name in headers.get_all("Provides-Extra", [])}
    for line in headers.get_all("Requires-Dist", []):
        requirement, _, marker = line.partition(";")
        for extra in wanted:
            if f"extra == '{extra}'" in marker:
                wanted[extra].add(requirement.strip())
    wanted.pop("gp")  # torch, for one sampler
    wanted.pop("postgres")  # for those who tune on many machines
    wanted.pop("aiconfigurator")  # 80 MB and pandas, for one form of step cost
    together = wanted.pop("all")
    assert together == set().union(*wanted.values())


def test_every_entry_point_names_something_that_exists(wheel: Path) -> None:
    references = entry_points(contents(wheel))
    assert references["console_scripts:batchpolicy"] == "batchpolicy.cli:main"
    for where, reference in references.items():
        module, _, name = reference.partition(":")
        try:
            found = hasattr(importlib.import_module(module), name)
        except EngineUnavailable:  # this environment need not have every adapter's engine
            found = defines(module, name)
        assert found, f"{where} = {reference}"


def test_the_console_script_starts_and_prints_its_help() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("batchpolicy"), "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


def test_the_sdist_builds_the_same_wheel(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    again = build(source, tmp_path / "wheel", "wheel")
    assert again.name == wheel.name
    assert contents(again) == contents(wheel)


def test_the_sdist_holds_tests_examples_and_makefile_but_no_leftovers(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {PurePosixPath(*PurePosixPath(name).parts[1:]) for name in archive.getnames()}
    top = {name.parts[0] for name in names if name.parts}
    assert {"Makefile", "README.md", "LICENSE", "tests", "examples", "pyproject.toml"} <= top
    left = {part for name in names for part in name.parts if part.startswith((".venv", "__pyc"))}
    assert left == set()
