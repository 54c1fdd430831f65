"""Routing of a publish: divides a call among the partitions of its queue, by the slots of its messages.

A call's blocks nearly always stay whole: `routed_blocks` makes each for one partition and notes the slots in it. If the
table has changed meanwhile, so that a block's messages belong to several partitions, it is cut and encoded again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from backend_store.core.log.block import (
    BLOCK_HEAD,
    Blocks,
    Columns,
    block_of,
    chosen,
    column_blocks,
    expanded,
    punch,
    unpack,
    with_names,
)
from backend_store.core.log.chunk import block_kinds, read_sealed
from backend_store.core.log.sealed_block import Seal, SealedBlock
from backend_store.core.partitions.slots import ANYWHERE, UNKEYED, Routing, SlotTable, slots_of_keys
from backend_store.model import Block, Stamp


class Share(NamedTuple):
    """The part of a call that goes to one partition."""

    partition: int
    """The partition's number, or `WAITS`."""
    blocks: list[Block]
    numbers: list[int]
    """For each message of the blocks its number in the call."""
    slots: int
    """The slots of the messages as bits, including `UNKEYED`."""

    @property
    def messages(self) -> int:
        return len(self.numbers)


class Known(NamedTuple):
    """The columns by which messages are routed. A column is None if no message has a value."""

    keys: Sequence[str | None] | None
    ids: Sequence[bytes | None] | None
    stamps: Sequence[Stamp | None] | None


def slots_of(known: Known, count: int, routing: Routing) -> Sequence[int] | int:
    """Returns the slot of each message, or one slot for all; `UNKEYED` for a message that any partition may take."""
    keys, ids, stamps = known
    if keys is None and ids is None and stamps is None:
        slot = routing.slot()
        return UNKEYED if slot is None else slot
    texts = [key for key in keys if key is not None] if keys is not None and not routing.by_producer else ()
    if len(texts) == count:
        return slots_of_keys(texts)
    found = []
    for number in range(count):
        stamp = stamps[number] if stamps is not None else None
        slot = routing.slot(
            key=keys[number] if keys is not None else None,
            dedupe_id=ids[number] if ids is not None else None,
            producer=stamp.producer if stamp is not None else "",
        )
        found.append(UNKEYED if slot is None else slot)
    return found


def message_slots(blocks: Sequence[Block], routing: Routing) -> list[int]:
    """Returns the slot of each message of a call; `UNKEYED` if any partition may take it."""
    found: list[int] = []
    for block in blocks:
        is_one = block.slots and not block.slots & (block.slots - 1)
        slots = block.slots.bit_length() - 1 if is_one else _slots(block, routing)
        found += [slots] * block.count if isinstance(slots, int) else slots
    return found


def slot_bits(blocks: Sequence[Block], routing: Routing) -> int:
    """Returns the slots of a call's messages as bits, including `UNKEYED`."""
    bits = 0
    for block in blocks:
        bits |= block.slots or _slots_in(block, routing)
    return bits


def _slots(block: Block, routing: Routing) -> Sequence[int] | int:
    traits = block.traits
    known = Known(None, None, None) if traits is None else Known(traits.keys, traits.ids, traits.stamps)
    return slots_of(known, block.count, routing)


def _slots_in(block: Block, routing: Routing) -> int:
    slots = _slots(block, routing)
    if isinstance(slots, int):
        return 1 << slots
    bits = 0
    for slot in set(slots):
        bits |= 1 << slot
    return bits


def routed_blocks(columns: Columns, trace: str | None, routing: Routing, table: SlotTable) -> Blocks:
    """Returns the blocks of a call's messages, each for one partition by the current table."""
    columns = with_names(columns)
    count = len(columns.bodies)
    slots = slots_of(Known(columns.table.get("key"), columns.hashes, columns.stamps), count, routing)
    if isinstance(slots, int):
        return column_blocks(columns._replace(slots=[slots] * count), trace)
    places = table.places
    return column_blocks(columns._replace(slots=slots, partitions=[places[slot] for slot in slots]), trace)


def shares(
    blocks: Sequence[Block], routing: Routing, table: SlotTable, turn: int, seal: Seal | None = None
) -> list[Share]:
    """Returns a call's blocks by partition, with the messages in their original order. `turn` counts calls and selects
    the partition of messages that any may take. `seal` opens and seals blocks that have to be cut.
    """
    found: dict[int, Share] = {}
    first = 0
    for block in blocks:
        for partition, own, slots in _owned(block, routing, table, turn):
            share = found.get(partition)
            if share is None:
                share = found[partition] = Share(partition, [], [], 0)
            whole = len(own) == block.count
            share.blocks.append(block if whole else replace(cut(block, own, seal), slots=slots))
            share.numbers.extend(range(first, first + block.count) if whole else (first + number for number in own))
            found[partition] = share._replace(slots=share.slots | slots)
        first += block.count
    return list(found.values())


def _owned(block: Block, routing: Routing, table: SlotTable, turn: int) -> list[tuple[int, Sequence[int], int]]:
    """Returns (partition, message numbers, their slots as bits) for each partition with messages of the block."""
    traits = block.traits
    slots: Sequence[int] | int
    if block.slots:
        one = (block.slots & -block.slots).bit_length() - 1
        partition = _partition(one, table, turn)
        if not block.slots & ~table.takers.get(partition, 0):
            return [(partition, range(block.count), block.slots)]
    if traits is None:
        slots = slots_of(Known(None, None, None), block.count, routing)
    else:
        slots = slots_of(Known(traits.keys, traits.ids, traits.stamps), block.count, routing)
    if isinstance(slots, int):
        return [(_partition(slots, table, turn), range(block.count), 1 << slots)]
    owned: dict[int, list[int]] = {}
    bits: dict[int, int] = {}
    for number, slot in enumerate(slots):
        partition = _partition(slot, table, turn)
        owned.setdefault(partition, []).append(number)
        bits[partition] = bits.get(partition, 0) | 1 << slot
    return [(partition, own, bits[partition]) for partition, own in owned.items()]


def _partition(slot: int, table: SlotTable, turn: int) -> int:
    place = table.places[slot]
    return table.spread(turn) if place == ANYWHERE else place


def cut(block: Block, numbers: Sequence[int], seal: Seal | None = None) -> Block:
    """Returns a block of some of a block's messages, in the order of `numbers`."""
    flags, key_id, count, clear_size, _ = BLOCK_HEAD.unpack_from(block.data)
    at = BLOCK_HEAD.size + clear_size
    clear: dict[str, Any] = unpack(block.data[BLOCK_HEAD.size : at]) if clear_size else {}
    if key_id:
        assert seal is not None, "a sealed block is cut with its queue's seal"
        plain = seal.open(SealedBlock(flags, key_id, count, clear, block.data[at:]))
        attributes, bodies = read_sealed(plain, 0, count)
    else:
        attributes, bodies = read_sealed(block.data, at, count)
    table = {**clear, **attributes}
    gone = int.from_bytes(table.pop("gone", b""), "little")
    kinds = block_kinds(flags, count, table)
    columns = {name: expanded(name, values, count) for name, values in table.items()}
    traits = block.traits
    whole = Columns(
        kinds,
        bodies,
        columns,
        hashes=traits.ids if traits is not None else None,
        stamps=traits.stamps if traits is not None else None,
    )
    part = block_of(chosen(whole, numbers), block.priority, block.due_ms)
    if key_id and seal is not None:
        part = seal.seal([part])[0]
    return punch(part, sum(1 << at for at, number in enumerate(numbers) if gone >> number & 1)) if gone else part
