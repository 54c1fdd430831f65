"""Slots and the slot table: where messages go, and plans that move no more than they must."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_store.core.partitions.slots import (
    MOVE_SLOTS_MAX,
    PARTITIONS_MAX,
    SLOTS,
    Member,
    Move,
    Routing,
    SlotTable,
    first_table,
    moved,
    resized,
    slot_of,
    with_opened,
    with_retired,
)
from backend_store.model import Conflict, InvalidRequest


def arrived(table: SlotTable) -> SlotTable:
    """The table when all moves of its plan have arrived."""
    while table.moves:
        table = with_opened(table, table.moves[0])
    return table


# ------------------------------------------------------------------------------------------------------- slots


def test_slot_of_a_key_is_the_same_in_every_version() -> None:
    """A key that changed its slot with an upgrade would lose its order and its ids."""
    assert [slot_of(key) for key in ("", "a", "user-1", "user-2", b"\xff" * 16, "ключ")] == FIRST_VERSION


FIRST_VERSION = [0, 128, 147, 77, 242, 24]


@pytest.mark.parametrize("shape", ["{}", "user-{}", "{:08x}", "tenant/eu/orders/{:06}/line", "a{}@example.com"])
def test_keys_that_look_alike_are_spread_evenly(shape: str) -> None:
    counts = Counter(slot_of(shape.format(n)) for n in range(25_600))
    assert len(counts) == SLOTS and max(counts.values()) < 180


def test_a_message_is_known_by_its_key_else_its_id_else_its_producer() -> None:
    routing = Routing()
    assert routing.slot(key="k", dedupe_id=b"i", producer="p") == slot_of("k")
    assert routing.slot(dedupe_id=b"i", producer="p") == slot_of(b"i")
    assert routing.slot(producer="p") == slot_of("p")
    assert routing.slot() is None


def test_messages_without_key_of_a_strict_queue_have_one_slot() -> None:
    assert Routing(is_strict=True).slot(dedupe_id=b"i", producer="p") == slot_of("")


def test_numbers_of_a_producer_are_seen_in_one_place_whatever_the_keys() -> None:
    routing = Routing(is_strict=True, by_producer=True)
    assert routing.slot(key="k", producer="p") == routing.slot(key="other", producer="p") == slot_of("p")


def test_unkeyed_calls_take_open_partitions_by_turns() -> None:
    table = arrived(resized(first_table(3), 2))
    assert [table.spread(turn) for turn in range(4)] == [0, 1, 0, 1]


# ------------------------------------------------------------------------------------------------------- plans


def test_a_queue_that_never_had_a_table_has_all_slots_in_its_one_partition() -> None:
    table = first_table()
    assert set(table.owners) == {0} and table.members == {0: Member("open", 1)} and not table.moves


def test_growing_moves_only_what_the_new_partition_gets() -> None:
    before = first_table(2)
    after = arrived(resized(before, 3))
    assert sorted(Counter(after.owners).values()) == [85, 85, 86]
    assert {new for old, new in zip(before.owners, after.owners, strict=True) if old != new} == {2}


def test_shrinking_moves_only_what_the_leaving_partition_had() -> None:
    before = first_table(3)
    after = arrived(resized(before, 2))
    assert {old for old, new in zip(before.owners, after.owners, strict=True) if old != new} == {2}
    assert after.members[2].role == "draining" and sorted(Counter(after.owners).values()) == [128, 128]


def test_a_slot_on_the_move_has_no_partition_and_the_others_stay_where_they_are() -> None:
    """A few slots at a time, so that their callers wait for these and not for all."""
    table = resized(first_table(), 2)
    assert len(table.moving) == MOVE_SLOTS_MAX
    assert all(table.route(slot) is None for slot in table.moving)
    assert all(table.route(slot) == 0 for slot in range(SLOTS) if slot not in table.moving)
    after = with_opened(table, table.moves[0])
    assert all(after.route(slot) == 1 for slot in table.moving)
    assert after.moving and not after.moving & table.moving


def test_a_move_that_is_reported_twice_arrives_once() -> None:
    table = resized(first_table(), 2)
    after = with_opened(table, table.moves[0])
    assert with_opened(after, table.moves[0]) is after


def test_nothing_is_planned_while_slots_are_on_the_move() -> None:
    """Growing and shrinking at once, or a second move of a slot, has to wait: the first plan ends first."""
    table = resized(first_table(), 2)
    with pytest.raises(Conflict, match="128 slots are still to arrive"):
        resized(table, 1)
    with pytest.raises(Conflict):
        moved(table, [0], 0)


def test_the_number_of_partitions_has_bounds() -> None:
    for wrong in (0, PARTITIONS_MAX + 1):
        with pytest.raises(InvalidRequest, match=f"{wrong} partitions: a queue has 1 to 64"):
            resized(first_table(), wrong)
    assert set(Counter(first_table(PARTITIONS_MAX).owners).values()) == {SLOTS // PARTITIONS_MAX}


def test_a_plan_that_changes_nothing_is_none() -> None:
    table = first_table(2)
    assert resized(table, 2) is table and moved(table, [0], 0) is table


def test_slots_go_only_to_open_partitions() -> None:
    table = arrived(resized(first_table(2), 1))
    with pytest.raises(Conflict, match="partition 1 is not open"):
        moved(table, [0], 1)


def test_single_slots_can_leave_a_busy_partition() -> None:
    table = moved(first_table(2), [0, 2, 4], 1)
    assert table.moves == (Move(2, 0, 1, (0, 2, 4)),)


# ----------------------------------------------------------------------------------------- a partition's lives


def test_growing_again_opens_a_draining_partition_before_a_new_one() -> None:
    draining = arrived(resized(first_table(2), 1))
    grown = resized(draining, 2)
    assert grown.members[1] == Member("open", grown.version)


def test_a_number_is_used_again_only_for_another_life_of_the_same_partition() -> None:
    """It goes on where its offsets ended, so ids and cursors that name it stay true."""
    draining = arrived(resized(first_table(2), 1))
    retired = with_retired(draining, 1, draining.members[1].since)
    assert retired.members[1].role == "retired"
    assert sorted(resized(retired, 3).open_partitions) == [0, 1, 2]


def test_what_a_partition_said_of_a_former_life_does_not_retire_it() -> None:
    """It said that it was empty, the message was late, and meanwhile it was opened, filled, and drains anew."""
    draining = arrived(resized(first_table(2), 1))
    since = draining.members[1].since
    again = arrived(resized(arrived(resized(draining, 2)), 1))
    assert again.members[1].role == "draining"
    assert with_retired(again, 1, since) is again


def test_an_open_partition_does_not_retire() -> None:
    table = first_table(2)
    assert with_retired(table, 1, 1) is table and with_retired(table, 9, 1) is table


@given(st.lists(st.integers(1, 9), max_size=8))
def test_any_sequence_of_sizes_keeps_the_table_whole_and_even(sizes: list[int]) -> None:
    table = first_table()
    for size in sizes:
        planned = resized(table, size)
        changed = [(a, b) for a, b in zip(table.owners, planned.goal, strict=True) if a != b]
        assert not {giver for giver, _ in changed} & {taker for _, taker in changed}
        table = arrived(planned)
        counts = Counter(table.owners)
        assert len(table.open_partitions) == size == len(counts)
        assert max(counts.values()) - min(counts.values()) <= 1


def test_a_table_is_stored_and_read_back_as_it_was() -> None:
    table = resized(first_table(2), 3)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(table), type=SlotTable) == table
