"""Streams that lie at a backend: consumer groups over every transport, and ranges by offset."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio.to_thread
import httpx2
import pytest

from tests.support.backend import Backend
from tests.support.consumers import Socket, call, consuming, http_client
from tests.support.patience import eventually
from tests.support.server import PushqServer
from tests.support.ws import Client as WebSocket

pytestmark = pytest.mark.anyio

WAIT_S = 90.0
"""Far above what anything here takes: these machines are busy."""
BOTH = pytest.mark.parametrize("mode", ["offsets", "leases"])
_names = itertools.count(1)


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    with Backend(tmp_path_factory.mktemp("backend")) as backend:
        yield backend


@pytest.fixture(scope="module")
def gateway(backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PushqServer]:
    env = {**backend.gateway_env, "PUSHQ_QUEUES__ALLOW_DELETE_OVER_HTTP": "true"}
    with PushqServer(tmp_path_factory.mktemp("gateway") / "data", env=env) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def second(backend: Backend, gateway: PushqServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PushqServer]:
    """Another gateway of the same backend, with the same keys."""
    data = tmp_path_factory.mktemp("second") / "data"
    data.mkdir(mode=0o700)
    for name in ("master.key", "admin.key"):
        (data / name).write_bytes((gateway.data / name).read_bytes())
        (data / name).chmod(0o600)
    with PushqServer(data, env=backend.gateway_env) as second:
        yield second


def patient(server: PushqServer) -> httpx2.AsyncClient:
    client = http_client(server)
    client.timeout = httpx2.Timeout(WAIT_S)
    return client


@pytest.fixture
async def http(gateway: PushqServer) -> AsyncIterator[httpx2.AsyncClient]:
    async with patient(gateway) as http:
        yield http


async def made(http: httpx2.AsyncClient, **config: Any) -> str:
    name = f"stream{next(_names)}"
    await call(http, "PUT", name, {"kind": "stream", **config})
    return name


async def publish(http: httpx2.AsyncClient, stream: str, *bodies: Any, **more: Any) -> list[int]:
    messages = [{"body": body, **more} for body in bodies]
    return [row["seq"] for row in (await call(http, "POST", f"{stream}/messages", {"messages": messages}))["messages"]]


async def take(http: httpx2.AsyncClient, stream: str, most: int = 10, wait_ms: int = 0) -> list[dict[str, Any]]:
    """Messages of the group `g`."""
    asked = {"max": most, "wait_ms": wait_ms, "group": "g"}
    found: list[dict[str, Any]] = (await call(http, "POST", f"{stream}/receive", asked))["messages"]
    return found


async def settle(http: httpx2.AsyncClient, stream: str, verb: str, messages: list[dict[str, Any]]) -> list[bool]:
    answer = await call(http, "POST", f"{stream}/{verb}", {"receipts": [one["receipt"] for one in messages]})
    return [result["ok"] for result in answer["results"]]


async def lag(http: httpx2.AsyncClient, stream: str) -> int:
    return sum(part["lag"] for part in (await call(http, "GET", f"{stream}/groups/g"))["lag"])


def bodies(messages: list[dict[str, Any]]) -> list[Any]:
    return [message["body"] for message in messages]


# ------------------------------------------------------------------------------------------------------------- groups


@BOTH
async def test_a_group_is_made_consumed_moved_and_deleted(http: httpx2.AsyncClient, mode: str) -> None:
    stream = await made(http)
    await publish(http, stream, *range(6))
    group = await call(http, "PUT", f"{stream}/groups/g", {"position": "earliest", "mode": mode})
    assert (group["mode"], await lag(http, stream)) == (mode, 6)
    assert [one["name"] for one in (await call(http, "GET", f"{stream}/groups"))["items"]] == ["g"]
    first = await take(http, stream, 4, wait_ms=20_000)
    assert bodies(first) == [0, 1, 2, 3] and {one["attempt"] for one in first} == {1}
    assert await settle(http, stream, "ack", first[:2]) == [True, True]
    assert await lag(http, stream) == 4
    assert await settle(http, stream, "nack", first[2:]) == [True, True]
    again = await take(http, stream, 10, wait_ms=20_000)
    assert bodies(again)[:2] == [2, 3] and again[0]["attempt"] == 2
    await call(http, "PUT", f"{stream}/groups/g", {"position": "earliest"})
    assert await settle(http, stream, "ack", again[:1]) == [False], "nothing from before the move means anything"
    assert bodies(await take(http, stream, 6, wait_ms=20_000))[:1] == [0]
    assert (await http.delete(f"/v1/queues/{stream}/groups/g")).status_code == 204
    assert (await http.get(f"/v1/queues/{stream}/groups/g")).status_code == 404


@pytest.mark.parametrize("transport", ["ws-json", "ws-msgpack", "sse"])
@BOTH
async def test_a_group_is_pushed_over_every_transport(
    gateway: PushqServer, http: httpx2.AsyncClient, transport: str, mode: str
) -> None:
    stream = await made(http)
    await call(http, "PUT", f"{stream}/groups/g", {"position": "earliest", "mode": mode})
    async with consuming(gateway, transport, stream, group="g", credit=100) as consumer:
        await publish(http, stream, *range(5))
        found = await consumer.take(5, seconds=WAIT_S)
        assert bodies(found) == list(range(5))
        assert await consumer.ack([one["receipt"] for one in found]) == [True] * 5
        await publish(http, stream, 5)
        assert bodies(await consumer.take(1, seconds=WAIT_S)) == [5]
    assert await lag(http, stream) == 1


async def test_two_groups_have_the_same_messages_each(http: httpx2.AsyncClient) -> None:
    stream = await made(http)
    await publish(http, stream, *range(3))
    for group in ("g", "h"):
        asked = {"max": 10, "wait_ms": 20_000, "group": group, "from": "earliest"}
        found = (await call(http, "POST", f"{stream}/receive", asked))["messages"]
        assert bodies(found) == [0, 1, 2]
        assert await settle(http, stream, "ack", found) == [True] * 3
    names = [one["name"] for one in (await call(http, "GET", f"{stream}/groups"))["items"]]
    assert names == ["g", "h"]


async def test_a_group_with_offsets_gives_a_partition_to_one_consumer_at_a_time(
    gateway: PushqServer, second: PushqServer, http: httpx2.AsyncClient
) -> None:
    stream = await made(http)
    await call(http, "PUT", f"{stream}/groups/g", {"position": "earliest", "mode": "offsets"})
    async with Socket.open(gateway) as one, Socket.open(gateway) as two, Socket.open(second) as far:
        for socket in (one, two, far):
            subscribed = await socket.ask(within_s=WAIT_S, type="subscribe", queue=stream, group="g", credit=4)
            assert subscribed["type"] == "ok" and subscribed["mode"] == "offsets", subscribed
        await publish(http, stream, *range(12))
        waiting = {asyncio.ensure_future(socket.messages(4, WAIT_S)): socket for socket in (one, two, far)}
        done, rest = await asyncio.wait(waiting, timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
        [first] = done
        assert bodies(first.result()) == [0, 1, 2, 3]
        await asyncio.sleep(0.3)
        assert not any(task.done() for task in rest), "the others wait while one has messages"
        assert await settle(http, stream, "ack", first.result()[3:]) == [True]
        assert await lag(http, stream) == 8, "an offset settles what is before it"
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)


async def test_what_a_cut_session_never_read_comes_before_anything_newer(
    gateway: PushqServer, http: httpx2.AsyncClient
) -> None:
    stream = await made(http, visibility_timeout_ms=1500)
    await call(http, "PUT", f"{stream}/groups/g", {"position": "earliest", "mode": "offsets"})
    async with WebSocket(gateway) as client:
        await client.subscribe(stream, credit=100, group="g")
        await publish(http, stream, *range(5))
        await client.next("deliver", seconds=WAIT_S)
        await client.cut()
    came: list[int] = []
    async with WebSocket(gateway, resume=client.session) as again:
        assert again.connected["resumed"]
        await again.subscribe(stream, credit=100, group="g")
        await publish(http, stream, *range(5, 10))
        while len(came) < 10:
            messages = (await again.next("deliver", seconds=WAIT_S))["messages"]
            came += bodies(messages)
            await again.ask(type="ack", queue=stream, receipts=[m["receipt"] for m in messages])
    assert came == list(range(10))


async def test_two_gateways_share_a_group_with_leases(
    gateway: PushqServer, second: PushqServer, http: httpx2.AsyncClient
) -> None:
    stream = await made(http)
    await call(http, "PUT", f"{stream}/groups/g", {"position": "earliest", "mode": "leases"})
    async with Socket.open(gateway) as here, Socket.open(second) as there:
        for socket in (here, there):
            subscribed = await socket.ask(within_s=WAIT_S, type="subscribe", queue=stream, group="g", credit=5)
            assert subscribed["type"] == "ok", subscribed
        await publish(http, stream, *range(10))
        shares = [await socket.messages(5, WAIT_S) for socket in (here, there)]
        assert sorted(bodies(shares[0]) + bodies(shares[1])) == list(range(10))
        # A receipt is good at either gateway.
        assert await settle(http, stream, "ack", shares[1]) == [True] * 5
        await publish(http, stream, *range(10, 15))
        assert sorted(bodies(await there.messages(5, WAIT_S))) == list(range(10, 15))


async def test_consumers_hear_that_their_group_was_deleted_elsewhere(
    gateway: PushqServer, second: PushqServer, http: httpx2.AsyncClient
) -> None:
    stream = await made(http)
    await call(http, "PUT", f"{stream}/groups/g", {})
    async with Socket.open(gateway) as socket:
        subscribed = await socket.ask(within_s=WAIT_S, type="subscribe", queue=stream, group="g", credit=5)
        assert subscribed["type"] == "ok", subscribed
        async with patient(second) as other:
            assert (await other.delete(f"/v1/queues/{stream}/groups/g")).status_code == 204
        ended = await socket.frame("ended", WAIT_S)
        assert ended["problem"]["code"] == "not-found"


async def test_a_group_hears_of_what_its_stream_dropped_before_it_came_so_far(
    gateway: PushqServer, http: httpx2.AsyncClient
) -> None:
    stream = await made(http, max_messages=5, overflow="drop_oldest")
    await call(http, "PUT", f"{stream}/groups/g", {"position": "earliest"})
    seqs = await publish(http, stream, *range(3))
    for number in range(3, 12):
        seqs += await publish(http, stream, number)
    async with Socket.open(gateway) as socket:
        subscribed = await socket.ask(within_s=WAIT_S, type="subscribe", queue=stream, group="g", credit=50)
        assert (subscribed["type"], subscribed["resume"]) == ("ok", "gap"), subscribed
        gap = await socket.frame("gap", WAIT_S)
        assert gap["from"] == 0 and gap["to"] >= seqs[6]
        assert bodies(await socket.messages(1, WAIT_S)) == [7]


async def test_messages_that_a_group_gives_up_are_dead_letters_of_the_stream(http: httpx2.AsyncClient) -> None:
    stream = await made(http, max_attempts=1)
    await call(http, "PUT", f"{stream}/groups/g", {"position": "earliest", "mode": "leases"})
    await publish(http, stream, "poison")
    assert await settle(http, stream, "nack", await take(http, stream, wait_ms=20_000)) == [True]
    asked = {"max": 1, "wait_ms": 20_000}
    [dead] = (await call(http, "POST", f"{stream}.dead/receive", asked))["messages"]
    assert (dead["body"], dead["dead_letter"]["from"]) == ("poison", stream)


async def test_a_stream_is_deleted_with_its_groups(gateway: PushqServer, http: httpx2.AsyncClient) -> None:
    stream = await made(http)
    async with Socket.open(gateway) as socket:
        subscribed = await socket.ask(within_s=WAIT_S, type="subscribe", queue=stream, group="g", credit=5)
        assert subscribed["type"] == "ok", subscribed
        stats = (await call(http, "GET", stream))["stats"]
        assert stats["consumers"] == 1
        answer = await http.delete(f"/v1/queues/{stream}", params={"confirm": stream, "discard": "true"})
        assert answer.status_code == 200, answer.text
        ended = await socket.frame("ended", WAIT_S)
        assert ended["problem"]["code"] == "queue-not-found"


async def test_groups_are_among_the_series_and_the_connections(gateway: PushqServer, http: httpx2.AsyncClient) -> None:
    stream = await made(http)
    await call(http, "PUT", f"{stream}/groups/g", {"position": "earliest"})
    await publish(http, stream, 1, 2)
    async with Socket.open(gateway) as socket:
        subscribed = await socket.ask(within_s=WAIT_S, type="subscribe", queue=stream, group="g", credit=1)
        assert subscribed["type"] == "ok", subscribed
        found = (await http.get("/metrics")).text
        assert f'pushq_group_lag_messages{{group="g",queue="{stream}",tenant="default"}} 2.0' in found
        waiting = asyncio.ensure_future(take(http, stream, wait_ms=5_000))
        await asyncio.sleep(0.1)
        reads = [
            (one["queue"], one["group"])
            for item in (await http.get("/v1/connections")).raise_for_status().json()["items"]
            for one in item["subscriptions"]
        ]
        assert (stream, "g") in reads
        waiting.cancel()


# ------------------------------------------------------------------------------------------------------------- ranges


@pytest.mark.parametrize("encrypted", [True, False])
async def test_a_stream_is_read_by_offset_page_by_page(http: httpx2.AsyncClient, encrypted: bool) -> None:
    stream = await made(http, partitions=2, encrypted=encrypted)
    for first in range(0, 300, 100):
        messages = [{"body": n, "key": f"k{n % 7}"} for n in range(first, first + 100)]
        await call(http, "POST", f"{stream}/messages", {"messages": messages})
    found = await call(http, "GET", f"{stream}/offsets")
    assert [row["partition"] for row in found["partitions"]] == [0, 1]
    read: list[int] = []
    for row in found["partitions"]:
        at = row["first"]
        while at < row["next"]:
            answer = await http.get(
                f"/v1/queues/{stream}/partitions/{row['partition']}/messages", params={"from": at, "limit": 60}
            )
            page = answer.raise_for_status().json()
            assert page["next"] > at and len(page["messages"]) <= 60
            read += bodies(page["messages"])
            at = page["next"]
    assert sorted(read) == list(range(300))
    answer = await http.get(f"/v1/queues/{stream}/partitions/7/messages")
    assert answer.json()["errors"][0]["pointer"] == "/path/partition"


# ------------------------------------------------------------------------------------------------------------ crashes


@BOTH
async def test_a_killed_backend_loses_nothing_of_a_group(tmp_path: Path, mode: str) -> None:
    (tmp_path / "b").mkdir()
    with Backend(tmp_path / "b") as backend, PushqServer(tmp_path / "g", env=backend.gateway_env) as gateway:
        async with patient(gateway) as http, Socket.open(gateway) as socket:
            stream = await made(http)
            await call(http, "PUT", f"{stream}/groups/g", {"position": "earliest", "mode": mode})
            subscribed = await socket.ask(within_s=WAIT_S, type="subscribe", queue=stream, group="g", credit=20)
            assert subscribed["type"] == "ok", subscribed
            confirmed: set[int] = set()
            seen: list[int] = []
            acked: set[int] = set()
            stop = asyncio.Event()

            async def produce() -> None:
                for number in itertools.count():
                    if stop.is_set():
                        return
                    answer = await http.post(f"/v1/queues/{stream}/messages", json={"messages": [{"body": number}]})
                    if answer.status_code == 201:
                        confirmed.add(number)
                    else:
                        assert answer.json()["code"] in (
                            "outcome-unknown",
                            "unavailable",
                            "overloaded",
                            "not-durable",
                        ), answer.text

            async def consume() -> None:
                while True:
                    message = (await socket.frame("message", WAIT_S))["message"]
                    assert message["body"] not in acked, "it was acked, and that was confirmed"
                    seen.append(message["body"])
                    receipts = [message["receipt"]]
                    answer = await socket.ask(within_s=WAIT_S, type="ack", queue=stream, receipts=receipts)
                    if answer["type"] == "ok" and answer["results"][0]["ok"]:
                        acked.add(message["body"])

            working = [asyncio.create_task(produce()), asyncio.create_task(consume())]

            async def until(is_so: Callable[[], bool]) -> None:
                await eventually(is_so, within_s=WAIT_S, beside=working)

            try:
                await until(lambda: len(acked) > 50)
                await anyio.to_thread.run_sync(backend.kill)
                await anyio.to_thread.run_sync(backend.start)
                reached = len(acked) + 50
                await until(lambda: len(acked) > reached)
                stop.set()
                await working[0]
                await until(lambda: confirmed <= set(seen))
                async with asyncio.timeout(WAIT_S):
                    while await lag(http, stream):  # noqa: ASYNC110 - an ack is on its way
                        await asyncio.sleep(0.1)
            finally:
                stop.set()
                for task in working:
                    task.cancel()
                await asyncio.gather(*working, return_exceptions=True)
            if mode == "offsets":
                assert list(dict.fromkeys(seen)) == sorted(set(seen)), "new ones come in their order"


# ------------------------------------------------------------------------------------------------------------ readers


@pytest.mark.parametrize("transport", ["ws-json", "ws-msgpack", "sse"])
async def test_a_stream_is_read_without_a_group_from_the_beginning_and_on(
    gateway: PushqServer, second: PushqServer, http: httpx2.AsyncClient, transport: str
) -> None:
    stream = await made(http)
    for first in range(0, 600, 200):
        await publish(http, stream, *range(first, first + 200))
    async with (
        consuming(gateway, transport, stream, **{"from": "earliest"}) as reader,
        consuming(second, transport, stream) as late,
    ):
        assert bodies(await reader.take(600, seconds=WAIT_S)) == list(range(600))
        await publish(http, stream, *range(600, 700))
        assert bodies(await reader.take(100, seconds=WAIT_S)) == list(range(600, 700))
        assert bodies(await late.take(100, seconds=WAIT_S)) == list(range(600, 700)), "it began at the end"
    assert (await call(http, "GET", stream))["stats"]["ready"] == 700


async def test_a_reader_comes_back_by_its_cursor_and_hears_of_what_is_gone(http: httpx2.AsyncClient) -> None:
    stream = await made(http, max_messages=5, overflow="drop_oldest")
    await publish(http, stream, 0)
    first = await call(http, "POST", f"{stream}/receive", {"max": 10, "from": "earliest"})
    assert (bodies(first["messages"]), first["resume"]) == ([0], "complete")
    waiting = {"max": 10, "wait_ms": 30_000, "from": {"cursor": first["cursor"]}}
    poll = asyncio.ensure_future(call(http, "POST", f"{stream}/receive", waiting))
    await asyncio.sleep(0.1)
    await publish(http, stream, 1)
    following = await poll
    assert (bodies(following["messages"]), following["resume"]) == ([1], "complete")
    for number in range(2, 12):
        await publish(http, stream, number)
    again = await call(http, "POST", f"{stream}/receive", {"max": 10, "from": {"cursor": following["cursor"]}})
    assert (bodies(again["messages"]), again["resume"]) == ([7, 8, 9, 10, 11], "gap")


async def test_readers_go_on_after_their_backend_was_killed(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    with Backend(tmp_path / "b") as backend, PushqServer(tmp_path / "g", env=backend.gateway_env) as gateway:
        async with patient(gateway) as http:
            stream = await made(http, partitions=2)
            messages = [{"body": n, "key": f"k{n % 5}"} for n in range(200)]
            await call(http, "POST", f"{stream}/messages", {"messages": messages[:100]})
            async with consuming(gateway, "ws-json", stream, **{"from": "earliest"}) as reader:
                found = bodies(await reader.take(100, seconds=WAIT_S))
                await anyio.to_thread.run_sync(backend.kill)
                await anyio.to_thread.run_sync(backend.start)
                await call(http, "POST", f"{stream}/messages", {"messages": messages[100:]})
                found += bodies(await reader.take(100, seconds=WAIT_S))
            assert sorted(found) == list(range(200))
            for key in range(5):
                assert [n for n in found if n % 5 == key] == list(range(key, 200, 5)), "a key's messages in order"
