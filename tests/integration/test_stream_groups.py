"""Consumer groups of streams on the real server, over every transport, cuts and restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from tests.conftest import StartServer
from tests.integration.calls import Client, make_key, pointers, publish, receive, refused, with_key
from tests.integration.stream_calls import acked, bodies, lag, made, published, put_group, receipts, stats
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
from tests.support.patience import until
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
        assert len(await beside.some(120)) > 0

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
@pytest.mark.parametrize("is_heard", [False, True])
async def test_a_gap_that_was_told_to_a_session_that_was_cut_is_told_again(
    shared_server: PushqServer, http: Client, *, is_heard: bool
) -> None:
    """It was told once, into a connection that was dead: who came back heard of nothing."""
    stream = made(http, max_messages=5, overflow="drop_oldest")
    put_group(http, stream, "g", position="earliest")
    seqs = [published(http, stream, number)[0] for number in range(12)]
    async with WebSocket(shared_server) as client:
        assert (await client.subscribe(stream, group="g", credit=3))["resume"] == "gap"
        told = await client.next("gap")
        assert told["from"] == seqs[0]
        if is_heard:
            assert (await client.ask(type="begin", sub=told["sub"], receipts=[]))["type"] == "ok"
        await client.cut()
    async with WebSocket(shared_server, resume=client.session) as again:
        assert (await again.subscribe(stream, group="g", credit=3))["resume"] == ("complete" if is_heard else "gap")
        if not is_heard:
            assert (await again.next("gap"))["to"] == told["to"]


@pytest.mark.anyio
@BOTH
@pytest.mark.parametrize("is_heard", [False, True])
async def test_a_gap_that_was_told_over_sse_is_told_again_where_the_client_settled_nothing_after_it(
    shared_server: PushqServer, http: Client, mode: str, *, is_heard: bool
) -> None:
    stream = made(http, max_messages=5, overflow="drop_oldest")
    put_group(http, stream, "g", position="earliest", mode=mode)
    seqs = [published(http, stream, number)[0] for number in range(12)]
    async with consuming(shared_server, "sse", stream, group="g", credit=5) as first:
        assert isinstance(first, EventConsumer)
        told = await first.inbox.get()
        assert (told["type"], told["from"], told["to"]) == ("gap", seqs[0], seqs[6])
        held = await first.take(5)
        if is_heard:
            assert await first.ack(receipts(held)) == [True] * 5
    await asyncio.to_thread(until, lambda: stats(http, stream)["consumers"] == 0)
    async with consuming(shared_server, "sse", stream, group="g", credit=5) as again:
        assert isinstance(again, EventConsumer)
        await asyncio.to_thread(published, http, stream, 12)
        frame = await asyncio.wait_for(again.inbox.get(), 10)
        assert frame["type"] == ("message" if is_heard else "gap")
        if not is_heard:
            assert (frame["from"], frame["to"]) == (told["from"], told["to"])


@BOTH
@pytest.mark.parametrize("is_heard", [False, True])
def test_a_gap_that_a_long_poll_was_told_is_told_again_where_its_messages_come_back(
    http: Client, mode: str, *, is_heard: bool
) -> None:
    stream = made(http, max_messages=5, overflow="drop_oldest")
    put_group(http, stream, "g", position="earliest", mode=mode)
    published(http, stream, *range(12))

    def polled(**more: Any) -> Any:
        return http.post(f"/v1/queues/{stream}/receive", json={"group": "g", "max": 2, "wait_ms": 5_000, **more}).json()

    first = polled() if is_heard else polled(visibility_timeout_ms=50)
    assert first["resume"] == "gap"
    if is_heard:
        assert acked(http, stream, *receipts(first["messages"][:1])) == [True]
        assert http.post(f"/v1/queues/{stream}/nack", json={"receipts": receipts(first["messages"][1:])}).is_success
    answers = [polled()]
    while first["messages"][1]["seq"] not in [message["seq"] for message in answers[-1]["messages"]]:
        answers.append(polled())
    assert answers[-1].get("resume") == (None if is_heard else "gap")
    assert not any("resume" in answer for answer in answers[:-1])


def test_a_gap_goes_with_the_first_messages_behind_it(http: Client, stream: str) -> None:
    """An answer without any is never heard of again: nobody would know if it came."""
    put_group(http, stream, "g", position="earliest")
    published(http, stream, *range(3))
    assert http.post(f"/v1/queues/{stream}/purge", json={"confirm": stream}).status_code == 202
    until(lambda: stats(http, stream)["ready"] == 0)

    def polled() -> Any:
        return http.post(f"/v1/queues/{stream}/receive", json={"group": "g"}).json()

    assert polled() == {"messages": []}
    published(http, stream, 3)
    answer = polled()
    assert (bodies(answer["messages"]), answer["resume"]) == ([3], "gap")


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
async def test_leases_of_a_strict_stream_outlive_a_killed_server(start_server: StartServer) -> None:
    """They are on the disk before their messages leave, so no crash hands a message out twice at a time."""
    server = start_server()
    create_queue(server, "s", kind="stream", ordering="strict", visibility_timeout_ms=60_000)
    async with http_client(server) as http:
        await call(http, "PUT", "s/groups/g", {"mode": "leases"})
        messages = [{"body": n, "key": key} for n in range(3) for key in "ab"]
        await call(http, "POST", "s/messages", {"messages": messages})
        [held] = (await call(http, "POST", "s/receive", {"max": 1, "group": "g"}))["messages"]
        assert held["key"] == "a"
    server.kill()
    server.start()
    async with http_client(server) as http:
        rest = (await call(http, "POST", "s/receive", {"max": 10, "group": "g"}))["messages"]
        assert [(m["key"], m["body"]) for m in rest] == [("b", 0), ("b", 1), ("b", 2)], "key a is with somebody"
        answer = await call(http, "POST", "s/ack", {"receipts": [held["receipt"]]})
        assert answer["results"][0]["ok"]
        after = (await call(http, "POST", "s/receive", {"max": 10, "group": "g"}))["messages"]
        assert [(m["key"], m["body"]) for m in after] == [("a", 1), ("a", 2)]
        await call(http, "PUT", "s/groups/g", {"position": "earliest"})
    server.kill()
    server.start()
    async with http_client(server) as http:
        assert len((await call(http, "POST", "s/receive", {"max": 10, "group": "g"}))["messages"]) == 6


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
