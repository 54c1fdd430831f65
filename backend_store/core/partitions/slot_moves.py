"""Slot migration, the partition's side of a move: which slots it takes messages for, waits for, and hands over.

One move, between the partition that has the slots (source) and the one that gets them by the table (target):

    target  fetch() ─────────────────▶ source  seal(): SlotsSealed. From there on in its log it refuses the slots
    target  take() ◀─── pages ──────── source  hands_over(): once that is durable; its ids are frozen now
    target  SlotsOpened: takes messages of the slots; if the queue `waits`, it does not deliver them yet
    metadata ◀── opened_moves() ────── target  once that is durable: callers are routed there
    target  questions() ─────────────▶ source  drained(): no message of the tenure is unsettled, and the tenure
    target  release() ◀─────────────── source             does not wait itself
    target  SlotsReleased: delivers

The target repeats a request until it is answered, so the source need not send anything by itself; late, duplicate or
reordered messages have an outdated version and change nothing. A crash leaves only records, and each is enough to
continue: sealed but not opened, the table still lists the move and the target fetches again; opened but not released,
the target asks again.

A keeper has two books: `book` is committed, `ahead` includes the next commit. Publishes are refused by `ahead`; answers
to other partitions are read from `book`.

Invariant, over all partitions: at most one takes messages for a slot. `tests/simulation` checks that with crashes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Literal, NamedTuple

from backend_store.core.partitions.slot_history import (
    RoleTaken,
    SlotBook,
    SlotRecord,
    SlotsForgotten,
    SlotsOpened,
    SlotsReleased,
    SlotsSealed,
    Tenure,
)
from backend_store.core.partitions.slots import UNKEYED, Move, SlotTable

PAGE_IDS_MAX = 4096
"""Dedupe ids in one page of a handover, and so in one commit of the target."""


class Fetch(NamedTuple):
    """Target to source: seal the slots of this move, and send the page after `after` (b"": the first one)."""

    move: Move
    after: bytes = b""


class KnownId(NamedTuple):
    """A dedupe id within its window, and the place of its first message, which may be in a third partition."""

    slot: int
    id: bytes
    partition: int
    offset: int
    time_ms: int


class KnownProducer(NamedTuple):
    """A partition's row of a producer that numbers its messages, as it is stored."""

    slot: int
    producer: str
    state: bytes


class Page(NamedTuple):
    """Source to target: a part of the ids and producers of the slots. `next` None: this is the last page.

    `time_ms` is the source's log time at the seal: the target's continues from there, so that times along a key rise.
    """

    fetch: Fetch
    sealed_at: int
    time_ms: int
    ids: tuple[KnownId, ...]
    producers: tuple[KnownProducer, ...]
    next: bytes | None = None


class Question(NamedTuple):
    """Target to source: are all messages settled that the source had of these slots when this version sealed them?"""

    version: int
    source: int
    slots: tuple[int, ...]


class SlotState(Enum):
    """The state of a slot in one partition, by its last tenure there."""

    ABSENT = "absent"
    IMPORTING = "importing"
    """The partition is fetching its ids. No partition takes its messages."""
    WAITING = "waiting"
    """Messages are taken; none is delivered before the older ones, in the source, are settled."""
    OPEN = "open"
    SEALED = "sealed"
    """It has moved elsewhere; its messages left here are still delivered, and acks are taken."""


Unsettled = Callable[[int, Tenure], bool]
"""Whether the committed state has a message of the slot, at an offset of the tenure and not due after its seal, that is
neither settled, dead nor expired. In a strict stream: a message that is not trimmed yet. In a queue where no message
waits for another: always False. Messages that a sorting queue had not released at the seal count as due after it."""


