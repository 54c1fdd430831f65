"""A shard's node comes and goes with its leadership, and nobody waits for one that is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backend_store.core.replication.record import NodeId
from backend_store.model import Epoch, PushqError, QueueConfig
from backend_store.node.node import Node
from backend_store.shard.hosted import HostedShard
from backend_store.shard.leading import Deposed, LeaderWriter
from backend_store.storage.engine import Batch
from backend_store.storage.memory import MemoryEngine
from backend_store.storage.writer import Done

pytestmark = pytest.mark.anyio


class Replica:
    """Takes each batch of its leader into its one copy at once, or holds it."""

    number = 0
    may_serve = True
    is_leading = True
    is_all_confirmed = True
    epoch_of_logs = Epoch(1)

    def __init__(self) -> None:
        self.store = SimpleNamespace(engine=MemoryEngine())
        self.replica = SimpleNamespace(record=None)
        self.holds = False
        self.too_few = ""

    def append(self, batch: Batch, payload: bytes, done: Done) -> bool:
        if not self.holds:
            self.store.engine.commit(batch, lambda: None)
            asyncio.get_running_loop().call_soon(done, None)
        return not self.holds

    def why_not_durable(self) -> str:
        return self.too_few

    def copies(self) -> int:
        return 1

    async def close(self) -> None:
        """It has no threads."""


class World:
    def __init__(self, directory: Path) -> None:
        self.replica = Replica()
        self.shard = HostedShard(self.replica, directory, self)  # type: ignore[arg-type]
        self.nodes: asyncio.Queue[Node] = asyncio.Queue()

    def serving(self, shard: HostedShard, node: Node) -> None:
        self.nodes.put_nowait(node)

    def stopped(self, shard: HostedShard) -> None:
        """Nobody else is to be told."""

    async def leaving(self, shard: HostedShard, target: NodeId) -> None:
        """Nobody has begun anything."""

    def leader_of(self, shard: Any) -> None:
        return None


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path)
    yield world
    async with asyncio.timeout(30):
        await world.shard.close()


async def asked(*works: Any) -> list[Any]:
    async with asyncio.timeout(30):
        return await asyncio.gather(*works, return_exceptions=True)


async def test_whoever_writes_to_a_node_that_was_given_up_is_told(world: World) -> None:
    world.shard.look()
    node = await asyncio.wait_for(world.nodes.get(), 30)
    world.replica.holds = True
    creating = [
        asyncio.ensure_future(node.metadata.create_queue("default", name, QueueConfig(), 5)) for name in ("a", "b", "c")
    ]
    while not node.writer.busy:  # noqa: ASYNC110 - the first is on its way, the others wait for their turn
        await asyncio.sleep(0)
    world.shard.give_up()
    told = await asked(*creating, node.metadata.put_tenant("late", 6), node.committer.write(Batch()))
    assert all(isinstance(one, PushqError) for one in told), told
    assert [type(one) for one in told[1:]] == [Deposed] * 4, "of what had not begun it is known"


@pytest.mark.parametrize("turns", range(6))
async def test_a_shard_that_is_given_up_while_its_node_opens_ends(world: World, turns: int) -> None:
    world.shard.look()
    for _ in range(turns):
        await asyncio.sleep(0)
    world.replica.may_serve = False
    world.shard.give_up()
    opening = world.shard._opening
    assert opening is not None
    assert await asked(opening) == [None]
    assert world.shard.node is None


async def test_a_shard_that_leads_again_while_its_first_node_opens_serves(world: World) -> None:
    world.replica.holds = True
    world.shard.look()
    await asyncio.sleep(0)
    world.shard.give_up()
    world.replica.holds = False
    world.shard.look()
    node = await asyncio.wait_for(world.nodes.get(), 30)
    assert (await asked(node.metadata.put_tenant("acme", 6)))[0][1]
    assert world.shard.node is node


@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_to_close_waits_for_no_node_that_opens(tmp_path: Path, turns: int) -> None:
    world = World(tmp_path)
    world.replica.holds = True
    world.shard.look()
    for _ in range(turns):
        await asyncio.sleep(0)
    assert await asked(world.shard.close()) == [None]


async def test_a_deposed_writer_takes_nothing_and_says_why() -> None:
    writer, told = LeaderWriter(lambda batch, payload, done: True), []
    writer.submit(Batch(), told.append)
    error = Deposed("another leads")
    writer.depose(error)
    assert told == [error] and not writer.busy
    with pytest.raises(Deposed):
        writer.submit(Batch(), told.append)


async def test_who_was_told_that_too_few_are_in_sync_hears_that_there_are_enough_again(world: World) -> None:
    """Also where there were before the shard looked: who was handed nothing because of it waits for that word."""
    world.shard.look()
    node = await asyncio.wait_for(world.nodes.get(), 30)
    heard: list[str] = []
    node.on_durable = lambda: heard.append(node.why_not_durable())
    world.replica.too_few = "1 of 2"
    assert node.why_not_durable() == "1 of 2"
    world.replica.too_few = ""
    for _ in range(2):
        world.shard.look()
    assert heard == [""]


async def test_a_shard_that_nobody_can_be_served_from_ends_the_process(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was named as the one to ask, and answered nobody; no line of the log said why."""
    ends: list[BaseException] = []
    monkeypatch.setattr("backend_store.shard.hosted.end_process", ends.append)

    def fail(shard: HostedShard, node: Node) -> None:
        raise AssertionError("a fault of ours")

    monkeypatch.setattr(world, "serving", fail)
    world.shard.look()
    assert world.shard._opening is not None
    await asyncio.wait({world.shard._opening}, timeout=30)
    assert [str(error) for error in ends] == ["a fault of ours"]
