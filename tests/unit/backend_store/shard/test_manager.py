"""The in-cluster manager meets faults: the cluster is not left without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from backend_store.cluster.coordinator import get
from backend_store.cluster.core.values import Put, Transaction
from backend_store.cluster.fencing import Right
from backend_store.core.replication import controller
from backend_store.core.replication.record import Change, NodeId, PartitionRecord, Version
from backend_store.model import Epoch
from backend_store.shard import manager as managers
from backend_store.shard.interface import ShardNumber
from backend_store.shard.keys import record_key
from backend_store.shard.registry import decode_record, encode
from tests.support.patience import eventually
from tests.support.shards import NAMES, Cluster, node_of, put, rows

pytestmark = pytest.mark.anyio


def manager_of(cluster: Cluster) -> str | None:
    return next((name for name, host in cluster.hosts.items() if host.manager.is_manager), None)


async def test_manager_that_meets_a_fault_leaves_the_office_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It once ended, and kept the office for as long as its process lived: nobody elected any more."""
    async with Cluster(tmp_path) as cluster:
        await cluster.leader()
        await eventually(lambda: manager_of(cluster) is not None, "somebody manages")
        first = manager_of(cluster)
        assert first is not None
        broken = cluster.hosts[first]

        async def step(right: Right) -> None:
            raise KeyError("a fault of ours")

        monkeypatch.setattr(broken.manager, "_step", step)
        life = broken.inc
        await eventually(lambda: manager_of(cluster) not in (None, first), "another manages")
        assert broken.inc == life, "what it leads it goes on leading"
        led, _ = await cluster.leader()
        if led != first:
            await cluster.stop(led)
            await cluster.leader()


async def test_shard_that_cannot_be_managed_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decide(record: PartitionRecord, sessions: controller.Sessions, **more: Any) -> Change | None:
        if record.partition == 0:
            raise ValueError("a record that makes no sense")
        return controller.decide(record, sessions, **more)

    monkeypatch.setattr(managers, "decide", decide)
    async with Cluster(tmp_path, shards=2) as cluster:
        await cluster.leader(1)
        assert cluster.serving(0) is None
        assert sum(host.manager.failures for host in cluster.hosts.values()) > 0


async def test_shard_is_led_again_after_its_record_was_put_back_from_a_copy(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        first, _ = await cluster.leader()
        await cluster.in_sync(3)
        await cluster.stop(first)
        _, shard = await cluster.leader()
        await put(node_of(shard), "kept", "1")
        await cluster.start(first)
        await cluster.in_sync(3)
        await cluster.stop(first)
        await put(node_of(shard), "kept too", "2")
        record = shard.replicated.replica.record
        assert record is not None and record.epoch > 1
        for name in list(cluster.hosts):
            await cluster.stop(name)
        found, _ = await get(cluster.coordinator, record_key(ShardNumber(0)))
        assert found is not None
        last = decode_record(found.value)
        old = replace(last, epoch=Epoch(1), isr=(NodeId(first),), elr=(), version=Version(last.version + 1))
        await cluster.coordinator.transact(Transaction(then=(Put(found.key, encode(old)),)))
        for name in NAMES:
            await cluster.start(name)
        led, shard = await cluster.leader()
        assert led != first, "it lacks what was confirmed last"
        assert rows(shard) == {"kept": "1", "kept too": "2"}
        await cluster.in_sync(3)
