"""The WebSocket protocol under hostile and clumsy clients: each wrong frame has its answer, and nobody else suffers."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import struct
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx2
import msgspec
import pytest
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as websocket_connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.support.consumers import Socket, SocketConsumer, call, http_client, raw_socket
from tests.support.server import PushqServer

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024
DEEP = 100_000
_names = itertools.count(1)


@pytest.fixture
async def http(shared_server: PushqServer) -> AsyncIterator[httpx2.AsyncClient]:
    async with http_client(shared_server) as http:
        yield http


@pytest.fixture
async def queue(http: httpx2.AsyncClient) -> str:
    return await made(http)


@pytest.fixture
async def socket(shared_server: PushqServer) -> AsyncIterator[Socket]:
    async with Socket.open(shared_server) as socket:
        yield socket


async def made(http: httpx2.AsyncClient, **config: Any) -> str:
    name = f"p{next(_names)}"
    await call(http, "PUT", name, config)
    return name


async def stats(http: httpx2.AsyncClient, queue: str) -> dict[str, int]:
    found: dict[str, int] = (await call(http, "GET", queue))["stats"]
    return found


async def assert_alive(socket: Socket) -> None:
    assert (await socket.ask(type="ping"))["type"] == "pong"


async def said(ws: ClientConnection) -> tuple[list[dict[str, Any]], int | None]:
    """Everything the server says until it closes, and the code it closes with."""
    frames: list[dict[str, Any]] = []
    async with asyncio.timeout(15):
        try:
            while True:
                data = await ws.recv()
                frames.append(msgspec.msgpack.decode(data) if isinstance(data, bytes) else json.loads(data))
        except ConnectionClosed:
            return frames, ws.close_code


def connect_frame(server: PushqServer) -> str:
    return json.dumps({"type": "connect", "token": server.key})


# ------------------------------------------------------------------------------------------ frames that make no sense

NONSENSE: list[str | bytes] = [
    "", "{", "null", "[]", "1", '"text"', "true", "{}", "[[]]", "[null]", "[1]", "NaN", "\u0000", b"\x00\xff",
    '{"type":null}', '{"type":5}', '{"type":"nope"}', '{"type":"nope","id":1}', '{"type":"CONNECT"}', '{"id":1}',
    '[{"type":"nope"}]', '{"type":"ping"}{"type":"ping"}', '{"type":"ping",}', '{"type":"\\ud800"}',
    "[" * DEEP, '{"a":' * DEEP, b'{"type":"ping","x":"\xff"}',
]  # fmt: skip


@pytest.mark.parametrize("frame", NONSENSE, ids=lambda frame: repr(frame[:30]))
async def test_what_is_no_frame_of_ours_is_told_and_ends_the_socket(
    shared_server: PushqServer, frame: str | bytes
) -> None:
    async with raw_socket(shared_server) as ws:
        await ws.send(connect_frame(shared_server))
        assert json.loads(await ws.recv())["type"] == "connected"
        await ws.send(frame)
        frames, code = await said(ws)
    assert [f["type"] for f in frames] == ["error"] and frames[0]["problem"]["code"] == "invalid-request"
    assert code == 4500


@pytest.mark.parametrize(
    "frame",
    [b"", b"\xc0", b"\x90", b"\x01", b"\xc1", b"\x80", b"\x81\xa4type\xa4nope", b"\x91\xc0", b"\xdf\xff\xff\xff\xff",
     b"\x91" * DEEP, b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xffshort"],
    ids=lambda frame: repr(frame[:12]),
)  # fmt: skip
async def test_what_is_no_frame_of_ours_in_messagepack_ends_the_socket(
    shared_server: PushqServer, frame: bytes
) -> None:
    async with raw_socket(shared_server, "pushq.v1.msgpack") as ws:
        await ws.send(msgspec.msgpack.encode({"type": "connect", "token": shared_server.key}))
        await ws.recv()
        await ws.send(frame)
        frames, code = await said(ws)
    assert [f["type"] for f in frames] == ["error"] and code == 4500


# ----------------------------------------------------------------------------- frames with a type we know, and a fault

FAULTY: list[tuple[dict[str, Any], str]] = [
    ({"type": "subscribe", "queue": "Q", "credits": 5}, "/credits"),
    ({"type": "subscribe", "queue": 5}, "/queue"),
    ({"type": "subscribe"}, ""),
    ({"type": "subscribe", "queue": "Q", "credit": 0}, "/credit"),
    ({"type": "subscribe", "queue": "Q", "credit": -1}, "/credit"),
    ({"type": "subscribe", "queue": "Q", "credit": 10_001}, "/credit"),
    ({"type": "subscribe", "queue": "Q", "credit": "many"}, "/credit"),
    ({"type": "subscribe", "queue": "Q", "ack": "never"}, "/ack"),
    ({"type": "subscribe", "queue": "Q", "group": "g"}, "/group"),
    ({"type": "subscribe", "queue": "Q", "from": "earliest"}, "/from"),
    ({"type": "subscribe", "queue": "Q", "visibility_timeout_ms": -1}, "/visibility_timeout_ms"),
    ({"type": "subscribe", "queue": "Q", "visibility_timeout_ms": 12 * 3600 * 1000 + 1}, "/visibility_timeout_ms"),
    ({"type": "subscribe", "queue": "S", "visibility_timeout_ms": 5}, "/visibility_timeout_ms"),
    ({"type": "subscribe", "queue": "S", "from": "yesterday"}, "/from"),
    ({"type": "subscribe", "queue": "S", "from": {"seq": -1}}, "/from"),
    ({"type": "subscribe", "queue": "S", "from": {"seq": True}}, "/from"),
    ({"type": "subscribe", "queue": "S", "from": {"seq": 1, "time": "x"}}, "/from"),
    ({"type": "subscribe", "queue": "S", "from": {"cursor": "not one"}}, "/from/cursor"),
    ({"type": "subscribe", "queue": "S", "from": {"cursor": "é"}}, "/from/cursor"),
    ({"type": "subscribe", "queue": "S", "from": {"time": "noon"}}, "/from/time"),
    ({"type": "unsubscribe", "sub": 77}, "/sub"),
    ({"type": "credit", "sub": 77, "n": 1}, "/sub"),
    ({"type": "ack", "queue": "Q", "receipts": "no list"}, "/receipts"),
    ({"type": "ack", "queue": "Q", "receipts": [1]}, "/receipts/0"),
    ({"type": "ack", "queue": "Q", "receipts": ["x"] * 10_001}, "/receipts"),
    (
        {"type": "ack", "queue": "Q", "receipts": [], "publish": [{"queue": "Q", "messages": [{"body": 1}]}]},
        "/receipts",
    ),
    ({"type": "ack", "queue": "Q", "receipts": ["x"], "publish": [{"queue": "Q"}]}, "/publish/0/messages"),
    ({"type": "nack", "queue": "Q", "receipts": [], "delay_ms": -1}, "/delay_ms"),
    ({"type": "extend", "queue": "Q", "receipts": []}, ""),
    ({"type": "extend", "queue": "Q", "receipts": [], "visibility_timeout_ms": -1}, "/visibility_timeout_ms"),
    ({"type": "publish", "queue": "Q", "messages": []}, "/messages"),
    ({"type": "publish", "queue": "Q", "messages": [{"body": 1}] * 1001}, "/messages"),
    ({"type": "publish", "queue": "Q", "messages": [{}]}, "/messages/0/body"),
    ({"type": "publish", "queue": "Q", "messages": [{"body": 1, "body_base64": "AA=="}]}, "/messages/0/body"),
    ({"type": "publish", "queue": "Q", "messages": [{"body_base64": "?"}]}, "/messages/0/body_base64"),
    ({"type": "publish", "queue": "Q", "messages": [{"body": 1}, {"body": 1, "priority": 1}]}, "/messages/1/priority"),
    ({"type": "publish", "queue": "Q", "messages": [{"body": 1, "delay_ms": -1}]}, "/messages/0/delay_ms"),
    ({"type": "publish", "queue": "Q", "messages": [{"body": 1, "id": ""}]}, "/messages/0/id"),
    ({"type": "publish", "queue": "Q", "messages": [{"body": 1, "key": "k" * 257}]}, "/messages/0/key"),
    ({"type": "publish", "queue": "Q", "messages": [{"body": 1, "headers": {"a": 1}}]}, "/messages/.../headers/..."),
    ({"type": "connect", "token": "again"}, ""),
]  # fmt: skip


@pytest.mark.parametrize("binary", [False, True], ids=["json", "msgpack"])
@pytest.mark.parametrize(("frame", "pointer"), FAULTY, ids=lambda part: repr(part)[:60])
async def test_a_faulty_request_is_refused_under_its_id_and_the_socket_stays(
    shared_server: PushqServer, http: httpx2.AsyncClient, frame: dict[str, Any], pointer: str, binary: bool
) -> None:
    queues = {"Q": await made(http), "S": await made(http, kind="stream")}
    frame = {**frame, **({"queue": queues[frame["queue"]]} if frame.get("queue") in queues else {})}
    async with Socket.open(shared_server, binary=binary) as socket:
        answer = await socket.ask(**frame)
        assert (answer["type"], answer["problem"]["code"], answer["problem"]["status"]) == (
            "error",
            "invalid-request",
            400,
        )
        pointers = [error["pointer"] for error in answer["problem"].get("errors", [])]
        if pointer and pointers:
            assert pointer.split("/")[1] == pointers[0].split("/")[1], pointers
        await assert_alive(socket)
    assert (await stats(http, queues["Q"]))["published_total"] == 0, "a refused publish stores nothing"


async def test_an_unknown_field_is_named_with_the_nearest_known_one(socket: Socket, queue: str) -> None:
    answer = await socket.ask(type="subscribe", queue=queue, credits=5)
    assert "'credits'" in answer["problem"]["detail"] and "'credit'" in answer["problem"]["detail"]


@pytest.mark.parametrize("request_id", [0, -1, 2**53, 2**70, "", "x" * 64, "é" * 64, " "])
async def test_an_id_is_echoed_as_it_was_sent(socket: Socket, request_id: Any) -> None:
    await socket.send({"type": "ping", "id": request_id})
    assert (await socket.frame("pong"))["id"] == request_id


@pytest.mark.parametrize("request_id", ["x" * 65, True, 1.5, [], {}])
async def test_a_wrong_id_is_refused_and_the_socket_stays(socket: Socket, request_id: Any) -> None:
    await socket.send({"type": "ping", "id": request_id})
    assert (await socket.frame("error"))["problem"]["code"] == "invalid-request"
    await assert_alive(socket)


async def test_a_whole_number_may_be_written_with_a_fraction_of_zero(socket: Socket, queue: str) -> None:
    assert (await socket.ask(type="publish", queue=queue, messages=[{"body": 1.0, "priority": 0.0}]))["type"] == "ok"
    assert (await socket.ask(type="subscribe", queue=queue, credit=1.0))["type"] == "ok"
    assert [message["body"] for message in await socket.messages(1)] == [1]
    for frames in (
        {"type": "ping", "id": 7.0},
        [{"type": "ping", "id": 7.0}],
        [{"type": "ping", "id": 7.0}, {"type": "pong"}],
    ):
        await socket.send(frames)
        assert (await socket.frame("pong"))["id"] == 7
    for wrong in (0.5, "1.0"):
        answer = await socket.ask(type="publish", queue=queue, messages=[{"body": 1, "priority": wrong}])
        assert answer["problem"]["code"] == "invalid-request"


async def test_a_request_without_an_id_gets_no_ok_and_still_its_errors(socket: Socket, queue: str) -> None:
    await socket.send({"type": "publish", "queue": queue, "messages": [{"body": 1}]})
    await socket.send({"type": "publish", "queue": "absent", "messages": [{"body": 1}]})
    error = await socket.frame("error")
    assert error["problem"]["code"] == "queue-not-found" and "id" not in error
    await assert_alive(socket)
    assert socket.inbox.empty()


async def test_frames_of_a_list_are_answered_one_by_one_whatever_stands_beside_them(socket: Socket, queue: str) -> None:
    await socket.send([
        {"type": "ping", "id": "a"},
        {"type": "subscribe", "queue": queue, "id": "b", "colour": "red"},
        {"type": "publish", "queue": queue, "id": "c", "messages": [{"body": 1}]},
        {"type": "ack", "queue": "absent", "id": "d", "receipts": []},
        {"type": "ping", "id": "e"},
    ])  # fmt: skip
    answers = {}
    for _ in range(5):
        frame = await asyncio.wait_for(socket.inbox.get(), 5)
        answers[frame["id"]] = frame["type"]
    assert answers == {"a": "pong", "b": "error", "c": "ok", "d": "error", "e": "pong"}


async def test_nonsense_in_a_list_ends_the_socket_after_what_stood_before_it(shared_server: PushqServer) -> None:
    async with raw_socket(shared_server) as ws:
        await ws.send(connect_frame(shared_server))
        await ws.recv()
        await ws.send('[{"type":"ping","id":1},{"type":"nope"},{"type":"ping","id":2}]')
        frames, code = await said(ws)
    flat = [f for frame in frames for f in (frame if isinstance(frame, list) else [frame])]
    assert [f["type"] for f in flat if f["type"] != "pong"] == ["error"] and code == 4500
    assert {"type": "pong", "id": 2} not in flat


async def test_a_list_of_more_requests_than_may_be_in_progress_ends_the_socket(shared_server: PushqServer) -> None:
    """All of a frame is handled in one turn, in which nobody else is served."""
    for frame in ('{"type":"ping"}', '{"type":"ack"}'):
        async with raw_socket(shared_server) as ws:
            await ws.send(connect_frame(shared_server))
            await ws.recv()
            await ws.send("[" + ",".join([frame] * 4_097) + "]")
            frames, code = await said(ws)
        assert [f["problem"]["code"] for f in frames] == ["invalid-request"] and code == 4500


VALUES_WITHOUT_A_JSON_FORM = {
    "broken text": b"\xa2\xff\xfe", "deep": b"\x91" * 900 + b"\x01", "a map as key": b"\x81\x80\x01",
    "a time": b"\xd6\xff\x00\x00\x00\x01", "no time": b"\xc7\x0c\xff" + b"\x00" * 4 + b"\x7f" + b"\xff" * 7,
    "an extension": b"\xd4\x05\x01", "bytes inside": b"\x91\xc4\x01a", "NaN": b"\xcb\x7f\xf8" + bytes(6),
}  # fmt: skip


@pytest.mark.parametrize("body", VALUES_WITHOUT_A_JSON_FORM.values(), ids=VALUES_WITHOUT_A_JSON_FORM.keys())
async def test_a_value_without_a_json_form_is_refused_under_its_id(
    shared_server: PushqServer, queue: str, body: bytes
) -> None:
    async with Socket.open(shared_server, binary=True) as socket:
        await socket.send({"type": "publish", "id": 7, "queue": queue, "messages": [{"body": msgspec.Raw(body)}]})
        error = await socket.frame("error")
        assert (error["id"], error["problem"]["errors"][0]["pointer"]) == (7, "/messages/0/body")
        await assert_alive(socket)


async def test_a_deeply_nested_body_is_delivered_or_refused_and_never_fatal(
    shared_server: PushqServer, http: httpx2.AsyncClient
) -> None:
    queue = await made(http, max_message_bytes=MIB)
    for depth in (100, 900, 1_100, DEEP):
        body = "[" * depth + "]" * depth
        async with Socket.open(shared_server) as text, Socket.open(shared_server, binary=True) as binary:
            await text.ws.send(f'{{"type":"publish","queue":"{queue}","id":1000,"messages":[{{"body":{body}}}]}}')
            answer = await asyncio.wait_for(text.inbox.get(), 5)
            assert answer["type"] in ("ok", "error", "closed")
            if answer["type"] == "ok":
                consumer = await SocketConsumer.begin(binary, queue)
                (message,) = await consumer.take(1)
                assert await consumer.ack([message["receipt"]]) == [True]
    async with Socket.open(shared_server) as socket:
        await assert_alive(socket)


async def test_a_body_of_33_levels_is_refused_by_name_and_one_of_32_is_not(
    shared_server: PushqServer, http: httpx2.AsyncClient
) -> None:
    queue = await made(http)
    deep = json.loads("[" * 33 + "]" * 33)
    for is_binary, more in ((False, {}), (True, {}), (False, {"key": "k"})):
        async with Socket.open(shared_server, binary=is_binary) as socket:
            messages = [{"body": body, **more} for body in (1, deep, deep[0])]
            refused = await socket.ask(type="publish", queue=queue, messages=messages)
            assert [one["pointer"] for one in refused["problem"]["errors"]] == ["/messages/1/body"]
            assert "more than 32 levels" in refused["problem"]["detail"]
            assert (await socket.ask(type="publish", queue=queue, messages=messages[2:]))["type"] == "ok"
    answer = await http.post(f"/v1/queues/{queue}/messages", json={"messages": [{"body": deep}]})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (400, "/messages/0/body")


async def test_queues_that_are_absent_have_their_own_code(socket: Socket) -> None:
    for frame in (
        {"type": "subscribe", "queue": "absent"},
        {"type": "publish", "queue": "absent", "messages": [{"body": 1}]},
        {"type": "ack", "queue": "absent", "receipts": []},
        {"type": "subscribe", "queue": "../etc\u0000"},
    ):
        answer = await socket.ask(**frame)
        assert (answer["type"], answer["problem"]["code"]) == ("error", "queue-not-found")
    await assert_alive(socket)


async def test_a_session_has_a_thousand_subscriptions_and_not_one_more(socket: Socket, queue: str) -> None:
    await socket.send([{"type": "subscribe", "queue": queue} for _ in range(1000)])
    assert (await socket.ask(type="subscribe", queue=queue))["type"] == "error"
    assert (await socket.ask(type="unsubscribe", sub=7))["type"] == "ok"
    answer = await socket.ask(type="subscribe", queue=queue)
    assert (answer["type"], answer["sub"]) == ("ok", 1001)


@pytest.mark.parametrize(
    "config",
    [{}, {"delivery": "exactly_once"}, {"ordering": "strict"}, {"partitions": 3}],
    ids=["work", "stored leases", "strict", "partitions"],
)
async def test_who_has_read_that_a_subscription_ended_finds_what_it_held(
    socket: Socket, http: httpx2.AsyncClient, config: dict[str, Any]
) -> None:
    queue = await made(http, max_attempts=100, **config)
    await call(http, "POST", f"{queue}/messages", {"messages": [{"body": n, "id": f"{n}"} for n in range(10)]})
    for _ in range(10):  # one round shows half of the times that the answer was too early
        sub = (await SocketConsumer.begin(socket, queue, credit=10)).subscribed["sub"]
        for _ in range(10):
            await asyncio.wait_for(socket.inbox.get(), 10)
        assert (await socket.ask(type="unsubscribe", sub=sub))["type"] == "ok"
        found = await stats(http, queue)
        assert (found["ready"], found["in_flight"]) == (10, 0)


@pytest.mark.parametrize(
    "config",
    [{}, {"delivery": "exactly_once"}, {"ordering": "strict"}, {"partitions": 3}],
    ids=["work", "stored leases", "strict", "partitions"],
)
async def test_an_ack_counts_though_the_subscription_ends_right_behind_it(
    socket: Socket, http: httpx2.AsyncClient, config: dict[str, Any]
) -> None:
    queue = await made(http, max_attempts=1, **config)
    await call(http, "POST", f"{queue}/messages", {"messages": [{"body": n, "id": f"{n}"} for n in range(10)]})
    sub = (await SocketConsumer.begin(socket, queue, credit=10)).subscribed["sub"]
    held = [(await asyncio.wait_for(socket.inbox.get(), 10))["message"]["receipt"] for _ in range(10)]
    await socket.send([{"type": "ack", "queue": queue, "receipts": held}, {"type": "unsubscribe", "sub": sub}])
    assert (await socket.ask(type="ack", queue=queue, receipts=held))["results"] == [
        {"receipt": receipt, "ok": True} for receipt in held
    ]
    assert (await stats(http, queue))["acked_total"] == 10


@pytest.mark.parametrize(
    "config",
    [{}, {"delivery": "exactly_once"}, {"ordering": "strict"}, {"partitions": 3}],
    ids=["work", "stored leases", "strict", "partitions"],
)
async def test_an_ack_that_publishes_counts_though_the_subscription_ends_right_behind_it(
    socket: Socket, http: httpx2.AsyncClient, config: dict[str, Any]
) -> None:
    """Its receipts were stale, and nothing was published: the messages came to others again."""
    queue = await made(http, max_attempts=1, **config)
    await call(http, "POST", f"{queue}/messages", {"messages": [{"body": n, "id": f"{n}"} for n in range(10)]})
    sub = (await SocketConsumer.begin(socket, queue, credit=10)).subscribed["sub"]
    held = [(await asyncio.wait_for(socket.inbox.get(), 10))["message"]["receipt"] for _ in range(9)]
    publish = [{"queue": queue, "messages": [{"body": "out", "id": "out"}]}]
    ack = {"type": "ack", "id": "a", "queue": queue, "receipts": held, "publish": publish}
    await socket.send([ack, {"type": "unsubscribe", "sub": sub}])
    assert [row["ok"] for row in (await socket.frame("ok"))["results"]] == [True] * 9
    found = await stats(http, queue)
    assert (found["acked_total"], found["ready"], found["in_flight"], found["dead"]) == (9, 1, 0, 1)


# ------------------------------------------------------------------------------------------------- the first frame


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ('{"type":"ping","id":1}', 4501),
        ('{"type":"publish","queue":"q","messages":[{"body":1}]}', 4501),
        ('[{"type":"subscribe","queue":"q"}]', 4501),
        ('{"type":"connect"}', 4501),
        ('{"type":"connect","token":""}', 4501),
        ('{"type":"connect","token":"pushq_x_y"}', 4501),
        ('{"type":"connect","token":"é\\u0000"}', 4501),
        ('{"type":"connect","ticket":"never given out"}', 4501),
        ('{"type":"connect","token":5}', 4500),
        ('{"type":"connect","tokens":"x"}', 4500),
        ('{"type":"publish","queue":5}', 4500),
        ("{", 4500),
        ("null", 4500),
        ("[]", 4500),
    ],
)
async def test_a_wrong_first_frame_is_told_and_ends_the_socket(
    shared_server: PushqServer, frame: str, code: int
) -> None:
    async with raw_socket(shared_server) as ws:
        await ws.send(frame)
        frames, closed = await said(ws)
    assert [f["type"] for f in frames] == ["error"]
    assert frames[0]["problem"]["code"] == ("unauthenticated" if code == 4501 else "invalid-request")
    assert closed == code


async def test_whoever_does_not_connect_in_5_s_is_told_and_closed(shared_server: PushqServer) -> None:
    async with raw_socket(shared_server) as ws:
        before = asyncio.get_running_loop().time()
        frames, code = await said(ws)
        waited = asyncio.get_running_loop().time() - before
    assert code == 4002 and [f["type"] for f in frames] == ["error"]
    assert 4.5 <= waited <= 8


async def test_an_upgrade_with_a_wrong_key_is_accepted_told_and_closed(shared_server: PushqServer) -> None:
    for value in ("Bearer wrong", "Basic abc", "Bearer", ""):
        async with raw_socket(shared_server, additional_headers={"Authorization": value}) as ws:
            frames, code = await said(ws)
        assert [f["problem"]["code"] for f in frames] == ["unauthenticated"] and code == 4501, value


async def test_the_credential_of_the_upgrade_is_enough(shared_server: PushqServer) -> None:
    async with raw_socket(shared_server, additional_headers=shared_server.headers) as ws:
        await ws.send('{"type":"connect","id":"c"}')
        connected = json.loads(await ws.recv())
    assert (connected["type"], connected["id"]) == ("connected", "c")
    assert connected["limits"]["frame_bytes_max"] == 4 * MIB


async def test_a_ticket_is_spent_by_its_first_use(shared_server: PushqServer, http: httpx2.AsyncClient) -> None:
    async def ticket() -> str:
        answer = (await http.post("/v1/tickets", json={})).raise_for_status()
        text: str = answer.json()["ticket"]
        return text

    spent = await ticket()
    for wanted in ("connected", "error"):
        async with raw_socket(shared_server) as ws:
            await ws.send(json.dumps({"type": "connect", "ticket": spent}))
            assert json.loads(await ws.recv())["type"] == wanted
    spent = await ticket()
    url = f"{shared_server.ws_url}?ticket={spent}"
    for wanted in ("connected", "error"):
        async with raw_socket(shared_server, url=url) as ws:
            if wanted == "connected":
                await ws.send('{"type":"connect"}')
            first = json.loads(await ws.recv())
            assert first["type"] == wanted
    assert first["problem"]["code"] == "unauthenticated"


async def test_another_keys_session_is_not_resumed(shared_server: PushqServer, http: httpx2.AsyncClient) -> None:
    made_key = await http.post("/v1/keys", json={"name": "other", "scopes": ["consume:*"]})
    other = made_key.raise_for_status().json()["key"]
    async with Socket.open(shared_server) as mine:
        async with raw_socket(shared_server) as ws:
            await ws.send(json.dumps({"type": "connect", "token": other, "resume": {"session": mine.session}}))
            connected = json.loads(await ws.recv())
        assert connected["type"] == "connected" and connected["session"] != mine.session
        assert not connected["resumed"]
        await assert_alive(mine)


# ------------------------------------------------------------------------------------------------- the handshake


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:1", "https://", "file://"])
async def test_a_foreign_page_is_refused_before_the_upgrade(shared_server: PushqServer, origin: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with raw_socket(shared_server, origin=origin):
            pass
    response = refused.value.response
    assert response.status_code == 403
    assert response.headers["content-type"] == "application/problem+json"
    assert json.loads(response.body or b"")["code"] == "forbidden"


async def test_a_page_of_the_server_itself_may_connect(shared_server: PushqServer) -> None:
    async with raw_socket(shared_server, origin=shared_server.url) as ws:
        await ws.send(connect_frame(shared_server))
        assert json.loads(await ws.recv())["type"] == "connected"


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        ([], None),
        (["pushq.v1.json"], "pushq.v1.json"),
        (["pushq.v1.msgpack"], "pushq.v1.msgpack"),
        (["pushq.v1.msgpack", "pushq.v1.json"], "pushq.v1.msgpack"),
        (["pushq.v9", "pushq.v1.json", "pushq.v1.msgpack"], "pushq.v1.json"),
        (["something.else"], None),
    ],
)
async def test_the_first_subprotocol_that_both_speak_is_chosen(
    shared_server: PushqServer, offered: list[str], chosen: str | None
) -> None:
    async with raw_socket(shared_server, *offered) as ws:
        assert ws.subprotocol == chosen
        frame = {"type": "connect", "token": shared_server.key}
        await ws.send(msgspec.msgpack.encode(frame) if chosen == "pushq.v1.msgpack" else json.dumps(frame))
        answer = await ws.recv()
        assert isinstance(answer, bytes) == (chosen == "pushq.v1.msgpack")


async def test_a_plain_request_to_the_sockets_path_is_a_problem(http: httpx2.AsyncClient) -> None:
    answer = await http.get("/v1/ws")
    assert 400 <= answer.status_code < 500 and answer.headers["content-type"] == "application/problem+json"


# ---------------------------------------------------------------------------------------------- frames as RFC 6455


async def test_a_frame_just_below_4_mib_is_taken(shared_server: PushqServer, http: httpx2.AsyncClient) -> None:
    queue = await made(http, max_message_bytes=MIB)
    async with Socket.open(shared_server) as socket:
        body = "x" * (MIB - 2)
        answer = await socket.ask(
            type="publish", queue=queue, messages=[{"body": body}] * 3 + [{"body": "x" * 800_000}]
        )
        assert answer["type"] == "ok" and len(answer["messages"]) == 4


async def test_a_frame_in_many_fragments_is_one_frame(socket: Socket, queue: str) -> None:
    text = json.dumps(
        {"type": "publish", "queue": queue, "id": "f", "messages": [{"body": "ü€😀" * 50}]}, ensure_ascii=False
    )
    await socket.ws.send([text[n : n + 1] for n in range(len(text))])
    assert (await socket.frame("ok"))["id"] == "f"


async def test_text_and_binary_frames_carry_the_same_json(socket: Socket) -> None:
    await socket.ws.send(b'{"type":"ping","id":"binary"}')
    await socket.ws.send('{"type":"ping","id":"text"}')
    assert [(await socket.frame("pong"))["id"] for _ in range(2)] == ["binary", "text"]


class Raw:
    """A socket on which the test writes the bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.reader = reader
        self.writer = writer

    async def frame(self, opcode: int, payload: bytes, *, first: int = 0x80, masked: bool = True) -> None:
        size = len(payload)
        head = bytes([first | opcode])
        mask = b"\0\0\0\0" if masked else b""
        bit = 0x80 if masked else 0
        if size < 126:
            head += bytes([bit | size])
        elif size < 65536:
            head += bytes([bit | 126]) + struct.pack(">H", size)
        else:
            head += bytes([bit | 127]) + struct.pack(">Q", size)
        self.writer.write(head + mask + payload)
        await self.writer.drain()

    async def close_code(self) -> int | None:
        """Reads to the end; the code of the close frame, or None when the socket was just cut."""
        async with asyncio.timeout(10):
            data = await self.reader.read(-1)
        at = 0
        while at + 2 <= len(data):
            size, head = data[at + 1] & 0x7F, 2
            if size == 126:
                size, head = struct.unpack_from(">H", data, at + 2)[0], 4
            if data[at] & 0x0F == 8:
                code: int = struct.unpack_from(">H", data, at + head)[0]
                return code
            at += head + size
        return None


