"""Several gateway processes of one server: whichever a client meets, it finds the same messages, queues and rights."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.sync.client import ClientConnection, connect, unix_connect

from tests.integration.calls import Client, codes, first_events, make_key, publish, receive, ticket_for
from tests.support.cli import run
from tests.support.environment import without_settings
from tests.support.several import SeveralServer, children_of, end, is_there, until_gone

GATEWAYS = 2
OTHER_UID = 65_534
_numbers = count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeveralServer]:
    with SeveralServer(tmp_path_factory.mktemp("several") / "data", gateways=GATEWAYS) as server:
        yield server


@pytest.fixture
def first(server: SeveralServer) -> Iterator[Client]:
    with server.at(1) as http:
        yield http


@pytest.fixture
def second(server: SeveralServer) -> Iterator[Client]:
    with server.at(2) as http:
        yield http


@pytest.fixture
def queue(first: Client) -> str:
    name = f"q{next(_numbers)}"
    assert first.put(f"/v1/queues/{name}").status_code == 201
    return name


@contextmanager
def socket_at(server: SeveralServer, number: int) -> Iterator[ClientConnection]:
    """A connected session at one process."""
    path = str(server.data / f"gateway-{number}.sock")
    with unix_connect(path, uri="ws://pushq/v1/ws", additional_headers=server.headers) as ws:
        ask(ws, type="connect")
        yield ws


def ask(ws: ClientConnection, **frame: Any) -> dict[str, Any]:
    ws.send(json.dumps(frame))
    return next_of(ws, "connected", "ok")


def next_of(ws: ClientConnection, *types: str) -> dict[str, Any]:
    while True:
        frame: dict[str, Any] = json.loads(ws.recv(20))
        assert frame["type"] not in ("error", "bye"), frame
        if frame["type"] in types:
            return frame


def first_message(answer: httpx2.Response) -> dict[str, Any]:
    for line in answer.iter_lines():
        if line.startswith("data: {"):
            found: dict[str, Any] = json.loads(line.removeprefix("data: "))
            return found
    raise AssertionError("the stream ended")


def test_every_transport_gets_what_another_process_took_and_acks_anywhere(
    server: SeveralServer, first: Client, second: Client, queue: str
) -> None:
    ack = f"/v1/queues/{queue}/ack"
    publish(first, queue, {"body": "polled"})
    (message,) = receive(second, queue, wait_ms=20_000)
    assert first.post(ack, json={"receipts": [message["receipt"]]}).json()["results"][0]["ok"]

    with second.stream("GET", f"/v1/queues/{queue}/events?credit=1") as events:
        publish(first, queue, {"body": "told"})
        message = first_message(events)
        assert first.post(ack, json={"receipts": [message["receipt"]]}).json()["results"][0]["ok"]

    with socket_at(server, 1) as here, socket_at(server, 2) as there:
        ask(there, type="subscribe", id=1, queue=queue, credit=1)
        ask(here, type="publish", id=2, queue=queue, messages=[{"body": "pushed"}])
        message = next_of(there, "deliver")["messages"][0]
        done = ask(here, type="ack", id=3, queue=queue, receipts=[message["receipt"]])
        assert message["body"] == "pushed" and done["results"][0]["ok"]
    stats = second.get(f"/v1/queues/{queue}").json()["stats"]
    assert (stats["acked_total"], stats["ready"], stats["in_flight"]) == (3, 0, 0)


def test_the_port_is_shared_by_all_processes(server: SeveralServer, queue: str) -> None:
    """The system spreads connections; with sixteen a process that listens has one, or something is wrong."""
    with ExitStack() as lines, server.at(1) as http:
        for _ in range(16):
            ask(lines.enter_context(connect(server.ws_url, additional_headers=server.headers)), type="connect")
        text = http.get("/metrics").text
    open_at = dict(re.findall(r'pushq_connections\{gateway="(\d)",transport="ws"\} (\d+)', text))
    assert sum(map(int, open_at.values())) >= 16
    assert all(int(found) > 0 for found in open_at.values()), open_at


def test_what_was_made_at_one_process_is_there_at_every_other_at_once(first: Client, second: Client) -> None:
    for number in range(10):
        name = f"made-{next(_numbers)}"
        maker, user = (first, second) if number % 2 else (second, first)
        assert maker.put(f"/v1/queues/{name}").status_code == 201
        assert publish(user, name, {"body": 1}).status_code == 201
        key = make_key(maker, f"view:{name}")
        headers = {"Authorization": f"Bearer {key['key']}"}
        assert user.get(f"/v1/queues/{name}", headers=headers).status_code == 200
        assert maker.delete(f"/v1/keys/{key['id']}").status_code == 204
    assert codes(first.get("/v1/queues/never-made")) == (404, "queue-not-found")
    assert codes(second.get("/v1/queues", headers={"Authorization": "Bearer pushq_00_x"})) == (401, "unauthenticated")


def test_a_key_that_was_revoked_opens_nothing_at_any_process(first: Client, second: Client, queue: str) -> None:
    key = make_key(first, f"view:{queue}")
    headers = {"Authorization": f"Bearer {key['key']}"}
    assert second.get(f"/v1/queues/{queue}", headers=headers).status_code == 200
    first.delete(f"/v1/keys/{key['id']}")
    deadline = time.monotonic() + 30
    while second.get(f"/v1/queues/{queue}", headers=headers).status_code != 401:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(("made_at", "spent_at"), [(1, 2), (2, 1), (2, 2)])
def test_a_ticket_is_good_once_at_whichever_process(
    server: SeveralServer, queue: str, made_at: int, spent_at: int
) -> None:
    with server.at(made_at) as maker, server.at(spent_at) as http, server.at(3 - spent_at) as other:
        ticket = ticket_for(maker, queue=queue)
        del http.headers["Authorization"], other.headers["Authorization"]
        path = f"/v1/queues/{queue}/events?ticket={ticket}"
        assert first_events(http, path)[0] == 200
        assert first_events(http, path) == (401, "unauthenticated")
        assert first_events(other, path) == (401, "unauthenticated")


def test_connections_of_all_processes_are_listed_and_ended_at_each(server: SeveralServer, queue: str) -> None:
    with (
        socket_at(server, 1),
        socket_at(server, 2),
        socket_at(server, 2),
        httpx2.Client(base_url=server.url, headers=server.headers, timeout=20) as http,
    ):
        found: list[dict[str, Any]] = []
        cursor = ""
        while True:
            page = http.get(f"/v1/connections?limit=2{cursor}").raise_for_status().json()
            found += page["items"]
            if page["next"] is None:
                break
            cursor = f"&cursor={page['next']}"
        sockets = [one["id"] for one in found if one["transport"] == "ws"]
        assert len(set(sockets)) == len(sockets) >= 3
        for one in sockets:
            assert http.delete(f"/v1/connections/{one}").status_code == 204
        left = http.get("/v1/connections").json()["items"]
        assert not {one["id"] for one in left} & set(sockets)


def test_metrics_tell_each_process_and_count_each_message_once(first: Client, second: Client, queue: str) -> None:
    publish(second, queue, {"body": 1}, {"body": 2})
    text = first.get("/metrics").text
    assert re.findall(rf'pushq_queue_ready_messages\{{queue="{queue}",tenant="default"\}} (\S+)', text) == ["2.0"]
    for number in (1, 2):
        assert f'pushq_loop_lag_seconds{{gateway="{number}"}}' in text
    assert len(re.findall(r"^# TYPE pushq_loop_lag_seconds ", text, re.M)) == 1
    assert float(re.findall(r"^pushq_commit_seconds_count (\S+)", text, re.M)[0]) > 0


def test_numbers_count_what_another_process_has_confirmed(first: Client, second: Client, queue: str) -> None:
    for number in range(1, 21):
        publisher, asked = (first, second) if number % 2 else (second, first)
        publish(publisher, queue, {"body": number}).raise_for_status()
        assert asked.get(f"/v1/queues/{queue}").json()["stats"]["ready"] == number


def test_administration_is_answered_alike_wherever_it_is_asked(server: SeveralServer, queue: str) -> None:
    """Over many connections, so that both processes are met."""
    answers = []
    for _ in range(8):
        with httpx2.Client(base_url=server.url, headers=server.headers, timeout=20) as http:
            started = http.post(f"/v1/queues/{queue}/purge", json={"confirm": queue})
            answers.append(started.status_code)
            location = started.headers["location"]
        with httpx2.Client(base_url=server.url, headers=server.headers, timeout=20) as http:
            assert http.get(location).status_code == 200
            assert http.get("/v1/audit").status_code == 200
            answer = http.get("/console", follow_redirects=False)
            assert answer.status_code in (200, 303)
    assert answers == [202] * 8


def test_the_sockets_of_the_folder_are_its_owners_alone(server: SeveralServer) -> None:
    for path in server.data.glob("*.sock"):
        assert path.stat().st_mode & 0o077 == 0, path
    assert {path.name for path in server.data.glob("*.sock")} == {
        "admin.sock",
        "storage.sock",
        "gateway-1.sock",
        "gateway-2.sock",
    }


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_another_user_of_the_machine_is_turned_away_even_where_the_folder_is_open(server: SeveralServer) -> None:
    program = (
        "import os, socket, sys\n"
        f"os.setuid({OTHER_UID})\n"
        "line = socket.socket(socket.AF_UNIX)\n"
        "line.settimeout(20)\n"
        "line.connect(sys.argv[1])\n"
        'line.sendall(b"GET / HTTP/1.1\\r\\nHost: x\\r\\nConnection: Upgrade\\r\\nUpgrade: websocket\\r\\n"\n'
        '             b"Sec-WebSocket-Version: 13\\r\\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\\r\\n\\r\\n")\n'
        "print(line.recv(100).split(b'\\r\\n')[0].decode())\n"
    )
    path = server.data / "storage.sock"

    def said() -> str:
        done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=60)
        return done.stdout.strip() or done.stderr.strip().splitlines()[-1]

    assert "Permission denied" in said()
    opened = [*(folder for folder in path.parents if folder.stat().st_mode & 0o001 == 0), path]
    modes = {one: one.stat().st_mode & 0o7777 for one in opened}
    try:
        for one in opened:
            one.chmod(0o777)
        assert " 403 " in said() + " "
    finally:
        for one, mode in modes.items():
            one.chmod(mode)


def test_a_folder_or_a_port_in_use_is_refused_with_the_reason(server: SeveralServer, tmp_path: Path) -> None:
    def refused(*more: str) -> str:
        done = run("serve", "--gateways", "2", *more, env=without_settings())
        assert done.code == 3, done.err
        return done.err

    said = refused("--data", str(server.data), "--listen", "127.0.0.1:0")
    assert f"in use by process {server.children()['storage']}" in said
    address = f"127.0.0.1:{server.port}"
    assert f"cannot listen on {address}" in refused("--data", str(tmp_path / "other"), "--listen", address)
    assert not (tmp_path / "other").exists()
    assert server.is_ready()


def test_a_killed_process_is_started_again_and_the_others_go_on(server: SeveralServer, queue: str) -> None:
    before = server.all_there()
    for name in ("gateway-2", "storage"):
        end(before[name])
        until_gone({name: before[name]})
        after = server.all_there()
        assert after[name] != before[name]
        assert {one: pid for one, pid in after.items() if one != name} == {
            one: pid for one, pid in before.items() if one != name
        }
        with server.at(1) as http:
            assert publish(http, queue, {"body": name}).status_code == 201
        before = after


def test_a_process_that_is_asked_to_end_drains_and_is_started_again(server: SeveralServer, queue: str) -> None:
    before = server.all_there()
    end(before["gateway-2"], signal.SIGTERM)
    until_gone({"gateway-2": before["gateway-2"]})
    assert server.all_there()["gateway-2"] != before["gateway-2"]
    transport = httpx2.HTTPTransport(uds=str(server.data / "admin.sock"))
    with httpx2.Client(transport=transport, base_url="http://pushq", headers=server.headers, timeout=20) as http:
        for _ in range(4):
            assert http.get(f"/v1/queues/{queue}").status_code == 200


def test_when_the_parent_is_killed_its_children_end_and_leave_folder_and_port(
    server: SeveralServer, queue: str
) -> None:
    with server.at(2) as http:
        publish(http, queue, {"body": "kept"}).raise_for_status()
    parent, children = server.pid, server.all_there()
    end(parent)
    until_gone({"parent": parent, **children})
    server.wait()
    server.start()
    with server.at(1) as http:
        assert [one["body"] for one in receive(http, queue, wait_ms=5000)] == ["kept"]


def ended_in_order(server: SeveralServer) -> None:
    """SIGTERM, and nothing is left: neither a process nor a socket. The storage process is the last to end."""
    several = server.gateways > 1
    parent, children = server.pid, server.all_there() if several else {}
    stopped = server.stop()
    assert stopped.exit_code == 0
    assert not children_of(parent) and not any(is_there(pid) for pid in children.values())
    assert not list(server.data.glob("*.sock"))
    if several:
        ends = [json.loads(line) for line in server.log().splitlines() if '"process exited"' in line]
        assert [one["exit_code"] for one in ends] == [0, 0, 0]
        assert ends[-1]["process"] == "the storage process"


def test_one_process_or_several_the_folder_is_the_same(tmp_path: Path) -> None:
    """Back and forth: messages, a key, dead letters, the position of a group and the audit stay."""
    server = SeveralServer(tmp_path / "data", gateways=1)
    made: dict[str, str] = {}
    with server:
        for turn, gateways in enumerate((1, 2, 1)):
            if turn:
                ended_in_order(server)
                server.gateways = gateways
                server.start()
            with httpx2.Client(base_url=server.url, headers=server.headers, timeout=20) as http:
                if not turn:
                    http.put("/v1/queues/orders", json={"max_attempts": 1}).raise_for_status()
                    http.put("/v1/queues/log", json={"kind": "stream"}).raise_for_status()
                    made = make_key(http, "consume:*", "publish:*")
                with httpx2.Client(
                    base_url=server.url, headers={"Authorization": f"Bearer {made['key']}"}, timeout=20
                ) as user:
                    publish(user, "orders", {"body": turn}, {"body": f"dead {turn}"}).raise_for_status()
                    publish(user, "log", {"body": turn}).raise_for_status()
                    found = receive(user, "orders", max=2, wait_ms=5000)
                    assert [one["body"] for one in found] == [turn, f"dead {turn}"]
                    acked = user.post("/v1/queues/orders/ack", json={"receipts": [found[0]["receipt"]]})
                    nacked = user.post("/v1/queues/orders/nack", json={"receipts": [found[1]["receipt"]]})
                    assert acked.json()["results"][0]["ok"] and nacked.json()["results"][0]["ok"]
                stats = http.get("/v1/queues/orders").json()["stats"]
                assert (stats["acked_total"], stats["dead"], stats["published_total"]) == (
                    turn + 1,
                    turn + 1,
                    2 * turn + 2,
                )
                acts = [one["action"] for one in http.get("/v1/audit").json()["items"]]
                assert len(acts) >= 3, "what administrators did is there whoever is asked"
                log = receive(http, "log", **{"max": 10, "from": "earliest"})
                assert [one["body"] for one in log] == list(range(turn + 1))
