"""Servers whose queues, keys and tenants another process keeps: a metadata service that stalls, dies and drips."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from pathlib import Path

import httpx2
import pytest

from tests.conftest import StartServer
from tests.support.dripping import Dripping
from tests.support.metadata import MetadataProcess
from tests.support.patience import eventually
from tests.support.server import PushqServer, ServerFailed
from tests.support.ws import Client

pytestmark = pytest.mark.anyio

STALE_SECONDS_MAX = 5.0
REFUSED_SECONDS_MAX = 6.5
"""A look-up waits 2 s, a change 5 s; the rest is for a busy machine."""


class Gateway(PushqServer):
    """A server whose keys the metadata service has."""

    meta: MetadataProcess
    token: str | None = None

    @property
    def key(self) -> str:
        return self.token or self.meta.key


@pytest.fixture(scope="module")
def meta(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MetadataProcess]:
    with MetadataProcess(tmp_path_factory.mktemp("meta") / "data") as process:
        yield process


def gateway_of(meta: MetadataProcess, data: Path, port: int | None = None) -> Gateway:
    env = {
        "PUSHQ_METADATA__URL": f"ws://127.0.0.1:{port or meta.port}",
        "PUSHQ_METADATA__SECRET_FILE": str(meta.secret_file),
    }
    gateway = Gateway(data, env=env)
    gateway.meta = meta
    return gateway


@pytest.fixture(scope="module")
def here(meta: MetadataProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with gateway_of(meta, tmp_path_factory.mktemp("here") / "data") as gateway:
        yield gateway  # type: ignore[misc]


@pytest.fixture(scope="module")
def away(meta: MetadataProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Another gateway of the same service."""
    with gateway_of(meta, tmp_path_factory.mktemp("away") / "data") as gateway:
        yield gateway  # type: ignore[misc]


def client_of(gateway: Gateway) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=gateway.url, headers=gateway.headers, timeout=15)


@pytest.fixture
async def http(meta: MetadataProcess, here: Gateway) -> AsyncIterator[httpx2.AsyncClient]:
    """Of a gateway with the queue `known`, which has been used."""
    async with client_of(here) as client:
        await _works_again(client, "known")
        yield client
    meta.go_on()


async def _publish(http: httpx2.AsyncClient, queue: str) -> httpx2.Response:
    return await http.post(f"/v1/queues/{queue}/messages", json={"messages": [{"body": 1}]})


async def _p99(http: httpx2.AsyncClient, count: int) -> float:
    took: list[float] = []
    for _ in range(count):
        began = time.perf_counter()
        answer = await _publish(http, "known")
        took.append(time.perf_counter() - began)
        assert answer.status_code == 201, answer.text
    return sorted(took)[int(count * 0.99)]


async def _refused(answer: Awaitable[httpx2.Response], *codes: str) -> None:
    began = time.monotonic()
    refused = await answer
    assert refused.json()["code"] in codes, refused.text
    assert time.monotonic() - began < REFUSED_SECONDS_MAX


async def _works_again(http: httpx2.AsyncClient, name: str) -> None:
    async def is_made() -> bool:
        return (await http.put(f"/v1/queues/{name}", json={})).status_code in (200, 201)

    await eventually(is_made, within_s=20)
    assert (await _publish(http, name)).status_code == 201


async def test_a_stalled_service_does_not_slow_publishes_to_known_queues(
    meta: MetadataProcess, http: httpx2.AsyncClient
) -> None:
    before = await _p99(http, 150)
    meta.stall()
    strangers = [asyncio.create_task(_publish(http, f"unknown{n}")) for n in range(20)]
    makers = [asyncio.create_task(http.put(f"/v1/queues/new{n}", json={})) for n in range(3)]
    during = await _p99(http, 150)
    assert during < max(10 * before, 0.5), f"p99 {before * 1000:.1f} ms before, {during * 1000:.1f} ms during"
    for stranger in strangers:
        await _refused(stranger, "unavailable")
    for maker in makers:
        await _refused(maker, "unavailable", "outcome-unknown")
    meta.go_on()
    await _works_again(http, "new0")


async def test_look_ups_are_refused_within_their_deadline_while_the_service_stalls(
    meta: MetadataProcess, http: httpx2.AsyncClient
) -> None:
    meta.stall()
    await _refused(_publish(http, "unknown"), "unavailable")
    await _refused(http.get("/v1/queues/unknown"), "unavailable")
    answer = await http.get("/v1/queues/known")
    assert answer.status_code == 200, "what is known is shown"
    stranger = {"Authorization": "Bearer pushq_0123456789abcdef_guess"}
    assert (await http.get("/v1/queues/known", headers=stranger)).status_code == 503
    await _refused(http.put("/v1/queues/new", json={}), "unavailable", "outcome-unknown")
    meta.go_on()
    await _works_again(http, "new")
    assert (await http.get("/v1/queues/known", headers=stranger)).status_code == 401


