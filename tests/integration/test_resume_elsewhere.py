"""Sessions that go on at another gateway than the one that had them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.backend import Backend
from tests.support.patience import eventually
from tests.support.server import PushqServer
from tests.support.ws import Client, create_queue

pytestmark = pytest.mark.anyio

RESUME_MS = 5000
_numbers = count(1)
StartGateway = Callable[[], PushqServer]


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    with Backend(tmp_path_factory.mktemp("backend")) as backend:
        yield backend


@pytest.fixture(scope="module")
def first(backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PushqServer]:
    with PushqServer(tmp_path_factory.mktemp("first") / "data", env=backend.gateway_env) as first:
        yield first


def another(backend: Backend, first: PushqServer, data: Path) -> PushqServer:
    """A further gateway of the same backend, with the same keys."""
    data.mkdir(mode=0o700)
    for name in ("master.key", "admin.key"):
        (data / name).write_bytes((first.data / name).read_bytes())
        (data / name).chmod(0o600)
    return PushqServer(data, env=backend.gateway_env)


@pytest.fixture(scope="module")
def second(backend: Backend, first: PushqServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PushqServer]:
    with another(backend, first, tmp_path_factory.mktemp("second") / "data") as second:
        yield second


@pytest.fixture
def queue(first: PushqServer) -> str:
    name = f"q{next(_numbers)}"
    create_queue(first, name)
    return name


async def acked(client: Client, queue: str, messages: list[dict[str, Any]]) -> list[bool]:
    answer = await client.ask(type="ack", queue=queue, receipts=[message["receipt"] for message in messages])
    return [row["ok"] for row in answer["results"]]


async def test_a_cut_session_goes_on_at_another_gateway(first: PushqServer, second: PushqServer, queue: str) -> None:
    async with Client(first) as client:
        await client.publish(queue, *range(4))
        await client.subscribe(queue, credit=2)
        held = await client.messages(2)
        await client.cut()
    async with Client(second, resume=client.session) as again, Client(second) as other:
        assert again.connected["resumed"] and again.session == client.session
        await other.subscribe(queue, credit=10)
        assert [m["body"] for m in await other.messages(2)] == [2, 3]
        await again.subscribe(queue, credit=2)
        assert await again.is_quiet(), "its credit is used up by what it still holds"
        assert await acked(again, queue, held) == [True, True]
        assert await other.is_quiet(), "nothing was redelivered"


async def test_leases_that_came_along_return_when_the_session_ends(
    first: PushqServer, second: PushqServer, queue: str
) -> None:
    async with Client(first) as client:
        await client.publish(queue, *range(3))
        await client.subscribe(queue, credit=3)
        await client.messages(3)
        await client.cut()
    async with Client(second, resume=client.session) as again:
        await again.subscribe(queue, credit=3)
    async with Client(first) as other:
        await other.subscribe(queue, credit=3)
        assert [(m["body"], m["attempt"]) for m in await other.messages(3)] == [(0, 2), (1, 2), (2, 2)]


async def test_a_session_whose_old_socket_still_seems_alive_is_taken_over(
    first: PushqServer, second: PushqServer, queue: str
) -> None:
    async with Client(first) as client:
        await client.publish(queue, *range(4))
        await client.subscribe(queue, credit=2)
        held = await client.messages(2)
        async with Client(second, resume=client.session) as again:
            assert again.connected["resumed"]
            assert (await client.next("error"))["problem"]["code"] == "conflict"
            await client.socket.wait_closed()
            assert client.socket.close_code == 4509
            await again.subscribe(queue, credit=4)
            assert [m["body"] for m in await again.messages(2)] == [2, 3]
            assert await acked(again, queue, held) == [True, True]


async def test_two_sessions_that_share_a_lease_part(first: PushqServer, second: PushqServer, queue: str) -> None:
    """A backend leases the messages of one publish to a gateway together; only one session's share moves."""
    async with Client(first) as stays, Client(first) as client:
        await stays.subscribe(queue, credit=2)
        await client.subscribe(queue, credit=2)
        await client.publish(queue, *range(4))
        staying, moving = await stays.messages(2), await client.messages(2)
        await client.cut()
        async with Client(second, resume=client.session) as again:
            await again.subscribe(queue, credit=2)
            assert await acked(stays, queue, staying[:1]) == [True]
            assert await acked(again, queue, moving[:1]) == [True]
        returned = await stays.messages(1)
        assert [(m["body"], m["attempt"]) for m in returned] == [(moving[1]["body"], 2)]
        assert await acked(stays, queue, [*staying[1:], *returned]) == [True, True]


async def test_a_session_goes_there_and_back(first: PushqServer, second: PushqServer, queue: str) -> None:
    async with Client(first) as client:
        await client.publish(queue, 0, 1)
        await client.subscribe(queue, credit=2)
        held = await client.messages(2)
        await client.cut()
    for at in (second, first, second):
        async with Client(at, resume=client.session) as again:
            assert again.connected["resumed"]
            await again.subscribe(queue, credit=2)
            assert await again.is_quiet()
            await again.cut()
    async with Client(first, resume=client.session) as last:
        await last.subscribe(queue, credit=2)
        assert await acked(last, queue, held) == [True, True]


