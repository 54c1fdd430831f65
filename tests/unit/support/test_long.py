"""The table of tests that only the long run has."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.long import BadTable, is_long, read_long

ROOT = Path(__file__).parents[3]


def is_there(test: str) -> bool:
    """Whether a file has a function, or a class, of that name; its parameters show when tests are collected."""
    file, _, name = test.partition("::")
    path, function = ROOT / file, name.partition("[")[0].rpartition("::")[2]
    return path.is_file() and (not name or any(f"{word} {function}" in path.read_text() for word in ("def", "class")))


def test_all_that_the_table_names_is_there() -> None:
    assert [test for entry in read_long() for test in entry if not is_there(test)] == []


@pytest.mark.parametrize(
    ("entry", "test", "expected"),
    [
        ("tests/a.py::test_x[SSE]", "tests/a.py::test_x[SSE]", True),
        ("tests/a.py::test_x[SSE]", "tests/a.py::test_x[Long-poll]", False),
        ("tests/a.py::test_x", "tests/a.py::test_x[SSE]", True),
        ("tests/a.py::test_x", "tests/a.py::test_x_and_more", False),
        ("tests/a.py", "tests/a.py::test_x[SSE]", True),
        ("tests/a.py", "tests/b.py::test_x", False),
    ],
)
def test_an_entry_is_one_test_or_all_its_forms_or_a_file(entry: str, test: str, *, expected: bool) -> None:
    assert is_long(test, {entry}) is expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[[long]]\ntest = 'tests/a.py'", "entry 1 needs exactly test, instead"),
        ("[[long]]\ntest = 'tests/a.py'\ninstead = ''", "entry 1 needs exactly test, instead"),
        ("[[long]]\ntest = 'tests/a.py'\ninstead = 'tests/a.py::test_x'", "which is long itself"),
    ],
)
def test_an_entry_without_what_the_gate_has_instead_is_refused(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "long.toml").write_text(text)
    with pytest.raises(BadTable, match=why):
        read_long(tmp_path / "long.toml")
