"""What operators may ask of a cluster of independent hosts, of which the coordinator has the records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from backend_store.cluster.core.values import Put, Transaction
from backend_store.cluster.etcd.driver import EtcdConfig
from backend_store.core.replication.record import DiskId, Incarnation, NodeId, first_record
from backend_store.model import Conflict, PushqError
from backend_store.shard.interface import ShardNumber
from backend_store.shard.keys import node_key, plan_key, record_key
from backend_store.shard.placing import Plan
from backend_store.shard.registry import NodeRow, encode
from backend_store.shard.rounds import Patience
from gateway.clusters import watch
from gateway.clusters.watch import ClusterWatch
from tests.support.coordinators import open_folder
from tests.support.patience import eventually

pytestmark = pytest.mark.anyio

A, B, C, D = map(NodeId, "abcd")
LANES = [(A, B, C), (B, C, A), (C, A, B)]


class World:
    """A gateway's watch, and the records that it sees."""

    def __init__(self, folder: Path) -> None:
        self._host = open_folder(folder)
        self.watch = ClusterWatch(EtcdConfig(()), Patience())

    async def open(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def opened(etcd: EtcdConfig) -> object:
            return self._host.coordinator

        monkeypatch.setattr(watch, "open_etcd", opened)
        self._run = asyncio.create_task(self.watch.run())
        await eventually(self._is_seen)

    def _is_seen(self) -> bool:
        with suppress(PushqError):
            return self.watch.state() is not None
        return False

    async def here(self, *nodes: NodeId) -> None:
        for node in nodes:
            await self._put(node_key(node), NodeRow(node, Incarnation(1), "", "", "", "", {}))

    async def lanes(self, plans: Sequence[tuple[NodeId, ...]]) -> None:
        """Their plans; what there is of them is as `LANES`."""
        for number, replicas in enumerate(plans):
            lane = ShardNumber(number)
            disks = {node: DiskId(node) for node in LANES[number]}
            await self._put(plan_key(lane), Plan(lane, replicas, 2, lanes=len(plans)))
            await self._put(record_key(lane), first_record(number, disks, min_in_sync=2))

    async def _put(self, key: bytes, value: object) -> None:
        outcome = await self._host.coordinator.transact(Transaction(then=(Put(key, encode(value)),)))
        mirror = self.watch._mirror
        assert mirror is not None
        await mirror.wait_revision(outcome.revision)

    async def close(self) -> None:
        self._run.cancel()
        await asyncio.gather(self._run, return_exceptions=True)
        await self._host.close()


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    made = World(tmp_path)
    await made.open(monkeypatch)
    try:
        yield made
    finally:
        await made.close()


async def test_a_host_that_nobody_can_follow_is_not_removed_and_one_without_a_lane_is(world: World) -> None:
    await world.here(A, B, C)
    await world.lanes(LANES)
    with pytest.raises(Conflict, match="start another host first"):
        await world.watch.remove("a", is_wanted=True)
    await world.here(D)
    assert (await world.watch.remove("a", is_wanted=True)).removing
    assert (await world.watch.remove("d", is_wanted=True)).removing


async def test_a_removal_may_be_asked_for_again_while_the_heir_makes_its_copies(world: World) -> None:
    await world.here(A, B, C, D)
    await world.lanes(LANES)
    await world.watch.remove("a", is_wanted=True)
    await world.lanes([(D, B, C), (B, C, D), (C, D, B)])
    assert (await world.watch.remove("a", is_wanted=True)).removing
    assert not (await world.watch.remove("a", is_wanted=False)).removing
    assert (await world.watch.remove("a", is_wanted=True)).removing, "it is followed already"


async def test_two_hosts_are_not_removed_for_the_same_heir(world: World) -> None:
    await world.here(A, B, C, D)
    await world.lanes(LANES)
    await world.watch.remove("a", is_wanted=True)
    with pytest.raises(Conflict, match="start another host first"):
        await world.watch.remove("b", is_wanted=True)
    await world.watch.remove("a", is_wanted=False)
    assert (await world.watch.remove("b", is_wanted=True)).removing