@pytest.mark.parametrize("mode", ["leases", "offsets"])
async def test_a_groups_consumer_goes_on_elsewhere(first: PushqServer, second: PushqServer, mode: str) -> None:
    stream = f"s{next(_numbers)}"
    create_queue(first, stream, kind="stream")
    wanted = {"position": "earliest", "mode": mode}
    made = httpx2.put(f"{first.url}/v1/queues/{stream}/groups/g", json=wanted, headers=first.headers)
    assert made.status_code == 201
    async with Client(first) as client:
        await client.publish(stream, *range(4))
        await client.subscribe(stream, credit=2, group="g")
        held = await client.messages(2)
        await client.cut()
    async with Client(second, resume=client.session) as again:
        assert again.connected["resumed"]
        await again.subscribe(stream, credit=2, group="g")
        assert await again.is_quiet()
        assert await acked(again, stream, held) == [True, True]
        assert [m["body"] for m in await again.messages(2)] == [2, 3]


async def test_what_it_lost_before_it_came_is_told(first: PushqServer, second: PushqServer) -> None:
    queue = f"q{next(_numbers)}"
    create_queue(first, queue, visibility_timeout_ms=1000)
    async with Client(first) as client:
        await client.publish(queue, 0, 1)
        await client.subscribe(queue, credit=2)
        held = await client.messages(2)
        await client.cut()
    async with Client(first) as other:
        await other.subscribe(queue, credit=2)
        await other.messages(2)
        async with Client(second, resume=client.session) as again:
            subscribed = await again.subscribe(queue, credit=2)
            lost = await again.next("lost")
            assert (lost["sub"], lost["receipts"]) == (subscribed["sub"], [m["receipt"] for m in held])


async def test_a_client_that_does_not_subscribe_again_gives_its_messages_back(
    first: PushqServer, second: PushqServer, queue: str
) -> None:
    async with Client(first) as client:
        await client.publish(queue, 0)
        await client.subscribe(queue, credit=1)
        await client.messages(1)
        await client.cut()
    async with Client(second, resume=client.session) as again, Client(first) as other:
        assert again.connected["resumed"]
        await other.subscribe(queue, credit=1)
        assert [m["attempt"] for m in await other.messages(1)] == [2]


async def test_a_session_that_is_nowhere_is_a_new_one(first: PushqServer, second: PushqServer) -> None:
    async with Client(first) as client:
        pass
    for session in (client.session, "nonsense", "a.b", ""):
        async with Client(second, resume=session) as again:
            assert not again.connected["resumed"] and again.session != session


async def test_another_keys_session_does_not_move(first: PushqServer, second: PushqServer, queue: str) -> None:
    made = httpx2.post(f"{first.url}/v1/keys", json={"name": "other", "scopes": ["consume:*"]}, headers=first.headers)
    async with Client(first) as client:
        await client.publish(queue, 0)
        await client.subscribe(queue, credit=1)
        held = await client.messages(1)
        stranger = Client(second, resume=client.session, key=made.json()["key"])
        async with stranger:
            assert not stranger.connected["resumed"]
        assert await acked(client, queue, held) == [True], "its own socket is open"


async def test_the_sessions_of_a_gateway_that_stops_go_on_elsewhere(
    backend: Backend, first: PushqServer, second: PushqServer, queue: str, tmp_path: Path
) -> None:
    with another(backend, first, tmp_path / "third") as third:
        async with Client(third) as client:
            await client.publish(queue, *range(4))
            await client.subscribe(queue, credit=2)
            held = await client.messages(2)
            third.stop()
    assert [frame["code"] for frame in client.frames if frame["type"] == "bye"] in ([], [4000])
    async with Client(second, resume=client.session) as again, Client(first) as other:
        assert again.connected["resumed"]
        await other.subscribe(queue, credit=10)
        assert [(m["body"], m["attempt"]) for m in await other.messages(2)] == [(2, 1), (3, 1)]
        await again.subscribe(queue, credit=2)
        assert await again.is_quiet() and await other.is_quiet()
        assert await acked(again, queue, held) == [True, True]


async def test_stored_leases_that_came_along_outlive_a_crash_of_the_backend(
    backend: Backend, first: PushqServer, second: PushqServer
) -> None:
    queue = f"q{next(_numbers)}"
    create_queue(first, queue, lease_mode="replicated")
    async with Client(first) as client:
        await client.publish(queue, *range(2))
        await client.subscribe(queue, credit=2)
        held = await client.messages(2)
        await client.cut()
    async with Client(second, resume=client.session) as again:
        await again.subscribe(queue, credit=2)
        backend.kill()
        backend.start()
        await eventually(lambda: httpx2.get(f"{second.url}/readyz").status_code == 200)
        assert await acked(again, queue, held) == [True, True]


