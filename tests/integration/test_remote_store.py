"""A gateway that keeps no messages itself: its queues are with a backend in another process, over mutual TLS."""

from __future__ import annotations

import asyncio
import itertools
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio.to_thread
import httpx2
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidMessage

from tests.support.backend import Backend
from tests.support.consumers import Socket, call, http_client
from tests.support.patience import eventually
from tests.support.server import PushqServer

pytestmark = pytest.mark.anyio

WAIT_S = 90.0
"""Far above what anything here takes: these machines are busy."""
_names = itertools.count(1)


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    with Backend(tmp_path_factory.mktemp("backend")) as backend:
        yield backend


@pytest.fixture(scope="module")
def gateway(backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PushqServer]:
    with PushqServer(tmp_path_factory.mktemp("gateway") / "data", env=backend.gateway_env) as gateway:
        yield gateway


def patient(server: PushqServer) -> httpx2.AsyncClient:
    client = http_client(server)
    client.timeout = httpx2.Timeout(WAIT_S)
    return client


@pytest.fixture
async def http(gateway: PushqServer) -> AsyncIterator[httpx2.AsyncClient]:
    async with patient(gateway) as http:
        yield http


async def made(http: httpx2.AsyncClient, **config: Any) -> str:
    name = f"far{next(_names)}"
    await call(http, "PUT", name, config)
    return name


async def publish(http: httpx2.AsyncClient, queue: str, *bodies: Any, **more: Any) -> list[dict[str, Any]]:
    messages = [{"body": body, **more} for body in bodies]
    rows: list[dict[str, Any]] = (await call(http, "POST", f"{queue}/messages", {"messages": messages}))["messages"]
    return rows


async def receive(http: httpx2.AsyncClient, queue: str, most: int = 10, wait_ms: int = 0) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await call(http, "POST", f"{queue}/receive", {"max": most, "wait_ms": wait_ms}))[
        "messages"
    ]
    return found


async def stats(http: httpx2.AsyncClient, queue: str) -> dict[str, int]:
    found: dict[str, int] = (await call(http, "GET", queue))["stats"]
    return found


async def settle(http: httpx2.AsyncClient, queue: str, verb: str, *receipts: str, **more: Any) -> list[bool]:
    answer = await call(http, "POST", f"{queue}/{verb}", {"receipts": list(receipts), **more})
    return [result["ok"] for result in answer["results"]]


# ------------------------------------------------------------------------------------------------------- one gateway


async def test_a_message_goes_to_the_backend_and_comes_back_encrypted_on_the_way(
    http: httpx2.AsyncClient, backend: Backend
) -> None:
    queue = await made(http)
    await publish(http, queue, "a-body-that-nobody-else-has")
    assert (await stats(http, queue))["ready"] == 1
    [message] = await receive(http, queue)
    assert message["body"] == "a-body-that-nobody-else-has"
    assert message["attempt"] == 1
    assert (await stats(http, queue))["in_flight"] == 1
    assert await settle(http, queue, "ack", message["receipt"]) == [True]
    assert await settle(http, queue, "ack", "no-receipt") == [False]
    assert (await stats(http, queue))["acked_total"] == 1
    kept = b"".join(file.read_bytes() for file in (backend.folder / "data0").iterdir() if file.is_file())
    assert b"a-body-that-nobody-else-has" not in kept


async def test_a_queue_is_encrypted_until_every_gateway_has_heard_that_it_is_no_more(
    http: httpx2.AsyncClient, backend: Backend
) -> None:
    queue = await made(http)
    etag = (await http.get(f"/v1/queues/{queue}")).headers["etag"]
    changed = await http.patch(f"/v1/queues/{queue}", json={"encrypted": False}, headers={"If-Match": etag})
    assert changed.json()["config"]["encrypted"] is False
    await publish(http, queue, "said-just-after")
    assert not any(b"said-just-after" in file.read_bytes() for file in backend.folder.rglob("*.mdb"))
    (message,) = await receive(http, queue, wait_ms=20_000)
    assert message["body"] == "said-just-after"


async def test_a_receive_that_does_not_wait_is_answered_at_once_when_there_is_nothing(http: httpx2.AsyncClient) -> None:
    queue = await made(http)
    async with asyncio.timeout(WAIT_S):
        assert await receive(http, queue) == []


async def test_a_nack_brings_a_message_back_with_its_attempt_counted(http: httpx2.AsyncClient) -> None:
    queue = await made(http)
    await publish(http, queue, 1)
    [message] = await receive(http, queue)
    assert await settle(http, queue, "nack", message["receipt"], delay_ms=0) == [True]
    [again] = await receive(http, queue, wait_ms=20_000)
    assert again["attempt"] == 2
    assert await settle(http, queue, "extend", again["receipt"], visibility_timeout_ms=60_000) == [True]