@asynccontextmanager
async def raw(server: PushqServer, *, connected: bool = True) -> AsyncIterator[Raw]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        key = b64encode(os.urandom(16)).decode()
        writer.write(
            f"GET /v1/ws HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
        )
        assert b" 101 " in (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0]
        self = Raw(reader, writer)
        if connected:
            await self.frame(1, connect_frame(server).encode())
            await reader.readuntil(b'"subscriptions_max":1000}}')
        yield self
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


Write = Callable[[Raw], Any]


@pytest.mark.parametrize(
    ("write", "code"),
    [
        pytest.param(lambda raw: raw.frame(1, b"{}", masked=False), 4500, id="unmasked"),
        pytest.param(lambda raw: raw.frame(3, b"x"), 4500, id="reserved opcode"),
        pytest.param(lambda raw: raw.frame(1, b"{}", first=0xC0), 4500, id="reserved bit"),
        pytest.param(lambda raw: raw.frame(9, b"x" * 126), 4500, id="long ping"),
        pytest.param(lambda raw: raw.frame(9, b"x", first=0), 4500, id="fragmented ping"),
        pytest.param(lambda raw: raw.frame(0, b"x"), 4500, id="continuation of nothing"),
        pytest.param(lambda raw: raw.frame(8, b"x"), 4500, id="close of one byte"),
        pytest.param(lambda raw: raw.frame(8, struct.pack(">H", 1)), 4500, id="close code 1"),
    ],
)
async def test_a_frame_that_breaks_the_rfc_is_told_and_ends_the_socket(
    shared_server: PushqServer, write: Write, code: int
) -> None:
    async with raw(shared_server) as socket:
        await write(socket)
        assert await socket.close_code() == code