async def test_when_a_gateway_is_killed_answers_and_what_is_extended_elsewhere_stay_leased(
    backend: Backend, first: PushqServer, second: PushqServer, queue: str, tmp_path: Path
) -> None:
    """What else a socket had comes again."""
    url = f"/v1/queues/{queue}"
    with another(backend, first, tmp_path / "third") as third:
        async with Client(third) as client:
            await client.publish(queue, "polled", "works on", "forgotten")
            answer = httpx2.post(f"{third.url}{url}/receive", json={"max": 1}, headers=third.headers)
            polled = answer.json()["messages"]
            await client.subscribe(queue, credit=2)
            pushed = await client.messages(2)
            third.kill()
    async with Client(second, resume=client.session) as again, Client(second) as other:
        assert not again.connected["resumed"]
        extended = await again.ask(
            type="extend", queue=queue, receipts=[pushed[0]["receipt"]], visibility_timeout_ms=30_000
        )
        assert [row["ok"] for row in extended["results"]] == [True]
        await other.subscribe(queue, credit=10)
        assert [(m["body"], m["attempt"]) for m in await other.messages(1)] == [("forgotten", 2)]
        assert await other.is_quiet()
        assert await acked(again, queue, [*polled, *pushed]) == [True, True, False]


async def test_a_partition_of_a_group_with_offsets_stays_with_the_consumer_that_went_elsewhere(
    first: PushqServer, second: PushqServer
) -> None:
    """An ack of a newer message would settle the older ones, too."""
    stream = f"s{next(_numbers)}"
    create_queue(first, stream, kind="stream")
    wanted = {"position": "earliest", "mode": "offsets"}
    made = httpx2.put(f"{first.url}/v1/queues/{stream}/groups/g", json=wanted, headers=first.headers)
    assert made.status_code == 201
    async with Client(first) as other, Client(first) as client:
        await client.subscribe(stream, credit=2, group="g")
        await client.publish(stream, *range(2))
        held = await client.messages(2)
        await other.subscribe(stream, credit=10, group="g")
        await other.publish(stream, *range(2, 6))
        assert await other.is_quiet()
        await client.cut()
        async with Client(second, resume=client.session) as again:
            assert again.connected["resumed"]
            await again.subscribe(stream, credit=2, group="g")
            assert await other.is_quiet() and await again.is_quiet()
            await other.publish(stream, 6)
            assert await other.is_quiet()
            assert await acked(again, stream, held) == [True, True]


async def test_dead_letters_that_a_session_holds_come_along(first: PushqServer, second: PushqServer) -> None:
    queue = f"q{next(_numbers)}"
    dead = f"{queue}.dead"
    create_queue(first, queue, max_attempts=1)
    async with Client(first) as client:
        await client.publish(queue, *range(2))
        await client.subscribe(queue, credit=2)
        receipts = [message["receipt"] for message in await client.messages(2)]
        await client.ask(type="nack", queue=queue, receipts=receipts)
        await client.subscribe(dead, credit=2)
        held = await client.messages(2)
        await client.cut()
    async with Client(second, resume=client.session) as again, Client(first) as other:
        assert again.connected["resumed"]
        await again.subscribe(dead, credit=2)
        await other.subscribe(dead, credit=2)
        assert await again.is_quiet() and await other.is_quiet()
        assert await acked(again, dead, held[:1]) == [True]
        await again.socket.close()
        assert [(m["body"], m["attempt"]) for m in await other.messages(1)] == [
            (held[1]["body"], held[1]["attempt"] + 1)
        ]


async def test_what_was_delivered_at_most_once_does_not_come_again_elsewhere(
    first: PushqServer, second: PushqServer
) -> None:
    queue = f"q{next(_numbers)}"
    create_queue(first, queue, delivery="at_most_once")
    async with Client(first) as client:
        await client.publish(queue, *range(4))
        await client.subscribe(queue, credit=2)
        assert [m["body"] for m in await client.messages(4)] == [0, 1, 2, 3], "nothing is acked"
        await client.cut()
    async with Client(second, resume=client.session) as again:
        assert again.connected["resumed"]
        await again.subscribe(queue, credit=2)
        assert await again.is_quiet()
        await again.publish(queue, 4, 5, 6)
        assert [m["body"] for m in await again.messages(3)] == [4, 5, 6]


async def test_an_encrypted_queues_messages_come_along_and_open_elsewhere(
    first: PushqServer, second: PushqServer
) -> None:
    queue = f"q{next(_numbers)}"
    create_queue(first, queue, encrypted=True)
    async with Client(first) as client:
        await client.publish(queue, *range(3))
        await client.subscribe(queue, credit=2)
        held = await client.messages(2)
        await client.cut()
    async with Client(second, resume=client.session) as again:
        await again.subscribe(queue, credit=2)
        assert await again.is_quiet()
        row = await again.ask(type="nack", queue=queue, receipts=[held[1]["receipt"]], reason="not now")
        assert row["results"][0]["ok"]
        returned = await again.messages(1)
        assert [(m["body"], m["attempt"]) for m in returned] == [(1, 2)]
        assert await acked(again, queue, [held[0], *returned]) == [True, True]
        assert [m["body"] for m in await again.messages(1)] == [2]
