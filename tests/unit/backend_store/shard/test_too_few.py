"""A shard with too few replicas in sync: it says so at once, and hands nothing out that nobody could settle."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from backend_store.client.embedded import EmbeddedStore
from backend_store.model import NotDurable
from backend_store.remote.definitions.directory import FixedDirectory
from backend_store.remote.line.line import Line
from backend_store.service.serving import StoreServer, StoreService
from backend_store.wire.store_frames import Place, Want
from tests.support.gateways import Gateway
from tests.support.patience import eventually
from tests.support.queues import draft
from tests.support.shards import Cluster, node_of
from tests.support.stores import made, published

pytestmark = pytest.mark.anyio


async def test_with_too_few_in_sync_publishes_are_refused_and_nothing_is_delivered(tmp_path: Path) -> None:
    """They once waited out their whole time, and consumers got messages whose acks could not be kept."""
    async with Cluster(tmp_path) as cluster:
        first, shard = await cluster.leader()
        await cluster.in_sync(3)
        store = EmbeddedStore(node_of(shard))
        queue = await made(store, "orders")
        service, gateway = StoreService(store), Gateway()
        server = StoreServer({0: service})
        directory = FixedDirectory([("127.0.0.1", await server.listen("127.0.0.1", 0, None))])
        line = Line(0, directory, gateway, "gateway", None)
        place = Place("default", "orders", queue.uid)
        for body in ("one", "two"):
            await published(queue, draft(body))
        line_is_open = await line.opened(30)
        assert line_is_open
        line.want(Want(place, 60_000, 1, 1))
        await eventually(lambda: gateway.messages == 1, "one is delivered")
        others = [name for name in cluster.hosts if name != first]
        for name in others:
            cluster.hosts[name].lines.send = lambda to, message: None  # type: ignore[method-assign]
        under_way = asyncio.ensure_future(published(queue, draft("three")))
        await eventually(lambda: shard.replicated.replica.log.unsettled[0] > 0, "it is in the log, and not confirmed")
        for name in others:
            await cluster.stop(name)
        await eventually(lambda: bool(shard.replicated.why_not_durable()), "too few are in sync")
        with pytest.raises(NotDurable, match="1 of at least 2") as refused:
            async with asyncio.timeout(5):
                await published(queue, draft("refused"))
        assert refused.value.retry_after_ms
        line.want(Want(place, 60_000, 10, 1))
        await asyncio.sleep(0.5)
        assert gateway.messages == 1
        await cluster.start(others[0])
        await published_in_the_end(under_way)
        await eventually(lambda: gateway.messages == 3, "all that was taken is delivered")
        await published(queue, draft("four"))
        await eventually(lambda: gateway.messages == 4, "it goes on")
        await line.close()
        service.close()
        await server.close()


async def published_in_the_end(under_way: asyncio.Future[object]) -> None:
    """What had begun before too few were in sync is confirmed when there are enough again."""
    async with asyncio.timeout(30):
        await under_way
