"""A partition's side of a move: which slots it takes messages for, what it waits for, what it hands over.

One move, between the partition that has the slots and the one that the table gives them to:

    target  fetch() ─────────────────▶ source  seal(): SlotsSealed. From here on in its log it refuses the slots
    target  take() ◀─── pages ──────── source  hands_over(): once that is durable; what it knows is frozen now
    target  SlotsOpened: takes messages of the slots; where they `wait`, it does not deliver them yet
    metadata ◀── opened_moves() ────── target  once that is durable: callers are routed there
    target  questions() ─────────────▶ source  drained(): nothing unsettled is left of the tenure, and that tenure
    target  release() ◀─────────────── source             does not wait itself
    target  SlotsReleased: delivers

The target asks until it is answered, so the source owes nobody anything; what is late, doubled or out of order finds
its version passed and changes nothing. A record is all that a crash leaves, and each is enough to go on from: sealed
and not opened, the table still lists the move and the target fetches again; opened and not released, it asks again.

A keeper has two books: `book` is committed, `ahead` has what this commit will add. Work is refused by `ahead`; what
others are told is read from `book`.

Invariant, over all partitions: at most one takes messages for a slot. `tests/simulation` holds them to it, by crashes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Literal, NamedTuple

from backend_store.core.slot_book import (
    RoleTaken,
    SlotBook,
    SlotRecord,
    SlotsForgotten,
    SlotsOpened,
    SlotsReleased,
    SlotsSealed,
    Tenure,
)
from backend_store.core.slots import UNKEYED, Move, SlotTable

PAGE_IDS_MAX = 4096
"""Dedupe ids in one page of a handover, and so in one commit of the target."""


class Fetch(NamedTuple):
    """Target to source: seal the slots of this move, and hand over what follows `after` (b"": from the start)."""

    move: Move
    after: bytes = b""


class KnownId(NamedTuple):
    """A dedupe id within its window, and where the first message of it lies: perhaps in a third partition."""

    slot: int
    id: bytes
    partition: int
    offset: int
    time_ms: int


class KnownProducer(NamedTuple):
    """What a partition keeps of a producer whose messages are known by their numbers: its row, as it is stored."""

    slot: int
    producer: str
    state: bytes


class Page(NamedTuple):
    """Source to target: part of what is known of the slots' messages. `next` None: that was all of it.

    `time_ms` is the source's log time at the seal: the target's goes on from there, so that times along a key rise.
    """

    fetch: Fetch
    sealed_at: int
    time_ms: int
    ids: tuple[KnownId, ...]
    producers: tuple[KnownProducer, ...]
    next: bytes | None = None


class Question(NamedTuple):
    """Target to source: is everything settled that you had of these slots when this version took them away?"""

    version: int
    source: int
    slots: tuple[int, ...]


class SlotState(Enum):
    """Where a slot stands in one partition: its last tenure there."""

    ABSENT = "absent"
    IMPORTING = "importing"
    """It is to come here; what is known of it is on its way. Nobody takes its messages."""
    WAITING = "waiting"
    """Messages are taken; none is delivered before the older ones, in the partition it came from, are settled."""
    OPEN = "open"
    SEALED = "sealed"
    """It has gone elsewhere; what is left of it here is still delivered, and acks are taken."""


Unsettled = Callable[[int, Tenure], bool]
"""Whether the committed state has a message of the slot, at an offset of the tenure and not due after its seal, that is
neither settled, dead nor expired. In a strict stream: one that is not trimmed yet. Where nothing waits: never. What a
sorting queue had not released at the seal counts as due after it."""


class SlotKeeper:
    """Decides for one partition. Records it returns are in `ahead` at once; the shell adds them to its commit, and says
    `committed` when that is durable. `waits`: a work queue with strict order."""

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
        """Looks at a table. One that is older than what this log has acted on is passed over, whoever sent it."""
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
        """What publishing and delivery ask for each time, made when it changes."""
        book = self.ahead
        self.taken = 1 << UNKEYED if book.role == "open" else 0
        """The slots whose messages are taken, as bits; and bit `UNKEYED`."""
        self.newest = 0
        for slot, tenures in book.tenures.items():
            if not tenures[-1].sealed_by:
                self.taken |= 1 << slot
                self.newest = max(self.newest, tenures[-1].version)
        every = [tenure for tenures in book.tenures.values() for tenure in tenures]
        self.holds = any(not tenure.is_released for tenure in every)
        """Some messages wait for others: `handling` is asked for all, and not only for those that were scheduled."""
        self.drains = any(tenure.sealed_by for tenure in every)
        """Something is left of slots that went elsewhere: `forget` may have something to decide."""

    # ---------------------------------------------------------------------------------- publishing and delivery

    def refused(self, slots: int, *, version: int) -> int:
        """Of the slots of a call (as bits), those whose messages are not taken from a caller with this table.

        A caller whose table is older than the tenure may have other calls on the way that were refused: this one would
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
        that was decided before; `now_ms` is not below any due time that was woken up for already."""
        here = [slot for slot in move.slots if self._can_seal(slot, move)]
        if not here:
            return None  # a late one: it was done before
        assert len(here) == len(move.slots), "slots of one move are sealed together"
        record = SlotsSealed(move.version, move.slots, end, now_ms)
        self._decide(record)
        return record

    def _can_seal(self, slot: int, move: Move) -> bool:
        tenures = self.ahead.tenures.get(slot, ())
        return bool(tenures) and not tenures[-1].sealed_by and tenures[-1].version < move.version

    def hands_over(self, move: Move) -> Tenure | None:
        """A tenure of the move, when all of them are durably sealed by it: then the source sends pages."""
        sealed = [self.book.sealed_by(move.version, slot) for slot in move.slots]
        return sealed[0] if all(sealed) else None

    def drained(self, question: Question, unsettled: Unsettled) -> tuple[int, ...]:
        """The slots of a question of which nothing is left. A tenure that is not in the book was drained and
        forgotten: nobody asks before the seal was durable."""
        return tuple(
            slot
            for slot in question.slots
            if (tenure := self.book.sealed_by(question.version, slot)) is None or _is_drained(slot, tenure, unsettled)
        )

    def over(self, unsettled: Unsettled) -> dict[int, list[int]]:
        """The tenures that are over, as version → slots: they are drained, and their move has arrived."""
        over: defaultdict[int, list[int]] = defaultdict(list)
        for slot, tenures in self.book.tenures.items():
            for tenure in tenures:
                if self._has_left(slot, tenure) and _is_drained(slot, tenure, unsettled):
                    over[tenure.sealed_by].append(slot)
        return over

    def forget(self, unsettled: Unsettled) -> list[SlotsForgotten]:
        """Decides that what is over is forgotten."""
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
        """What to ask for now; again and again, until it has come. One move at a time."""
        if self.importing is None and self.table is not None:
            for move in self.table.moves:
                if move.target == self.number and not _is_opened(self.ahead, move):
                    self.importing = Fetch(move)
                    break
        return self.importing

    def wants(self, page: Page) -> bool:
        """Whether this is the page that was asked for: then the shell stores what is in it, in this commit."""
        return page.fetch == self.importing

    def take(self, page: Page, *, end: int) -> SlotsOpened | None:
        """Takes in a page that is wanted; with the last one the slots are opened, at offset `end`."""
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
        """Moves of the table that have durably arrived here: the metadata store is to be told."""
        moves = self.table.moves if self.table is not None else ()
        return [move for move in moves if move.target == self.number and _is_opened(self.book, move)]

    def questions(self) -> list[Question]:
        """What tenures wait for."""
        waiting: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for slot, tenures in self.book.tenures.items():
            for tenure in tenures:
                if not tenure.is_released:
                    waiting[tenure.version, tenure.source].append(slot)
        return [Question(version, source, tuple(slots)) for (version, source), slots in waiting.items()]

    def answers_itself(self, question: Question) -> bool:
        """A source that has retired since had nothing left; it need not be asked, nor be there."""
        table = self.table
        if table is None:
            return False
        assert table.version >= question.version, "heeded a table from before this log's last record"
        member = table.members.get(question.source)
        return member is not None and member.role == "retired"

    def release(self, version: int, slots: Iterable[int]) -> SlotsReleased | None:
        """Decides that the older messages of these slots are settled."""
        tenures = self.ahead.tenures
        waiting = [s for s in slots if any(t.version == version and not t.is_released for t in tenures.get(s, ()))]
        if not waiting:
            return None
        record = SlotsReleased(version, tuple(waiting))
        self._decide(record)
        return record

    # ---------------------------------------------------------------------------------------------------- role

    def take_role(self) -> RoleTaken | None:
        """Decides to be what the table says."""
        member = self.table.members.get(self.number) if self.table is not None else None
        if member is None or member.since == self.ahead.role_since:
            return None
        assert member.since > self.ahead.role_since, "heeded a table from before this log's last role"
        record = RoleTaken(member.since, member.role)
        self._decide(record)
        return record

    def may_retire(self, live: int) -> int | None:
        """Since which version this partition drains, when nothing is in it: no tenure, and no message on any shelf
        (`live`, committed). Nothing can come any more, so that stays true."""
        book = self.book
        return book.role_since if book.role == "draining" and not book.tenures and not live else None


def _is_drained(slot: int, tenure: Tenure, unsettled: Unsettled) -> bool:
    return tenure.is_released and not unsettled(slot, tenure)


def _is_opened(book: SlotBook, move: Move) -> bool:
    return all(slot in book.tenures and book.tenures[slot][-1].version >= move.version for slot in move.slots)
