"""What a decision writes: facts in the past tense, with absolute values, so that applying one twice changes nothing."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from backend_store.model import Epoch, Offset


class EpochStart(NamedTuple):
    """From `start` on the log was written in `epoch`."""

    epoch: Epoch
    start: Offset


class PartitionState(msgspec.Struct):
    """The partition's own row: written with every commit, read at start. All counts are of committed facts."""

    epochs: list[EpochStart]
    end: int = 0
    time_ms: int = 0
    prev_crc: int = 0
    floor: int = 0
    """Everything below is purged; its rows may still wait to be deleted."""
    live: int = 0
    live_bytes: int = 0
    published_total: int = 0
    acked_total: int = 0

    @property
    def high_watermark(self) -> Offset:
        """Below it every replica that counts has the log. Alone that is the durable end, which `end` of a committed
        state is: nothing above it may be read, delivered or applied."""
        return Offset(self.end)

    @property
    def trim(self) -> Offset:
        """Below it the log is no longer complete: only state is left there. Alone everything is applied at once."""
        return Offset(self.end)

    @property
    def epoch(self) -> Epoch:
        return self.epochs[-1].epoch


class ChunkAppended(NamedTuple):
    base: Offset
    data: bytes


class ChunkMarked(NamedTuple):
    """Which messages of a chunk are settled and which were ever handed out."""

    base: Offset
    messages: int
    settled: int
    started: int


class AttemptsRecorded(NamedTuple):
    """Messages of a chunk with more than one attempt or a due time: index → (attempts started, due in ms or 0)."""

    base: Offset
    attempts: dict[int, tuple[int, int]]


class ChunkDone(NamedTuple):
    """No view needs the chunk: its rows go."""

    base: Offset


class Purged(NamedTuple):
    """Everything below `floor` is gone."""

    floor: Offset


Record = ChunkAppended | ChunkMarked | AttemptsRecorded | ChunkDone | Purged
