"""A request's time travels with it: also behind a Redis and a metadata service that stand still it ends by then."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from statistics import median
from typing import Any

import httpx2
import pytest

from tests.support.metadata import MetadataProcess
from tests.support.patience import eventually
from tests.support.redis_server import RedisServer
from tests.support.server import PushqServer
from tests.support.ws import Client

pytestmark = pytest.mark.anyio

TIMEOUT_MS = 300
LOOK_UP_SECONDS = 2.0
"""How long a look-up may take by itself: who is answered before was not kept waiting for it."""
HASTY = {"Pushq-Timeout-Ms": str(TIMEOUT_MS)}
MESSAGE = {"messages": [{"body": 1}]}


class Gateway(PushqServer):
    """A server whose keys the metadata service has."""

    token = ""

    @property
    def key(self) -> str:
        return self.token


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def meta(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MetadataProcess]:
    with MetadataProcess(tmp_path_factory.mktemp("meta") / "data") as process:
        yield process


@pytest.fixture(scope="module")
def gateway(
    meta: MetadataProcess, redis: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PushqServer]:
    env = {
        "PUSHQ_METADATA__URL": f"ws://127.0.0.1:{meta.port}",
        "PUSHQ_METADATA__SECRET_FILE": str(meta.secret_file),
        "PUSHQ_REDIS__URL": redis.url,
    }
    server = Gateway(tmp_path_factory.mktemp("gateway") / "data", env=env)
    server.token = meta.key
    with server:
        yield server


@pytest.fixture
async def http(gateway: PushqServer, meta: MetadataProcess, redis: RedisServer) -> AsyncIterator[httpx2.AsyncClient]:
    """With the queue `known`, which has been used; what stood still goes on at the end."""
    async with httpx2.AsyncClient(base_url=gateway.url, headers=gateway.headers, timeout=20) as client:

        async def is_made() -> bool:
            return (await client.put("/v1/queues/known", json={})).status_code in (200, 201)

        await eventually(is_made)
        assert (await client.post("/v1/queues/known/messages", json=MESSAGE)).status_code == 201
        yield client
    meta.go_on()
    redis.thaw()


async def timed(asking: Any) -> tuple[httpx2.Response, float]:
    began = time.monotonic()
    answer = await asking
    return answer, time.monotonic() - began


async def median_of_publishes(http: httpx2.AsyncClient) -> float:
    """Seconds of a publish to a queue that is known."""
    took: list[float] = []
    for _ in range(50):
        answer, seconds = await timed(http.post("/v1/queues/known/messages", json=MESSAGE))
        assert answer.status_code == 201, answer.text
        took.append(seconds)
    return median(took)


async def test_requests_end_by_their_time_while_the_metadata_service_stands_still(
    meta: MetadataProcess, gateway: PushqServer, http: httpx2.AsyncClient
) -> None:
    meta.stall()
    patient = asyncio.create_task(timed(http.post("/v1/queues/unknown/messages", json=MESSAGE)))
    refused = [
        http.post("/v1/queues/unknown/messages", json=MESSAGE, headers=HASTY),  # shares the look-up of the patient one
        http.post("/v1/queues/other/messages", json=MESSAGE, headers=HASTY),
        http.get("/v1/queues/another", headers=HASTY),
        http.post("/v1/queues/another/receive", json={"wait_ms": 20_000}, headers=HASTY),
        http.post("/v1/queues/another/ack", json={"receipts": ["r"]}, headers=HASTY),
        http.get("/v1/queues/known", headers={**HASTY, "Authorization": "Bearer pushq_0123456789abcdef_guess"}),
    ]
    for answer, took in await asyncio.gather(*map(timed, refused)):
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable"), answer.text
        assert TIMEOUT_MS / 1000 <= took < LOOK_UP_SECONDS
        assert any(words in answer.json()["detail"] for words in ("in time", "within"))
    made, took = await timed(http.put("/v1/queues/made", json={}, headers=HASTY))
    assert (made.status_code, made.json()["code"]) == (503, "unavailable"), (
        "what is there already was not known in time"
    )
    assert took < LOOK_UP_SECONDS
    async with Client(gateway) as client:
        began = time.monotonic()
        await client.send(type="publish", queue="else", messages=[{"body": 1}], timeout_ms=TIMEOUT_MS, id="waits")
        await client.send(type="publish", queue="known", messages=[{"body": 1}], id="passes")
        assert (await client.next("ok"))["id"] == "passes"
        refusal = await client.next("error")
        assert (refusal["id"], refusal["problem"]["code"]) == ("waits", "unavailable")
        assert time.monotonic() - began < LOOK_UP_SECONDS
    answer, took = await patient
    assert answer.json()["code"] == "unavailable" and took > LOOK_UP_SECONDS * 0.9, "who waits is waited for"


async def test_a_change_that_was_begun_is_answered_in_time_and_goes_on(
    meta: MetadataProcess, http: httpx2.AsyncClient
) -> None:
    etag = (await http.put("/v1/queues/changing", json={})).headers["etag"]
    meta.stall()
    headers = {**HASTY, "If-Match": etag}
    answer, took = await timed(http.patch("/v1/queues/changing", json={"max_attempts": 3}, headers=headers))
    assert (answer.status_code, answer.json()["code"]) == (504, "outcome-unknown"), answer.text
    assert took < LOOK_UP_SECONDS
    meta.go_on()

    async def is_changed() -> bool:
        return bool((await http.get("/v1/queues/changing")).json().get("config", {}).get("max_attempts") == 3)

    await eventually(is_changed)


async def test_known_queues_are_published_to_in_time_while_redis_and_the_metadata_service_stand_still(
    meta: MetadataProcess, redis: RedisServer, gateway: PushqServer, http: httpx2.AsyncClient
) -> None:
    before = await median_of_publishes(http)
    meta.stall()
    redis.freeze()
    with_key = {"Idempotency-Key": "once"}
    first = await http.post("/v1/queues/known/messages", json=MESSAGE, headers=with_key)
    again = await http.post("/v1/queues/known/messages", json=MESSAGE, headers=with_key)
    assert (first.status_code, again.headers["idempotency-replayed"]) == (201, "true"), "nobody waits for Redis"
    strangers = [asyncio.create_task(timed(http.get(f"/v1/queues/no{n}", headers=HASTY))) for n in range(20)]
    during = await median_of_publishes(http)
    assert during < max(10 * before, 0.5), f"{before * 1000:.1f} ms before, {during * 1000:.1f} ms during"
    for answer, took in await asyncio.gather(*strangers):
        assert answer.status_code == 503 and took < LOOK_UP_SECONDS


@pytest.mark.parametrize("stated", ["0", "60001", "soon"])
async def test_a_time_that_cannot_be_is_refused_by_name_on_any_request(http: httpx2.AsyncClient, stated: str) -> None:
    headers = {"Pushq-Timeout-Ms": stated}
    for asking in (
        http.get("/v1/queues", headers=headers),
        http.post("/v1/queues/known/receive", json={}, headers=headers),
        http.post("/v1/queues/known/ack", json={"receipts": []}, headers=headers),
    ):
        answer = await asking
        assert answer.status_code == 400 and answer.json()["errors"][0]["pointer"] == "/headers/pushq-timeout-ms"
    stream = await http.get("/v1/queues/known/events", headers={"Pushq-Timeout-Ms": "100"})
    assert stream.status_code == 400 and "Pushq-Timeout-Ms" in stream.json()["detail"]
