"""Streams on the real server: consumer groups over every transport, places to begin, and what is not kept."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from tests.conftest import StartServer
from tests.integration.calls import Client, make_key, pointers, publish, receive, refused, with_key
from tests.support.consumers import (
    TRANSPORTS,
    Consumer,
    EventConsumer,
    Socket,
    SocketConsumer,
    call,
    consuming,
    http_client,
)
from tests.support.server import PushqServer
from tests.support.ws import Client as WebSocket
from tests.support.ws import create_queue

_numbers = count()
BOTH = pytest.mark.parametrize("mode", ["offsets", "leases"])


@pytest.fixture
def http(shared_server: PushqServer) -> Iterator[Client]:
    with Client(base_url=shared_server.url, headers=shared_server.headers, timeout=15) as client:
        yield client


@pytest.fixture
def stream(http: Client) -> str:
    return made(http)


def made(http: Client, **config: Any) -> str:
    """A stream of the test's own."""
    name = f"s{next(_numbers)}"
    answer = http.put(f"/v1/queues/{name}", json={"kind": "stream", **config})
    assert answer.status_code == 201, answer.text
    return name


def published(http: Client, stream: str, *bodies: Any) -> list[int]:
    answer = publish(http, stream, *({"body": body} for body in bodies))
    assert answer.status_code == 201, answer.text
    return [message["seq"] for message in answer.json()["messages"]]


def put_group(http: Client, stream: str, name: str, **wanted: Any) -> dict[str, Any]:
    answer = http.put(f"/v1/queues/{stream}/groups/{name}", json=wanted)
    assert answer.status_code in (200, 201), answer.text
    group: dict[str, Any] = answer.json()
    return group


def lag(http: Client, stream: str, name: str) -> int:
    answer = http.get(f"/v1/queues/{stream}/groups/{name}")
    assert answer.status_code == 200, answer.text
    [part] = answer.json()["lag"]
    return int(part["lag"])


def bodies(messages: list[dict[str, Any]]) -> list[Any]:
    return [message["body"] for message in messages]


def receipts(messages: list[dict[str, Any]]) -> list[str]:
    return [message["receipt"] for message in messages]


def acked(http: Client, stream: str, *given: str) -> list[bool]:
    answer = http.post(f"/v1/queues/{stream}/ack", json={"receipts": given})
    assert answer.status_code == 200, answer.text
    return [row["ok"] for row in answer.json()["results"]]


def until(wanted: Any, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not wanted():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)


# ----------------------------------------------------------------------------------------------------- the API


@BOTH
def test_a_group_is_made_shown_moved_and_deleted(http: Client, stream: str, mode: str) -> None:
    seqs = published(http, stream, *range(5))
    answer = http.put(f"/v1/queues/{stream}/groups/g", json={"position": "earliest", "mode": mode})
    assert answer.status_code == 201
    end = seqs[-1] + 1
    where = {"partition": 0, "position": seqs[0], "end": end, "lag": 5}
    group = {"name": "g", "mode": mode, "position": {"seq": seqs[0]}, "lag": [where]}
    assert answer.json() == group
    assert http.get(f"/v1/queues/{stream}/groups/g").json() == group
    assert http.get(f"/v1/queues/{stream}/groups").json() == {"items": [group], "next": None}
    moved = http.put(f"/v1/queues/{stream}/groups/g", json={"position": {"seq": seqs[3]}})
    assert (moved.status_code, moved.json()["position"]) == (200, {"seq": seqs[3]})
    assert moved.json()["lag"][0]["lag"] == 2
    assert http.put(f"/v1/queues/{stream}/groups/g", json={}).json()["lag"] == moved.json()["lag"]
    assert http.delete(f"/v1/queues/{stream}/groups/g").status_code == 204
    refused(http.get(f"/v1/queues/{stream}/groups/g"), 404, "not-found")
    refused(http.delete(f"/v1/queues/{stream}/groups/g"), 404, "not-found")
    assert http.get(f"/v1/queues/{stream}/groups").json()["items"] == []


def test_groups_come_by_name_and_in_pages(http: Client, stream: str) -> None:
    for name in ("c", "a", "e", "b", "d"):
        put_group(http, stream, name)
    names, cursor = [], ""
    while True:
        page = http.get(f"/v1/queues/{stream}/groups?limit=2{cursor}").json()
        names += [group["name"] for group in page["items"]]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert names == ["a", "b", "c", "d", "e"]


