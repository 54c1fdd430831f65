"""The Python client against the real server, over each transport, through kills and restarts."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
import httpx2
import pytest

from push.client import (
    Admin,
    ApiError,
    Connected,
    Disconnected,
    LeaseLost,
    Limits,
    Lost,
    NotFound,
    Outgoing,
    PublishManyFailed,
    Pushq,
    PushqError,
    SessionEvent,
    Unauthenticated,
    Unavailable,
    connect,
)
from push.client.model import Encoding, TransportName
from tests.support.patience import PATIENCE_S, eventually
from tests.support.server import PushqServer
from tests.support.ws import Client

pytestmark = pytest.mark.anyio

TRANSPORTS: list[TransportName] = ["ws", "sse", "poll"]
QUICK = Limits(backoff_base_s=0.05, backoff_cap_s=0.5, close_timeout_s=2)
STORED_BEFORE_THE_KILL = 100
BODIES = [None, 0, 1.5, "text", "ü€😀", [1, [2]], {"a": {"b": None}}, True, b"\x00\xff raw", b""]


def opened(server: PushqServer, **options: Any) -> Pushq:
    return connect(server.url, server.key, **{"limits": QUICK} | options)


@pytest.fixture
async def admin(shared_server: PushqServer) -> AsyncIterator[Admin]:
    async with Admin(shared_server.url, shared_server.key) as admin:
        yield admin


@pytest.fixture
async def queue(admin: Admin, request: pytest.FixtureRequest) -> str:
    """A queue of this test's own."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name).strip("-")[:100]
    await admin.create_queue(name)
    return name


async def stats(admin: Admin, queue: str) -> dict[str, Any]:
    found: dict[str, Any] = (await admin.get_queue(queue))["stats"]
    return found


async def drain(pushq: Pushq, queue: str, count: int, **options: Any) -> list[Any]:
    """The bodies of the next `count` messages, each acked."""
    bodies: list[Any] = []
    async with asyncio.timeout(PATIENCE_S):
        async for message in pushq.subscribe(queue, **options):
            await message.ack()
            bodies.append(message.body)
            if len(bodies) == count:
                return bodies
    raise AssertionError("the subscription ended")


# Publishing and consuming


@pytest.mark.parametrize("encoding", ["msgpack", "json"])
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_every_body_comes_back_as_it_went(
    shared_server: PushqServer, admin: Admin, queue: str, transport: TransportName, encoding: Encoding
) -> None:
    async with opened(shared_server, transport=transport, encoding=encoding) as pushq:
        for body in BODIES:
            await pushq.publish(queue, body)
        assert await drain(pushq, queue, len(BODIES), credit=3) == BODIES
        assert (await stats(admin, queue))["acked_total"] == len(BODIES)


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_body_written_over_several_lines_comes_back_as_the_same_value(
    shared_server: PushqServer, queue: str, transport: TransportName, end: str
) -> None:
    written = end.join(['{"messages": [{"body": {', '  "a": "b\\nc",', "", "", '  "id: x": [', "1", "]", "}}]}"])
    async with opened(shared_server, transport=transport) as pushq:
        async with httpx2.AsyncClient(base_url=shared_server.url, headers=shared_server.headers) as http:
            headers = {"Content-Type": "application/json"}
            answer = await http.post(f"/v1/queues/{queue}/messages", content=written, headers=headers)
            assert answer.status_code == 201, answer.text
        assert await drain(pushq, queue, 1) == [{"a": "b\nc", "id: x": [1]}]


@pytest.mark.parametrize("encoding", ["msgpack", "json"])
async def test_integers_that_messagepack_has_not_come_back_as_they_went(
    shared_server: PushqServer, queue: str, encoding: Encoding
) -> None:
    bodies = [2**64, [-(2**63) - 1], {"n": 10**300}, b"18446744073709551616", 2**64 - 1]
    async with opened(shared_server, encoding="json") as publisher:
        for body in bodies:
            await publisher.publish(queue, body)
    async with opened(shared_server, encoding=encoding) as pushq:
        assert await drain(pushq, queue, len(bodies)) == bodies


@pytest.mark.parametrize("field", ["priority", "delay_ms", "ttl_ms"])
async def test_a_number_beyond_64_bits_is_refused_by_the_name_of_its_field(
    shared_server: PushqServer, queue: str, field: str
) -> None:
    async with opened(shared_server, encoding="msgpack") as pushq:
        with pytest.raises(ApiError) as caught:
            await pushq.publish(queue, 1, **{field: 2**64})  # type: ignore[arg-type]
    assert [error.pointer for error in caught.value.problem.errors or ()] == [f"/{field}"]


