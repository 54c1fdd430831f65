"""Leases: when they end, and what is left of one that was extended in part."""

from __future__ import annotations

from backend_store.core.leases.leases import ChunkState, Lease, LeaseTable, receipts_of
from backend_store.core.log.chunk import KIND_JSON, plain_blocks
from backend_store.core.log.log import Append
from backend_store.core.log.records import EpochStart, PartitionState
from backend_store.model import Epoch, Offset
from tests.support.world import Consumer

HOLDER = Consumer()


def chunk_state(count: int = 8) -> ChunkState:
    state = PartitionState([EpochStart(Epoch(1), Offset(0))])
    return ChunkState(Append(state, seed=1, now_ms=1).add(plain_blocks(KIND_JSON, [b"1"] * count))[0])


def lease(table: LeaseTable, token: str, deadline_ms: int, bits: int = 0b11) -> Lease:
    found = Lease(token, chunk_state(), bits, HOLDER, deadline_ms)
    table.add(found)
    return found


def test_leases_run_out_in_the_order_of_their_deadlines() -> None:
    table = LeaseTable()
    late, early, never = lease(table, "a.", 30), lease(table, "b.", 10), lease(table, "c.", 99)
    assert table.next_deadline_ms() == 10
    assert table.expired(9) == []
    assert table.expired(30) == [early, late]
    assert table.next_deadline_ms() == 99 and table.expired(98) == [] and table.expired(99) == [never]
    assert table.next_deadline_ms() is None


def test_a_moved_deadline_voids_the_older_one() -> None:
    table = LeaseTable()
    held = lease(table, "a.", 10)
    held.deadline_ms = 50
    table.schedule(held)
    assert (table.expired(49), table.next_deadline_ms()) == ([], 50)
    assert table.expired(50) == [held]


def test_a_deadline_that_was_set_twice_ends_the_lease_once() -> None:
    table = LeaseTable()
    held = lease(table, "a.", 10)
    for deadline_ms in (50, 10, 50, 10):
        held.deadline_ms = deadline_ms
        table.schedule(held)
    assert table.expired(100) == [held]


def test_a_settled_lease_does_not_run_out() -> None:
    table = LeaseTable()
    held = lease(table, "a.", 10)
    held.bits = 0
    table.drop_if_empty("a.")
    assert (len(table), table.get("a."), table.expired(99)) == (0, None, [])


def test_a_split_lease_is_two_parts_under_one_token() -> None:
    table = LeaseTable()
    held = lease(table, "a.", 10, bits=0b1111)
    part = table.split(held, 0b0110)
    part.deadline_ms = 50
    table.schedule(part)
    assert [(p.bits, p.deadline_ms) for p in held.parts()] == [(0b1001, 10), (0b0110, 50)]
    assert table.values() == [held, part] and len(table) == 1
    assert table.expired(10) == [held]
    held.bits = 0
    table.drop_if_empty("a.")
    assert table.get("a.") is held, "a part of it still holds"
    part.bits = 0
    table.drop_if_empty("a.")
    assert table.get("a.") is None


def test_a_lease_that_is_extended_for_ever_does_not_fill_the_memory() -> None:
    table = LeaseTable()
    held = lease(table, "a.", 0)
    for deadline_ms in range(1, 20_000):
        held.deadline_ms = deadline_ms
        table.schedule(held)
    assert len(table._heap) < 200
    assert table.expired(19_999) == [held]


def test_entries_of_settled_leases_do_not_fill_the_memory() -> None:
    table = LeaseTable()
    for number in range(10_000):
        held = lease(table, f"{number}.", number)
        held.bits = 0
        table.drop_if_empty(held.token)
    assert len(table._heap) < 200


def test_receipts_are_the_token_and_two_digits() -> None:
    assert receipts_of("a.", 0b100000001 | 1 << 255) == ["a.00", "a.08", "a.ff"]


def test_a_message_is_free_while_nothing_stands_against_it() -> None:
    state = chunk_state(8)
    state.settled, state.settling, state.leased, state.delayed, state.returning = 1, 2, 4, 8, 16
    assert state.free == 0b11100000
