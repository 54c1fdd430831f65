"""A queue that lies in several clusters goes with one commit, wherever the process ends: on a real disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from backend_store.client.embedded import EmbeddedStore, open_store
from backend_store.metadata.data_keys import DataKey
from backend_store.metadata.elsewhere import HERE, ClusterSize
from backend_store.model import Conflict, QueueConfig, QueueDefinition, Quotas
from backend_store.service.defining import AdoptQueues, CreateQueue, DeleteQueue, DropQueues
from backend_store.service.operations import perform
from backend_store.service.relocating import (
    Arrive,
    BeginRelocation,
    ForgetPlace,
    NoteSettled,
    SpreadQueue,
)
from backend_store.storage.engine import Batch
from tests.support.queues import draft
from tests.support.stores import opened, published, reopened

pytestmark = pytest.mark.anyio

TENANT, Q = "acme", ("acme", "q")
PLAIN = QueueConfig(encrypted=False)


class Disk:
    """A store that may end behind one of its commits, and is opened again."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def open(self) -> EmbeddedStore:
        self.store = await open_store(self._path)
        return self.store

    async def again(self) -> EmbeddedStore:
        await self.store.close()
        return await self.open()

    def end_behind(self, commits: int) -> None:
        metadata, landed = self.store.node.metadata, 0
        write = metadata._store

        async def writes(batch: Batch) -> None:
            nonlocal landed
            if landed == commits:
                raise OSError("the process has ended")
            landed += 1
            await write(batch)

        metadata._store = writes


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[Disk]:
    disk = Disk(tmp_path)
    store = await disk.open()
    await store.node.metadata.put_tenant(TENANT, 1, Quotas(queues=1))
    yield disk
    await disk.store.close()


async def create(store: EmbeddedStore, cluster: str) -> QueueDefinition:
    made, _ = await perform(store, CreateQueue(*Q, PLAIN, cluster))
    await store.node.metadata.add_data_keys([("q", DataKey(5, TENANT, made.uid, "master", b"key", 7, 0))])
    assert isinstance(made, QueueDefinition)
    return made


async def split(store: EmbeddedStore) -> Arrive:
    """It lies in another cluster, and half of it is about to be here. The step that says so."""
    await create(store, "eu")
    changed = await perform(store, SpreadQueue(*Q, (ClusterSize("eu"), ClusterSize(""))))
    return Arrive(*Q, changed.version, 0)


async def moved_away(store: EmbeddedStore) -> QueueDefinition:
    """It lies in another cluster, and was here."""
    await create(store, "")
    changed = await perform(store, BeginRelocation(*Q, "eu"))
    found = await perform(store, Arrive(*Q, changed.version, 0))
    assert isinstance(found, QueueDefinition)
    return found


def is_whole(store: EmbeddedStore) -> bool:
    metadata = store.node.metadata
    return Q in metadata.queues and Q in metadata.elsewhere.by_name and list(metadata.data_keys.by_id) == [5]


def is_gone(store: EmbeddedStore) -> bool:
    metadata = store.node.metadata
    return metadata.defined(*Q) is None and not metadata.data_keys.by_id


async def delete(store: EmbeddedStore) -> None:
    with suppress(OSError):
        await perform(store, DeleteQueue(*Q))


@pytest.mark.parametrize("commits", [0, 1], ids=["before", "behind"])
@pytest.mark.parametrize("is_split", [True, False], ids=["split", "moved away"])
async def test_a_queue_with_a_part_here_and_its_first_place_elsewhere_goes_with_one_commit(
    disk: Disk, is_split: bool, commits: int
) -> None:
    if is_split:
        await perform(disk.store, await split(disk.store))
    else:
        await moved_away(disk.store)
    assert is_whole(disk.store)
    disk.end_behind(commits)
    await delete(disk.store)
    for store in (disk.store, await disk.again()):
        assert is_gone(store) if commits else is_whole(store)


async def test_its_tenant_may_have_another_one_then(disk: Disk) -> None:
    await moved_away(disk.store)
    for _ in range(2):
        with pytest.raises(Conflict, match="quota is 1"):
            await perform(disk.store, CreateQueue(TENANT, "other", PLAIN))
        await perform(disk.store, DeleteQueue(*Q))
        await create(disk.store, "eu")
    for store in (disk.store, await disk.again()):
        with pytest.raises(Conflict, match="quota is 1"):
            await perform(store, CreateQueue(TENANT, "other", PLAIN))


async def test_a_part_that_comes_while_the_queue_is_being_deleted_goes_with_it(disk: Disk) -> None:
    arrive = await split(disk.store)
    disk.end_behind(2)
    arriving: asyncio.Task[Any] = asyncio.ensure_future(perform(disk.store, arrive))
    await asyncio.sleep(0)
    assert Q not in disk.store.node.metadata.queues
    await delete(disk.store)
    await arriving
    assert is_gone(disk.store) and is_gone(await disk.again())


async def test_of_a_queue_that_moved_away_what_was_here_goes_alone(disk: Disk) -> None:
    away = await moved_away(disk.store)
    settled = await perform(disk.store, NoteSettled(*Q, away.version, HERE))
    await perform(disk.store, ForgetPlace(*Q, settled.version, HERE))
    for store in (disk.store, await disk.again()):
        metadata = store.node.metadata
        assert Q not in metadata.queues and metadata.elsewhere.by_name[Q].cluster == "eu"
        assert list(metadata.data_keys.by_id) == [5], "what lies elsewhere is sealed with it"
        with pytest.raises(Conflict, match="quota is 1"):
            await perform(store, CreateQueue(TENANT, "other", PLAIN))


async def test_a_queue_with_something_left_keeps_no_other_from_going() -> None:
    store = await opened()
    both = [QueueDefinition(uid, "default", name, PLAIN, 0, 1) for uid, name in ((7, "a"), (8, "b"))]
    await perform(store, AdoptQueues(both))
    await published(store.queue("default", "a"), draft("1"))
    await perform(store, AdoptQueues([replace(one, version=2, takes_none=True) for one in both]))
    with pytest.raises(Conflict, match="still has 1 message"):
        await perform(store, DropQueues([], moved=((7, 3), (8, 3))))
    assert [one.name for one in store.node.metadata.queues.values()] == ["a"]
    await store.close()


async def test_a_limited_queue_of_an_earlier_version_may_go_to_independent_hosts_as_one_of_one_lane() -> None:
    store = await opened()
    limited = replace(PLAIN, max_messages=5)
    known, _ = await perform(store, CreateQueue(TENANT, "q", limited))
    await store.node.metadata.relocate(TENANT, "q", known.version, lambda known: replace(known, single_lane=False))
    store = await reopened(store)
    moving = await perform(store, BeginRelocation(TENANT, "q", "hosts", shards=3, lanes=3))
    assert moving.moving_to is not None and moving.single_lane
    await store.close()
