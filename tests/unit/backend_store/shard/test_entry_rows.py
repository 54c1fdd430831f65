"""The log on a real disk: what is undone, what stays, and what a kill leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend_store.core.replication.entries import Draft, Entry, seal
from backend_store.core.replication.log import Tail
from backend_store.model import Epoch, Offset
from backend_store.shard import entry_rows
from backend_store.shard.entry_rows import Stored, append, payload_of, settle, trim, truncate
from backend_store.shard.pages import parse_row, read_page
from backend_store.storage.engine import Batch, Changes, Table
from backend_store.storage.env import LmdbEngine, open_engine


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[LmdbEngine]:
    opened = open_engine(tmp_path / "env")
    yield opened
    opened.close()


class Log:
    """Entries that follow one another."""

    def __init__(self, engine: LmdbEngine) -> None:
        self._engine = engine
        self._last = Tail(Offset(0), 0, 0, 0)

    def entry(self, epoch: int = 1, **rows: str | None) -> Entry:
        """An entry with these rows of META."""
        batch = Batch()
        for key, value in rows.items():
            if value is None:
                batch.delete(Table.META, key.encode())
            else:
                batch.put(Table.META, key.encode(), value.encode())
        draft = Draft(1, (payload_of(batch),))
        made = seal(draft, partition=7, epoch=Epoch(epoch), offset=self._last.end, time_ms=5, prev_crc=self._last.crc)
        self._last = Tail(made.end, made.crc, 5, 0)
        return made

    def add(self, epoch: int = 1, **rows: str | None) -> Entry:
        made = self.entry(epoch, **rows)
        commit(self._engine, lambda changes: append(changes, Stored(made)))
        return made


def commit(engine: LmdbEngine, step: entry_rows.Step) -> None:
    batch = Batch()
    batch.before = step
    engine.commit(batch, lambda: None)


def meta(engine: LmdbEngine) -> dict[str, str]:
    rows = engine.scan(Table.META, b"", b"\xff", 100)
    return {key.decode(): value.decode() for key, value in rows if key not in entry_rows.LOCAL}


def log_of(engine: LmdbEngine) -> list[int]:
    found = engine.look(lambda changes: entry_rows.entries_from(changes, 0, 1 << 40, 1 << 30, partition=7))
    return [entry.offset for entry in found]


def test_cut_off_entries_leave_the_rows_as_they_were(engine: LmdbEngine) -> None:
    log = Log(engine)
    log.add(a="1", b="1")
    log.add(a="2", b=None, c="2")
    log.add(a=None, c="3", d="3")
    assert meta(engine) == {"c": "3", "d": "3"}
    commit(engine, lambda changes: truncate(changes, 2))
    assert meta(engine) == {"a": "2", "c": "2"}
    commit(engine, lambda changes: truncate(changes, 1))
    assert meta(engine) == {"a": "1", "b": "1"}
    assert log_of(engine) == [0]


def test_trimmed_log_leaves_its_rows_and_can_be_cut_above(engine: LmdbEngine) -> None:
    log = Log(engine)
    for value in "123456":
        log.add(a=value)
    commit(engine, lambda changes: settle(changes, 4))
    commit(engine, lambda changes: trim(changes, 3))
    assert log_of(engine) == [3, 4, 5]
    commit(engine, lambda changes: truncate(changes, 4))
    assert meta(engine) == {"a": "4"}


def test_one_transaction_may_cut_off_and_append(engine: LmdbEngine) -> None:
    log = Log(engine)
    log.add(a="1")
    log.add(a="lost", b="lost")
    other = Log(engine)
    other.entry(a="1")
    wins = other.entry(2, a="won")

    def change(changes: Changes) -> None:
        truncate(changes, 1)
        append(changes, Stored(wins))

    commit(engine, change)
    assert meta(engine) == {"a": "won"}
    commit(engine, lambda changes: truncate(changes, 1))
    assert meta(engine) == {"a": "1"}


def test_a_step_that_fails_undoes_the_whole_transaction(engine: LmdbEngine) -> None:
    log = Log(engine)
    log.add(a="1")

    def fail(changes: Changes) -> None:
        truncate(changes, 0)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        commit(engine, fail)
    assert meta(engine) == {"a": "1"}


def test_page_shows_rows_without_what_is_not_final(engine: LmdbEngine) -> None:
    log = Log(engine)
    log.add(a="1", b="1")
    log.add(a="2", b=None, c="2")
    log.add(a="3", b="3")
    rows, is_last = engine.look(lambda changes: read_page(changes, b"", Offset(1)))
    assert is_last
    assert [(table, key, value) for table, (key, value) in map(parse_row, rows)] == [
        (Table.META, b"a", b"1"),
        (Table.META, b"b", b"1"),
    ]


def test_pages_of_many_rows_miss_and_repeat_none(engine: LmdbEngine) -> None:
    log = Log(engine)
    log.add(1, **{f"k{number:04}": "v" * 5_000 for number in range(1_500)})
    log.add(1, **{f"k{number:04}": None for number in range(0, 1_500, 3)}, x="new")
    after, keys, pages = b"", [], 0
    while True:
        at = after
        rows, is_last = engine.look(lambda changes, at=at: read_page(changes, at, Offset(1)))  # type: ignore[misc]
        keys += [row[0].partition(b"\0")[2].decode() for row in rows]
        pages += 1
        if is_last:
            break
        after = rows[-1][0]
    assert pages > 3
    assert keys == [f"k{number:04}" for number in range(1_500)]


_KILLED = """
import sys
from pathlib import Path
from tests.unit.backend_store.shard.test_entry_rows import Log, commit
from backend_store.shard import entry_rows
from backend_store.storage.env import open_engine
from backend_store.core.replication.log import StoredLog
from backend_store.model import Offset
engine = open_engine(Path(sys.argv[1]))
log = Log(engine)
number = 0
while True:
    made = log.entry(**{f"row{number % 5}": str(number), "last": str(number)})
    def write(changes, made=made):
        entry_rows.append(changes, entry_rows.Stored(made))
        entry_rows.put_stored(changes, StoredLog(end=made.end))
    commit(engine, write)
    print(number, flush=True)
    number += 1
"""


def test_a_kill_leaves_log_rows_and_undo_of_one_moment(tmp_path: Path) -> None:
    path = tmp_path / "killed"
    with subprocess.Popen([sys.executable, "-c", _KILLED, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        confirmed = [int(process.stdout.readline()) for _ in range(40)][-1]
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    engine = open_engine(path)
    try:
        stored = engine.look(entry_rows.stored_of)
        assert stored.end > confirmed
        assert log_of(engine) == list(range(stored.end))
        assert meta(engine)["last"] == str(stored.end - 1)
        commit(engine, lambda changes: truncate(changes, 10))
        assert meta(engine) == {**{f"row{n % 5}": str(n) for n in range(5, 10)}, "last": "9"}
    finally:
        engine.close()
