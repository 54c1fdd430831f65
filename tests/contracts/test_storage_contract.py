"""What engines promise, kept by the disk; and both engines side by side, where something happens to them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_store.storage.engine import Engine, StorageFailed, StorageFull, Table
from backend_store.storage.env import LmdbEngine, open_engine
from backend_store.storage.memory import MemoryEngine
from tests.contracts.storage_promises import *  # noqa: F403 - the tests
from tests.contracts.storage_promises import Subject
from tests.support.storage import all_rows, commit


@pytest.fixture
def subject(tmp_path: Path) -> Iterator[Subject]:
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