async def test_a_lease_that_runs_out_is_told_and_comes_again(gateway: PushqServer, http: httpx2.AsyncClient) -> None:
    queue = await made(http, visibility_timeout_ms=1000)
    async with Socket.open(gateway) as socket:
        subscribed = await socket.ask(within_s=WAIT_S, type="subscribe", queue=queue, credit=1)
        assert subscribed["type"] == "ok", subscribed
        await publish(http, queue, 1)
        async with asyncio.timeout(WAIT_S):
            first = (await socket.messages(1, WAIT_S))[0]
            again = (await socket.messages(1, WAIT_S))[0]
    assert (first["attempt"], again["attempt"]) == (1, 2)


async def test_who_has_read_that_a_subscription_ended_finds_what_it_held(
    gateway: PushqServer, http: httpx2.AsyncClient
) -> None:
    queue = await made(http, max_attempts=100)
    await publish(http, queue, *range(10))
    async with Socket.open(gateway) as socket:
        for _ in range(5):
            subscribed = await socket.ask(within_s=WAIT_S, type="subscribe", queue=queue, credit=10)
            async with asyncio.timeout(WAIT_S):
                assert len(await socket.messages(10, WAIT_S)) == 10
            ended = await socket.ask(within_s=WAIT_S, type="unsubscribe", sub=subscribed["sub"])
            assert ended["type"] == "ok"
            stats = (await call(http, "GET", queue))["stats"]
            assert (stats["ready"], stats["in_flight"]) == (10, 0)


async def test_an_ack_counts_though_the_subscription_ends_right_behind_it(
    gateway: PushqServer, http: httpx2.AsyncClient
) -> None:
    queue = await made(http, max_attempts=1)
    await publish(http, queue, *range(10))
    async with Socket.open(gateway) as socket:
        subscribed = await socket.ask(within_s=WAIT_S, type="subscribe", queue=queue, credit=10)
        async with asyncio.timeout(WAIT_S):
            held = [message["receipt"] for message in await socket.messages(10, WAIT_S)]
        frames = [{"type": "ack", "queue": queue, "receipts": held}, {"type": "unsubscribe", "sub": subscribed["sub"]}]
        await socket.send(frames)
        again = await socket.ask(within_s=WAIT_S, type="ack", queue=queue, receipts=held)
    assert all(row["ok"] for row in again["results"])
    assert (await call(http, "GET", queue))["stats"]["acked_total"] == 10


async def test_an_ack_that_publishes_counts_though_the_subscription_ends_right_behind_it(
    gateway: PushqServer, http: httpx2.AsyncClient
) -> None:
    """What was given back overtook it on the way to the backend."""
    queue = await made(http, max_attempts=1)
    await publish(http, queue, *range(10))
    async with Socket.open(gateway) as socket:
        subscribed = await socket.ask(within_s=WAIT_S, type="subscribe", queue=queue, credit=10)
        async with asyncio.timeout(WAIT_S):
            held = [message["receipt"] for message in await socket.messages(10, WAIT_S)]
        outputs = [{"queue": queue, "messages": [{"body": "out"}]}]
        ack = {"type": "ack", "id": "a", "queue": queue, "receipts": held[:9], "publish": outputs}
        await socket.send([ack, {"type": "unsubscribe", "id": "u", "sub": subscribed["sub"]}])
        assert [row["ok"] for row in (await socket.frame("ok", WAIT_S))["results"]] == [True] * 9
        assert (await socket.frame("ok", WAIT_S))["id"] == "u"
    stats = (await call(http, "GET", queue))["stats"]
    assert (stats["acked_total"], stats["ready"], stats["dead"]) == (9, 1, 1)


async def test_what_is_acked_elsewhere_gives_the_consumer_its_credit_back(
    gateway: PushqServer, http: httpx2.AsyncClient
) -> None:
    queue = await made(http)
    async with Socket.open(gateway) as socket:
        subscribed = await socket.ask(within_s=WAIT_S, type="subscribe", queue=queue, credit=1)
        assert subscribed["type"] == "ok", subscribed
        await publish(http, queue, 1, 2)
        async with asyncio.timeout(WAIT_S):
            first = (await socket.messages(1, WAIT_S))[0]
            assert await settle(http, queue, "ack", first["receipt"]) == [True]
            second = (await socket.messages(1, WAIT_S))[0]
    assert [first["body"], second["body"]] == [1, 2]


async def test_messages_reach_their_dead_letter_queue_and_leave_it(http: httpx2.AsyncClient) -> None:
    queue = await made(http, max_attempts=1)
    await publish(http, queue, "bad")
    [message] = await receive(http, queue)
    await settle(http, queue, "nack", message["receipt"], delay_ms=0)
    [dead] = await receive(http, f"{queue}.dead", wait_ms=20_000)
    assert dead["body"] == "bad"
    assert await settle(http, f"{queue}.dead", "ack", dead["receipt"]) == [True]


