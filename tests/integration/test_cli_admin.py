"""`pushq queue`, `key`, `tenant` and `top` against a real server."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import shlex
import struct
import subprocess
import sys
import termios
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from gateway.commands.tenant import change_quotas
from push.client import Admin
from tests.support.cli import RUN_S_MAX, Cli
from tests.support.server import PushqServer


@pytest.fixture(scope="module")
def cli(shared_server: PushqServer) -> Cli:
    return Cli(shared_server)


@pytest.fixture
def queue(cli: Cli) -> str:
    return cli.create_queue(f"q-{uuid.uuid4().hex[:12]}")


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


def test_every_setting_has_an_option(cli: Cli) -> None:
    name = f"set-{uuid.uuid4().hex[:8]}"
    made = cli(
        *("queue", "create", name, "--ordering", "strict", "--dead-letter-queue", "none", "--message-ttl-ms", "60000"),
        *("--config", '{"max_messages": 5, "tags": {"a": "b"}}', "--json"),
    ).json()["config"]
    assert (made["ordering"], made["lease_mode"], made["dead_letter_queue"]) == ("strict", "replicated", None)
    assert (made["message_ttl_ms"], made["max_messages"], made["tags"]) == (60_000, 5, {"a": "b"})
    changed = cli("queue", "update", name, "--message-ttl-ms", "none", "--dead-letter-queue", f"{name}.dead", "--json")
    assert changed.json()["config"] == made | {"message_ttl_ms": None, "dead_letter_queue": f"{name}.dead"}
    refused = cli.any("queue", "update", name, "--priorities", "2")
    assert refused.code == 1 and "would overtake" in refused.err


def test_refusal_of_the_server_is_shown_with_its_pointers(cli: Cli) -> None:
    refused = cli.any("queue", "create", "later", "--set", "dedupe=all", "--set", "visibilty_timeout_ms=1")
    assert refused.code == 1
    assert "/dedupe:" in refused.err
    assert "/visibilty_timeout_ms:" in refused.err
    assert "code invalid-request" in refused.err
    problem = json.loads(cli.any("queue", "create", "later", "--set", "dedupe=all", "--json").err)
    assert problem["code"] == "invalid-request"
    assert problem["errors"][0]["pointer"] == "/dedupe"


def test_delete_asks_first_and_says_what_it_would_take(cli: Cli, queue: str) -> None:
    cli("publish", queue, "1")
    no = cli.any("queue", "delete", queue, "--discard", *cli.data, stdin="n\n")
    assert no.code == 1
    assert f'Delete queue "{queue}" with 1 message, which is lost' in no.err
    assert cli.stats(queue)["ready"] == 1
    assert cli("queue", "delete", queue, "--discard", *cli.data, stdin="y\n").code == 0


def test_delete_to_an_absent_queue_ends_with_6_before_it_asks(cli: Cli, queue: str) -> None:
    refused = cli.any("queue", "delete", queue, "--move-to", "absent", *cli.data, stdin="y\n")
    assert refused.code == 6 and "queue 'absent'" in refused.err and "Delete queue" not in refused.err
    assert queue in cli.queues()


def test_delete_over_http_is_refused_and_names_the_command(cli: Cli, queue: str) -> None:
    refused = cli.any("queue", "delete", queue, "--discard", "--yes", "--url", cli.server.url)
    assert refused.code == 4
    assert "pushq queue delete" in refused.err
    from_elsewhere = cli.any("queue", "delete", queue, "--discard", "--yes", env={"PUSHQ_URL": cli.server.url})
    assert (from_elsewhere.code, from_elsewhere.err) == (refused.code, refused.err)


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


def test_top_of_named_queues_shows_these_alone_and_knows_what_is_none(cli: Cli, queue: str) -> None:
    cli("queue", "create", f"{queue}-other")
    items = cli("top", queue, "--interval", "0.2", "--json").json()["items"]
    assert [row["queue"] for row in items] == [queue]
    refused = cli.any("top", queue, "nowhere", "--once", "--interval", "0.2")
    assert refused.code != 0 and "nowhere" in refused.err


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


def keys(cli: Cli) -> list[str]:
    return [item["id"] for item in cli("key", "list", "--json").json()["items"]]


def as_a_program(arguments: Sequence[str], cli: Cli, stdout: BinaryIO | None) -> subprocess.CompletedProcess[str]:
    """Runs a command in an interpreter of its own, down to how that one ends. Without `stdout` it is closed."""
    program = f"exec {shlex.join([sys.executable, '-m', 'gateway', *arguments])}"
    shell = ["/bin/sh", "-c", program if stdout is not None else f"{program} >&-"]
    root = Path(__file__).resolve().parents[2]
    return subprocess.run(
        shell, env=cli.env, cwd=root, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=RUN_S_MAX, check=False
    )


@contextmanager
def full_disk() -> Iterator[BinaryIO]:
    with Path("/dev/full").open("wb") as full:
        yield full


@contextmanager
def gone_reader() -> Iterator[BinaryIO]:
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "wb") as pipe:
        yield pipe


@pytest.mark.parametrize("as_json", [(), ("--json",)])
@pytest.mark.parametrize("stdout", [full_disk, gone_reader])
def test_a_secret_that_could_not_be_shown_is_told_with_what_was_made(
    stdout: Callable[[], AbstractContextManager[BinaryIO]], as_json: tuple[str, ...], cli: Cli
) -> None:
    name = f"lost-{uuid.uuid4().hex[:8]}"
    before = keys(cli)
    for command in (("create", name, "--scope", "view:*"), ("rotate",)):
        id = [] if command[0] == "create" else [key for key in keys(cli) if key not in before]
        with stdout() as out:
            ended = as_a_program(["key", *command, *id, *as_json], cli, out)
        (made,) = [key for key in keys(cli) if key not in before]
        assert (ended.returncode, f"key {made}" in ended.stderr, "secret" in ended.stderr) == (1, True, True), ended
        assert "Traceback" not in ended.stderr and "Exception ignored" not in ended.stderr
    assert cli("key", "rotate", made).out.strip(), "which is what the hint says"
    cli("key", "delete", made, "--yes")


def test_without_a_stdout_no_secret_is_made(cli: Cli) -> None:
    before = keys(cli)
    commands = (("key", "create", "lost", "--scope", "view:*"), ("alert", "add-receiver", "lost"))
    for command in commands:
        ended = as_a_program(command, cli, None)
        assert (ended.returncode, "stdout is closed" in ended.stderr) == (1, True), ended
    assert keys(cli) == before and cli("alert", "receivers", "--json").json()["items"] == []


def test_a_connection_is_listed_and_ended(cli: Cli, shared_server: PushqServer, queue: str) -> None:
    with connect(shared_server.ws_url) as ws:
        for frame in ({"type": "connect", "token": shared_server.key}, {"type": "subscribe", "id": 1, "queue": queue}):
            ws.send(json.dumps(frame))
            ws.recv(5)
        listed = cli("connection", "list", "--json").json()["items"]
        (mine,) = [item for item in listed if queue in [each["queue"] for each in item["subscriptions"]]]
        assert mine["id"] in cli("connection", "list").out
        assert "closed connection" in cli("connection", "kick", mine["id"]).err
        assert json.loads(ws.recv(5))["type"] == "bye"
        with pytest.raises(ConnectionClosed) as closed:
            ws.recv(5)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 4003
        assert cli.any("connection", "kick", mine["id"]).code == 6


def test_quotas_of_a_tenant_are_set_one_by_one(cli: Cli) -> None:
    name = f"quota-{uuid.uuid4().hex[:8]}"
    cli("tenant", "create", name, "--queues", "3", "--connections", "10")
    cli("tenant", "update", name, "--queues", "5", "--no-quota", "connections")
    assert cli("tenant", "show", name, "--json").json()["quotas"] == {"queues": 5}
    assert "queues 5" in cli("tenant", "show", name).out
    assert cli.any("tenant", "update", name).code == 2


class Interrupted(Admin):
    """Another operator's change comes between the first reading of a tenant and its writing."""

    was_changed = False

    async def request(self, method: str, path: str, **options: Any) -> Any:
        if method == "PUT" and not self.was_changed:
            self.was_changed = True
            await super().request("PUT", path, json={"quotas": {"queues": 3, "connections": 7}})
        return await super().request(method, path, **options)


