"""The offsets of a replica's log: where it begins and ends, and what of it is durable, final and applied.

    start ≤ applied ≤ end,   start ≤ high_watermark ≤ durable_end ≤ end

`applied` is at most the high watermark, or on the leader of an async partition, the durable end. The shell has the
entries; this log has their epochs, and the ends of the entries that are not both final and applied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from backend_store.core.log.records import EpochStart
from backend_store.core.replication.entries import Entry
from backend_store.core.replication.limits import WEIGHT_MARKS_MAX
from backend_store.core.replication.messages import SnapshotBase
from backend_store.model import Epoch, Offset


class ProtocolBroken(AssertionError):
    """A bug in this program: the replica stops before it writes wrong data."""


class Tail(NamedTuple):
    """The fields of an entry that the log needs to know of its last one."""

    end: Offset
    crc: int
    time_ms: int
    size: int


class StoredLog(msgspec.Struct, array_like=True):
    """The log's row, which is written with each commit."""

    start: Offset = Offset(0)
    end: Offset = Offset(0)
    high_watermark: Offset = Offset(0)
    applied: Offset = Offset(0)
    whole_from: Offset = Offset(0)
    epochs: tuple[EpochStart, ...] = ()
    base: Tail = Tail(Offset(0), 0, 0, 0)
    """The last entry that is both final and applied."""
    size: int = 0
    """Approximate bytes of the log from its start up to `base`."""


class Mark(NamedTuple):
    """The part of the log that a commit contains. `generation` counts truncations and resets."""

    end: Offset
    generation: int


