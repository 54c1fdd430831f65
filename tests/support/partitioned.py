"""Vocabulary for tests of partitioned queues; everything happens in a `NodeWorld`."""

from __future__ import annotations

from typing import Any

import msgspec

from backend_store.client.embedded import EmbeddedQueue
from backend_store.core.log.chunk import KIND_JSON, Draft, blocks_of
from backend_store.core.partitions.slots import SlotTable
from backend_store.model import Block, Published, PushqError, QueueConfig
from backend_store.storage.engine import Table
from backend_store.storage.keys import log_range
from tests.support.node_world import TENANT, NodeWorld
from tests.support.semantics_seen import numbers_of
from tests.support.world import Consumer, receipts_by_seq

KEYS = [f"k{number}" for number in range(40)]
REST_MS_MAX = 20_000


def queue(world: NodeWorld, name: str = "q", **settings: Any) -> EmbeddedQueue:
    return world.make(name, QueueConfig(**{"lease_mode": "memory", **settings}))


def draft(number: int, key: str | None = None, *, id: str | None = None, due_ms: int = 0) -> Draft:
    """A message whose body is its number."""
    columns = {"id": f"m{number}"} | ({"key": key} if key is not None else {})
    hashed = id.encode().ljust(16, b"\0") if id is not None else None
    return Draft(KIND_JSON, b"%d" % number, columns, due_ms=due_ms, dedupe=hashed)


def send(world: NodeWorld, queue: EmbeddedQueue, *drafts: Draft) -> list[Published | PushqError]:
    """Publishes in one call; the list receives the response."""
    answers: list[Published | PushqError] = []
    blocks: list[Block] = blocks_of(drafts).blocks
    world.tell(lambda: queue.publish(blocks, answers.append))
    world.settle()
    return answers


def resize(world: NodeWorld, partitions: int, name: str = "q", **changes: Any) -> None:
    """Requests this number of partitions. The resulting moves proceed as commits land and time passes."""
    definition = world.node.metadata.find(TENANT, name)
    config = msgspec.structs.replace(definition.config, partitions=partitions, **changes)
    world.start(world.store.update_queue(TENANT, name, config, definition.version))


def stop_in_a_move(world: NodeWorld, partitions: int, name: str = "q") -> SlotTable:
    """Stops while slots move, with the commit that takes them away still in flight."""
    world.hold(2)  # the queue's definition, and the plan
    resize(world, partitions, name)
    table = table_of(world, name)
    assert table.moves and world.writer.is_held
    return table


def table_of(world: NodeWorld, name: str = "q") -> SlotTable:
    known = world.queue(name)._partitions.map
    assert known is not None
    return known.table


def is_at_rest(world: NodeWorld, name: str = "q") -> bool:
    """Whether every plan is finished, and everything to be removed is gone."""
    found = world.queue(name)
    moving = world.node.queues._movings.get(found.definition.uid)
    wanted = found.config.partitions
    return moving is None or (moving.is_at_rest and len(found._partitions.all) == wanted)


def rest(world: NodeWorld, name: str = "q") -> None:
    """Lets time pass until everything is at rest."""
    for _ in range(REST_MS_MAX // 50):
        world.settle()
        if is_at_rest(world, name):
            return
        world.pass_time(50)
    raise AssertionError(f"{table_of(world, name)} does not come to rest")


def taken(world: NodeWorld, queue: EmbeddedQueue, limit: int = 64) -> dict[int, str]:
    """One lease: receipts by message number."""
    lease = world.tell(lambda: queue.take(limit, Consumer(), 30_000))
    world.settle()
    if lease is None:
        return {}
    receipts = receipts_by_seq(lease)
    return {number: receipts[seq] for seq, number in numbers_of(lease).items()}


def all_taken(world: NodeWorld, queue: EmbeddedQueue) -> dict[int, str]:
    """Everything available now, by message number."""
    found: dict[int, str] = {}
    while more := taken(world, queue):
        found |= more
    return found


def ack(world: NodeWorld, queue: EmbeddedQueue, *receipts: str) -> list[bool]:
    answers: list[Any] = []
    world.tell(lambda: queue.settle(list(receipts), answers.append))
    world.settle()
    assert len(answers) == 1 and isinstance(answers[0], list), answers
    return [verdict.ok for verdict in answers[0]]


def drain(world: NodeWorld, queue: EmbeddedQueue) -> list[int]:
    """Takes and acks everything available now, or made available by that; message numbers in delivery order."""
    came: list[int] = []
    while more := taken(world, queue):
        came += more
        assert all(ack(world, queue, *more.values()))
    return came


def drained(world: NodeWorld, queue: EmbeddedQueue) -> list[int]:
    """Like `drain`, but waits for messages that become ready later, until none is left."""
    came = drain(world, queue)
    for _ in range(REST_MS_MAX // 100):
        if not sum(partition.state.live for partition in queue._partitions.all):
            return came
        world.pass_time(100)
        came += drain(world, queue)
    raise AssertionError(f"{queue.stats()} cannot be taken")


def rows_of(world: NodeWorld, replicas: list[int]) -> dict[str, int]:
    """Number of rows of partitions, by replica id and table."""
    found = {}
    for replica in replicas:
        for table in Table:
            rows = world.engine.scan(table, *log_range(replica), 100) if table is not Table.META else []
            if rows:
                found[f"{replica} {table.value}"] = len(rows)
    return found