@pytest.mark.parametrize("number", ["1e999", "-1e400", "9" * 309, "9" * 5000])
async def test_a_number_that_this_client_could_not_read_is_refused_at_every_door(
    shared_server: PushqServer, queue: str, number: str
) -> None:
    messages = f'[{{"body": 1}}, {{"body": {{"n": [{number}]}}, "key": "k"}}]'
    async with httpx2.AsyncClient(base_url=shared_server.url, headers=shared_server.headers) as http:
        path, headers = f"/v1/queues/{queue}/messages", {"Content-Type": "application/json"}
        answer = (await http.post(path, content=f'{{"messages": {messages}}}', headers=headers)).json()
        assert (answer["status"], [error["pointer"] for error in answer["errors"]]) == (400, ["/messages/1/body"])
        event = f'{{"specversion":"1.0","id":"1","source":"s","type":"t","data":{number}}}'
        answer = (await http.post(path, content=event, headers={"Content-Type": "application/cloudevents+json"})).json()
        assert answer["status"] == 400
    async with Client(shared_server) as socket:
        await socket.socket.send(f'{{"type": "publish", "id": 7, "queue": "{queue}", "messages": {messages}}}')
        problem = (await socket.next("error"))["problem"]
        assert (problem["status"], [error["pointer"] for error in problem["errors"]]) == (400, ["/messages/1/body"])


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_message_keeps_its_fields(shared_server: PushqServer, queue: str, transport: TransportName) -> None:
    async with opened(shared_server, transport=transport) as pushq:
        published = await pushq.publish(
            queue, {"n": 1}, id="order-1", key="customer-1", headers={"trace": "t"}, content_type="application/json"
        )
        async with pushq.subscribe(queue) as messages:
            message = await messages.get()
            await message.ack()
    assert (published.id, published.duplicate) == ("order-1", False)
    assert (message.id, message.key, dict(message.headers)) == ("order-1", "customer-1", {"trace": "t"})
    assert (message.seq, message.attempt, message.queue) == (published.seq, 1, queue)
    assert message.published_at.tzinfo is not None and message.receipt


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_many_messages_from_many_tasks_arrive_once_each(
    shared_server: PushqServer, admin: Admin, queue: str, transport: TransportName
) -> None:
    async with opened(shared_server, transport=transport) as pushq:
        consumer = asyncio.create_task(drain(pushq, queue, 120, credit=25))
        await asyncio.gather(*(pushq.publish(queue, n) for n in range(60)))
        await pushq.publish_many(queue, range(60, 120))
        assert sorted(await consumer) == list(range(120))
    found = await stats(admin, queue)
    assert (found["ready"], found["in_flight"], found["acked_total"]) == (0, 0, 120)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_nacked_message_comes_again(shared_server: PushqServer, queue: str, transport: TransportName) -> None:
    async with opened(shared_server, transport=transport) as pushq, pushq.subscribe(queue) as messages:
        await pushq.publish(queue, "job")
        first = await messages.get()
        await first.nack(reason="not today")
        async with asyncio.timeout(10):
            second = await messages.get()
        await second.ack()
    assert (first.id, first.attempt) == (second.id, 1) and second.attempt == 2


async def test_a_nacked_message_stays_away_for_the_time_asked(shared_server: PushqServer, queue: str) -> None:
    async with opened(shared_server) as pushq, pushq.subscribe(queue) as messages:
        await pushq.publish(queue, "job")
        await (await messages.get()).nack(delay_ms=400)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(messages.get(), 0.2)
        await (await asyncio.wait_for(messages.get(), 10)).ack()


@pytest.mark.parametrize("transport", ["ws", "poll"])
async def test_automatic_acks_leave_nothing_to_settle(
    shared_server: PushqServer, admin: Admin, queue: str, transport: TransportName
) -> None:
    async with opened(shared_server, transport=transport) as pushq:
        await pushq.publish_many(queue, range(50))
        async with asyncio.timeout(10), pushq.subscribe(queue, ack="auto", credit=5) as messages:
            got = [await messages.get() for _ in range(50)]
            assert sorted(message.body for message in got) == list(range(50))
            assert {message.receipt for message in got} == {None}
            await got[0].ack()

            async def is_empty() -> bool:
                found = await stats(admin, queue)
                return bool(found["ready"] == found["in_flight"] == 0)

            await eventually(is_empty)


