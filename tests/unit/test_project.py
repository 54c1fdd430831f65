"""The project's own files agree with each other."""

from __future__ import annotations

import ast
import functools
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


# What the lines of a file seem to import: never less than it does, more where a text of its own has such lines. A file
# is parsed, which takes a hundred times as long, where they seem to be wrong.
_SEEMS_IMPORTED = re.compile(r"^[ \t]*(?:from|import)[ \t]+(\w+)", re.MULTILINE)
_SEEMS_TAKEN = re.compile(
    rf"^[ \t]*from[ \t]+((?:{'|'.join((*PACKAGES, 'tests'))})\b[\w.]*)[ \t]+import[ \t]*(?:\(([^)]*)\)|(.*))",
    re.MULTILINE,
)


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
    usual = {
        *sys.stdlib_module_names,
        *PACKAGES,
        *(name for name, by in brought_by.items() if declared & {one.lower().replace("_", "-") for one in by}),
    }
    undeclared = {
        f"{path.relative_to(ROOT)}: {module}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if set(_SEEMS_IMPORTED.findall(path.read_text())) - usual
        for module in _imported(path) - usual
        if not declared & {module.lower().replace("_", "-")}
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


def _seem_taken_from_ours(text: str) -> set[tuple[str, str]]:
    return {
        (module, name.partition(" as ")[0])
        for module, within, after in _SEEMS_TAKEN.findall(text)
        for name in _names_of_list(within or after)
        if name != "*"
    }


def _names_of_list(text: str) -> set[str]:
    """What stands between `import` and its end, in its brackets or without."""
    return {name for one in re.sub(r"#.*", "", text).split(",") if (name := one.strip().strip("()\\").strip())}


def _is_there(module: str, name: str) -> bool:
    """As the import statement looks for it: a name of the module, else a module below it."""
    try:
        if hasattr(importlib.import_module(module), name):
            return True
        importlib.import_module(f"{module}.{name}")
    except ImportError:
        return False
    return True


@functools.cache
def _names_made_in(module: str) -> frozenset[str]:
    """What the lines of a module's file show to be made or imported there; nothing where it is another's."""
    place = ROOT.joinpath(*module.split("."))
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    text = file.read_text() if file.exists() else ""
    made = re.findall(r"^(?:async def |def |class |type )?(\w+)(?=\s*[:=(\[])", text, re.MULTILINE)
    imported = re.findall(r"^from[ \t]+\S+[ \t]+import[ \t]*(\([^)]*\)|.*)", text, re.MULTILINE)
    given = {name.rpartition(" as ")[2] for one in imported for name in _names_of_list(one)}
    return frozenset(made) | given | {one.stem for one in file.parent.glob("*.py") if place.is_dir()}


def test_what_tests_import_of_ours_is_there() -> None:
    """Two changes that are right alone may take and leave the same name. Said here, before a test with servers runs."""
    texts = {path: path.read_text() for path in (ROOT / "tests").rglob("*.py")}
    taken = {path: _seem_taken_from_ours(text) for path, text in texts.items()}
    all_of_them = set().union(*taken.values())
    assert len(all_of_them) > 1000
    unsure = {each for each in all_of_them if each[1] not in _names_made_in(each[0]) and not _is_there(*each)}
    lost = {each for path, seen in taken.items() if seen & unsure for each in _names_taken_from_ours(path) & unsure}
    assert sorted(lost) == []


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
