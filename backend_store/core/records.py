"""What a decision writes: facts in the past tense, with absolute values, so that applying one twice changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from backend_store.model import Epoch, Offset


class EpochStart(NamedTuple):
    """From `start` on the log was written in `epoch`."""

    epoch: Epoch
    start: Offset


class Tally(msgspec.Struct):
    """Counts of one view's messages. All are of committed facts.

    `floor`: everything below is purged; its rows may still wait to be deleted.
    """

    floor: int = 0
    live: int = 0
    live_bytes: int = 0
    published_total: int = 0
    acked_total: int = 0


class Ledger(msgspec.Struct, array_like=True):
    """Messages counted since the last row of the ledger, by what became of them; `core.ledger` says what each means.

    `held`: how many were there at `start`. Fields are only ever added at the end.
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
    """When the latest of it was counted, by the log's time; of a new one, when the row before was cut."""


class PartitionState(msgspec.Struct):
    """The partition's own row: written with every commit, read at start. The counts are those of the main view."""

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
    views: dict[int, Tally] = {}
    """Counts of the companions and of what is on its way to another queue, by view."""
    ended: dict[str, int] = {}
    """How many messages ended without an ack, by reason."""
    released: int = 0
    """How many batches a sorting queue has released."""
    held_from: int = 0
    """Of a sorting queue: nothing below this offset waits for its turn."""
    order_from: int = 0
    """Of a sorting queue: batches below this number released only what lies below `held_from`."""
    inside: int = 0
    """How many offsets of the entry that the floor lies in are below it: of a stream that drops message by message."""
    groups_made: int = 0
    """How many consumer groups a stream ever had: their numbers are not used again."""
    ledger: Ledger = msgspec.field(default_factory=Ledger)
    """What was counted since the last row of the ledger: written with the very commit that it counts."""
    dropped_ms: int = (1 << 63) - 1
    """When the latest message below the floor was stored, for readers who begin at a time. Where nobody wrote that down
    it may have been at any time."""
    letters: bool | None = None
    """Whether dead letters of other queues came to the main view since it was last empty; None: that was before anybody
    wrote it down."""

    @property
    def low(self) -> Offset:
        """Where the first entry begins that still has something."""
        return Offset(self.floor - self.inside)

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

    def copy(self) -> PartitionState:
        """A state that may be changed without changing this one."""
        after = msgspec.structs.replace(self)
        if self.views:
            after.views = {view: msgspec.structs.replace(tally) for view, tally in self.views.items()}
        if self.ended:
            after.ended = dict(self.ended)
        after.ledger = msgspec.structs.replace(self.ledger)
        return after

    def tally(self, view: int) -> PartitionState | Tally:
        """The counts of a view, to be changed in a copy."""
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
    """What is known of a message that was handed out and came back."""

    tries: int
    due_ms: int = 0
    history: list[Any] = []
    """One row an attempt that ended: (attempt, at in ms, outcome, reason)."""


class GroupRow(msgspec.Struct, frozen=True, array_like=True):
    """A consumer group of a stream.

    `number` is its view's. Everything below `position` is behind it, and above it what its marks say. `done` counts the
    messages that it will not get any more: acked, dead, passed over by a seek, or gone before it came to them. The
    offsets in `gap` (from, below) had such, and its consumers are still to be told.
    """

    number: int
    name: str
    mode: Literal["offsets", "leases"]
    position: int
    done: int
    gap: tuple[int, int] | None = None

    def passed_by(self, floor: int, done: int) -> GroupRow:
        """The group where the stream has dropped everything below `floor`, and `done` is what it will not get."""
        gap = self.gap
        if done > self.done:
            gap = (self.position if gap is None else gap[0], floor)
        return msgspec.structs.replace(self, position=max(self.position, floor), done=done, gap=gap)


class ChunkAppended(NamedTuple):
    shelf: int
    base: Offset
    data: bytes


class ChunkMarked(NamedTuple):
    """Which messages of a chunk are settled in a view, and which were ever handed out there."""

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
    """No view needs the chunk: its rows go."""

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
    """Nothing is left of a scheduled chunk."""

    base: Offset
    times: Sequence[int]
    names: Sequence[bytes]


class ExpirySet(NamedTuple):
    """A chunk is looked at again at `expires_ms`, instead of at `before_ms` (0: it was not to be)."""

    shelf: int
    base: Offset
    before_ms: int
    expires_ms: int


class RowParked(NamedTuple):
    """Messages of one key that wait on the disk for those before them."""

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
    """A batch of the release order of which nothing is left."""

    number: int
    is_head: bool


class LeaseRecorded(NamedTuple):
    """A lease that outlives a crash, before its bytes leave; with no bits it is over."""

    view: int
    number: int
    token: str
    base: Offset
    bits: int
    deadline_ms: int
    gateway: str = ""
    """Where its holder is: see `Holder`."""


class Purged(NamedTuple):
    """Everything of a view below `floor` is gone."""

    view: int
    floor: Offset


class ChunkPassed(NamedTuple):
    """A consumer group is done with a chunk and all before it: what it noted of it goes, the chunk stays."""

    view: int
    base: Offset


class GroupStood(NamedTuple):
    """Where a consumer group of a stream stands."""

    row: GroupRow


class GroupDropped(NamedTuple):
    """There is no group of that number any more."""

    number: int


class MessagesCounted(NamedTuple):
    """`messages` of a stream were published before the chunk at `base`."""

    base: Offset
    messages: int


class OrderReleased(NamedTuple):
    """Messages of a sorting queue in the order in which they are handed out: (base, index) pairs. `is_head`: before
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