async def test_what_is_left_unsettled_goes_back_when_the_loop_is_left(
    shared_server: PushqServer, admin: Admin, queue: str
) -> None:
    async with opened(shared_server) as pushq:
        await pushq.publish_many(queue, range(10))
        async for message in pushq.subscribe(queue, credit=10):
            await message.ack()
            break

        async def is_back() -> bool:
            return bool((await stats(admin, queue))["ready"] == 9)

        await eventually(is_back)


async def test_closing_is_over_soon_though_the_server_stands_still(server: PushqServer) -> None:
    """It took the socket's ping time-out, a minute, where what was published filled the socket."""
    async with Admin(server.url, server.key) as admin:
        await admin.create_queue("q")
    pushq = await opened(server).__aenter__()
    await pushq.publish("q", "it works")
    os.kill(server.pid, signal.SIGSTOP)
    try:
        publishing = [asyncio.create_task(pushq.publish("q", "x" * 60_000)) for _ in range(400)]
        await asyncio.sleep(0.5)
        began = time.monotonic()
        await pushq.close()
        assert time.monotonic() - began < 20
    finally:
        os.kill(server.pid, signal.SIGCONT)
    outcomes = await asyncio.gather(*publishing, return_exceptions=True)
    assert all(isinstance(outcome, PushqError) for outcome in outcomes)


# Leases


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_lease_is_extended_while_the_handler_works(
    shared_server: PushqServer, queue: str, transport: TransportName
) -> None:
    async with opened(shared_server, transport=transport) as pushq:
        await pushq.publish(queue, "slow")
        async with pushq.subscribe(queue, visibility_timeout_ms=1_500) as messages:
            message = await messages.get()
            await asyncio.sleep(2.2)
            assert not message.lost
            await message.ack()


async def test_the_queues_own_visibility_timeout_is_extended_too(shared_server: PushqServer, admin: Admin) -> None:
    await admin.create_queue("quick-leases", {"visibility_timeout_ms": 1_500})
    async with opened(shared_server) as pushq:
        await pushq.publish("quick-leases", "slow")
        async with pushq.subscribe("quick-leases") as messages:
            message = await messages.get()
            await asyncio.sleep(2.2)
            assert not message.lost
            await message.ack()


@pytest.mark.parametrize("transport", ["ws", "poll"])
async def test_a_lease_that_ran_out_is_told_and_its_ack_fails(
    shared_server: PushqServer, queue: str, transport: TransportName
) -> None:
    events: list[SessionEvent] = []
    async with opened(shared_server, transport=transport, on_event=events.append) as pushq:
        await pushq.publish(queue, "forgotten")
        options: dict[str, Any] = {"visibility_timeout_ms": 300, "extend_leases": False, "credit": 2}
        async with asyncio.timeout(10), pushq.subscribe(queue, **options) as messages:
            first = await messages.get()
            second = await messages.get()
            with pytest.raises(LeaseLost):
                await first.ack()
            assert first.lost and (first.id, second.attempt) == (second.id, 2)
            await second.ack()
    assert Lost(queue, (first.id,)) in events


async def test_extend_holds_a_message_for_the_time_asked(shared_server: PushqServer, queue: str) -> None:
    async with opened(shared_server) as pushq:
        await pushq.publish(queue, "mine")
        async with pushq.subscribe(queue, visibility_timeout_ms=1_500, extend_leases=False) as messages:
            message = await messages.get()
            await message.extend(30_000)
            await asyncio.sleep(2.2)
            await message.ack()


# Refusals


async def test_a_wrong_key_is_refused_at_once(shared_server: PushqServer) -> None:
    for transport in TRANSPORTS:
        with pytest.raises(Unauthenticated):
            async with connect(shared_server.url, "pushq_no_such", transport=transport, limits=QUICK):
                pytest.fail("must not open")


async def test_nobody_listening_is_unavailable(free_port: int) -> None:
    for transport in TRANSPORTS:
        with pytest.raises(Unavailable):
            async with connect(
                f"http://127.0.0.1:{free_port}", "k", transport=transport, limits=Limits(open_timeout_s=0.3)
            ):
                pytest.fail("must not open")


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_missing_queue_is_told_by_publish_and_by_subscribe(
    shared_server: PushqServer, transport: TransportName
) -> None:
    async with opened(shared_server, transport=transport) as pushq:
        with pytest.raises(NotFound):
            await pushq.publish("nowhere", 1)
        with pytest.raises(NotFound):
            await pushq.subscribe("nowhere").get()


