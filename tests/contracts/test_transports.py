"""One set of promises over every transport, against the real server: WebSocket in both encodings, SSE, long-poll."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import httpx2
import pytest

from tests.support.consumers import (
    QUIET_S,
    TRANSPORTS,
    Consumer,
    EventConsumer,
    Message,
    PollConsumer,
    Socket,
    SocketConsumer,
    call,
    consuming,
    http_client,
)
from tests.support.patience import PATIENCE_S, eventually
from tests.support.server import PushqServer

pytestmark = pytest.mark.anyio

ODD_BODIES = [
    None, 0, -1, 1.5, True, "", "text", "ü€😀\u0000\"\\/%s%%", [], {}, [1, [2, {"a": None}]], {"%d": "%", "": "''"},
    b"", b"\x00\xff%b\r\n\n", bytes(range(256)), 2**53 - 1, "line\nline\r\ndata: x",
]  # fmt: skip
_names = itertools.count(1)


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
async def http(shared_server: PushqServer) -> AsyncIterator[httpx2.AsyncClient]:
    async with http_client(shared_server) as http:
        yield http


@pytest.fixture
async def queue(http: httpx2.AsyncClient) -> str:
    return await made(http)


async def made(http: httpx2.AsyncClient, **config: Any) -> str:
    """A new queue's name."""
    name = f"q{next(_names)}"
    await call(http, "PUT", name, config)
    return name


