"""The audit log: what administrators did, in order of beginning. A row does not change once its act has ended.

The writer decides what a row says. The log numbers a row, makes it durable before it counts, and keeps it until it is
in a file and enough newer rows exist.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from backend_store.node.limits import LEDGER_ROWS_PER_READ
from backend_store.node.log.unreadable import Unreadable
from backend_store.storage.engine import Batch, Engine, Table
from backend_store.storage.seal import seal, unseal

_KEY = struct.Struct(">cQ")
_ROWS: Final = (b"a", b"b")
_EXPORTED: Final = b"c/audit"


class AuditEntry(NamedTuple):
    seq: int
    data: bytes
    """Empty if the row cannot be read."""


class AuditLog:
    """A node's audit log; the node owns the object."""

    def __init__(self, engine: Engine, write: Callable[[Batch], Awaitable[None]]):
        self._engine = engine
        self._write = write
        last = engine.scan(Table.USAGE, *_ROWS, 1, reverse=True)
        self._last = max(_seq(last[0][0]) if last else 0, self.exported)
        self._open: set[int] = set()
        """Acts in progress: no file takes a row at or after the first of them."""
        self._is_held = False
        self.unreadable = Unreadable("a row of the audit")

    @property
    def exported(self) -> int:
        """Every row up to this one is in a file. Raises `StorageCorrupt`."""
        row = self._engine.get(Table.USAGE, _EXPORTED)
        return int.from_bytes(unseal(_EXPORTED, row), "big") if row is not None else 0

    def begin(self) -> int:
        """Returns the number of an act that is about to begin."""
        self._last += 1
        self._open.add(self._last)
        return self._last

    async def put(self, seq: int, data: bytes, *, has_ended: bool) -> None:
        """Returns when the row is durable. The row of an act in progress is put again at its end."""
        key = _KEY.pack(b"a", seq)
        batch = Batch()
        batch.put(Table.USAGE, key, seal(key, data))
        with self._over_if_unwritten(seq):
            await self._write(batch)
        if has_ended:
            self._open.discard(seq)

    async def forget(self, seq: int) -> None:
        """Deletes the row: nothing was done."""
        batch = Batch()
        batch.delete(Table.USAGE, _KEY.pack(b"a", seq))
        with self._over_if_unwritten(seq):
            await self._write(batch)
        self._open.discard(seq)

    def give_up(self, seq: int) -> None:
        """The act will not be ended: its row stays as it is."""
        self._open.discard(seq)

    def hold(self) -> bool:
        """Blocks files from taking rows until `release`, as acts that began in another process may end in this one.
        False if every row is in a file, so that no such act can exist."""
        self._is_held = self._last > self.exported
        return self._is_held

    def release(self) -> None:
        self._is_held = False

    @contextmanager
    def _over_if_unwritten(self, seq: int) -> Iterator[None]:
        """Treats a failed or cancelled write as the end of its act: no caller returns to end it, and what is on disk
        stays, as after a crash. Later rows must not wait for ever.
        """
        try:
            yield
        except BaseException:
            self._open.discard(seq)
            raise

    def before(self, seq: int | None, limit: int) -> list[AuditEntry]:
        """The newest rows below a number, newest first; an unreadable row keeps its place, with empty data."""
        end = _ROWS[1] if seq is None else _KEY.pack(b"a", seq)
        rows = self._engine.scan(Table.USAGE, _ROWS[0], end, limit, reverse=True)
        read = {entry.seq: entry for entry in self.unreadable.read(rows, _entry_of)}
        return [read.get(_seq(key)) or AuditEntry(_seq(key), b"") for key, _ in rows]

    def waiting(self) -> list[AuditEntry]:
        """The oldest readable rows that are in no file, up to the first act in progress."""
        if self._is_held:
            return []
        start = _KEY.pack(b"a", self.exported + 1)
        end = _KEY.pack(b"a", min(self._open)) if self._open else _ROWS[1]
        while rows := self._engine.scan(Table.USAGE, start, end, LEDGER_ROWS_PER_READ):
            if found := self.unreadable.read(rows, _entry_of):
                return found
            start = rows[-1][0] + b"\0"
        return []

    async def taken(self, seq: int, *, kept: int) -> None:
        """Every row up to this one is durable in a file; deletes them except the newest `kept`."""
        batch = Batch()
        batch.put(Table.USAGE, _EXPORTED, seal(_EXPORTED, seq.to_bytes(8, "big")))
        end = _KEY.pack(b"a", max(0, seq - kept))
        for key, _ in self._engine.scan(Table.USAGE, _ROWS[0], end, 2 * LEDGER_ROWS_PER_READ):
            batch.delete(Table.USAGE, key)
        await self._write(batch)


def _entry_of(key: bytes, stored: bytes) -> AuditEntry:
    return AuditEntry(_seq(key), unseal(key, stored))


def _seq(key: bytes) -> int:
    return int(_KEY.unpack(key)[1])