def test_the_mode_of_a_group_cannot_change(http: Client, stream: str) -> None:
    put_group(http, stream, "g", mode="leases")
    problem = refused(http.put(f"/v1/queues/{stream}/groups/g", json={"mode": "offsets"}), 409, "conflict")
    assert "cannot change" in problem["detail"]
    assert put_group(http, stream, "g", mode="leases")["mode"] == "leases"


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"mode": "both"}, "/mode"),
        ({"position": "middle"}, "/position"),
        ({"position": {"seq": -1}}, "/position"),
        ({"position": {"cursor": "x"}}, "/position"),
        ({"position": {"time": "yesterday"}}, "/position/time"),
        ({"postion": "latest"}, "/postion"),
    ],
)
def test_a_group_that_makes_no_sense_is_refused_by_name(http: Client, stream: str, body: Any, pointer: str) -> None:
    assert pointers(refused(http.put(f"/v1/queues/{stream}/groups/g", json=body), 400, "invalid-request")) == [pointer]
    assert http.get(f"/v1/queues/{stream}/groups").json()["items"] == []


@pytest.mark.parametrize("name", ["-a", "a b", "x" * 129, "%2e"])
def test_a_group_is_named_like_a_queue(http: Client, stream: str, name: str) -> None:
    refused(http.put(f"/v1/queues/{stream}/groups/{name}", json={}), 400, "invalid-request")


def test_a_work_queue_has_no_groups(http: Client) -> None:
    name = f"w{next(_numbers)}"
    http.put(f"/v1/queues/{name}", json={})
    assert http.get(f"/v1/queues/{name}/groups").json() == {"items": [], "next": None}
    refused(http.put(f"/v1/queues/{name}/groups/g", json={}), 400, "invalid-request")
    answer = refused(http.post(f"/v1/queues/{name}/receive", json={"group": "g"}), 400, "invalid-request")
    assert pointers(answer) == ["/group"]
    refused(http.get(f"/v1/queues/{name}/events?group=g"), 400, "invalid-request")
    refused(http.put("/v1/queues/nowhere/groups/g", json={}), 404, "queue-not-found")


def test_who_may_view_sees_groups_and_who_may_manage_moves_them(http: Client, stream: str) -> None:
    put_group(http, stream, "g")
    path = f"/v1/queues/{stream}/groups"
    with with_key(http, make_key(http, f"view:{stream}")["key"]) as viewer:
        assert viewer.get(path).status_code == viewer.get(f"{path}/g").status_code == 200
        refused(viewer.put(f"{path}/g", json={}), 403, "forbidden")
        refused(viewer.delete(f"{path}/g"), 403, "forbidden")
    with with_key(http, make_key(http, f"consume:{stream}")["key"]) as consumer:
        refused(consumer.get(path), 403, "forbidden")
        assert receive(consumer, stream, group="made-by-use") == []
    with with_key(http, make_key(http, f"manage:{stream}")["key"]) as manager:
        assert manager.put(f"{path}/h", json={}).status_code == 201


# ------------------------------------------------------------------------------------------------ any transport


@pytest.mark.anyio
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_an_unknown_group_begins_at_the_end(shared_server: PushqServer, http: Client, transport: str) -> None:
    stream = made(http)
    published(http, stream, "before")
    async with consuming(shared_server, transport, stream, group="new") as consumer:
        if transport == "poll":
            assert await consumer.take(1, seconds=0) == []
        await asyncio.to_thread(published, http, stream, "after")
        [message] = await consumer.take(1)
    assert message["body"] == "after" and message["receipt"]
    [group] = http.get(f"/v1/queues/{stream}/groups").json()["items"]
    assert (group["name"], group["mode"]) == ("new", "offsets")


@pytest.mark.anyio
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_an_unknown_group_begins_where_its_first_consumer_says(
    shared_server: PushqServer, http: Client, transport: str
) -> None:
    stream = made(http)
    published(http, stream, *range(4))
    how = {"group": "new", "from": "earliest"}
    async with consuming(shared_server, transport, stream, **how) as consumer:
        messages = await consumer.take(4)
        assert bodies(messages) == [0, 1, 2, 3]
        assert await consumer.ack([messages[1]["receipt"]]) == [True]
        assert await consumer.nack([messages[2]["receipt"]]) == [True]
    async with consuming(shared_server, "poll", stream, **how) as consumer:
        assert bodies(await consumer.take(2)) == [2, 3], "it is there now, and goes on where it stands"