async def publish(http: httpx2.AsyncClient, queue: str, *bodies: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (
        await call(http, "POST", f"{queue}/messages", {"messages": [{"body": body} for body in bodies]})
    )["messages"]
    return rows


async def stats(http: httpx2.AsyncClient, queue: str) -> dict[str, int]:
    found: dict[str, int] = (await call(http, "GET", queue))["stats"]
    return found


async def until_consumers(http: httpx2.AsyncClient, queue: str, count: int) -> None:
    async def as_many() -> bool:
        return (await stats(http, queue))["consumers"] == count

    await eventually(as_many)


def receipts(messages: list[Message]) -> list[str]:
    return [message["receipt"] for message in messages]


def bodies(messages: list[Message]) -> list[Any]:
    return [message["body"] for message in messages]


# -------------------------------------------------------------------------------------------------- work queues


async def test_an_acked_message_is_delivered_once(
    shared_server: PushqServer, http: httpx2.AsyncClient, queue: str, transport: str
) -> None:
    published = await publish(http, queue, *range(30))
    async with consuming(shared_server, transport, queue, credit=30) as consumer:
        messages = await consumer.take(30)
        assert bodies(messages) == list(range(30))
        assert [m["seq"] for m in messages] == [row["seq"] for row in published]
        assert [m["id"] for m in messages] == [row["id"] for row in published]
        assert await consumer.ack(receipts(messages)) == [True] * 30
        assert await consumer.take(1, seconds=0.3) == []
    counts = await stats(http, queue)
    assert (counts["ready"], counts["in_flight"], counts["acked_total"]) == (0, 0, 30)


async def test_a_message_has_the_shape_of_the_interface(
    shared_server: PushqServer, http: httpx2.AsyncClient, queue: str, transport: str
) -> None:
    full = {
        "body": {"a": 1}, "id": "given", "key": "k", "headers": {"h": "v"}, "content_type": "text/x",
        "reply_to": "r", "correlation_id": "c",
    }  # fmt: skip
    await call(http, "POST", f"{queue}/messages", {"messages": [full, {"body": 1}]})
    async with consuming(shared_server, transport, queue) as consumer:
        first, second = await consumer.take(2)
    assert {name: first[name] for name in full} == full
    plain = {"headers": {}, "key": None, "content_type": "application/json", "priority": 0, "partition": 0}
    assert {name: second[name] for name in plain} == plain and "reply_to" not in second
    assert (first["attempt"], first["seq"], second["seq"]) == (1, first["seq"], first["seq"] + 1)
    assert first["published_at"].endswith("Z") and len(first["published_at"]) == len("2026-11-21T10:00:00.000Z")


NUMBERS = ("producer", "producer_seq")


async def test_a_message_says_who_published_it_and_under_which_number_if_the_publisher_did(
    shared_server: PushqServer, http: httpx2.AsyncClient, queue: str, transport: str
) -> None:
    numbered = {"producer": "sensor-7", "producer_seq": 41}
    messages = [{"body": "numbered", **numbered}, {"body": "bare"}, {"body": "keyed", "key": "k", **numbered}]
    await call(http, "POST", f"{queue}/messages", {"messages": messages})
    async with consuming(shared_server, transport, queue) as consumer:
        found = await consumer.take(3)
        told = [{name: message[name] for name in NUMBERS if name in message} for message in found]
        assert told == [numbered, {}, numbered]
        await consumer.nack(receipts(found[:1]))
        (again,) = await consumer.take(1)
        assert {name: again[name] for name in NUMBERS} == numbered


async def test_what_came_too_late_says_whose_number_it_had(
    shared_server: PushqServer, http: httpx2.AsyncClient, transport: str
) -> None:
    queue = await made(http, sequencing="producer", sort_window_ms=0)
    for number in (1, 3):
        message = {"body": number, "producer": "sensor-7", "producer_seq": number}
        await call(http, "POST", f"{queue}/messages", {"messages": [message]})
    async with consuming(shared_server, transport, queue) as consumer:
        found = await consumer.take(2)
    assert [(m["producer"], m["producer_seq"]) for m in found] == [("sensor-7", 1), ("sensor-7", 3)]
    late = {"body": 2, "producer": "sensor-7", "producer_seq": 2}
    await call(http, "POST", f"{queue}/messages", {"messages": [late]})
    async with consuming(shared_server, transport, f"{queue}.late") as consumer:
        (message,) = await consumer.take(1)
    assert {name: message[name] for name in late} == late and message["ordering"]["late"] is True


async def test_a_nacked_message_comes_again_as_attempt_2(
    shared_server: PushqServer, http: httpx2.AsyncClient, queue: str, transport: str
) -> None:
    await publish(http, queue, "a", "b")
    async with consuming(shared_server, transport, queue) as consumer:
        first, _ = await consumer.take(2)
        assert await consumer.nack([first["receipt"]]) == [True]
        (again,) = await consumer.take(1)
        assert (again["body"], again["attempt"]) == ("a", 2)
        assert await consumer.ack([first["receipt"]]) == [False], "the older receipt lost its message"
        assert await consumer.ack([again["receipt"]]) == [True]


async def test_a_nack_of_what_nobody_tried_is_no_attempt(
    shared_server: PushqServer, http: httpx2.AsyncClient, queue: str, transport: str
) -> None:
    await publish(http, queue, "a")
    async with consuming(shared_server, transport, queue) as consumer:
        (first,) = await consumer.take(1)
        assert await consumer.nack([first["receipt"]], tried=False) == [True]
        (again,) = await consumer.take(1)
        assert (again["body"], again["attempt"]) == ("a", 1)
        assert await consumer.ack([again["receipt"]]) == [True]


async def test_a_nack_with_a_delay_keeps_the_message_back_so_long(
    shared_server: PushqServer, http: httpx2.AsyncClient, queue: str, transport: str
) -> None:
    await publish(http, queue, "a")
    async with consuming(shared_server, transport, queue) as consumer:
        (first,) = await consumer.take(1)
        before = asyncio.get_running_loop().time()
        assert await consumer.nack([first["receipt"]], delay_ms=600) == [True]
        assert (await stats(http, queue))["delayed"] == 1
        (again,) = await consumer.take(1)
        assert again["attempt"] == 2
        assert asyncio.get_running_loop().time() - before >= 0.6


async def test_a_message_that_is_not_settled_comes_again_after_the_visibility_timeout(
    shared_server: PushqServer, http: httpx2.AsyncClient, transport: str
) -> None:
    queue = await made(http, visibility_timeout_ms=300)
    await publish(http, queue, "a")
    async with consuming(shared_server, transport, queue) as consumer:
        (first,) = await consumer.take(1)
        (again,) = await consumer.take(1)
        assert (again["seq"], again["attempt"]) == (first["seq"], 2)
        assert await consumer.ack([again["receipt"]]) == [True]


async def test_an_expired_receipt_still_acks_while_nobody_else_holds_the_message(
    shared_server: PushqServer, http: httpx2.AsyncClient, transport: str
) -> None:
    queue = await made(http, visibility_timeout_ms=100)
    await publish(http, queue, "a")
    async with consuming(shared_server, transport, queue, credit=1) as consumer:
        (message,) = await consumer.take(1)
        await consumer.leave()
        if isinstance(consumer, SocketConsumer):  # a client that says goodbye gives its leases back at once
            await until_consumers(http, queue, 0)

        async def is_ready() -> bool:
            return (await stats(http, queue))["ready"] == 1

        await eventually(is_ready)
        answer = await call(http, "POST", f"{queue}/ack", {"receipts": [message["receipt"]]})
        assert answer["results"][0]["ok"] is True
        assert (await stats(http, queue))["ready"] == 0


@pytest.mark.parametrize("transport", ["ws-json", "ws-msgpack", "sse"])
async def test_no_more_messages_are_outstanding_than_credit_allows(
    shared_server: PushqServer, http: httpx2.AsyncClient, queue: str, transport: str
) -> None:
    await publish(http, queue, *range(20))
    async with consuming(shared_server, transport, queue, credit=5) as consumer:
        seen = await consumer.some(20, seconds=2)
        assert len(seen) == 5
        assert await consumer.ack(receipts(seen[:2])) == [True, True]
        assert len(await consumer.some(20, seconds=2)) == 2
        assert await consumer.nack(receipts(seen[2:3])) == [True]
        assert len(await consumer.some(20, seconds=2)) == 1
        assert (await stats(http, queue))["in_flight"] == 5


async def test_a_poll_gets_no_more_than_it_asked_for(shared_server: PushqServer, http: httpx2.AsyncClient) -> None:
    queue = await made(http)
    await publish(http, queue, *range(20))
    answer = await call(http, "POST", f"{queue}/receive", {"max": 5})
    assert len(answer["messages"]) == 5
    assert (await stats(http, queue))["in_flight"] == 5


async def test_a_consumer_that_leaves_while_it_waits_costs_no_attempt(
    shared_server: PushqServer, http: httpx2.AsyncClient, queue: str, transport: str
) -> None:
    async with consuming(shared_server, transport, queue) as consumer:
        await consumer.wait()
        await until_consumers(http, queue, 1)
        await consumer.leave()
        await until_consumers(http, queue, 0)
    await publish(http, queue, "a")
    assert (await stats(http, queue))["in_flight"] == 0
    (message,) = (await call(http, "POST", f"{queue}/receive", {}))["messages"]
    assert message["attempt"] == 1


async def test_consumers_that_leave_at_any_moment_leave_nobody_behind(
    shared_server: PushqServer, http: httpx2.AsyncClient, queue: str, transport: str
) -> None:
    """A consumer that is gone and still counted would be given messages that nobody ever sees."""
    for number in range(60):
        await left_at_once(shared_server, transport, queue, seconds=number % 6 / 2000)
    await until_consumers(http, queue, 0)
    await publish(http, queue, *range(5))
    assert (await stats(http, queue))["in_flight"] == 0
    answer = await call(http, "POST", f"{queue}/receive", {})
    assert [message["attempt"] for message in answer["messages"]] == [1] * 5


async def left_at_once(server: PushqServer, transport: str, queue: str, *, seconds: float) -> None:
    """Asks and cuts the connection so soon that the answer may not have begun."""
    if transport.startswith("ws"):
        async with Socket.open(server, binary=transport == "ws-msgpack") as socket:
            await socket.send({"type": "subscribe", "queue": queue})
            await asyncio.sleep(seconds)
            socket.ws.transport.abort()
        return
    head = f"Host: x\r\nAuthorization: Bearer {server.key}\r\n"
    if transport == "sse":
        request = f"GET /v1/queues/{queue}/events HTTP/1.1\r\n{head}\r\n"
    else:
        body = '{"wait_ms":20000}'
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        request = f"POST /v1/queues/{queue}/receive HTTP/1.1\r\n{head}\r\n{body}"
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request.encode())
    await asyncio.sleep(seconds)
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()


