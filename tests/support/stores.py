"""A real store over an in-memory engine, for tests of interactions between queues, and of restarts of a node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from backend_store.client.embedded import EmbeddedQueue, EmbeddedStore, Forward
from backend_store.core.leases.leases import Lease
from backend_store.core.log.bits import indexes
from backend_store.core.log.chunk import Draft, blocks_of
from backend_store.model import Published, PushqError, QueueConfig
from backend_store.node.node import Node
from backend_store.storage.memory import MemoryEngine
from tests.support.world import Consumer, receipts_by_seq


async def opened(engine: MemoryEngine | None = None) -> EmbeddedStore:
    node = Node(engine or MemoryEngine(), directory=None, on_fatal=_fail)
    await node.start()
    return EmbeddedStore(node)


async def reopened(store: EmbeddedStore) -> EmbeddedStore:
    """The store after a clean stop and restart."""
    engine = store.node.engine
    assert isinstance(engine, MemoryEngine)
    await store.close()
    return await opened(engine.crash())


async def made(store: EmbeddedStore, name: str, **settings: Any) -> EmbeddedQueue:
    queue, _ = await store.create_queue("default", name, QueueConfig(**settings))
    return queue


async def published(queue: EmbeddedQueue | Forward, *drafts: Draft) -> Published:
    done: asyncio.Future[Published | PushqError] = asyncio.get_running_loop().create_future()
    queue.publish(blocks_of(drafts).blocks, done.set_result)
    found = await done
    if isinstance(found, PushqError):
        raise found
    return found


async def asked(ask: Callable[[Callable[[Any], None]], None]) -> Any:
    """The response to a command, once it is durable."""
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    ask(done.set_result)
    return await done


def receipts(lease: Lease) -> list[str]:
    return [*receipts_by_seq(lease).values()]


async def died(queue: EmbeddedQueue, *drafts: Draft) -> None:
    """Messages of a queue with `max_attempts: 1` whose only attempt failed."""
    await published(queue, *drafts)
    while (lease := queue.take(64, Consumer(), 30_000)) is not None:
        await asked(lambda reply, lease=lease: queue.give_back(receipts(lease), 0, reply))  # type: ignore[misc]


async def drained(queue: EmbeddedQueue) -> list[str]:
    """Takes and acks all that is ready; returns the bodies in delivery order."""
    came: list[str] = []
    while (lease := queue.take(64, Consumer(), 30_000)) is not None:
        assert lease.chunk is not None
        bodies: Sequence[bytes] = lease.chunk.messages.bodies
        came += [bodies[index].decode(errors="backslashreplace") for index in indexes(lease.bits)]
        given = receipts(lease)
        await asked(lambda reply, given=given: queue.settle(given, reply))  # type: ignore[misc]
    return came


def _fail(error: BaseException) -> None:
    raise AssertionError("the node ended") from error
