"""Partitioning: slots, the slot table that maps them to partitions, and the plans that grow and shrink a queue.

A message with a key, else a dedupe id, else a producer belongs to one of 256 *slots*, and the *slot table* says which
partition has the slot now. So all messages of a key, and all duplicates of an id, go to the same partition. Messages
without any of these go to the partitions in turn.

How a shell uses the four modules about partitions, in the order of a message's path:

    slot      = routing.slot(key=…, dedupe_id=…, producer=…)    # None: partition = table.spread(turn)
    partition = table.route(slot)                               # None: the slot is moving; hold the call, in order
    refused   = keeper.refused(slots, version=table.version)    # the partition's own decision, by its log
    … append. A refused call waits for a newer table and is sent again with the same ids, before later ones of its slot.

    table     = resized(table, partitions)                      # a plan: one transaction of the metadata store
    keeper.heed(table)                                          # every partition; `slot_moves` has the next steps
    table     = with_opened(table, move)                        # when the target reports that it has opened the slots
    table     = with_retired(table, number, since)              # when a draining partition reports that it is empty

`slot_moves` is the partition's side: sealing, handing over, waiting. `message_ids` has ids that name partitions,
`expansion` decides when a queue grows or shrinks.

A plan is carried out in *moves* of a few slots, one at a time into each partition. A slot is moving from the table that
says so until its target has opened it. No other plan begins before all slots have arrived, so a slot is never part of
two moves, and growing never meets shrinking. A move is not aborted, because its seal may be on disk already: it is
completed, and a move back may follow. Messages that it leaves in the old partition may still drain while the slot moves
on.

Callers keep the order like this: calls of a slot that are in flight together carry one version, and after a refusal
they are all sent again, in their order, by a newer table. So a partition takes them up to its seal and none behind it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Literal, NamedTuple

import msgspec
from google_crc32c import value as crc32c

from backend_store.core.log.bits import indexes
from backend_store.model import PARTITIONS_MAX, Conflict, InvalidRequest, QueueConfig, QueueDefinition

SLOTS = 256
"""A queue of 24 partitions has 10 or 11 slots in each, so the fullest has a tenth more than the others; of 64 slots it
would have half as many again. A table of 256 slots is still small enough to be sent to each client that asks for it."""
UNKEYED = SLOTS
"""Bit of messages without a slot, in a set of slots."""
WAITS = -1
"""In place of a partition's number: the slot is moving, so its messages wait for the next table."""
ANYWHERE = -2
"""In place of a partition's number: the messages have no slot, so any open partition may take them."""
MOVE_SLOTS_MAX = 8
"""Slots that are sealed together. Publishes to them wait until their last dedupe id is handed over."""

ALL_SLOTS = (1 << SLOTS) - 1
"""All slots, as bits."""
EVERY_SLOT = ALL_SLOTS | 1 << UNKEYED
"""All slots, and messages without a slot."""
_SPREAD = 0x9E3779B1
"""2³² divided by the golden ratio: similar keys have similar checksums, and this factor spreads them."""

Role = Literal["open", "draining", "retired"]
"""Open partitions take slots and unkeyed messages; draining ones only deliver; of a retired one only its end is kept,
from which a later partition of the same number continues, so that no message's place is used twice."""


def slot_of(text: str | bytes) -> int:
    """Returns the slot of a key, a dedupe id or a producer: the same in every process and every version."""
    checksum: int = crc32c(text.encode() if isinstance(text, str) else text)
    return (checksum * _SPREAD & 0xFFFFFFFF) >> 24


def slots_of_keys(keys: Sequence[str]) -> list[int]:
    """Returns `slot_of` for many keys: the hot path of a queue with several partitions."""
    return [(crc32c(key.encode()) * _SPREAD & 0xFFFFFFFF) >> 24 for key in keys]