@pytest.mark.parametrize("acks_over", TRANSPORTS)
async def test_a_receipt_is_good_on_every_transport(
    shared_server: PushqServer, http: httpx2.AsyncClient, queue: str, transport: str, acks_over: str
) -> None:
    await publish(http, queue, "a", "b")
    async with (
        consuming(shared_server, transport, queue, credit=2) as consumer,
        consuming(shared_server, acks_over, queue, credit=1) as other,
    ):
        taken = [*await consumer.some(2, seconds=1)]
        if len(taken) < 2:
            taken += await other.take(1, seconds=1)
        assert await other.ack(receipts(taken)) == [True, True]
        assert await consumer.ack(receipts(taken)) == [True, True], "an ack may be repeated, from anywhere"
        assert await other.nack(receipts(taken)) == [False, False]
    assert (await stats(http, queue))["acked_total"] == 2


async def test_one_consumer_gets_one_producers_messages_in_order(
    shared_server: PushqServer, http: httpx2.AsyncClient, queue: str, transport: str
) -> None:
    async with (
        Socket.open(shared_server) as producer,
        consuming(shared_server, transport, queue, credit=1000) as consumer,
    ):
        for number in range(60):
            batch = [{"body": number * 10 + n} for n in range(10)]
            await producer.send({"type": "publish", "queue": queue, "messages": batch})
        assert bodies(await consumer.take(600)) == list(range(600))


