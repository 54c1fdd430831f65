"""Which partition of its queue takes a message: slots, the slot table, and the plans that grow and shrink a queue.

A message with something to be known by (its key, else its dedupe id, else its producer) belongs to one of 256 *slots*,
and the *slot table* says which partition has the slot now. So all messages of a key, and all repetitions of an id, meet
in one place. A message without any goes to whichever partition is next.

How a shell uses the four files about partitions, in the order of a message's path:

    slot      = routing.slot(key=…, dedupe_id=…, producer=…)    # None: partition = table.spread(turn)
    partition = table.route(slot)                               # None: the slot is on the move; keep the call, in order
    refused   = keeper.refused(slots, version=table.version)    # the partition's own word, from its log
    … append. A refused call waits for a newer table and goes there with the same ids, before later ones of its slot.

    table     = resized(table, partitions)                      # a plan: one transaction of the metadata store
    keeper.heed(table)                                          # every partition; what follows stands in `slot_moves`
    table     = with_opened(table, move)                        # when the target says that it has opened the slots
    table     = with_retired(table, number, since)              # when a draining partition says that it is empty

`slot_moves` is the partition's side: sealing, handing over, waiting. `places` has ids and cursors that name partitions,
`expansion` decides when a queue grows or shrinks.

A plan is carried out in *moves* of a few slots, one at a time into each partition. A slot is on the move from the table
that says so until its target has opened it. Nothing else is planned before all have arrived, so a slot never has two
moves to think of, and growing never meets shrinking. A move is not aborted, for nobody could say whether its seal is on
a disk already: it ends, and may be followed by one back. What it leaves behind in the old partition may still drain
while the slot moves on.

What callers owe to order: calls of a slot that are on the way together carry one version, and after a refusal they go
again, all of them and in their order, by a newer table. So a partition takes them up to its seal and none behind it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Literal, NamedTuple

import msgspec
from google_crc32c import value as crc32c

from backend_store.model import PARTITIONS_MAX, Conflict, InvalidRequest, QueueConfig, QueueDefinition

SLOTS = 256
"""A queue of 24 partitions has 10 or 11 slots in each: the fullest has a tenth more, where 64 slots would make it half
as much again. A table of them is still small enough to be sent to whoever asks."""
UNKEYED = SLOTS
"""Bit of messages without a slot in a set of slots."""
WAITS = -1
"""As a partition's number: the slot is on the move, so the messages wait for the next table."""
ANYWHERE = -2
"""As a partition's number: the messages have no slot, so any open partition may take them."""
MOVE_SLOTS_MAX = 8
"""Slots that are sealed together. Their publishes wait until the last dedupe id of them is handed over."""

ALL_SLOTS = (1 << SLOTS) - 1
"""All slots, as bits."""
EVERY_SLOT = ALL_SLOTS | 1 << UNKEYED
"""The same with messages that have none."""
_SPREAD = 0x9E3779B1
"""2³² divided by the golden ratio: similar keys have similar checksums, and this pulls them apart."""

Role = Literal["open", "draining", "retired"]
"""Open partitions take slots and unkeyed messages; draining ones only deliver; of a retired one only its end is kept,
from which a later life of the same number goes on, so that a message's place is never given out twice."""


def slot_of(text: str | bytes) -> int:
    """The slot of a key, a dedupe id or a producer: the same in every process and every version."""
    checksum: int = crc32c(text.encode() if isinstance(text, str) else text)
    return (checksum * _SPREAD & 0xFFFFFFFF) >> 24


def slots_of_keys(keys: Sequence[str]) -> list[int]:
    """`slot_of` for many: the hot path of a queue with several partitions."""
    return [(crc32c(key.encode()) * _SPREAD & 0xFFFFFFFF) >> 24 for key in keys]