@pytest.mark.parametrize("parts", [[4 * MIB + 1], [3 * MIB, 3 * MIB]], ids=["one frame", "two fragments"])
async def test_a_frame_above_4_mib_is_told_and_ends_the_socket(shared_server: PushqServer, parts: list[int]) -> None:
    """The farewell arrives although the client is still sending: to close on it would reset the connection."""
    for _ in range(10):
        async with raw(shared_server) as socket:

            async def write(socket: Raw = socket) -> None:
                for number, size in enumerate(parts):
                    last = 0x80 if number == len(parts) - 1 else 0
                    await socket.frame(0 if number else 1, b"x" * size, first=last)

            writing = asyncio.create_task(write())
            assert await socket.close_code() == 4513
            writing.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await writing


async def test_a_length_beyond_the_limit_is_refused_before_the_bytes_come(shared_server: PushqServer) -> None:
    async with raw(shared_server) as socket:
        socket.writer.write(bytes([0x81, 0x80 | 127]) + struct.pack(">Q", 1 << 30) + b"\0\0\0\0" + b"x" * 1000)
        assert await socket.close_code() == 4513


async def test_a_ping_of_the_rfc_is_answered_in_the_middle_of_a_fragmented_frame(shared_server: PushqServer) -> None:
    async with raw(shared_server) as socket:
        await socket.frame(1, b'{"type":"ping",', first=0)
        await socket.frame(9, b"hello")
        await socket.frame(0, b'"id":"whole"}')
        async with asyncio.timeout(5):
            assert b"hello" in await socket.reader.readuntil(b"hello")
            assert b"pong" in await socket.reader.readuntil(b'"whole"}')


