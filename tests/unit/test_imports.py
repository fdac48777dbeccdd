"""What each part may import, as DESIGN lays down: the core stays light enough for any engine."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "batchpolicy"
LIGHT = {"numpy", "pydantic", "pydantic_core", "typing_extensions"}
ONLY_IN = {
    "yaml": "reading.py",
    "typer": "cli/",
    "rich": "cli/",
    "pytest": "testing/checks.py",  # in a function for test suites, which have pytest
}


def foreign_imports(tree: Path) -> dict[str, set[str]]:
    """Third-party packages that a tree imports, each with the files that do."""
    own = {"batchpolicy", "batchpolicy_predictors", "batchpolicy_tuning", "batchpolicy_vllm"}
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in sorted(tree.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                # A relative import has no module of its own outside.
                names = [] if node.level else [node.module or ""]
            else:
                continue
            for name in names:
                package = name.partition(".")[0]
                if package not in sys.stdlib_module_names and package not in own:
                    found[package].add(path.relative_to(tree).as_posix())
    return dict(found)


def is_of_a_cli(path: Path) -> bool:
    return path.name == "cli.py" or path.parent.name == "cli"


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
    )


def test_the_core_imports_few_packages_and_a_terminal_library_in_its_cli_only() -> None:
    found = foreign_imports(CORE)
    assert set(found) <= LIGHT | set(ONLY_IN)
    for package, only in ONLY_IN.items():
        assert all(name.startswith(only) for name in found.get(package, ())), package


def test_the_tuning_package_imports_typer_and_rich_in_its_cli_only() -> None:
    found = foreign_imports(ROOT / "tuning")
    for package in ("typer", "rich"):
        assert all(is_of_a_cli(Path(name)) for name in found.get(package, ())), package


def test_predictors_import_a_terminal_library_where_they_are_trained_only() -> None:
    found = foreign_imports(ROOT / "predictors")
    for package in ("typer", "rich"):
        assert found[package] == {"batchpolicy_predictors/training/cli.py"}
    # The libraries of the training are imported when it starts, with an error that helps.
    assert set(found) <= LIGHT | {"typer", "rich"}


def test_every_module_but_cli_imports_without_a_terminal_library_and_pytest() -> None:
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted(CORE.rglob("*.py"))
        if not is_of_a_cli(path) and path.name != "__main__.py"
    ]
    code = f"""
import importlib, sys
sys.modules.update(dict.fromkeys(["typer", "rich", "click", "pytest"]))  # None: import raises
for name in {modules!r}:
    importlib.import_module(name)
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "module",
    [
        "batchpolicy.config",
        "batchpolicy.runner",
        "batchpolicy_vllm",
        "batchpolicy_predictors.tracked",
        "batchpolicy_predictors.template_neighbours",
        "batchpolicy_predictors.gradient_boosting",
    ],
)
def test_what_an_engine_loads_pulls_neither_a_terminal_library_nor_the_search(module: str) -> None:
    heavy = ["typer", "rich", "click", "scipy", "sklearn", "optuna", "batchpolicy_tuning"]
    code = f"""
import importlib, sys
importlib.import_module({module!r})
print([name for name in {heavy!r} if name in sys.modules])
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_the_contracts_between_the_packages_hold() -> None:
    lint_imports = Path(sys.executable).with_name("lint-imports")
    if not lint_imports.exists():
        pytest.skip("import-linter is a development tool; this environment has none")
    done = subprocess.run(
        [lint_imports, "--no-cache"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stdout


def test_the_search_for_imports_finds_those_inside_functions_and_type_checks(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.py").write_text(
        "from __future__ import annotations\n"
        "from typing import TYPE_CHECKING\n"
        "import batchpolicy.policy\n"
        "if TYPE_CHECKING:\n    import torch.nn\n"
        "def f():\n    from rich.table import Table\n",
        encoding="utf-8",
    )
    assert foreign_imports(tmp_path) == {"torch": {"a.py"}, "rich": {"a.py"}}
