"""`pushq group` and `pushq consume --group` against a real server."""

from __future__ import annotations

import uuid

import pytest

from tests.support.cli import Cli
from tests.support.server import SOON_BACK, PushqServer

SERVER_ENV = SOON_BACK


@pytest.fixture(scope="module")
def cli(shared_server: PushqServer) -> Cli:
    return Cli(shared_server)


@pytest.fixture
def stream(cli: Cli) -> str:
    """With the messages 0 to 9."""
    name = f"s-{uuid.uuid4().hex[:12]}"
    cli("queue", "create", name, "--kind", "stream")
    cli("publish", name, "--lines", stdin="".join(f"{number}\n" for number in range(10)))
    return name


def test_a_group_is_made_listed_moved_and_deleted(cli: Cli, stream: str) -> None:
    assert "no groups" in cli("group", "list", stream).err
    made = cli("group", "set", stream, "readers", "--position", "earliest", "--json").json()
    assert (made["mode"], made["lag"][0]["lag"]) == ("offsets", 10)
    cli("group", "set", stream, "workers", "--mode", "leases")
    header, readers, workers = cli("group", "list", stream).out.splitlines()
    assert header.split() == ["NAME", "MODE", "PARTITION", "POSITION", "END", "LAG"]
    assert (readers.split()[0], readers.split()[-1]) == ("readers", "10")
    assert (workers.split()[:2], workers.split()[-1]) == (["workers", "leases"], "0")
    moved = cli("group", "set", stream, "readers", "--position", "seq:7", "--yes")
    assert f'group "readers" of "{stream}" is at 7, 3 messages behind' in moved.err
    assert cli("group", "delete", stream, "readers", "--yes", "--json").json() == {"name": "readers", "deleted": True}
    assert [item["name"] for item in cli("group", "list", stream, "--json").json()["items"]] == ["workers"]


def test_what_would_take_messages_back_asks_first(cli: Cli, stream: str) -> None:
    cli("group", "set", stream, "g", "--position", "earliest")
    refused = cli.any("group", "set", stream, "g", "--position", "latest")
    assert refused.code == 1 and "Its consumers lose their leases" in refused.err
    assert cli.any("group", "delete", stream, "g").code == 1
    assert cli("group", "list", stream, "--json").json()["items"][0]["lag"][0]["lag"] == 10
    assert cli("group", "set", stream, "g", "--json").json()["lag"][0]["lag"] == 10, "nothing is moved"


def test_a_group_that_is_not_there_ends_with_6(cli: Cli, stream: str) -> None:
    assert cli.any("group", "delete", stream, "nobody", "--yes").code == 6
    assert cli.any("group", "list", "nowhere").code == 6


@pytest.mark.parametrize("transport", ["ws", "sse", "poll"])
def test_consume_goes_on_where_its_group_stopped(cli: Cli, stream: str, transport: str) -> None:
    options = ("--group", "g", "--from", "earliest", "--transport", transport, "--count", "4", "--json")
    first = cli("consume", stream, *options).out.splitlines()
    second = cli("consume", stream, *options).out.splitlines()
    assert len(first) == len(second) == 4
    assert cli("group", "list", stream, "--json").json()["items"][0]["lag"][0]["lag"] == 2
    assert not set(first) & set(second)
