"""The HAProxy file that we ship, with the real HAProxy and a real server: TLS ends there, addresses arrive."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest
from websockets.asyncio.client import connect as connect_socket
from websockets.exceptions import ConnectionClosed

from gateway.listener.proxy_gate import Entrance
from gateway.listener.proxy_header import networks
from push.client import connect
from push.client.model import TransportName
from tests.support.haproxy import SOURCE, Haproxy
from tests.support.server import PushqServer
from tests.support.tls import Authority
from tests.support.told_client import listening

CLIENT = "127.0.0.9"
"""A client with an address of its own."""
TRUSTING = {"PUSHQ_HTTP__PROXY_PROTOCOL": "true", "PUSHQ_HTTP__TRUSTED_PROXIES": SOURCE}
FIRST_EVENT_SECONDS_MAX = 2.0
LEFT_SECONDS_MAX = 3.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PushqServer]:
    with PushqServer(tmp_path / "data", env=TRUSTING) as server:
        yield server


@pytest.fixture
def front(server: PushqServer, authority: Authority, tmp_path: Path) -> Iterator[Haproxy]:
    with Haproxy(tmp_path, authority, f"127.0.0.1:{server.port}") as front:
        yield front


def through(front: Haproxy, server: PushqServer) -> httpx2.Client:
    return httpx2.Client(base_url=front.url, headers=server.headers, verify=front.tls, timeout=15)


def test_the_file_has_no_mistake_and_nothing_to_warn_of(authority: Authority, tmp_path: Path) -> None:
    said = Haproxy(tmp_path, authority, "127.0.0.1:1").check()
    assert (said.returncode, said.stderr) == (0, ""), said.stderr


@pytest.mark.anyio
async def test_every_transport_goes_through_it(server: PushqServer, front: Haproxy) -> None:
    with through(front, server) as http:
        assert http.put("/v1/queues/orders").status_code == 201
        assert http.get("/lbz").status_code == 200
        assert http.get("/metrics").status_code == 404
    transports: list[TransportName] = ["ws", "sse", "poll"]
    for transport in transports:
        async with connect(front.url, server.key, transport=transport, tls=front.tls) as pushq:
            await pushq.publish("orders", transport)
            async with pushq.subscribe("orders", credit=1) as messages:
                message = await messages.get()
                assert message.body == transport
                await message.ack()


def test_metrics_stay_behind_it_however_they_are_spelled(front: Haproxy) -> None:
    for path in ("/metrics", "/%6detrics", "/%6D%65%74rics", "/metric%73?a=1"):
        with (
            socket.create_connection(("127.0.0.1", front.port), timeout=15) as raw,
            front.tls.wrap_socket(raw, server_hostname="127.0.0.1") as tls,
        ):
            tls.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
            assert tls.recv(4096).startswith(b"HTTP/1.1 404"), path


def test_an_event_leaves_at_once_and_is_not_collected(server: PushqServer, front: Haproxy) -> None:
    with through(front, server) as http, http.stream("GET", "/v1/queues/orders/events?credit=10") as missing:
        assert missing.status_code == 404
    with through(front, server) as http:
        http.put("/v1/queues/orders")
        with http.stream("GET", "/v1/queues/orders/events?credit=10", headers={"Accept-Encoding": "gzip"}) as stream:
            lines = stream.iter_lines()
            for number in range(3):
                began = time.monotonic()
                httpx2.post(
                    f"{front.url}/v1/queues/orders/messages",
                    json={"messages": [{"body": number}]},
                    headers=server.headers,
                    verify=front.tls,
                )
                data = next(line for line in lines if line.startswith("data: "))
                assert json.loads(data[6:])["body"] == number
                assert time.monotonic() - began < FIRST_EVENT_SECONDS_MAX


def test_a_reader_that_left_holds_no_message_back(server: PushqServer, front: Haproxy) -> None:
    with through(front, server) as http:
        http.put("/v1/queues/orders")
        with http.stream("GET", "/v1/queues/orders/events?credit=10") as stream:
            assert stream.status_code == 200
        deadline = time.monotonic() + LEFT_SECONDS_MAX
        while http.get("/v1/queues/orders").json()["stats"]["consumers"]:
            assert time.monotonic() < deadline, "the server does not know that the reader left"
            time.sleep(0.02)


@pytest.mark.anyio
async def test_the_server_sees_the_address_of_the_client(authority: Authority, tmp_path: Path) -> None:
    async with listening(Entrance(trusted=networks([SOURCE]))) as port:
        with Haproxy(tmp_path, authority, f"127.0.0.1:{port}") as front:
            from_client = httpx2.AsyncHTTPTransport(local_address=CLIENT, verify=front.tls)
            async with httpx2.AsyncClient(transport=from_client, base_url=front.url) as http:
                told = (await http.get("/x", headers={"X-Forwarded-For": "203.0.113.9"})).json()
                assert told["client"][0] == CLIENT
                told = (await http.get("/x/events")).json()
                assert told["client"][0] == CLIENT
            options = {"ssl": front.tls, "local_addr": (CLIENT, 0)}
            async with connect_socket(front.ws_url, **options) as ws:
                assert json.loads(await ws.recv())["client"][0] == CLIENT


@pytest.mark.anyio
async def test_the_list_of_connections_has_the_addresses_of_the_clients(server: PushqServer, front: Haproxy) -> None:
    with through(front, server) as http:
        http.put("/v1/queues/orders")
        options = {"ssl": front.tls, "local_addr": (CLIENT, 0)}
        async with connect_socket(front.ws_url, **options) as ws:
            await ws.send(json.dumps({"type": "connect", "token": server.key}))
            assert json.loads(await ws.recv())["type"] == "connected"
            own = httpx2.HTTPTransport(local_address=CLIENT, verify=front.tls)
            with (
                httpx2.Client(transport=own, base_url=front.url, headers=server.headers) as reader,
                reader.stream("GET", "/v1/queues/orders/events"),
            ):
                items = http.get("/v1/connections").json()["items"]
                assert {(item["transport"], item["address"]) for item in items} == {
                    ("ws", CLIENT),
                    ("sse", CLIENT),
                }


def test_whoever_goes_around_it_cannot_name_a_client(server: PushqServer, front: Haproxy) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as raw:
        raw.sendall(b"PROXY TCP4 192.0.2.7 10.0.0.1 51000 443\r\nGET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
        try:
            assert raw.recv(4096) == b""
        except ConnectionResetError:
            pass
    assert 'pushq_proxy_refusals_total{reason="untrusted"} 1.0' in httpx2.get(f"{server.url}/metrics").text


@pytest.mark.anyio
async def test_a_drain_reaches_every_client_through_it_and_cuts_nobody(server: PushqServer, front: Haproxy) -> None:
    with through(front, server) as http:
        http.put("/v1/queues/orders").raise_for_status()
    headers, is_open, heard = server.headers, asyncio.Event(), [""]

    async def listen() -> None:
        # Its `bye` is the promise; the end of the answer behind it may be the end of the process.
        async with httpx2.AsyncClient(base_url=front.url, headers=headers, verify=front.tls, timeout=15) as http:
            with suppress(httpx2.RemoteProtocolError):
                async with http.stream("GET", "/v1/queues/orders/events") as stream:
                    is_open.set()
                    async for line in stream.aiter_lines():
                        if line.startswith("event: "):
                            heard.append(line)

    # Not the threads' client: on TLS its reader and its writer would share what OpenSSL lets one thread use at a time.
    async with connect_socket(front.ws_url, ssl=front.tls) as ws, asyncio.timeout(30):
        await ws.send(json.dumps({"type": "connect", "token": server.key}))
        assert json.loads(await ws.recv())["type"] == "connected"
        listener = asyncio.create_task(listen())
        await is_open.wait()
        server.terminate()
        assert json.loads(await ws.recv())["type"] == "bye"
        with pytest.raises(ConnectionClosed) as closed:
            await ws.recv()
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 4000
        await listener
        assert heard[-1] == "event: bye"
    assert server.wait().exit_code == 0