def packed(slots: int) -> bytes:
    """Slots, given as bits, as they are written; b"" for none."""
    return slots.to_bytes(SLOTS // 8, "little") if slots else b""


def unpacked(slots: bytes) -> int:
    return int.from_bytes(slots, "little")


def slots_taken(definition: QueueDefinition) -> int:
    """What a shard takes of a queue as it was told, as bits; with `UNKEYED` where it takes anything."""
    if definition.takes_none:
        return 0
    return (unpacked(definition.takes) or ALL_SLOTS) | 1 << UNKEYED


class Routing(NamedTuple):
    """What a queue's messages are known by."""

    is_strict: bool = False
    """Messages without a key have one order among them: one key, so to speak."""
    by_producer: bool = False
    """A producer's numbers must be seen in one place (`sequencing: producer`), whatever the keys are."""

    def slot(self, *, key: str | None = None, dedupe_id: bytes | None = None, producer: str = "") -> int | None:
        """None for a message that any partition may take."""
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
    """Slots on their way from one partition to another, since the table of this version."""

    version: int
    source: int
    target: int
    slots: tuple[int, ...]


class Member(NamedTuple):
    """A partition's role, and the version of the table that gave it."""

    role: Role
    since: int


class SlotTable(msgspec.Struct, frozen=True, dict=True):
    """The one truth about a queue's partitions, in the metadata store. Each change makes a new version of it.

    `owners` has each slot's partition, for a slot on the move the target already; `goal` has those of the plan.
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
        """The slots that nobody takes messages for at the moment."""
        return frozenset(slot for move in self.moves for slot in move.slots)

    @cached_property
    def places(self) -> tuple[int, ...]:
        """By slot its partition, `WAITS` for one on the move; and `ANYWHERE` for `UNKEYED`."""
        return (*(WAITS if (taker := self.route(slot)) is None else taker for slot in range(SLOTS)), ANYWHERE)

    @cached_property
    def takers(self) -> dict[int, int]:
        """By partition the slots that it takes, as bits, and `UNKEYED` where it is open. `WAITS`: those on the move."""
        bits = dict.fromkeys(self.open_partitions, 1 << UNKEYED)
        for slot, place in enumerate(self.places[:SLOTS]):
            bits[place] = bits.get(place, 0) | 1 << slot
        return bits

    def route(self, slot: int) -> int | None:
        """The slot's partition; None while it is on the move: the call waits, in its order, for the next table."""
        return None if slot in self.moving else self.owners[slot]

    def spread(self, turn: int) -> int:
        """The partition of a publish call's unkeyed messages: all of one call, by turns from call to call."""
        return self.open_partitions[turn % len(self.open_partitions)]


class PartitionMap(msgspec.Struct, frozen=True):
    """A queue's partitions, as the metadata store keeps them."""

    uid: int
    table: SlotTable
    replicas: dict[int, int]
    """Under which number each partition is stored. A retired one keeps its own, where its next life goes on."""


# ------------------------------------------------------------------------------------------------------- plans


def first_table(partitions: int = 1) -> SlotTable:
    """The table of a new queue. One partition: also that of a queue that never had a table."""
    _check_size(partitions)
    owners = tuple(slot % partitions for slot in range(SLOTS))
    return _checked(SlotTable(1, owners, owners, {number: Member("open", 1) for number in range(partitions)}))


def resized(table: SlotTable, partitions: int) -> SlotTable:
    """The plan for as many open partitions: no more slots move than must, and all have the same number, give or take
    one. Raises `Conflict` while another plan is carried out."""
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
    """The plan that gives some slots to another open partition: away from a busy one. Raises `Conflict`."""
    _check_at_rest(table)
    if target not in table.open_partitions:
        raise Conflict(f"partition {target} is not open; open ones are {list(table.open_partitions)}")
    wanted = frozenset(slots)
    goal = tuple(target if slot in wanted else owner for slot, owner in enumerate(table.owners))
    return _planned(table, table.members, goal)


def with_opened(table: SlotTable, move: Move) -> SlotTable:
    """The table after the target has durably opened the slots; its next move begins. Said twice, it changes nothing."""
    if move not in table.moves:
        return table
    rest = tuple(other for other in table.moves if other != move)
    return _with_next_moves(msgspec.structs.replace(table, version=table.version + 1, moves=rest))


def with_retired(table: SlotTable, number: int, since: int) -> SlotTable:
    """The table after a partition that drains since that version has said that nothing is left in it.

    A partition that was opened again since then said so of a former life: that changes nothing.
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
    """Begins what the plan has next for each target that waits for nothing."""
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
    """Partitions to open: one that still drains, before one that must be made."""
    draining = sorted(number for number, member in table.members.items() if member.role == "draining")
    others = (n for n in range(PARTITIONS_MAX) if n not in table.open_partitions and n not in draining)
    return [*draining, *others][: max(0, count)]


def _balanced(owners: Sequence[int], staying: Sequence[int]) -> tuple[int, ...]:
    held = Counter(owners)
    share, extra = divmod(SLOTS, len(staying))
    # Who has most now may keep one more, so that it need not move.
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
