"""The messages between the replicas of one partition: requests of followers and answers of the leader.

All can be encoded as MessagePack. An answer repeats the request's number, and only the answer to the latest one counts.
"""

from __future__ import annotations

import msgspec

from backend_store.core.log.records import EpochStart
from backend_store.core.replication.record import Identity
from backend_store.model import Epoch, Offset

Row = tuple[bytes, bytes]
"""Key and value of a partition's state, opaque here."""


class Said(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The fields that all messages share."""

    partition: int
    epoch: Epoch
    """The sender's epoch."""
    request: int


class Fetch(Said, frozen=True):
    """Asks for the entries from `end` on. The sender has everything below on disk, the last of it from `last_epoch`.

    `is_whole`: the sender's state is complete; after a snapshot it is not, until the log has passed its last page.
    """

    sender: Identity
    end: Offset
    last_epoch: Epoch
    is_whole: bool = True
    heard_ms: int = 0
    """`sent_ms` of the last answer received in this epoch, by the leader's clock."""


class Fetched(Said, frozen=True):
    """Entries of the leader from `start` on, whether durable there or not yet."""

    start: Offset
    entries: tuple[bytes, ...]
    high_watermark: Offset
    trim: Offset
    """Start of the leader's log: replicas need no entries below, except one too far behind, which takes a snapshot."""
    sent_ms: int


class Diverged(Said, frozen=True):
    """The leader's log differs at `asked`. Its largest epoch up to the follower's is `common`, which ends at `end`."""

    asked: Offset
    common: Epoch
    end: Offset


class TooOld(Said, frozen=True):
    """The leader's log begins at `start`, above the requested offset: take a snapshot."""

    start: Offset


class WrongEpoch(Said, frozen=True):
    """The receiver of a request is in `epoch`, not in that of the request, or does not lead in it."""


class AskSnapshot(Said, frozen=True):
    """Asks for the next page of a snapshot."""

    sender: Identity
    after: bytes
    """The last key of the previous page; b"" for the first page."""
    high_watermark: Offset
    """The sender's high watermark, which the leader adopts."""


class SnapshotBase(msgspec.Struct, frozen=True, array_like=True):
    """Where the log continues after a snapshot, a final offset; the rows may contain effects of later entries."""

    end: Offset
    epochs: tuple[EpochStart, ...]
    last_crc: int
    last_time_ms: int


class SnapshotPage(Said, frozen=True):
    """Rows of the state in the order of their keys, with no effects of entries from `applied` on."""

    after: bytes
    base: SnapshotBase
    rows: tuple[Row, ...]
    applied: Offset
    is_last: bool


Request = Fetch | AskSnapshot
Answer = Fetched | Diverged | TooOld | WrongEpoch | SnapshotPage
Message = Request | Answer
