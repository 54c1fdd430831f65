"""`pushq consume` in scripts: bodies alone, templates, the end of the queue, and looking without taking."""

from __future__ import annotations

import json
import shlex
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from push.client import Admin
from tests.support.cli import RUN_S_MAX, Cli
from tests.support.patience import until
from tests.support.server import SOON_BACK, PushqServer

SERVER_ENV = SOON_BACK
TRANSPORTS = ("ws", "sse", "poll")


@pytest.fixture(scope="module")
def cli(shared_server: PushqServer) -> Cli:
    return Cli(shared_server)


@pytest.fixture
def queue(cli: Cli) -> str:
    return cli.create_queue(f"q-{uuid.uuid4().hex[:12]}")


def fill(cli: Cli, queue: str, count: int) -> None:
    cli("publish", queue, "--lines", stdin="".join(f"{number}\n" for number in range(count)))


# How it looks


def test_raw_bodies_come_back_as_they_were_published(cli: Cli, queue: str) -> None:
    cli("publish", queue, "-", "--content-type", "application/octet-stream", stdin=b"\x00\xff")
    cli("publish", queue, '{"a": "ü"}')
    with cli.running("consume", queue, "--raw", "--count", "2") as consuming:
        out, _ = consuming.communicate(timeout=RUN_S_MAX)
    assert out == b"\x00\xff\n" + '{"a":"ü"}\n'.encode()


def test_raw_lines_are_the_input_of_publish(cli: Cli, queue: str) -> None:
    other = cli.create_queue(f"{queue}-copy")
    cli("publish", queue, "--lines", stdin='{"n":1}\nplain text\n42\n"42"\n')
    cli("publish", other, "--lines", stdin=cli("consume", queue, "--raw", "--count", "4").out)
    bodies = cli("consume", other, "--json", "--count", "4").out.splitlines()
    assert [json.loads(line)["body"] for line in bodies] == [{"n": 1}, "plain text", 42, "42"]


@pytest.mark.parametrize("ack", ["manual", "auto"])
def test_the_last_message_of_a_count_is_acked_also_where_it_has_no_second_attempt(cli: Cli, ack: str) -> None:
    queue = f"q-{uuid.uuid4().hex[:12]}"
    cli("queue", "create", queue, "--max-attempts", "1")
    fill(cli, queue, 3)
    ran = cli("consume", queue, "--raw", "--count", "2", "--ack", ack)
    assert ran.out == "0\n1\n" and "lease" not in ran.err
    stats = cli("queue", "show", queue, "--json").json()["stats"]
    assert (stats["acked_total"], stats["dead"], stats["ready"]) == (2, 0, 1)


def test_null_ends_bodies_that_hold_newlines(cli: Cli, queue: str) -> None:
    cli("publish", queue, "-", "--content-type", "text/plain", stdin="two\nlines")
    cli("publish", queue, "-", "--content-type", "text/plain", stdin="last")
    assert cli("consume", queue, "--raw", "-0", "--count", "2").out == "two\nlines\0last\0"


def test_template_shows_what_it_names(cli: Cli, queue: str) -> None:
    cli("publish", queue, "hello", "--id", "m-1", "--header", "x=a b", "--key", "ann")
    shown = cli(
        "consume", queue, "--count", "1", "--format", r"{queue}\t{id} {attempt} {key} {headers.x} {text}{reply_to}"
    )
    assert shown.out == f"{queue}\tm-1 1 ann a b hello\n"


@pytest.mark.anyio
async def test_template_shows_who_published_and_its_number(cli: Cli, queue: str) -> None:
    async with Admin(cli.server.url, cli.server.key) as admin:
        await admin.publish(queue, [{"body": 1, "producer": "sensor-7", "producer_seq": 41}, {"body": 2}])
    shown = cli("consume", queue, "--count", "2", "--format", "[{producer}] [{producer_seq}] {body}")
    assert shown.out == "[sensor-7] [41] 1\n[] [] 2\n"


def test_wrong_template_takes_nothing(cli: Cli, queue: str) -> None:
    cli("publish", queue, "hello")
    ran = cli.any("consume", queue, "--format", "{id} {header.x}")
    assert (ran.code, ran.out) == (2, "")
    assert "--format" in ran.err and "headers.NAME" in ran.err
    assert cli.stats(queue)["ready"] == 1


