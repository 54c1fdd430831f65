"""Moves and splits that would run out of numbers are refused before they begin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from backend_store.metadata.elsewhere import ClusterSize
from backend_store.metadata.sharing import FLOOR_BITS, NUMBER_BITS, OPEN_BITS
from backend_store.model import Conflict, QueueConfig, QueueDefinition
from backend_store.service.defining import CreateQueue
from backend_store.service.operations import perform
from backend_store.service.relocating import Arrive, BeginRelocation, GoOnSpreading, SpreadQueue
from tests.support.node_world import TENANT, NodeWorld
from tests.support.split_queue import raised

RANGES = 1 << NUMBER_BITS - OPEN_BITS
"""How many places may be open with numbers of their own, over a queue's life."""


@pytest.fixture
def world() -> Iterator[NodeWorld]:
    world = NodeWorld()
    yield world
    world.close()


def made(world: NodeWorld, *, left: int, floor: int = 0) -> QueueDefinition:
    """A queue of one place that was split so often that numbers for so many further places are left. `floor`: of that
    place, which is elsewhere then."""
    world.do(perform(world.store, CreateQueue(TENANT, "q", QueueConfig(encrypted=False), "eu" if floor else "")))

    def change(known: QueueDefinition) -> QueueDefinition:
        return replace(known, top=(RANGES - left - 1) << OPEN_BITS, floor=floor)

    return world.do(world.node.metadata.relocate(TENANT, "q", 1, change))


def spread(world: NodeWorld, *over: str) -> Any:
    clusters = tuple(ClusterSize(one) for one in over)
    return raised(world, perform(world.store, SpreadQueue(TENANT, "q", clusters)))


def move(world: NodeWorld) -> Any:
    return raised(world, perform(world.store, BeginRelocation(TENANT, "q", "ap")))


@pytest.mark.parametrize("further", [1, 3])
def test_a_spread_needs_numbers_for_all_of_its_new_places(world: NodeWorld, further: int) -> None:
    made(world, left=further - 1)
    places = ["eu", "ap", "us"][:further]
    refused = spread(world, "", *places)
    assert isinstance(refused, Conflict) and "recreate it" in refused.detail
    assert world.node.metadata.find(TENANT, "q").goal == ()


def test_a_spread_over_as_many_places_as_there_are_numbers_for_goes_to_its_end(world: NodeWorld) -> None:
    made(world, left=3)
    known = spread(world, "", "eu", "ap", "us")
    while known.moving_to is not None or known.goal:
        known = world.do(perform(world.store, Arrive(TENANT, "q", known.version, 100)))
        if known.goal:
            known = world.do(perform(world.store, GoOnSpreading(TENANT, "q", known.version)))
    assert [one.floor >> OPEN_BITS for one in known.beside] == [RANGES - 3, RANGES - 2, RANGES - 1]


def test_a_move_of_a_queue_that_was_split_needs_numbers_as_a_split_does(world: NodeWorld) -> None:
    made(world, left=0)
    refused = move(world)
    assert isinstance(refused, Conflict) and "recreate it" in refused.detail
    assert isinstance(spread(world, "eu"), Conflict), "the same by another name"


def test_a_move_of_a_queue_that_lies_at_its_last_place_goes_on_behind_that(world: NodeWorld) -> None:
    made(world, left=0, floor=(RANGES - 1) << OPEN_BITS)
    known = move(world)
    arrived = world.do(perform(world.store, Arrive(TENANT, "q", known.version, known.floor + 5)))
    assert arrived.floor == known.floor + (2 << FLOOR_BITS) < 1 << NUMBER_BITS


def test_a_move_behind_which_there_are_no_numbers_is_refused(world: NodeWorld) -> None:
    made(world, left=0, floor=(1 << NUMBER_BITS) - (2 << FLOOR_BITS))
    assert isinstance(move(world), Conflict)