async def test_frames_for_known_queues_pass_those_that_wait_for_a_look_up(
    meta: MetadataProcess, here: Gateway, http: httpx2.AsyncClient
) -> None:
    async with Client(here) as client:
        await client.publish("known", 1)
        meta.stall()
        await client.send(type="publish", queue="unknown", messages=[{"body": 1}], id="waits")
        began = time.monotonic()
        for _ in range(20):
            await client.publish("known", 1)
        assert time.monotonic() - began < 1.5
        answer = await client.next("error", seconds=REFUSED_SECONDS_MAX)
        assert (answer["id"], answer["problem"]["code"]) == ("waits", "unavailable")


async def test_publishes_of_one_session_to_a_queue_that_is_looked_up_keep_their_order(
    http: httpx2.AsyncClient, away: Gateway
) -> None:
    assert (await http.put("/v1/queues/cold", json={})).status_code == 201
    async with Client(away) as client:
        for number in range(50):
            await client.send(type="publish", queue="cold", messages=[{"body": number}], id=number)
        answers = [await client.next("ok") for _ in range(50)]
        assert [answer["id"] for answer in answers] == list(range(50))
        seqs = [answer["messages"][0]["seq"] for answer in answers]
        assert seqs == sorted(seqs)


async def test_after_a_kill_and_a_restart_of_the_service_all_goes_on(
    meta: MetadataProcess, http: httpx2.AsyncClient
) -> None:
    meta.kill()
    assert (await _publish(http, "known")).status_code == 201
    await _refused(http.put("/v1/queues/new", json={}), "unavailable", "outcome-unknown")
    meta.start()
    await _works_again(http, "new")
    assert (await _publish(http, "known")).status_code == 201


async def test_a_service_that_drips_is_as_good_as_none(meta: MetadataProcess, tmp_path: Path) -> None:
    async with Dripping(meta.port).running() as proxy:
        gateway = gateway_of(meta, tmp_path / "data", proxy.port)
        await asyncio.to_thread(gateway.start)
        async with client_of(gateway) as http:
            await _works_again(http, "known")
            before = await _p99(http, 100)
            proxy.drips = True
            stranger = asyncio.create_task(_publish(http, "unknown"))
            during = await _p99(http, 100)
            assert during < max(10 * before, 0.5)
            await _refused(stranger, "unavailable")
            proxy.drips = False
            await _works_again(http, "after-the-drip")
        await asyncio.to_thread(gateway.kill)


async def test_what_another_gateway_changes_is_seen_within_seconds(http: httpx2.AsyncClient, away: Gateway) -> None:
    path = f"/v1/queues/changing-{secrets.token_hex(4)}"
    assert (await http.put(path, json={})).status_code == 201
    async with client_of(away) as other:
        await _works_again(other, "known")
        etag = (await http.get(path)).headers["etag"]
        assert etag == (await other.get(path)).headers["etag"], "one queue, at whichever gateway"
        changed = await http.patch(path, json={"max_attempts": 3}, headers={"If-Match": etag})
        assert changed.json()["config"]["max_attempts"] == 3, "who changes it sees it at once"

        async def is_seen() -> bool:
            return bool((await other.get(path)).json()["config"]["max_attempts"] == 3)

        await eventually(is_seen, within_s=STALE_SECONDS_MAX)
        stale = await other.patch(path, json={"max_attempts": 4}, headers={"If-Match": etag})
        assert stale.status_code == 412


async def test_a_queue_deleted_at_another_gateway_ends_its_consumers_here(
    http: httpx2.AsyncClient, here: Gateway, away: Gateway
) -> None:
    assert (await http.put("/v1/queues/leaving", json={})).status_code == 201
    async with Client(away) as client:
        await client.publish("leaving", 1)
        await client.subscribe("leaving", credit=1)
        local = httpx2.AsyncHTTPTransport(uds=str(here.data / "admin.sock"))
        async with httpx2.AsyncClient(transport=local, base_url="http://local", headers=here.headers) as admin:
            gone = await admin.delete("/v1/queues/leaving?confirm=leaving&discard=true")
            assert gone.status_code == 200, gone.text
        ended = await client.next("ended", seconds=STALE_SECONDS_MAX)
        assert ended["problem"]["code"] == "queue-not-found"
        answer = await client.ask(type="publish", queue="leaving", messages=[{"body": 1}])
        assert answer["problem"]["code"] == "queue-not-found"
        again = (await http.put("/v1/queues/leaving", json={})).json()
        assert again["stats"]["ready"] == 0

        async def is_there() -> bool:
            frame = await client.ask(type="publish", queue="leaving", messages=[{"body": 1}])
            return bool(frame["type"] == "ok")

        await eventually(is_there, within_s=STALE_SECONDS_MAX)