@pytest.mark.anyio
async def test_a_change_of_quotas_keeps_what_another_operator_changed_meanwhile(cli: Cli) -> None:
    name = f"quota-{uuid.uuid4().hex[:8]}"
    cli("tenant", "create", name, "--queues", "3")
    async with Interrupted(cli.server.url, cli.server.key) as admin:
        changed = await change_quotas(admin, name, given={"queues": 5}, dropped=())
    assert admin.was_changed and changed["quotas"] == {"queues": 5, "connections": 7}


def test_a_tenant_that_is_there_keeps_its_quotas_when_it_is_created_again(cli: Cli) -> None:
    name = f"again-{uuid.uuid4().hex[:8]}"
    wanted = ("tenant", "create", name, "--queues", "3", "--connections", "10")
    cli(*wanted)
    cli(*wanted)
    cli("tenant", "create", name)
    refused = cli.any("tenant", "create", name, "--queues", "5")
    assert refused.code == 1
    assert f"tenant update {name}" in refused.err and "connections 10" in refused.err
    assert cli("tenant", "show", name, "--json").json()["quotas"] == {"queues": 3, "connections": 10}


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


# Terminals


@contextmanager
def terminal(columns: int = 120) -> Iterator[tuple[int, int]]:
    """(our side, the command's side)."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    try:
        yield ours, theirs
    finally:
        os.close(ours)
        os.close(theirs)


def read_until(fd: int, text: bytes) -> bytes:
    shown = b""
    deadline = time.monotonic() + RUN_S_MAX
    while text not in shown:
        assert time.monotonic() < deadline, shown
        if select.select([fd], [], [], 0.1)[0]:
            shown += os.read(fd, 65536)
    return shown


@pytest.mark.parametrize("columns", [80, 120])
def test_top_watches_on_a_terminal_until_q(cli: Cli, queue: str, columns: int) -> None:
    # The fullest stand first: among many empty ones this one might be below the last line.
    cli("publish", queue, "--lines", stdin="x\n" * 1000)
    with terminal(columns) as (ours, theirs):
        before = termios.tcgetattr(theirs)
        streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
        with cli.running("top", "--interval", "0.2", **streams) as watching:
            read_until(ours, queue.encode())
            os.write(ours, b"xq")
            assert watching.wait(RUN_S_MAX) == 0
        assert termios.tcgetattr(theirs) == before


def test_top_says_that_it_cannot_draw_on_a_terminal_without_a_screen(cli: Cli) -> None:
    with terminal() as (ours, theirs):
        streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
        with cli.running("top", env=cli.env | {"TERM": "dumb"}, **streams) as watching:
            assert b"--once to print one table" in read_until(ours, b"one table")
            assert watching.wait(RUN_S_MAX) == 2


def test_long_work_has_a_bar_on_a_terminal_and_data_stays_off_it(cli: Cli, queue: str, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("x\n" * 20_000)
    shown: list[bytes] = []
    with terminal() as (ours, theirs), (tmp_path / "lines").open("rb") as lines:
        reading = threading.Thread(target=lambda: shown.append(read_until(ours, b"published 20000 messages")))
        reading.start()
        with cli.running("publish", queue, "--lines", "--json", stdin=lines, stderr=theirs) as publishing:
            out, _ = publishing.communicate(timeout=RUN_S_MAX)
        reading.join(RUN_S_MAX)
    assert f"publishing to {queue}".encode() in shown[0]
    assert b"/40000" in shown[0]
    assert len(out.splitlines()) == 20_000


# Plans


def test_a_plan_is_checked_against_the_queues_that_there_are(cli: Cli, queue: str, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    move = {"queue": queue, "from": "eu", "to": "us", "partition": 0}
    other = {"queue": "theirs", "tenant": "acme", "partitions": 4, "clusters": ["eu", "us"]}
    plan.write_text(json.dumps({"version": 1, "moves": [move], "partitions": [other]}))
    refused = cli.any("cluster", "apply-plan", "--yes", str(plan))
    assert refused.code == 6 and "stores messages itself" in refused.err
    checked = cli(
        "cluster", "apply-plan", "--dry-run", str(plan), "--cluster", "eu", "--cluster", "us", "--json"
    ).json()
    assert [(one["queue"], one["what"], one["from"], one["to"], one["is_checked"]) for one in checked["items"]] == [
        (queue, "partition 0", "eu", ["us"], True),
        ("theirs", "split, 4 partitions", None, ["eu", "us"], False),
    ]
    assert "the plan is valid: 1 move, 1 split\n" in cli("cluster", "apply-plan", "--dry-run", str(plan)).err
    nowhere = cli.any("cluster", "apply-plan", "--dry-run", str(plan), "--cluster", "eu")
    assert nowhere.code == 1 and "moves[0].to: unknown cluster 'us'" in nowhere.err
    for moves, said in (
        ([{**move, "partition": 1}], "partition is 1"),
        ([{**move, "queue": "gone"}], "no queue 'gone'"),
    ):
        plan.write_text(json.dumps({"version": 1, "moves": moves}))
        wrong = cli.any("cluster", "apply-plan", "--dry-run", str(plan))
        assert wrong.code == 1 and said in wrong.err
