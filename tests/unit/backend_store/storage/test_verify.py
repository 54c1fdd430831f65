"""Broken entries go to quarantine with their reason; whole ones stay where they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from backend_store.storage.engine import Engine, Table
from backend_store.storage.env import open_engine
from backend_store.storage.keys import log_key, parse_log_key
from backend_store.storage.memory import MemoryEngine
from backend_store.storage.verify import (
    QUARANTINED_LISTED_MAX,
    REASON_BYTES_MAX,
    first_broken,
    parse_quarantine_value,
    quarantine_value,
    verify,
)
from tests.support.storage import all_rows, commit, entry, entry_problem


@pytest.fixture(params=["lmdb", "memory"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    opened: Engine = open_engine(tmp_path / "data") if request.param == "lmdb" else MemoryEngine()
    yield opened
    opened.close()


def _fill(engine: Engine, count: int) -> list[bytes]:
    keys = [log_key(1, number * 100) for number in range(count)]
    commit(engine, *((Table.LOG, key, entry(key, b"payload %d" % at)) for at, key in enumerate(keys)))
    return keys


def test_an_empty_log_is_whole(engine: Engine) -> None:
    report = verify(engine, entry_problem)
    assert (report.rows, report.value_bytes, report.quarantined, report.listed) == (0, 0, 0, ())


def test_a_whole_log_is_left_alone(engine: Engine) -> None:
    _fill(engine, 200)
    before = all_rows(engine, Table.LOG)
    report = verify(engine, entry_problem)
    assert (report.rows, report.quarantined) == (200, 0)
    assert report.value_bytes == sum(map(len, before.values()))
    assert all_rows(engine, Table.LOG) == before
    assert first_broken(engine, entry_problem) is None


def test_a_broken_entry_moves_to_quarantine_with_its_reason(engine: Engine) -> None:
    keys = _fill(engine, 200)
    flipped = bytearray(engine.get(Table.LOG, keys[70]) or b"")
    flipped[5] ^= 0x10
    # The second one is whole, but stands in the wrong place.
    commit(engine, (Table.LOG, keys[70], bytes(flipped)), (Table.LOG, keys[99], entry(keys[98], b"payload 98")))
    assert (first_broken(engine, entry_problem) or (b"",))[0] == keys[70]
    report = verify(engine, entry_problem)
    assert (report.rows, report.quarantined) == (200, 2)
    assert [key for key, _ in report.listed] == [keys[70], keys[99]]
    assert sorted(all_rows(engine, Table.LOG)) == sorted(set(keys) - {keys[70], keys[99]})
    reason, value = parse_quarantine_value(engine.get(Table.QUARANTINE, keys[70]) or b"")
    assert reason.startswith("checksum ")
    assert value == bytes(flipped)
    assert verify(engine, entry_problem).quarantined == 0


def test_a_log_that_is_all_broken_is_moved_in_many_commits_and_listed_to_a_bound(engine: Engine) -> None:
    keys = _fill(engine, 500)
    report = verify(engine, lambda key, value: "no reason")
    assert (report.rows, report.quarantined, len(report.listed)) == (500, 500, QUARANTINED_LISTED_MAX)
    assert all_rows(engine, Table.LOG) == {}
    assert sorted(all_rows(engine, Table.QUARANTINE)) == keys


def test_rows_come_in_order_so_that_a_check_can_see_a_gap(engine: Engine) -> None:
    keys = _fill(engine, 150)
    commit(engine, (Table.LOG, keys[75], None))
    last = -100
    gaps: list[int] = []

    def check(key: bytes, value: bytes) -> str | None:
        nonlocal last
        _, offset = parse_log_key(key)
        if offset != last + 100:
            gaps.append(offset)
        last = offset
        return None

    verify(engine, check)
    assert gaps == [7600]


def test_a_long_reason_is_cut_and_the_value_stays_whole() -> None:
    reason, value = parse_quarantine_value(quarantine_value("é" * 2000, b"value"))
    assert len(reason.encode()) <= REASON_BYTES_MAX + 2
    assert value == b"value"
