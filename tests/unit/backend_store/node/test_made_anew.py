"""Whoever deletes a queue means the one that is there when he asks, and none that is made of its name meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from backend_store.model import QueueConfig, QueueNotFound
from tests.support.node_world import TENANT, NodeWorld
from tests.support.partitioned import draft, drain, queue, send


@pytest.fixture
def world() -> Iterator[NodeWorld]:
    world = NodeWorld()
    yield world
    world.close()


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("moves", [False, True])
def test_a_second_delete_that_waited_for_the_first_leaves_the_queue_that_was_made_in_between(
    world: NodeWorld, moves: bool, partitions: int
) -> None:
    heir = queue(world, "heir")
    send(world, queue(world, partitions=partitions), draft(1))
    store = world.store
    config = QueueConfig(lease_mode="memory", partitions=partitions, max_messages=100)

    def delete() -> Any:
        return store.move_queue(TENANT, "q", "heir") if moves else store.delete_queue(TENANT, "q")

    world.hold()
    first, created = world.start(delete()), world.start(store.create_queue(TENANT, "q", config))
    second = world.start(delete())
    world.let_go()
    assert first.done() and first.exception() is None and isinstance(second.exception(), QueueNotFound)
    made, is_new = created.result()
    assert is_new and not made.deleted
    send(world, made, draft(2))
    world.restart()
    assert drain(world, world.queue("q")) == [2]
    assert drain(world, world.queue("heir")) == ([1] if moves else []), heir


def test_a_change_that_waited_for_its_turn_does_not_change_the_queue_that_was_made_anew(world: NodeWorld) -> None:
    before = queue(world).definition
    world.hold()
    deleted = world.start(world.store.delete_queue(TENANT, "q"))
    created = world.start(world.store.create_queue(TENANT, "q", QueueConfig(kind="stream")))
    changed = world.start(
        world.store.update_queue(TENANT, "q", QueueConfig(lease_mode="memory", max_messages=5), before.version)
    )
    world.let_go()
    assert deleted.exception() is None and created.result()[1]
    assert changed.result() is None, "somebody else was faster"
    assert world.queue("q").config == QueueConfig(kind="stream")