async def test_sockets_that_end_in_mid_frame_leave_nothing_behind(
    shared_server: PushqServer, http: httpx2.AsyncClient, queue: str
) -> None:
    publish = json.dumps({"type": "publish", "queue": queue, "messages": [{"body": "x" * 1000}]}).encode()
    for number in range(40):
        async with raw(shared_server, connected=number % 4 != 0) as socket:
            if number % 2:
                await socket.frame(1, json.dumps({"type": "subscribe", "queue": queue}).encode())
            head = bytes([0x81, 0x80 | 126]) + struct.pack(">H", len(publish)) + b"\0\0\0\0"
            socket.writer.write((head + publish)[: number * 25 + 1])
            await socket.writer.drain()
            if number % 3 == 0:
                socket.writer.transport.abort()

    async def nobody() -> bool:
        return (await stats(http, queue))["consumers"] == 0

    async with asyncio.timeout(10):
        while not await nobody():  # noqa: ASYNC110 - what is waited for is the server's
            await asyncio.sleep(0.05)
    assert (await stats(http, queue))["published_total"] == 0


# ------------------------------------------------------------------------------------------------------ load


async def test_more_requests_than_may_be_in_progress_are_all_answered_once(
    shared_server: PushqServer, http: httpx2.AsyncClient, queue: str
) -> None:
    count = 6_000
    async with raw_socket(shared_server) as ws:
        await ws.send(connect_frame(shared_server))
        await ws.recv()
        frames = [{"type": "publish", "queue": queue, "id": n, "messages": [{"body": n}]} for n in range(count)]

        async def write() -> None:
            for n in range(0, count, 3000):
                await ws.send(json.dumps(frames[n : n + 3000]))

        writing = asyncio.create_task(write())
        answered: list[int] = []
        async with asyncio.timeout(60):
            while len(answered) < count:
                found = json.loads(await ws.recv())
                for frame in found if isinstance(found, list) else [found]:
                    assert frame["type"] == "ok" or frame["problem"]["code"] == "overloaded", frame
                    answered.append(frame["id"])
        await writing
    assert sorted(answered) == list(range(count))


