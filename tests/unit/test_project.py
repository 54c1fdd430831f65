"""The project's own files agree with each other."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("gateway", "push", "backend_store", "throttling", "web_console", "spark")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=~ ]", each)[0].lower().replace("_", "-") for each in requirements}


def _imported(path: Path) -> set[str]:
    """Top-level names of what a file imports, lazily imported ones among them."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names


def test_everything_that_the_packages_import_is_declared() -> None:
    extras = PROJECT["optional-dependencies"]
    declared = _names(PROJECT["dependencies"]).union(*(_names(extras[name]) for name in extras if name != "test"))
    brought_by = importlib.metadata.packages_distributions()
    undeclared = {
        f"{path.relative_to(ROOT)}: {module}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for module in _imported(path) - sys.stdlib_module_names - set(PACKAGES)
        if not declared & {name.lower().replace("_", "-") for name in brought_by.get(module, [module])}
    }
    assert undeclared == set()


def _names_taken_from_ours(path: Path) -> set[tuple[str, str]]:
    """Module and name of each `from ... import ...` in a file that is about the project's own code."""
    return {
        (node.module, alias.name)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module
        if node.module.split(".")[0] in (*PACKAGES, "tests")
        for alias in node.names
        if alias.name != "*"
    }


def _is_there(module: str, name: str) -> bool:
    """As the import statement looks for it: a name of the module, else a module below it."""
    try:
        if hasattr(importlib.import_module(module), name):
            return True
        importlib.import_module(f"{module}.{name}")
    except ImportError:
        return False
    return True


def test_what_tests_import_of_ours_is_there() -> None:
    """Two changes that are right alone may take and leave the same name. Said here, before a test with servers runs."""
    taken = {each for path in (ROOT / "tests").rglob("*.py") for each in _names_taken_from_ours(path)}
    assert len(taken) > 1000
    assert sorted(each for each in taken if not _is_there(*each)) == []


def test_every_dependency_has_a_lower_and_an_upper_bound() -> None:
    requirements = [
        *PROJECT["dependencies"],
        *(each for extra in PROJECT["optional-dependencies"].values() for each in extra),
    ]
    assert [each for each in requirements if not re.fullmatch(r"[\w.\[\]-]+>=[\d.]+,<[\d.]+", each)] == []


def test_changelog_has_the_version_of_the_project() -> None:
    assert f"## [{PROJECT['version']}]" in (ROOT / "CHANGELOG.md").read_text()


def test_every_folder_of_code_is_a_package() -> None:
    # The build leaves a folder without __init__.py out, and import contracts do not see it.
    folders = {path.parent for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    assert [str(folder.relative_to(ROOT)) for folder in folders if not (folder / "__init__.py").exists()] == []
