"""The quarantine of a copy on a real disk: what is put there, and what a kill in the middle leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend_store.core.log.records import EpochStart
from backend_store.core.replication.entries import Draft, Entry, seal
from backend_store.core.replication.log import Tail
from backend_store.metadata.embedded import QUEUES
from backend_store.model import Epoch, Offset, QueueConfig, QueueDefinition
from backend_store.shard import entry_rows, quarantine
from backend_store.shard.entry_rows import Keeping, Stored, append, payload_of, truncate
from backend_store.shard.quarantine import Base, Place, Tally
from backend_store.storage import seal as sealing
from backend_store.storage.engine import Batch, Table
from backend_store.storage.env import LmdbEngine, open_engine
from backend_store.storage.keys import log_key
from tests.unit.backend_store.core.replication.test_stranded import REPLICA, chunk
from tests.unit.backend_store.shard.test_entry_rows import commit

SHARD = 7
MESSAGES = 5


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[LmdbEngine]:
    opened = open_engine(tmp_path / "env")
    yield opened
    opened.close()


class Log:
    """Entries that each publish a message."""

    def __init__(self, engine: LmdbEngine) -> None:
        self._engine = engine
        self._last = Tail(Offset(0), 0, 0, 0)

    def add(self, *, epoch: int = 1) -> Entry:
        base = self._last.end
        batch = Batch()
        batch.put(Table.LOG, log_key(REPLICA, base), chunk(base, f"m{base}"))
        draft = Draft(1, (payload_of(batch),))
        made = seal(draft, partition=SHARD, epoch=Epoch(epoch), offset=base, time_ms=50, prev_crc=self._last.crc)
        self._last = Tail(made.end, made.crc, 50, 0)
        commit(self._engine, lambda changes: append(changes, Stored(made)))
        return made


def define(engine: LmdbEngine) -> None:
    key = QUEUES + b"acme\0orders"
    row = QueueDefinition(REPLICA, "acme", "orders", QueueConfig(), 0, 1)
    batch = Batch()
    batch.put(Table.META, key, sealing.seal(key, entry_rows._encode(row)))
    engine.commit(batch, lambda: None)


def cut(engine: LmdbEngine, end: int, tally: Tally, base: Base | None = None) -> None:
    commit(engine, lambda changes: truncate(changes, end, Keeping(SHARD, tally, 77, base)))


def places(engine: LmdbEngine) -> list[Place]:
    return engine.look(lambda changes: [place for place, _ in quarantine.kept_from(changes, None)])


def test_what_is_cut_off_is_kept_with_its_queue_and_counted(engine: LmdbEngine) -> None:
    define(engine)
    log, tally = Log(engine), Tally()
    for _ in range(3):
        log.add()
    cut(engine, 1, tally)
    [(_, first), (_, second)] = engine.look(lambda changes: list(quarantine.kept_from(changes, None)))
    assert places(engine) == [Place(1, 1, 0), Place(1, 2, 0)]
    assert (first.tenant, first.queue, first.uid, first.base) == ("acme", "orders", REPLICA, 1)
    assert (first.confirmed_ms, first.aside_ms, first.is_in_doubt) == (50, 77, False)
    assert tally.messages == engine.look(quarantine.tally_of).messages == 2
    assert tally.bytes == len(first.data) + len(second.data)
    assert engine.scan(Table.LOG, log_key(REPLICA, 0), log_key(REPLICA, 9), 9)[-1][0] == log_key(REPLICA, 0)


def test_what_the_log_that_won_has_is_not_kept_and_what_nobody_knows_is_in_doubt(engine: LmdbEngine) -> None:
    log = Log(engine)
    for epoch in (1, 2, 3):
        log.add(epoch=epoch)
    epochs = [EpochStart(Epoch(2), Offset(1)), EpochStart(Epoch(4), Offset(2))]
    cut(engine, 0, Tally(), Base(epochs, 9))
    found = engine.look(lambda changes: [(p.offset, k.is_in_doubt) for p, k in quarantine.kept_from(changes, None)])
    assert found == [(0, True), (2, False)]


def test_an_entry_that_comes_again_is_not_kept_any_more(engine: LmdbEngine) -> None:
    log, tally = Log(engine), Tally()
    log.add()
    log.add()
    cut(engine, 0, tally)
    commit(engine, lambda changes: quarantine.forget_entry(changes, 1, 1, tally))
    assert places(engine) == [Place(1, 0, 0)] and tally.messages == 1


def test_what_was_begun_is_known_and_stays_so_when_it_is_cut_off_again(engine: LmdbEngine) -> None:
    log, tally = Log(engine), Tally()
    made = log.add()
    cut(engine, 0, tally)
    commit(engine, lambda changes: quarantine.begin(changes, places(engine), 99))
    commit(engine, lambda changes: quarantine.begin(changes, places(engine), 100))
    commit(engine, lambda changes: append(changes, Stored(made)))
    cut(engine, 0, tally)
    kept = engine.look(lambda changes: quarantine.one_of(changes, Place(1, 0, 0)))
    assert kept is not None and kept.begun_ms == 99 and tally.messages == 1
    commit(engine, lambda changes: quarantine.begin(changes, places(engine), 0))
    kept = engine.look(lambda changes: quarantine.one_of(changes, Place(1, 0, 0)))
    assert kept is not None and kept.begun_ms == 0
    commit(engine, lambda changes: quarantine.forget(changes, [Place(1, 0, 0)], tally))
    assert (tally.messages, tally.bytes) == (0, 0)


_KILLED = """
import sys
from pathlib import Path
from tests.unit.backend_store.shard.test_quarantine import MESSAGES, Log, cut, places
from backend_store.shard import quarantine
from backend_store.shard.quarantine import Tally
from backend_store.storage.env import open_engine
engine = open_engine(Path(sys.argv[1]))
tally = Tally()
print("begins", flush=True)
while True:
    log = Log(engine)
    for _ in range(MESSAGES):
        log.add()
    print("cuts", flush=True)
    cut(engine, 0, tally)
    print("cut", flush=True)
"""


def test_a_kill_leaves_the_tail_or_what_is_kept_of_it(tmp_path: Path) -> None:
    for number in range(3):
        path = tmp_path / str(number)
        with subprocess.Popen([sys.executable, "-c", _KILLED, str(path)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line == b"cuts\n":
                    break
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        engine = open_engine(path)
        try:
            log = engine.look(lambda changes: entry_rows.entries_from(changes, 0, 9, 1 << 30, partition=SHARD))
            kept = {place.offset for place in places(engine)}
            assert {entry.offset for entry in log} | kept == set(range(MESSAGES))
        finally:
            engine.close()
