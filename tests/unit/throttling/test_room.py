"""The room for unconfirmed publishes: bounded, and one tenant's storm leaves place for the others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from throttling.room import Room


def fill(room: Room, tenant: str, size: int = 1) -> int:
    """How much a tenant gets."""
    got = 0
    while room.take(tenant, size):
        got += size
    return got


def test_a_tenant_alone_gets_half_of_the_room() -> None:
    assert fill(Room(1000), "storm") == 500


def test_a_storm_leaves_room_for_others() -> None:
    room = Room(1000)
    fill(room, "storm")
    assert fill(room, "quiet") == 250
    assert fill(room, "third") == 125


def test_what_is_given_back_is_free_again() -> None:
    room = Room(1000)
    fill(room, "a")
    room.give("a", 500)
    assert room.used == 0 and len(room) == 0
    assert fill(room, "b") == 500


def test_one_piece_bigger_than_the_share_finds_room() -> None:
    room = Room(1000)
    assert room.take("a", 900)
    assert not room.take("a", 50) and not room.take("b", 101)


def test_what_must_not_be_refused_is_counted_beyond_the_end() -> None:
    room = Room(100)
    room.hold("a", 150)
    assert not room.take("b", 1)
    room.give("a", 150)
    assert room.take("b", 1)


def test_nobody_gives_back_what_he_did_not_take() -> None:
    room = Room(100)
    room.take("a", 10)
    with pytest.raises(AssertionError, match="more than it took"):
        room.give("a", 11)


@given(some.lists(some.tuples(some.sampled_from("abc"), some.integers(1, 400), some.booleans()), max_size=60))
def test_the_room_is_never_overfull_and_adds_up(steps: list[tuple[str, int, bool]]) -> None:
    room, held = Room(1000), dict.fromkeys("abc", 0)
    for tenant, size, comes in steps:
        if comes:
            held[tenant] += size * room.take(tenant, size)
        elif held[tenant]:
            room.give(tenant, min(size, held[tenant]))
            held[tenant] -= min(size, held[tenant])
        assert room.used == sum(held.values()) <= room.bytes_max
        assert len(room) == sum(1 for size in held.values() if size)
