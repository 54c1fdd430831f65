"""Records that a decision appends to the log: facts with absolute values, so applying one twice changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from backend_store.model import Epoch, Offset


class EpochStart(NamedTuple):
    """The log from offset `start` on was written in `epoch`."""

    epoch: Epoch
    start: Offset


class Tally(msgspec.Struct):
    """Counts of one view's messages, committed facts only.

    `floor`: everything below is purged; its rows may not be deleted yet.
    """

    floor: int = 0
    live: int = 0
    live_bytes: int = 0
    published_total: int = 0
    acked_total: int = 0


class Ledger(msgspec.Struct, array_like=True):
    """Messages counted since the last ledger row, by what happened to them; `core.ledger` explains each field.

    `held`: how many messages there were at `start`. New fields are only ever added at the end.
    """

    start: int = 0
    held: int = 0
    opening: int = 0
    published: int = 0
    published_bytes: int = 0
    moved_in: int = 0
    moved_in_bytes: int = 0
    copied: int = 0
    settled: int = 0
    expired: int = 0
    overflowed: int = 0
    retired: int = 0
    cancelled: int = 0
    dropped: int = 0
    purged: int = 0
    moved_out: int = 0
    deleted: int = 0
    lost: int = 0
    dead_lettered: int = 0
    late: int = 0
    read: int = 0
    unexplained: int = 0
    is_doomed: bool = False
    at_ms: int = 0
    """Time of the latest count, by the log's clock; in a new ledger, the time of the row before."""


class PartitionState(msgspec.Struct):
    """The partition's own row, written with every commit and read at start. The counts are those of the main view."""

    epochs: list[EpochStart]
    end: int = 0
    time_ms: int = 0
    prev_crc: int = 0
    floor: int = 0
    """Everything below is purged; its rows may not be deleted yet."""
    live: int = 0
    live_bytes: int = 0
    published_total: int = 0
    acked_total: int = 0
    views: dict[int, Tally] = {}
    """Counts of the companion queues and of messages on their way to another queue, by view."""
    ended: dict[str, int] = {}
    """How many messages ended without an ack, by reason."""
    released: int = 0
    """How many batches a sorting queue has released."""
    held_from: int = 0
    """In a sorting queue: no message below this offset waits for its turn."""
    order_from: int = 0
    """In a sorting queue: batches below this number released only messages below `held_from`."""
    inside: int = 0
    """Offsets below the floor in the entry that contains it, for a stream whose retention drops single messages."""
    groups_made: int = 0
    """How many consumer groups a stream has ever had: group numbers are never reused."""
    ledger: Ledger = msgspec.field(default_factory=Ledger)
    """Counts since the last ledger row, written with the same commit that they count."""
    dropped_ms: int = (1 << 63) - 1
    """When the latest message below the floor was stored, for readers that start at a time. The default, the largest
    time, means that it was not recorded and may be any time."""
    letters: bool | None = None
    """Whether dead letters of other queues came to the main view since it was last empty; None: not recorded, by an
    earlier version."""

    @property
    def low(self) -> Offset:
        """Base of the first entry that still has messages."""
        return Offset(self.floor - self.inside)

    @property
    def high_watermark(self) -> Offset:
        """Offset below which every in-sync replica has the log. Nothing above it may be read, delivered or applied. A
        single node takes the durable end, which is the `end` of a committed state."""
        return Offset(self.end)

    @property
    def trim(self) -> Offset:
        """Offset below which the log is no longer complete and only state is left. A single node applies everything at
        once, so it is the end."""
        return Offset(self.end)

    @property
    def epoch(self) -> Epoch:
        return self.epochs[-1].epoch

    def copy(self) -> PartitionState:
        """Returns a copy that may be changed without changing this state."""
        after = msgspec.structs.replace(self)
        if self.views:
            after.views = {view: msgspec.structs.replace(tally) for view, tally in self.views.items()}
        if self.ended:
            after.ended = dict(self.ended)
        after.ledger = msgspec.structs.replace(self.ledger)
        return after

    def tally(self, view: int) -> PartitionState | Tally:
        """Returns the counts of a view, to be changed; call it on a copy."""
        if view == 0:
            return self
        found = self.views.get(view)
        if found is None:
            self.views = {**self.views, view: Tally()}
            found = self.views[view]
        return found

    def count_ended(self, reason: str, messages: int) -> None:
        self.ended = {**self.ended, reason: self.ended.get(reason, 0) + messages}


class Retry(msgspec.Struct, array_like=True):
    """The attempts, due time and history of a message that was delivered and given back."""

    tries: int
    due_ms: int = 0
    history: list[Any] = []
    """One row per attempt that ended: (attempt, at in ms, outcome, reason)."""