async def test_two_consumers_share_a_queue_and_never_a_message(
    shared_server: PushqServer, http: httpx2.AsyncClient, queue: str, transport: str
) -> None:
    async with (
        consuming(shared_server, transport, queue, credit=1000) as a,
        consuming(shared_server, transport, queue, credit=1000) as b,
    ):
        for number in range(10):
            await publish(http, queue, *range(number * 100, number * 100 + 100))
        shares: list[list[Message]] = [[], []]
        async with asyncio.timeout(PATIENCE_S):
            while sum(map(len, shares)) < 1000:
                parts = await asyncio.gather(*(one.some(1000, seconds=QUIET_S) for one in (a, b)))
                for share, part in zip(shares, parts, strict=True):
                    share += part
    assert sorted(bodies(shares[0]) + bodies(shares[1])) == list(range(1000))
    # Pushed to, both get their part; one poll may well find everything there.
    assert all(shares) or transport == "poll"


async def test_receipts_that_were_never_given_out_settle_nothing(
    shared_server: PushqServer, http: httpx2.AsyncClient, queue: str, transport: str
) -> None:
    other = await made(http)
    await publish(http, queue, "a", "b", "c")
    await publish(http, other, "a")
    async with consuming(shared_server, transport, queue, credit=1) as consumer:
        (message,) = await consumer.take(1)
        genuine = message["receipt"]
        (foreign,) = receipts((await call(http, "POST", f"{other}/receive", {}))["messages"])
        forged = [
            "", "x", ".", "00", "é" * 30, "😀", genuine[:-1], genuine[1:], genuine + "0", genuine[:-2] + "01",
            genuine[:-2] + "ff", genuine[:-2] + "0G", genuine.upper(), genuine[:10] + "A" + genuine[11:] + "\x00",
            foreign, "A" * len(genuine), genuine * 100,
        ]  # fmt: skip
        assert await consumer.ack(forged) == [False] * len(forged)
        assert await consumer.nack(forged) == [False] * len(forged)
        assert await consumer.ack([]) == []
        assert await consumer.ack([genuine]) == [True]
    counts = await stats(http, queue)
    assert counts["acked_total"] == 1 and (await stats(http, other))["acked_total"] == 0


async def test_bodies_come_as_they_were_published(
    shared_server: PushqServer, http: httpx2.AsyncClient, queue: str, transport: str
) -> None:
    async with Socket.open(shared_server) as text, Socket.open(shared_server, binary=True) as binary:
        for body in ODD_BODIES:
            answer = await binary.ask(type="publish", queue=queue, messages=[{"body": body}])
            assert answer["type"] == "ok", answer
            if not isinstance(body, bytes):
                answer = await text.ask(type="publish", queue=queue, messages=[{"body": body}])
                assert answer["type"] == "ok", answer
                await publish(http, queue, body)
    wanted = [body for body in ODD_BODIES for _ in range(1 if isinstance(body, bytes) else 3)]
    async with consuming(shared_server, transport, queue, credit=1000) as consumer:
        found = bodies(await consumer.take(len(wanted)))
    assert found == wanted
    assert [type(body) for body in found] == [type(body) for body in wanted]


async def test_a_body_of_a_mebibyte_passes(
    shared_server: PushqServer, http: httpx2.AsyncClient, transport: str
) -> None:
    queue = await made(http, max_message_bytes=1024 * 1024)
    large = ["x" * (1024 * 1024 - 2), "y" * (1024 * 1024 - 2)]
    for body in large:
        await publish(http, queue, body)
    async with consuming(shared_server, transport, queue) as consumer:
        assert bodies(await consumer.take(2)) == large


async def test_many_large_messages_at_once_reach_many_consumers(
    shared_server: PushqServer, http: httpx2.AsyncClient, transport: str
) -> None:
    """More bytes leave in one turn than stay loaded: no lease may lose its chunk before it is encoded."""
    queue = await made(http, max_message_bytes=1024 * 1024)
    for number in range(30):
        await publish(http, queue, str(number) + "x" * 900_000)
    async with (
        consuming(shared_server, transport, queue, credit=10) as a,
        consuming(shared_server, transport, queue, credit=10) as b,
        consuming(shared_server, transport, queue, credit=10) as c,
    ):
        shares = await asyncio.gather(a.take(10), b.take(10), c.take(10))
    assert sorted(int(body.rstrip("x")) for share in shares for body in bodies(share)) == list(range(30))


