"""Reads a partition's rows: verified chunks of the log, and the indexes and progress of their messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import structlog

from backend_store.core.log.chunk import Chunk, CorruptEntry, decode_chunk
from backend_store.core.log.records import Retry
from backend_store.core.log.sealed_block import Seal
from backend_store.core.log.sublogs import MAIN, VIEW_MAIN
from backend_store.model import Offset
from backend_store.node.limits import RECOVERY_ROWS_PER_READ
from backend_store.node.log.apply import (
    StoredLease,
    decode_bits,
    decode_lease,
    decode_places,
    entry_place,
    read_attempts,
    read_due_bits,
    read_mark,
    read_name,
    read_schedule,
)
from backend_store.storage.engine import Engine, StorageCorrupt, Table
from backend_store.storage.keys import (
    log_range,
    order_key,
    parked_key,
    parked_range,
    parse_parked_key,
    parse_retry_key,
    parse_timed_key,
    timed_key,
    view_range,
)
from backend_store.storage.seal import unseal

log = structlog.get_logger("pushq.reader")

Broken = Callable[[int, int, bytes, str], None]
"""(shelf, offset, entry, reason): called for an entry that does not verify."""


class Progress(NamedTuple):
    """What a view stored about a chunk."""

    settled: int
    started: int
    attempts: dict[int, Retry]


class DueRow(NamedTuple):
    """Messages of a scheduled chunk that become ready together."""

    due_ms: int
    base: int
    shelf: int
    bits: int


class OrderRow(NamedTuple):
    """A released batch: its messages as (base, index) in release order; None if the row is broken."""

    number: int
    places: list[tuple[int, int]] | None


class LogReader:
    """Reads one partition's rows. `on_broken_row` is called for each index row that does not verify."""

    def __init__(
        self,
        engine: Engine,
        replica: int,
        on_broken: Broken,
        partition: int = 0,
        on_broken_row: Callable[[], None] = lambda: None,
        seal: Seal | None = None,
        uid: int = 0,
    ):
        self._engine = engine
        self._replica = replica
        self._on_broken = on_broken
        self._on_broken_row = on_broken_row
        self._partition = partition
        self._seal = seal
        self._uid = uid

    def first(self, offset: int, below: int, shelf: int = MAIN) -> Chunk | None:
        """The first chunk of a shelf at or above `offset` and below `below`. A broken chunk is reported and skipped."""
        table, end = entry_place(self._replica, shelf, below)
        while True:
            row = self._engine.first_at_or_above(table, entry_place(self._replica, shelf, offset)[1], end)
            if row is None:
                return None
            key, data = row
            found = int.from_bytes(key[-8:], "big")
            try:
                chunk = decode_chunk(data, seed=self._replica, offset=Offset(found))
                chunk.partition = self._partition
                chunk.seal = self._seal
                chunk.uid = self._uid
                return chunk
            except CorruptEntry as error:
                self._on_broken(shelf, found, data, str(error))
                offset = found + 1

    def last(self, start: int, offset: int, shelf: int = MAIN) -> Chunk | None:
        """The last chunk of a shelf that begins between `start` and `offset`. If it is broken it is reported, and None
        returned."""
        table, low = entry_place(self._replica, shelf, start)
        high = entry_place(self._replica, shelf, offset + 1)[1]
        rows = self._engine.scan(table, low, high, 1, reverse=True)
        return self.first(int.from_bytes(rows[0][0][-8:], "big"), offset + 1, shelf) if rows else None

    def progress(self, base: int, view: int = VIEW_MAIN) -> Progress:
        """What a view stored about a chunk. A mark that does not verify counts as none: redelivery is better than
        loss."""
        try:
            settled, started = read_mark(self._engine, self._replica, base, view)
            return Progress(settled, started, read_attempts(self._engine, self._replica, base, view))
        except StorageCorrupt as error:
            self._met("broken mark: messages of a chunk are delivered again", offset=base, reason=str(error))
            return Progress(0, 0, {})

    def delayed(self, now_ms: int, view: int = VIEW_MAIN) -> Iterator[int]:
        """The chunks with a returned message that is due later than now."""
        start, end = view_range(self._replica, view)
        while rows := self._engine.scan(Table.RETRY, start, end, RECOVERY_ROWS_PER_READ):
            for key, _ in rows:
                base = parse_retry_key(key)[2]
                if any(retry.due_ms > now_ms for retry in self.progress(base, view).attempts.values()):
                    yield base
            start = rows[-1][0] + b"\0"

    def _met(self, what: str, **facts: object) -> None:
        """Reports an index row that does not verify. Its content is known otherwise, or assumed so that nothing is
        lost."""
        self._on_broken_row()
        log.error(what, **facts)

    # --------------------------------------------------------------------------------------------------- indexes

    def due(self, after: tuple[int, int], up_to_ms: int, limit: int) -> list[DueRow]:
        """Rows of the schedule after (due, base) `after`, due by `up_to_ms`. A broken row counts as due: better twice
        than never.
        """
        start = timed_key(self._replica, after[0], after[1] + 1)
        rows = self._engine.scan(Table.DUE, start, timed_key(self._replica, up_to_ms + 1, 0), limit)
        return [self._due_row(key, row) for key, row in rows]

    def next_due(self, after_ms: int) -> int | None:
        """The next due time after `after_ms`; None if there is none."""
        end = log_range(self._replica)[1]
        row = self._engine.first_at_or_above(Table.DUE, timed_key(self._replica, after_ms + 1, 0), end)
        return None if row is None else parse_timed_key(row[0])[1]

    def schedule_of(self, base: int) -> list[int]:
        """The due times of a chunk's messages."""
        try:
            return read_schedule(self._engine, self._replica, base)
        except StorageCorrupt as error:
            self._met("broken row of a schedule: its rows are passed over when due", offset=base, reason=str(error))
            return []

    def due_bits(self, base: int, due_ms: int) -> int:
        """Which messages of a chunk become ready at `due_ms`."""
        try:
            return read_due_bits(self._engine, self._replica, base, due_ms)
        except StorageCorrupt as error:
            self._met("broken row of the schedule: its chunk is looked at as a whole", offset=base, reason=str(error))
            return 0

    def named(self, name: bytes) -> tuple[int, int, int] | None:
        """(shelf, base, index) of the scheduled message with this hash of its id."""
        try:
            return read_name(self._engine, self._replica, name)
        except StorageCorrupt as error:
            self._met("broken row of an id: its message cannot be cancelled", reason=str(error))
            return None

    def _due_row(self, key: bytes, row: bytes) -> DueRow:
        _, due_ms, base = parse_timed_key(key)
        try:
            return DueRow(due_ms, base, *decode_bits(unseal(key, row)))
        except StorageCorrupt as error:
            self._met("broken row of the schedule: its chunk is looked at as a whole", offset=base, reason=str(error))
            return DueRow(due_ms, base, -1, -1)

    def expiring(self, up_to_ms: int, limit: int) -> list[tuple[int, int, int]]:
        """(expires, base, shelf) of the chunks to check by `up_to_ms`."""
        start, end = timed_key(self._replica, 0, 0), timed_key(self._replica, up_to_ms + 1, 0)
        out = []
        for key, row in self._engine.scan(Table.EXPIRY, start, end, limit):
            _, expires_ms, base = parse_timed_key(key)
            try:
                out.append((expires_ms, base, unseal(key, row)[0]))
            except StorageCorrupt as error:
                self._met("broken row of expiry: its chunk expires at delivery", offset=base, reason=str(error))
                out.append((expires_ms, base, -1))
        return out

    def next_expiry(self) -> int | None:
        start, end = log_range(self._replica)
        row = self._engine.first_at_or_above(Table.EXPIRY, start, end)
        return None if row is None else parse_timed_key(row[0])[1]

    def order(self, is_head: bool, number: int) -> OrderRow | None:
        """The first released batch numbered `number` or higher."""
        start, end = order_key(self._replica, is_head, number), order_key(self._replica, is_head, (1 << 64) - 1)
        row = self._engine.first_at_or_above(Table.ORDER, start, end)
        if row is None:
            return None
        found = int.from_bytes(row[0][-8:], "big")
        try:
            return OrderRow(found, decode_places(unseal(*row)))
        except StorageCorrupt:
            return OrderRow(found, None)

    def parked(self, lane: int, number: int, position: int) -> tuple[int, int] | None:
        """(base, bits) of a parked row. A broken one counts as gone: its messages come again after a restart."""
        key = parked_key(self._replica, lane, number, position)
        row = self._engine.get(Table.PARKED, key)
        if row is None:
            return None
        try:
            data = unseal(key, row)
        except StorageCorrupt as error:
            self._met("broken row of what waits behind a key", number=number, reason=str(error))
            return None
        return int.from_bytes(data[:8], "big"), decode_bits(data[8:])[1]

    def parked_below(self, view: int, number: int, limit: int) -> list[tuple[int, int, int]]:
        """(lane, number, position) of a view's first parked rows with lower numbers."""
        found: list[tuple[int, int, int]] = []
        start, end = parked_range(self._replica, view)
        while len(found) < limit and (row := self._engine.first_at_or_above(Table.PARKED, start, end)) is not None:
            lane, at, position = parse_parked_key(row[0])
            if at < number:
                found.append((lane, at, position))
                start = row[0] + b"\0"
            else:
                start = parked_key(self._replica, lane + 1, 0, 0)
        return found

    def leases(self) -> Iterator[StoredLease]:
        """Leases that survived a restart. A lease whose row is broken is over: its messages are redelivered."""
        start, end = log_range(self._replica)
        while rows := self._engine.scan(Table.LEASES, start, end, RECOVERY_ROWS_PER_READ):
            for key, row in rows:
                try:
                    yield decode_lease(unseal(key, row))
                except StorageCorrupt as error:
                    self._met("broken row of a lease: its messages are delivered again", reason=str(error))
            start = rows[-1][0] + b"\0"
