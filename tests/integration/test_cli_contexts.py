"""`pushq context` against a real server: a command line names one word, and gets there with the right key."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.cli import Cli, Ran
from tests.support.server import PushqServer, free_port


@pytest.fixture
def cli(shared_server: PushqServer, tmp_path: Path) -> Cli:
    """A shell that knows no server, with a home of its own."""
    cli = Cli(shared_server)
    cli.env = {name: value for name, value in cli.env.items() if not name.startswith("PUSHQ_")}
    cli.env["XDG_CONFIG_HOME"] = str(tmp_path / "config")
    return cli


def test_commands_find_server_and_key_by_a_name(cli: Cli) -> None:
    queue = cli.create_queue(f"q-{uuid.uuid4().hex[:12]}")
    cli("context", "add", "here", "--url", cli.server.url, "--key-stdin", stdin=cli.server.key)
    cli("context", "add", "nowhere", "--url", f"http://127.0.0.1:{free_port()}", "--key-command", "echo k", "--use")
    assert cli.any("publish", queue, "x").code == 5
    cli("publish", queue, "hello", "--context", "here")
    cli("context", "use", "here")
    assert cli("consume", queue, "--count", "1", "--format", "{text}").out == "hello\n"
    assert cli("queue", "show", queue, env={"PUSHQ_CONTEXT": "here"}).code == 0
    shown = cli("context", "show")
    assert cli.server.key not in shown.out + shown.err


def test_a_refused_key_is_told_with_the_context_that_it_came_from(cli: Cli) -> None:
    cli("context", "add", "old", "--url", cli.server.url, "--key-command", "echo pushq_no_such")
    ran = cli.any("queue", "list")
    assert ran.code == 4 and 'the key command of context "old"' in ran.err


def test_a_deletion_goes_to_the_server_of_the_context_and_not_to_one_that_is_here(cli: Cli) -> None:
    queue = cli.create_queue(f"q-{uuid.uuid4().hex[:12]}")
    cli("context", "add", "here", "--url", cli.server.url, "--key-stdin", stdin=cli.server.key)
    refused = cli.any("queue", "delete", queue, "--discard", "--yes")
    assert refused.code == 4 and "pushq queue delete" in refused.err, "over HTTP this server deletes none"
    deleted = cli("queue", "delete", queue, "--discard", "--yes", *cli.data, env={"PUSHQ_KEY": cli.server.key})
    assert f'deleted queue "{queue}"' in deleted.err


@pytest.mark.parametrize(
    "line",
    ["queue list", "publish orders 1", "consume orders --count 1", "consume orders --count 1 --transport sse",
     "queue delete orders --discard --yes"],
)  # fmt: skip
def test_a_server_that_is_absent_or_another_one_is_named_whole_and_without_secrets(cli: Cli, line: str) -> None:
    absent = f"127.0.0.1:{free_port()}"
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        places = (absent, f"127.0.0.1:{other.server_port}/base")

        def asked(place: str) -> Ran:
            return cli.any(*line.split(), "--url", f"http://me:secret@{place}", env={"PUSHQ_KEY": "pushq_key"})

        with ThreadPoolExecutor(len(places)) as threads:
            each = list(threads.map(asked, places))
        for place, ran in zip(places, each, strict=True):
            assert ran.code != 0 and f"http://{place}" in ran.err, ran.err
            assert "secret" not in ran.err and "pushq_key" not in ran.err
        other.shutdown()


def test_an_absent_server_is_told_with_where_its_url_came_from(cli: Cli) -> None:
    absent = f"http://127.0.0.1:{free_port()}"
    cli("context", "add", "gone", "--url", absent, "--key-stdin", stdin="pushq_key")
    assert 'the URL came from context "gone"' in cli.any("queue", "list").err
    of_environment = cli.any("queue", "list", env={"PUSHQ_URL": absent, "PUSHQ_KEY": "pushq_key"}).err
    assert "the URL came from PUSHQ_URL" in of_environment
    assert "the URL came from" not in cli.any("queue", "list", "--url", absent, env={"PUSHQ_KEY": "pushq_key"}).err


def test_a_refusal_that_another_server_would_not_give_names_the_server(cli: Cli) -> None:
    cli("context", "add", "here", "--url", cli.server.url, "--key-stdin", stdin=cli.server.key)
    for line in ("queue show no-such-queue", "publish no-such-queue 1"):
        assert f"the server was {cli.server.url}" in cli.any(*line.split()).err
    refused = cli.any("queue", "create", "orders", "--max-attempts", "-1").err
    assert cli.server.url not in refused


def test_hints_keep_the_context_that_was_named(cli: Cli) -> None:
    cli("context", "add", "my-server", "--url", cli.server.url, "--key-stdin", stdin=cli.server.key)
    names = [cli.create_queue(f"q-{uuid.uuid4().hex[:12]}") for _ in range(2)]
    hint = f"`pushq queue update {names[1]} --colocate-with {names[0]}"
    assert f"{hint} --context my-server`" in cli("move", *names, "--context", "my-server").err
    assert f"{hint}`" in cli("move", *names).err
    refused = cli.any("queue", "delete", names[0], "--discard", "--yes", "--context", "my-server").err
    assert f"`pushq queue delete {names[0]} --data DIR`" in refused