class ReplicaLog:
    """The offsets and epochs of one replica's log. The replica owns it and shares it with its role."""

    __slots__ = (
        "_base",
        "_generation",
        "_landed",
        "_marks",
        "_size",
        "_tail",
        "_tail_size",
        "applied",
        "durable_end",
        "end",
        "epochs",
        "high_watermark",
        "start",
        "whole_from",
    )

    def __init__(self, stored: StoredLog, tail: Iterable[Entry] = ()):
        """`tail`: the stored entries above `stored.base`. Raises `ProtocolBroken` if they do not follow it."""
        self.start = stored.start
        self.high_watermark = stored.high_watermark
        self.applied = stored.applied
        self.whole_from = stored.whole_from
        """The state is complete once the log has come to this offset, up to which a snapshot's pages were read."""
        self.epochs = [start for start in stored.epochs if start.start < stored.base.end]
        self.end = stored.base.end
        self._base = stored.base
        self._tail: deque[Tail] = deque()
        self._size = stored.size
        self._tail_size = 0
        self._marks = [(self.start, 0)]
        self._generation = self._landed = 0
        self.append(tuple(tail))
        if self.end != stored.end:
            raise ProtocolBroken(f"the log ends at {self.end}, its row says {stored.end}")
        self.durable_end = self.end

    # ----------------------------------------------------------------------------------------------------- reading

    @property
    def last_epoch(self) -> Epoch:
        return self.epochs[-1].epoch if self.epochs else Epoch(0)

    @property
    def last(self) -> Tail:
        return self._tail[-1] if self._tail else self._base

    @property
    def is_clean(self) -> bool:
        """Whether all of the log is durable and truncated entries are deleted from disk."""
        return self.durable_end == self.end and self._landed == self._generation

    @property
    def is_whole(self) -> bool:
        """Whether the state is complete: see `whole_from`."""
        return self.end >= self.whole_from

    @property
    def unsettled(self) -> tuple[int, int]:
        """(entries, bytes) that are not both final and applied."""
        return len(self._tail), self._tail_size

    @property
    def settled(self) -> Offset:
        """Offset below which everything is final and applied."""
        return self._base.end

    def snapshot_base(self) -> SnapshotBase:
        """Returns where the log continues for a replica that takes the state as it is applied now."""
        base = self._base
        return SnapshotBase(base.end, tuple(e for e in self.epochs if e.start < base.end), base.crc, base.time_ms)

    def epoch_before(self, offset: int) -> Epoch:
        """Returns the epoch of the entry that ends at `offset`; 0 at the very beginning."""
        for start in reversed(self.epochs):
            if start.start < offset:
                return start.epoch
        return Epoch(0)

    def end_of(self, epoch: Epoch) -> tuple[Epoch, Offset]:
        """Returns the largest epoch up to `epoch` that the log has, and where it ends. If there is none: 0, and where
        the log's first epoch begins.
        """
        end = self.end
        for start in reversed(self.epochs):
            if start.epoch <= epoch:
                return start.epoch, end
            end = start.start
        return Epoch(0), end

    def size_from(self, offset: int) -> int:
        """Returns about how many bytes the log has from `offset` on, never too few."""
        known = max((size for place, size in self._marks if place <= offset), default=0)
        return self._size - known

    def staged(self) -> Mark:
        """Returns the mark of a commit that begins now."""
        return Mark(self.end, self._generation)

    def stored(self) -> StoredLog:
        """Returns the row to be written with the commit."""
        return StoredLog(
            self.start,
            self.end,
            self.high_watermark,
            self.applied,
            self.whole_from,
            tuple(self.epochs),
            self._base,
            max(0, self._size - self._tail_size - self._marks[0][1]),
        )

    # ---------------------------------------------------------------------------------------------------- changing

    def append(self, entries: Sequence[Entry]) -> None:
        """Appends entries. Raises `ProtocolBroken` if they do not follow the last one (V2, V5)."""
        for entry in entries:
            last = self.last
            if entry.offset != self.end or entry.prev_crc != last.crc:
                raise ProtocolBroken(f"entry at {entry.offset} does not follow the log that ends at {self.end}")
            if entry.epoch < self.last_epoch or entry.time_ms < last.time_ms:
                raise ProtocolBroken(f"entry at {entry.offset}: its epoch {entry.epoch} or its time goes back")
            if entry.epoch > self.last_epoch:
                self.epochs.append(EpochStart(entry.epoch, entry.offset))
            self._size += len(entry.data)
            self.end = entry.end
            self._tail.append(Tail(entry.end, entry.crc, entry.time_ms, len(entry.data)))
            self._tail_size += len(entry.data)
            self._weigh()

    def truncate(self, end: Offset) -> None:
        """Truncates the log to the end of an entry. Raises `ProtocolBroken` below the high watermark, below what is
        applied (V9), or if no entry ends there.
        """
        if end < self.high_watermark or end < self.applied:
            raise ProtocolBroken(f"asked to truncate to {end}, below {self.high_watermark} or {self.applied}")
        while self._tail and self._tail[-1].end > end:
            size = self._tail.pop().size
            self._size -= size
            self._tail_size -= size
        self.end = self.last.end
        if self.end != end:
            raise ProtocolBroken(f"no entry ends at {end}, where the log is to be truncated")
        self.epochs = [start for start in self.epochs if start.start < end]
        self._marks = [mark for mark in self._marks if mark[0] <= end]
        self.durable_end = min(self.durable_end, end)
        self._generation += 1

    def committed(self, mark: Mark) -> None:
        """Notes that a commit with the log as of `mark` is durable."""
        self._landed = mark.generation
        if mark.generation == self._generation:
            self.durable_end = mark.end

    def advance(self, high_watermark: int) -> None:
        """Moves the high watermark up to the given offset or the durable end, whichever is less. It never goes back."""
        reached = min(high_watermark, self.durable_end)
        if reached <= self.high_watermark:
            return
        self.high_watermark = Offset(reached)
        self._settle()

    def apply_to(self, end: Offset) -> None:
        """Notes that entries are applied up to `end`. Raises `ProtocolBroken` beyond the durable end (V6)."""
        if end > self.durable_end:
            raise ProtocolBroken(f"asked to apply to {end}, beyond the durable end {self.durable_end}")
        if end > self.applied:
            self.applied = end
            self._settle()

    def trim(self, start: int) -> bool:
        """Trims the log to begin at `start`, but never above what is applied and final. Returns whether it changed."""
        start = min(start, self.applied, self.high_watermark)
        if start <= self.start:
            return False
        self.start = Offset(start)
        while len(self.epochs) > 1 and self.epochs[1].start < start:
            del self.epochs[0]
        while len(self._marks) > 1 and self._marks[1][0] <= start:
            del self._marks[0]
        return True

    def reset(self, base: SnapshotBase, *, whole_from: Offset, end: Offset) -> None:
        """A snapshot replaces the state and the log, except the entries between `base.end` and `end`. Raises
        `ProtocolBroken` if that would undo what is final, or if these entries do not follow `base`.
        """
        if base.end < self.high_watermark:
            raise ProtocolBroken(f"a snapshot of {base.end} would undo what is final, {self.high_watermark}")
        kept = [tail for tail in self._tail if base.end < tail.end <= end]
        if kept and (base.end, base.last_crc) not in [(at.end, at.crc) for at in (self._base, *self._tail)]:
            raise ProtocolBroken(f"a snapshot up to {base.end}, where no entry of this log ends, or another one")
        later = [start for start in self.epochs if base.end <= start.start < end]
        self.start = self.high_watermark = self.applied = base.end
        self.end = kept[-1].end if kept else base.end
        self.whole_from = whole_from
        self.epochs = [*base.epochs, *later]
        self._base = Tail(base.end, base.last_crc, base.last_time_ms, 0)
        self._tail = deque(kept)
        self._size = self._tail_size = sum(tail.size for tail in kept)
        self._marks = [(base.end, 0)]
        self.durable_end = Offset(0)
        self._generation += 1

    def _settle(self) -> None:
        settled = min(self.applied, self.high_watermark)
        while self._tail and self._tail[0].end <= settled:
            self._base = self._tail.popleft()
            self._tail_size -= self._base.size

    def _weigh(self) -> None:
        self._marks.append((self.end, self._size))
        if len(self._marks) > WEIGHT_MARKS_MAX:
            self._marks = [*self._marks[:-1:2], self._marks[-1]]
