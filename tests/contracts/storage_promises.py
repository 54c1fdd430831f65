"""What every engine promises: a file of tests has the `subject` and takes these in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from backend_store.storage.engine import Batch, Engine, EngineClosed, Table
from backend_store.storage.keys import log_key, log_range
from tests.support.storage import all_rows, commit


@dataclass
class Subject:
    """An engine, and what happens to it from outside."""

    engine: Engine
    crash: Callable[[], Engine]
    """What a process finds that starts after the last one was killed."""


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