# To the end of the queue


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_until_empty_ends_well_with_everything_acked(transport: str, cli: Cli, queue: str) -> None:
    fill(cli, queue, 250)
    ran = cli("consume", queue, "--until-empty", "--raw", "--transport", transport)
    assert ran.out.split() == [str(number) for number in range(250)]
    stats = cli.stats(queue)
    assert (stats["ready"], stats["in_flight"], stats["acked_total"]) == (0, 0, 250)


def test_until_empty_of_an_empty_queue_prints_nothing(cli: Cli, queue: str) -> None:
    assert cli("consume", queue, "--until-empty").out == ""


def test_until_empty_waits_neither_for_scheduled_messages_nor_for_those_that_others_have(cli: Cli, queue: str) -> None:
    cli("publish", queue, "later", "--delay", "1h")
    cli("publish", queue, "held")
    cli.http("POST", f"/v1/queues/{queue}/receive", b'{"visibility_timeout_ms": 3600000}')
    cli("publish", queue, "now")
    assert cli("consume", queue, "--until-empty", "--format", "{text}").out == "now\n"
    assert (cli.stats(queue)["delayed"], cli.stats(queue)["in_flight"]) == (1, 1)


def test_until_empty_goes_on_while_a_reader_is_slow(cli: Cli, queue: str) -> None:
    fill(cli, queue, 20)
    with cli.running("consume", queue, "--until-empty", "--raw") as consuming:
        assert consuming.stdout is not None
        # Lines that nobody reads yet are in flight, and none is ready: the queue is not consumed for that.
        until(lambda: cli.stats(queue)["ready"] == 0, "all are here")
        ran = subprocess.run(["cat"], stdin=consuming.stdout, capture_output=True, timeout=RUN_S_MAX)
        assert consuming.wait(RUN_S_MAX) == 0
    assert len(ran.stdout.split()) == 20
    assert cli.stats(queue)["acked_total"] == 20


def test_until_empty_of_a_group_ends_without_lag(cli: Cli) -> None:
    stream = f"s-{uuid.uuid4().hex[:12]}"
    cli("queue", "create", stream, "--kind", "stream")
    fill(cli, stream, 30)
    read = ("consume", stream, "--raw", "--until-empty")
    assert len(cli(*read, "--group", "g", "--from", "earliest").out.split()) == 30
    assert cli(*read, "--group", "g").out == ""
    alone = cli.any(*read)
    assert alone.code == 2 and "--group" in alone.err and "--count" in alone.err


def test_until_empty_without_the_scope_view_takes_nothing(cli: Cli, queue: str) -> None:
    cli("publish", queue, "hello")
    key = cli("key", "create", "reader", "--scope", f"consume:{queue}").out.strip()
    ran = cli.any("consume", queue, "--until-empty", env={"PUSHQ_KEY": key})
    assert (ran.code, ran.out) == (4, "") and "view" in ran.err
    assert cli.stats(queue)["ready"] == 1


# Only to look


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_no_ack_shows_each_message_once_and_costs_no_attempt(transport: str, cli: Cli, queue: str) -> None:
    cli("queue", "update", queue, "--max-attempts", "1")
    fill(cli, queue, 250)
    look = ("consume", queue, "--no-ack", "--until-empty", "--format", "{attempt} {body}", "--transport", transport)
    expected = [f"1 {number}" for number in range(250)]
    ran = cli(*look)
    assert ran.out.splitlines() == expected
    assert f'250 messages were shown and are back in "{queue}"; no attempt was counted' in ran.err
    until(lambda: cli.stats(queue)["ready"] == 250, "over SSE they rest until the stream has ended")
    assert cli(*look).out.splitlines() == expected, "in their order, and untried"
    until(lambda: cli.stats(queue)["ready"] == 250, "all are back again")
    assert cli.stats(queue)["acked_total"] == 0