async def test_a_consumer_that_does_not_read_holds_nobody_back_and_little_memory(
    start_server: Callable[..., PushqServer],
) -> None:
    server = start_server()
    async with http_client(server) as http:
        queue = await made(http)
        async with raw(server) as deaf:
            await deaf.frame(1, json.dumps({"type": "subscribe", "queue": queue, "credit": 10_000}).encode())
            await asyncio.sleep(0.1)
            before = server.rss_anon_kib()
            async with Socket.open(server) as socket:
                body = "x" * 40_000
                for _ in range(40):
                    answer = await socket.ask(type="publish", queue=queue, messages=[{"body": body}] * 25)
                    assert answer["type"] == "ok"
                reader = await SocketConsumer.begin(socket, queue, credit=500)
                got = 0
                while got <= 700:
                    part = await reader.some(200, seconds=10)
                    assert part, "the deaf one got more than its outbox holds"
                    assert all(await reader.ack([message["receipt"] for message in part]))
                    got += len(part)
            assert server.rss_anon_kib() - before < 64 * 1024


@pytest.mark.parametrize("is_waited_for", [False, True], ids=["little memory", "closed after 10 s"])
async def test_a_reader_of_a_stream_that_does_not_read_takes_little_memory_and_is_closed(
    start_server: Callable[..., PushqServer], *, is_waited_for: bool
) -> None:
    server = start_server()
    async with http_client(server) as http:
        stream = await made(http, kind="stream")
        async with raw(server) as deaf, Socket.open(server) as socket:
            await deaf.frame(1, json.dumps({"type": "subscribe", "queue": stream, "from": "earliest"}).encode())
            reader = await SocketConsumer.begin(socket, stream, **{"from": "earliest"})
            before = server.rss_anon_kib()
            body = "x" * 40_000
            for _ in range(40):
                answer = await socket.ask(type="publish", queue=stream, messages=[{"body": body}] * 25)
                assert answer["type"] == "ok"
            assert len(await reader.take(1000)) == 1000
            assert server.rss_anon_kib() - before < 64 * 1024
            if not is_waited_for:
                return

            async def gone() -> bool:
                return (await stats(http, stream))["consumers"] == 1

            async with asyncio.timeout(20):
                while not await gone():  # noqa: ASYNC110 - what is waited for is the server's
                    await asyncio.sleep(0.2)


