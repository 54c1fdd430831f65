"""`pushq usage verify`: what a folder of ledger files must be."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gateway.usage.files import Damaged, UsageFolder
from gateway.usage.schema import LedgerRow
from gateway.usage.verify import Report, verify
from tests.support.usage import NODE, span

FIRST_MS = 1_700_000_040_000

WHOLE = (
    span(0, 10, 10, published=10),
    span(10, 14, 9, published=2, settled=3),
    span(14, 15, 4, purged=5),
    span(15, 30, 4, published=15, expired=10, moved_out=5, dead_lettered=2),
)


def checked(tmp_path: Path, *files: list[LedgerRow]) -> Report:
    folder = UsageFolder(tmp_path / "usage", NODE)
    folder.open()
    for number, rows in enumerate(files):
        folder.write("ledger", rows, FIRST_MS + number)
    return verify(folder.path)


def faults(tmp_path: Path, *files: list[LedgerRow]) -> list[str]:
    return [one.detail for one in checked(tmp_path, *files).broken]


def test_a_whole_ledger_adds_up(tmp_path: Path) -> None:
    report = checked(tmp_path, *WHOLE)
    (log,) = report.logs.values()
    assert not report.broken and (log.held, log.totals["published"]) == (4, 27)


def test_a_missing_range_shows(tmp_path: Path) -> None:
    assert "10 to 14 is missing" in faults(tmp_path, WHOLE[0], *WHOLE[2:])[0]


def test_a_missing_row_of_a_range_shows(tmp_path: Path) -> None:
    assert faults(tmp_path, WHOLE[0], WHOLE[1][:-1], *WHOLE[2:])


def test_a_lost_message_shows(tmp_path: Path) -> None:
    assert faults(tmp_path, WHOLE[0], span(10, 14, 8, published=2, settled=3))


def test_a_file_that_is_there_twice_counts_once(tmp_path: Path) -> None:
    report = checked(tmp_path, WHOLE[0], WHOLE[1], [*WHOLE[0], *WHOLE[1], *WHOLE[2]], WHOLE[3])
    assert not report.broken
    assert next(iter(report.logs.values())).totals["published"] == 27


def test_a_row_that_is_there_twice_with_other_numbers_shows(tmp_path: Path) -> None:
    other = [msgspec.structs.replace(row, count=row.count + 1) for row in WHOLE[0]]
    assert "duplicate range" in faults(tmp_path, *WHOLE[:2], other)[0]


def test_what_nothing_explains_shows(tmp_path: Path) -> None:
    assert faults(tmp_path, span(0, 10, 9, published=10, unexplained=-1))


def test_files_from_the_middle_begin_with_what_was_there(tmp_path: Path) -> None:
    assert not faults(tmp_path, *WHOLE[1:])


@pytest.mark.parametrize("gone", range(len(WHOLE) - 1))
def test_no_range_but_the_last_and_the_first_can_be_taken_away(tmp_path: Path, gone: int) -> None:
    assert bool(faults(tmp_path, *WHOLE[:gone], *WHOLE[gone + 1 :])) == (gone > 0)


@pytest.mark.parametrize("cut", ["whole", "empty", "begun", "half", "trailer", "changed"])
def test_a_file_that_is_not_as_it_was_written_is_named(tmp_path: Path, cut: str) -> None:
    checked(tmp_path, *WHOLE)
    path = max((tmp_path / "usage").iterdir())
    data = path.read_bytes()
    parts = {"whole": data, "empty": b"", "begun": data[:5], "half": data[: len(data) // 2], "trailer": data[:-3]}
    path.write_bytes(parts.get(cut, data[:40] + bytes(byte ^ 0xFF for byte in data[40:60]) + data[60:]))
    if cut == "whole":
        assert not verify(path.parent).broken
        return
    with pytest.raises(Damaged, match=rf"{path.name}: line .* delete it and collect it again"):
        verify(path.parent)


def test_a_kind_that_is_not_known_yet_is_named(tmp_path: Path) -> None:
    """Whether it is in or out, only who knows it can say."""
    newer = [msgspec.structs.replace(row, kind="lent", version=2) for row in WHOLE[0][:1]]
    with pytest.raises(Damaged, match=r'kind "lent" of version 2; .* with a newer pushq'):
        checked(tmp_path, [*WHOLE[0], *newer])