class SlotKeeper:
    """Takes the slot decisions of one partition, which owns it.

    Records that it returns are in `ahead` at once; the shell adds them to its commit, and calls `committed` when that
    is durable. `waits`: a work queue with strict order.
    """

    def __init__(self, number: int, book: SlotBook, *, waits: bool):
        self.number = number
        self.waits = waits
        self.book = book
        self.ahead = book
        self.table: SlotTable | None = None
        self.importing: Fetch | None = None
        self._summarise()

    def committed(self) -> None:
        self.book = self.ahead

    def heed(self, table: SlotTable) -> None:
        """Takes a newer table. A table that is older than one that this log has acted on is ignored."""
        if table.version < self.ahead.version or (self.table is not None and table.version <= self.table.version):
            return
        self.table = table
        if self.importing is not None and self.importing.move not in table.moves:
            self.importing = None

    def state(self, slot: int) -> SlotState:
        if self.importing is not None and slot in self.importing.move.slots:
            return SlotState.IMPORTING
        tenures = self.ahead.tenures.get(slot)
        if not tenures:
            return SlotState.ABSENT
        if tenures[-1].sealed_by:
            return SlotState.SEALED
        return SlotState.OPEN if tenures[-1].is_released else SlotState.WAITING

    def _decide(self, record: SlotRecord) -> None:
        self.ahead = self.ahead.apply(record)
        self._summarise()

    def _summarise(self) -> None:
        """Computes the fields that each publish and delivery reads, whenever the history changes."""
        book = self.ahead
        self.taken = 1 << UNKEYED if book.role == "open" else 0
        """The slots whose messages are taken, as bits, with bit `UNKEYED` if the partition is open."""
        self.newest = 0
        for slot, tenures in book.tenures.items():
            if not tenures[-1].sealed_by:
                self.taken |= 1 << slot
                self.newest = max(self.newest, tenures[-1].version)
        every = [tenure for tenures in book.tenures.values() for tenure in tenures]
        self.holds = any(not tenure.is_released for tenure in every)
        """True if some messages wait for others: `handling` is called for all of them, not only for scheduled ones."""
        self.drains = any(tenure.sealed_by for tenure in every)
        """True if tenures of slots that moved elsewhere are left, so that `forget` may have something to decide."""

    # ---------------------------------------------------------------------------------- publishing and delivery

    def refused(self, slots: int, *, version: int) -> int:
        """Returns those of a call's slots, as bits, whose messages are not taken from a caller with this table version.

        A caller whose table is older than the tenure may have other calls in flight that were refused: this call would
        overtake them.
        """
        refused = slots & ~self.taken
        if version < self.newest:
            for slot, tenures in self.ahead.tenures.items():
                if slots >> slot & 1 and version < tenures[-1].version:
                    refused |= 1 << slot
        return refused

    def handling(self, slot: int, offset: int, due_ms: int = 0) -> Literal["deliver", "hold", "forward"]:
        """See `SlotBook.handling`."""
        return self.ahead.handling(slot, offset, due_ms)

    # -------------------------------------------------------------------------------------------------- source

    def seal(self, move: Move, *, end: int, now_ms: int) -> SlotsSealed | None:
        """Decides that the slots of a fetched move are no longer taken. `end` is the record's own offset, behind all
        earlier decisions; `now_ms` is not below any due time that was already handled. Returns None if that is done.
        """
        here = [slot for slot in move.slots if self._can_seal(slot, move)]
        if not here:
            return None  # a late or duplicate fetch: the slots are sealed already
        assert len(here) == len(move.slots), "slots of one move are sealed together"
        record = SlotsSealed(move.version, move.slots, end, now_ms)
        self._decide(record)
        return record

    def _can_seal(self, slot: int, move: Move) -> bool:
        tenures = self.ahead.tenures.get(slot, ())
        return bool(tenures) and not tenures[-1].sealed_by and tenures[-1].version < move.version

    def hands_over(self, move: Move) -> Tenure | None:
        """Returns a tenure of the move if all of them are durably sealed by it, so that the source may send pages."""
        sealed = [self.book.sealed_by(move.version, slot) for slot in move.slots]
        return sealed[0] if all(sealed) else None

    def drained(self, question: Question, unsettled: Unsettled) -> tuple[int, ...]:
        """Returns the slots of a question that have no unsettled messages left. A tenure that is not in the book was
        drained and forgotten: no target asks before the seal is durable.
        """
        return tuple(
            slot
            for slot in question.slots
            if (tenure := self.book.sealed_by(question.version, slot)) is None or _is_drained(slot, tenure, unsettled)
        )

    def over(self, unsettled: Unsettled) -> dict[int, list[int]]:
        """Returns the tenures that are over, as version → slots: they are drained, and their move is complete."""
        over: defaultdict[int, list[int]] = defaultdict(list)
        for slot, tenures in self.book.tenures.items():
            for tenure in tenures:
                if self._has_left(slot, tenure) and _is_drained(slot, tenure, unsettled):
                    over[tenure.sealed_by].append(slot)
        return over

    def forget(self, unsettled: Unsettled) -> list[SlotsForgotten]:
        """Decides that the tenures that are over are forgotten."""
        records = [SlotsForgotten(version, tuple(slots)) for version, slots in self.over(unsettled).items()]
        for record in records:
            self._decide(record)
        return records

    def _has_left(self, slot: int, tenure: Tenure) -> bool:
        table = self.table
        if table is None or not tenure.sealed_by or table.version < tenure.sealed_by:
            return False
        return not any(move.version == tenure.sealed_by and slot in move.slots for move in table.moves)

    # -------------------------------------------------------------------------------------------------- target

    def fetch(self) -> Fetch | None:
        """Returns the request to send now, the same one until its page has arrived. One move at a time."""
        if self.importing is None and self.table is not None:
            for move in self.table.moves:
                if move.target == self.number and not _is_opened(self.ahead, move):
                    self.importing = Fetch(move)
                    break
        return self.importing

    def wants(self, page: Page) -> bool:
        """Whether this is the page that was requested: then the shell stores its content in this commit."""
        return page.fetch == self.importing

    def take(self, page: Page, *, end: int) -> SlotsOpened | None:
        """Takes a page that is wanted. With the last page the slots are opened at offset `end`."""
        assert self.importing is not None and page.fetch == self.importing
        move = page.fetch.move
        if page.next is not None:
            self.importing = Fetch(move, page.next)
            return None
        self.importing = None
        record = SlotsOpened(move.version, move.slots, end, move.source, page.sealed_at, not self.waits)
        self._decide(record)
        return record

    def opened_moves(self) -> list[Move]:
        """Returns the table's moves whose slots are durably opened here, which the metadata store must be told."""
        moves = self.table.moves if self.table is not None else ()
        return [move for move in moves if move.target == self.number and _is_opened(self.book, move)]

    def questions(self) -> list[Question]:
        """Returns the questions to the sources for which tenures wait."""
        waiting: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for slot, tenures in self.book.tenures.items():
            for tenure in tenures:
                if not tenure.is_released:
                    waiting[tenure.version, tenure.source].append(slot)
        return [Question(version, source, tuple(slots)) for (version, source), slots in waiting.items()]

    def answers_itself(self, question: Question) -> bool:
        """Whether the source has retired since, and so had nothing left: it need not be asked, nor exist."""
        table = self.table
        if table is None:
            return False
        assert table.version >= question.version, "heeded a table from before this log's last record"
        member = table.members.get(question.source)
        return member is not None and member.role == "retired"

    def release(self, version: int, slots: Iterable[int]) -> SlotsReleased | None:
        """Decides that the older messages of these slots are settled, so that theirs may be delivered."""
        tenures = self.ahead.tenures
        waiting = [s for s in slots if any(t.version == version and not t.is_released for t in tenures.get(s, ()))]
        if not waiting:
            return None
        record = SlotsReleased(version, tuple(waiting))
        self._decide(record)
        return record

    # ---------------------------------------------------------------------------------------------------- role

    def take_role(self) -> RoleTaken | None:
        """Decides to take the role that the table gives the partition."""
        member = self.table.members.get(self.number) if self.table is not None else None
        if member is None or member.since == self.ahead.role_since:
            return None
        assert member.since > self.ahead.role_since, "heeded a table from before this log's last role"
        record = RoleTaken(member.since, member.role)
        self._decide(record)
        return record

    def may_retire(self, live: int) -> int | None:
        """Returns since which version this partition drains if it is empty: no tenure, and no message on any shelf
        (`live`, committed). No message can arrive any more, so that stays true. None: it may not retire.
        """
        book = self.book
        return book.role_since if book.role == "draining" and not book.tenures and not live else None


def _is_drained(slot: int, tenure: Tenure, unsettled: Unsettled) -> bool:
    return tenure.is_released and not unsettled(slot, tenure)


def _is_opened(book: SlotBook, move: Move) -> bool:
    return all(slot in book.tenures and book.tenures[slot][-1].version >= move.version for slot in move.slots)