async def test_a_client_that_asks_without_reading_the_answers_takes_little_memory(
    start_server: Callable[..., PushqServer],
) -> None:
    server = start_server()
    async with raw(server) as deaf:
        before = server.rss_anon_kib()
        ping = json.dumps([{"type": "ping", "id": "x" * 60}] * 2000).encode()
        try:
            async with asyncio.timeout(5):
                for _ in range(400):
                    await deaf.frame(1, ping)
        except TimeoutError:
            pass  # the server stopped reading, as it should
        assert server.rss_anon_kib() - before < 64 * 1024
        async with Socket.open(server) as socket:
            await assert_alive(socket)


async def test_a_client_that_pings_without_reading_the_pongs_takes_little_memory(
    start_server: Callable[..., PushqServer],
) -> None:
    server = start_server()
    async with raw(server) as deaf:
        before = server.rss_anon_kib()
        try:
            async with asyncio.timeout(4):
                for _ in range(1_000_000):
                    await deaf.frame(9, b"x" * 125)
        except (TimeoutError, ConnectionError):
            pass  # the server stopped reading and then closed, as it should
        assert server.rss_anon_kib() - before < 16 * 1024


async def test_a_socket_that_asks_for_too_much_is_told_why_before_4008(shared_server: PushqServer) -> None:
    refused = {"type": "credit", "sub": 7, "n": 1}
    async with raw_socket(shared_server) as ws:
        await ws.send(connect_frame(shared_server))
        await ws.send(json.dumps([refused] * 1_100))
        frames, code = await said(ws)
    assert code == 4008
    problem = frames[-1]["problem"]
    assert (frames[-1]["type"], problem["code"], "id" in frames[-1]) == ("error", "rate-limited", False)
    assert "more than 1000 refused requests" in problem["detail"] and problem["retry_after_ms"] == 1000