def packed(slots: int) -> bytes:
    """Returns a set of slots, given as bits, in its stored form; b"" for none."""
    return slots.to_bytes(SLOTS // 8, "little") if slots else b""


def unpacked(slots: bytes) -> int:
    return int.from_bytes(slots, "little")


def slots_taken(definition: QueueDefinition) -> int:
    """Returns the slots of a queue that a shard takes by its definition, as bits, with `UNKEYED` if there are any."""
    if definition.takes_none:
        return 0
    return (unpacked(definition.takes) or ALL_SLOTS) | 1 << UNKEYED


def by_slot(keys: Sequence[str | None] | None, bits: int, routing: Routing) -> list[tuple[int, int]]:
    """Groups messages, given as bits, by their slot: (the slot as a bit, its messages as bits). `keys`: of all messages
    of their chunk."""
    found: dict[int, int] = {}
    for index in indexes(bits):
        slot = routing.slot(key=keys[index] if keys is not None else None)
        place = 1 << (UNKEYED if slot is None else slot)
        found[place] = found.get(place, 0) | 1 << index
    return list(found.items())


class Routing(NamedTuple):
    """How a queue's config routes its messages."""

    is_strict: bool = False
    """Messages without a key are ordered among themselves, as if they shared a key."""
    by_producer: bool = False
    """All messages of a producer must go to one partition (`sequencing: producer`), whatever their keys are."""

    def slot(self, *, key: str | None = None, dedupe_id: bytes | None = None, producer: str = "") -> int | None:
        """Returns the slot of a message; None if any partition may take it."""
        if self.by_producer:
            return slot_of(producer)
        if key is not None:
            return slot_of(key)
        if self.is_strict:
            return slot_of("")
        if dedupe_id is not None:
            return slot_of(dedupe_id)
        return slot_of(producer) if producer else None


def routing_of(config: QueueConfig) -> Routing:
    return Routing(is_strict=config.ordering == "strict", by_producer=config.sequencing == "producer")


class Move(NamedTuple):
    """Slots that move from one partition to another, since the table of this version."""

    version: int
    source: int
    target: int
    slots: tuple[int, ...]


class Member(NamedTuple):
    """A partition's role, and the version of the table that gave it."""

    role: Role
    since: int


class SlotTable(msgspec.Struct, frozen=True, dict=True):
    """The authoritative state of a queue's partitions, in the metadata store. Each change makes a new version.

    `owners` has the partition of each slot, for a moving slot already the target; `goal` has those of the plan.
    """

    version: int
    owners: tuple[int, ...]
    goal: tuple[int, ...]
    members: dict[int, Member]
    moves: tuple[Move, ...] = ()

    @cached_property
    def open_partitions(self) -> tuple[int, ...]:
        return tuple(sorted(number for number, member in self.members.items() if member.role == "open"))

    @cached_property
    def moving(self) -> frozenset[int]:
        """The slots for which no partition takes messages at the moment."""
        return frozenset(slot for move in self.moves for slot in move.slots)

    @cached_property
    def places(self) -> tuple[int, ...]:
        """The partition of each slot, `WAITS` for a moving one; last, `ANYWHERE` for `UNKEYED`."""
        return (*(WAITS if (taker := self.route(slot)) is None else taker for slot in range(SLOTS)), ANYWHERE)

    @cached_property
    def takers(self) -> dict[int, int]:
        """The slots that each partition takes, as bits, with `UNKEYED` if it is open. Under `WAITS`: moving slots."""
        bits = dict.fromkeys(self.open_partitions, 1 << UNKEYED)
        for slot, place in enumerate(self.places[:SLOTS]):
            bits[place] = bits.get(place, 0) | 1 << slot
        return bits

    def route(self, slot: int) -> int | None:
        """Returns the slot's partition; None while the slot moves: the call waits, in order, for the next table."""
        return None if slot in self.moving else self.owners[slot]

    def spread(self, turn: int) -> int:
        """Returns the partition of all unkeyed messages of a publish call; successive turns rotate the partitions."""
        return self.open_partitions[turn % len(self.open_partitions)]


class PartitionMap(msgspec.Struct, frozen=True):
    """A queue's partitions, as the metadata store has them."""

    uid: int
    table: SlotTable
    replicas: dict[int, int]
    """The number under which each partition is stored. A retired one keeps it, and continues there when reopened."""


# ------------------------------------------------------------------------------------------------------- plans


def first_table(partitions: int = 1) -> SlotTable:
    """Returns the table of a new queue; with one partition also that of a queue that never had a table."""
    _check_size(partitions)
    owners = tuple(slot % partitions for slot in range(SLOTS))
    return _checked(SlotTable(1, owners, owners, {number: Member("open", 1) for number in range(partitions)}))


def resized(table: SlotTable, partitions: int) -> SlotTable:
    """Returns the table with a plan for `partitions` open partitions: as few slots as possible move, and the numbers of
    slots per partition differ by one at most. Raises `InvalidRequest`, or `Conflict` while another plan is carried out.
    """
    _check_size(partitions)
    _check_at_rest(table)
    version = table.version + 1
    members = dict(table.members)
    for number in _joining(table, partitions - len(table.open_partitions)):
        members[number] = Member("open", version)
    for number in table.open_partitions[partitions:]:
        members[number] = Member("draining", version)
    staying = sorted(number for number, member in members.items() if member.role == "open")
    return _planned(table, members, _balanced(table.owners, staying))


def moved(table: SlotTable, slots: Iterable[int], target: int) -> SlotTable:
    """Returns the table with a plan that moves some slots to another open partition, away from a busy one. Raises
    `Conflict` if the target is not open or another plan is carried out.
    """
    _check_at_rest(table)
    if target not in table.open_partitions:
        raise Conflict(f"partition {target} is not open; open ones are {list(table.open_partitions)}")
    wanted = frozenset(slots)
    goal = tuple(target if slot in wanted else owner for slot, owner in enumerate(table.owners))
    return _planned(table, table.members, goal)


def with_opened(table: SlotTable, move: Move) -> SlotTable:
    """Returns the table after the target has durably opened the slots; its next move begins. Idempotent."""
    if move not in table.moves:
        return table
    rest = tuple(other for other in table.moves if other != move)
    return _with_next_moves(msgspec.structs.replace(table, version=table.version + 1, moves=rest))


def with_retired(table: SlotTable, number: int, since: int) -> SlotTable:
    """Returns the table after a partition that drains since that version has reported that it is empty.

    If the partition was opened again since then, the report is outdated and changes nothing.
    """
    if table.members.get(number) != Member("draining", since):
        return table
    assert number not in table.owners, "a partition that says it is empty has slots"
    version = table.version + 1
    members = {**table.members, number: Member("retired", version)}
    return _checked(msgspec.structs.replace(table, version=version, members=members))


def _planned(table: SlotTable, members: dict[int, Member], goal: tuple[int, ...]) -> SlotTable:
    if goal == table.owners and members == table.members:
        return table
    return _with_next_moves(SlotTable(table.version + 1, table.owners, goal, members))


def _with_next_moves(table: SlotTable) -> SlotTable:
    """Begins the next move of the plan into each target that has none in progress."""
    owners, moves = list(table.owners), list(table.moves)
    for target in sorted(set(table.goal) - {move.target for move in moves}):
        slots = [slot for slot in range(SLOTS) if table.goal[slot] == target != owners[slot]]
        if slots:
            source = owners[slots[0]]
            taken = tuple(slot for slot in slots if owners[slot] == source)[:MOVE_SLOTS_MAX]
            moves.append(Move(table.version, source, target, taken))
            for slot in taken:
                owners[slot] = target
    return _checked(msgspec.structs.replace(table, owners=tuple(owners), moves=tuple(moves)))


def _joining(table: SlotTable, count: int) -> list[int]:
    """Returns the partitions to open: those that still drain before those that must be created."""
    draining = sorted(number for number, member in table.members.items() if member.role == "draining")
    others = (n for n in range(PARTITIONS_MAX) if n not in table.open_partitions and n not in draining)
    return [*draining, *others][: max(0, count)]


def _balanced(owners: Sequence[int], staying: Sequence[int]) -> tuple[int, ...]:
    held = Counter(owners)
    share, extra = divmod(SLOTS, len(staying))
    # The partitions with the most slots now may keep one more, which then need not move.
    by_load = sorted(staying, key=lambda number: (-held[number], number))
    room = {number: share + (rank < extra) for rank, number in enumerate(by_load)}
    after, homeless = list(owners), []
    for slot, owner in enumerate(owners):
        if room.get(owner, 0) > 0:
            room[owner] -= 1
        else:
            homeless.append(slot)
    takers = (number for number in staying for _ in range(room[number]))
    for slot, taker in zip(homeless, takers, strict=True):
        after[slot] = taker
    return tuple(after)


def _check_size(partitions: int) -> None:
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise InvalidRequest(f"{partitions} partitions: a queue has 1 to {PARTITIONS_MAX}")


def _check_at_rest(table: SlotTable) -> None:
    if table.moves:
        left = sum(owner != goal for owner, goal in zip(table.owners, table.goal, strict=True)) + len(table.moving)
        raise Conflict(f"{left} slots are still to arrive where the last plan sends them; the next plan begins then")


def _checked(table: SlotTable) -> SlotTable:
    assert len(table.owners) == len(table.goal) == SLOTS
    assert table.open_partitions and set(table.goal) <= set(table.open_partitions), "a goal that takes nothing"
    assert all(table.members[owner].role != "retired" for owner in set(table.owners)), "a slot of a removed partition"
    assert table.moves or table.owners == table.goal, "a plan that nobody carries out"
    assert len(table.moving) == sum(len(move.slots) for move in table.moves), "a slot with two moves"
    for move in table.moves:
        assert move.source != move.target and move.version <= table.version
        assert all(table.owners[slot] == table.goal[slot] == move.target for slot in move.slots)
    return table
