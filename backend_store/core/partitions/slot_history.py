"""A partition's slot history, from its log: when it got each slot, when it gave it away, and which messages must wait.

A *tenure* is a slot's time in a partition: from the offset at which it was opened here to the offset at which it was
sealed. A slot that comes and goes leaves several tenures, each with its own messages, until none of these are left.

Invariants, asserted where a record is applied: only a slot's last tenure is unsealed; a tenure begins at or after the
seal of the previous one; versions rise from tenure to seal to tenure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import islice, pairwise
from typing import Literal, NamedTuple, assert_never

import msgspec

from backend_store.core.partitions.slots import Role, SlotTable

BORN_HERE = -1
"""In place of a tenure's source: the slot did not come from another partition."""


class SlotsSealed(NamedTuple):
    """From offset `at` on, the partition does not have the slots: the table of `version` took them away."""

    version: int
    slots: tuple[int, ...]
    at: int
    time_ms: int


class SlotsOpened(NamedTuple):
    """From offset `at` on, the partition has the slots. In the source they were sealed at `source_sealed_at`."""

    version: int
    slots: tuple[int, ...]
    at: int
    source: int
    source_sealed_at: int
    is_released: bool


class SlotsReleased(NamedTuple):
    """The slots' earlier messages are settled: those of the tenures that began with this version may be delivered."""

    version: int
    slots: tuple[int, ...]


class SlotsForgotten(NamedTuple):
    """The tenures that this version sealed are over: no messages are left, and no target will fetch their ids."""

    version: int
    slots: tuple[int, ...]


class RoleTaken(NamedTuple):
    """The partition's role by the table: it takes unkeyed messages (open), or none any more (draining, retired)."""

    version: int
    role: Role


SlotRecord = SlotsSealed | SlotsOpened | SlotsReleased | SlotsForgotten | RoleTaken


class Tenure(NamedTuple):
    """A slot's time in this partition. `sealed_by` 0: it has not ended."""

    version: int
    opened_at: int
    source: int = BORN_HERE
    source_sealed_at: int = 0
    is_released: bool = True
    sealed_by: int = 0
    sealed_at: int = 0
    sealed_ms: int = 0


class SlotBook(msgspec.Struct, frozen=True):
    """A partition's row with the history of its slots. Applying a record twice changes nothing."""

    version: int = 0
    """Version of the newest table that a record is based on: older tables are ignored."""
    role: Role = "retired"
    role_since: int = 0
    tenures: dict[int, tuple[Tenure, ...]] = msgspec.field(default_factory=dict)
    """The tenures of each slot, in the order of their offsets."""

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
        """Returns the slot's tenure that the table of this version ended, or None."""
        return next((tenure for tenure in self.tenures.get(slot, ()) if tenure.sealed_by == version), None)

    def handling(self, slot: int, offset: int, due_ms: int = 0) -> Literal["deliver", "hold", "forward"]:
        """Returns what to do with an unsettled message of a strict queue when its turn comes.

        `hold`: older messages of the slot, in another partition, come first. `forward`: it was scheduled beyond the
        seal, so it goes through the outbox to the partition that has the slot when it is due.
        """
        for tenure in reversed(self.tenures.get(slot, ())):
            if offset >= tenure.opened_at:
                if tenure.sealed_by and (offset >= tenure.sealed_at or due_ms > tenure.sealed_ms):
                    return "forward"
                return "deliver" if tenure.is_released else "hold"
        return "forward"

    def barriers(self) -> list[Barrier]:
        """Returns the barriers for readers of a strict stream, sorted: see `may_read`."""
        found = {
            Barrier(tenure.opened_at, tenure.source, tenure.source_sealed_at)
            for tenures in self.tenures.values()
            for tenure in tenures
            if tenure.source != BORN_HERE
        }
        return sorted(found)


class Barrier(NamedTuple):
    """A stream's reader may pass `opened_at` in this partition only after `sealed_at` in the source."""

    opened_at: int
    source: int
    sealed_at: int


def may_read(barriers: Sequence[Barrier], offset: int, positions: Mapping[int, int]) -> bool:
    """Whether a stream's reader at `offset` may read on in this partition, given its positions in other partitions.

    Readers never wait in a circle: a slot is sealed before it is opened, so in a circle a record would precede itself.
    A partition that is not among the positions has retired, and all of it was read or trimmed.
    """
    return all(b.opened_at > offset or positions.get(b.source, b.sealed_at) >= b.sealed_at for b in barriers)


def standing(
    ahead: Mapping[int, int], places: Mapping[int, int], barriers: Mapping[int, Sequence[Barrier]]
) -> dict[int, int]:
    """Returns how far a stream's reader advances in each partition without a message: to its next one, or to the end if
    there is none (`ahead`), but past no opening before it has reached the seal in the source.

    An opening between two messages counts, too: a slot that came and went before a message was stored is behind the
    reader only if the reader has passed all earlier partitions of the slot. `places`: the reader's previous positions.
    """
    stands = dict(ahead)
    held = set(stands)
    while held:
        held = {number for number in stands if _holds_back(number, stands, places[number], barriers[number])}
    return stands


def _holds_back(number: int, stands: dict[int, int], place: int, barriers: Sequence[Barrier]) -> bool:
    """Moves a reader back to a partition's first opening that it may not pass yet. Returns whether there was one."""
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
    """Returns the history of a partition that was created with its queue."""
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