async def test_a_producers_number_comes_with_its_message_and_with_one_that_came_too_late(
    gateway: PushqServer, http: httpx2.AsyncClient
) -> None:
    queue = await made(http, sequencing="producer", sort_window_ms=0)
    for number in (1, 3, 2):
        await publish(http, queue, number, producer="p", producer_seq=number)
        if number != 2:
            [message] = await receive(http, queue, wait_ms=20_000)
            assert (message["body"], message["producer"], message["producer_seq"]) == (number, "p", number)
    async with Socket.open(gateway) as socket:
        await socket.ask(within_s=WAIT_S, type="subscribe", queue=f"{queue}.late", credit=1)
        late = (await socket.messages(1, WAIT_S))[0]
        # While it is held: when the connection has ended, it goes back.
        shown = (await http.get(f"/v1/queues/{queue}.late/messages", params={"state": "in_flight"})).json()["items"]
    assert (late["body"], late["producer"], late["producer_seq"], late["ordering"]["late"]) == (2, "p", 2, True)
    assert [(item["producer"], item["producer_seq"]) for item in shown] == [("p", 2)]


async def test_an_id_is_taken_once(http: httpx2.AsyncClient) -> None:
    queue = await made(http, dedupe="id")
    [first] = await publish(http, queue, 1, id="same")
    [repeat] = await publish(http, queue, 1, id="same")
    assert (first["duplicate"], repeat["duplicate"]) == (False, True)
    assert (await stats(http, queue))["ready"] == 1


async def test_at_most_once_is_settled_before_it_is_sent(http: httpx2.AsyncClient) -> None:
    queue = await made(http, delivery="at_most_once")
    await publish(http, queue, 1)
    [message] = await receive(http, queue, wait_ms=20_000)
    assert message["receipt"] is None
    assert (await stats(http, queue))["ready"] == 0


# ------------------------------------------------------------------------------------------- beside the messages


async def test_a_rule_sees_queues_that_are_elsewhere(http: httpx2.AsyncClient) -> None:
    queue = await made(http)
    body = {"name": "deep", "queue": queue, "kind": "depth", "limit": 2}
    rule = await http.post("/v1/alert-rules", json=body)
    assert rule.status_code == 201, rule.text
    await publish(http, queue, 1, 2, 3)
    [alert] = await _awaited(lambda: _firing(http, queue))
    assert alert["value"] == 3
    found = await http.get("/metrics")
    assert found.status_code == 200


async def test_the_console_shows_queues_that_are_elsewhere(http: httpx2.AsyncClient, gateway: PushqServer) -> None:
    queue = await made(http)
    await publish(http, queue, "shown", "shown too")
    async with httpx2.AsyncClient(base_url=gateway.url, timeout=WAIT_S, trust_env=False) as browser:
        refused = await browser.get("/console/queues")
        assert refused.status_code == 303
        origin = {"Origin": gateway.url}
        signed_in = await browser.post("/console/login", data={"credential": gateway.key}, headers=origin)
        assert signed_in.status_code == 303, signed_in.text
        pages = (
            "",
            "/queues",
            f"/queues/{queue}",
            f"/queues/{queue}/messages",
            "/alerts",
            "/alerts/rules",
            "/dashboards",
        )
        for page in pages:
            answer = await browser.get(f"/console{page}")
            assert answer.status_code == 200, f"{page}: {answer.status_code} {answer.text[-2000:]}"
            assert page != "/queues" or queue in answer.text


# ------------------------------------------------------------------------------------------------------- several


@pytest.fixture(scope="module")
def second(gateway: PushqServer, backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PushqServer]:
    data = tmp_path_factory.mktemp("second")
    data.chmod(0o700)
    (data / "master.key").write_bytes((gateway.data / "master.key").read_bytes())
    (data / "master.key").chmod(0o600)
    with PushqServer(data, env=backend.gateway_env) as second:
        yield second


@pytest.fixture
async def other(gateway: PushqServer, second: PushqServer) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the second gateway, with the first one's key."""
    async with httpx2.AsyncClient(base_url=second.url, headers=gateway.headers, timeout=WAIT_S) as other:
        yield other


