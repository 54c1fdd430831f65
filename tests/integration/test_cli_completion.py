"""Names that a shell completes: they come from the server, and where it is away a Tab costs a second and no word."""

from __future__ import annotations

import os
import socket
import time
import uuid
from pathlib import Path

import pytest

from gateway.commands.names import ASK_S_MAX, lines_within
from tests.support.cli import Cli, Ran
from tests.support.server import PushqServer, free_port

START_S_MAX = 10.0
"""What a busy machine takes for the start of a command."""


@pytest.fixture(scope="module")
def cli(shared_server: PushqServer) -> Cli:
    return Cli(shared_server)


@pytest.fixture
def prefix() -> str:
    return f"tab-{uuid.uuid4().hex[:8]}"


def tab(cli: Cli, *words: str, **env: str) -> Ran:
    """Tab behind these words, in bash."""
    line = " ".join(["pushq", *words])
    asked = {"_PUSHQ_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words))}
    return cli.any(env=asked | env)


def names(ran: Ran) -> list[str]:
    assert (ran.code, ran.err) == (0, ""), ran
    return [line.removeprefix("plain,") for line in ran.out.split()]


@pytest.mark.parametrize(
    "before",
    [
        ["consume"],
        ["publish"],
        ["queue", "show"],
        ["queue", "export"],
        ["move"],
        ["move", "other"],
        ["queue", "redrive"],
    ],
    ids=" ".join,
)
def test_queues_are_completed_by_their_beginning(before: list[str], cli: Cli, prefix: str) -> None:
    for name in (f"{prefix}-a", f"{prefix}-b", f"x{prefix}"):
        cli.create_queue(name)
    assert names(tab(cli, *before, prefix)) == [f"{prefix}-a", f"{prefix}-b"]


def test_options_of_the_line_say_which_server_and_which_key(cli: Cli, prefix: str) -> None:
    cli.create_queue(prefix)
    elsewhere = f"http://127.0.0.1:{free_port()}"
    words = ("consume", "--url", cli.server.url, "--key-file", str(cli.server.data / "admin.key"), prefix)
    assert names(tab(cli, *words, PUSHQ_URL=elsewhere, PUSHQ_KEY="nobodys")) == [prefix]


def test_groups_are_those_of_the_stream_on_the_line(cli: Cli, prefix: str) -> None:
    cli("queue", "create", prefix, "--kind", "stream")
    cli("group", "set", prefix, "bills", "--position", "earliest")
    cli("group", "set", prefix, "mails", "--position", "earliest")
    assert names(tab(cli, "consume", prefix, "--group", "b")) == ["bills"]
    assert names(tab(cli, "group", "delete", prefix, "")) == ["bills", "mails"]


def test_a_name_that_is_to_be_new_is_not_completed(cli: Cli, prefix: str) -> None:
    cli.create_queue(prefix)
    assert names(tab(cli, "queue", "create", prefix)) == []


def test_only_what_the_key_may_view_is_offered(cli: Cli, prefix: str) -> None:
    cli.create_queue(f"{prefix}-mine")
    cli.create_queue(f"{prefix}-other")
    key = cli("key", "create", "k", "--scope", f"view:{prefix}-mine").out.strip()
    assert names(tab(cli, "consume", prefix, PUSHQ_KEY=key)) == [f"{prefix}-mine"]
    assert names(tab(cli, "consume", prefix, PUSHQ_KEY="pushq_no_such")) == []


def test_absent_server_is_no_word(cli: Cli) -> None:
    assert names(tab(cli, "consume", "q", PUSHQ_URL=f"http://127.0.0.1:{free_port()}")) == []


def test_silent_server_is_waited_for_no_longer_than_a_second(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        assert names(tab(cli, "consume", "q", PUSHQ_URL=f"http://127.0.0.1:{silent.getsockname()[1]}")) == []
    assert time.monotonic() - began < ASK_S_MAX + START_S_MAX


def test_what_came_in_time_is_offered_whatever_the_rest_waits_for() -> None:
    def write(out: int) -> None:
        os.write(out, b"one\ntwo\nthr")
        time.sleep(3600)

    assert lines_within(0.5, write) == ["one", "two"]


def test_what_goes_wrong_is_not_said(capfd: pytest.CaptureFixture[str]) -> None:
    def write(out: int) -> None:
        os.write(1, b"words")
        os.write(2, b"words")
        raise ZeroDivisionError

    assert lines_within(5, write) == []
    assert capfd.readouterr() == ("", "")


def test_contexts_are_completed(cli: Cli, tmp_path: Path) -> None:
    home = {"XDG_CONFIG_HOME": str(tmp_path)}
    for name in ("prod", "probe", "test"):
        cli("context", "add", name, "--url", "http://a", env=home)
    assert names(tab(cli, "context", "use", "pro", **home)) == ["probe", "prod"]
    assert names(tab(cli, "queue", "list", "--context", "t", **home)) == ["test"]
