"""`pushq publish` and `pushq consume` against a real server, and how commands end."""

from __future__ import annotations

import json
import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.cli import RUN_S_MAX, Cli
from tests.support.patience import until
from tests.support.server import SOON_BACK, PushqServer, free_port

SERVER_ENV = SOON_BACK
TRANSPORTS = ("ws", "sse", "poll")
StartServer = Callable[..., PushqServer]


@pytest.fixture(scope="module")
def cli(shared_server: PushqServer) -> Cli:
    return Cli(shared_server)


@pytest.fixture
def queue(cli: Cli) -> str:
    return cli.create_queue(f"q-{uuid.uuid4().hex[:12]}")


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


def test_what_is_published_says_when_and_how_urgent_it_is(cli: Cli, queue: str) -> None:
    cli("queue", "update", queue, "--priorities", "3")
    cli("publish", queue, "later", "--delay", "1h", "--priority", "2", "--ttl", "90s")
    cli("publish", queue, "next year", "--deliver-at", "2099-01-01T00:00:00Z")
    cli("publish", queue, "soon", "--delay", "50")
    until(lambda: cli.stats(queue)["ready"] == 1, "50 is milliseconds")
    assert cli.stats(queue)["delayed"] == 2
    items = cli("queue", "peek", queue, "--state", "delayed", "--json").json()["items"]
    assert [(item["body"], item["priority"], "expires_at" in item) for item in items] == [
        ("later", 2, True),
        ("next year", 0, False),
    ]
    wrong = cli.any("publish", queue, "never", "--delay", "soon")
    assert wrong.code == 2 and "invalid duration" in wrong.err


def test_a_publish_may_be_given_a_time(cli: Cli, queue: str) -> None:
    cli("publish", queue, "one", "--timeout-ms", "5s")
    cli("publish", queue, "--lines", "--timeout-ms", "5000", stdin="2\n3\n")
    until(lambda: cli.stats(queue)["ready"] == 3, "all are stored")
    wrong = cli.any("publish", queue, "never", "--timeout-ms", "2m")
    assert wrong.code == 2 and "between 1 and 60000 ms" in wrong.err


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
    with cli.running("publish", queue, "--lines", stdin=subprocess.PIPE) as publishing:
        assert publishing.stdin is not None
        publishing.stdin.write(b"first\n")
        publishing.stdin.flush()
        until(lambda: cli.stats(queue)["ready"] == 1, "the first line is a message")
        publishing.communicate(b"second\n", timeout=RUN_S_MAX)
    assert cli.stats(queue)["ready"] == 2


def test_refused_line_is_named_with_what_is_stored(cli: Cli, queue: str) -> None:
    ran = cli.any("publish", queue, "--lines", stdin="a\n" + "x" * 300_000 + "\n")
    assert ran.code == 1
    assert "the error is about line 2; 1 message is stored" in ran.err
    assert cli.stats(queue)["ready"] == 1


def test_broken_json_goes_as_text_with_a_warning(cli: Cli, queue: str) -> None:
    ran = cli("publish", queue, '{"a": 1')
    assert "warning: it starts like JSON but is not valid JSON" in ran.err and "--text" in ran.err
    ran = cli("publish", queue, "--lines", stdin="[info] one\n[info] two\n{}\n")
    assert ran.err.count("starts like JSON but is not valid JSON") == 1
    assert "2 lines that start like JSON were sent as text" in ran.err
    assert "warning" not in cli("publish", queue, "[info] three", "--text").err
    assert cli.stats(queue)["ready"] == 5


def test_body_from_stdin_keeps_its_bytes_under_a_content_type(cli: Cli, queue: str) -> None:
    cli("publish", queue, "-", "--content-type", "application/octet-stream", stdin=b"\x00\xff\n")
    message = json.loads(cli("consume", queue, "--count", "1", "--json").out)
    assert (message["content_type"], message["body_base64"]) == ("application/octet-stream", "AP8K")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 1), (signal.SIGTERM, 143)])
