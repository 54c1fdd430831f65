"""Streams with several partitions on the real server: whole and in the order of each key for every reader and group,
while partitions come and go.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import anyio
import httpx2
import pytest

from tests.integration.calls import Client, pointers, publish, receive, refused
from tests.integration.partition_calls import change, made, partitions, resize, stats, stored
from tests.integration.stream_calls import put_group
from tests.support.consumers import TRANSPORTS, Consumer, EventConsumer, consuming
from tests.support.patience import PATIENCE_S, until
from tests.support.server import PushqServer
from tests.support.ws import Client as WebSocket

pytestmark = pytest.mark.anyio

KEYS = 16
BOTH = pytest.mark.parametrize("ordering", ["best_effort", "strict"])
Message = dict[str, Any]


@pytest.fixture
def http(shared_server: PushqServer) -> Iterator[Client]:
    with Client(base_url=shared_server.url, headers=shared_server.headers, timeout=30) as client:
        yield client


def rounds(http: Client, stream: str, *numbers: int) -> list[Message]:
    """Publishes one message a key for each number."""
    rows = [{"body": [key, number], "key": f"k{key}"} for number in numbers for key in range(KEYS)]
    return stored(http, stream, *rows)


def check_order(messages: Iterable[Message], first: int, last: int) -> None:
    """Every key's numbers, all of them and in their order."""
    seen: dict[int, list[int]] = defaultdict(list)
    for message in messages:
        key, number = message["body"]
        seen[key].append(number)
    assert seen == {key: list(range(first, last + 1)) for key in range(KEYS)}


def lags(http: Client, stream: str, group: str) -> dict[int, int]:
    found = http.get(f"/v1/queues/{stream}/groups/{group}").json()["lag"]
    return {part["partition"]: part["lag"] for part in found}


# ------------------------------------------------------------------------------------------------------- readers


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_reader_gets_all_of_a_stream_that_grows_and_shrinks(
    shared_server: PushqServer, http: Client, transport: str
) -> None:
    stream = made(http, kind="stream", ordering="strict")
    seen: list[Message] = []
    rounds(http, stream, 0, 1)
    async with consuming(shared_server, transport, stream, **{"from": "earliest"}) as consumer:
        for at, wanted in enumerate((3, 4, 1), start=1):
            changing = asyncio.create_task(asyncio.to_thread(resize, http, stream, wanted))
            for number in range(2 * at, 2 * at + 2):
                await asyncio.to_thread(rounds, http, stream, number)
            seen += await consumer.take((2 * at + 2) * KEYS - len(seen))
            await changing
        await asyncio.to_thread(rounds, http, stream, 8)
        seen += await consumer.take(9 * KEYS - len(seen))
    check_order(seen, 0, 8)
    assert len({message["partition"] for message in seen}) == 4
    async with consuming(shared_server, transport, stream, **{"from": "earliest"}) as late:
        check_order(await late.take(9 * KEYS), 0, 8)


async def test_a_cursor_of_one_partition_is_good_after_growth_and_the_other_way_round(
    shared_server: PushqServer, http: Client
) -> None:
    stream = made(http, kind="stream")
    rounds(http, stream, 0)
    async with WebSocket(shared_server) as client:
        one = await client.subscribe(stream, **{"from": "earliest"}, credit=KEYS)
        await client.messages(KEYS)
        frames = [await client.ask(type="unsubscribe", sub=one["sub"])]
        assert frames[0]["type"] == "ok"
        old = receive_page(http, stream, {"from": "earliest"})["cursor"]
        await asyncio.to_thread(resize, http, stream, 4)
        rounds(http, stream, 1)
        again = await client.subscribe(stream, **{"from": {"cursor": old}})
        assert again["resume"] == "complete"
        check_order(await client.messages(KEYS), 1, 1)
    vector = receive_page(http, stream, {"from": {"cursor": old}})
    assert len(vector["cursor"]) > len(old)
    await asyncio.to_thread(resize, http, stream, 1)
    rounds(http, stream, 2)
    check_order(receive_page(http, stream, {"from": {"cursor": vector["cursor"]}})["messages"], 2, 2)


def receive_page(http: Client, stream: str, wanted: dict[str, Any]) -> dict[str, Any]:
    answer = http.post(f"/v1/queues/{stream}/receive", json={"max": 1000, **wanted})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_events_go_on_behind_the_last_one_in_every_partition(shared_server: PushqServer, http: Client) -> None:
    stream = made(http, kind="stream", partitions=3)
    rounds(http, stream, *range(4))
    first, cursor = events(http, stream, 25, **{"from": "earliest"})
    rest, _ = events(http, stream, 4 * KEYS - 25, last_event_id=cursor)
    check_order([*first, *rest], 0, 3)


