"""Queues over three shards of two backend processes: where they lie, and what goes on while one of them is away."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

from tests.support.backend import Backend
from tests.support.consumers import Socket, call, http_client
from tests.support.server import PushqServer

pytestmark = pytest.mark.anyio

WAIT_S = 90.0
"""Far above what anything here takes: these machines are busy."""
SHARDS = 3
_names = itertools.count(1)


class Cluster(NamedTuple):
    first: Backend
    """It has the definitions, and shard 0."""
    others: Backend
    """Shards 1 and 2."""
    env: dict[str, str]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("backends")
    with Backend(folder, [0], count=SHARDS) as first, Backend(folder, [1, 2]) as others:
        both = f"127.0.0.1:{first.port},127.0.0.1:{others.port}"
        yield Cluster(
            first,
            others,
            {
                **first.gateway_env,
                "PUSHQ_STORE__BACKENDS": both,
                "PUSHQ_QUEUES__ALLOW_DELETE_OVER_HTTP": "true",
            },
        )


@pytest.fixture(scope="module")
def gateway(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PushqServer]:
    with PushqServer(tmp_path_factory.mktemp("gateway") / "data", env=cluster.env) as gateway:
        yield gateway


@pytest.fixture
async def http(gateway: PushqServer) -> AsyncIterator[httpx2.AsyncClient]:
    async with http_client(gateway) as http:
        http.timeout = httpx2.Timeout(WAIT_S)
        yield http


async def made(http: httpx2.AsyncClient, count: int = SHARDS, **config: Any) -> list[str]:
    """So many new queues: with as many as there are shards, one in each."""
    names = [f"spread{next(_names)}" for _ in range(count)]
    for name in names:
        await call(http, "PUT", name, config)
    return names


async def publish(http: httpx2.AsyncClient, queue: str, *bodies: Any) -> None:
    await call(http, "POST", f"{queue}/messages", {"messages": [{"body": body} for body in bodies]})


async def receive(http: httpx2.AsyncClient, queue: str, *, wait_ms: int = 0) -> list[dict[str, Any]]:
    answer = await call(http, "POST", f"{queue}/receive", {"max": 10, "wait_ms": wait_ms})
    found: list[dict[str, Any]] = answer["messages"]
    return found


async def subscribed(socket: Socket, queue: str) -> int:
    """The subscription's number."""
    answer = await socket.ask(within_s=WAIT_S, type="subscribe", queue=queue, credit=10)
    assert answer["type"] == "ok", answer
    number: int = answer["sub"]
    return number


async def patched(http: httpx2.AsyncClient, queue: str, **config: Any) -> httpx2.Response:
    etag = (await http.get(f"/v1/queues/{queue}")).headers["ETag"]
    return await http.patch(f"/v1/queues/{queue}", json=config, headers={"If-Match": etag})


async def is_taken(http: httpx2.AsyncClient, queue: str) -> bool:
    """Whether a publish is confirmed in its time. One that was on its way when the backend died is in doubt."""
    answer = await http.post(f"/v1/queues/{queue}/messages", json={"messages": [{"body": "probe"}]})
    assert answer.status_code in (201, 503, 504), answer.text
    return answer.status_code == 201


async def items(http: httpx2.AsyncClient, path: str, field: str) -> set[str]:
    """A field of all items of a list."""
    found: set[str] = set()
    cursor = None
    while True:
        page = (await http.get(path, params={"cursor": cursor} if cursor else {})).json()
        found |= {item[field] for item in page["items"]}
        if (cursor := page["next"]) is None:
            return found


