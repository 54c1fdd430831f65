"""The usage ledger of a node: rows cut by commits wait in the store until they are durable in a file.

The commit that deletes rows also adds them to the day's totals, so nothing is counted twice or lost, whenever the
process ends.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec
import structlog

from backend_store.core.ledger import DAY_MS, KINDS, LedgerCut, Title, counts_at, cut, day_is_over
from backend_store.core.log.records import PartitionState
from backend_store.node.limits import LEDGER_CUTS_AT_ONCE, LEDGER_DAYS_SWEPT_AT_ONCE, LEDGER_ROWS_PER_READ
from backend_store.node.log.unreadable import Unreadable
from backend_store.storage.engine import Batch, Engine, Row, Table
from backend_store.storage.seal import seal, unseal

log = structlog.get_logger("pushq.ledger")

BYTES: Final = ("published_bytes", "moved_in_bytes")
"""What is counted in bytes, beside the messages."""

_CUT = struct.Struct(">cQQIQ")
_DAY = struct.Struct(">cIQ")
_FILES: Final = b"c/ledger-files"
_CUTS: Final = (b"l", b"m")
_DAYS: Final = (b"d", b"e")
_encode = msgspec.msgpack.Encoder().encode
_cut = msgspec.msgpack.Decoder(LedgerCut)


class QueueTotal(msgspec.Struct, array_like=True):
    """What was counted of one queue, messages by kind and bytes: in one row, or summed over rows."""

    tenant: str
    queue: str
    uid: int
    counts: dict[str, int]


def together(totals: Iterable[QueueTotal]) -> list[QueueTotal]:
    """One total per queue, in the order of their names: sums what the queue has in several places."""
    found: dict[int, QueueTotal] = {}
    for one in totals:
        _sum(found.setdefault(one.uid, QueueTotal(one.tenant, one.queue, one.uid, {})).counts, one.counts)
    return sorted(found.values(), key=lambda one: (one.tenant, one.queue, one.uid))


class Totals(list[QueueTotal]):
    """What was counted, as far as rows could be read."""

    unreadable = 0
    """Rows of the days asked for that could not be read, of any queue: the sums may lack them."""


_day = msgspec.msgpack.Decoder(QueueTotal)


class Waiting(NamedTuple):
    """A row of the ledger that is in no file yet, and its key."""

    key: bytes
    row: LedgerCut


class Counted(Protocol):
    """A partition, as the ledger sees it."""

    title: Title
    state: PartitionState

    def cut(self) -> bool:
        """Asks for a row of what was counted since the last one; False if there is nothing."""


def stage_cut(batch: Batch, state: PartitionState, title: Title, at_ms: int) -> None:
    """Adds a row of what a partition counted, if anything, to the commit that makes it true."""
    row = cut(state, title, at_ms)
    if row is None:
        return
    if "unexplained" in row.counts:
        log.error("the ledger does not add up", queue=title.queue, partition=title.partition, counts=row.counts)
    key = _CUT.pack(b"l", row.at_ms, row.uid, row.partition, row.end)
    batch.put(Table.USAGE, key, seal(key, _encode(row)))


def stage_day(batch: Batch, state: PartitionState, title: Title, now_ms: int) -> None:
    """Called before a commit counts: writes what was counted on another day as a row of that day."""
    if now_ms <= state.ledger.at_ms:
        return
    if day_is_over(state.ledger, now_ms):
        stage_cut(batch, state, title, now_ms)
    state.ledger.at_ms = now_ms


class LedgerBook:
    """The ledger's rows and daily totals; the node owns it."""

    def __init__(
        self,
        engine: Engine,
        write: Callable[[Batch], Awaitable[None]],
        partitions: Callable[[], Iterable[Counted]],
        clock_ms: Callable[[], int],
        listen: Callable[[], Callable[[], Iterable[Counted]]] | None = None,
    ):
        """`listen` returns a function that gives the partitions with commits since its last call. Without it all
        partitions are asked each time."""
        self._listen = listen
        self._touched: Callable[[], Iterable[Counted]] | None = None
        self._engine = engine
        self._write = write
        self._partitions = partitions
        self._clock_ms = clock_ms
        self._turn = asyncio.Lock()
        self.unreadable = Unreadable("a row of the ledger")
        row = engine.get(Table.USAGE, _FILES)
        self.files = int.from_bytes(unseal(_FILES, row), "big") if row is not None else 0
        """How many files have taken rows. The next file's number is one more, also after a crash."""

    async def cut(self) -> None:
        """Returns when everything counted before the call is in rows."""
        asked = 0
        for partition in self._changed():
            asked += partition.cut()
            if asked == LEDGER_CUTS_AT_ONCE:
                await self._write(Batch())
                asked = 0
        await self._write(Batch())

    def _changed(self) -> list[Counted]:
        """Partitions that may have counted something; all of them on the first call."""
        if self._touched is not None:
            return list(self._touched())
        if self._listen is not None:
            self._touched = self._listen()
        return list(self._partitions())

    async def confirmed(self) -> None:
        """Returns when everything read here before is committed: the disk of a replicated log's leader is ahead of its
        followers'."""
        await self._write(Batch())

    def waiting(self, limit: int = LEDGER_ROWS_PER_READ, after: bytes | None = None) -> list[Waiting]:
        """The oldest readable rows that are in no file yet."""
        start = _CUTS[0] if after is None else after + b"\0"
        found: list[Waiting] = []
        while rows := self._engine.scan(Table.USAGE, start, _CUTS[1], limit - len(found)):
            found += self.unreadable.read(rows, _waiting)
            start = rows[-1][0] + b"\0"
            if len(found) == limit:
                break
        return found

    @property
    def is_behind(self) -> bool:
        """Whether so many rows wait that more would not help: later counts add up in the partitions."""
        most = LEDGER_ROWS_PER_READ + len(self.unreadable)
        return len(self._engine.scan(Table.USAGE, *_CUTS, most)) == most

    def oldest_waiting_ms(self) -> int | None:
        """When the oldest row that is in no file was cut; None if there is none."""
        rows = self._engine.scan(Table.USAGE, *_CUTS, len(self.unreadable) + 1)
        return next((int(_CUT.unpack(key)[1]) for key, _ in rows if key not in self.unreadable), None)

    async def taken(self, rows: Sequence[Waiting], *, kept_days: int) -> None:
        """The rows are durable in a file: deletes them and adds them to their days' totals."""
        async with self._turn:
            batch = Batch()
            days: dict[bytes, QueueTotal] = {}
            for key, row in rows:
                batch.delete(Table.USAGE, key)
                day = _DAY.pack(b"d", row.at_ms // DAY_MS, row.uid)
                if day not in days:
                    days[day] = self._day(day, row)
                _add(days[day].counts, row)
            for key, total in days.items():
                if key not in self.unreadable:
                    batch.put(Table.USAGE, key, seal(key, _encode(total)))
            oldest = max(0, self._clock_ms() // DAY_MS - kept_days)
            end = _DAY.pack(b"d", oldest, 0)
            for key, _ in self._engine.scan(Table.USAGE, _DAYS[0], end, LEDGER_DAYS_SWEPT_AT_ONCE):
                batch.delete(Table.USAGE, key)
            batch.put(Table.USAGE, _FILES, seal(_FILES, (self.files + 1).to_bytes(8, "big")))
            await self._write(batch)
            self.files += 1

    def _day(self, key: bytes, of: LedgerCut) -> QueueTotal:
        """The total of a day so far. An unreadable one stays as it is: a copy elsewhere may be good."""
        row = self._engine.get(Table.USAGE, key)
        known = [] if row is None else self.unreadable.read([(key, row)], _total)
        return known[0] if known else QueueTotal(of.tenant, of.queue, of.uid, {})

    async def totals(
        self, *, first_day: int, last_day: int, tenant: str | None = None, queue: str | None = None
    ) -> Totals:
        """What was counted from `first_day` to `last_day` (days since 1970, both included), by queue: exact as of the
        last commit if every row can be read."""
        async with self._turn:  # rows must not move into a day's total while both are read
            found: dict[int, QueueTotal] = {}

            def add(title: LedgerCut | QueueTotal | Title, counts: dict[str, int]) -> None:
                if (tenant is None or title.tenant == tenant) and (queue is None or title.queue == queue):
                    total = found.setdefault(title.uid, QueueTotal(title.tenant, title.queue, title.uid, {}))
                    _sum(total.counts, counts)

            # Leaves out what commits count meanwhile: the answer is the state at the call.
            begun: dict[tuple[int, int], int] = {}
            for partition in self._partitions():
                state, title = partition.state, partition.title
                begun[title.uid, title.partition] = state.ledger.start
                pending, now_ms = _pending(state), self._clock_ms()
                if first_day <= (counts_at(state.ledger, now_ms) if pending else now_ms) // DAY_MS <= last_day:
                    add(title, pending)
            days = await self._rows(_DAY.pack(b"d", first_day, 0), _DAY.pack(b"d", last_day + 1, 0))
            read = self.unreadable.read(days, _total)
            for total in read:
                add(total, total.counts)
            from_key = _CUT.pack(b"l", first_day * DAY_MS, 0, 0, 0)
            cuts = await self._rows(from_key, _CUT.pack(b"l", (last_day + 1) * DAY_MS, 0, 0, 0))
            waiting = self.unreadable.read(cuts, _waiting)
            for _, row in waiting:
                if row.start < begun.get((row.uid, row.partition), row.end):
                    counts: dict[str, int] = {}
                    _add(counts, row)
                    add(row, counts)
            totals = Totals(together(found.values()))
            totals.unreadable = len(days) + len(cuts) - len(read) - len(waiting)
            return totals

    async def _rows(self, start: bytes, end: bytes) -> list[Row]:
        rows: list[Row] = []
        while part := self._engine.scan(Table.USAGE, start, end, LEDGER_ROWS_PER_READ):
            rows += part
            start = part[-1][0] + b"\0"
            await asyncio.sleep(0)
        return rows


def _waiting(key: bytes, stored: bytes) -> Waiting:
    return Waiting(key, _cut.decode(unseal(key, stored)))


def _total(key: bytes, stored: bytes) -> QueueTotal:
    return _day.decode(unseal(key, stored))


def _pending(state: PartitionState) -> dict[str, int]:
    return {name: count for name in (*KINDS, *BYTES) if (count := getattr(state.ledger, name))}


def _add(counts: dict[str, int], row: LedgerCut) -> None:
    _sum(counts, row.counts)
    _sum(counts, {name: size for name in BYTES if (size := getattr(row, name))})


def _sum(counts: dict[str, int], more: dict[str, int]) -> None:
    for name, count in more.items():
        counts[name] = counts.get(name, 0) + count