async def test_a_socket_whose_session_went_on_elsewhere_is_told_so_before_4509(shared_server: PushqServer) -> None:
    hello = {"type": "connect", "token": shared_server.key}
    async with raw_socket(shared_server) as older, raw_socket(shared_server) as newer:
        await older.send(json.dumps(hello))
        session = json.loads(await older.recv())["session"]
        await newer.send(json.dumps(hello | {"resume": {"session": session}}))
        frames, code = await said(older)
        assert json.loads(await newer.recv())["session"] == session
    assert code == 4509 and [frame["type"] for frame in frames] == ["error"]
    assert frames[0]["problem"]["code"] == "conflict" and "newer connection" in frames[0]["problem"]["detail"]


async def test_a_kicked_socket_gets_bye_before_4003(shared_server: PushqServer, http: httpx2.AsyncClient) -> None:
    async with raw_socket(shared_server) as ws:
        await ws.send(connect_frame(shared_server))
        await ws.recv()
        for item in (await http.get("/v1/connections?limit=1000")).json()["items"]:  # whoever else is still there
            await http.delete(f"/v1/connections/{item['id']}")
        frames, code = await said(ws)
    assert code == 4003 and [frame["type"] for frame in frames] == ["bye"]
    assert (frames[0]["code"], frames[0]["retry_ms"] > 0) == (4003, True)


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["websocket", "pushq", "pong"])
async def test_a_flood_of_pings_is_closed_with_4008(shared_server: PushqServer, kind: str) -> None:
    async with websocket_connect(shared_server.ws_url) as socket:
        await socket.send(json.dumps({"type": "connect", "token": shared_server.key}))
        await socket.recv()
        with pytest.raises(ConnectionClosed) as closed:
            await flood(socket, kind)
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 4008


