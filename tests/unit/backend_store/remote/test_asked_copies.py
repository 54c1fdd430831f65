"""Queues that ask how they are copied, at a gateway of two clusters with shards of both modes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest

from backend_store.model import Conflict, InvalidRequest, QueueConfig, Replication, Unavailable
from backend_store.remote import store as stores
from backend_store.remote.queues.queue import RemoteQueue
from backend_store.remote.store import RemoteBackends
from backend_store.service.defining import CreateQueue
from backend_store.service.operations import perform
from backend_store.service.serving import StoreService
from backend_store.wire.store_frames import Copies
from tests.support.patience import eventually
from tests.unit.backend_store.remote.test_clusters import PLAIN, TENANT, World

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """Home has a shard of each mode, eu keeps more copies and knows no async ones."""
    async with AsyncExitStack() as opened:
        made = World(opened)
        made.home.copies = [Copies("sync", 3, 2), Copies("async", 3, 2)]
        made.eu.copies = [Copies("sync", 5, 3), Copies("sync", 5, 3)]
        await made.open()
        yield made


async def made(store: RemoteBackends, name: str, asked: Replication | None = None, **settings: Any) -> RemoteQueue:
    config = msgspec.structs.replace(PLAIN, replication=asked or Replication(), **settings)
    queue, _ = await store.create_queue(TENANT, name, config)
    return queue


async def test_a_queue_goes_where_it_is_copied_as_it_asks(world: World) -> None:
    store = await world.ready()
    cases = [
        (Replication(mode="async"), ("", 1)),
        (Replication(factor=3), ("", 0)),
        (Replication(factor=5, min_in_sync=3), ("eu", None)),
    ]
    for number, (asked, (cluster, shard)) in enumerate(cases):
        queue = await made(store, f"q{number}", asked)
        assert queue.definition.cluster == cluster and queue.definition.shard in (shard, *([] if shard else [0, 1]))
        assert asked.fits(queue.replication)
        assert queue.definition.config.replication == Replication()


async def test_queues_that_ask_for_nothing_are_sync(world: World) -> None:
    store = await world.ready()
    for number in range(6):
        assert (await made(store, f"q{number}")).replication.mode == "sync"


async def test_what_no_cluster_has_is_refused_by_its_parts(world: World) -> None:
    store = await world.ready()
    asked = Replication(factor=4, mode="sync", min_in_sync=2, model="independent_hosts")
    with pytest.raises(InvalidRequest, match="'q' cannot be replicated like this") as refused:
        await made(store, "q", asked)
    assert [one.pointer for one in refused.value.errors] == ["/replication/factor", "/replication/model"]
    assert (TENANT, "q") not in store.metadata.queues


async def test_what_a_cluster_may_have_that_is_away_is_not_refused_for_good(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "OTHERS_SECONDS_MAX", 0.05)
    asked = Replication(factor=5)
    store = await world.ready()
    await world.eu.go()
    await eventually(lambda: not store.clusters["eu"].is_ready)
    with pytest.raises(Unavailable, match="'eu', which may match the request, is unreachable"):
        await made(store, "q", asked)
    with pytest.raises(InvalidRequest):
        await made(store, "q", Replication(factor=4))
    never_met = await world.gateway()
    with pytest.raises(Unavailable, match="'eu', which may match the request, is unreachable"):
        await made(never_met, "q", Replication(factor=4))
    await world.eu.come()
    await eventually(lambda: store.clusters["eu"].is_ready)
    assert (await made(store, "q", asked)).definition.cluster == "eu"


async def test_made_again_as_it_is_shown_it_is_the_same_queue_and_otherwise_it_is_refused(world: World) -> None:
    store = await world.ready()
    queue = await made(store, "q", Replication(mode="async"))
    assert await made(store, "q", queue.replication) is queue
    assert await made(store, "q") is queue
    with pytest.raises(Conflict, match="already exists with another config: replication is"):
        await made(store, "q", Replication(mode="sync"))
    with pytest.raises(Conflict, match="max_attempts"):
        await made(store, "q", Replication(mode="async"), max_attempts=3)


async def test_made_again_where_its_end_was_not_heard_of_it_is_copied_as_it_asks(world: World) -> None:
    store = await world.ready()
    asked = Replication(factor=3, mode="async")
    before = (await made(store, "q", asked)).definition
    await store.delete_queue(TENANT, "q")
    await eventually(lambda: (TENANT, "q") not in store.metadata.queues)
    store.metadata.queues[TENANT, "q"] = before
    queue = await made(store, "q", asked)
    assert queue.uid != before.uid and asked.fits(queue.replication)


async def test_a_changed_queue_keeps_its_copies_and_is_not_asked_for_others(world: World) -> None:
    store = await world.ready()
    queue = await made(store, "q", Replication(mode="async"))
    config = msgspec.structs.replace(PLAIN, max_attempts=3, replication=queue.replication)
    assert await store.update_queue(TENANT, "q", config, 1) is queue
    assert queue.config.max_attempts == 3 and queue.replication.mode == "async"
    with pytest.raises(
        InvalidRequest, match="'q' cannot be replicated like this: its place has factor 3, mode 'async'"
    ):
        await store.update_queue(TENANT, "q", QueueConfig(replication=Replication(factor=2)), 2)


async def test_what_names_an_async_queue_lies_beside_it_and_cannot_ask_to_be_sync(world: World) -> None:
    store = await world.ready()
    await made(store, "graves", Replication(mode="async"))
    beside = await made(store, "orders", dead_letter_queue="graves")
    assert beside.replication.mode == "async"
    with pytest.raises(Conflict, match="must be placed with 'graves', whose replication does not match"):
        await made(store, "payments", Replication(mode="sync"), dead_letter_queue="graves")


async def test_a_queue_that_moves_keeps_its_mode_where_the_other_cluster_has_it(world: World) -> None:
    world.eu.copies = [Copies("async", 5, 3), Copies("sync", 5, 3)]
    await world.eu.go()
    await world.eu.come()
    store = await world.ready()
    for name, mode in (("loose", "async"), ("safe", "sync")):
        await made(store, name, Replication(factor=3, mode=mode))  # type: ignore[arg-type]
        await store.moves.begin(TENANT, name, "eu")
        await eventually(lambda name=name: store.queue(TENANT, name).definition.cluster == "eu")  # type: ignore[misc]
        assert store.queue(TENANT, name).replication.mode == mode


async def test_a_cluster_whose_shards_are_not_placed_yet_takes_the_queue_a_little_later(world: World) -> None:
    world.home.copies = [Copies(), Copies()]
    await world.home.go()
    await world.home.come()
    store = await world.gateway(others=[])
    with pytest.raises(Unavailable, match="no suitable shard of cluster 'main' is placed yet"):
        await made(store, "q")
    world.home.say(Copies("sync", 3, 2), Copies())
    await eventually(lambda: store.home_cluster.copying.copies[0].factor == 3)
    assert (await made(store, "q")).replication.factor == 3
    asked = Replication(factor=3, mode="async")
    with pytest.raises(Unavailable, match="no suitable shard of cluster 'main' is placed yet"):
        await made(store, "fast", asked)
    with pytest.raises(InvalidRequest, match="factor 3"):
        await made(store, "fast", Replication(factor=4, mode="async"))
    world.home.say(Copies("sync", 3, 2), Copies("async", 3, 2))
    await eventually(lambda: store.home_cluster.copying.copies[1].factor == 3)
    assert asked.fits((await made(store, "fast", asked)).replication)


async def test_backends_that_do_not_say_how_they_copy_are_not_asked_for_it(world: World) -> None:
    world.home.copies = []
    await world.home.go()
    await world.home.come()
    store = await world.gateway(others=[])
    with pytest.raises(Unavailable, match="do not report their replication, as in earlier versions"):
        await made(store, "q", Replication(mode="async"))
    queue = await made(store, "q")
    assert await made(store, "q", Replication(mode="async")) is queue, "nobody knows that it is not so"
    asked = msgspec.structs.replace(PLAIN, replication=Replication(mode="async"), max_attempts=3)
    with pytest.raises(Unavailable, match="'q': its backends do not say how they copy"):
        await store.update_queue(TENANT, "q", asked, 1)
    assert await store.update_queue(TENANT, "q", msgspec.structs.replace(asked, replication=Replication()), 1)


async def test_of_two_gateways_that_make_a_queue_at_once_one_gets_other_copies_than_it_asked_for(world: World) -> None:
    stores = [await world.ready(), await world.ready()]
    asked = Replication(factor=3, mode="async"), Replication(factor=3, mode="sync")
    results = await asyncio.gather(*map(made, stores, ("q", "q"), asked), return_exceptions=True)
    queue = next(one for one in results if isinstance(one, RemoteQueue))
    refused = next(one for one in results if isinstance(one, Conflict))
    assert "already exists with another config: replication is" in refused.detail
    assert asked[results.index(queue)].fits(queue.replication)


async def test_a_gateway_that_knows_nothing_of_modes_makes_no_queue_async(world: World) -> None:
    service = world.home.services[0]
    assert service.shards == 1, "to such a gateway there are no others, in further clusters either"
    again = StoreService(service.store, shards=2, copies=lambda: world.home.copies)  # some were placed after it
    for number in range(3):
        definition, _ = await perform(again.store, CreateQueue(TENANT, f"q{number}", PLAIN, shards=2))
        assert definition.shard == 0
