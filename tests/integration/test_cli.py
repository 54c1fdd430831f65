"""`pushq` as a person or a script runs it: a process of its own against a real server."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.server import PushqServer, free_port

ROOT = Path(__file__).resolve().parents[2]
RUN_S_MAX = 30.0
TRANSPORTS = ("ws", "sse", "poll")
StartServer = Callable[..., PushqServer]


class Ran(NamedTuple):
    out: str
    err: str
    code: int

    def json(self) -> Any:
        return json.loads(self.out)


class Cli:
    """Runs commands against one server, which the environment names."""

    def __init__(self, server: PushqServer) -> None:
        self.server = server
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PUSHQ_")}
        self.env = clean | {"PUSHQ_URL": server.url, "PUSHQ_KEY": server.key, "NO_COLOR": "1"}
        self.data = ("--data", str(server.data))

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": self.env}
        return subprocess.Popen([sys.executable, "-m", "gateway", *arguments], cwd=ROOT, **pipes | options)

    def any(self, *arguments: str, stdin: str | bytes = "", env: dict[str, str] | None = None) -> Ran:
        """Run to the end, however it ends."""
        process = self.start(*arguments, stdin=subprocess.PIPE, env=self.env | (env or {}))
        sent = stdin.encode() if isinstance(stdin, str) else stdin
        try:
            out, err = process.communicate(sent, timeout=RUN_S_MAX)
        finally:
            process.kill()
        return Ran(out.decode(), err.decode(), process.returncode)

    def __call__(self, *arguments: str, stdin: str | bytes = "", env: dict[str, str] | None = None) -> Ran:
        """Run to the end, which must be a good one."""
        ran = self.any(*arguments, stdin=stdin, env=env)
        assert ran.code == 0, ran
        return ran

    def stats(self, queue: str) -> dict[str, int]:
        stats: dict[str, int] = self("queue", "show", queue, "--json").json()["stats"]
        return stats


@pytest.fixture(scope="module")
def cli(shared_server: PushqServer) -> Cli:
    return Cli(shared_server)


@pytest.fixture
def queue(cli: Cli) -> str:
    name = f"q-{uuid.uuid4().hex[:12]}"
    cli("queue", "create", name)
    return name


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + RUN_S_MAX
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


# Publish and consume


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_what_is_published_is_printed_and_acked(transport: str, cli: Cli, queue: str) -> None:
    published = cli("publish", queue, '{"hello": "world"}', "--key", "ann", "--header", "a=1", "--id", "m-1")
    assert published.out == "m-1\n"
    consumed = cli("consume", queue, "--transport", transport, "--count", "1", "--json")
    message = json.loads(consumed.out)
    assert message["body"] == {"hello": "world"}
    assert (message["id"], message["key"], message["headers"]) == ("m-1", "ann", {"a": "1"})
    assert message["attempt"] == 1
    stats = cli.stats(queue)
    assert (stats["ready"], stats["in_flight"], stats["acked_total"]) == (0, 0, 1)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("ack", ["manual", "auto"])
def test_count_takes_as_many_and_leaves_the_rest(transport: str, ack: str, cli: Cli, queue: str) -> None:
    cli("publish", queue, "--lines", stdin="".join(f"{number}\n" for number in range(30)))
    ran = cli("consume", queue, "--transport", transport, "--ack", ack, "--count", "10")
    assert [line.split()[-1] for line in ran.out.splitlines()] == [str(number) for number in range(10)]
    until(lambda: cli.stats(queue)["ready"] == 20, "the rest lies ready")
    assert cli.stats(queue)["acked_total"] == 10


def test_lines_of_a_pipe_are_messages_in_order(cli: Cli, queue: str) -> None:
    lines = "".join(f'{{"n":{number}}}\n' for number in range(2_500))
    published = cli("publish", queue, "--lines", "--json", stdin=lines)
    assert len([json.loads(line)["id"] for line in published.out.splitlines()]) == 2_500
    assert 'published 2500 messages to "' in published.err
    consumed = cli("consume", queue, "--count", "2500", "--json")
    assert [json.loads(line)["body"]["n"] for line in consumed.out.splitlines()] == list(range(2_500))


def test_line_of_an_open_pipe_is_published_at_once(cli: Cli, queue: str) -> None:
    publishing = cli.start("publish", queue, "--lines", stdin=subprocess.PIPE)
    assert publishing.stdin is not None
    try:
        publishing.stdin.write(b"first\n")
        publishing.stdin.flush()
        until(lambda: cli.stats(queue)["ready"] == 1, "the first line is a message")
        publishing.communicate(b"second\n", timeout=RUN_S_MAX)
    finally:
        publishing.kill()
    assert cli.stats(queue)["ready"] == 2


def test_refused_line_is_named_with_what_is_stored(cli: Cli, queue: str) -> None:
    ran = cli.any("publish", queue, "--lines", stdin="a\n" + "x" * 300_000 + "\n")
    assert ran.code == 1
    assert "this is about line 2; 1 messages are stored" in ran.err
    assert cli.stats(queue)["ready"] == 1


def test_body_from_stdin_keeps_its_bytes_under_a_content_type(cli: Cli, queue: str) -> None:
    cli("publish", queue, "-", "--content-type", "application/octet-stream", stdin=b"\x00\xff\n")
    message = json.loads(cli("consume", queue, "--count", "1", "--json").out)
    assert (message["content_type"], message["body_base64"]) == ("application/octet-stream", "AP8K")


def test_interrupt_ends_consume_well_and_acks_what_was_printed(cli: Cli, queue: str) -> None:
    cli("publish", queue, "--lines", stdin="1\n2\n3\n")
    for number in (signal.SIGINT, signal.SIGTERM):
        consuming = cli.start("consume", queue, "--count", "100")
        assert consuming.stdout is not None
        assert [consuming.stdout.readline() for _ in range(3)][-1].endswith(b" 3\n")
        consuming.send_signal(number)
        assert consuming.wait(RUN_S_MAX) == 0
        consuming.communicate()
        cli("publish", queue, "--lines", stdin="1\n2\n3\n")
    assert cli.stats(queue)["acked_total"] == 6


def test_reader_that_leaves_costs_no_message(cli: Cli, queue: str) -> None:
    cli("publish", queue, "--lines", stdin="".join(f"{number}\n" for number in range(50)))
    consuming = cli.start("consume", queue)
    assert consuming.stdout is not None
    printed = [consuming.stdout.readline().decode().split()[-1] for _ in range(3)]
    assert printed == ["0", "1", "2"]
    time.sleep(0.3)  # the other lines fill the pipe meanwhile
    consuming.stdout.close()
    cli("publish", queue, "last")  # its line finds the pipe closed
    assert consuming.wait(RUN_S_MAX) == 1
    consuming.stderr.close() if consuming.stderr else None
    rest = cli("consume", queue, "--count", "1")
    assert rest.out.split()[-1] == '"last"'


def test_stream_is_read_from_where_one_asks(cli: Cli) -> None:
    stream = f"s-{uuid.uuid4().hex[:12]}"
    cli("queue", "create", stream, "--kind", "stream")
    seqs = [json.loads(cli("publish", stream, str(number), "--json").out)["seq"] for number in range(3)]
    for transport in TRANSPORTS:
        consume = ("consume", stream, "--transport", transport, "--json", "--from")
        assert len(cli(*consume, "earliest", "--count", "3").out.splitlines()) == 3
        assert json.loads(cli(*consume, f"seq:{seqs[2]}", "--count", "1").out)["body"] == 2


def test_consume_goes_on_when_the_server_comes_back(start_server: StartServer) -> None:
    server = start_server()
    cli = Cli(server)
    cli("queue", "create", "orders")
    consuming = cli.start("consume", "orders", "--count", "2")
    try:
        cli("publish", "orders", "1")
        assert consuming.stdout is not None
        assert consuming.stdout.readline().endswith(b" 1\n")
        server.kill()
        server.start()
        cli("publish", "orders", "2")
        out, err = consuming.communicate(timeout=RUN_S_MAX)
    finally:
        consuming.kill()
    assert [line.split()[-1] for line in out.splitlines()] == [b"2"]  # and not the first one again
    assert b"connection lost" in err
    assert b"connected again" in err


# Queues


def test_queue_lives_from_create_to_delete(cli: Cli) -> None:
    name = f"life-{uuid.uuid4().hex[:8]}"
    made = cli(
        "queue", "create", name, "--visibility-timeout-ms", "5000", "--set", 'tags={"team":"a"}', "--json"
    ).json()
    assert made["config"]["visibility_timeout_ms"] == 5000
    assert made["config"]["tags"] == {"team": "a"}
    assert cli("queue", "create", name, "--visibility-timeout-ms", "5000", "--set", 'tags={"team":"a"}').code == 0
    assert cli.any("queue", "create", name).code == 1
    cli("queue", "update", name, "--set", "visibility_timeout_ms=7000")
    assert cli("queue", "show", name, "--json").json()["config"]["visibility_timeout_ms"] == 7000
    assert name in [item["name"] for item in cli("queue", "list", "--json").json()["items"]]
    assert cli("queue", "delete", name, "--discard", "--yes", *cli.data).out == ""
    assert cli.any("queue", "show", name).code == 6


def test_config_comes_from_a_file_and_set_wins(cli: Cli, tmp_path: Path) -> None:
    name = f"file-{uuid.uuid4().hex[:8]}"
    (tmp_path / "config.json").write_text('{"visibility_timeout_ms": 1000, "max_message_bytes": 5000}')
    made = cli(
        *("queue", "create", name, "--config-file", str(tmp_path / "config.json")),
        *("--set", "max_message_bytes=6000", "--json"),
    ).json()
    assert (made["config"]["visibility_timeout_ms"], made["config"]["max_message_bytes"]) == (1000, 6000)


def test_refusal_of_the_server_is_shown_with_its_pointers(cli: Cli) -> None:
    refused = cli.any("queue", "create", "later", "--set", "dedupe=id", "--set", "visibilty_timeout_ms=1")
    assert refused.code == 1
    assert "/dedupe:" in refused.err
    assert "/visibilty_timeout_ms:" in refused.err
    assert "code invalid-request" in refused.err
    problem = json.loads(cli.any("queue", "create", "later", "--set", "dedupe=id", "--json").err)
    assert problem["code"] == "invalid-request"
    assert problem["errors"][0]["pointer"] == "/dedupe"


def test_delete_asks_first_and_says_what_it_would_take(cli: Cli, queue: str) -> None:
    cli("publish", queue, "1")
    no = cli.any("queue", "delete", queue, "--discard", *cli.data, stdin="n\n")
    assert no.code == 1
    assert f'Delete queue "{queue}" with 1 messages' in no.err
    assert cli.stats(queue)["ready"] == 1
    assert cli("queue", "delete", queue, "--discard", *cli.data, stdin="y\n").code == 0


def test_delete_over_http_is_refused_and_names_the_command(cli: Cli, queue: str) -> None:
    refused = cli.any("queue", "delete", queue, "--discard", "--yes", "--url", cli.server.url)
    assert refused.code == 4
    assert "pushq queue delete" in refused.err


def test_key_without_admin_cannot_delete_over_the_socket_either(cli: Cli, queue: str) -> None:
    weak = cli("key", "create", "weak", "--scope", "manage:*", "--scope", "view:*").out.strip()
    ran = cli.any("queue", "delete", queue, "--discard", "--yes", *cli.data, env={"PUSHQ_KEY": weak})
    assert ran.code == 4
    assert cli.stats(queue)["ready"] == 0


def test_purge_removes_what_is_there_and_the_queue_stays(cli: Cli, queue: str) -> None:
    cli("publish", queue, "--lines", stdin="1\n2\n3\n")
    job = cli("queue", "purge", queue, "--yes", "--json").json()
    assert job["state"] == "done"
    assert cli.stats(queue)["ready"] == 0


def test_peek_shows_messages_and_touches_none(cli: Cli, queue: str) -> None:
    cli("publish", queue, "--lines", stdin="".join(f'"number {number}"\n' for number in range(150)))
    found = cli("queue", "peek", queue, "--limit", "120", "--json").json()
    assert [item["body"] for item in found["items"]] == [f"number {number}" for number in range(120)]
    assert found["next"] is not None
    limited = cli("queue", "peek", queue, "--limit", "2")
    assert len(limited.out.splitlines()) == 2
    assert "there are more" in limited.err
    last = found["items"][-1]
    assert last["id"] in cli("queue", "peek", queue, "--id", last["id"]).out
    first = json.loads(cli("consume", queue, "--count", "1", "--json").out)
    assert (first["body"], first["attempt"]) == ("number 0", 1)


def test_top_shows_each_queue_once(cli: Cli, queue: str) -> None:
    cli("publish", queue, "1")
    table = cli("top", "--once", "--interval", "0.2").out.splitlines()
    assert table[0].split()[0] == "QUEUE"
    assert len([line for line in table if line.startswith(queue)]) == 1
    row = next(row for row in cli("top", "--interval", "0.2", "--json").json()["items"] if row["queue"] == queue)
    assert row["ready"] == 1


# Keys and tenants


def test_key_lives_from_create_to_delete(cli: Cli, queue: str) -> None:
    made = cli("key", "create", "reader", "--scope", "view:*", "--json").json()
    use = {"PUSHQ_KEY": made["key"]}
    assert cli.any("queue", "list", env=use).code == 0
    assert cli.any("publish", queue, "1", env=use).code == 4
    assert made["id"] in [item["id"] for item in cli("key", "list", "--json").json()["items"]]
    assert made["key"] not in cli("key", "list").out
    rotated = cli("key", "rotate", made["id"]).out.strip()
    assert cli.any("queue", "list", env=use).code == 4
    assert cli.any("queue", "list", env={"PUSHQ_KEY": rotated}).code == 0
    cli("key", "delete", made["id"], "--yes")
    refused = cli.any("queue", "list", env={"PUSHQ_KEY": rotated})
    assert refused.code == 4
    assert "the key came from PUSHQ_KEY" in refused.err


def test_tenants_do_not_see_each_other(cli: Cli, queue: str, tmp_path: Path) -> None:
    name = f"t-{uuid.uuid4().hex[:8]}"
    cli("tenant", "create", name)
    assert name in [item["name"] for item in cli("tenant", "list", "--json").json()["items"]]
    made = cli("key", "create", "first", "--tenant", name, "--scope", "admin", "--json").json()
    (tmp_path / "key").write_text(made["key"] + "\n")
    assert cli("queue", "list", "--json", "--key-file", str(tmp_path / "key")).json()["items"] == []
    assert cli.any("queue", "show", queue, "--key-file", str(tmp_path / "key")).code == 6
    cli("key", "delete", made["id"], "--yes")
    cli("tenant", "delete", name, "--yes")
    assert cli.any("tenant", "delete", name, "--yes").code == 6


# How commands end


def test_absent_server_ends_with_5_within_seconds(cli: Cli) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    began = time.monotonic()
    for arguments in (
        ["queue", "list"],
        ["publish", "q", "1"],
        ["consume", "q"],
        ["consume", "q", "--transport", "sse"],
    ):
        ran = cli.any(*arguments, "--url", nowhere)
        assert ran.code == 5, ran
        assert ran.out == ""
        assert "pushq serve" in ran.err
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("arguments", [["queue", "show", "absent"], ["publish", "absent", "1"], ["consume", "absent"]])
def test_absent_queue_ends_with_6(arguments: list[str], cli: Cli) -> None:
    ran = cli.any(*arguments)
    assert ran.code == 6
    assert ran.out == ""
    assert "code queue-not-found" in ran.err


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_key_that_may_not_consume_ends_with_4(transport: str, cli: Cli, queue: str) -> None:
    key = cli("key", "create", "writer", "--scope", "publish:*").out.strip()
    assert cli.any("consume", queue, "--transport", transport, env={"PUSHQ_KEY": key}).code == 4
    assert cli.any("consume", queue, "--transport", transport, env={"PUSHQ_KEY": "pushq_no_such"}).code == 4


# Servers


def test_second_server_on_a_folder_or_a_port_ends_with_3(cli: Cli, tmp_path: Path) -> None:
    taken = cli.any("serve", "--data", str(tmp_path / "other"), "--listen", f"127.0.0.1:{cli.server.port}")
    assert taken.code == 3
    assert "--listen" in taken.err
    in_use = cli.any("serve", *cli.data, "--listen", f"127.0.0.1:{free_port()}")
    assert in_use.code == 3
    assert str(cli.server.pid) in in_use.err


def test_data_folder_outlives_a_backup_and_a_restore(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server()
    cli = Cli(server)
    cli("queue", "create", "orders")
    cli("publish", "orders", "--lines", stdin="1\n2\n3\n")
    saved = cli("backup", str(tmp_path / "saved"), *cli.data)
    assert saved.out == ""
    assert "copied" in saved.err
    cli("publish", "orders", "4")
    again = cli.any("backup", str(tmp_path / "saved"), *cli.data)
    assert again.code == 1
    manifest = cli("restore", str(tmp_path / "saved"), "--data", str(tmp_path / "new"), "--json").json()
    assert manifest["version"] == 1
    restored = start_server(data=tmp_path / "new")
    there = cli("queue", "peek", "orders", "--url", restored.url, "--json").json()
    assert [item["body"] for item in there["items"]] == [1, 2, 3]


def test_restore_refuses_what_does_not_verify(cli: Cli, tmp_path: Path) -> None:
    cli("backup", str(tmp_path / "saved"), *cli.data)
    file = tmp_path / "saved/data.mdb"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    refused = cli.any("restore", str(tmp_path / "saved"), "--data", str(tmp_path / "new"))
    assert refused.code == 1
    assert "is not the file its manifest describes" in refused.err


def test_demo_comes_back_after_a_crash_and_ends_when_told(tmp_path: Path, cli: Cli) -> None:
    port, data = free_port(), tmp_path / "demo"
    log = (tmp_path / "demo.log").open("w+b")
    demo = cli.start("demo", "--data", str(data), "--listen", f"127.0.0.1:{port}", stdout=log, stderr=log)
    try:
        until(
            lambda: f"demo: http://127.0.0.1:{port}/demo" in (tmp_path / "demo.log").read_text(), "the demo's address"
        )
        [child] = children_of(demo.pid)
        os.kill(child, signal.SIGKILL)
        until(lambda: children_of(demo.pid) not in ([], [child]) and is_listening(port), "the server is back")
        demo.terminate()
        assert demo.wait(RUN_S_MAX) == 0
        assert not is_listening(port)
    finally:
        demo.kill()
        log.close()


# Doctor and bench


def test_doctor_finds_a_good_server_good_and_leaves_nothing(cli: Cli) -> None:
    ran = cli("doctor", *cli.data)
    lines = [line.split() for line in ran.out.splitlines()]
    assert [line[0] for line in lines] == ["ok"] * 9
    checks = ["tcp", "alive", "ready", "clock", "version", "key", "websocket", "sse", "long-poll"]
    assert [line[1] for line in lines] == checks
    names = [item["name"] for item in cli("queue", "list", "--json").json()["items"]]
    assert not [name for name in names if name.startswith("pushq-doctor")]


def test_doctor_names_the_queue_it_could_not_delete(cli: Cli, tmp_path: Path) -> None:
    ran = cli("doctor", cli.server.url, "--data", str(tmp_path))
    name = ran.err.split('"')[1]
    assert f"pushq queue delete {name} --discard" in ran.err
    cli("queue", "delete", name, "--discard", "--yes", *cli.data)


def test_doctor_says_what_is_wrong_and_what_mends_it(cli: Cli) -> None:
    absent = cli.any("doctor", f"http://127.0.0.1:{free_port()}")
    assert absent.code == 1
    assert absent.out.startswith("FAIL  tcp")
    assert "pushq serve" in absent.out
    report = cli.any("doctor", "--json", env={"PUSHQ_KEY": "pushq_no_such"})
    assert report.code == 1
    failed = [check for check in report.json()["checks"] if not check["is_ok"]]
    assert [check["name"] for check in failed] == ["key"]
    assert "pushq key create" in failed[0]["fix"]


def test_doctor_tells_a_server_of_another_kind(cli: Cli) -> None:
    with other_server(
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nDate: Sat, 01 Jan 2000 00:00:00 GMT\r\n\r\n"
    ) as url:
        report = cli.any("doctor", url, "--json").json()
    wrong = {check["name"] for check in report["checks"] if not check["is_ok"]}
    assert wrong == {"alive", "ready", "clock", "version", "key"}


def test_bench_measures_and_leaves_nothing(cli: Cli) -> None:
    ran = cli("bench", "--messages", "2000", "--seconds", "1", "--rate", "200", "--json", *cli.data)
    results = {result["name"]: result for result in ran.json()["results"]}
    assert list(results) == ["publish", "consume", "end to end", "latency"]
    assert all(result["per_s"] > 0 for result in results.values())
    assert 0 < results["latency"]["p50_ms"] <= results["latency"]["p99_ms"] <= results["latency"]["max_ms"]
    names = [item["name"] for item in cli("queue", "list", "--json").json()["items"]]
    assert not [name for name in names if name.startswith("pushq-bench")]


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def other_server(answer: bytes) -> Iterator[str]:
    """Something that speaks HTTP and is no Pushq."""
    import threading

    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                while connection.recv(65536):
                    connection.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join(5)