@pytest.mark.anyio
@BOTH
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_group_gets_everything_with_receipts_that_ack_over_any_transport(
    shared_server: PushqServer, http: Client, transport: str, mode: str
) -> None:
    stream = made(http)
    published(http, stream, *range(300))
    put_group(http, stream, "g", position="earliest", mode=mode)
    async with consuming(shared_server, transport, stream, group="g", credit=1000) as consumer:
        messages = await consumer.take(300)
        assert bodies(messages) == list(range(300))
        assert {message["attempt"] for message in messages} == {1}
        half = receipts(messages[:150])
        assert await asyncio.to_thread(acked, http, stream, *half) == [True] * 150
        async with Socket.open(shared_server) as socket:
            answer = await socket.ask(type="ack", queue=stream, receipts=receipts(messages[150:299]))
            assert all(row["ok"] for row in answer["results"])
        assert lag(http, stream, "g") == 1
        assert await consumer.ack(receipts(messages[299:])) == [True]
    assert lag(http, stream, "g") == 0


@pytest.mark.anyio
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_with_offsets_a_nack_goes_back_and_an_ack_covers_what_came_before(
    shared_server: PushqServer, http: Client, transport: str
) -> None:
    stream = made(http)
    published(http, stream, *range(10))
    put_group(http, stream, "g", position="earliest")
    async with consuming(shared_server, transport, stream, group="g", credit=100) as consumer:
        messages = await consumer.take(10)
        assert await consumer.ack([messages[5]["receipt"]]) == [True]
        assert lag(http, stream, "g") == 4
        assert await consumer.nack([messages[6]["receipt"]]) == [True]
        again = await consumer.take(4)
        assert bodies(again) == [6, 7, 8, 9] and {message["attempt"] for message in again} == {2}
        assert await consumer.ack([messages[9]["receipt"]]) == [False]
        assert await consumer.ack([again[3]["receipt"]]) == [True]
    assert lag(http, stream, "g") == 0


@pytest.mark.anyio
@pytest.mark.parametrize("transport", ["ws-json", "sse"])
async def test_with_offsets_one_consumer_works_and_the_next_goes_on_from_its_place(
    shared_server: PushqServer, http: Client, transport: str
) -> None:
    stream = made(http)
    published(http, stream, *range(20))
    put_group(http, stream, "g", position="earliest")
    async with consuming(shared_server, transport, stream, group="g", credit=10) as first:
        held = await first.take(10)
        assert bodies(held) == list(range(10))
        async with consuming(shared_server, "ws-json", stream, group="g", credit=100) as second:
            assert await second.take(1, seconds=0.3) == []
            assert await first.ack([held[4]["receipt"]]) == [True]
            assert bodies(await first.take(5)) == list(range(10, 15)), "the one that is at it goes on"
            assert await second.take(1, seconds=0.3) == []
            await first.leave()
            assert bodies(await second.take(15, seconds=10)) == list(range(5, 20))


@pytest.mark.anyio
async def test_a_leased_group_is_shared_out_and_gives_up_like_a_work_queue(
    shared_server: PushqServer, http: Client
) -> None:
    stream = made(http, max_attempts=2)
    put_group(http, stream, "workers", position="earliest", mode="leases")
    async with (
        consuming(shared_server, "ws-json", stream, group="workers", credit=5) as one,
        consuming(shared_server, "ws-msgpack", stream, group="workers", credit=5) as other,
    ):
        await asyncio.to_thread(published, http, stream, *range(10))
        shares = [await one.take(5), await other.take(5)]
        assert sorted(bodies(shares[0]) + bodies(shares[1])) == list(range(10))
        poison = shares[0][0]
        assert await one.ack(receipts(shares[0][1:])) == [True] * 4
        assert await other.ack(receipts(shares[1])) == [True] * 5
        assert await one.nack([poison["receipt"]]) == [True]
        got = await one.take(1, seconds=0.5) or await other.take(1)
        assert (got[0]["body"], got[0]["attempt"]) == (poison["body"], 2)
        assert await one.nack(receipts(got)) == [True]
    assert lag(http, stream, "workers") == 0
    [dead] = receive(http, f"{stream}.dead")
    assert dead["body"] == poison["body"]
    assert (dead["dead_letter"]["from"], dead["dead_letter"]["reason"]) == (stream, "max_attempts")
    assert dead["dead_letter"]["attempts"] == 2 and len(dead["dead_letter"]["history"]) == 2
    assert len(receive(http, stream, max=100, **{"from": "earliest"})) == 10, "the stream keeps it"


