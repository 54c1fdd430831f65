"""What a partition's log says of slots: since when it has them, when it gave them away, what waits for what.

A *tenure* is a slot's time in a partition: from the offset at which it was opened here to the offset at which it was
sealed. A slot that comes and goes leaves several, each with its own messages, until nothing of them is left.

Invariants, asserted where a record is applied: only a slot's last tenure is unsealed; a tenure begins at or behind the
seal of the one before; versions rise from tenure to seal to tenure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import islice, pairwise
from typing import Literal, NamedTuple, assert_never

import msgspec

from backend_store.core.slots import Role, SlotTable

BORN_HERE = -1
"""As a tenure's source: the slot did not come from another partition."""


class SlotsSealed(NamedTuple):
    """From offset `at` on, the slots are not this partition's: the table of `version` took them away."""

    version: int
    slots: tuple[int, ...]
    at: int
    time_ms: int


class SlotsOpened(NamedTuple):
    """From offset `at` on, the slots are this partition's. In the source they were sealed at `source_sealed_at`."""

    version: int
    slots: tuple[int, ...]
    at: int
    source: int
    source_sealed_at: int
    is_released: bool


class SlotsReleased(NamedTuple):
    """What came before is settled: messages of the tenures that began with this version may be delivered."""

    version: int
    slots: tuple[int, ...]


class SlotsForgotten(NamedTuple):
    """The tenures that this version sealed are over: nothing is left of them, and nobody will ask for their ids."""

    version: int
    slots: tuple[int, ...]


class RoleTaken(NamedTuple):
    """The partition takes unkeyed messages (open) or none any more (draining, retired), as the table said."""

    version: int
    role: Role


SlotRecord = SlotsSealed | SlotsOpened | SlotsReleased | SlotsForgotten | RoleTaken


class Tenure(NamedTuple):
    """A slot's time in this partition. `sealed_by` 0: it lasts."""

    version: int
    opened_at: int
    source: int = BORN_HERE
    source_sealed_at: int = 0
    is_released: bool = True
    sealed_by: int = 0
    sealed_at: int = 0
    sealed_ms: int = 0


class SlotBook(msgspec.Struct, frozen=True):
    """A partition's row about its slots, and all it knows of them. Applying a record twice changes nothing."""

    version: int = 0
    """Of the newest table that a record stems from: an older table has nothing to say here any more."""
    role: Role = "retired"
    role_since: int = 0
    tenures: dict[int, tuple[Tenure, ...]] = msgspec.field(default_factory=dict)
    """By slot, in the order of their offsets."""

    def apply(self, record: SlotRecord) -> SlotBook:
        version = max(self.version, record.version)
        if isinstance(record, RoleTaken):
            return msgspec.structs.replace(self, version=version, role=record.role, role_since=record.version)
        tenures = dict(self.tenures)
        for slot in record.slots:
            after = _applied(tenures.pop(slot, ()), record)
            if after:
                tenures[slot] = _checked(after)
        return msgspec.structs.replace(self, version=version, tenures=tenures)

    def sealed_by(self, version: int, slot: int) -> Tenure | None:
        """The slot's tenure that the table of this version ended."""
        return next((tenure for tenure in self.tenures.get(slot, ()) if tenure.sealed_by == version), None)

    def handling(self, slot: int, offset: int, due_ms: int = 0) -> Literal["deliver", "hold", "forward"]:
        """What becomes of an unsettled message of a strict queue when its turn comes.

        `hold`: older messages of the slot, in another partition, come first. `forward`: it was scheduled beyond the
        seal, so it goes by way of the outbox to the partition that has the slot when it is due.
        """
        for tenure in reversed(self.tenures.get(slot, ())):
            if offset >= tenure.opened_at:
                if tenure.sealed_by and (offset >= tenure.sealed_at or due_ms > tenure.sealed_ms):
                    return "forward"
                return "deliver" if tenure.is_released else "hold"
        return "forward"

    def barriers(self) -> list[Barrier]:
        """For readers of a strict stream: see `may_read`."""
        found = {
            Barrier(tenure.opened_at, tenure.source, tenure.source_sealed_at)
            for tenures in self.tenures.values()
            for tenure in tenures
            if tenure.source != BORN_HERE
        }
        return sorted(found)