async def test_a_purge_drops_what_was_published_before_and_not_what_comes_after(
    shared_server: PushqServer, http: httpx2.AsyncClient, queue: str, transport: str
) -> None:
    await publish(http, queue, *range(50))
    async with consuming(shared_server, transport, queue, credit=10) as consumer:
        held = await consumer.take(10, seconds=1)
        await call(http, "POST", f"{queue}/purge", {"confirm": queue})
        await publish(http, queue, "after")
        assert bodies(await consumer.some(5, seconds=5)) == ["after"]
        assert await consumer.ack(receipts(held)) == [False] * len(held)


# ------------------------------------------------------------------------------------------------------ the end


async def test_a_deleted_queue_ends_its_consumers(start_server: Callable[..., PushqServer], transport: str) -> None:
    server = start_server(env={"PUSHQ_QUEUES__ALLOW_DELETE_OVER_HTTP": "true"})
    async with http_client(server) as http:
        queue = await made(http)
        async with consuming(server, transport, queue) as consumer:
            await consumer.wait()
            await until_consumers(http, queue, 1)
            answer = await http.delete(f"/v1/queues/{queue}", params={"confirm": queue, "discard": "true"})
            assert answer.is_success, answer.text
            ended = await consumer.farewell()
    assert ended["type"] in ("ended", "refused")
    assert ended["problem"]["code"] == "queue-not-found"


async def test_a_server_that_stops_says_bye_and_redelivers_nothing(
    start_server: Callable[..., PushqServer], transport: str
) -> None:
    server = start_server()
    async with http_client(server) as http:
        queue = await made(http)
        await publish(http, queue, "held", "settled")
        async with consuming(server, transport, queue) as consumer:
            held, settled = await consumer.take(2)
            assert await consumer.ack([settled["receipt"]]) == [True]
            await consumer.wait()
            await until_consumers(http, queue, 1)
            stopping = asyncio.create_task(asyncio.to_thread(server.stop))
            farewell = await consumer.farewell()
            stopped = await stopping
    assert_is_a_bye(farewell, consumer)
    assert stopped.exit_code == 0 and stopped.seconds < 10
    server.start()
    async with http_client(server) as http:
        counts = await stats(http, queue)
        assert (counts["ready"], counts["in_flight"], counts["acked_total"]) == (0, 1, 1)
        answer = await call(http, "POST", f"{queue}/ack", {"receipts": [held["receipt"]]})
        assert answer["results"][0]["ok"] is True, "a lease outlives a clean stop"


def assert_is_a_bye(farewell: dict[str, Any], consumer: Consumer) -> None:
    if isinstance(consumer, PollConsumer):
        assert farewell == {"type": "bye", "messages": []} or farewell["problem"]["code"] == "draining"
        return
    assert (farewell["type"], farewell["code"]) == ("bye", 4000)
    if isinstance(consumer, EventConsumer):
        assert int(farewell["retry"]) == farewell["retry_ms"] > 0


# ------------------------------------------------------------------------------------------------------ streams


@pytest.fixture
async def stream(http: httpx2.AsyncClient) -> str:
    return await made(http, kind="stream")


async def test_every_reader_of_a_stream_gets_every_message_from_the_earliest(
    shared_server: PushqServer, http: httpx2.AsyncClient, stream: str, transport: str
) -> None:
    for number in range(10):
        await publish(http, stream, *range(number * 50, number * 50 + 50))
    async with (
        consuming(shared_server, transport, stream, **{"from": "earliest"}) as a,
        consuming(shared_server, transport, stream, **{"from": "earliest"}) as b,
    ):
        shares = await asyncio.gather(a.take(500), b.take(500))
        assert [bodies(share) for share in shares] == [list(range(500))] * 2
        await publish(http, stream, "new")
        (live, _) = await asyncio.gather(a.take(1), b.take(1))
    assert bodies(live) == ["new"]
    assert live[0]["receipt"] is None and live[0]["attempt"] == 1


