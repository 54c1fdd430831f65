"""Real frames and events are what the AsyncAPI document says they are: no field that it does not name, none missing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import jsonschema
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from gateway.api.asyncapi import document
from tests.conftest import StartServer
from tests.support.server import PushqServer

SCHEMAS: dict[str, Any] = document()["components"]["schemas"]


def check(kind: str, value: dict[str, Any]) -> None:
    schema = {"$ref": f"#/components/schemas/{kind}", "components": {"schemas": SCHEMAS}}
    jsonschema.Draft202012Validator(schema).validate(value)
    _no_more_than_named(SCHEMAS[kind], value)


def _no_more_than_named(schema: dict[str, Any], value: Any) -> None:
    if "$ref" in schema:
        schema = SCHEMAS[schema["$ref"].rsplit("/", 1)[1]]
    if isinstance(value, dict) and "properties" in schema:
        assert set(value) <= set(schema["properties"]), schema["title"]
        for name, inner in value.items():
            _no_more_than_named(schema["properties"][name], inner)
    elif isinstance(value, list) and "items" in schema:
        for inner in value:
            _no_more_than_named(schema["items"], inner)


class Socket:
    """A socket whose every frame is held against the document."""

    def __init__(self, ws: ClientConnection) -> None:
        self.ws = ws
        self.waiting: list[dict[str, Any]] = []
        self.seen: set[str] = set()

    def ask(self, **frame: Any) -> None:
        kind = frame["type"].capitalize()
        check(kind, frame)
        self.ws.send(json.dumps(frame))

    def next(self, kind: str) -> dict[str, Any]:
        """The next frame of a type; others wait."""
        while True:
            for frame in self.waiting:
                if frame["type"] == kind:
                    self.waiting.remove(frame)
                    return frame
            said = json.loads(self.ws.recv(10))
            for frame in said if isinstance(said, list) else [said]:
                check(f"{frame['type'].capitalize()}Frame", frame)
                self.seen.add(frame["type"])
                self.waiting.append(frame)


@pytest.fixture
def server(start_server: StartServer) -> PushqServer:
    return start_server(env={"PUSHQ_QUEUES__ALLOW_DELETE_OVER_HTTP": "true"})


@pytest.fixture
def http(server: PushqServer) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url, headers=server.headers, timeout=15) as http:
        http.put("/v1/queues/work", json={"visibility_timeout_ms": 300})
        http.put("/v1/queues/news", json={"kind": "stream"})
        yield http


def test_frames_are_what_the_document_says(server: PushqServer, http: httpx2.Client) -> None:
    with connect(server.ws_url) as ws:
        socket = Socket(ws)
        socket.ask(type="connect", token=server.key, id=1)
        socket.next("connected")
        socket.ask(type="subscribe", queue="work", credit=3, id="s")
        sub = socket.next("ok")["sub"]
        socket.ask(
            type="publish", queue="work", id=2, messages=[{"body": 1}, {"body_base64": "AA==", "key": "k"}, {"body": 3}]
        )
        socket.next("ok")
        first, second, third = [m["receipt"] for _ in range(1) for m in _messages(socket, 3)]
        socket.ask(type="ack", queue="work", receipts=[first, "forged"], sub=sub, id=3)
        socket.next("ok")
        socket.ask(type="extend", queue="work", receipts=[second], visibility_timeout_ms=60_000, id=4)
        socket.next("ok")
        socket.ask(type="nack", queue="work", receipts=[second], id=5)
        socket.next("ok")
        assert socket.next("lost")["receipts"] == [third]
        socket.ask(type="ping", id=6)
        socket.next("pong")
        socket.ask(type="publish", queue="nowhere", messages=[{"body": 1}], id=7)
        socket.next("error")
        _read_stream(socket, http)
        http.delete("/v1/queues/work?confirm=work&discard=true")
        socket.next("ended")
        server.terminate()
        socket.next("bye")
        with pytest.raises(ConnectionClosed):
            socket.next("nothing")
    assert socket.seen == {"connected", "ok", "deliver", "lost", "pong", "error", "gap", "ended", "bye"}


def _messages(socket: Socket, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while len(found) < count:
        found += socket.next("deliver")["messages"]
    return found


def _read_stream(socket: Socket, http: httpx2.Client) -> None:
    http.post("/v1/queues/news/messages", json={"messages": [{"body": 1}]})
    http.post("/v1/queues/news/purge", json={"confirm": "news"})
    http.post("/v1/queues/news/messages", json={"messages": [{"body": 2, "headers": {"a": "b"}}]})
    socket.ask(type="subscribe", queue="news", **{"from": {"seq": 0}}, id=8)
    assert socket.next("ok")["resume"] == "gap"
    socket.next("gap")
    while "cursor" not in socket.next("deliver"):
        pass


def test_events_are_what_the_document_says(server: PushqServer, http: httpx2.Client) -> None:
    _publish_over_a_gap(http)
    events: list[tuple[str, dict[str, Any]]] = []
    with http.stream("GET", "/v1/queues/news/events?from=seq:0") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store, no-transform"
        assert answer.headers["x-accel-buffering"] == "no" and "ratelimit" in answer.headers
        name = ""
        for line in answer.iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                events.append((name, json.loads(line.removeprefix("data: "))))
                if name == "message":
                    http.delete("/v1/queues/news?confirm=news&discard=true")
    assert [kind for kind, _ in events] == ["gap", "message", "ended"]
    for kind, value in events:
        check(f"{kind.capitalize()}Event", value)


def _publish_over_a_gap(http: httpx2.Client) -> None:
    http.post("/v1/queues/news/messages", json={"messages": [{"body": 1}]})
    http.post("/v1/queues/news/purge", json={"confirm": "news"})
    http.post("/v1/queues/news/messages", json={"messages": [{"body": 2}]})