async def test_every_shard_serves_its_queues_whole(http: httpx2.AsyncClient) -> None:
    for name in await made(http):
        await publish(http, name, 1, 2, 3)
        assert (await call(http, "GET", name))["stats"]["ready"] == 3
        first, second, third = await receive(http, name)
        receipts = [first["receipt"], second["receipt"]]
        answer = await call(http, "POST", f"{name}/ack", {"receipts": receipts})
        assert [one["ok"] for one in answer["results"]] == [True, True]
        await call(http, "POST", f"{name}/nack", {"receipts": [third["receipt"]]})
        (again,) = await receive(http, name, wait_ms=5000)
        assert (again["body"], again["attempt"]) == (3, 2)
        assert (await patched(http, name, max_attempts=7)).is_success
        assert (await call(http, "GET", name))["config"]["max_attempts"] == 7
        await call(http, "DELETE", f"{name}?confirm={name}&discard=true")
        assert (await http.get(f"/v1/queues/{name}")).status_code == 404


async def test_a_name_used_again_begins_empty_wherever_it_lies(http: httpx2.AsyncClient) -> None:
    for name in await made(http):
        await publish(http, name, "old")
        await call(http, "DELETE", f"{name}?confirm={name}&discard=true")
        await call(http, "PUT", name, {})
        await publish(http, name, "new")
        assert [message["body"] for message in await receive(http, name)] == ["new"]


async def test_a_shard_that_is_away_stops_its_queues_alone(
    cluster: Cluster, gateway: PushqServer, http: httpx2.AsyncClient
) -> None:
    names = await made(http, 2 * SHARDS)
    for name in names:
        await publish(http, name, "before")
    async with Socket.open(gateway) as socket:
        of_sub = {await subscribed(socket, name): name for name in names}
        before = await socket.messages(len(names), WAIT_S)
        assert [message["body"] for message in before] == ["before"] * len(names)

        cluster.others.kill()
        taken = await asyncio.gather(*(is_taken(http, name) for name in names))
        assert sum(taken) == 2, "two queues lie in the shard that is left"
        new = [f"late{next(_names)}" for _ in range(SHARDS)]
        for name in new:
            await call(http, "PUT", name, {})  # the definitions are there

        cluster.others.start()
        for name in new:
            await call(http, "POST", f"{name}/messages", {"messages": [{"body": "late"}]})
            assert [message["body"] for message in await receive(http, name)] == ["late"]
        for name in names:
            await publish(http, name, "after")
        seen: dict[str, set[str]] = {name: set() for name in names}
        async with asyncio.timeout(WAIT_S):
            while not all("after" in bodies for bodies in seen.values()):
                frame = await socket.inbox.get()
                assert frame["type"] != "closed", frame
                if frame["type"] == "message":
                    seen[of_sub[frame["sub"]]].add(frame["message"]["body"])
    lost = [name for name, was_taken in zip(names, taken, strict=True) if was_taken and "probe" not in seen[name]]
    assert not lost


async def test_queues_that_name_each_other_lie_together(http: httpx2.AsyncClient) -> None:
    graves = await made(http)
    for grave in graves:
        (name,) = await made(http, 1, dead_letter_queue=grave, max_attempts=1)
        await publish(http, name, "fails")
        (message,) = await receive(http, name)
        await call(http, "POST", f"{name}/nack", {"receipts": [message["receipt"]]})
        (dead,) = await receive(http, grave, wait_ms=20_000)
        assert dead["body"] == "fails"
    body = {"dead_letter_queue": graves[0], "colocate_with": graves[1], "encrypted": False}
    answer = await http.put("/v1/queues/torn", json=body)
    assert answer.status_code == 409
    assert "shard" in answer.json()["detail"]
    (alone,) = await made(http, 1, colocate_with=graves[0], encrypted=False)
    assert (await patched(http, alone, dead_letter_queue=graves[1])).status_code == 409
    answer = await http.delete(f"/v1/queues/{alone}?confirm={alone}&move_to={graves[1]}")
    assert answer.status_code == 409