class GroupRow(msgspec.Struct, frozen=True, array_like=True):
    """A consumer group of a stream.

    `number` is the number of its view. Everything below `position` is behind the group; above it the marks say what is
    settled. `done` counts the messages that the group will not receive any more: acked, dead, skipped by a seek, or
    dropped before the group reached them. `gap` (from, below) has offsets of dropped messages that the group's
    consumers are not yet notified of.
    """

    number: int
    name: str
    mode: Literal["offsets", "leases"]
    position: int
    done: int
    gap: tuple[int, int] | None = None

    def missed(self, start: int, below: int) -> GroupRow:
        """Returns the group's row with a further gap; two gaps become one, from the lower start on."""
        own = self.gap or (start, below)
        return msgspec.structs.replace(self, gap=(min(own[0], start), max(own[1], below)))

    def passed_by(self, floor: int, done: int) -> GroupRow:
        """Returns the group's row after the stream has dropped everything below `floor`, with the new `done`."""
        gap = self.gap
        if done > self.done:
            gap = (self.position if gap is None else gap[0], floor)
        return msgspec.structs.replace(self, position=max(self.position, floor), done=done, gap=gap)


class ChunkAppended(NamedTuple):
    """A chunk was appended to a shelf; `data` is the encoded log entry."""

    shelf: int
    base: Offset
    data: bytes


class ChunkMarked(NamedTuple):
    """Which messages of a chunk are settled in a view, and which were ever delivered there."""

    view: int
    base: Offset
    messages: int
    settled: int
    started: int


class AttemptsRecorded(NamedTuple):
    """Messages of a chunk with more than one attempt, a due time or a history, by index."""

    view: int
    base: Offset
    attempts: dict[int, Retry]


class ChunkDone(NamedTuple):
    """No view needs the chunk any more: its rows are deleted."""

    view: int
    shelf: int
    base: Offset


class Scheduled(NamedTuple):
    """When messages of a chunk become ready: (due in ms, bits), and the ids by which they may be cancelled:
    (16-byte hash, index).
    """

    shelf: int
    base: Offset
    times: Sequence[tuple[int, int]]
    names: Sequence[tuple[bytes, int]]


class Rescheduled(NamedTuple):
    """Which messages of a scheduled chunk become ready at `due_ms`: fewer than before, or none."""

    shelf: int
    base: Offset
    due_ms: int
    bits: int


class Unscheduled(NamedTuple):
    """No message of a scheduled chunk waits any more."""

    base: Offset
    times: Sequence[int]
    names: Sequence[bytes]


class ExpirySet(NamedTuple):
    """A chunk is checked for expiry at `expires_ms`, instead of at `before_ms` (0: no check was set)."""

    shelf: int
    base: Offset
    before_ms: int
    expires_ms: int


class RowParked(NamedTuple):
    """Messages of one key that wait on disk for earlier ones of that key."""

    lane: int
    number: int
    position: int
    base: int
    bits: int


class RowUnparked(NamedTuple):
    """Parked messages are in memory again."""

    lane: int
    number: int
    position: int


class OrderDropped(NamedTuple):
    """A batch of the release order has no messages left."""

    number: int
    is_head: bool


class LeaseRecorded(NamedTuple):
    """A lease that outlives a crash, stored before its messages are sent. Without bits the lease has ended."""

    view: int
    number: int
    token: str
    base: Offset
    bits: int
    deadline_ms: int
    gateway: str = ""
    """The holder's gateway: see `Holder`."""


class Purged(NamedTuple):
    """Everything of a view below `floor` was purged."""

    view: int
    floor: Offset


class ChunkPassed(NamedTuple):
    """A consumer group has settled a chunk and all before it: its marks of the chunk are deleted, the chunk stays."""

    view: int
    base: Offset


class GroupStood(NamedTuple):
    """The current row of a consumer group of a stream."""

    row: GroupRow


class GroupDropped(NamedTuple):
    """The group of that number was deleted."""

    number: int


class MessagesCounted(NamedTuple):
    """A stream had `messages` published before the chunk at `base`."""

    base: Offset
    messages: int


class OrderReleased(NamedTuple):
    """Messages of a sorting queue in the order in which they are delivered, as (base, index) pairs. `is_head`: before
    all others."""

    number: int
    is_head: bool
    places: Sequence[tuple[int, int]]


Record = (
    ChunkAppended
    | ChunkMarked
    | AttemptsRecorded
    | ChunkDone
    | Scheduled
    | Rescheduled
    | Unscheduled
    | ExpirySet
    | LeaseRecorded
    | Purged
    | OrderReleased
    | OrderDropped
    | RowParked
    | RowUnparked
    | ChunkPassed
    | GroupStood
    | GroupDropped
    | MessagesCounted
)
