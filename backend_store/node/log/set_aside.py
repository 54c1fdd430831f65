"""Quarantine: puts damaged entries aside, so that they are never served and never silently dropped. Writes off and
reports the loss."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import structlog

from backend_store.core.log.chunk import claimed_messages
from backend_store.core.log.sublogs import view_of
from backend_store.node.commit.committer import Committer
from backend_store.node.limits import VERIFY_AT_START_BYTES_MAX
from backend_store.node.log.apply import entry_place, replicas_in
from backend_store.node.log.damage import Loss, Reckoning
from backend_store.node.partition import Partition
from backend_store.storage.engine import Batch, Engine, Table
from backend_store.storage.keys import parse_entry_key
from backend_store.storage.verify import parse_quarantine_value, quarantine_value, verify

log = structlog.get_logger("pushq.node")


class Aside:
    """The quarantine of one node. `partitions`: the open ones, by replica."""

    def __init__(
        self,
        engine: Engine,
        committer: Committer,
        partitions: Mapping[int, Partition],
        background: Callable[[Coroutine[Any, Any, None], str], None],
    ):
        self.entries = 0
        """Entries put aside since the process started."""
        self.missing = 0
        """Messages that should have been there at start and were not, besides those of entries put aside."""
        self._engine = engine
        self._committer = committer
        self._partitions = partitions
        self._background = background
        self._going: set[bytes] = set()

    def verify(self) -> None:
        """After an unclean stop, reads every entry once before serving, and counts what is there. A big log is checked
        as it is read: each entry's checksum is verified before delivery anyway."""
        if self._engine.was_clean or self._engine.space().file_bytes > VERIFY_AT_START_BYTES_MAX:
            return
        reckoning = Reckoning(self._partitions)
        report = verify(self._engine, reckoning)
        self.entries += report.quarantined
        losses = {(loss.partition.replica, loss.view): loss for loss in reckoning.losses()}
        for key, reason in report.listed:
            replica, shelf, offset = parse_entry_key(key)
            self._write_off_some(losses.get((replica, view_of(shelf))), key, offset, reason)
            if (partition := self._partitions.get(replica)) is not None:
                partition.unschedule(shelf, offset)
        for loss in losses.values():
            if loss.messages or loss.size:
                self.missing += loss.messages
                loss.partition.write_off(loss.view, loss.messages, loss.size)
                log.error("messages are missing", queue=loss.partition.label, view=loss.view, messages=loss.messages)
        log.info("verified after an unclean end", entries=report.rows, broken=report.quarantined)

    def _write_off_some(self, loss: Loss | None, key: bytes, offset: int, reason: str) -> None:
        """Counts a broken entry's own claim of its size, at most as much as is missing."""
        stored = self._engine.get(Table.QUARANTINE, key)
        if loss is None or stored is None:
            log.error("corrupt entry put aside", offset=offset, reason=reason, messages=0)
            return
        data = parse_quarantine_value(stored)[1]
        size, lost = min(len(data), loss.size), min(_claimed(loss.partition, offset, data, loss.view), loss.messages)
        loss.messages, loss.size = loss.messages - lost, loss.size - size
        _write_off(loss.partition, offset, reason, loss.view, lost, size)

    def find(self) -> None:
        """At start: finds partitions with quarantined entries, whose counts may still be too high."""
        for replica in replicas_in(self._engine, Table.QUARANTINE):
            if (partition := self._partitions.get(replica)) is not None:
                partition.has_losses = True
                partition.request()

    def put(self, partition: Partition, shelf: int, offset: int, data: bytes, reason: str) -> None:
        """Moves a corrupt entry to the quarantine table."""
        table, key = entry_place(partition.replica, shelf, offset)
        if key in self._going:
            return  # counted already; its row stays until the commit that moves it
        self._going.add(key)
        batch = Batch()
        batch.put(Table.QUARANTINE, key, quarantine_value(reason, data))
        batch.delete(table, key)
        self._background(self._move(key, batch), "quarantine")
        self.entries += 1
        view = view_of(shelf)
        lost, size = partition.lose(shelf, offset) or (_claimed(partition, offset, data, view), len(data))
        _write_off(partition, offset, reason, view, lost, size)

    async def _move(self, key: bytes, batch: Batch) -> None:
        try:
            await self._committer.write(batch)
        finally:
            self._going.discard(key)


def _claimed(partition: Partition, offset: int, data: bytes, view: int) -> int:
    """How many unsettled messages a broken entry had, by its own header."""
    return max(0, claimed_messages(data) - partition.progress(offset, view).settled.bit_count())


def _write_off(partition: Partition, offset: int, reason: str, view: int, lost: int, size: int) -> None:
    partition.write_off(view, lost, size, offset)
    log.error("corrupt entry put aside", queue=partition.label, offset=offset, reason=reason, messages=lost)