@pytest.mark.anyio
async def test_a_leased_group_of_a_strict_stream_keeps_the_order_of_each_key(
    shared_server: PushqServer, http: Client
) -> None:
    stream = made(http, ordering="strict")
    put_group(http, stream, "workers", position="earliest", mode="leases")
    put_group(http, stream, "others", position="earliest", mode="leases")
    publish(http, stream, *({"body": [key, n], "key": key} for n in range(40) for key in "abc"))
    seen: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    async with (
        consuming(shared_server, "ws-json", stream, group="workers", credit=7) as one,
        consuming(shared_server, "ws-json", stream, group="workers", credit=7) as other,
        consuming(shared_server, "ws-json", stream, group="others", credit=1000) as beside,
    ):
        assert len(await beside.take(120)) > 0

        async def work(consumer: Consumer) -> None:
            while sum(map(len, seen.values())) < 120:
                for message in await consumer.take(1, seconds=0.5):
                    seen[message["key"]].append(message["body"][1])
                    assert await consumer.ack([message["receipt"]]) == [True]

        async with asyncio.timeout(20):
            await asyncio.gather(work(one), work(other))
    assert all(numbers == list(range(40)) for numbers in seen.values())


@pytest.mark.anyio
async def test_a_work_queue_and_groups_and_readers_share_the_same_records(
    shared_server: PushqServer, http: Client
) -> None:
    """A group with leases is the work queue; others replay and follow the very same messages."""
    stream = made(http)
    put_group(http, stream, "work", position="earliest", mode="leases")
    put_group(http, stream, "audit", position="earliest", mode="offsets")
    async with (
        consuming(shared_server, "ws-json", stream, group="work", credit=100) as worker,
        consuming(shared_server, "sse", stream, group="audit", credit=100) as audit,
        consuming(shared_server, "ws-msgpack", stream) as reader,
    ):
        seqs = await asyncio.to_thread(published, http, stream, *range(50))
        worked, audited, read = await worker.take(50), await audit.take(50), await reader.take(50)
        assert [[m["seq"] for m in part] for part in (worked, audited, read)] == [seqs] * 3
        assert [m["receipt"] for m in read] == [None] * 50
        assert all(await worker.ack(receipts(worked[10:])))
        assert await audit.ack([audited[-1]["receipt"]]) == [True]
        assert await worker.nack([worked[3]["receipt"]]) == [True]
        assert bodies(await worker.take(1)) == [3]
    assert (lag(http, stream, "work"), lag(http, stream, "audit")) == (10, 0)
    again = receive(http, stream, max=100, **{"from": {"seq": seqs[0]}})
    assert bodies(again) == list(range(50))
    assert http.get(f"/v1/queues/{stream}").json()["stats"]["ready"] == 50


def test_an_ack_of_a_group_may_publish_in_the_same_step(http: Client) -> None:
    stream = made(http)
    out = f"out{next(_numbers)}"
    assert http.put(f"/v1/queues/{out}", json={"colocate_with": stream}).status_code == 201
    published(http, stream, *range(4))
    for mode in ("offsets", "leases"):
        put_group(http, stream, mode, position="earliest", mode=mode)
        held = receive(http, stream, group=mode)
        body = {
            "receipts": [held[2]["receipt"]],
            "publish": [{"queue": out, "messages": [{"body": f"done by {mode}"}]}],
        }
        answer = http.post(f"/v1/queues/{stream}/ack", json=body)
        assert answer.status_code == 200 and answer.json()["results"][0]["ok"], answer.text
        assert len(answer.json()["published"]) == 1
        stale = http.post(f"/v1/queues/{stream}/ack", json={**body, "receipts": [held[0]["receipt"] + "x"]})
        assert not stale.json()["results"][0]["ok"] and stale.json()["published"] == []
    assert bodies(receive(http, out)) == ["done by offsets", "done by leases"]
    assert (lag(http, stream, "offsets"), lag(http, stream, "leases")) == (1, 3)


