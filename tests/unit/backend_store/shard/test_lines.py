"""Lines over real sockets and certificates: who may speak, and as whom."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from backend_store.core.replication.messages import Message, WrongEpoch
from backend_store.core.replication.record import NodeId
from backend_store.model import Epoch
from backend_store.shard.lines import Lines
from backend_store.wire.tls import BothSides
from tests.support.patience import eventually
from tests.support.shards import tls_of
from tests.support.tls import Authority

pytestmark = pytest.mark.anyio
A, B = NodeId("a"), NodeId("b")


@asynccontextmanager
async def two(first: BothSides, second: BothSides) -> AsyncIterator[tuple[Lines, Lines, list[Message]]]:
    """a and b; a dials. What either hears."""
    heard: list[Message] = []

    def hear(sender: NodeId, message: Message) -> None:
        heard.append(message)

    a, b = Lines(A, first, hear), Lines(B, second, hear, admits=lambda node: node == A)
    try:
        await a.listen("127.0.0.1", 0)
        a.known({B: f"127.0.0.1:{await b.listen('127.0.0.1', 0)}"})
        yield a, b, heard
    finally:
        await a.close()
        await b.close()


async def test_one_line_carries_both_directions(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with two(tls_of(authority, "a"), tls_of(authority, "b")) as (a, b, heard):
        await eventually(lambda: a.connected == b.connected == 1, "they are connected")
        a.send(B, WrongEpoch(3, Epoch(1), 7))
        b.send(A, WrongEpoch(3, Epoch(1), 8))
        await eventually(lambda: len(heard) == 2, "both are heard")
        assert {message.request for message in heard} == {7, 8}


@pytest.mark.parametrize("leaving", [A, B], ids=["who dials", "who is dialled"])
async def test_backend_that_ends_says_that_it_goes_away(tmp_path: Path, leaving: NodeId) -> None:
    """The others wrote down an internal error."""
    authority = Authority(tmp_path)
    async with two(tls_of(authority, "a"), tls_of(authority, "b")) as (a, b, _):
        await eventually(lambda: a.connected == b.connected == 1, "they are connected")
        ends, stays = (a, b) if leaving == A else (b, a)
        with capture_logs() as logs:
            await ends.close()
            await eventually(lambda: stays.connected == 0, "the other one knows")
        assert {"event": "a backend goes away", "log_level": "info", "to": leaving} in logs
        assert all(log["event"] != "a line broke" for log in logs), logs


async def test_who_has_no_certificate_of_that_name_is_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with two(tls_of(authority, "a"), tls_of(authority, "another")) as (a, b, _):
        await eventually(lambda: b.connected == 1 or a.connected == 1, "one side took it for a moment")
        await eventually(lambda: a.connected == 0, "a does not take b for b")


async def test_who_is_no_backend_of_the_cluster_gets_no_line(tmp_path: Path) -> None:
    """Each gateway has a certificate of the same authority."""
    authority, opened = Authority(tmp_path), list[NodeId]()
    b = Lines(B, tls_of(authority, "b"), _ignore, opened.append, lambda node: node == A)
    gateway = Lines(NodeId("a-gateway"), tls_of(authority, "a-gateway"), _ignore)
    a = Lines(A, tls_of(authority, "a"), _ignore)
    try:
        address = f"127.0.0.1:{await b.listen('127.0.0.1', 0)}"
        gateway.known({B: address})
        await eventually(lambda: gateway.connected == 1, "it took the line for open")
        await eventually(lambda: gateway.connected == 0, "b has ended it")
        a.known({B: address})
        await eventually(lambda: b.connected == 1, "a backend has one")
        assert opened == [A]
    finally:
        for lines in (a, b, gateway):
            await lines.close()


def _ignore(sender: NodeId, message: Message) -> None:
    """Nothing is said here."""


async def test_certificate_of_another_authority_is_refused(tmp_path: Path) -> None:
    mine, other = Authority(tmp_path / "mine"), Authority(tmp_path / "other")
    stranger = tls_of(other, "a", trusted=mine)
    loop = asyncio.get_running_loop()
    handler = loop.get_exception_handler()
    loop.set_exception_handler(lambda loop, context: None)  # it reports each handshake that it refuses
    async with two(stranger, tls_of(mine, "b")) as (a, b, heard):
        await asyncio.sleep(1.0)
        a.send(B, WrongEpoch(3, Epoch(1), 7))
        assert (a.connected, b.connected, heard) == (0, 0, [])
        assert a.dropped == 1
    loop.set_exception_handler(handler)


async def test_line_comes_back_after_a_message_that_nobody_could_take(tmp_path: Path) -> None:
    """Whoever dialled once gave up for good, without a word: no shard was replicated between the two any more."""
    authority, heard = Authority(tmp_path), list[Message]()

    def on_message(sender: NodeId, message: Message) -> None:
        heard.append(message)
        if len(heard) == 1:
            raise AssertionError("a bug of ours")

    opened: list[NodeId] = []
    a = Lines(A, tls_of(authority, "a"), on_message, opened.append)
    b = Lines(B, tls_of(authority, "b"), lambda sender, message: heard.append(message))
    try:
        a.known({B: f"127.0.0.1:{await b.listen('127.0.0.1', 0)}"})
        await eventually(lambda: a.connected == b.connected == 1, "they are connected")
        b.send(A, WrongEpoch(3, Epoch(1), 7))
        await eventually(lambda: opened == [B, B], "a has dialled again")
        a.send(B, WrongEpoch(3, Epoch(1), 8))
        await eventually(lambda: len(heard) == 2, "it carries messages")
    finally:
        await a.close()
        await b.close()
