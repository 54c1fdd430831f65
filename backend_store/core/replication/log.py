"""A replica's view of its log: where it begins and ends, what of it is durable, final and applied.

    start ≤ applied ≤ end,   start ≤ high_watermark ≤ durable_end ≤ end

`applied` is at most the high watermark, or in an async partition that leads, the durable end. Entries themselves stay
with the shell; known here are the epochs, and the ends of the entries that are not both final and applied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from backend_store.core.records import EpochStart
from backend_store.core.replication.entries import Entry
from backend_store.core.replication.limits import WEIGHT_MARKS_MAX
from backend_store.core.replication.messages import SnapshotBase
from backend_store.model import Epoch, Offset


class ProtocolBroken(AssertionError):
    """A bug of ours: the replica stops before it writes what is wrong."""


class Tail(NamedTuple):
    """What must be known of an entry to end the log with it."""

    end: Offset
    crc: int
    time_ms: int
    size: int


class StoredLog(msgspec.Struct, array_like=True):
    """The row that is written with each commit."""

    start: Offset = Offset(0)
    end: Offset = Offset(0)
    high_watermark: Offset = Offset(0)
    applied: Offset = Offset(0)
    whole_from: Offset = Offset(0)
    epochs: tuple[EpochStart, ...] = ()
    base: Tail = Tail(Offset(0), 0, 0, 0)
    """Of the last entry that is both final and applied."""
    size: int = 0
    """About how many bytes the log has from its start up to `base`."""


class Mark(NamedTuple):
    """What a commit holds of the log."""

    end: Offset
    generation: int


class ReplicaLog:
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
        """`tail`: the stored entries above `stored.base`. Raises `ProtocolBroken` where they do not fit."""
        self.start = stored.start
        self.high_watermark = stored.high_watermark
        self.applied = stored.applied
        self.whole_from = stored.whole_from
        """The state is complete when the log has gone so far; pages of a snapshot were read up to here."""
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
        """All of it is durable, and what was truncated is gone from the disk, too."""
        return self.durable_end == self.end and self._landed == self._generation

    @property
    def is_whole(self) -> bool:
        return self.end >= self.whole_from

    @property
    def unsettled(self) -> tuple[int, int]:
        """Entries and bytes that are not both final and applied."""
        return len(self._tail), self._tail_size

    @property
    def settled(self) -> Offset:
        """Below it everything is final and applied."""
        return self._base.end

    def snapshot_base(self) -> SnapshotBase:
        """Where the log goes on for one who takes the state as it is applied now."""
        base = self._base
        return SnapshotBase(base.end, tuple(e for e in self.epochs if e.start < base.end), base.crc, base.time_ms)

    def epoch_before(self, offset: int) -> Epoch:
        """The epoch of the entry that ends at `offset`; 0 at the very beginning."""
        for start in reversed(self.epochs):
            if start.start < offset:
                return start.epoch
        return Epoch(0)

    def end_of(self, epoch: Epoch) -> tuple[Epoch, Offset]:
        """The largest epoch up to `epoch` that the log has, and where it ends; (0, start) when there is none."""
        end = self.end
        for start in reversed(self.epochs):
            if start.epoch <= epoch:
                return start.epoch, end
            end = start.start
        return Epoch(0), end

    def size_from(self, offset: int) -> int:
        """About how many bytes of log lie from `offset` on; never less than there are."""
        known = max((size for place, size in self._marks if place <= offset), default=0)
        return self._size - known

    def staged(self) -> Mark:
        return Mark(self.end, self._generation)

    def stored(self) -> StoredLog:
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
        """Entries that follow the last one. Raises `ProtocolBroken` where they do not (V2, V5)."""
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
        """Cuts the log off at the end of an entry. Raises `ProtocolBroken` below the high watermark (V9)."""
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
        """A commit that held the log as of `mark` is durable."""
        self._landed = mark.generation
        if mark.generation == self._generation:
            self.durable_end = mark.end

    def advance(self, high_watermark: int) -> None:
        """The high watermark has come so far, or to the durable end where that is less. It never goes back."""
        reached = min(high_watermark, self.durable_end)
        if reached <= self.high_watermark:
            return
        self.high_watermark = Offset(reached)
        self._settle()

    def apply_to(self, end: Offset) -> None:
        """Raises `ProtocolBroken` beyond what is durable here (V6)."""
        if end > self.durable_end:
            raise ProtocolBroken(f"asked to apply to {end}, beyond the durable end {self.durable_end}")
        if end > self.applied:
            self.applied = end
            self._settle()

    def trim(self, start: int) -> bool:
        """Lets the log begin at `start`, but never above what is applied and final. Whether it changed."""
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
        """A snapshot takes the place of the state, and of the log but for what lies between `base.end` and `end`."""
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
