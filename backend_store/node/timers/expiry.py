"""Timers of a work queue: scheduled messages become ready, and messages expire.

Both are indexes on disk, ordered by time. A million messages scheduled for tomorrow cost rows, not memory: when due
they are counted, and each is read when a consumer takes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from backend_store.core.leases.leasing import expired_bits
from backend_store.core.log.chunk import holes
from backend_store.core.log.records import ExpirySet, Rescheduled, Scheduled
from backend_store.core.log.sublogs import SCHEDULED
from backend_store.core.ready.attempt_policy import Reason
from backend_store.core.ready.priorities import Lane
from backend_store.model import Offset
from backend_store.node.limits import (
    DUE_ROWS_LOOKED_AT,
    DUE_ROWS_PER_TICK,
    EXPIRING_BYTES_MAX,
    EXPIRING_CHUNKS_PER_TICK,
    READS_PER_TAKE_MAX,
)
from backend_store.node.log.row_reader import DueRow
from backend_store.node.publishing.placement import expiry_step

if TYPE_CHECKING:
    from backend_store.node.views.view import View

_LAST = (1 << 63) - 1
HELD_EXPIRY_MS = 500
"""After how long a chunk is checked again if an expired message in it was leased."""


class Schedule:
    """Scheduled messages of one queue.

    Rows up to `_counted` count as due. A lane's rows up to its place in `_loaded` are in its runs; later rows are
    fetched when the runs are short, so that no priority waits for another.
    """

    def __init__(self, view: View):
        self._view = view
        self._counted = (0, _LAST)
        """(due, base) up to which rows count as due."""
        self._loaded: dict[int, tuple[int, int]] = {}
        self._is_used = True
        self._rewritten: dict[tuple[int, int], int] = {}
        """(due, base) → the bits of a row after the next commit."""
        self._landing: dict[tuple[int, int], int] = {}
        """The same for the commit in flight."""

    @property
    def counted_ms(self) -> int:
        """Messages up to this time count as due."""
        return self._counted[0]

    def recover(self, now_ms: int) -> None:
        """After a start: counts scheduled messages, and checks whether any are due already."""
        reader, core = self._view.partition.reader, self._view.core
        self._counted = now_ms, _LAST
        core.scheduled = 0
        after = now_ms, _LAST
        while rows := reader.due(after, _LAST >> 1, DUE_ROWS_PER_TICK):
            core.scheduled += self._waiting(rows)
            after = rows[-1].due_ms, rows[-1].base
        core.due_waits = bool(reader.due((0, 0), now_ms, 1))
        self._is_used = core.due_waits or core.scheduled > 0

    def rest(self, now_ms: int) -> None:
        """After a start: there are no rows."""
        self._counted, self._is_used = (now_ms, _LAST), False

    def add(self, schedules: Sequence[Scheduled]) -> None:
        """Takes scheduled messages that were just committed. Some may be due already, as a commit takes time."""
        view = self._view
        self._is_used = True
        for shelf, base, times, _ in schedules:
            if base < view.floor:
                continue  # purged by the same commit
            for due_ms, bits in times:
                if (due_ms, base) > self._counted:
                    view.core.scheduled += bits.bit_count()
                    view.partition.wake_at(due_ms)
                elif (due_ms, base) > self._loaded.get(view.core.lanes.of(shelf).shelf, (0, 0)):
                    view.core.due_waits = True
                else:
                    self._bring(DueRow(due_ms, base, shelf, bits))

    def ended(self, base: int, bits: int, shelf: int, *, after: tuple[int, int] = (0, 0)) -> None:
        """Removes ended messages from their schedule rows, perhaps before they are due. `after`: only rows after (due,
        base) are changed.
        """
        reader = self._view.partition.reader
        for due_ms in reader.schedule_of(base):
            if (due_ms, base) <= after:
                continue
            known = self._bits(DueRow(due_ms, base, shelf, reader.due_bits(base, due_ms)))
            if gone := known & bits:
                self._rewritten[due_ms, base] = known ^ gone
                self._view.partition.note(Rescheduled(shelf, Offset(base), due_ms, known ^ gone))
                if (due_ms, base) > self._counted:
                    self._view.core.scheduled -= gone.bit_count()

    def left(self, base: int, bits: int, shelf: int) -> None:
        """Removes messages that move to another queue with this commit, if they are not due yet."""
        self.ended(base, bits, shelf, after=self._counted)

    def lost(self, base: int, shelf: int) -> None:
        """A chunk of scheduled messages is damaged: none of them becomes due."""
        self.ended(base, -1, shelf)

    def to_come(self, base: int, shelf: int) -> int:
        """Those of a chunk's messages that enter the runs later, when they are fetched as due."""
        reader, found = self._view.partition.reader, 0
        loaded = self._loaded.get(self._view.core.lanes.of(shelf).shelf, (0, 0))
        for due_ms in reader.schedule_of(base):
            if (due_ms, base) > loaded:
                found |= self._bits(DueRow(due_ms, base, shelf, reader.due_bits(base, due_ms)))
        return found

    def _bits(self, row: DueRow) -> int:
        """A row's messages, without cancelled ones that the row on disk still has."""
        place = row.due_ms, row.base
        found = self._rewritten.get(place)
        return found if found is not None else self._landing.get(place, row.bits)

    def _waiting(self, rows: Sequence[DueRow]) -> int:
        """How many messages the rows stand for. Rows of purged messages, not yet swept, are left out."""
        floor, end = self._view.floor, self._view.partition.state.high_watermark
        return sum(self._bits(self._whole(row)).bit_count() for row in rows if floor <= row.base < end)

    def _whole(self, row: DueRow) -> DueRow:
        """The row; a broken one is rebuilt from the chunk's messages that exist and are in no other row."""
        if row.shelf >= 0:
            return row
        view, base = self._view, row.base
        partition, reader = view.partition, view.partition.reader
        for lane in view.core.lanes.all:
            chunk = partition.chunk_at(base, SCHEDULED + lane.shelf, exactly=True)
            if chunk is not None:
                known = view.core.state(base)
                gone = holes(chunk)
                gone |= known.full & ~known.present if known is not None else partition.progress(base).settled
                for due_ms in reader.schedule_of(base):
                    if due_ms != row.due_ms:
                        gone |= reader.due_bits(base, due_ms)
                return DueRow(row.due_ms, base, chunk.shelf, ((1 << chunk.count) - 1) & ~gone)
        return DueRow(row.due_ms, base, SCHEDULED, 0)

    def staged(self) -> None:
        """What was noted so far goes with the commit that begins."""
        self._landing, self._rewritten = self._rewritten, {}

    def committed(self) -> None:
        """The staged rows are durable."""
        self._landing = {}

    def next_ms(self) -> int | None:
        if not self._is_used:
            return None
        counted_ms, base = self._counted
        if base != _LAST:
            return counted_ms  # more were due than one tick counts
        found = self._view.partition.reader.next_due(counted_ms)
        if found is None and not self._view.core.due_waits:
            self._is_used = False
        return found

    def tick(self, now_ms: int) -> bool:
        """Counts messages that became due. True if there were any; the rest is left for the next turn."""
        if not self._is_used:
            return False
        core, reader = self._view.core, self._view.partition.reader
        rows = reader.due(self._counted, now_ms, DUE_ROWS_PER_TICK)
        if len(rows) == DUE_ROWS_PER_TICK:
            self._counted = rows[-1].due_ms, rows[-1].base
        else:
            self._counted = max(now_ms, self._counted[0]), _LAST
        core.scheduled -= self._waiting(rows)
        core.due_waits = core.due_waits or bool(rows)
        return bool(rows)

    def load(self) -> int:
        """Brings due messages into the runs, highest priority first. Returns the number of reads."""
        core, reads, waits = self._view.core, 0, False
        for lane in reversed(core.lanes.all):
            is_over = False
            while lane.takes_due and reads < READS_PER_TAKE_MAX and not is_over:
                reads += 1
                is_over = not self._load_into(lane)
            waits = waits or not is_over
        core.due_waits = waits
        return reads

    def _load_into(self, lane: Lane) -> bool:
        """Advances to a lane's next due rows. False if there are no more rows."""
        lanes = self._view.core.lanes
        limit = 1 if len(lanes.all) == 1 else DUE_ROWS_LOOKED_AT
        rows = self._view.partition.reader.due(self._loaded.get(lane.shelf, (0, 0)), self._counted[0], limit)
        for row in rows:
            self._loaded[lane.shelf] = row.due_ms, row.base
            if row.base >= self._view.partition.state.high_watermark:
                continue  # written, but `committed` has not run: `add` brings it then
            if lanes.of(max(row.shelf, 0)) is lane:
                self._bring(row)
                break
        return bool(rows)

    def _bring(self, row: DueRow) -> None:
        view = self._view
        shelf, bits = self._whole(row)[2:]
        state = view.find(shelf, row.base)
        if state is None:
            view.partition.note(Rescheduled(shelf, Offset(row.base), row.due_ms, 0))
            return
        if state.due:
            view.core.delay_again(state.base, view.partition.steady_ms())
        slotting = view.partition.slotting
        if slotting is not None and (elsewhere := slotting.forwards(state, bits, row.due_ms)):
            slotting.on_due(state, elsewhere)
            bits &= ~elsewhere
        view.core.became_due(state, bits)

    def purged(self) -> None:
        """Messages published before a purge become due no more; their rows are swept."""
        self._loaded = {lane.shelf: (self._counted[0], _LAST) for lane in self._view.core.lanes.all}
        self._rewritten, self._landing = {}, {}