class Barrier(NamedTuple):
    """A stream's reader passes `opened_at` in this partition after `sealed_at` in the other."""

    opened_at: int
    source: int
    sealed_at: int


def may_read(barriers: Sequence[Barrier], offset: int, positions: Mapping[int, int]) -> bool:
    """Whether a stream's reader who stands at `offset` may read on there, given where he stands in other partitions.

    Readers never wait in a circle: a slot is sealed before it is opened, so in a circle a record would precede itself.
    A partition that is not among the positions has retired, and all of it was read or trimmed.
    """
    return all(b.opened_at > offset or positions.get(b.source, b.sealed_at) >= b.sealed_at for b in barriers)


def standing(
    ahead: Mapping[int, int], places: Mapping[int, int], barriers: Mapping[int, Sequence[Barrier]]
) -> dict[int, int]:
    """How far a stream's reader goes in each partition without a message: to its next one, or to the end where there is
    none (`ahead`), but past no opening before it stands at the seal.

    An opening between two messages counts, too: what came to this partition and went on before a message was stored is
    behind a reader only where all of the slot's earlier homes are. `places` is where the reader stood before.
    """
    stands = dict(ahead)
    held = set(stands)
    while held:
        held = {number for number in stands if _holds_back(number, stands, places[number], barriers[number])}
    return stands


def _holds_back(number: int, stands: dict[int, int], place: int, barriers: Sequence[Barrier]) -> bool:
    """Takes a reader back to the first opening of a partition that it may not pass yet; whether there was one."""
    for barrier in islice(barriers, bisect_left(barriers, place, key=_opened_at), None):
        if barrier.opened_at >= stands[number]:
            return False
        if stands.get(barrier.source, barrier.sealed_at) < barrier.sealed_at:
            stands[number] = barrier.opened_at
            return True
    return False


def _opened_at(barrier: Barrier) -> int:
    return barrier.opened_at


def first_book(table: SlotTable, number: int) -> SlotBook:
    """The book of a partition that is as old as its queue."""
    tenures: tuple[Tenure, ...] = (Tenure(table.version, 0),)
    owned = {slot: tenures for slot, owner in enumerate(table.owners) if owner == number}
    return SlotBook(table.version, "open", table.version, owned)


def _applied(
    tenures: tuple[Tenure, ...], record: SlotsSealed | SlotsOpened | SlotsReleased | SlotsForgotten
) -> tuple[Tenure, ...]:
    last = tenures[-1] if tenures else None
    match record:
        case SlotsSealed():
            assert last is not None and last.version < record.version, "sealed what is not here"
            assert last.sealed_by in (0, record.version), "sealed what another table took away"
            ended = last._replace(sealed_by=record.version, sealed_at=record.at, sealed_ms=record.time_ms)
            return (*tenures[:-1], ended)
        case SlotsOpened():
            if last is not None and last.version >= record.version:
                return tenures
            came = (record.source, record.source_sealed_at, record.is_released)
            return (*tenures, Tenure(record.version, record.at, *came))
        case SlotsReleased():
            return tuple(t._replace(is_released=True) if t.version == record.version else t for t in tenures)
        case SlotsForgotten():
            return tuple(t for t in tenures if t.sealed_by != record.version)
        case _:
            assert_never(record)


def _checked(tenures: tuple[Tenure, ...]) -> tuple[Tenure, ...]:
    for before, after in pairwise(tenures):
        assert before.version < before.sealed_by < after.version, "a tenure began while another was open"
        assert before.opened_at <= before.sealed_at <= after.opened_at
    return tenures