@pytest.mark.anyio
@BOTH
async def test_acks_by_themselves_move_a_group_on(shared_server: PushqServer, http: Client, mode: str) -> None:
    stream = made(http)
    published(http, stream, *range(100))
    put_group(http, stream, "g", position="earliest", mode=mode)
    async with consuming(shared_server, "ws-json", stream, group="g", credit=10, ack="auto") as consumer:
        assert bodies(await consumer.take(100)) == list(range(100))
    until(lambda: lag(http, stream, "g") == 0)


# --------------------------------------------------------------------------------------------- seek and delete


@pytest.mark.anyio
@BOTH
async def test_a_seek_takes_messages_back_and_hands_them_out_anew(
    shared_server: PushqServer, http: Client, mode: str
) -> None:
    stream = made(http)
    seqs = published(http, stream, *range(6))
    put_group(http, stream, "g", position="earliest", mode=mode)
    async with WebSocket(shared_server) as client:
        await client.subscribe(stream, group="g", credit=6)
        held = await client.messages(6)
        await asyncio.to_thread(put_group, http, stream, "g", position={"seq": seqs[2]})
        lost = list((await client.next("lost"))["receipts"])
        while len(lost) < 6:
            lost += (await client.next("lost"))["receipts"]
        assert sorted(lost) == sorted(receipts(held))
        assert bodies(await client.messages(4)) == [2, 3, 4, 5]
        assert acked(http, stream, held[5]["receipt"]) == [False]
    put_group(http, stream, "g", position="latest")
    assert lag(http, stream, "g") == 0 and receive(http, stream, group="g") == []


@pytest.mark.anyio
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_the_consumers_of_a_deleted_group_are_told(
    shared_server: PushqServer, http: Client, transport: str
) -> None:
    stream = made(http)
    put_group(http, stream, "g")
    async with consuming(shared_server, transport, stream, group="g") as consumer:
        await consumer.wait()
        await asyncio.to_thread(until, lambda: stats(http, stream)["consumers"] == 1)
        assert (await asyncio.to_thread(http.delete, f"/v1/queues/{stream}/groups/g")).status_code == 204
        farewell = await consumer.farewell()
    assert farewell["problem"]["code"] == "not-found" and "group 'g'" in farewell["problem"]["detail"]


@pytest.mark.anyio
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_the_consumers_of_groups_of_a_deleted_stream_are_told(start_server: StartServer, transport: str) -> None:
    server = start_server(env={"PUSHQ_QUEUES__ALLOW_DELETE_OVER_HTTP": "true"})
    create_queue(server, "s", kind="stream")
    async with consuming(server, transport, "s", group="g") as consumer:
        await consumer.wait()
        with Client(base_url=server.url, headers=server.headers) as http:
            await asyncio.to_thread(until, lambda: stats(http, "s")["consumers"] == 1)
            assert (await asyncio.to_thread(http.delete, "/v1/queues/s?confirm=s&discard=true")).status_code == 200
        farewell = await consumer.farewell()
    assert farewell["problem"]["code"] == "queue-not-found"


# ----------------------------------------------------------------------------------------- sessions and restarts


@pytest.mark.anyio
@BOTH
async def test_a_session_that_was_cut_goes_on_with_what_it_held_of_each_group(
    shared_server: PushqServer, http: Client, mode: str
) -> None:
    stream = made(http)
    published(http, stream, *range(6))
    for name in ("a", "b"):
        put_group(http, stream, name, position="earliest", mode=mode)
    async with WebSocket(shared_server) as client:
        subs = [(await client.subscribe(stream, group=name, credit=3))["sub"] for name in ("a", "b")]
        held: dict[int, list[dict[str, Any]]] = {sub: [] for sub in subs}
        while any(len(messages) < 3 for messages in held.values()):
            frame = await client.next("deliver")
            held[frame["sub"]] += frame["messages"]
        await client.cut()
    async with WebSocket(shared_server, resume=client.session) as again:
        for name in ("a", "b"):
            await again.subscribe(stream, group=name, credit=3)
        assert await again.is_quiet(), "it still holds as many as it has credit for"
        for name, sub in zip(("a", "b"), subs, strict=True):
            assert acked(http, stream, *receipts(held[sub])) == [True] * 3
            assert bodies((await again.next("deliver"))["messages"]) == [3, 4, 5]
            assert lag(http, stream, name) == 3


