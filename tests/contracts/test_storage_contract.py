"""One set of promises over both engines: what the memory engine lets a test believe, the disk keeps."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_store.storage.engine import Batch, Engine, EngineClosed, StorageFailed, StorageFull, Table
from backend_store.storage.env import LmdbEngine, open_engine
from backend_store.storage.keys import log_key, log_range
from backend_store.storage.memory import MemoryEngine
from tests.support.storage import all_rows, commit


@dataclass
class Subject:
    """An engine, and what happens to it from outside."""

    engine: Engine
    crash: Callable[[], Engine]
    """What a process finds that starts after the last one was killed."""


@pytest.fixture(params=["lmdb", "memory"])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    if request.param == "memory":
        memory = MemoryEngine()
        yield Subject(memory, memory.crash)
        return
    disk = open_engine(tmp_path / "data")
    opened: list[Engine] = [disk]

    def crash() -> Engine:
        # Between commits, the bytes on disk are what a killed process leaves behind.
        shutil.copytree(tmp_path / "data", tmp_path / "found")
        opened.append(open_engine(tmp_path / "found"))
        return opened[-1]

    yield Subject(disk, crash)
    for engine in opened:
        engine.close()


@pytest.fixture
def engine(subject: Subject) -> Engine:
    return subject.engine


def test_a_committed_row_is_read_back(engine: Engine) -> None:
    commit(engine, (Table.LOG, b"k", b"value"))
    assert engine.get(Table.LOG, b"k") == b"value"


def test_a_missing_row_is_none_and_an_empty_value_is_not(engine: Engine) -> None:
    commit(engine, (Table.LOG, b"k", b""))
    assert engine.get(Table.LOG, b"k") == b""
    assert engine.get(Table.LOG, b"other") is None


def test_tables_do_not_share_keys(engine: Engine) -> None:
    commit(engine, *((table, b"k", table.value.encode()) for table in Table))
    assert {table: engine.get(table, b"k") for table in Table} == {table: table.value.encode() for table in Table}


def test_the_last_word_on_a_key_wins_within_a_batch(engine: Engine) -> None:
    batch = Batch()
    batch.put(Table.LOG, b"a", b"1")
    batch.delete(Table.LOG, b"a")
    batch.delete(Table.LOG, b"b")
    batch.put(Table.LOG, b"b", b"2")
    engine.commit(batch, lambda: None)
    assert all_rows(engine, Table.LOG) == {b"b": b"2"}


def test_deleting_what_is_not_there_is_no_error(engine: Engine) -> None:
    commit(engine, (Table.MARKS, b"never", None), (Table.MARKS, b"k", b"v"))
    assert all_rows(engine, Table.MARKS) == {b"k": b"v"}


def test_a_later_commit_replaces_and_deletes(engine: Engine) -> None:
    commit(engine, (Table.LOG, b"a", b"1"), (Table.LOG, b"b", b"1"))
    commit(engine, (Table.LOG, b"a", b"longer than before"), (Table.LOG, b"b", None))
    assert all_rows(engine, Table.LOG) == {b"a": b"longer than before"}


def test_an_empty_batch_commits(engine: Engine) -> None:
    batch = Batch()
    assert not batch
    engine.commit(batch, lambda: None)


def test_a_large_value_comes_back_whole(engine: Engine) -> None:
    value = bytes(range(256)) * 5000
    commit(engine, (Table.LOG, b"k", value))
    assert engine.get(Table.LOG, b"k") == value
    assert engine.first_at_or_above(Table.LOG, b"a", b"z") == (b"k", value)


def test_staged_is_called_once_before_anything_is_visible(engine: Engine) -> None:
    seen: list[bytes | None] = []
    batch = Batch()
    batch.put(Table.LOG, b"k", b"v")
    engine.commit(batch, lambda: seen.append(engine.get(Table.LOG, b"k")))
    assert seen == [None]
    assert engine.get(Table.LOG, b"k") == b"v"


def test_scan_takes_the_start_and_leaves_the_end_out(engine: Engine) -> None:
    commit(engine, *((Table.LOG, bytes([n]), b"%d" % n) for n in range(1, 6)))
    assert engine.scan(Table.LOG, b"\x02", b"\x04", 10) == [(b"\x02", b"2"), (b"\x03", b"3")]
    assert engine.scan(Table.LOG, b"\x02", b"\x04", 10, reverse=True) == [(b"\x03", b"3"), (b"\x02", b"2")]
    assert engine.scan(Table.LOG, b"\x02", b"\x09", 2) == [(b"\x02", b"2"), (b"\x03", b"3")]
    assert engine.scan(Table.LOG, b"\x04", b"\x02", 10) == []
    assert engine.scan(Table.LOG, b"\x01", b"\x09", 0) == []


def test_first_at_or_above_stays_below_the_end(engine: Engine) -> None:
    commit(engine, (Table.LOG, log_key(1, 500), b"mine"), (Table.LOG, log_key(2, 0), b"another replica's"))
    _, end = log_range(1)
    assert engine.first_at_or_above(Table.LOG, log_key(1, 0), end) == (log_key(1, 500), b"mine")
    assert engine.first_at_or_above(Table.LOG, log_key(1, 500), end) == (log_key(1, 500), b"mine")
    assert engine.first_at_or_above(Table.LOG, log_key(1, 501), end) is None
    assert engine.first_at_or_above(Table.LOG, log_key(3, 0), log_key(4, 0)) is None


def test_space_counts_what_lives(engine: Engine) -> None:
    commit(engine, (Table.LOG, b"k", bytes(500_000)))
    space = engine.space()
    assert 500_000 <= space.live_bytes <= 600_000
    assert space.file_bytes >= space.live_bytes
    assert 0 < space.disk_free < space.disk_total
    assert 0 < space.used_fraction < 1


def test_a_crash_keeps_what_was_committed_and_is_seen(subject: Subject) -> None:
    commit(subject.engine, (Table.LOG, b"k", b"v"))
    assert subject.engine.was_clean
    reborn = subject.crash()
    assert not reborn.was_clean
    assert reborn.disk_id == subject.engine.disk_id
    assert reborn.get(Table.LOG, b"k") == b"v"


def test_a_clean_close_is_seen_too(subject: Subject) -> None:
    commit(subject.engine, (Table.LOG, b"k", b"v"))
    subject.engine.close()
    assert subject.crash().was_clean


def test_after_close_everything_is_refused(engine: Engine) -> None:
    engine.close()
    engine.close()
    for use in (
        lambda: engine.get(Table.LOG, b"k"),
        lambda: engine.scan(Table.LOG, b"a", b"z", 1),
        lambda: engine.first_at_or_above(Table.LOG, b"a", b"z"),
        lambda: engine.space(),
        lambda: commit(engine, (Table.LOG, b"k", b"v")),
    ):
        with pytest.raises(EngineClosed):
            use()


def test_a_full_store_drops_the_batch_as_a_whole_and_goes_on(tmp_path: Path) -> None:
    disk = open_engine(tmp_path / "small", map_size=1 << 20)
    commit(disk, (Table.LOG, b"before", b"1"))
    with pytest.raises(StorageFull):
        commit(disk, (Table.MARKS, b"mate", b"1"), (Table.LOG, b"big", bytes(4 << 20)))
    memory = MemoryEngine()
    commit(memory, (Table.LOG, b"before", b"1"))
    memory.full = True
    with pytest.raises(StorageFull):
        commit(memory, (Table.MARKS, b"mate", b"1"), (Table.LOG, b"big", bytes(4 << 20)))
    memory.full = False
    for engine in (disk, memory):
        assert engine.get(Table.MARKS, b"mate") is None
        commit(engine, (Table.LOG, b"after", b"1"))
        assert all_rows(engine, Table.LOG) == {b"before": b"1", b"after": b"1"}
        engine.close()


def test_after_a_failed_commit_no_other_is_tried(tmp_path: Path) -> None:
    disk = open_engine(tmp_path / "data")
    with pytest.raises(StorageFailed):
        commit(disk, (Table.LOG, b"", b"LMDB takes no empty key"))
    memory = MemoryEngine()
    memory.fail_next_commit()
    with pytest.raises(StorageFailed):
        commit(memory, (Table.LOG, b"k", b"v"))
    for engine in (disk, memory):
        with pytest.raises(StorageFailed, match="earlier commit failed"):
            commit(engine, (Table.LOG, b"k", b"v"))
        assert engine.get(Table.LOG, b"k") is None
        engine.close()


_keys = st.binary(min_size=1, max_size=3)
_bounds = st.binary(min_size=1, max_size=3)


@given(
    commits=st.lists(st.dictionaries(_keys, st.none() | st.binary(max_size=20), max_size=12), max_size=6),
    start=_bounds,
    end=_bounds,
    limit=st.integers(0, 10),
)
def test_both_engines_read_like_a_sorted_dict(
    commits: list[dict[bytes, bytes | None]], start: bytes, end: bytes, limit: int
) -> None:
    model: dict[bytes, bytes] = {}
    memory = MemoryEngine()
    with tempfile.TemporaryDirectory() as folder:
        disk: LmdbEngine = open_engine(Path(folder), map_size=1 << 24)
        for rows in commits:
            for key, value in rows.items():
                model.pop(key, None)
                if value is not None:
                    model[key] = value
            for engine in (disk, memory):
                commit(engine, *((Table.LOG, key, value) for key, value in rows.items()))
        wanted = [(key, model[key]) for key in sorted(model) if start <= key < end]
        for engine in (disk, memory):
            assert all_rows(engine, Table.LOG) == model
            assert engine.scan(Table.LOG, start, end, limit) == wanted[:limit]
            assert engine.scan(Table.LOG, start, end, limit, reverse=True) == wanted[::-1][:limit]
            assert engine.first_at_or_above(Table.LOG, start, end) == (wanted[0] if wanted else None)
        disk.close()
