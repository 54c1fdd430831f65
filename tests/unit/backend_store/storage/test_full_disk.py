"""A disk that really fills up: publishes stop early enough for acks to go on, and what was committed stays."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend_store.storage.engine import Engine, StorageFailed, Table
from backend_store.storage.env import open_engine
from backend_store.storage.folder import BALLAST_FILE
from backend_store.storage.keys import log_key, log_range, mark_key
from backend_store.storage.space import SpaceGuard, SpaceRules
from tests.support.storage import all_rows, commit, entry, entry_problem, small_disk

DISK_MIB = 24
MIB = 1 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", DISK_MIB) as path:
        yield path


def _publish(engine: Engine, number: int, size: int = 20_000) -> None:
    key = log_key(1, number)
    commit(engine, (Table.LOG, key, entry(key, number.to_bytes(4) * (size // 4))))


def _allowed(guard: SpaceGuard) -> bool:
    guard.refresh()
    return guard.publishes_allowed


def _publish_until_stopped(engine: Engine, guard: SpaceGuard) -> int:
    number = 0
    while guard.publishes_allowed:
        _publish(engine, number)
        guard.wrote(20_000)
        number += 1
        assert number < 10_000
    return number


def _fill_up(disk: Path, *, bytes_left: int) -> Path:
    """What somebody else's file does to us."""
    page = os.statvfs(disk).f_frsize
    with (disk / "hog").open("wb", buffering=0) as file:
        while os.statvfs(disk).f_bavail * page > bytes_left:
            file.write(bytes(page))
    return disk / "hog"


def _assert_whole(engine: Engine, numbers: range) -> None:
    rows = all_rows(engine, Table.LOG)
    assert sorted(rows) == [log_key(1, number) for number in numbers]
    assert {entry_problem(key, value) for key, value in rows.items()} == {None}


def test_publishes_stop_at_nine_tenths_and_acks_go_on_for_thousands_of_commits(disk: Path) -> None:
    engine = open_engine(disk / "data")
    guard = SpaceGuard(engine, disk / "data")
    guard.refresh()
    published = _publish_until_stopped(engine, guard)
    assert 0.90 <= guard.space.used_fraction < 0.93
    assert "publishes stop at 90%" in guard.reason
    # Settled bits of every chunk many times over, as slow consumers write them, then the chunks go one by one.
    for turn in range(4):
        for number in range(published):
            commit(engine, (Table.MARKS, mark_key(1, 0, number), bytes([turn]) * 32))
        assert not _allowed(guard)
    _assert_whole(engine, range(published))
    for number in range(published):
        commit(engine, (Table.LOG, log_key(1, number), None), (Table.MARKS, mark_key(1, 0, number), None))
    assert _allowed(guard)
    assert published * 5 > 4000
    _publish(engine, published)
    _assert_whole(engine, range(published, published + 1))
    engine.close()


def test_when_others_fill_the_disk_the_ballast_carries_the_acks(disk: Path) -> None:
    engine = open_engine(disk / "data")
    guard = SpaceGuard(engine, disk / "data", SpaceRules(ballast_bytes=2 * MIB))
    guard.refresh()
    for number in range(300):
        _publish(engine, number)
    hog = _fill_up(disk, bytes_left=MIB // 2)
    assert not _allowed(guard)
    assert not (disk / "data" / BALLAST_FILE).exists()
    for turn in range(10):
        for number in range(300):
            commit(engine, (Table.MARKS, mark_key(1, 0, number), bytes([turn]) * 32))
    _assert_whole(engine, range(300))
    for number in range(200):
        commit(engine, (Table.LOG, log_key(1, number), None))
    # There is room inside the file, but a disk that others filled stays shut until somebody makes room on it.
    assert not _allowed(guard)
    hog.unlink()
    assert _allowed(guard)
    assert (disk / "data" / BALLAST_FILE).stat().st_size == 2 * MIB
    _assert_whole(engine, range(200, 300))
    engine.close()


def test_a_commit_on_a_full_disk_is_fatal_and_nothing_committed_is_lost(disk: Path) -> None:
    engine = open_engine(disk / "data")
    SpaceGuard(engine, disk / "data").refresh()
    published = 0
    failure: StorageFailed | None = None
    while failure is None:
        try:
            # Two sizes, so that the file ends close to the end of the disk.
            _publish(engine, published, 20_000 if published % 2 else 3_000)
            published += 1
        except StorageFailed as error:
            failure = error
    assert "a commit failed" in str(failure)
    with pytest.raises(StorageFailed, match="earlier commit failed"):
        commit(engine, (Table.MARKS, b"k", b"v"))
    engine.close()
    # The process ends here; the next one opens on the full disk and can acknowledge.
    reborn = open_engine(disk / "data")
    assert not reborn.was_clean
    _assert_whole(reborn, range(published))
    guard = SpaceGuard(reborn, disk / "data")
    assert not _allowed(guard)
    for number in range(published):
        commit(reborn, (Table.MARKS, mark_key(1, 0, number), bytes(32)))
    for number in range(published):
        commit(reborn, (Table.LOG, log_key(1, number), None), (Table.MARKS, mark_key(1, 0, number), None))
    assert reborn.scan(Table.LOG, *log_range(1), 1) == []
    reborn.close()


def test_a_disk_without_one_free_byte_still_opens_by_giving_the_ballast_up(disk: Path) -> None:
    engine = open_engine(disk / "data")
    SpaceGuard(engine, disk / "data", SpaceRules(ballast_bytes=2 * MIB)).refresh()
    _publish(engine, 0)
    engine.close()
    _fill_up(disk, bytes_left=0)
    reborn = open_engine(disk / "data")
    assert not (disk / "data" / BALLAST_FILE).exists()
    commit(reborn, (Table.MARKS, mark_key(1, 0, 0), b"\x01"))
    _assert_whole(reborn, range(1))
    reborn.close()
