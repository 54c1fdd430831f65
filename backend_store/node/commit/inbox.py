"""A partition's input queue for the next commit cycle: publishes, transactions, purges, and records no caller waits
for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from backend_store.core.log.records import Record
from backend_store.core.partitions.slots import EVERY_SLOT
from backend_store.model import Block, Overloaded, PushqError
from backend_store.node.commit.publish_call import Call, PublishReply
from backend_store.node.commit.transaction import Transaction
from backend_store.node.limits import (
    INBOX_BYTES_MAX,
    INBOX_MESSAGES_MAX,
    SHARED_CYCLE_MESSAGES_MAX,
    TIMED_CALLS_LOOKED_AT_PER_MILLISECOND,
)
from backend_store.node.publishing.queue_limits import NOTHING
from backend_store.words import counted

if TYPE_CHECKING:
    from backend_store.node.commit.committer import Committer
    from backend_store.node.partition import Partition

PurgeReply = Callable[[int | PushqError], None]


class Inbox:
    """Bounded in messages and bytes: a publish that does not fit is refused before anything is done."""

    def __init__(self) -> None:
        self.takes = EVERY_SLOT
        """The slots whose publishes are taken here, as bits; the queue's other slots are elsewhere, or on the way
        there."""
        self.strays = 0
        """Calls with messages of other slots that were accepted all the same, such as returned dead letters."""
        self.messages = 0
        self.added = 0
        """Calls ever added; `taken` counts those that left for a commit. Calls that were promised room do not wait in
        line and are not counted."""
        self.taken = 0
        self._bytes = 0
        self._calls: list[Call] = []
        self._promised: list[Block] = []
        self._promised_bytes = 0
        self._joint: list[Transaction] = []
        self._purges: list[tuple[int, PurgeReply]] = []
        self._written_off: dict[int, list[int]] = {}
        self._notes: list[Record] = []
        self._moved = 0
        self.freed = NOTHING
        """Messages of the main view that transactions of this cycle settle, until the partition has decided."""
        self.first_until_ms = 0
        """The earliest `until_ms` of the waiting calls; 0 if none has a limit."""
        self.under_way_until_ms = 0
        """The same of calls in the commit in flight."""
        self._under_way: list[Call] = []

    @property
    def promised(self) -> list[Block]:
        """Blocks of this cycle that must not be refused any more."""
        return self._promised

    def add(self, call: Call) -> None:
        if call.must_fit:
            self._promised = [*self._promised, *call.blocks]
            self._promised_bytes += call.size
        else:
            self.added += 1
        if call.until_ms and not 0 < self.first_until_ms <= call.until_ms:
            self.first_until_ms = call.until_ms
        self._calls.append(call)
        self.messages += call.messages
        self._bytes += call.size

    @property
    def came_ms(self) -> int | None:
        """When the oldest waiting publish came; None if none waits."""
        return self._calls[0].came_ms if self._calls else None

    def why_full(self, label: str, messages: int, size: int) -> Overloaded | None:
        """Why so much more cannot wait here; None if it can."""
        if self.messages + messages <= INBOX_MESSAGES_MAX and self._bytes + size <= INBOX_BYTES_MAX:
            return None
        return Overloaded(
            f"queue {label!r}: {counted(self.messages, 'message waits', 'messages wait')} for the disk",
            retry_after_ms=1000,
        )

    def add_joint(self, joint: Transaction) -> None:
        self._joint.append(joint)

    def add_purge(self, view: int, reply: PurgeReply) -> None:
        self._purges.append((view, reply))

    def note(self, record: Record) -> None:
        self._notes.append(record)

    def moved(self, messages: int) -> None:
        """Counts messages that this cycle settles and that move to another queue with the same commit."""
        self._moved += messages

    def write_off(self, view: int, messages: int, size: int) -> None:
        counts = self._written_off.setdefault(view, [0, 0])
        counts[0] += messages
        counts[1] += size

    def wrote_off(self, view: int) -> bool:
        """Whether the next commit writes off messages of a view."""
        return view in self._written_off

    # --------------------------------------------------------------------------------------------------- taking out

    def next_look_ms(self, now_ms: int) -> int:
        """When to check time limits next. One check scans all calls, so checks are rarer the more calls there are."""
        first_ms = min(filter(None, (self.first_until_ms, self.under_way_until_ms)))
        return max(
            first_ms, now_ms + (len(self._calls) + len(self._under_way)) // TIMED_CALLS_LOOKED_AT_PER_MILLISECOND
        )

    def take_expired(self, now_ms: int) -> list[Call]:
        """Takes waiting calls whose time is over: they are never begun."""
        if not 0 < self.first_until_ms <= now_ms:
            return []
        expired = [call for call in self._calls if 0 < call.until_ms <= now_ms]
        self._keep([call for call in self._calls if not 0 < call.until_ms <= now_ms])
        return expired

    def take_unpromised(self) -> list[Call]:
        """Takes waiting calls that may still be refused."""
        calls = [call for call in self._calls if not call.must_fit]
        self._keep([call for call in self._calls if call.must_fit])
        return calls

    def take_overdue(self, now_ms: int) -> list[PublishReply]:
        """Takes the callbacks of calls in the commit in flight whose time is over."""
        if not 0 < self.under_way_until_ms <= now_ms:
            return []
        over = [call.reply for call in self._under_way if 0 < call.until_ms <= now_ms]
        self._set_under_way([call for call in self._under_way if call.until_ms > now_ms])
        return over

    def _set_under_way(self, calls: list[Call]) -> None:
        self._under_way = calls
        self.under_way_until_ms = min((call.until_ms for call in calls if call.until_ms), default=0)

    def _keep(self, calls: list[Call]) -> None:
        self._calls = calls
        self.messages = sum(call.messages for call in calls)
        self._bytes = sum(call.size for call in calls)
        self.first_until_ms = min((call.until_ms for call in calls if call.until_ms), default=0)

    def take_calls(self, partition: Partition) -> list[Call]:
        """Takes the publishes of this cycle: all that it has room for; if other partitions share it, at most a
        share."""
        calls = self._taken(partition)
        self._under_way, self.under_way_until_ms = calls, 0
        if calls:
            self.under_way_until_ms = min([call.until_ms for call in calls])
            if not self.under_way_until_ms:
                self._set_under_way(calls)
        return calls

    def put_back(self, calls: list[Call]) -> None:
        """Puts the last calls of this cycle back, ahead of those that came meanwhile: they were not begun."""
        later = {id(call) for call in calls}
        self._set_under_way([call for call in self._under_way if id(call) not in later])
        self._keep(calls + self._calls)
        self.taken -= len(calls)

    def _taken(self, partition: Partition) -> list[Call]:
        committer = partition.node.committer
        calls, size = self._calls, self._bytes - self._promised_bytes
        if self._promised:
            # They were promised room before the others were: nothing may come between.
            calls.sort(key=lambda call: not call.must_fit)
            self._promised, self._promised_bytes = [], 0
        is_share = not committer.is_shared or self.messages <= SHARED_CYCLE_MESSAGES_MAX
        if is_share and committer.room.fits(size):
            committer.room.take(size)
            self._calls, self.messages, self._bytes, self.first_until_ms = [], 0, 0, 0
            self.taken = self.added
            return calls
        # A transaction's messages must be in the same commit as the rest of the transaction.
        taken, others = [call for call in calls if call.must_fit], [call for call in calls if not call.must_fit]
        count = self._share(others, committer)
        self._keep(others[count:])
        self.taken = self.added - len(self._calls)
        if self._calls and not count:
            committer.wait_for_room(partition)
        elif self._calls:
            partition.request()
        return taken + others[:count]

    def _share(self, calls: list[Call], committer: Committer) -> int:
        """How many of the calls go into this cycle."""
        messages = 0
        for number, call in enumerate(calls):
            over = committer.is_shared and messages and messages + call.messages > SHARED_CYCLE_MESSAGES_MAX
            if over or not committer.room.is_left:
                return number
            messages += call.messages
            committer.room.take(call.size)
        return len(calls)

    @property
    def is_empty(self) -> bool:
        return not (self._calls or self._joint or self._purges or self._notes or self._written_off)

    @property
    def has_corrections(self) -> bool:
        """Purges or write-offs wait."""
        return bool(self._purges or self._written_off)

    @property
    def has_joint(self) -> bool:
        return bool(self._joint)

    def take_joint(self) -> list[Transaction]:
        waiting, self._joint = self._joint, []
        return waiting

    def put_back_joint(self, joint: list[Transaction]) -> None:
        """Puts transactions back, ahead of those that came meanwhile."""
        self._joint = joint + self._joint

    def take_purges(self) -> list[tuple[int, PurgeReply]]:
        purges, self._purges = self._purges, []
        return purges

    def take_notes(self) -> list[Record]:
        notes, self._notes = self._notes, []
        return notes

    def take_moved(self) -> int:
        moved, self._moved = self._moved, 0
        return moved

    def take_written_off(self) -> dict[int, list[int]]:
        """View → (messages, bytes)."""
        written_off, self._written_off = self._written_off, {}
        return written_off

    def take_waiting(self) -> list[Callable[[Any], None]]:
        """Takes the callbacks of all that waits; the queue is deleted."""
        calls, self._calls = self._calls, []
        purges = self.take_purges()
        return [
            *(call.reply for call in calls),
            *(reply for _, reply in purges),
            *(one.reply for one in self.take_joint()),
        ]
