"""Partitions grow and shrink under load: every transport goes on, and neither order by key nor dedupe notices."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from itertools import count
from typing import Any

import httpx2
import pytest

from push.client import Admin, Limits, Pushq, connect
from push.client.model import TransportName
from tests.support.consumers import TRANSPORTS, call, http_client
from tests.support.keyed_history import KeyedHistory, Name
from tests.support.keyed_load import Client, KeyedLoad, Producer
from tests.support.patience import PATIENCE_S
from tests.support.server import PushqServer

pytestmark = pytest.mark.anyio

SIZES = (3, 1, 2)
STRICT = {"ordering": "strict", "dedupe": "id"}
WAIT_S_MAX = PATIENCE_S
_numbers = count()


@pytest.fixture
async def http(shared_server: PushqServer) -> AsyncIterator[httpx2.AsyncClient]:
    async with http_client(shared_server) as http:
        yield http


async def made(http: httpx2.AsyncClient, **config: Any) -> str:
    name = f"moving{next(_numbers)}"
    await call(http, "PUT", name, config)
    return name


async def partitions(http: httpx2.AsyncClient, queue: str) -> dict[str, Any]:
    found: dict[str, Any] = (await call(http, "GET", queue))["partitions"]
    return found


async def resize(http: httpx2.AsyncClient, queue: str, number: int) -> None:
    """Asks for so many partitions, and waits until all slots have arrived."""
    etag = (await http.get(f"/v1/queues/{queue}")).headers["etag"]
    answer = await http.patch(f"/v1/queues/{queue}", json={"partitions": number}, headers={"If-Match": etag})
    assert answer.is_success, answer.text
    async with asyncio.timeout(WAIT_S_MAX):
        while (found := await partitions(http, queue))["open"] != number or found["slots_moving"]:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def resized_under(
    load: KeyedLoad,
    http: httpx2.AsyncClient,
    producers: list[Client],
    consumers: list[Client],
    sizes: Sequence[int] = SIZES,
) -> None:
    """Runs the clients while the queue changes its size, and until all that was confirmed is acked."""
    async with asyncio.TaskGroup() as clients:
        consuming = [clients.create_task(one) for one in consumers]
        producing = [clients.create_task(one) for one in producers]
        for number in sizes:
            await asyncio.sleep(0.4)
            await resize(http, load.queue, number)
        load.stopped = True
        async with asyncio.timeout(WAIT_S_MAX):
            await asyncio.wait(producing)
            while len(load.history.acked) < load.history.sent.total():  # noqa: ASYNC110 - consumers move it
                await asyncio.sleep(0.02)
        for task in consuming:
            task.cancel()
    assert load.history.violations(await load.present()) == []
    assert len(load.history.places) == load.history.sent.total() > 100
    stats = (await call(http, "GET", load.queue))["stats"]
    assert stats["published_total"] == stats["acked_total"] == len(load.history.places)


async def test_keys_keep_their_order_over_every_transport_while_partitions_come_and_go(
    shared_server: PushqServer, http: httpx2.AsyncClient
) -> None:
    queue = await made(http, **STRICT)
    load = KeyedLoad(shared_server, queue, random.Random(1), KeyedHistory())
    producers = [
        load.produce_by_socket(Producer("json", 30)),
        load.produce_by_socket(Producer("msgpack", 30), binary=True),
        load.produce_by_http(Producer("http", 30)),
    ]
    await resized_under(load, http, producers, [load.consume(transport) for transport in (*TRANSPORTS, "ws-json")])
    assert load.repeats
    places = {place[0] for place in load.history.places.values()}
    assert places == set(range(max(SIZES)))


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_each_transport_alone_gets_every_key_in_order(
    shared_server: PushqServer, http: httpx2.AsyncClient, transport: str
) -> None:
    queue = await made(http, **STRICT)
    load = KeyedLoad(shared_server, queue, random.Random(2), KeyedHistory())
    consumers = [load.consume(transport), load.consume(transport)]
    await resized_under(load, http, [load.produce_by_http(Producer("p", 20))], consumers, SIZES[:2])


@pytest.mark.parametrize("transport", ["ws", "sse", "poll"])
async def test_the_python_sdk_publishes_and_consumes_while_partitions_come_and_go(
    shared_server: PushqServer, http: httpx2.AsyncClient, transport: TransportName
) -> None:
    queue = await made(http, **STRICT)
    history = KeyedHistory()
    quick = Limits(backoff_base_s=0.05, backoff_cap_s=0.5, close_timeout_s=2)
    async with (
        connect(shared_server.url, shared_server.key, limits=quick) as producer,
        connect(shared_server.url, shared_server.key, limits=quick, transport=transport) as consumer,
        Admin(shared_server.url, shared_server.key) as admin,
        asyncio.TaskGroup() as tasks,
    ):
        handling = tasks.create_task(_handle(consumer, queue, history))
        producing = tasks.create_task(_produce(producer, queue, history))
        for number in SIZES:
            await asyncio.sleep(0.3)
            await admin.update_queue(queue, {"partitions": number})
        producing.cancel()
        async with asyncio.timeout(WAIT_S_MAX):
            await asyncio.wait([producing])
            while history.sent.total() > len(history.acked):  # noqa: ASYNC110 - the consumer moves it
                await asyncio.sleep(0.02)
        handling.cancel()
    load = KeyedLoad(shared_server, queue, random.Random(4), history)
    assert history.violations(await load.present()) == [] and len(history.acked) > 100


async def _produce(pushq: Pushq, queue: str, history: KeyedHistory) -> None:
    rng = random.Random(3)
    while True:
        names = [history.next(f"k{rng.randrange(20)}") for _ in range(20)]
        batch = [(list(name), {"key": name.key, "id": f"{name}"}) for name in names]
        for name, place in zip(names, await _published(pushq, queue, batch), strict=True):
            history.confirm(name, place)
        await asyncio.sleep(0.01)


async def _published(pushq: Pushq, queue: str, batch: list[Any]) -> list[tuple[int, int]]:
    """All of a batch, also when the caller is cancelled meanwhile: what was sent is to be counted."""
    sending = asyncio.gather(*(pushq.publish(queue, body, **how) for body, how in batch))
    return [(published.partition, published.seq) for published in await asyncio.shield(sending)]


async def _handle(pushq: Pushq, queue: str, history: KeyedHistory) -> None:
    async with pushq.subscribe(queue, credit=40) as messages, asyncio.TaskGroup() as acks:
        async for message in messages:
            name = Name(*message.body)
            history.deliver(name)
            history.settle([name])
            acks.create_task(_ack(message, name, history))


async def _ack(message: Any, name: Name, history: KeyedHistory) -> None:
    await message.ack()
    history.ack([name])