def events(http: Client, stream: str, count: int, **query: str) -> tuple[list[Message], str]:
    """So many messages as events, and the id of the last one."""
    found: list[Message] = []
    cursor = ""
    with http.stream("GET", f"/v1/queues/{stream}/events", params=query) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if line.startswith("id: "):
                cursor = line[4:]
            elif line.startswith("data: "):
                found.append(json.loads(line[6:]))
                if len(found) == count:
                    break
    return found, cursor


async def test_a_reader_begins_at_a_time_in_every_partition(shared_server: PushqServer, http: Client) -> None:
    stream = made(http, kind="stream", partitions=4)
    rounds(http, stream, 0, 1)
    await asyncio.sleep(0.02)
    rounds(http, stream, 2)
    page = receive_page(http, stream, {"from": "earliest"})["messages"]
    start = min(message["published_at"] for message in page if message["body"][1] == 2)
    async with consuming(shared_server, "ws-json", stream, **{"from": {"time": start}}) as consumer:
        check_order(await consumer.take(KEYS), 2, 2)


async def test_a_seq_is_refused_where_it_says_nothing(shared_server: PushqServer, http: Client) -> None:
    stream = made(http, kind="stream", partitions=2)
    problem = refused(http.post(f"/v1/queues/{stream}/receive", json={"from": {"seq": 0}}), 400, "invalid-request")
    assert pointers(problem) == ["/from/seq"] and "partitions 0, 1" in problem["detail"]
    refused(http.get(f"/v1/queues/{stream}/events?from=seq:0"), 400, "invalid-request")
    moved = refused(http.put(f"/v1/queues/{stream}/groups/g", json={"position": {"seq": 0}}), 400, "invalid-request")
    assert pointers(moved) == ["/position/seq"]
    joining = http.post(f"/v1/queues/{stream}/receive", json={"group": "g", "from": {"seq": 0}})
    assert pointers(refused(joining, 400, "invalid-request")) == ["/from/seq"]
    async with WebSocket(shared_server) as client:
        answer = await client.ask(type="subscribe", queue=stream, **{"from": {"seq": 0}})
        assert answer["type"] == "error" and pointers(answer["problem"]) == ["/from/seq"]
        answer = await client.ask(type="subscribe", queue=stream, group="g", **{"from": {"seq": 0}})
        assert answer["type"] == "error" and pointers(answer["problem"]) == ["/from/seq"]


async def test_readers_with_credit_and_without_get_the_same(shared_server: PushqServer, http: Client) -> None:
    stream = made(http, kind="stream", partitions=3)
    async with WebSocket(shared_server) as slow, WebSocket(shared_server, encoding="msgpack") as fast:
        sub = (await slow.subscribe(stream, credit=5))["sub"]
        await fast.subscribe(stream)
        await asyncio.to_thread(rounds, http, stream, 0, 1)
        check_order(await fast.messages(2 * KEYS), 0, 1)
        got = await slow.messages(5)
        assert await slow.is_quiet()
        while len(got) < 2 * KEYS:
            await slow.ask(type="credit", sub=sub, n=4)
            got += await slow.messages(min(4, 2 * KEYS - len(got)))
        check_order(got, 0, 1)


async def test_what_is_too_much_goes_from_where_it_is_oldest_and_gaps_name_their_partition(
    shared_server: PushqServer, http: Client
) -> None:
    stream = made(http, kind="stream", partitions=2, max_messages=3 * KEYS, overflow="drop_oldest")
    rounds(http, stream, 0)
    put_group(http, stream, "g", position="earliest")
    old = receive_page(http, stream, {"from": "earliest", "max": 1})["cursor"]
    for number in range(1, 6):
        rounds(http, stream, number)
    until(lambda: stats(http, stream)["ready"] == 3 * KEYS)
    assert sum(lags(http, stream, "g").values()) == 3 * KEYS
    async with WebSocket(shared_server) as client:
        for how in ({"from": {"cursor": old}}, {"group": "g", "credit": 1000, "ack": "auto"}):
            answer = await client.subscribe(stream, **how)
            assert answer["resume"] == "gap"
            gaps = [await client.next("gap"), await client.next("gap")]
            assert {gap["partition"] for gap in gaps} == {0, 1}
            check_order(await client.messages(3 * KEYS), 3, 5)
            await client.ask(type="unsubscribe", sub=answer["sub"])


def test_a_stream_keeps_so_many_bytes_over_all_its_partitions(http: Client) -> None:
    stream = made(http, kind="stream", partitions=4, retention_bytes=40_000)
    for number in range(40):
        stored(http, stream, *({"body": [number, "x" * 400], "key": f"k{key}"} for key in range(8)))
    until(lambda: stats(http, stream)["bytes"] <= 40_000)
    kept = receive_page(http, stream, {"from": "earliest"})["messages"]
    assert stats(http, stream)["bytes"] > 20_000
    assert min(message["body"][0] for message in kept) > 20, "the oldest went, wherever they lay"


