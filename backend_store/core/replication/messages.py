"""What replicas say to each other about one partition. All can be carried as MessagePack.

A follower asks and a leader answers; an answer repeats the request's number, and only the answer to the latest counts.
"""

from __future__ import annotations

import msgspec

from backend_store.core.records import EpochStart
from backend_store.core.replication.record import Identity
from backend_store.model import Epoch, Offset

Row = tuple[bytes, bytes]
"""Key and value of a partition's state, opaque here."""


class Said(msgspec.Struct, frozen=True, array_like=True, tag=True):
    partition: int
    epoch: Epoch
    """In which the sender is."""
    request: int


class Fetch(Said, frozen=True):
    """ "I have all below `end`, on my disk, and what stands before it was written in `last_epoch`. What follows?"

    `is_whole`: the state below is complete; after a snapshot it is not until the log has gone past its last page.
    """

    sender: Identity
    end: Offset
    last_epoch: Epoch
    is_whole: bool = True
    heard_ms: int = 0
    """`sent_ms` of the last answer that was heard in this epoch: the leader's own time."""


class Fetched(Said, frozen=True):
    """Entries from `start` on, as the leader has them, durable there or not yet."""

    start: Offset
    entries: tuple[bytes, ...]
    high_watermark: Offset
    trim: Offset
    """All replicas that count have this on their disks: the log below it need not be kept."""
    sent_ms: int


class Diverged(Said, frozen=True):
    """The leader's log is another at `asked`. Its largest epoch up to the one asked for is `common`, up to `end`."""

    asked: Offset
    common: Epoch
    end: Offset


class TooOld(Said, frozen=True):
    """The leader's log begins above: take a snapshot."""

    start: Offset


class WrongEpoch(Said, frozen=True):
    """The receiver of a request is in `epoch`, and not in the one asked in, or does not lead there."""


class AskSnapshot(Said, frozen=True):
    sender: Identity
    after: bytes
    """The last key of the page before; b"" for the first."""
    high_watermark: Offset
    """What the sender knows to be final: so it is."""


class SnapshotBase(msgspec.Struct, frozen=True, array_like=True):
    """Where the log goes on after a snapshot, at what is final; the rows may have more of it in them already."""

    end: Offset
    epochs: tuple[EpochStart, ...]
    last_crc: int
    last_time_ms: int


class SnapshotPage(Said, frozen=True):
    """Rows of the state in the order of their keys, with effects of nothing from `applied` on."""

    after: bytes
    base: SnapshotBase
    rows: tuple[Row, ...]
    applied: Offset
    is_last: bool


Request = Fetch | AskSnapshot
Answer = Fetched | Diverged | TooOld | WrongEpoch | SnapshotPage
Message = Request | Answer
