"""Tables, sizes and times, and what is asked before something is destroyed."""

from __future__ import annotations

import sys

import pytest

from gateway.commands.exits import Failure
from gateway.commands.output import confirm, duration, progress, put_fields, put_items, put_table, rate, size


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (3_400, "3.4 s"),
        (119_000, "119 s"),
        (600_000, "10 min"),
        (9e6, "2.5 h"),
        (3e8, "3.5 d"),
    ],
)
def test_time_is_shown_in_the_unit_people_use(ms: float, shown: str) -> None:
    assert duration(ms) == shown


@pytest.mark.parametrize(("count", "shown"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 40, "3.0 TiB")])
def test_size_is_shown_in_binary_units(count: int, shown: str) -> None:
    assert size(count) == shown


def test_rate_of_no_time_is_no_number() -> None:
    assert rate(10, 0) == "–"
    assert rate(12_345, 1) == "12,345/s"


def test_table_aligns_numbers_right_and_cuts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    long = "q" * 300
    put_table(["name", "ready"], [["a", 5], [long, 12_345]])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["NAME", "READY"]
    assert lines[1].endswith("      5")
    assert lines[2] == f"{long}  12345"


def test_empty_table_and_list_say_so_to_whom_reads_them(capsys: pytest.CaptureFixture[str]) -> None:
    put_table(["name", "in flight"], [])
    assert capsys.readouterr().out == "NAME  IN FLIGHT\n"
    put_items([])
    assert capsys.readouterr().out == '{\n  "items": [],\n  "next": null\n}\n'


def test_fields_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    put_fields({"a": 1, "long": "x"})
    assert capsys.readouterr().out == "a     1\nlong  x\n"


def test_progress_is_silent_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("working", 10) as advance:
        advance(5)
    assert capsys.readouterr() == ("", "")


def test_progress_is_a_bar_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with progress("working", 10) as advance:
        advance(5)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "working" in shown.err


def test_whoever_is_sure_is_not_asked() -> None:
    confirm("Delete?", is_sure=True)


@pytest.mark.parametrize("answer", ["n\n", "\n", ""])
def test_anything_but_yes_changes_nothing(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from io import StringIO

    monkeypatch.setattr(sys, "stdin", StringIO(answer))
    with pytest.raises(Failure, match="nothing changed"):
        confirm("Delete?", is_sure=False)