async def test_a_stream_grows_by_itself_under_its_readers(shared_server: PushqServer, http: Client) -> None:
    rule = {"of": "partition_messages", "limit": 5 * KEYS, "max_partitions": 3}
    stream = made(http, kind="stream", auto_expand=rule)
    async with consuming(shared_server, "ws-json", stream) as live:
        for number in range(10):
            await asyncio.to_thread(rounds, http, stream, number)
        await asyncio.to_thread(until, lambda: partitions(http, stream)["open"] == 3)
        check_order(await live.take(10 * KEYS), 0, 9)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_readers_of_a_deleted_stream_are_told(shared_server: PushqServer, http: Client, transport: str) -> None:
    stream = made(http, kind="stream", partitions=3)
    socket = httpx2.HTTPTransport(uds=str(shared_server.data / "admin.sock"))
    with Client(base_url="http://pushq", transport=socket) as admin:
        async with consuming(shared_server, transport, stream) as consumer:
            await consumer.wait()
            await asyncio.sleep(0.1)
            answer = admin.delete(f"/v1/queues/{stream}?confirm={stream}&discard=true", headers=shared_server.headers)
            assert answer.status_code == 200, answer.text
            assert (await consumer.farewell())["type"] in ("ended", "refused")


async def test_a_purged_stream_gives_its_partitions_back_and_readers_stay(
    shared_server: PushqServer, http: Client
) -> None:
    stream = made(http, kind="stream", partitions=4)
    async with consuming(shared_server, "ws-json", stream) as live:
        await asyncio.to_thread(rounds, http, stream, 0)
        put_group(http, stream, "g", position="earliest")
        check_order(await live.take(KEYS), 0, 0)
        change(http, stream, partitions=1)
        assert http.post(f"/v1/queues/{stream}/purge", json={"confirm": stream}).status_code == 202
        await asyncio.to_thread(until, lambda: partitions(http, stream)["draining"] == 0)
        assert lags(http, stream, "g") == {0: 0}
        await asyncio.to_thread(resize, http, stream, 3)
        await asyncio.to_thread(rounds, http, stream, 1)
        check_order(await live.take(KEYS), 1, 1)
        assert sum(lags(http, stream, "g").values()) == KEYS


# -------------------------------------------------------------------------------------------------------- groups


@BOTH
@pytest.mark.parametrize("mode", ["offsets", "leases"])
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_group_gets_all_of_a_stream_that_grows_and_shrinks(
    shared_server: PushqServer, http: Client, transport: str, mode: str, ordering: str
) -> None:
    stream = made(http, kind="stream", ordering=ordering)
    put_group(http, stream, "g", mode=mode)
    rounds(http, stream, 0, 1)
    seen: list[Message] = []
    async with consuming(shared_server, transport, stream, group="g", **credit(transport)) as consumer:
        for at, wanted in enumerate((3, 1), start=1):
            changing = asyncio.create_task(asyncio.to_thread(resize, http, stream, wanted))
            for number in range(2 * at, 2 * at + 2):
                await asyncio.to_thread(rounds, http, stream, number)
            seen += await consumed(consumer, (2 * at + 2) * KEYS - len(seen))
            await changing
    if mode == "offsets" or ordering == "strict":
        check_order(seen, 0, 5)
    else:
        check_order(sorted(seen, key=lambda message: message["body"][1]), 0, 5)
    assert set(lags(http, stream, "g")) == {0, 1, 2} and not any(lags(http, stream, "g").values())


def credit(transport: str) -> dict[str, int]:
    return {} if transport == "poll" else {"credit": 100}


async def consumed(consumer: Consumer, count: int) -> list[Message]:
    """Takes and acks, until it has so many."""
    found: list[Message] = []
    with anyio.fail_after(PATIENCE_S):
        while len(found) < count:
            # What follows may be held back until these are acked: ten are not waited for where there are four.
            some = await consumer.some(min(10, count - len(found)))
            assert all(await consumer.ack([message["receipt"] for message in some]))
            found += some
    return found