class Expiry:
    """Expiry of one queue's messages. A chunk is checked when its first message expires, and then when the next
    does."""

    def __init__(self, view: View):
        self._view = view
        self._looking: dict[tuple[int, int], int] = {}
        """Rows that the next commits replace, with the bytes that may move with each."""
        self._replaced: list[tuple[int, int]] = []
        self._is_used = True
        self._is_coming = False

    def rest(self) -> None:
        """After a start: there are no rows."""
        self._is_used = False

    def added(self) -> None:
        """The commit that is prepared brings messages that expire: no row shows it until that commit is durable."""
        self._is_used = self._is_coming = True

    def committed(self) -> None:
        """The rows noted before are durable."""
        self._is_coming = False
        if not self._is_used:
            return
        if self._replaced:
            for row in self._replaced:
                self._looking.pop(row, None)
            self._replaced = []
        if self._looking:
            self._replaced = list(self._looking)
        if (next_ms := self.next_ms()) is not None:
            self._view.partition.wake_at(next_ms)

    def next_ms(self) -> int | None:
        if not self._is_used:
            return None
        found = self._view.partition.reader.next_expiry()
        if found is None:
            self._is_used = self._is_coming
        elif self._looking or self._is_coming:
            return max(found, self._view.partition.steady_ms() + 10)
        return found

    def tick(self, now_ms: int) -> None:
        if not self._is_used:
            return
        view, waiting = self._view, sum(self._looking.values())
        for expires_ms, base, shelf in view.partition.reader.expiring(
            now_ms, EXPIRING_CHUNKS_PER_TICK + len(self._looking)
        ):
            if waiting >= EXPIRING_BYTES_MAX:
                return  # messages that die here may move, and a commit must stay bounded: after the next ones
            if (expires_ms, base) in self._looking or base >= view.partition.state.high_watermark:
                continue  # checked already; or written but not applied, and `committed` sets the timer for it
            state = view.find(shelf, base) if shelf >= 0 else None
            later = size = 0
            if state is not None and state.expires is not None:
                gone = expired_bits(state, state.present & ~(state.leased | state.returning), now_ms)
                if gone:
                    view.end(state, gone, Reason.EXPIRED)
                    size = state.size
                later = min((at for at in state.expires if at and at > now_ms), default=0)
                if expired_bits(state, state.leased | state.returning, now_ms):
                    later = now_ms + HELD_EXPIRY_MS  # leased now: checked again when it may be back
            self._looking[expires_ms, base] = size
            waiting += size
            view.partition.note(ExpirySet(shelf, Offset(base), expires_ms, expiry_step(later) if later else 0))
            view.partition.request()
