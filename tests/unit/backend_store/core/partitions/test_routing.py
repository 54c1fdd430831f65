"""A call's messages over several partitions: grouped before they are encoded, and cut where the table changed since."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_store.core.log.block import Columns, chosen, column_blocks
from backend_store.core.log.chunk import KIND_JSON, clear_column, plain_blocks
from backend_store.core.log.log import Append
from backend_store.core.log.records import EpochStart, PartitionState
from backend_store.core.partitions.routing import Share, cut, routed_blocks, shares, slot_bits
from backend_store.core.partitions.slots import (
    ANYWHERE,
    SLOTS,
    UNKEYED,
    WAITS,
    Routing,
    SlotTable,
    first_table,
    resized,
    slot_of,
    slots_of_keys,
    with_opened,
)
from backend_store.model import Block, Epoch, Offset, Stamp, Traits

PLAIN = Routing()
STRICT = Routing(is_strict=True)
KEYS = [f"customer-{number}" for number in range(40)]


def columns(keys: list[str | None], **more: Any) -> Columns:
    table = {"key": keys} if any(key is not None for key in keys) else {}
    return Columns(KIND_JSON, [b"%d" % number for number in range(len(keys))], table, **more)


def bodies(block: Block) -> list[bytes]:
    state = PartitionState([EpochStart(Epoch(1), Offset(0))])
    (chunk,) = Append(state, seed=0, now_ms=1).add([block])
    return list(chunk.messages.bodies)


def told(parts: list[Share]) -> dict[int, list[int]]:
    """Partition → the numbers of its messages, which their bodies say as well."""
    for part in parts:
        assert [int(body) for block in part.blocks for body in bodies(block)] == part.numbers
        assert part.messages == sum(block.count for block in part.blocks)
    return {part.partition: part.numbers for part in parts}


def renumbered(blocks: list[Block], order: list[int] | None) -> list[int]:
    """The bodies say a message's number in the call; a share's say its number in the blocks."""
    return order if order is not None else list(range(sum(block.count for block in blocks)))


def grown(table: SlotTable, partitions: int) -> SlotTable:
    """The table after a plan for so many partitions was carried out."""
    table = resized(table, partitions)
    while table.moves:
        table = with_opened(table, table.moves[0])
    return table


# ----------------------------------------------------------------------------------------------- grouped beforehand


def test_blocks_are_made_for_one_partition_each_and_say_their_slots() -> None:
    table = first_table(4)
    made = routed_blocks(columns(list(KEYS)), None, PLAIN, table)
    assert made.order is not None and sorted(made.order) == list(range(40))
    first = 0
    for block in made.blocks:
        own = [KEYS[number] for number in made.order[first : first + block.count]]
        first += block.count
        assert len({table.route(slot_of(key)) for key in own}) == 1
        assert block.slots == sum(1 << slot for slot in {slot_of(key) for key in own})


def test_blocks_that_were_made_for_a_partition_go_there_whole() -> None:
    table = first_table(4)
    made = routed_blocks(columns(list(KEYS)), None, PLAIN, table)
    parts = shares(made.blocks, PLAIN, table, turn=1)
    assert sum(len(part.blocks) for part in parts) == len(made.blocks)
    assert all(any(block is whole for whole in made.blocks) for part in parts for block in part.blocks)
    assert all(part.slots == sum(block.slots for block in part.blocks) for part in parts)


def test_a_key_stays_in_its_order_whether_blocks_were_made_for_partitions_or_not() -> None:
    table, keys = first_table(3), [KEYS[number % 5] for number in range(40)]
    routed = routed_blocks(columns(list(keys)), None, PLAIN, table)
    for blocks, order in (routed, column_blocks(columns(list(keys)))):
        places = renumbered(blocks, order)
        by_key = defaultdict(list)
        for part in shares(blocks, PLAIN, table, turn=1):
            for number in part.numbers:
                by_key[keys[places[number]]].append((part.partition, places[number]))
        for key, found in by_key.items():
            assert {partition for partition, _ in found} == {table.route(slot_of(key))}
            assert [number for _, number in found] == sorted(number for _, number in found)


def test_a_call_of_one_key_is_not_put_in_another_order() -> None:
    made = routed_blocks(columns(["a"] * 5), None, PLAIN, first_table(4))
    assert made.order is None and len(made.blocks) == 1
    assert made.blocks[0].slots == 1 << slot_of("a")


def test_priorities_and_times_are_kept_apart_within_a_partition() -> None:
    made = routed_blocks(columns(["a"] * 4, priorities=[0, 1, 0, 1], dues=[0, 0, 9, 9]), None, PLAIN, first_table(2))
    assert sorted((block.priority, block.due_ms) for block in made.blocks) == [(0, 0), (0, 9), (1, 0), (1, 9)]


def test_messages_without_a_key_go_together_from_partition_to_partition() -> None:
    table = first_table(3)
    made = routed_blocks(columns([None] * 6), None, PLAIN, table)
    assert made.order is None and made.blocks[0].slots == 1 << UNKEYED
    assert [told(shares(made.blocks, PLAIN, table, turn)) for turn in range(3)] == [{n: [*range(6)]} for n in range(3)]


def test_messages_without_a_key_are_one_key_in_strict_order() -> None:
    table = first_table(3)
    made = routed_blocks(columns([None] * 6), None, STRICT, table)
    plain = plain_blocks(KIND_JSON, [b"%d" % number for number in range(6)])
    for turn in range(4):
        for blocks in (made.blocks, plain):
            assert told(shares(blocks, STRICT, table, turn)) == {table.route(slot_of("")): [*range(6)]}


def test_what_has_no_key_is_known_by_its_id_and_then_by_its_producer() -> None:
    ids = [b"x" * 16, None, None]
    made = columns([None, None, None], hashes=ids, stamps=[None, Stamp(1, "p", 1), Stamp(1, "", 0)])
    blocks = routed_blocks(made, None, PLAIN, first_table(64)).blocks
    assert sorted(block.slots for block in blocks) == sorted([1 << slot_of(b"x" * 16), 1 << slot_of("p"), 1 << UNKEYED])


def test_slots_of_many_keys_are_those_of_each() -> None:
    assert slots_of_keys(["", "é", *KEYS]) == [slot_of(key) for key in ["", "é", *KEYS]]


# -------------------------------------------------------------------------------------------------- races with a plan


def test_the_table_says_of_each_slot_who_takes_it() -> None:
    table = resized(first_table(2), 3)
    assert table.moves and len(table.places) == SLOTS + 1 and table.places[UNKEYED] == ANYWHERE
    for slot in range(SLOTS):
        assert table.places[slot] == (WAITS if table.route(slot) is None else table.route(slot))
        assert [place for place, bits in table.takers.items() if bits >> slot & 1] == [table.places[slot]]
    assert [place for place, bits in table.takers.items() if bits >> UNKEYED & 1] == list(table.open_partitions)


@pytest.mark.parametrize("routed", [True, False])
def test_a_block_whose_slots_part_ways_is_cut(routed: bool) -> None:
    before, after = first_table(1), grown(first_table(1), 4)
    keys = KEYS[:20]
    made = routed_blocks(columns(list(keys)), None, PLAIN, before) if routed else column_blocks(columns(list(keys)))
    assert len(made.blocks) == 1
    wanted: dict[int | None, list[int]] = defaultdict(list)
    for number, key in enumerate(keys):
        wanted[after.route(slot_of(key))].append(number)
    parts = shares(made.blocks, PLAIN, after, turn=1)
    assert told(parts) == wanted
    for part in parts:
        assert part.slots == sum(1 << slot for slot in {slot_of(keys[number]) for number in part.numbers})


def test_blocks_say_their_slots_whether_they_were_cut_or_not() -> None:
    keys = [*KEYS, *KEYS]
    blocks = routed_blocks(columns([*keys]), None, PLAIN, first_table()).blocks
    assert slot_bits(blocks, PLAIN) == slot_bits(column_blocks(columns([*keys])).blocks, PLAIN)
    parts = shares(blocks, PLAIN, first_table(3), turn=0)
    assert len(parts) == 3
    for part in parts:
        assert all(block.slots for block in part.blocks)
        assert slot_bits(part.blocks, PLAIN) == part.slots


def test_slots_of_blocks_that_say_nothing_are_those_of_their_messages() -> None:
    bare = plain_blocks(KIND_JSON, [b"1"])
    assert slot_bits(bare, PLAIN) == 1 << UNKEYED
    assert slot_bits(bare, STRICT) == 1 << slot_of("")
    named = column_blocks(columns([None, None], hashes=[b"i" * 16, None])).blocks
    assert slot_bits(named, PLAIN) == 1 << UNKEYED | 1 << slot_of(b"i" * 16)
    assert slot_bits([], PLAIN) == 0


def test_what_a_cut_block_keeps_of_each_message_is_all_there_is() -> None:
    headers = [{"n": str(number)} for number in range(6)]
    table = {"key": KEYS[:6], "headers": headers, "content_type": ["text/plain"] * 6, "exp": [0, 5, 0, 5, 0, 5]}
    hashes = [b"%016d" % number for number in range(6)]
    (block,) = column_blocks(Columns(bytes([0, 1] * 3), [b"%d" % n for n in range(6)], table, hashes=hashes)).blocks
    after = grown(first_table(1), 8)
    for part in shares([block], PLAIN, after, turn=1):
        for made in part.blocks:
            state = PartitionState([EpochStart(Epoch(1), Offset(0))])
            (chunk,) = Append(state, seed=0, now_ms=1).add([made])
            assert clear_column(chunk, "key") == [KEYS[number] for number in part.numbers]
            assert made.traits is not None and made.traits.ids == [hashes[number] for number in part.numbers]
            assert list(chunk.messages.columns["headers"]) == [headers[number] for number in part.numbers]


def test_messages_of_slots_on_the_move_wait_together() -> None:
    table = resized(first_table(1), 2)
    moving = [key for key in KEYS if table.route(slot_of(key)) is None]
    assert moving
    keys = [*moving, "customer-x", *moving]
    made = routed_blocks(columns(list(keys)), None, PLAIN, table)
    parts = {part.partition: part for part in shares(made.blocks, PLAIN, table, turn=1)}
    places = renumbered(made.blocks, made.order)
    waiting = [keys[places[number]] for number in parts[WAITS].numbers]
    assert waiting == [*moving, *moving]
    later = with_opened(table, table.moves[0])
    assert WAITS not in {part.partition for part in shares(parts[WAITS].blocks, PLAIN, later, turn=1)}


@given(
    st.lists(st.sampled_from([*KEYS[:8], None]), min_size=1, max_size=80),
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(0, 9),
    st.booleans(),
)
def test_every_message_goes_just_once_to_the_partition_of_its_key(
    keys: list[str | None], before: int, after: int, opened: int, is_strict: bool
) -> None:
    routing, old = Routing(is_strict=is_strict), first_table(before)
    made = routed_blocks(columns(keys), None, routing, old)
    table = resized(old, after)
    for _ in range(opened):
        table = with_opened(table, table.moves[0]) if table.moves else table
    places, seen = renumbered(made.blocks, made.order), []
    for part in shares(made.blocks, routing, table, turn=3):
        for number in part.numbers:
            key = keys[places[number]]
            slot = routing.slot(key=key)
            where = table.spread(3) if slot is None else table.route(slot)
            assert part.partition == (WAITS if where is None else where)
        assert sorted(part.numbers) == part.numbers
        seen += part.numbers
    assert sorted(seen) == list(range(len(keys)))


def test_blocks_of_a_queue_that_had_one_partition_until_now_are_looked_at_message_by_message() -> None:
    blocks = column_blocks(columns(list(KEYS))).blocks
    assert all(block.slots == 0 for block in blocks)
    assert len(shares(blocks, PLAIN, first_table(4), turn=0)) == 4


@given(
    st.lists(
        st.tuples(
            st.sampled_from([None, *KEYS[:4]]),
            st.sampled_from([0, 1]),
            st.sampled_from([None, {"a": "1"}]),
            st.sampled_from([0, 9]),
            st.sampled_from([None, b"x" * 16]),
            st.sampled_from([None, Stamp(1, "p", 2)]),
        ),
        min_size=1,
        max_size=12,
    ),
    st.data(),
)
def test_a_cut_keeps_all_that_is_said_of_each_message(rows: list[tuple[Any, ...]], data: st.DataObject) -> None:
    keys, kinds, headers, expires, hashes, stamps = map(list, zip(*rows, strict=True))
    table = {"key": keys, "headers": headers, "exp": expires}
    whole = Columns(bytes(kinds), [b"%d" % n for n in range(len(rows))], table, hashes=hashes, stamps=stamps)
    (block,) = column_blocks(whole._replace(priorities=[2] * len(rows), dues=[7] * len(rows))).blocks
    numbers = sorted(data.draw(st.sets(st.integers(0, len(rows) - 1), min_size=1)))
    made = cut(block, numbers)
    (wanted,) = column_blocks(
        chosen(whole, numbers)._replace(priorities=[2] * len(numbers), dues=[7] * len(numbers))
    ).blocks
    assert (made.count, made.priority, made.due_ms) == (len(numbers), 2, 7)
    assert (made.data, made.traits or Traits()) == (wanted.data, wanted.traits or Traits())