async def test_with_offsets_each_partition_goes_to_one_consumer_at_a_time(
    shared_server: PushqServer, http: Client
) -> None:
    stream = made(http, kind="stream", partitions=2)
    put_group(http, stream, "g")
    rounds(http, stream, 0, 1, 2)
    first = receive(http, stream, group="g", max=1)
    second = receive(http, stream, group="g", max=1)
    assert {message["partition"] for message in (*first, *second)} == {0, 1}
    assert receive(http, stream, group="g", max=1) == [], "somebody is at it in both"
    answer = http.post(f"/v1/queues/{stream}/ack", json={"receipts": [first[0]["receipt"], second[0]["receipt"]]})
    assert [row["ok"] for row in answer.json()["results"]] == [True, True]
    assert sum(lags(http, stream, "g").values()) == 3 * KEYS - 2
    assert len(receive(http, stream, group="g", max=1)) == 1


def test_a_group_is_made_moved_and_deleted_in_every_partition(http: Client) -> None:
    stream = made(http, kind="stream", partitions=3)
    rounds(http, stream, 0)
    made_at_end = put_group(http, stream, "g")
    assert [part["partition"] for part in made_at_end["lag"]] == [0, 1, 2]
    assert [part["lag"] for part in made_at_end["lag"]] == [0, 0, 0]
    moved = put_group(http, stream, "g", position="earliest")
    assert sum(part["lag"] for part in moved["lag"]) == KEYS
    assert moved["position"] == {"seq": min(part["position"] for part in moved["lag"])}
    assert len(receive(http, stream, group="g", max=100, wait_ms=500)) >= 1
    series = f'pushq_group_lag_messages{{group="g",queue="{stream}",tenant="default"}} {KEYS}.0'
    assert series in http.get("/metrics").text
    assert http.delete(f"/v1/queues/{stream}/groups/g").status_code == 204
    refused(http.get(f"/v1/queues/{stream}/groups/g"), 404, "not-found")
    assert receive(http, stream, group="g") == [], "another group of that name begins at the end"


async def test_groups_and_cursors_go_on_after_a_crash_in_the_middle_of_growth(server: PushqServer) -> None:
    with Client(base_url=server.url, headers=server.headers, timeout=30) as http:
        stream = made(http, kind="stream", ordering="strict")
        for mode in ("offsets", "leases"):
            put_group(http, stream, mode, mode=mode)
        rounds(http, stream, 0, 1)
        taken = {mode: receive(http, stream, group=mode, max=10) for mode in ("offsets", "leases")}
        for messages in taken.values():
            publish_ack(http, stream, messages)
        page = receive_page(http, stream, {"from": "earliest"})
        change(http, stream, partitions=4)
        rounds(http, stream, 2)
        server.kill()
    await anyio.to_thread.run_sync(server.start)
    with Client(base_url=server.url, headers=server.headers, timeout=30) as http:
        until(lambda: partitions(http, stream)["open"] == 4 and not partitions(http, stream)["slots_moving"])
        rounds(http, stream, 3)
        rest = receive_page(http, stream, {"from": {"cursor": page["cursor"]}})["messages"]
        check_order([*page["messages"], *rest], 0, 3)
        for mode in ("offsets", "leases"):
            async with consuming(server, "ws-json", stream, group=mode, credit=100) as consumer:
                left = 4 * KEYS - len(taken[mode])
                check_order([*taken[mode], *await consumed(consumer, left)], 0, 3)
            assert not any(lags(http, stream, mode).values())


def publish_ack(http: Client, stream: str, messages: list[Message]) -> None:
    answer = http.post(f"/v1/queues/{stream}/ack", json={"receipts": [message["receipt"] for message in messages]})
    assert all(row["ok"] for row in answer.json()["results"]), answer.text


@pytest.mark.parametrize("transport", ["ws-json", "sse"])
async def test_consumers_of_a_group_are_told_of_gaps_by_partition(
    shared_server: PushqServer, http: Client, transport: str
) -> None:
    stream = made(http, kind="stream", partitions=2, max_messages=KEYS, overflow="drop_oldest")
    put_group(http, stream, "g", position="earliest")
    for number in range(3):
        rounds(http, stream, number)
    until(lambda: stats(http, stream)["ready"] == KEYS)
    async with consuming(shared_server, transport, stream, group="g", credit=1000) as consumer:
        assert not isinstance(consumer, EventConsumer) or transport == "sse"
        found = set()
        with anyio.fail_after(PATIENCE_S):
            while len(found) < 2:
                frame = await consumer.inbox.get()  # type: ignore[union-attr]
                if frame["type"] == "gap":
                    found.add(frame["partition"])
        assert found == {0, 1}


def test_a_message_with_no_key_is_read_like_any_other(http: Client) -> None:
    stream = made(http, kind="stream", partitions=3)
    for number in range(9):
        assert publish(http, stream, {"body": number}).status_code == 201
    found = receive_page(http, stream, {"from": "earliest"})["messages"]
    assert sorted(message["body"] for message in found) == list(range(9))
    assert {message["partition"] for message in found} == {0, 1, 2}
