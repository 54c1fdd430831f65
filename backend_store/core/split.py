"""Shares a publish call out among the partitions of its queue, by the slots of its messages.

Nearly always a call's blocks go whole: a gateway that knows the slot table makes a block for one partition at a time.
One whose messages belong to several is cut and encoded anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from backend_store.core.block import BLOCK_HEAD, Columns, block_of, chosen, unpack
from backend_store.core.chunk import block_kinds, expanded, read_sealed
from backend_store.core.slots import UNKEYED, Routing, SlotTable
from backend_store.model import Block

WAITS = -1
"""As a partition's number: the slot is on the move, so the messages wait for the next table."""


class Share(NamedTuple):
    """What one partition gets of a call."""

    partition: int
    """Or `WAITS`."""
    blocks: list[Block]
    numbers: list[int]
    """For each message of the blocks its number in the call."""
    slots: int
    """As bits, with `UNKEYED` among them."""

    @property
    def messages(self) -> int:
        return len(self.numbers)


def slots_of(block: Block, routing: Routing) -> Sequence[int | None] | int | None:
    """The slot of each message of a block, or the one of all. None: a message that any partition may take."""
    traits = block.traits
    if traits is None:
        return routing.slot()
    keys, ids, stamps = traits.keys, traits.ids, traits.stamps
    found = []
    for number in range(block.count):
        stamp = stamps[number] if stamps is not None else None
        found.append(
            routing.slot(
                key=keys[number] if keys is not None else None,
                dedupe_id=ids[number] if ids is not None else None,
                producer=stamp.producer if stamp is not None else "",
            )
        )
    return found


def shares(blocks: Sequence[Block], routing: Routing, table: SlotTable, turn: int) -> list[Share]:
    """A call's blocks by partition, each message in the order in which it came. `turn` counts calls: it says where
    messages go that any partition may take."""
    found: dict[int, Share] = {}
    first = 0
    for block in blocks:
        slots = slots_of(block, routing)
        for partition, own in _owners(slots, block.count, table, turn).items():
            share = found.get(partition)
            if share is None:
                share = found[partition] = Share(partition, [], [], 0)
            whole = len(own) == block.count
            share.blocks.append(block if whole else cut(block, own))
            share.numbers.extend(range(first, first + block.count) if whole else (first + number for number in own))
            mine = [slots[number] for number in own] if isinstance(slots, Sequence) else [slots]
            found[partition] = share._replace(slots=share.slots | _bits(mine))
        first += block.count
    return list(found.values())


def _owners(
    slots: Sequence[int | None] | int | None, count: int, table: SlotTable, turn: int
) -> dict[int, Sequence[int]]:
    if not isinstance(slots, Sequence):
        return {_partition(slots, table, turn): range(count)}
    found: dict[int, list[int]] = {}
    for number, slot in enumerate(slots):
        found.setdefault(_partition(slot, table, turn), []).append(number)
    return dict(found)


def _partition(slot: int | None, table: SlotTable, turn: int) -> int:
    if slot is None:
        return table.spread(turn)
    partition = table.route(slot)
    return WAITS if partition is None else partition


def _bits(slots: Sequence[int | None]) -> int:
    bits = 0
    for slot in set(slots):
        bits |= 1 << (UNKEYED if slot is None else slot)
    return bits


def cut(block: Block, numbers: Sequence[int]) -> Block:
    """A block of some of a block's messages, in this order."""
    flags, key_id, count, clear_size, _ = BLOCK_HEAD.unpack_from(block.data)
    assert not key_id, "a sealed block is cut by whoever has its key"
    at = BLOCK_HEAD.size + clear_size
    clear: dict[str, Any] = unpack(block.data[BLOCK_HEAD.size : at]) if clear_size else {}
    attributes, bodies = read_sealed(block.data, at, count)
    table = {**clear, **attributes}
    assert "gone" not in table, "a call's blocks have no holes before they are stored"
    kinds = block_kinds(flags, count, table)
    columns = {name: expanded(values, count) for name, values in table.items()}
    traits = block.traits
    whole = Columns(
        kinds,
        bodies,
        columns,
        hashes=traits.ids if traits is not None else None,
        stamps=traits.stamps if traits is not None else None,
    )
    return block_of(chosen(whole, numbers), block.priority, block.due_ms)