def test_no_ack_gives_back_on_ctrl_c_and_waits_till_then(cli: Cli, queue: str) -> None:
    fill(cli, queue, 3)
    with cli.running("consume", queue, "--no-ack", "--raw") as consuming:
        assert consuming.stdout is not None
        assert [consuming.stdout.readline() for _ in range(3)] == [b"0\n", b"1\n", b"2\n"]
        cli("publish", queue, "new")
        assert consuming.stdout.readline() == b'"new"\n', "what it keeps does not come again"
        consuming.send_signal(signal.SIGINT)
        out, _ = consuming.communicate(timeout=RUN_S_MAX)
        assert (consuming.returncode, out) == (0, b"")
    assert cli.stats(queue)["ready"] == 4


def test_no_ack_with_a_count_shows_the_first_and_gives_them_back(cli: Cli, queue: str) -> None:
    fill(cli, queue, 10)
    for _ in range(2):
        assert cli("consume", queue, "--no-ack", "--raw", "--count", "3").out.split() == ["0", "1", "2"]
    assert cli.stats(queue)["ready"] == 10


def test_no_ack_says_when_there_may_be_more_than_it_keeps(cli: Cli, queue: str) -> None:
    fill(cli, queue, 10)
    ran = cli.any("consume", queue, "--no-ack", "--raw", "--until-empty", "--credit", "4")
    assert (ran.code, ran.out.split()) == (1, ["0", "1", "2", "3"])
    assert "--credit" in ran.err
    assert cli.stats(queue)["ready"] == 10


def test_reader_that_leaves_no_ack_takes_no_attempt(cli: Cli, queue: str) -> None:
    fill(cli, queue, 500)
    with cli.running("consume", queue, "--no-ack", "--raw") as consuming:
        head = subprocess.run(["head", "-3"], stdin=consuming.stdout, capture_output=True, timeout=RUN_S_MAX)
        assert consuming.stdout is not None
        consuming.stdout.close()
        assert consuming.wait(RUN_S_MAX) == 1
    assert head.stdout.split() == [b"0", b"1", b"2"]
    until(lambda: cli.stats(queue)["ready"] == 500, "all are back")
    assert set(cli("consume", queue, "--until-empty", "--format", "{attempt}").out.split()) == {"1"}


@pytest.mark.parametrize(
    ("settings", "told"), [(["--delivery", "at_most_once"], "pushq queue peek"), (["--kind", "stream"], "is a stream")]
)
def test_no_ack_is_refused_where_nothing_could_be_given_back(settings: list[str], told: str, cli: Cli) -> None:
    name = f"q-{uuid.uuid4().hex[:12]}"
    cli("queue", "create", name, *settings)
    cli("publish", name, "hello")
    ran = cli.any("consume", name, "--no-ack")
    assert (ran.code, ran.out) == (2, "") and told in ran.err


# What is not there


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("options", [[], ["--no-ack"]])
def test_a_server_that_takes_the_connection_and_is_silent_does_not_hold_the_signal_up(
    cli: Cli, number: signal.Signals, options: list[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(RUN_S_MAX)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with cli.running("consume", "q", "--url", url, *options) as consuming:
            peer, _ = silent.accept()
            with peer:
                peer.recv(1)  # it asks by now
                began = time.monotonic()
                consuming.send_signal(number)
                out, err = consuming.communicate(timeout=RUN_S_MAX)
                assert time.monotonic() - began < 10  # of the 15 s that it tries to connect
    assert (consuming.returncode, out, err) == (0, b"", b"")


@pytest.mark.parametrize("ack", ["manual", "auto"])
def test_without_a_stdout_nothing_is_taken(cli: Cli, queue: str, ack: str) -> None:
    fill(cli, queue, 1)
    program = [sys.executable, "-m", "gateway", "consume", queue, "--count", "1", "--ack", ack]
    line = f"exec {shlex.join(program)} >&-"
    root = Path(__file__).resolve().parents[2]
    shell = ["/bin/sh", "-c", line]
    ended = subprocess.run(shell, env=cli.env, cwd=root, capture_output=True, timeout=RUN_S_MAX, check=False)
    assert (ended.returncode, b"stdout is closed" in ended.stderr) == (1, True), ended.stderr
    assert cli("queue", "show", queue, "--json").json()["stats"]["ready"] == 1