def test_interrupted_lines_say_how_many_are_stored(number: int, code: int, cli: Cli, queue: str) -> None:
    with cli.running("publish", queue, "--lines", "--json", stdin=subprocess.PIPE) as publishing:
        assert publishing.stdin is not None and publishing.stdout is not None
        publishing.stdin.write(b"1\n2\n3\n")
        publishing.stdin.flush()
        stored = [json.loads(publishing.stdout.readline()) for _ in range(3)]
        publishing.send_signal(number)
        assert publishing.wait(RUN_S_MAX) == code
        assert publishing.stderr is not None
        said = publishing.stderr.read().decode()
    assert len(stored) == 3 and f'stopped: 3 messages are stored in "{queue}"' in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_ends_consume_well_and_acks_what_was_printed(number: int, cli: Cli, queue: str) -> None:
    cli("publish", queue, "--lines", stdin="1\n2\n3\n")
    with cli.running("consume", queue, "--count", "100") as consuming:
        assert consuming.stdout is not None
        assert [consuming.stdout.readline() for _ in range(3)][-1].endswith(b" 3\n")
        consuming.send_signal(number)
        assert consuming.wait(RUN_S_MAX) == 0
    assert cli.stats(queue)["acked_total"] == 3


def test_reader_that_leaves_costs_no_message(cli: Cli, queue: str) -> None:
    cli("publish", queue, "--lines", stdin="".join(f"{number}\n" for number in range(50)))
    with cli.running("consume", queue) as consuming:
        assert consuming.stdout is not None
        assert [consuming.stdout.readline().decode().split()[-1] for _ in range(50)][-1] == "49"
        until(lambda: cli.stats(queue)["acked_total"] == 50, "what was read is acked")
        consuming.stdout.close()
        cli("publish", queue, "last")
        assert consuming.wait(RUN_S_MAX) == 1
    assert cli("consume", queue, "--count", "1").out.split()[-1] == '"last"'
    assert cli.stats(queue)["acked_total"] == 51


def test_lines_that_a_reader_left_in_its_pipe_are_not_acked_and_were_no_attempt(cli: Cli, queue: str) -> None:
    cli("publish", queue, "--lines", stdin="".join(f"{number}\n" for number in range(1_000)))
    with cli.running("consume", queue) as consuming:
        head = subprocess.run(["head", "-3"], stdin=consuming.stdout, capture_output=True, timeout=RUN_S_MAX)
        assert consuming.stdout is not None
        consuming.stdout.close()
        assert consuming.wait(RUN_S_MAX) == 1
        assert consuming.stderr is not None
        assert "Traceback" not in consuming.stderr.read().decode()
    assert [line.split()[-1] for line in head.stdout.decode().splitlines()] == ["0", "1", "2"]
    until(lambda: cli.stats(queue)["in_flight"] == 0, "what was held is back")
    assert cli.stats(queue)["acked_total"] <= 3
    rest = cli("consume", queue, "--count", str(cli.stats(queue)["ready"]), "--json")
    assert {json.loads(line)["attempt"] for line in rest.out.splitlines()} == {1}


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
    with cli.running("consume", "orders", "--count", "2") as consuming:
        cli("publish", "orders", "1")
        assert consuming.stdout is not None
        assert consuming.stdout.readline().endswith(b" 1\n")
        server.kill()
        server.start()
        cli("publish", "orders", "2")
        out, err = consuming.communicate(timeout=RUN_S_MAX)
    assert [line.split()[-1] for line in out.splitlines()] == [b"2"]  # and not the first one again
    assert b"connection lost" in err
    assert b"reconnected" in err


# How commands end


def test_absent_server_ends_with_5_within_seconds(cli: Cli) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    began = time.monotonic()
    lines = ("queue list", "publish q 1", "consume q", "consume q --transport sse")
    with ThreadPoolExecutor(len(lines)) as threads:
        each = list(threads.map(lambda line: cli.any(*line.split(), "--url", nowhere), lines))
    for ran in each:
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


def test_a_publish_with_an_idempotency_key_is_stored_once(cli: Cli, queue: str) -> None:
    first = cli("publish", queue, "once", "--idempotency-key", "k-1")
    again = cli("publish", queue, "once", "--idempotency-key", "k-1")
    assert (first.out, "a duplicate" in again.err) == (again.out, True)
    other = cli.any("publish", queue, "another", "--idempotency-key", "k-1")
    assert other.code == 1 and "another payload" in other.err
    assert cli.stats(queue)["ready"] == 1