async def test_readers_of_a_stream_are_told_who_numbered_a_message(
    shared_server: PushqServer, http: httpx2.AsyncClient, stream: str, transport: str
) -> None:
    numbered = {"producer": "sensor-7", "producer_seq": 41}
    await call(http, "POST", f"{stream}/messages", {"messages": [{"body": 1, **numbered}, {"body": 2}]})
    async with consuming(shared_server, transport, stream, **{"from": "earliest"}) as reader:
        found = await reader.take(2)
    assert [{name: message[name] for name in NUMBERS if name in message} for message in found] == [numbered, {}]


@pytest.mark.parametrize("transport", ["ws-json", "ws-msgpack", "sse"])
async def test_the_latest_of_a_stream_is_what_comes_from_now_on(
    shared_server: PushqServer, http: httpx2.AsyncClient, stream: str, transport: str
) -> None:
    await publish(http, stream, "old")
    async with (
        consuming(shared_server, transport, stream) as unsaid,
        consuming(shared_server, transport, stream, **{"from": "latest"}) as said,
    ):
        await publish(http, stream, "new")
        assert bodies(await unsaid.some(5)) == bodies(await said.some(5)) == ["new"]


async def test_a_waiting_poll_at_the_latest_gets_what_comes(http: httpx2.AsyncClient, stream: str) -> None:
    await publish(http, stream, "old")
    waiting = asyncio.create_task(call(http, "POST", f"{stream}/receive", {"wait_ms": 20_000, "from": "latest"}))
    while not waiting.done():  # nobody is told when the poll begins to wait
        await publish(http, stream, "new")
        await asyncio.sleep(0.1)
    assert {*bodies((await waiting)["messages"])} == {"new"}


async def test_a_stream_is_read_from_a_seq(
    shared_server: PushqServer, http: httpx2.AsyncClient, stream: str, transport: str
) -> None:
    published = await publish(http, stream, *range(300))
    await publish(http, stream, *range(300, 310))
    for start in (0, 1, 63, 64, 65, 255, 299, 300, 309):
        place = {"from": {"seq": published[0]["seq"] + start}}
        async with consuming(shared_server, transport, stream, **place) as reader:
            assert bodies(await reader.take(310 - start)) == list(range(start, 310)), start


async def test_a_stream_is_read_on_from_a_cursor_without_a_gap_or_a_repeat(
    shared_server: PushqServer, http: httpx2.AsyncClient, stream: str, transport: str
) -> None:
    await publish(http, stream, *range(200))
    found: list[Any] = []
    place: Any = "earliest"
    while len(found) < 200:
        async with consuming(shared_server, transport, stream, **{"from": place}) as reader:
            part = await reader.some(30)
            found += bodies(part)
            place = {"cursor": await cursor_after(reader, http, stream, part)}
    assert found == list(range(200))


async def cursor_after(reader: Consumer, http: httpx2.AsyncClient, stream: str, part: list[Message]) -> str:
    """Where the reader stands, as its transport says it; over a socket the frame says it, so a poll is asked here."""
    if isinstance(reader, EventConsumer):
        found = reader.id_of(part[-1])
        assert found is not None
        return found
    if isinstance(reader, PollConsumer):
        assert reader.cursor is not None
        return reader.cursor
    body = {"max": len(part), "from": {"seq": part[0]["seq"]}}
    cursor: str = (await call(http, "POST", f"{stream}/receive", body))["cursor"]
    return cursor


async def test_sse_resumes_by_the_last_event_id(
    shared_server: PushqServer, http: httpx2.AsyncClient, stream: str
) -> None:
    await publish(http, stream, *range(20))
    async with consuming(shared_server, "sse", stream, **{"from": "earliest"}) as first:
        seen = await first.take(7)
        assert isinstance(first, EventConsumer) and bodies(seen) == list(range(7))
        again = EventConsumer(http, stream, {"from": "earliest"}, {"Last-Event-ID": first.id_of(seen[-1]) or ""})
        assert bodies(await again.take(13)) == list(range(7, 20))
        await again.leave()


async def test_a_stream_by_credit_gives_no_more_than_allowed(
    shared_server: PushqServer, http: httpx2.AsyncClient, stream: str
) -> None:
    await publish(http, stream, *range(100))
    async with Socket.open(shared_server) as socket:
        reader = await SocketConsumer.begin(socket, stream, credit=10, **{"from": "earliest"})
        assert bodies(await reader.some(100, seconds=1)) == list(range(10))
        assert (await socket.ask(type="credit", sub=reader.subscribed["sub"], n=25))["type"] == "ok"
        assert bodies(await reader.some(100, seconds=1)) == list(range(10, 35))
