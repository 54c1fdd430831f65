from pathlib import Path

import pytest

from backend_store.cluster.core.values import Put, Transaction
from backend_store.core.replication.record import NodeId
from backend_store.shard.host import BackendHost, HostConfig
from backend_store.shard.interface import ShardNumber
from backend_store.shard.keys import FORMAT, plan_key
from backend_store.shard.manager import Rules
from backend_store.shard.placing import Plan
from backend_store.shard.registry import encode
from tests.support.coordinators import open_folder
from tests.support.patience import eventually
from tests.support.shards import tls_of
from tests.support.tls import Authority

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(("founded", "told"), [(3, 0), (0, 3), (3, 4)])
async def test_a_host_that_is_told_another_model_ends(tmp_path: Path, founded: int, told: int) -> None:
    """Else its queues would lie where nobody looks for them, and keys would change their lanes."""
    held = open_folder(tmp_path / "coordinator")
    faults: list[BaseException] = []
    config = HostConfig(
        NodeId("a"),
        tmp_path / "a",
        "127.0.0.1:0",
        tls=tls_of(Authority(tmp_path / "ca"), "a"),
        rules=Rules(lanes=told),
    )
    plan = Plan(ShardNumber(0), (NodeId("b"),), 1, lanes=founded)
    await held.coordinator.transact(Transaction(then=(Put(plan_key(ShardNumber(0)), encode(plan)),)))
    host = BackendHost(config, held.coordinator, on_fatal=faults.append)
    try:
        await host.start()
        await eventually(lambda: bool(faults), "it ends")
        assert "cluster.model" in str(faults[0])
    finally:
        await host.close()
        await held.close()


async def test_a_host_ends_where_the_clusters_records_are_of_a_newer_format(tmp_path: Path) -> None:
    """Else it would decide by what it misreads, and write over what it does not know."""
    held = open_folder(tmp_path / "coordinator")
    faults: list[BaseException] = []
    config = HostConfig(NodeId("a"), tmp_path / "a", "127.0.0.1:0", tls=tls_of(Authority(tmp_path / "ca"), "a"))
    await held.coordinator.transact(Transaction(then=(Put(FORMAT, b"2"),)))
    host = BackendHost(config, held.coordinator, on_fatal=faults.append)
    try:
        await host.start()
        await eventually(lambda: bool(faults), "it ends")
        assert "have format 2, but this version of Pushq reads format 1: upgrade this backend" in str(faults[0])
    finally:
        await host.close()
        await held.close()
