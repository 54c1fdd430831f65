"""Roles of different versions: who is refused is told so in words, on both sides, and stops nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from backend_store.client.embedded import EmbeddedStore
from backend_store.core.replication.record import NodeId
from backend_store.metadata import remote as remotes
from backend_store.metadata.remote import RemoteMetadata
from backend_store.metadata.server import serve_metadata
from backend_store.metadata.traffic import Traffic
from backend_store.model import ONE_NODE, QueueConfig, QueueDefinition, Unavailable
from backend_store.node.node import Node
from backend_store.remote.definitions.directory import FixedDirectory
from backend_store.remote.definitions.operators import ask_backend
from backend_store.remote.line import line as lines
from backend_store.remote.line.line import Line
from backend_store.remote.store import RemoteBackends
from backend_store.service.defining import CreateQueue, UpdateQueue
from backend_store.service.operations import perform
from backend_store.service.recovering import Survey
from backend_store.service.serving import StoreServer, StoreService
from backend_store.shard import lines as peers
from backend_store.shard.lines import Lines
from backend_store.storage.memory import MemoryEngine
from backend_store.wire.limits import STRANGERS_MAX
from backend_store.wire.store_frames import STORE_SUBPROTOCOL, STORE_VERSION, Greeting, Operating, Turned, from_backend
from backend_store.wire.versions import OtherVersion, Strangers, check_version
from push.delivery.lookup_retry import LookingUp
from tests.support.gateways import Gateway
from tests.support.metadata import SECRET, local_service
from tests.support.patience import eventually
from tests.support.shards import tls_of
from tests.support.stores import opened
from tests.support.tls import Authority

pytestmark = pytest.mark.anyio

NEWER, OLDER = 2, 0
C = NodeId("c")


def warnings(logs: list[Any]) -> list[str]:
    return [one["reason"] for one in logs if one["log_level"] == "warning" and "version" in one["event"]]


# --------------------------------------------------------------------------------------------------- the first frame


@pytest.mark.parametrize(("theirs", "behind"), [(NEWER, "me"), (OLDER, "them")])
def test_both_versions_are_named_and_who_is_to_be_upgraded(theirs: int, behind: str) -> None:
    frame = msgspec.msgpack.encode(["greeting", theirs, "them", {"of": "any shape"}])
    with pytest.raises(OtherVersion) as refused:
        check_version(frame, 1, me="me", protocol="the protocol")
    assert refused.value.detail == f"them speaks version {theirs} of the protocol, me version 1: upgrade {behind}"


@pytest.mark.parametrize("frame", [b"", b"\xc1", msgspec.msgpack.encode(["turned", ["code", "detail"]])])
def test_what_is_no_first_frame_is_left_to_others(frame: bytes) -> None:
    check_version(frame, 1, me="me", protocol="the protocol")


def test_who_is_refused_is_told_once_until_it_was_let_in() -> None:
    told: list[str] = []
    strangers = Strangers(lambda why: told.append(why.who))
    why = OtherVersion("it is", who="a")
    for _ in range(3):
        strangers.refuse(why)
    assert (told, strangers.refused) == (["a"], 3)
    strangers.let_in("a")
    strangers.refuse(why)
    assert told == ["a", "a"]
    for number in range(STRANGERS_MAX):
        strangers.refuse(OtherVersion("it is", who=f"b{number}"))
    assert "a" not in strangers


# ----------------------------------------------------------------------------------------- gateways and backends


@asynccontextmanager
async def backend() -> AsyncIterator[tuple[StoreServer, Strangers, int]]:
    node = Node(MemoryEngine(), directory=None)
    await node.start()
    strangers, told = Strangers(lambda why: None), StoreService(EmbeddedStore(node))
    server = StoreServer({0: told}, operate=lambda what: asyncio.sleep(0, what), name="backend a", strangers=strangers)
    try:
        yield server, strangers, await server.listen("127.0.0.1", 0, None)
    finally:
        told.close()
        await server.close()
        await node.close()


async def test_a_gateway_of_another_version_is_refused_and_others_go_on() -> None:
    async with backend() as (_, strangers, port):
        ours = RemoteBackends(FixedDirectory([("127.0.0.1", port)]), None, LookingUp)
        try:
            await ours.open()
            greeting = msgspec.msgpack.encode(["greeting", NEWER, "gateway-b", {"what": "nobody here reads"}])
            subprotocols = [Subprotocol(STORE_SUBPROTOCOL)]
            for _ in range(2):
                async with connect(f"ws://127.0.0.1:{port}", subprotocols=subprotocols, proxy=None) as connection:
                    await connection.send(greeting)
                    answer = from_backend(await connection.recv(decode=False))
                    assert isinstance(answer, Turned)
                    assert answer.wrong.detail == (
                        "gateway-b speaks version 2 of the protocol of gateways and backends, backend a version 1: "
                        "upgrade backend a"
                    )
                    with pytest.raises(ConnectionClosed):
                        await connection.recv()
            assert strangers.refused == 2
            await ours.create_queue("default", "q", QueueConfig(encrypted=False))
        finally:
            await ours.close()


async def test_a_gateway_says_why_a_backend_does_not_take_it_and_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "STORE_VERSION", NEWER)
    monkeypatch.setattr(lines, "LINE_STRANGERS_IN_A_ROW", 2)
    monkeypatch.setattr(lines, "LINE_RECONNECT_SECONDS_MAX", 0.01)
    async with backend() as (_, strangers, port):
        with capture_logs() as logs:
            line = Line(0, FixedDirectory([("127.0.0.1", port)]), Gateway(), "gateway-b", None)
            try:
                await eventually(lambda: strangers.refused >= 3)
                why = "the backend of shard 0 has another version: gateway-b speaks version 2 of the protocol of "
                assert line.unavailable().detail.startswith(why), line.unavailable().detail
                assert line.was_refused_at(("127.0.0.1", port))
                monkeypatch.setattr(lines, "STORE_VERSION", STORE_VERSION)
                assert await line.opened(30)
            finally:
                await line.close()
        assert len(warnings(logs)) == 1, logs


async def test_a_gateway_that_lost_its_backend_to_another_version_is_not_ready_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with backend() as (_, _, port):
        store = RemoteBackends(FixedDirectory([("127.0.0.1", port)]), None, LookingUp)
        try:
            await store.open()
            assert store.node.publishes_allowed()
            monkeypatch.setattr(lines, "STORE_VERSION", OLDER)
            store.first.line.cut()
            await eventually(lambda: "another version" in store.node.why_no_publishes())
            assert not store.node.publishes_allowed()
            assert store.node.why_no_publishes().endswith(f"backend a version 1: upgrade {store.id}")
        finally:
            await store.close()


async def test_a_gateway_that_meets_strangers_alone_tries_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(lines.random, "uniform", lambda low, high: pauses.append(high) or 0.001)
    monkeypatch.setattr(lines, "STORE_VERSION", OLDER)
    async with backend() as (_, _, port):
        line = Line(0, FixedDirectory([("127.0.0.1", port)]), Gateway(), "gateway-b", None)
        try:
            await eventually(lambda: len(pauses) >= 20)
        finally:
            await line.close()
    assert pauses[9] == lines.LINE_RECONNECT_SECONDS_MAX
    assert pauses[19] == lines.LINE_STRANGER_SECONDS_MAX


async def test_a_backend_of_another_version_is_known_by_its_greeting() -> None:
    """It may have another way to refuse than this one."""

    async def answers(connection: ServerConnection) -> None:
        await connection.recv()
        await connection.send(msgspec.msgpack.encode(["greeted", NEWER, "b", {"what": "nobody here reads"}]))
        await connection.wait_closed()

    async with serve(answers, "127.0.0.1", 0, subprotocols=[Subprotocol(STORE_SUBPROTOCOL)]) as server:
        address = "127.0.0.1", next(iter(server.sockets)).getsockname()[1]
        line = Line(0, FixedDirectory([address]), Gateway(), "gateway-b", None)
        try:
            await eventually(lambda: "another version" in line.unavailable().detail)
            said = f"the backend at 127.0.0.1:{address[1]} speaks version 2 of "
            assert said in line.unavailable().detail and "upgrade gateway-b" in line.unavailable().detail
        finally:
            await line.close()


async def test_an_operator_is_told_that_a_backend_is_of_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend_store.remote.definitions.operators.STORE_VERSION", NEWER)
    async with backend() as (_, _, port):
        with pytest.raises(Unavailable, match=r"refused: gateway-b speaks version 2 of .*: upgrade backend a"):
            await ask_backend(f"127.0.0.1:{port}", None, "gateway-b", Survey())


def test_frames_of_this_version_may_end_with_more_than_is_known() -> None:
    """So fields can be added at the end without another version."""
    greeting = msgspec.msgpack.encode(["greeting", STORE_VERSION, "g", 0, [], 0, None, True, True, "more"])
    assert msgspec.msgpack.decode(greeting, type=Greeting | Operating) == Greeting(
        STORE_VERSION, "g", 0, [], hears_backends=True, gives_sessions=True
    )
    older = msgspec.msgpack.encode(["greeting", STORE_VERSION, "g", 0, []])
    assert msgspec.msgpack.decode(older, type=Greeting | Operating) == Greeting(STORE_VERSION, "g", 0, [])


class ReplicationBefore(msgspec.Struct, forbid_unknown_fields=True):
    """As a process read it that knew of one copy alone."""

    factor: int = 1
    mode: Literal["sync"] = "sync"
    min_in_sync: int = 1
    model: Literal["leader_follower"] = "leader_follower"


class ConfigBefore(msgspec.Struct):
    replication: ReplicationBefore


class DefinitionBefore(msgspec.Struct):
    config: ConfigBefore


def test_a_definition_is_read_by_who_knew_of_one_copy_alone() -> None:
    stored = msgspec.msgpack.encode(QueueDefinition(1, "t", "q", QueueConfig(), 1, 1))
    assert msgspec.msgpack.decode(stored, type=DefinitionBefore).config.replication == ReplicationBefore()


async def test_a_gateway_that_knew_of_one_copy_alone_makes_and_changes_queues() -> None:
    bare = QueueConfig(encrypted=False)
    before = replace(bare, replication=ONE_NODE)
    store = await opened()
    for asked, is_new in ((before, True), (before, False), (bare, False)):
        made, created = await perform(store, CreateQueue("default", "q", asked))
        assert (made.config, created) == (bare, is_new)
    changed = await perform(store, UpdateQueue("default", "q", replace(before, max_attempts=3), 1))
    assert changed.config == replace(bare, max_attempts=3)
    await store.close()


# ------------------------------------------------------------------------------------------------ between backends


async def test_backends_of_other_versions_have_no_line_and_the_others_have_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "PEER_STRANGER_SECONDS", 0.02)
    authority = Authority(tmp_path)

    def backend(name: str, version: int = peers.PEER_VERSION) -> Lines:
        return Lines(NodeId(name), tls_of(authority, name), lambda sender, message: None, version=version)

    all_ = {NodeId(name): backend(name) for name in "ab"} | {C: backend("c", NEWER)}
    a, b, c = all_.values()
    try:
        ports = {name: f"127.0.0.1:{await one.listen('127.0.0.1', 0)}" for name, one in all_.items()}
        with capture_logs() as logs:
            for one in (a, b):
                one.known(ports)
            await eventually(lambda: c.strangers.refused >= 4 and a.strangers.refused >= 2, "c was tried again")
            await eventually(lambda: a.connected == b.connected == 1 and c.connected == 0, "a and b have their line")
        said, of = warnings(logs), "the protocol of backends"
        assert len(said) == len({*said}), "each side tells it once"
        assert f"backend c speaks version 2 of {of}, backend a version 1: upgrade backend a" in said
        assert f"backend a speaks version 1 of {of}, backend c version 2: upgrade backend a" in said
        await c.close()
        c = all_[C] = backend("c")
        port = int(ports[C].rpartition(":")[2])
        await c.listen("127.0.0.1", port)
        await eventually(lambda: a.connected == b.connected == c.connected == 2, "c is of their version now")
    finally:
        for one in all_.values():
            await one.close()


# ------------------------------------------------------------------------------------------- the metadata service


async def test_a_metadata_service_that_ends_each_greeting_is_tried_again_at_leisure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The library waits only where nobody could be connected to."""
    pauses: list[float] = []
    enough = asyncio.Event()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 8:
            enough.set()
        await asyncio.tasks.sleep(0)

    monkeypatch.setattr(remotes, "WIRE_VERSION", NEWER)
    monkeypatch.setattr(remotes.random, "uniform", lambda low, high: high)
    monkeypatch.setattr(remotes, "_sleep", sleep)
    server = await serve_metadata(local_service(), SECRET, "127.0.0.1", 0)
    client = RemoteMetadata(f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}", SECRET)
    try:
        await asyncio.wait_for(enough.wait(), 30)
    finally:
        await client.close()
        server.close()
        await server.wait_closed()
    assert pauses[:8] == sorted(pauses[:8]) and pauses[7] == remotes.RECONNECT_SECONDS_MAX


async def test_a_metadata_service_of_another_version_is_told_on_both_sides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    traffic = Traffic()
    monkeypatch.setattr(remotes, "WIRE_VERSION", NEWER)
    server = await serve_metadata(local_service(), SECRET, "127.0.0.1", 0, traffic=traffic)
    port = next(iter(server.sockets)).getsockname()[1]
    with capture_logs() as logs:
        client = RemoteMetadata(f"ws://127.0.0.1:{port}", SECRET)
        try:
            await eventually(lambda: traffic.other_versions.refused >= 3)
            with pytest.raises(Unavailable, match="the metadata service has another version: the service at"):
                await client.get_tenant("default")
            assert not client.is_connected
            monkeypatch.setattr(remotes, "WIRE_VERSION", 1)
            assert await client.connected(30)
        finally:
            await client.close()
            server.close()
            await server.wait_closed()
    service_says, client_says = (
        "this metadata service version 1: upgrade this metadata service",
        "upgrade the service at",
    )
    said = warnings(logs)
    assert len(said) == 2, said
    assert any(service_says in one for one in said) and any(client_says in one for one in said), said
