"""Reads a partition's rows: chunks of the log, verified, and what is known of their messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import structlog

from backend_store.core.chunk import Chunk, CorruptEntry, decode_chunk
from backend_store.core.work import DEFAULT_GROUP
from backend_store.model import Offset
from backend_store.node.limits import RECOVERY_ROWS_PER_READ
from backend_store.node.rows import read_attempts, read_mark
from backend_store.storage.engine import Engine, StorageCorrupt, Table
from backend_store.storage.keys import log_key, parse_log_key, parse_retry_key, view_range

log = structlog.get_logger("pushq.reader")

Broken = Callable[[int, bytes, str], None]
"""(offset, entry, reason): told of an entry that does not verify."""


class Progress(NamedTuple):
    """What the default group stored of a chunk. `attempts`: index → (attempts started, due in ms or 0)."""

    settled: int
    started: int
    attempts: dict[int, tuple[int, int]]


class LogReader:
    def __init__(self, engine: Engine, replica: int, on_broken: Broken):
        self._engine = engine
        self._replica = replica
        self._on_broken = on_broken

    def first(self, offset: int, below: int) -> Chunk | None:
        """The first chunk at or above `offset` and below `below`. A broken one is reported and skipped."""
        end = log_key(self._replica, below)
        while True:
            row = self._engine.first_at_or_above(Table.LOG, log_key(self._replica, offset), end)
            if row is None:
                return None
            key, data = row
            found = parse_log_key(key)[1]
            try:
                return decode_chunk(data, seed=self._replica, offset=Offset(found))
            except CorruptEntry as error:
                self._on_broken(found, data, str(error))
                offset = found + 1

    def progress(self, base: int) -> Progress:
        """A mark that does not verify counts as none: its messages come again, which is better than never."""
        try:
            settled, started = read_mark(self._engine, self._replica, base)
            return Progress(settled, started, read_attempts(self._engine, self._replica, base))
        except StorageCorrupt as error:
            log.error("broken mark: messages of a chunk are delivered again", offset=base, reason=str(error))
            return Progress(0, 0, {})

    def delayed(self, now_ms: int) -> Iterator[int]:
        """The chunks that hold a message which is due later than now."""
        start, end = view_range(self._replica, DEFAULT_GROUP)
        while rows := self._engine.scan(Table.RETRY, start, end, RECOVERY_ROWS_PER_READ):
            for key, _ in rows:
                base = parse_retry_key(key)[2]
                if any(due > now_ms for _, due in self.progress(base).attempts.values()):
                    yield base
            start = rows[-1][0] + b"\0"
