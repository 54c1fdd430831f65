"""What should be there beside what is: messages that damage took are counted out, all of them, and that is said."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from backend_store.client.embedded import EmbeddedStore
from backend_store.storage.engine import Batch, Table
from backend_store.storage.memory import MemoryEngine
from tests.support.patience import eventually
from tests.support.queues import draft
from tests.support.storage import all_rows
from tests.support.stores import drained, made, opened, published
from tests.support.world import Consumer as Holder

pytestmark = pytest.mark.anyio

Spoil = Callable[[bytes], bytes | None]
"""An entry as it is found afterwards; None: it is gone."""
Spoiled = Callable[..., Awaitable[EmbeddedStore]]


@pytest.fixture
async def store() -> EmbeddedStore:
    return await opened()


@pytest.fixture
async def spoiled(store: EmbeddedStore) -> AsyncIterator[Spoiled]:
    """Stops the store, spoils entries of its log, and starts it again."""
    later: list[EmbeddedStore] = []

    async def spoil(change: Spoil, of: EmbeddedStore = store, *, was_clean: bool = False) -> EmbeddedStore:
        engine = of.node.engine
        assert isinstance(engine, MemoryEngine)
        if was_clean:
            await of.close()
            left = engine.crash()
        else:
            left = engine.crash()
            of.node.is_closing = True
            for task in of.node._tasks:
                task.cancel()
            await of.node.writer.close()
        batch = Batch()
        for key, data in all_rows(left, Table.LOG).items():
            if (after := change(data)) is None:
                batch.delete(Table.LOG, key)
            else:
                batch.put(Table.LOG, key, after)
        left.commit(batch, lambda: None)
        later.append(await opened(left))
        return later[-1]

    yield spoil
    for one in later:
        if not one.node.is_closing:
            await one.close()


def entries(store: EmbeddedStore) -> list[bytes]:
    return list(all_rows(store.node.engine, Table.LOG).values())


def saying(messages: int, of: bytes) -> Spoil:
    """One entry says that it has so many messages; its checksum is no longer right then."""
    return lambda data: data[:24] + messages.to_bytes(2, "big") + data[26:] if data == of else data


async def ready(store: EmbeddedStore, count: int) -> None:
    queue = store.queue("default", "q")
    await eventually(lambda: queue.stats().ready == count)


async def test_messages_that_are_gone_are_missed_at_the_start(store: EmbeddedStore, spoiled: Spoiled) -> None:
    queue = await made(store, "q")
    for _ in range(4):
        await published(queue, *map(draft, "xyz"))
    gone = entries(store)[1:3]
    again = await spoiled(lambda data: None if data in gone else data)
    assert (again.node.missing, again.node.quarantined) == (6, 0)
    await ready(again, 6)
    assert len(await drained(again.queue("default", "q"))) == 6
    assert again.queue("default", "q").stats().bytes == 0


async def test_what_was_acked_and_purged_is_not_missed(store: EmbeddedStore, spoiled: Spoiled) -> None:
    queue = await made(store, "q", max_attempts=1, priorities=3)
    await published(queue, *map(draft, "abcdefgh"))
    await published(queue, draft("i", priority=2), draft("j"))
    lease = queue.take(3, Holder(), 30_000)
    assert lease is not None
    again = await spoiled(lambda data: data)
    assert (again.node.missing, again.node.quarantined) == (0, 0)


@pytest.mark.parametrize("claimed", [0, 1, 200])
async def test_what_a_broken_entry_says_of_itself_is_not_believed(
    store: EmbeddedStore, spoiled: Spoiled, claimed: int
) -> None:
    queue = await made(store, "q")
    for _ in range(3):
        await published(queue, *map(draft, "xyz"))
    again = await spoiled(saying(claimed, entries(store)[1]))
    assert again.node.quarantined == 1
    await ready(again, 6)


async def test_hundreds_of_broken_entries_are_all_counted_out(store: EmbeddedStore, spoiled: Spoiled) -> None:
    queue = await made(store, "q")
    for number in range(131):
        await published(queue, draft(str(number)))
    whole = entries(store)[-1]
    again = await spoiled(lambda data: data if data == whole else data[:-1] + b"?")
    assert again.node.quarantined == 130
    await ready(again, 1)


@pytest.mark.parametrize("claimed", [0, 1])
@pytest.mark.parametrize("restarts", [False, True])
async def test_ready_comes_to_nothing_when_all_that_can_be_read_is_done(
    store: EmbeddedStore, spoiled: Spoiled, claimed: int, *, restarts: bool
) -> None:
    """Of a broken entry that is met while the server runs nobody knows how many messages it had."""
    queue = await made(store, "q")
    for _ in range(3):
        await published(queue, *map(draft, "xyz"))
    again = await spoiled(saying(claimed, entries(store)[1]), was_clean=True)
    assert again.queue("default", "q").stats().ready == 9
    if restarts:
        partition = next(iter(again.node.queues.partitions.values()))
        assert partition.read(3) is not None and again.node.quarantined == 1
        await again.node.committer.drain()
        again = await spoiled(lambda data: data, again, was_clean=True)
    queue = again.queue("default", "q")
    assert len(await drained(queue)) == 6
    await ready(again, 0)
    assert queue.stats().bytes == 0