async def flood(socket: ClientConnection, kind: str) -> None:
    for _ in range(300):
        await (socket.ping() if kind == "websocket" else socket.send(PINGS[kind]))
    while True:
        await socket.recv()


PINGS = {"pushq": '{"type":"ping"}', "pong": '[{"type":"pong"},{"type":"pong"}]'}


@pytest.mark.anyio
async def test_lists_in_a_list_are_no_frame(shared_server: PushqServer) -> None:
    async with websocket_connect(shared_server.ws_url) as socket:
        await socket.send(json.dumps({"type": "connect", "token": shared_server.key}))
        await socket.recv()
        await socket.send('[[{"type":"ping"}],{"type":"ping"}]')
        assert json.loads(await socket.recv())["type"] == "error"
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 4500


async def test_a_subscribe_is_told_the_back_off_that_a_queue_has(http: httpx2.AsyncClient, socket: Socket) -> None:
    told = []
    for config in ({"retry_backoff_ms": 250}, {}):
        answer = await socket.ask(type="subscribe", queue=await made(http, **config))
        told.append(answer.get("retry_backoff_ms"))
    assert told == [250, None]


async def test_what_a_handler_begins_with_is_checked_like_any_receipts(socket: Socket, queue: str) -> None:
    sub = (await socket.ask(type="subscribe", queue=queue, attempts="begun"))["sub"]
    assert (await socket.ask(type="begin", sub=sub, receipts=["forged", ""]))["type"] == "ok"
    many = await socket.ask(type="begin", sub=sub, receipts=["x"] * 10_001)
    assert many["problem"]["errors"][0]["pointer"] == "/receipts"
    other = await socket.ask(type="begin", sub=sub + 1, receipts=[])
    assert other["problem"]["errors"][0]["pointer"] == "/sub"
    wrong = await socket.ask(type="subscribe", queue=queue, attempts="never")
    assert wrong["problem"]["code"] == "invalid-request"