@pytest.mark.parametrize("transport", ["ws", "poll"])
async def test_one_bad_message_of_a_batch_fails_alone(
    shared_server: PushqServer, queue: str, transport: TransportName
) -> None:
    messages = [Outgoing(body=1), Outgoing(body=2, key="k" * 300), Outgoing(body=b"x" * 300_000), Outgoing(body=3)]
    async with opened(shared_server, transport=transport) as pushq:
        with pytest.raises(PublishManyFailed) as caught:
            await pushq.publish_many(queue, messages)
        results = caught.value.results
        assert [isinstance(result, ApiError) for result in results] == [False, True, True, False]
        assert sorted(await drain(pushq, queue, 2)) == [1, 3]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_what_no_frame_can_carry_is_its_callers_error_and_nobody_elses(
    shared_server: PushqServer, queue: str, transport: TransportName
) -> None:
    half = "caf\udce9"  # as Python reads a file's name that is not UTF-8
    async with opened(shared_server, transport=transport) as pushq, pushq.subscribe(queue, credit=1) as messages:
        await pushq.publish(queue, 1)
        message = await messages.get()
        neighbour = asyncio.create_task(pushq.publish(queue, 2))
        await asyncio.sleep(0)
        for field, call in {
            "/queue": lambda: pushq.publish(half, 1),
            "/reason": lambda: message.nack(reason=half),
            "/delay_ms": lambda: message.nack(delay_ms=2**70),
            "/visibility_timeout_ms": lambda: message.extend(2**70),
            "/group": lambda: pushq.subscribe(queue, group=half).get(),
            "/credit": lambda: pushq.subscribe(queue, credit=2**70).get(),
            "/from": lambda: pushq.subscribe(queue, from_={"seq": object()}).get(),
        }.items():
            with pytest.raises(ApiError) as caught:
                await asyncio.wait_for(call(), PATIENCE_S)
            assert (caught.value.code, caught.value.problem.errors[0].pointer) == ("invalid-request", field)
        with pytest.raises(ApiError, match="/queue"):
            await asyncio.wait_for(message.ack(publish=[(half, 1)]), PATIENCE_S)
        with pytest.raises(ApiError, match="/queue"):
            await asyncio.wait_for(pushq.publish(7, 1), PATIENCE_S)  # type: ignore[arg-type]
        await neighbour
        await message.ack()
        assert (await messages.get()).body == 2


# Streams


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_stream_is_read_from_a_time_on(
    shared_server: PushqServer, admin: Admin, transport: TransportName
) -> None:
    name = f"since-{transport}"
    await admin.create_queue(name, {"kind": "stream"})
    async with opened(shared_server, transport=transport) as pushq:
        await pushq.publish_many(name, [1, 2])
        begin = datetime.now(UTC) - timedelta(hours=1)
        assert await drain(pushq, name, 2, from_={"time": begin}) == [1, 2]
        with pytest.raises(ValueError, match="a time needs a time zone"):
            pushq.subscribe(name, from_={"time": begin.replace(tzinfo=None)})


@pytest.mark.parametrize("transport", ["ws", "sse"])
async def test_every_subscriber_of_a_stream_gets_every_message(
    shared_server: PushqServer, admin: Admin, transport: TransportName
) -> None:
    name = f"news-{transport}"
    await admin.create_queue(name, {"kind": "stream"})
    async with opened(shared_server, transport=transport) as pushq:
        await pushq.publish_many(name, range(300))
        early = asyncio.create_task(drain(pushq, name, 500, from_="earliest", credit=20))
        async with pushq.subscribe(name, from_="latest", credit=20) as late:
            await pushq.publish_many(name, range(300, 500))
            async with asyncio.timeout(10):
                assert [(await late.get()).body for _ in range(200)] == list(range(300, 500))
        assert await early == list(range(500))


@pytest.mark.parametrize("transport", ["ws", "sse"])
async def test_a_stream_goes_on_where_it_was_cut(server: PushqServer, transport: TransportName) -> None:
    async with Admin(server.url, server.key) as admin:
        await admin.create_queue("news", {"kind": "stream"})
    async with opened(server, transport=transport) as pushq:
        await pushq.publish_many("news", range(100))
        got: list[int] = []
        async with asyncio.timeout(30), pushq.subscribe("news", from_="earliest", credit=10) as messages:
            while len(got) < 200:
                got.append((await messages.get()).body)
                if len(got) == 50:
                    server.kill()
                    await anyio.to_thread.run_sync(server.start)
                    await pushq.publish_many("news", range(100, 200))
        assert got == list(range(200))


