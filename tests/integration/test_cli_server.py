"""`pushq serve`, `demo`, `backup`, `restore`, `doctor` and `bench` with real servers."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from backend_store.node.clock_jump import SEEN
from backend_store.storage.engine import Batch, Table
from backend_store.storage.env import open_engine
from tests.support.cli import RUN_S_MAX, Cli
from tests.support.patience import until
from tests.support.server import PushqServer, free_port

StartServer = Callable[..., PushqServer]


@pytest.fixture(scope="module")
def cli(shared_server: PushqServer) -> Cli:
    return Cli(shared_server)


# Servers


def test_second_server_on_a_folder_or_a_port_ends_with_3(cli: Cli, tmp_path: Path) -> None:
    taken = cli.any("serve", "--data", str(tmp_path / "other"), "--listen", f"127.0.0.1:{cli.server.port}")
    assert taken.code == 3
    assert "--listen" in taken.err
    in_use = cli.any("serve", *cli.data, "--listen", f"127.0.0.1:{free_port()}")
    assert in_use.code == 3
    assert str(cli.server.pid) in in_use.err


@pytest.mark.parametrize("gateways", [1, 2])
def test_a_start_with_a_clock_years_ahead_ends_with_3_and_deletes_nothing(tmp_path: Path, gateways: int) -> None:
    data = tmp_path / "data"
    with PushqServer(data) as server:
        cli = Cli(server)
        cli("queue", "create", "orders", "--message-ttl-ms", "86400000")
        cli("publish", "orders", "1")
        server.stop()
    engine = open_engine(data)
    batch = Batch()
    batch.put(Table.META, SEEN, int((time.time() - 3 * 366 * 86_400) * 1000).to_bytes(8))
    engine.commit(batch, lambda: None)
    engine.close()
    command = ("serve", "--data", str(data), "--listen", f"127.0.0.1:{free_port()}", "--gateways", str(gateways))
    refused = cli.any(*command)
    assert refused.code == 3, refused
    assert "set the clock" in refused.err and "1099 days after the last time in it" in refused.err
    variable, _, days = refused.err.partition("PUSHQ_STORAGE__")[2].partition(":")[0].partition("=")
    with PushqServer(data, env={f"PUSHQ_STORAGE__{variable}": days}) as server:
        assert Cli(server).stats("orders")["ready"] == 1


def test_data_folder_outlives_a_backup_and_a_restore(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server()
    cli = Cli(server)
    cli("queue", "create", "orders")
    cli("publish", "orders", "--lines", stdin="1\n2\n3\n")
    saved = cli("backup", str(tmp_path / "saved"), "--with-master-key", *cli.data)
    assert saved.out == ""
    assert "backed up" in saved.err and "master.key is in it" in saved.err
    cli("publish", "orders", "4")
    again = cli.any("backup", str(tmp_path / "saved"), *cli.data)
    assert again.code == 1
    manifest = cli("restore", str(tmp_path / "saved"), "--data", str(tmp_path / "new"), "--json").json()
    assert manifest["version"] == 1 and list(manifest["files"]) == ["master.key"]
    restored = start_server(data=tmp_path / "new")
    there = cli("queue", "peek", "orders", "--url", restored.url, "--json").json()
    assert [item["body"] for item in there["items"]] == [1, 2, 3]


def test_a_backup_without_its_master_key_says_what_is_missing_and_starts_with_it(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server()
    cli = Cli(server)
    cli("queue", "create", "orders")
    cli("publish", "orders", "1")
    saved = cli("backup", str(tmp_path / "saved"), "--json", *cli.data)
    assert "master.key is not in it" in saved.err and saved.json()["files"] == {}
    assert not (tmp_path / "saved/master.key").exists()
    told = cli("restore", str(tmp_path / "saved"), "--data", str(tmp_path / "new"))
    assert "copy master.key into" in told.err
    refused = cli.any("serve", "--data", str(tmp_path / "new"), "--listen", "127.0.0.1:0")
    assert refused.code == 3 and "master.key is missing" in refused.err
    (tmp_path / "new/master.key").write_text((server.data / "master.key").read_text())
    restored = start_server(data=tmp_path / "new")
    there = cli("queue", "peek", "orders", "--url", restored.url, "--json").json()
    assert [item["body"] for item in there["items"]] == [1]


def test_restore_refuses_what_does_not_verify(cli: Cli, tmp_path: Path) -> None:
    cli("backup", str(tmp_path / "saved"), *cli.data)
    file = tmp_path / "saved/data.mdb"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    refused = cli.any("restore", str(tmp_path / "saved"), "--data", str(tmp_path / "new"))
    assert refused.code == 1
    assert "does not match its manifest" in refused.err
    assert not (tmp_path / "new").exists()


def test_demo_comes_back_after_a_crash_and_ends_when_told(tmp_path: Path, cli: Cli) -> None:
    port, log = free_port(), tmp_path / "demo.log"
    command = ("demo", "--data", str(tmp_path / "demo"), "--listen", f"127.0.0.1:{port}")
    with log.open("wb") as out, cli.running(*command, stdout=out, stderr=out) as demo:
        until(lambda: f"demo: http://127.0.0.1:{port}/demo" in log.read_text(), "the demo's address")
        [child] = children_of(demo.pid)
        os.kill(child, signal.SIGKILL)
        until(lambda: children_of(demo.pid) not in ([], [child]) and is_listening(port), "the server is back")
        demo.terminate()
        assert demo.wait(RUN_S_MAX) == 0
        assert not is_listening(port)


# Doctor and bench


def test_doctor_finds_a_good_server_good_and_leaves_nothing(cli: Cli) -> None:
    ran = cli("doctor", *cli.data)
    lines = [line.split() for line in ran.out.splitlines()]
    assert [line[0] for line in lines] == ["ok"] * 9
    checks = ["tcp", "alive", "ready", "clock", "version", "key", "websocket", "sse", "long-poll"]
    assert [line[1] for line in lines] == checks
    names = cli.queues()
    assert not [name for name in names if name.startswith("pushq-doctor")]


def test_doctor_names_the_queue_it_could_not_delete(cli: Cli, tmp_path: Path) -> None:
    ran = cli("doctor", cli.server.url, "--data", str(tmp_path))
    name = ran.err.split('"')[1]
    assert f"pushq queue delete {name} --discard" in ran.err
    cli("queue", "delete", name, "--discard", "--yes", *cli.data)


def test_doctor_says_what_is_wrong_and_what_mends_it(cli: Cli) -> None:
    absent = cli.any("doctor", f"http://127.0.0.1:{free_port()}")
    assert absent.code == 5
    assert absent.out.startswith("FAIL  tcp") and ": Connection refused\n" in absent.out
    assert "pushq serve" in absent.out
    report = cli.any("doctor", "--json", env={"PUSHQ_KEY": "pushq_no_such"})
    assert report.code == 4
    failed = [check for check in report.json()["checks"] if not check["is_ok"]]
    assert [check["name"] for check in failed] == ["key"]
    assert "pushq key create" in failed[0]["fix"]
    weak = cli("key", "create", "weak", "--scope", "view:*").out.strip()
    no_queue = cli.any("doctor", *cli.data, env={"PUSHQ_KEY": weak})
    assert no_queue.code == 4 and "FAIL  queue" in no_queue.out


def test_a_full_server_is_told_as_such_and_nothing_else_is_blamed(start_server: StartServer) -> None:
    cli = Cli(start_server(env={"PUSHQ_LIMITS__CONNECTIONS_MAX": "1"}))
    cli.create_queue("orders")
    with cli.running("consume", "orders") as consuming:
        assert consuming.stderr is not None
        assert b"consuming" in consuming.stderr.readline()
        with ThreadPoolExecutor() as threads:
            # It waits where the server asks for less than 15 s, and the server draws anew: in the end it asks for more.
            publishing = threads.submit(cli.any, "publish", "orders", "1")
            doctor = cli.any("doctor", "--json", *cli.data)
            report = doctor.json()
            ran = publishing.result(RUN_S_MAX)
        assert doctor.code == 5
        assert ran.code == 5, ran
        assert "Overloaded: 1 connection is open" in ran.err
        assert "retry in" in ran.err
        assert "pushq serve" not in ran.err
    failed = {check["name"]: check for check in report["checks"] if not check["is_ok"]}
    assert {"websocket", "sse"} <= set(failed)
    for check in failed.values():
        assert "1 connection is open" in check["detail"], check
        assert "proxy" not in check["fix"]


def test_doctor_tells_a_server_of_another_kind(cli: Cli) -> None:
    with other_server(
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nDate: Sat, 01 Jan 2000 00:00:00 GMT\r\n\r\n"
    ) as url:
        ran = cli.any("doctor", url, "--json")
    assert ran.code == 1
    wrong = {check["name"] for check in ran.json()["checks"] if not check["is_ok"]}
    assert wrong == {"alive", "ready", "clock", "version", "key"}


PAGES = [
    b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 7\r\n\r\n<html/>",
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 302 Found\r\nLocation: https://login.example/\r\nContent-Length: 0\r\n\r\n",
]


@pytest.mark.parametrize("page", PAGES, ids=["page", "json", "redirect"])
def test_doctor_tells_a_page_from_a_server(cli: Cli, page: bytes) -> None:
    with other_server(page) as url:
        ran = cli.any("doctor", url, "--no-queue", "--json")
        assert ran.code == 1, ran
        failed = {check["name"]: check["fix"] for check in ran.json()["checks"] if not check["is_ok"]}
    assert failed["version"] == "check that this is the server's address"
    assert failed.get("key", failed["version"]) == failed["version"]


@pytest.mark.parametrize("page", [PAGES[0], PAGES[2]], ids=["page", "redirect"])
@pytest.mark.parametrize("command", ["queue create orders", "queue purge orders --yes", "key delete k1 --yes"])
def test_what_a_page_answered_was_not_done(cli: Cli, command: str, page: bytes) -> None:
    with other_server(page) as url:
        ran = cli.any(*command.split(), "--url", url)
    assert (ran.code, ran.out, "not-pushq" in ran.err) == (1, "", True), ran


def test_doctor_notices_a_proxy_that_collects_what_is_pushed(cli: Cli) -> None:
    with collecting_proxy(cli.server.port) as url:
        report = cli.any("doctor", url, "--json", *cli.data).json()
    failed = {check["name"]: check for check in report["checks"] if not check["is_ok"]}
    assert list(failed) == ["sse"]
    assert "delivery was delayed" in failed["sse"]["detail"]
    assert "proxy_buffering off" in failed["sse"]["fix"]


def test_bench_measures_and_leaves_nothing(cli: Cli) -> None:
    ran = cli("bench", "--messages", "2000", "--seconds", "1", "--rate", "200", "--json", *cli.data)
    results = {result["name"]: result for result in ran.json()["results"]}
    assert list(results) == ["publish", "consume", "end to end", "latency"]
    assert all(result["per_s"] > 0 for result in results.values())
    assert 0 < results["latency"]["p50_ms"] <= results["latency"]["p99_ms"] <= results["latency"]["max_ms"]
    names = cli.queues()
    assert not [name for name in names if name.startswith("pushq-bench")]


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def other_server(answer: bytes) -> Iterator[str]:
    """Something that speaks HTTP and is no Pushq. That a client goes, also amid an answer, is nothing to it."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection, suppress(ConnectionError):
                while connection.recv(65536):
                    connection.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join(5)


@contextmanager
def collecting_proxy(port: int) -> Iterator[str]:
    """Passes everything on, but event streams only every two seconds, as a proxy with buffers does. That one of the two
    goes is nothing to it."""
    listening = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def accept() -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=carry, args=(client,), daemon=True).start()

    def carry(client: socket.socket) -> None:
        is_slow = False
        held, flush_at = b"", 0.0
        with suppress(ConnectionError), client, socket.create_connection(("127.0.0.1", port)) as server:
            while not over.is_set():
                readable = select.select([client, server], [], [], 0.05)[0]
                if client in readable:
                    if not (sent := client.recv(65536)):
                        return
                    is_slow = is_slow or b"/events?" in sent
                    server.sendall(sent)
                if server in readable:
                    if not (answer := server.recv(65536)):
                        return
                    held += answer
                if held and (not is_slow or time.monotonic() >= flush_at):
                    client.sendall(held)
                    held, flush_at = b"", time.monotonic() + 2.0

    threading.Thread(target=accept, daemon=True).start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    over.set()
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
