"""`pushq queue peek`, `redrive`, `cancel` and `purge` against a real server, for what did not go well."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import threading
import time
import uuid
from typing import Any

import pytest

from tests.support.cli import RUN_S_MAX, Cli
from tests.support.patience import until
from tests.support.server import PushqServer


@pytest.fixture(scope="module")
def cli(shared_server: PushqServer) -> Cli:
    return Cli(shared_server)


@pytest.fixture
def queue(cli: Cli) -> str:
    """A queue whose messages have one attempt."""
    name = f"q-{uuid.uuid4().hex[:12]}"
    cli.http("PUT", f"/v1/queues/{name}", b'{"max_attempts": 1}')
    return name


def post(cli: Cli, queue: str, what: str, **body: Any) -> Any:
    return cli.http("POST", f"/v1/queues/{queue}/{what}", json.dumps(body).encode())


def publish(cli: Cli, queue: str, *messages: dict[str, Any]) -> None:
    post(cli, queue, "messages", messages=messages)


def died(cli: Cli, queue: str, *messages: dict[str, Any]) -> None:
    publish(cli, queue, *messages)
    held = post(cli, queue, "receive", max=1000)["messages"]
    post(cli, queue, "nack", receipts=[m["receipt"] for m in held], reason="no stock")


def peeked(cli: Cli, queue: str, *options: str) -> list[Any]:
    return [item["body"] for item in cli("queue", "peek", queue, *options, "--json").json()["items"]]


# Peek


def test_every_filter_has_an_option(cli: Cli, queue: str) -> None:
    publish(
        cli,
        queue,
        {"body": "blue", "id": "a", "key": "k", "headers": {"shop": "north", "n": "1"}},
        {"body": "red", "id": "b", "headers": {"shop": "north", "n": "2"}},
        {"body": "green", "delay_ms": 3_600_000},
    )
    assert peeked(cli, queue) == ["blue", "red"]
    assert peeked(cli, queue, "--state", "delayed") == ["green"]
    assert peeked(cli, queue, "--id", "b") == ["red"]
    assert peeked(cli, queue, "--key", "k") == ["blue"]
    assert peeked(cli, queue, "--header", "shop=north") == ["blue", "red"]
    assert peeked(cli, queue, "--header", "shop=north", "--header", "n=2") == ["red"]
    assert peeked(cli, queue, "--contains", "lu") == ["blue"]
    assert peeked(cli, queue, "--since", "1h") == ["blue", "red"] and peeked(cli, queue, "--until", "1h") == []
    assert peeked(cli, queue, "--since", "2000-01-01T00:00:00Z", "--from-seq", "1") == ["red"]
    assert peeked(cli, queue, "--partition", "0") == ["blue", "red"]
    assert cli.any("queue", "peek", queue, "--partition", "5").code == 1
    assert cli.any("queue", "peek", queue, "--since", "yesterday").code == 2
    assert cli.any("queue", "peek", queue, "--header", "shop").code == 2
    assert cli.any("queue", "peek", "absent").code == 6


def test_dead_letters_are_shown_with_their_reason(cli: Cli, queue: str) -> None:
    died(cli, queue, {"body": 1, "id": "a"})
    (item,) = cli("queue", "peek", queue, "--state", "dead", "--json").json()["items"]
    assert item["dead_letter"]["reason"] == "max_attempts"
    line = cli("queue", "peek", f"{queue}.dead").out
    assert "a" in line and "reason=max_attempts" in line


# Cancel


def test_a_message_is_cancelled_by_its_id(cli: Cli, queue: str) -> None:
    publish(cli, queue, {"body": 1, "id": "a"}, {"body": 2, "id": "b/c"}, {"body": 3, "id": "held"})
    assert "cancelled" in cli("queue", "cancel", queue, "a").err
    assert cli("queue", "cancel", queue, "b/c", "--json").json() == {"queue": queue, "id": "b/c", "cancelled": True}
    post(cli, queue, "receive")
    in_flight = cli.any("queue", "cancel", queue, "held")
    assert in_flight.code == 1 and "in flight" in in_flight.err
    assert cli.any("queue", "cancel", queue, "a").code == 6
    assert json.loads(cli.any("queue", "cancel", queue, "a", "--json").err)["code"] == "not-found"


# Redrive


def test_a_dry_run_says_how_many_and_moves_none(cli: Cli, queue: str) -> None:
    died(cli, queue, *({"body": n, "id": f"m{n}", "headers": {"shop": "ab"[n % 2]}} for n in range(5)))
    assert cli("queue", "redrive", queue, "--dry-run").out == "5\n"
    for options, total in (
        (["--reason", "max_attempts"], 5),
        (["--reason", "expired"], 0),
        (["--id", "m1", "--id", "m2"], 2),
        (["--header", "shop=b"], 2),
        (["--older-than", "1h"], 0),
        (["--older-than", "0s"], 5),
    ):
        assert cli("queue", "redrive", queue, "--dry-run", "--json", *options).json() == {"total": total}, options
    assert cli.stats(queue)["dead"] == 5


def test_a_redrive_is_watched_to_its_end(cli: Cli, queue: str) -> None:
    died(cli, queue, *({"body": n} for n in range(5)))
    other = cli.create_queue(f"{queue}-other")
    ran = cli("queue", "redrive", f"{queue}.dead", "--to", other, "--rate", "50")
    assert ran.out == "" and "5 of 5 messages moved" in ran.err
    assert cli.stats(other)["ready"] == 5
    died(cli, queue, {"body": 1})
    job = cli("queue", "redrive", queue, "--json").json()
    assert (job["state"], job["done"], job["total"]) == ("done", 1, 1)


def test_one_that_is_not_waited_for_goes_on_by_itself(cli: Cli, queue: str) -> None:
    died(cli, queue, *({"body": n} for n in range(5)))
    job = cli("queue", "redrive", queue, "--no-wait", "--rate", "10", "--json").json()
    assert (job["state"], job["total"]) == ("running", 5)
    until(lambda: cli.stats(queue)["ready"] == 5, "the redrive ends")


def test_what_cannot_be_redriven_ends_with_a_code(cli: Cli, queue: str) -> None:
    assert cli.any("queue", "redrive", "absent").code == 6
    died(cli, queue, {"body": 1})
    refused = cli.any("queue", "redrive", queue, "--to", "absent")
    assert refused.code == 6 and "queue 'absent'" in refused.err
    companion = cli.any("queue", "redrive", queue, "--to", f"{queue}.dead")
    assert companion.code == 1 and "/to:" in companion.err
    assert cli.any("queue", "redrive", queue, "--rate", "0").code == 2
    weak = cli("key", "create", "weak", "--scope", "view:*").out.strip()
    assert cli.any("queue", "redrive", queue, env={"PUSHQ_KEY": weak}).code == 4


def test_ctrl_c_stops_the_redrive_too(cli: Cli, queue: str) -> None:
    died(cli, queue, *({"body": n} for n in range(200)))
    with cli.running("queue", "redrive", queue, "--rate", "10") as process:
        until(lambda: cli.stats(queue)["ready"] > 0, "nothing is moved")
        process.send_signal(signal.SIGINT)
        assert process.wait(RUN_S_MAX) != 0
    (job,) = cli.http("GET", f"/v1/queues/{queue}/redrives")["items"]
    assert job["state"] == "cancelled" and cli.stats(queue)["dead"] == 200 - job["done"] > 0


def test_a_redrive_has_a_bar_on_a_terminal(cli: Cli, queue: str) -> None:
    died(cli, queue, *({"body": n} for n in range(20)))
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    shown: list[bytes] = []

    def read() -> None:
        deadline = time.monotonic() + RUN_S_MAX
        while b"messages moved" not in b"".join(shown) and time.monotonic() < deadline:
            if select.select([ours], [], [], 0.1)[0]:
                shown.append(os.read(ours, 65536))

    reading = threading.Thread(target=read)
    reading.start()
    try:
        with cli.running(
            "queue", "redrive", queue, "--rate", "40", stdout=subprocess.DEVNULL, stderr=theirs
        ) as process:
            assert process.wait(RUN_S_MAX) == 0
        reading.join(RUN_S_MAX)
    finally:
        os.close(theirs)
        os.close(ours)
    assert f"redriving {queue}".encode() in b"".join(shown) and b"/20" in b"".join(shown)


# Purge


def test_dead_letters_are_purged_by_their_companions_name(cli: Cli, queue: str) -> None:
    died(cli, queue, {"body": 1}, {"body": 2})
    publish(cli, queue, {"body": "stays"})
    job = cli("queue", "purge", f"{queue}.dead", "--yes", "--json").json()
    assert (job["state"], job["total"]) == ("done", 2)
    assert cli.stats(queue)["dead"] == 0 and cli.stats(queue)["ready"] == 1
