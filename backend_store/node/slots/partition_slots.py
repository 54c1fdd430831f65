"""A partition's side of its queue's slot table: puts decisions about slots into the partition's commits, and holds back
or forwards messages that depend on another partition.

Only partitions of queues that have or had several of them have a `PartitionSlots`; all others have no check at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from backend_store.core.leases.leases import ChunkState
from backend_store.core.log.log import Append
from backend_store.core.log.sublogs import MAIN, SCHEDULED
from backend_store.core.partitions.slot_history import BORN_HERE, Barrier, SlotBook, Tenure
from backend_store.core.partitions.slot_moves import Fetch, Page, SlotKeeper
from backend_store.core.partitions.slots import UNKEYED, Move
from backend_store.metadata.partition_maps import stage_book
from backend_store.model import Overloaded
from backend_store.node.limits import DRAIN_CHUNKS_KEPT, DRAIN_CHUNKS_PER_LOOK
from backend_store.node.log.slot_remains import Left, by_slot, left_in
from backend_store.node.slots.held_slots import close_lanes
from backend_store.storage.engine import Batch, StorageCorrupt

if TYPE_CHECKING:
    from backend_store.node.commit.cycle import Answers
    from backend_store.node.commit.publish_call import Call
    from backend_store.node.partition import Partition

Step = Callable[[Append], object]
"""Decides something in a commit, after all decisions about messages in it."""


class Witness(NamedTuple):
    """Position of the search for what is left of a tenure: the chunk that was unsettled, or comes next."""

    shelf: int
    base: int


_AT_THE_END = Witness(SCHEDULED + 1, 0)


class PartitionSlots:
    """The slots of one partition; the partition owns it."""

    def __init__(self, partition: Partition, book: SlotBook):
        self._partition = partition
        self.waits = partition.config.kind == "work" and partition.config.ordering == "strict"
        self.keeper = SlotKeeper(partition.index, book, waits=self.waits)
        self.on_changed: Callable[[], None] = _nothing
        """Called when decisions about slots are durable."""
        self.on_due: Callable[[ChunkState, int], None] = _ignore
        """Called with scheduled messages that are due and whose slot has left: they follow the slot."""
        self._steps: list[Step] = []
        self._barriers: tuple[SlotBook, list[Barrier]] | None = None
        self._looks: dict[tuple[int, int], Witness] = {}
        self._still: set[tuple[int, int]] = set()
        """Tenures that were unsettled at the last commit: they stay so until the next one."""
        self._seen: dict[Witness, Left | None] = {}
        """What searches have read since the last commit: all slots of a move ask about the same chunks."""
        self._asked: set[Move] = set()

    @property
    def has_heirlooms(self) -> bool:
        """Some slots came from other partitions."""
        return any(tenure.source != BORN_HERE for tenures in self.keeper.ahead.tenures.values() for tenure in tenures)

    @property
    def barriers(self) -> list[Barrier]:
        """For a stream: offsets its readers must not pass before they have reached others in other partitions. From
        committed state."""
        book = self.keeper.book
        if self._barriers is None or self._barriers[0] is not book:
            self._barriers = book, book.barriers()
        return self._barriers[1]

    # ----------------------------------------------------------------------------------------------- publishing

    def admitted(self, calls: list[Call], answers: Answers) -> list[Call]:
        """Returns the calls whose slots are here and answers the others. Routing should send only such calls; this is
        the final check."""
        out = []
        for call in calls:
            if call.must_fit or not call.version or not self._refused(call.slots, call.version):
                out.append(call)
                continue
            detail = f"queue {self._partition.label!r}: these keys have moved to another partition; send again"
            answers.append((call.reply, Overloaded(detail, retry_after_ms=100)))
        return out

    def _refused(self, slots: int, version: int) -> int:
        """Those of a call's slots that are not here, as bits. A partition opened by the table takes unkeyed messages at
        once, as its own record may come with the same commit."""
        keeper = self.keeper
        if keeper.table is not None and keeper.number in keeper.table.open_partitions:
            slots &= ~(1 << UNKEYED)
        return keeper.refused(slots, version=version)

    # --------------------------------------------------------------------------------------------------- commits

    def ask(self, step: Step) -> None:
        """Has `step` decided in the next commit."""
        self._steps.append(step)
        self._partition.request()

    def decide(self, plan: Append, batch: Batch) -> None:
        keeper, before = self.keeper, self.keeper.ahead
        steps, self._steps = self._steps, []
        for step in steps:
            known = keeper.ahead
            step(plan)
            if keeper.ahead is not known:
                plan.state.end += 1  # the record's own offset in the log
        if keeper.ahead is not before:
            stage_book(batch, self._partition.replica, keeper.ahead)

    def committed(self) -> None:
        self._seen.clear()
        self._still.clear()
        keeper = self.keeper
        if keeper.book is not keeper.ahead:
            keeper.committed()
            self._looks = {at: look for at, look in self._looks.items() if keeper.book.sealed_by(at[1], at[0])}
            self.gate()
            self._partition.tell(self.on_changed)

    # ----------------------------------------------------------------------------------------------- the source

    def seal(self, move: Move) -> None:
        """Stops taking the slots' messages, after all that was sent here before."""
        if move in self._asked:
            return
        self._asked.add(move)

        def decide(plan: Append) -> None:
            self._asked.discard(move)
            # For scheduled messages, use the clock that wakes them: the log's clock may be ahead of it.
            now_ms = max(self._partition.steady_ms(), self._woken_ms())
            self.keeper.seal(move, end=plan.state.end, now_ms=now_ms)

        self._ask_behind(decide)

    def _ask_behind(self, step: Step) -> None:
        """Has `step` decided once all earlier calls are."""
        inbox = self._partition.inbox
        before = inbox.added

        def decide(plan: Append) -> None:
            if inbox.taken < before:
                self.ask(decide)  # the commit had no room for all of them
            else:
                step(plan)

        self.ask(decide)

    def _woken_ms(self) -> int:
        main = self._partition.main
        return main.schedule.counted_ms if main is not None and main.schedule is not None else 0

    def page(self, fetch: Fetch) -> Page | None:
        """What the target gets once the slots are durably sealed; None until then. Ids are not included: the target
        looks them up here."""
        tenure = self.keeper.hands_over(fetch.move)
        if tenure is None:
            return None
        return Page(fetch, tenure.sealed_at, self._partition.log_ms(), (), ())

    # ----------------------------------------------------------------------------------------------- the target

    def take(self, page: Page) -> None:
        """Opens the slots that a page completes."""

        def decide(plan: Append) -> None:
            if self.keeper.wants(page):
                plan.state.time_ms = max(plan.state.time_ms, page.time_ms)
                self.keeper.take(page, end=plan.state.end)

        self.ask(decide)

    def release(self, version: int, slots: tuple[int, ...]) -> None:
        """What these slots waited for is settled: delivers their messages."""
        self.ask(lambda plan: self.keeper.release(version, slots))

    def tidy(self) -> None:
        """Takes the role that the table gives, and forgets tenures that are over."""
        keeper = self.keeper
        table = keeper.table
        member = table.members.get(keeper.number) if table is not None else None
        if member is not None and member.since != keeper.ahead.role_since:
            self._ask_behind(lambda plan: keeper.take_role())
        # What is left may stay for days: only tenures that are over are worth a commit.
        if keeper.drains and keeper.over(self.is_unsettled):
            self.ask(lambda plan: keeper.forget(self.is_unsettled))

    def may_retire(self) -> int | None:
        """Since when the partition has been draining, if it is empty: no message on any shelf, and no id that may
        repeat. Else None."""
        partition, state = self._partition, self._partition.state
        since = self.keeper.may_retire(state.live + sum(tally.live for tally in state.views.values()))
        if since is None or not partition.is_idle or self._knows_ids():
            return None
        return since

    def _knows_ids(self) -> bool:
        """Whether ids are stored here. Ids out of the window are deleted with a commit."""
        partition = self._partition
        try:
            if partition.ids.is_empty:
                return False
            expiry_ms = partition.ids.next_expiry_ms(partition.config.dedupe_window_ms)
        except StorageCorrupt:
            return True  # what cannot be read may be repeated
        if expiry_ms is None or expiry_ms <= partition.log_ms():
            partition.request()
        return True

    def let_go(self) -> None:
        """The queue is deleted and its messages move: holds nothing back any more."""
        self.waits = False
        close_lanes(self._partition)

    # ------------------------------------------------------------------------------------------ strict order only

    def gate(self) -> None:
        """Tells readers and lanes which messages wait for older ones in another partition."""
        if self._partition.groups is not None:
            self._partition.groups.look_at_fences()
        close_lanes(self._partition)

    def waiting(self) -> dict[int, int]:
        """Slot → the offset from which on its messages wait for older ones in another partition."""
        if not self.waits:
            return {}
        return {
            slot: next(t.opened_at for t in tenures if not t.is_released)
            for slot, tenures in self.keeper.ahead.tenures.items()
            if not all(t.is_released for t in tenures)
        }

    def forwards(self, state: ChunkState, bits: int, due_ms: int) -> int:
        """Those of the scheduled messages that must follow their slot to its present partition."""
        if not self.waits:
            return 0
        out = 0
        for slot, own in by_slot(state.keys, bits).items():
            if self.keeper.handling(slot, state.base, due_ms) == "forward":
                out |= own
        return out

    def is_unsettled(self, slot: int, tenure: Tenure) -> bool:
        """Whether a message of the tenure on disk is neither settled nor dead. Messages due after its seal do not
        count. Reads a bounded number of chunks; if that is not enough, the answer is True for now.
        """
        if self._partition.config.kind == "stream":
            return self._is_kept(slot, tenure)
        if not self.waits:
            return False
        place = slot, tenure.sealed_by
        if place in self._still:
            return True
        at = self._looks.get(place, Witness(MAIN, tenure.opened_at))
        looks = 0
        for shelf in (MAIN, SCHEDULED):
            if shelf < at.shelf:
                continue
            base = at.base if shelf == at.shelf else tenure.opened_at
            left = self._left(shelf, base)
            while left is not None and left.chunk.base < tenure.sealed_at:
                looks += 1
                if self._has_left(left, slot, tenure):
                    self._still.add(place)
                elif looks <= DRAIN_CHUNKS_PER_LOOK:
                    left = self._left(shelf, left.chunk.base + 1)
                    continue
                self._looks[place] = Witness(shelf, left.chunk.base)
                return True
        self._looks[place] = _AT_THE_END  # nothing comes back below a seal
        return False

    def _is_kept(self, slot: int, tenure: Tenure) -> bool:
        """For a stream: whether a reader may still reach messages of the tenure, or messages that came before it
        elsewhere.

        Until then its barrier is needed, also if the slot left before it had a message here.
        """
        state = self._partition.state
        if state.live and state.floor < tenure.sealed_at:
            return True
        source = next((one for one in self._partition.siblings() if one.index == tenure.source), None)
        if source is None or source.slotting is None:
            return False
        return source.slotting.keeper.book.sealed_by(tenure.version, slot) is not None

    def _left(self, shelf: int, base: int) -> Left | None:
        """The first chunk of a shelf at or above an offset, with what is left of it on disk."""
        place = Witness(shelf, base)
        if place not in self._seen:
            chunk = self._partition.read(base, shelf)
            if len(self._seen) >= DRAIN_CHUNKS_KEPT:
                self._seen.clear()
            self._seen[place] = left_in(self._partition, chunk) if chunk is not None else None
        return self._seen[place]

    def _has_left(self, left: Left, slot: int, tenure: Tenure) -> bool:
        own, chunk = left.by_slot.get(slot, 0), left.chunk
        if own and chunk.shelf == SCHEDULED:
            reader = self._partition.reader
            later = 0
            for due_ms in reader.schedule_of(chunk.base):
                if due_ms > tenure.sealed_ms:
                    later |= reader.due_bits(chunk.base, due_ms)
            own &= ~later
        return bool(own)


def _nothing() -> None:
    """Until a listener is set."""


def _ignore(state: ChunkState, bits: int) -> None:
    """Until a listener is set."""
