"""Streams on the real server: places to begin, what is not kept, and replays beside live readers. Groups have a file of
their own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.calls import Client, receive
from tests.integration.stream_calls import acked, bodies, lag, made, published, put_group, receipts, stats
from tests.support.consumers import TRANSPORTS, EventConsumer, SocketConsumer, consuming
from tests.support.patience import FAR, until
from tests.support.server import PushqServer
from tests.support.ws import Client as WebSocket
from tests.support.ws import create_queue

BOTH = pytest.mark.parametrize("mode", ["offsets", "leases"])
REPLAYED = 30_000


@pytest.fixture
def http(shared_server: PushqServer) -> Iterator[Client]:
    with Client(base_url=shared_server.url, headers=shared_server.headers, timeout=15) as client:
        yield client


@pytest.fixture
def stream(http: Client) -> str:
    return made(http)


# ---------------------------------------------------------------------------------------------- places, retention


@pytest.mark.anyio
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_reader_begins_at_a_seq_or_a_time(shared_server: PushqServer, http: Client, transport: str) -> None:
    stream = made(http)
    published(http, stream, 0, 1)
    await asyncio.sleep(0.01)
    seqs = published(http, stream, 2, 3)
    published(http, stream, 4)
    [third] = receive(http, stream, max=1, **{"from": {"seq": seqs[0]}})
    for start in ({"seq": seqs[0]}, {"time": third["published_at"]}):
        async with consuming(shared_server, transport, stream, **{"from": start}) as consumer:
            assert bodies(await consumer.take(3)) == [2, 3, 4], start


def test_a_cursor_of_another_stream_begins_anew_in_this_one(http: Client) -> None:
    stream, other = made(http), made(http)
    published(http, stream, 0, 1, 2)
    published(http, other, "a", "b")
    cursor = http.post(f"/v1/queues/{other}/receive", json={"from": "earliest", "max": 2}).json()["cursor"]
    answer = http.post(f"/v1/queues/{stream}/receive", json={"from": {"cursor": cursor}}).json()
    assert (answer["resume"], bodies(answer["messages"])) == ("reset", [0, 1, 2])
    again = http.post(f"/v1/queues/{stream}/receive", json={"from": {"cursor": answer["cursor"]}}).json()
    assert (again["resume"], again["messages"]) == ("complete", [])


@pytest.mark.anyio
async def test_what_is_too_old_goes_and_readers_are_told(shared_server: PushqServer, http: Client) -> None:
    stream = made(http, retention_ms=2000)
    assert http.get(f"/v1/queues/{stream}").json()["config"]["retention_ms"] == 2000
    first = published(http, stream, *range(5))
    for mode in ("offsets", "leases"):
        put_group(http, stream, mode, position="earliest", mode=mode)
    held = receive(http, stream, group="leases", max=2)
    async with WebSocket(shared_server) as live:
        await live.subscribe(stream)
        await asyncio.to_thread(until, lambda: stats(http, stream)["ready"] == 0)
        assert [lag(http, stream, mode) for mode in ("offsets", "leases")] == [0, 0]
        assert acked(http, stream, *receipts(held)) == [False, False]
        [seq] = await asyncio.to_thread(published, http, stream, "new")
        assert bodies(await live.messages(1)) == ["new"]
        assert [lag(http, stream, mode) for mode in ("offsets", "leases")] == [1, 1]
        late = await live.subscribe(stream, **{"from": {"seq": first[0]}})
        assert late["resume"] == "gap"
        gap = await live.next("gap")
        assert (gap["from"], gap["to"]) == (first[0], first[-1])
        assert bodies(await live.messages(1)) == ["new"]
    answer = http.post(f"/v1/queues/{stream}/receive", json={"from": {"seq": first[2]}}).json()
    assert (answer["resume"], bodies(answer["messages"]), answer["messages"][0]["seq"]) == ("gap", ["new"], seq)
    since = {"time": held[0]["published_at"]}
    answer = http.post(f"/v1/queues/{stream}/receive", json={"from": since}).json()
    assert (answer["resume"], bodies(answer["messages"])) == ("gap", ["new"]), "messages since then are gone"
    metrics = http.get("/metrics").text
    assert f'pushq_messages_ended_total{{queue="{stream}",reason="retention",tenant="default"}} 5.0' in metrics
    assert f'pushq_group_lag_messages{{group="leases",queue="{stream}",tenant="default"}} 1.0' in metrics


@pytest.mark.anyio
async def test_a_slow_reader_of_a_stream_that_drops_is_told_what_it_missed(
    shared_server: PushqServer, http: Client
) -> None:
    stream = made(http, max_messages=10, overflow="drop_oldest")
    async with WebSocket(shared_server) as reader:
        sub = (await reader.subscribe(stream, credit=2))["sub"]
        seqs = [seq for n in range(30) for seq in await asyncio.to_thread(published, http, stream, n)]
        assert bodies(await reader.messages(2)) == [0, 1]
        await reader.ask(type="credit", sub=sub, n=100)
        gap = await reader.next("gap")
        assert (gap["from"], gap["to"]) == (seqs[2], seqs[19])
        assert bodies(await reader.messages(10)) == list(range(20, 30))
    assert stats(http, stream)["ready"] == 10


@pytest.mark.anyio
@BOTH
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_group_that_was_too_slow_is_told_what_it_missed(
    shared_server: PushqServer, http: Client, transport: str, mode: str
) -> None:
    stream = made(http, max_messages=5, overflow="drop_oldest")
    put_group(http, stream, "g", mode=mode)
    seqs = published(http, stream, *range(12))
    assert lag(http, stream, "g") == 5
    if transport == "poll":
        answer = http.post(f"/v1/queues/{stream}/receive", json={"group": "g"}).json()
        assert (answer["resume"], bodies(answer["messages"])) == ("gap", [7, 8, 9, 10, 11])
        assert "resume" not in http.post(f"/v1/queues/{stream}/receive", json={"group": "g"}).json()
        return
    async with consuming(shared_server, transport, stream, group="g", credit=2) as consumer:
        assert isinstance(consumer, SocketConsumer | EventConsumer)
        if isinstance(consumer, SocketConsumer):
            assert (consumer.subscribed["resume"], consumer.subscribed["mode"]) == ("gap", mode)
        gap = await next_gap(consumer)
        assert (gap["from"], gap["to"]) == (seqs[0], seqs[6])
        held = await consumer.take(2)
        assert bodies(held) == [7, 8]
        more = await asyncio.to_thread(published, http, stream, *range(12, 20))
        gap = await next_gap(consumer)
        assert gap["to"] == more[2], "it is told while it waits, too"
        assert await consumer.ack(receipts(held)) == [False, False]
        assert bodies(await consumer.take(2)) == [15, 16]


async def next_gap(consumer: SocketConsumer | EventConsumer) -> dict[str, Any]:
    async with asyncio.timeout(10):
        while True:
            frame = await consumer.inbox.get()
            if frame["type"] == "gap":
                return frame


def test_a_stream_has_a_week_unless_it_is_told_otherwise(http: Client, stream: str) -> None:
    assert http.get(f"/v1/queues/{stream}").json()["config"]["retention_ms"] == 7 * 24 * 3600 * 1000


# ------------------------------------------------------------------------------------------------------- replay


@pytest.mark.anyio
async def test_a_live_reader_keeps_its_latency_while_another_one_replays(server: PushqServer) -> None:
    """Many messages at full speed beside it. Latencies of one run are compared with each other, three times at most:
    a machine that does something else meanwhile says nothing about the server."""
    create_queue(server, "s", kind="stream")
    with Client(base_url=server.url, headers=server.headers, timeout=60) as http:
        many = b'{"messages":[%b]}' % b",".join([b'{"body":"%b"}' % (b"x" * 100)] * 1000)
        for _ in range(REPLAYED // 1000):
            answer = http.post("/v1/queues/s/messages", content=many, headers={"Content-Type": "application/json"})
            assert answer.status_code == 201
    found = []
    for _ in range(3):
        async with WebSocket(server) as producer, WebSocket(server) as live, WebSocket(server) as late:
            await live.subscribe("s")
            alone = await latencies_ms(producer, live, 100)
            await late.subscribe("s", **{"from": "earliest"})
            replay = asyncio.create_task(replayed(late, REPLAYED))
            beside = await latencies_ms(producer, live, 100)
            assert await asyncio.wait_for(replay, 60) >= REPLAYED
        found.append((alone[98], beside[98]))
        if beside[98] <= FAR * (5 * alone[98] + 20):
            return
    raise AssertionError(f"p99 in ms, alone and beside a replay: {found}")


async def latencies_ms(producer: WebSocket, live: WebSocket, count: int) -> list[float]:
    """From before the publish to the delivery, sorted."""
    took = []
    for _ in range(count):
        began = time.perf_counter()
        await producer.send(type="publish", queue="s", messages=[{"body": began}])
        [message] = await live.messages(1, seconds=20)
        assert message["body"] == began
        took.append((time.perf_counter() - began) * 1000)
        await asyncio.sleep(0.001)
    return sorted(took)


async def replayed(late: WebSocket, count: int) -> int:
    """Reads without looking: this process shares its core with the reader whose latency is measured."""
    seen = 0
    while seen < count:
        seen += str(await late.socket.recv()).count('"seq":')
    return seen
