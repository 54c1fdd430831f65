"""Reads a partition's rows: chunks of the log, verified, and what is known of their messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from backend_store.core.chunk import Chunk, CorruptEntry, decode_chunk
from backend_store.core.work import DEFAULT_GROUP
from backend_store.model import Offset
from backend_store.node.limits import RECOVERY_ROWS_PER_READ
from backend_store.node.rows import decode_attempts, decode_mark
from backend_store.storage.engine import Engine, Table
from backend_store.storage.keys import log_key, mark_key, parse_log_key, parse_retry_key, retry_key, view_range

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
        mark = self._engine.get(Table.MARKS, mark_key(self._replica, DEFAULT_GROUP, base))
        attempts = self._engine.get(Table.RETRY, retry_key(self._replica, DEFAULT_GROUP, base))
        return Progress(*decode_mark(mark), decode_attempts(attempts))

    def delayed(self, now_ms: int) -> Iterator[int]:
        """The chunks that hold a message which is due later than now."""
        start, end = view_range(self._replica, DEFAULT_GROUP)
        while rows := self._engine.scan(Table.RETRY, start, end, RECOVERY_ROWS_PER_READ):
            for key, row in rows:
                if any(due > now_ms for _, due in decode_attempts(row).values()):
                    yield parse_retry_key(key)[2]
            start = rows[-1][0] + b"\0"