# Kills and restarts


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_every_confirmed_message_arrives_though_the_server_is_killed(
    server: PushqServer, transport: TransportName
) -> None:
    async with Admin(server.url, server.key) as admin:
        await admin.create_queue("orders")
    confirmed: set[int] = set()
    received: set[int] = set()
    is_over = asyncio.Event()
    async with opened(server, transport=transport) as pushq:

        async def produce(first: int) -> None:
            for n in range(first, 1_000_000, 8):
                if is_over.is_set():
                    return
                await pushq.publish("orders", n)
                confirmed.add(n)

        async def has_confirmed(count: int) -> bool:
            return len(confirmed) >= count

        async def consume() -> None:
            async for message in pushq.subscribe("orders", credit=50):
                received.add(message.body)
                try:
                    await message.ack()
                except LeaseLost:
                    pass  # it comes again
                if is_over.is_set() and confirmed <= received:
                    return

        async with asyncio.timeout(60), asyncio.TaskGroup() as work:
            consumer = work.create_task(consume())
            producers = [work.create_task(produce(n)) for n in range(8)]
            for kill in range(2):
                await eventually(partial(has_confirmed, (kill + 1) * STORED_BEFORE_THE_KILL), within_s=30)
                server.kill()
                await anyio.to_thread.run_sync(server.start)
            is_over.set()
            await asyncio.gather(*producers)
            await pushq.publish("orders", -1)  # wakes the consumer if everything was there already
            await consumer
        assert confirmed <= received


async def test_a_clean_restart_loses_and_repeats_nothing(server: PushqServer) -> None:
    async with Admin(server.url, server.key) as admin:
        await admin.create_queue("orders")
        events: list[SessionEvent] = []
        async with opened(server, on_event=events.append) as pushq, pushq.subscribe("orders", credit=10) as messages:
            await pushq.publish_many("orders", range(10))
            held = [await messages.get() for _ in range(10)]
            await anyio.to_thread.run_sync(server.restart)
            await asyncio.gather(*(message.ack() for message in held))
            assert {message.attempt for message in held} == {1}
        assert (await admin.get_queue("orders"))["stats"]["acked_total"] == 10
    assert {type(event) for event in events} == {Connected, Disconnected}


async def test_a_cut_connection_resumes_its_session_and_keeps_its_leases(server: PushqServer) -> None:
    async with Admin(server.url, server.key) as admin:
        await admin.create_queue("orders")
    events: list[SessionEvent] = []
    async with opened(server, on_event=events.append) as pushq, pushq.subscribe("orders", credit=10) as messages:
        await pushq.publish_many("orders", range(5))
        held = [await messages.get() for _ in range(5)]
        transport = pushq._link._transport
        assert transport is not None
        transport.abort()

        async def is_back() -> bool:
            return len(events) >= 3

        await eventually(is_back)
        assert isinstance(events[-1], Connected) and events[-1].resumed
        await pushq.publish("orders", 5)
        async with asyncio.timeout(10):
            sixth = await messages.get()
        assert (sixth.body, sixth.attempt) == (5, 1), "the five held ones did not come again"
        await asyncio.gather(*(message.ack() for message in [*held, sixth]))


# The example


async def test_the_example_runs(server: PushqServer) -> None:
    environment = os.environ | {"PUSHQ_URL": server.url, "PUSHQ_KEY": server.key}
    command = [sys.executable, "-m", "push.client.example"]
    root = Path(__file__).resolve().parents[2]

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=30, env=environment, cwd=root, check=False
        )

    done = await anyio.to_thread.run_sync(run)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"order {n} done at attempt {2 if n == 2 else 1}" for n in range(5)]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_the_same_call_by_another_process_stores_nothing(
    transport: TransportName, shared_server: PushqServer, admin: Admin, queue: str
) -> None:
    """Each session numbers and names its messages for itself; with a key that makes no difference."""
    await admin.update_queue(queue, {"dedupe": "id"})
    stored = []
    for _ in range(2):
        async with opened(shared_server, transport=transport, number_always=True) as pushq:
            company = asyncio.create_task(pushq.publish(queue, "company"))
            stored.append(await pushq.publish(queue, {"a": 1}, key="k", idempotency_key='say "yes" \\ '))
            await company
    first, again = stored
    assert (first.duplicate, again.duplicate) == (False, True)
    assert (first.id, first.seq, first.partition) == (again.id, again.seq, again.partition)
    async with opened(shared_server, transport=transport) as pushq:
        with pytest.raises(ApiError, match="another payload"):
            await pushq.publish(queue, {"a": 2}, key="k", idempotency_key='say "yes" \\ ')
        with pytest.raises(ValueError, match="printable ASCII"):
            await pushq.publish(queue, 1, idempotency_key="é")