@pytest.mark.anyio
@BOTH
async def test_groups_outlive_a_killed_server(start_server: StartServer, mode: str) -> None:
    server = start_server()
    create_queue(server, "s", kind="stream")
    async with http_client(server) as http:
        await call(http, "POST", "s/messages", {"messages": [{"body": n} for n in range(1000)]})
        await call(http, "PUT", "s/groups/g", {"position": "earliest", "mode": mode})
        held = (await call(http, "POST", "s/receive", {"max": 700, "group": "g"}))["messages"]
        assert len(held) == 700
        answer = await call(http, "POST", "s/ack", {"receipts": [m["receipt"] for m in held[:500]]})
        assert all(row["ok"] for row in answer["results"])
    server.kill()
    server.start()
    async with http_client(server) as http:
        group = await call(http, "GET", "s/groups/g")
        assert (group["mode"], group["lag"][0]["lag"]) == (mode, 500)
        late = await call(http, "POST", "s/ack", {"receipts": [held[500]["receipt"]]})
        assert late["results"][0]["ok"], "nobody else has it"
        rest = (await call(http, "POST", "s/receive", {"max": 1000, "group": "g"}))["messages"]
        assert bodies(rest) == list(range(501, 1000))


@pytest.mark.anyio
@BOTH
async def test_a_clean_stop_keeps_what_a_session_holds_of_a_group(start_server: StartServer, mode: str) -> None:
    server = start_server()
    create_queue(server, "s", kind="stream")
    async with WebSocket(server) as client:
        await client.publish("s", *range(6))
        await client.subscribe("s", group="g", credit=3, **{"from": "earliest"})
        held = await client.messages(3)
        await asyncio.to_thread(server.stop)
    await asyncio.to_thread(server.start)
    async with WebSocket(server, resume=client.session) as again:
        assert again.connected["resumed"]
        await again.subscribe("s", group="g", credit=3)
        assert await again.is_quiet()
        answer = await again.ask(type="ack", queue="s", receipts=receipts(held))
        assert all(row["ok"] for row in answer["results"])
        assert bodies(await again.messages(3)) == [3, 4, 5]


# ------------------------------------------------------------------------------------------------- places, retention


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
    metrics = http.get("/metrics").text
    assert f'pushq_messages_ended_total{{queue="{stream}",reason="retention",tenant="default"}} 5.0' in metrics
    assert f'pushq_group_lag_messages{{group="leases",queue="{stream}",tenant="default"}} 1.0' in metrics


def stats(http: Client, stream: str) -> dict[str, Any]:
    found: dict[str, Any] = http.get(f"/v1/queues/{stream}").json()["stats"]
    return found


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
async def test_a_group_joins_late_and_replays_everything(shared_server: PushqServer, http: Client) -> None:
    stream = made(http)
    for start in range(0, 20_000, 1000):
        published(http, stream, *range(start, start + 1000))
    put_group(http, stream, "late", position="earliest")
    async with Socket.open(shared_server) as socket:
        consumer = await SocketConsumer.begin(socket, stream, group="late", credit=5000)
        seen: list[int] = []
        while len(seen) < 20_000:
            got = await consumer.take(min(2000, 20_000 - len(seen)))
            seen += bodies(got)
            assert await consumer.ack([got[-1]["receipt"]]) == [True]
    assert seen == list(range(20_000)) and lag(http, stream, "late") == 0


@pytest.mark.anyio
async def test_a_live_reader_keeps_its_latency_while_another_one_replays(server: PushqServer) -> None:
    """200,000 messages at full speed beside it. Latencies of one run are compared with each other, three times at most:
    a machine that does something else meanwhile says nothing about the server."""
    create_queue(server, "s", kind="stream")
    with Client(base_url=server.url, headers=server.headers, timeout=60) as http:
        many = b'{"messages":[%b]}' % b",".join([b'{"body":"%b"}' % (b"x" * 100)] * 1000)
        for _ in range(200):
            answer = http.post("/v1/queues/s/messages", content=many, headers={"Content-Type": "application/json"})
            assert answer.status_code == 201
    found = []
    for _ in range(3):
        async with WebSocket(server) as producer, WebSocket(server) as live, WebSocket(server) as late:
            await live.subscribe("s")
            alone = await latencies_ms(producer, live, 200)
            await late.subscribe("s", **{"from": "earliest"})
            replay = asyncio.create_task(replayed(late, 200_000))
            beside = await latencies_ms(producer, live, 200)
            assert await asyncio.wait_for(replay, 60) >= 200_000
        found.append((alone[197], beside[197]))
        if beside[197] <= 5 * alone[197] + 20:
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
