"""The scrub: reads every copy of a backend again and again, slowly, to find rows that the disk has changed.

Each row is checked against its own checksum. A copy with a damaged row is copied again from its leader; a leader hands
over first. Neither uses a copy that is known to be damaged too. Until then damaged rows are not served either: each row
is checked whenever it is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import structlog

from backend_store.core.log.chunk import CorruptEntry
from backend_store.core.replication.entries import decode
from backend_store.node.log.damage import broken_entry
from backend_store.shard.entry_rows import entry_key
from backend_store.shard.hosted import HostedShard
from backend_store.shard.interface import ShardNumber
from backend_store.shard.limits import SCRUB_ROWS_PER_READ
from backend_store.shard.pace import Pace
from backend_store.storage.engine import Row, StorageCorrupt, Table
from backend_store.storage.seal import unseal

log = structlog.get_logger("pushq.shard")

ENTRIES: Final = frozenset({Table.LOG, Table.LANES})
"""Tables whose rows contain a checksum."""
SEALED: Final = frozenset(
    {
        Table.MARKS,
        Table.RETRY,
        Table.DUE,
        Table.EXPIRY,
        Table.ORDER,
        Table.GROUPS,
        Table.PRODUCERS,
        Table.IDS,
        Table.BY_ID,
        Table.PARKED,
        Table.LEASES,
        Table.USAGE,
    }
)
"""Tables whose rows end with a checksum."""
_LAST: Final = b"\xff" * 512
_IDLE_SECONDS: Final = 1.0
_LOG: Final = entry_key(0)[:1]


class Scrub:
    """The scrub of one backend. Run `run` in a task."""

    def __init__(self, shards: Mapping[ShardNumber, HostedShard], *, bytes_per_s: int, every_s: float) -> None:
        """`bytes_per_s`: 0 disables the scrub."""
        self._shards = shards
        self._is_wanted = bytes_per_s > 0
        self._pace = Pace(bytes_per_s)
        self._every_s = every_s
        self.passes = 0
        """Number of complete passes."""

    @property
    def read_bytes(self) -> int:
        return self._pace.taken

    async def run(self) -> None:
        while self._is_wanted:
            for shard in list(self._shards.values()):
                await self._go_through(shard)
            self.passes += 1
            await asyncio.sleep(max(self._every_s, _IDLE_SECONDS if not self._shards else 0.0))

    async def _go_through(self, shard: HostedShard) -> None:
        """Reads one copy once, unless its rows are replaced meanwhile."""
        replicated, loop = shard.replicated, asyncio.get_running_loop()
        engine, found, first = replicated.engine, 0, ""
        for table in (*ENTRIES, *SEALED, Table.REPLICATION):
            start = b"\x00"
            while engine is not None and replicated.engine is engine:
                rows = engine.scan(table, start, _LAST, SCRUB_ROWS_PER_READ)
                if not rows:
                    break
                for row in rows:
                    if reason := wrong_row(table, row, shard.number):
                        found, first = found + 1, first or f"{table.value} {row[0].hex()}: {reason}"
                start = rows[-1][0] + b"\x00"
                self._pace.take(sum(len(key) + len(value) for key, value in rows), loop.time())
                await asyncio.sleep(self._pace.wait_s(loop.time()))
        if engine is None or replicated.engine is not engine:
            return
        replicated.damaged = found  # 0 if nothing is damaged any more: the damaged messages were acked, or have expired
        if found:
            log.error("rows of a copy are not what was written", shard=shard.number, rows=found, first=first)


def wrong_row(table: Table, row: Row, shard: int) -> str:
    """Why a row cannot be what was written; "" where it can, or has no checksum of its own."""
    key, value = row
    try:
        if table in ENTRIES:
            return broken_entry(key, value) or ""
        if table in SEALED:
            unseal(key, value)
        elif table is Table.REPLICATION and key[:1] == _LOG and len(key) == len(entry_key(0)):
            decode(value, partition=shard)
    except (CorruptEntry, StorageCorrupt) as error:
        return str(error)
    return ""