async def test_a_deleted_queues_messages_move_within_a_shard(http: httpx2.AsyncClient) -> None:
    for target in await made(http, encrypted=False):
        (name,) = await made(http, 1, colocate_with=target, encrypted=False)
        await publish(http, name, 1, 2)
        assert (await patched(http, name, colocate_with=None)).is_success
        await call(http, "DELETE", f"{name}?confirm={name}&move_to={target}")
        found: list[Any] = []
        while len(found) < 2:
            found += [message["body"] for message in await receive(http, target, wait_ms=5000)]
        assert found == [1, 2]
        await publish(http, name, 3)
        (message,) = await receive(http, target, wait_ms=20_000)
        assert message["body"] == 3, "what is still published goes the same way"
        assert (await http.get(f"/v1/queues/{name}")).status_code == 404


async def test_what_one_gateway_seals_another_opens_whichever_shard_it_lies_in(
    cluster: Cluster, gateway: PushqServer, http: httpx2.AsyncClient, tmp_path: Path
) -> None:
    folder = tmp_path / "second"
    folder.mkdir(mode=0o700)
    (folder / "master.key").write_bytes((gateway.data / "master.key").read_bytes())
    (folder / "master.key").chmod(0o600)
    with PushqServer(folder, env=cluster.env) as second:
        (folder / "admin.key").write_text(gateway.key)
        async with Socket.open(second) as socket:
            for name in await made(http, encrypted=True):
                await subscribed(socket, name)
                await publish(http, name, "sealed")
                (message,) = await socket.messages(1, WAIT_S)
                assert message["body"] == "sealed"
                await call(http, "POST", f"{name}/ack", {"receipts": [message["receipt"]]})
                assert (await call(http, "GET", name))["stats"]["dead"] == 0


async def test_numbers_are_of_all_shards(http: httpx2.AsyncClient) -> None:
    names = await made(http, max_attempts=1)
    for name in names:
        await publish(http, name, 1)
        (message,) = await receive(http, name)
        await call(http, "POST", f"{name}/nack", {"receipts": [message["receipt"]]})
    assert {*names, *(f"{name}.dead" for name in names)} <= await items(http, "/v1/queues", "name")
    assert set(names) <= await items(http, "/v1/usage", "queue")


@pytest.mark.parametrize("is_sealed", [True, False])
async def test_a_peek_shows_whole_messages_of_every_shard(http: httpx2.AsyncClient, is_sealed: bool) -> None:
    bodies: list[Any] = [{"n": 1}, "text", [1, 2], None, 5]
    for name in await made(http, encrypted=is_sealed):
        messages = [
            {"body": body, "headers": {"place": str(place)}, "key": f"k{place % 2}"}
            for place, body in enumerate(bodies)
        ]
        messages.append({"body_base64": "AAH/", "content_type": "application/octet-stream"})
        await call(http, "POST", f"{name}/messages", {"messages": messages})
        shown = (await call(http, "GET", f"{name}/messages"))["items"]
        assert [message.get("body") for message in shown[:-1]] == bodies
        assert shown[-1]["body_base64"] == "AAH/"
        assert [message["headers"]["place"] for message in shown[:-1]] == ["0", "1", "2", "3", "4"]
        assert {message["state"] for message in shown} == {"ready"}
        only = (await call(http, "GET", f"{name}/messages?header.place=3"))["items"]
        assert [message["seq"] for message in only] == [shown[3]["seq"]]
        found = (await call(http, "GET", f"{name}/messages?contains=text&key=k1"))["items"]
        assert [message["body"] for message in found] == ["text"]
        pages, cursor = [], ""
        for _ in range(len(messages) + 1):
            page = await call(http, "GET", f"{name}/messages?limit=2{cursor}")
            pages += [message["seq"] for message in page["items"]]
            if page["next"] is None:
                break
            cursor = f"&cursor={page['next']}"
        assert pages == [message["seq"] for message in shown]
        (held,) = (await call(http, "POST", f"{name}/receive", {"max": 1}))["messages"]
        leased = (await call(http, "GET", f"{name}/messages?state=in_flight"))["items"]
        assert [(message["seq"], message["attempt"]) for message in leased] == [(held["seq"], 1)]
