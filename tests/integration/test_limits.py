"""Limits at a real server: what a caller is told, over HTTP and over a WebSocket, and that nothing else is charged."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import httpx2
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection
from websockets.sync.client import connect as ws_connect

from push.client import connect
from tests.support.redis_server import RedisServer
from tests.support.server import PushqServer

RULES: list[dict[str, Any]] = [
    {"name": "slow-queue", "quota": 5, "window_s": 60, "unit": "messages", "per": ["tenant", "queue"]},
    {"name": "bytes", "quota": 100_000, "window_s": 60, "unit": "bytes", "per": "principal"},
    {"name": "receives", "quota": 3, "window_s": 60, "operations": ["receive"], "when_store_is_away": "closed"},
]


def limited(folder: Path, **env: str) -> PushqServer:
    rules = {"PUSHQ_THROTTLING__RULES": json.dumps(RULES)}
    caps = {
        "PUSHQ_LIMITS__CONNECTIONS_PER_PRINCIPAL_MAX": "2",
        "PUSHQ_LIMITS__SUBSCRIPTIONS_PER_PRINCIPAL_MAX": "1",
    }
    return PushqServer(folder / "data", env=rules | caps | env)


@pytest.fixture(scope="module", params=["memory", "redis"])
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PushqServer]:
    folder = tmp_path_factory.mktemp("limits")
    if request.param == "memory":
        with limited(folder) as server:
            yield server
        return
    with (
        RedisServer(password="open-sesame") as redis,
        limited(folder, PUSHQ_THROTTLING__STORE="redis", PUSHQ_REDIS__URL=redis.url) as server,
    ):
        yield server


class World(NamedTuple):
    """A tenant of its own for each test, so that none meets what another used up."""

    server: PushqServer
    key: str


@pytest.fixture
def world(running: PushqServer) -> World:
    tenant = f"t-{uuid4().hex}"
    with httpx2.Client(base_url=running.url, headers=running.headers) as operator:
        operator.put(f"/v1/tenants/{tenant}", json={}).raise_for_status()
        made = operator.post("/v1/keys", json={"name": "k", "scopes": ["admin"], "tenant": tenant}).raise_for_status()
    return World(running, made.json()["key"])


@pytest.fixture
def http(world: World) -> Iterator[httpx2.Client]:
    headers = {"Authorization": f"Bearer {world.key}"}
    with httpx2.Client(base_url=world.server.url, headers=headers) as client:
        client.put("/v1/queues/q", json={}).raise_for_status()
        yield client


def publish(http: httpx2.Client, count: int, body: object = 1, queue: str = "q") -> httpx2.Response:
    return http.post(f"/v1/queues/{queue}/messages", json={"messages": [{"body": body}] * count})


def ready(http: httpx2.Client, queue: str = "q") -> int:
    stats: dict[str, int] = http.get(f"/v1/queues/{queue}").json()["stats"]
    return stats["ready"]


def test_publish_above_the_rate_is_told_when_to_come_back_and_stores_nothing(http: httpx2.Client) -> None:
    http.put("/v1/queues/other", json={})
    assert publish(http, 4).status_code == 201
    refused = publish(http, 2)
    problem = refused.json()
    assert (refused.status_code, problem["code"]) == (429, "rate-limited")
    assert "'slow-queue'" in problem["detail"] and "/q'" in problem["detail"]
    assert 0 < problem["retry_after_ms"] <= 12_000
    assert int(refused.headers["retry-after"]) == -(-problem["retry_after_ms"] // 1000)
    assert refused.headers["ratelimit"].startswith('"slow-queue";r=1;t=')
    assert refused.headers["ratelimit-policy"] == (
        '"principal";q=50000;w=1, "slow-queue";q=5;qu="messages";w=60, "bytes";q=100000;qu="content-bytes";w=60'
    )
    assert ready(http) == 4
    assert publish(http, 1).status_code == 201, "what was refused was charged"
    assert publish(http, 5, queue="other").status_code == 201


def test_publish_above_the_whole_quota_is_too_large_for_ever(http: httpx2.Client) -> None:
    refused = publish(http, 6)
    assert (refused.status_code, refused.json()["code"]) == (413, "message-too-large")
    assert "the request exceeds the limit" in refused.json()["detail"]


def test_bytes_are_charged_and_refused_ones_cost_no_messages(http: httpx2.Client) -> None:
    assert publish(http, 1, "x" * 60_000).status_code == 201
    refused = publish(http, 1, "x" * 60_000)
    assert refused.json()["code"] == "rate-limited" and "'bytes'" in refused.json()["detail"]
    assert publish(http, 4, "y").status_code == 201


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/queues", 200),
        ("GET", "/v1/queues/none", 404),
        ("GET", "/v1/nothing", 404),
        ("POST", "/v1/queues/q/ack", 200),
        ("POST", "/v1/queues/q/messages", 400),
        ("PATCH", "/v1/queues", 405),
        ("OPTIONS", "/v1/queues", 204),
    ],
)
def test_every_answer_tells_what_is_left(http: httpx2.Client, method: str, path: str, status: int) -> None:
    answer = http.request(method, path, json={"receipts": []} if path.endswith("ack") else {})
    assert answer.status_code == status
    assert answer.headers["ratelimit-policy"].startswith('"principal";q=50000;w=1')
    assert answer.headers["ratelimit"].startswith('"principal";r=')


def test_strangers_are_told_too(running: PushqServer) -> None:
    answer = httpx2.get(f"{running.url}/v1/queues")
    assert answer.status_code == 401 and '"principal";r=' in answer.headers["ratelimit"]


def say(socket: ClientConnection, **frame: Any) -> dict[str, Any]:
    socket.send(json.dumps(frame))
    return heard(socket)


def heard(socket: ClientConnection) -> dict[str, Any]:
    frame = json.loads(socket.recv(timeout=10))
    return frame if isinstance(frame, dict) else frame[0]


@contextmanager
def opened(server: PushqServer, key: str) -> Iterator[ClientConnection]:
    with ws_connect(server.ws_url) as socket:
        assert say(socket, type="connect", token=key)["type"] == "connected"
        yield socket


def test_socket_above_the_rate_is_told_and_stays_open(world: World, http: httpx2.Client) -> None:
    with opened(*world) as socket:
        four = [{"body": n} for n in range(4)]
        assert say(socket, type="publish", id=1, queue="q", messages=four)["type"] == "ok"
        refused = say(socket, type="publish", id=2, queue="q", messages=four)
        assert (refused["type"], refused["id"], refused["problem"]["code"]) == ("error", 2, "rate-limited")
        assert 0 < refused["problem"]["retry_after_ms"] <= 40_000
        # The same count as over HTTP, and the frames behind a refused one are served.
        assert publish(http, 2).status_code == 429
        assert say(socket, type="publish", id=3, queue="q", messages=[{"body": "last"}])["type"] == "ok"
    assert ready(http) == 5


def test_frames_of_one_socket_keep_their_order_whatever_they_wait_for(world: World, http: httpx2.Client) -> None:
    http.put("/v1/queues/wide", json={})
    with opened(*world) as socket:
        for number in range(5):
            frame = {"type": "publish", "id": number, "queue": "wide", "messages": [{"body": number}]}
            socket.send(json.dumps(frame))
        answered: list[int] = []
        while len(answered) < 5:
            frames = json.loads(socket.recv(timeout=10))
            answered += [frame["id"] for frame in (frames if isinstance(frames, list) else [frames])]
    assert answered == [0, 1, 2, 3, 4]
    peeked = http.get("/v1/queues/wide/messages").json()["items"]
    assert [message["body"] for message in peeked] == [0, 1, 2, 3, 4]


def test_connections_and_subscriptions_of_a_principal_are_capped_and_counted_back(
    world: World, http: httpx2.Client
) -> None:
    with opened(*world) as first, opened(*world) as second:
        with ws_connect(world.server.ws_url) as third:
            refused = say(third, type="connect", token=world.key)
            assert refused["problem"]["code"] == "too-many-connections"
            with pytest.raises(ConnectionClosed) as closed:
                third.recv(timeout=10)
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 4008
        waiting = http.post("/v1/queues/q/receive", json={"wait_ms": 1000})
        assert (waiting.status_code, waiting.json()["code"]) == (429, "too-many-connections")
        assert "retry-after" in waiting.headers
        assert http.get("/v1/queues/q/events").json()["code"] == "too-many-connections"
        assert say(first, type="subscribe", id=1, queue="q", credit=1)["type"] == "ok"
        assert say(second, type="subscribe", id=1, queue="q")["problem"]["code"] == "rate-limited"
        assert say(first, type="unsubscribe", id=2, sub=1)["type"] == "ok"
    for _ in range(500):
        if 'pushq_connections{transport="ws"} 0.0' in httpx2.get(f"{world.server.url}/metrics").text:
            break
        time.sleep(0.01)
    with opened(*world), opened(*world):
        pass


def test_subscription_above_the_cap_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    env = {"PUSHQ_LIMITS__SUBSCRIPTIONS_PER_PRINCIPAL_MAX": "1"}
    with PushqServer(tmp_path / "data", env=env) as server, opened(server, server.key) as socket:
        httpx2.put(f"{server.url}/v1/queues/q", json={}, headers=server.headers).raise_for_status()
        assert say(socket, type="subscribe", id=1, queue="q", credit=1)["type"] == "ok"
        refused = say(socket, type="subscribe", id=2, queue="q", credit=1)
        assert (refused["id"], refused["problem"]["code"]) == (2, "too-many-connections")
        assert say(socket, type="unsubscribe", id=3, sub=1)["type"] == "ok"
        assert say(socket, type="subscribe", id=4, queue="q", credit=1)["type"] == "ok"


def test_quota_of_a_tenant_holds_for_all_its_keys_from_the_next_request_on(world: World, http: httpx2.Client) -> None:
    other = http.post("/v1/keys", json={"name": "other", "scopes": ["admin"]}).json()
    http.put("/v1/queues/wide", json={}).raise_for_status()
    operator, url = world.server.headers, f"{world.server.url}/v1/tenants/{other['tenant']}"
    httpx2.put(url, json={"quotas": {"publish_messages_per_s": 3}}, headers=operator).raise_for_status()
    assert publish(http, 3, queue="wide").status_code == 201
    http.headers["Authorization"] = f"Bearer {other['key']}"
    refused = publish(http, 3)
    assert refused.status_code == 429 and "'tenant-messages'" in refused.json()["detail"]


def test_ack_that_publishes_is_counted_as_a_publish(http: httpx2.Client) -> None:
    http.put("/v1/queues/next", json={"colocate_with": "q"}).raise_for_status()
    publish(http, 1)
    (message,) = http.post("/v1/queues/q/receive", json={}).json()["messages"]
    wanted = {"receipts": [message["receipt"]], "publish": [{"queue": "next", "messages": [{"body": 1}] * 5}]}
    assert publish(http, 1, queue="next").status_code == 201
    refused = http.post("/v1/queues/q/ack", json=wanted)
    assert refused.json()["code"] == "rate-limited"
    wanted["publish"][0]["messages"].pop()  # type: ignore[index]
    assert http.post("/v1/queues/q/ack", json=wanted).json()["results"][0]["ok"]


def test_metrics_tell_what_each_rule_refused(world: World, http: httpx2.Client) -> None:
    assert [publish(http, 5).status_code for _ in range(2)] == [201, 429]
    shown = httpx2.get(f"{world.server.url}/metrics").text
    (line,) = [line for line in shown.splitlines() if line.startswith('pushq_rate_limited_total{rule="slow-queue"}')]
    assert float(line.rpartition(" ")[2]) >= 1


def test_server_goes_on_when_redis_is_killed_and_says_so(tmp_path: Path) -> None:
    with (
        RedisServer() as redis,
        limited(tmp_path, PUSHQ_THROTTLING__STORE="redis", PUSHQ_REDIS__URL=redis.url) as server,
        httpx2.Client(base_url=server.url, headers=server.headers) as http,
    ):
        http.put("/v1/queues/q", json={}).raise_for_status()
        assert publish(http, 1).status_code == 201
        redis.kill()
        began = time.monotonic()
        assert publish(http, 1).status_code == 201
        assert time.monotonic() - began < 1
        closed = http.post("/v1/queues/q/receive", json={})
        assert (closed.status_code, closed.json()["code"]) == (503, "unavailable")
        assert "pushq_rate_store_away 1.0" in http.get("/metrics").text
        redis.start()
        for _ in range(500):
            if "pushq_rate_store_away 0.0" in http.get("/metrics").text:
                break
            time.sleep(0.01)
        assert http.post("/v1/queues/q/receive", json={}).status_code == 200
        said = server.log()
        assert (
            said.count("redis is unavailable: rates are counted by this gateway alone") == 1
            and said.count("redis is available again: rates are shared") == 1
        )


@pytest.mark.anyio
async def test_python_client_waits_as_it_is_told_and_loses_nothing(tmp_path: Path) -> None:
    rules = json.dumps([{"name": "messages", "quota": 100, "window_s": 4, "unit": "messages"}])
    with PushqServer(tmp_path / "data", env={"PUSHQ_THROTTLING__RULES": rules}) as server:
        httpx2.put(f"{server.url}/v1/queues/q", json={}, headers=server.headers).raise_for_status()
        async with connect(server.url, server.key) as pushq:
            for start in range(0, 160, 80):
                await asyncio.gather(*[pushq.publish("q", n) for n in range(start, start + 80)])
        with httpx2.Client(base_url=server.url, headers=server.headers) as http:
            assert ready(http) == 160
            assert 'pushq_rate_limited_total{rule="messages"} 0.0' not in http.get("/metrics").text, (
                "the rate was never met"
            )