async def test_two_gateways_share_a_queue_and_either_settles_what_the_other_delivered(
    http: httpx2.AsyncClient, other: httpx2.AsyncClient
) -> None:
    queue = await made(http)
    await publish(http, queue, "from the first")
    [message] = await receive(other, queue, wait_ms=20_000)
    assert message["body"] == "from the first"
    assert await settle(http, queue, "ack", message["receipt"]) == [True]
    # A queue that the second one made, under a key that the first one never had.
    await call(other, "PUT", f"{queue}b", {})
    await publish(other, f"{queue}b", "from the second")
    [message] = await receive(http, f"{queue}b", wait_ms=20_000)
    assert message["body"] == "from the second"
    # A rule of alerts is known to both, with whatever was changed at either.
    made_rule = await http.post("/v1/alert-rules", json={"name": "both", "queue": queue, "kind": "depth", "limit": 9})
    assert made_rule.status_code == 201, made_rule.text
    path = f"/v1/alert-rules/{made_rule.json()['id']}"
    await _awaited(lambda: _has_status(other, path, 200))
    assert (await other.delete(path)).status_code == 204
    await _awaited(lambda: _has_status(http, path, 404))


async def test_numbers_of_a_queue_hold_what_another_gateway_has_answered_already(
    http: httpx2.AsyncClient, other: httpx2.AsyncClient
) -> None:
    queue = await made(http)
    for count in range(1, 9):
        await publish(http, queue, count)
        assert (await stats(other, queue))["ready"] == count


async def test_a_ticket_is_good_once_at_whichever_gateway(http: httpx2.AsyncClient, other: httpx2.AsyncClient) -> None:
    queue = await made(http)
    answer = await http.post("/v1/tickets", json={"queue": queue})
    path = f"/v1/queues/{queue}/events?ticket={answer.json()['ticket']}"
    del http.headers["Authorization"], other.headers["Authorization"]
    assert [await _opened(client, path) for client in (other, other, http)] == [200, 401, 401]


async def _opened(client: httpx2.AsyncClient, path: str) -> int:
    async with client.stream("GET", path) as events:
        return events.status_code


async def test_who_shows_no_certificate_is_not_let_in(backend: Backend) -> None:
    tls = ssl.create_default_context(cafile=str(backend.folder / "ca" / "ca.crt"))
    with pytest.raises((ConnectionClosed, InvalidMessage, OSError)):
        async with connect(f"wss://127.0.0.1:{backend.port}", ssl=tls, proxy=None) as connection:
            await connection.recv()


# ------------------------------------------------------------------------------------------------------- a crash


async def test_a_killed_backend_loses_nothing_confirmed_and_consumers_go_on(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    with Backend(tmp_path / "b") as backend, PushqServer(tmp_path / "g", env=backend.gateway_env) as gateway:
        async with patient(gateway) as http, Socket.open(gateway) as socket:
            queue = await made(http)
            subscribed = await socket.ask(within_s=WAIT_S, type="subscribe", queue=queue, credit=50)
            assert subscribed["type"] == "ok", subscribed
            confirmed: set[int] = set()
            seen: set[int] = set()
            acked: set[int] = set()
            stop = asyncio.Event()

            async def produce() -> None:
                for number in itertools.count():
                    if stop.is_set():
                        return
                    answer = await http.post(f"/v1/queues/{queue}/messages", json={"messages": [{"body": number}]})
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
                    fresh = [(await socket.frame("message", WAIT_S))["message"]]
                    seen.update(message["body"] for message in fresh)
                    await socket.send({"type": "ack", "queue": queue, "receipts": [fresh[0]["receipt"]]})
                    acked.update(message["body"] for message in fresh)

            consumer = asyncio.create_task(consume())
            producers = [asyncio.create_task(produce()) for _ in range(1)]
            try:
                await eventually(lambda: len(acked) > 100, within_s=WAIT_S, beside=[*producers, consumer])
                for _ in range(2):
                    await anyio.to_thread.run_sync(backend.kill)
                    await anyio.to_thread.run_sync(backend.start)
                    reached = len(confirmed) + 100
                    await eventually(
                        lambda reached=reached: len(confirmed) >= reached,
                        within_s=WAIT_S,
                        beside=[*producers, consumer],
                    )
                stop.set()
                await asyncio.gather(*producers)
                await eventually(lambda: confirmed <= seen, within_s=WAIT_S, beside=[consumer])
            finally:
                stop.set()
                consumer.cancel()
                await asyncio.gather(consumer, *producers, return_exceptions=True)


async def _awaited(look: Callable[[], Awaitable[Any]]) -> Any:
    """What `look` finds, once it finds something."""
    async with asyncio.timeout(WAIT_S):
        while True:
            if found := await look():
                return found
            await asyncio.sleep(0.2)


async def _firing(http: httpx2.AsyncClient, queue: str) -> list[dict[str, Any]]:
    items = (await http.get("/v1/alerts")).raise_for_status().json()["items"]
    return [one for one in items if one["subject"] == queue and one["state"] == "firing"]


async def _has_status(http: httpx2.AsyncClient, path: str, status: int) -> bool:
    return (await http.get(path)).status_code == status
