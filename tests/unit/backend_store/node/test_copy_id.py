"""The name of a log in rows of the ledger: one disk's own, or that of all who lead it one after the other."""

from __future__ import annotations

import asyncio

import pytest

from backend_store.client.embedded import EmbeddedStore
from backend_store.node.node import Node
from backend_store.storage.engine import Batch, Table
from backend_store.storage.keys import META_RESTORED
from backend_store.storage.memory import MemoryEngine
from backend_store.storage.writer import Writer
from tests.support.queues import draft
from tests.support.stores import made, opened, published

pytestmark = pytest.mark.anyio


async def led(engine: MemoryEngine) -> EmbeddedStore:
    loop = asyncio.get_running_loop()
    node = Node(engine, directory=None, writer=Writer(engine, loop, on_fatal=_fail))
    await node.start()
    return EmbeddedStore(node)


def _fail(error: BaseException) -> None:
    raise AssertionError("the disk failed") from error


async def names(store: EmbeddedStore) -> set[str]:
    await published(store.queue("default", "q"), draft("1"))
    await store.ledger.cut()
    return {one.row.node for one in store.ledger.waiting()}


async def test_the_next_leader_calls_the_log_what_the_first_did() -> None:
    engine = MemoryEngine()
    first = await led(engine)
    await made(first, "q")
    before = await names(first)
    await first.close()
    copy = engine.crash()
    copy.disk_id = "another disk"
    second = await led(copy)
    assert await names(second) == before == {engine.disk_id} and second.node.copy_id == engine.disk_id
    await second.close()


async def test_a_restored_log_has_a_name_of_its_own() -> None:
    engine = MemoryEngine()
    first = await led(engine)
    await first.close()
    copy = engine.crash()
    copy.disk_id = "another disk"
    batch = Batch()
    batch.put(Table.META, META_RESTORED, bytes(8))
    copy.commit(batch, lambda: None)
    second = await led(copy)
    assert second.node.copy_id == "another disk"
    await second.close()


async def test_a_node_alone_is_called_what_its_disk_is() -> None:
    store = await opened()
    assert store.node.copy_id == store.node.engine.disk_id
    await store.close()
