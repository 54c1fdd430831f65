"""A producer's W3C trace context goes with its messages, to every transport, as it came."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import msgspec
import pytest
from websockets.sync.client import connect as ws_connect

from push.client import connect
from push.client.model import TransportName
from tests.support.server import PushqServer

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
STATE = "rojo=00f067aa0ba902b7, congo=t61rcWkgMzE"
TRACED = {"traceparent": PARENT, "tracestate": STATE}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PushqServer]:
    with PushqServer(tmp_path_factory.mktemp("traces") / "data") as server:
        yield server


@pytest.fixture
def http(server: PushqServer) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url, headers=server.headers) as client:
        yield client


def queue(http: httpx2.Client, name: str, **config: Any) -> str:
    http.put(f"/v1/queues/{name}", json=config).raise_for_status()
    return f"/v1/queues/{name}"


def told(message: dict[str, Any]) -> tuple[str | None, str | None]:
    return message.get("traceparent"), message.get("tracestate")


def received(http: httpx2.Client, path: str) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = http.post(f"{path}/receive", json={"max": 100}).json()["messages"]
    return messages


@pytest.mark.parametrize("count", [1, 10])
def test_trace_of_a_request_comes_back_over_http(http: httpx2.Client, count: int) -> None:
    path = queue(http, f"plain{count}")
    http.post(f"{path}/messages", json={"messages": [{"body": n} for n in range(count)]}, headers=TRACED)
    assert [told(message) for message in http.get(f"{path}/messages").json()["items"]] == [(PARENT, STATE)] * count
    assert [told(message) for message in received(http, path)] == [(PARENT, STATE)] * count


def test_message_without_a_trace_has_no_fields_for_one(http: httpx2.Client) -> None:
    path = queue(http, "untraced")
    http.post(f"{path}/messages", json={"messages": [{"body": 1, "key": "k"}]})
    assert not {"traceparent", "tracestate"} & received(http, path)[0].keys()


@pytest.mark.parametrize(
    "wrong",
    [
        "nonsense",
        "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        f"00-{'0' * 32}-00f067aa0ba902b7-01",
        f"00-4bf92f3577b34da6a3ce929d0e0e4736-{'0' * 16}-01",
    ],
)
def test_header_that_is_no_trace_context_is_left_out(http: httpx2.Client, wrong: str) -> None:
    path = queue(http, "wrong")
    assert http.post(f"{path}/messages", json={"messages": [{"body": 1}]}, headers={"traceparent": wrong}).is_success
    assert told(received(http, path)[0]) == (None, None)


def test_trace_of_a_cloud_event_goes_before_that_of_its_request(http: httpx2.Client) -> None:
    path = queue(http, "events")
    event = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t", "ce-traceparent": PARENT}
    other = PARENT.replace("4bf9", "5bf9")
    headers = {**event, "traceparent": other, "content-type": "application/json"}
    http.post(f"{path}/messages", content=b"1", headers=headers).raise_for_status()
    (message,) = received(http, path)
    assert told(message) == (PARENT, None) and message["headers"]["ce-traceparent"] == PARENT


def test_dead_letter_keeps_the_trace(http: httpx2.Client) -> None:
    path = queue(http, "fragile", max_attempts=1)
    http.post(f"{path}/messages", json={"messages": [{"body": 1}]}, headers=TRACED)
    http.post(f"{path}/nack", json={"receipts": [received(http, path)[0]["receipt"]]}).raise_for_status()
    dead: list[dict[str, Any]] = []
    for _ in range(100):
        dead = received(http, "/v1/queues/fragile.dead")
        if dead:
            break
    assert told(dead[0]) == (PARENT, STATE)


@pytest.mark.parametrize("kind", ["work", "stream"])
@pytest.mark.parametrize("count", [1, 5])
def test_trace_of_a_frame_comes_back_over_both_subprotocols(
    server: PushqServer, http: httpx2.Client, kind: str, count: int
) -> None:
    name = f"{kind}{count}"
    queue(http, name, kind=kind)
    for encoding in ("json", "msgpack"):
        codec: Any = msgspec.json if encoding == "json" else msgspec.msgpack
        with ws_connect(server.ws_url, subprotocols=[f"pushq.v1.{encoding}"]) as socket:  # type: ignore[list-item]

            def say(frame: dict[str, Any], codec: Any = codec, socket: Any = socket) -> None:
                data = codec.encode(frame)
                socket.send(data.decode() if codec is msgspec.json else data)

            say({"type": "connect", "token": server.key})
            say({"type": "subscribe", "queue": name, "credit": 10})
            messages = [{"body": n} for n in range(count)]
            say({"type": "publish", "queue": name, "messages": messages, **TRACED})
            found: list[dict[str, Any]] = []
            while len(found) < count:
                data = socket.recv(timeout=10)
                frames = codec.decode(data.encode() if isinstance(data, str) else data)
                for frame in frames if isinstance(frames, list) else [frames]:
                    found += frame["messages"] if frame["type"] == "deliver" else []
            assert [told(message) for message in found] == [(PARENT, STATE)] * count
            say({"type": "ack", "queue": name, "receipts": [m["receipt"] for m in found if m["receipt"]]})
            say({"type": "ping"})
            while b"pong" not in (data if isinstance(data := socket.recv(timeout=10), bytes) else data.encode()):
                pass


def test_frame_with_a_wrong_trace_is_refused_by_the_field(server: PushqServer, http: httpx2.Client) -> None:
    queue(http, "strict-frames")
    with ws_connect(server.ws_url) as socket:
        socket.send(json.dumps({"type": "connect", "token": server.key}))
        socket.recv(timeout=10)
        frame = {"type": "publish", "id": 1, "queue": "strict-frames", "messages": [{"body": 1}]}
        for wrong, pointer in (({"traceparent": "x"}, "/traceparent"), ({"tracestate": "a=b"}, "/tracestate")):
            socket.send(json.dumps({**frame, **wrong}))
            problem = json.loads(socket.recv(timeout=10))["problem"]
            assert (problem["code"], problem["errors"][0]["pointer"]) == ("invalid-request", pointer)


@pytest.mark.anyio
@pytest.mark.parametrize("transport", ["ws", "sse", "poll"])
async def test_python_client_sends_a_trace_and_reads_it(server: PushqServer, transport: TransportName) -> None:
    name = f"sdk-{transport}"
    async with httpx2.AsyncClient(base_url=server.url, headers=server.headers) as http:
        await http.put(f"/v1/queues/{name}", json={})
    async with connect(server.url, server.key, transport=transport) as pushq:
        await pushq.publish(name, 1, traceparent=PARENT, tracestate=STATE)
        await pushq.publish(name, 2)
        found = {}
        async for message in pushq.subscribe(name):
            found[message.body] = message.traceparent, message.tracestate
            await message.ack()
            if len(found) == 2:
                break
    assert found == {1: (PARENT, STATE), 2: (None, None)}