async def test_a_key_revoked_at_another_gateway_stops_within_seconds_on_live_sockets_too(
    meta: MetadataProcess, http: httpx2.AsyncClient, away: Gateway
) -> None:
    made = (await http.post("/v1/keys", json={"name": "short", "scopes": ["publish:*", "view:*"]})).json()
    away.token = made["key"]
    async with client_of(away) as other, Client(away) as client:
        away.token = None
        assert (await other.get("/v1/queues/known")).status_code == 200
        assert (await http.delete(f"/v1/keys/{made['id']}")).status_code == 204

        async def is_refused() -> bool:
            return (await other.get("/v1/queues/known")).status_code == 401

        await eventually(is_refused, within_s=STALE_SECONDS_MAX)
        await asyncio.wait_for(client.socket.wait_closed(), STALE_SECONDS_MAX)
        assert client.socket.close_code == 4401


async def test_keys_tenants_and_queues_are_listed_as_the_service_has_them(
    http: httpx2.AsyncClient, away: Gateway
) -> None:
    assert (await http.put("/v1/tenants/acme")).status_code == 201
    owner = {"name": "acme", "tenant": "acme", "scopes": ["admin", "manage:*", "view:*"]}
    key = (await http.post("/v1/keys", json=owner)).json()["key"]
    headers = {"Authorization": f"Bearer {key}"}
    for number in range(30):
        made = await http.put(f"/v1/queues/q{number:02}", json={}, headers=headers)
        assert made.status_code == 201
    async with client_of(away) as other:
        names = [tenant["name"] for tenant in (await other.get("/v1/tenants")).json()["items"]]
        assert names == ["acme", "default"]
        page = await other.get("/v1/queues?limit=20", headers=headers)
        assert [queue["name"] for queue in page.json()["items"]] == [f"q{number:02}" for number in range(20)]
        keys = (await other.get("/v1/keys", headers=headers)).json()["items"]
        assert [each["name"] for each in keys] == ["acme"]
        assert (await other.put("/v1/tenants/empty")).status_code == 201
        assert (await other.delete("/v1/tenants/empty")).status_code == 204
        names = [tenant["name"] for tenant in (await other.get("/v1/tenants")).json()["items"]]
        assert names == ["acme", "default"]


async def test_a_queue_that_another_one_names_is_not_deleted(
    http: httpx2.AsyncClient, here: Gateway, away: Gateway
) -> None:
    assert (await http.put("/v1/queues/letters", json={})).status_code == 201
    async with client_of(away) as other:
        made = await other.put("/v1/queues/naming", json={"dead_letter_queue": "letters"})
        assert made.status_code == 201, made.text
    local = httpx2.AsyncHTTPTransport(uds=str(here.data / "admin.sock"))
    async with httpx2.AsyncClient(transport=local, base_url="http://local", headers=here.headers) as admin:
        kept = await admin.delete("/v1/queues/letters?confirm=letters&discard=true")
        assert kept.status_code == 409 and "naming" in kept.json()["detail"]
        moved = await admin.delete("/v1/queues/known?confirm=known&move_to=letters")
        assert moved.status_code == 400 and "metadata.url" in moved.json()["detail"]


async def test_folders_and_services_are_not_mixed_up_and_a_restart_keeps_all(
    tmp_path: Path, http: httpx2.AsyncClient, here: Gateway, start_server: StartServer
) -> None:
    assert (await http.put("/v1/queues/parts", json={"partitions": 3})).status_code == 201
    assert (await _publish(http, "parts")).status_code == 201
    etag = (await http.get("/v1/queues/parts")).headers["etag"]
    await asyncio.to_thread(here.kill)
    with pytest.raises(ServerFailed, match="belong to a metadata service"):
        await asyncio.to_thread(start_server, data=here.data)
    with MetadataProcess(tmp_path / "another") as another:
        mixed = gateway_of(another, here.data)
        await asyncio.to_thread(mixed.start)
        async with client_of(mixed) as client:
            refused = await client.get("/v1/queues/parts")
            assert refused.status_code == 503 and "different metadata service" in refused.json()["detail"]
        await asyncio.to_thread(mixed.kill)
    await asyncio.to_thread(here.start)
    answer = await http.get("/v1/queues/parts")
    assert (answer.headers["etag"], answer.json()["stats"]["ready"]) == (etag, 1)
