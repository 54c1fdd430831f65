"""Three backends in one process, with real disks and mutual TLS between them."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from backend_store.core.replication.settings import Settings
from backend_store.model import PushqError
from backend_store.node.node import Node
from backend_store.shard.host import BackendHost
from backend_store.shard.interface import Shard, ShardNumber
from backend_store.storage.engine import Batch, Table
from backend_store.storage.keys import log_key
from tests.support.patience import eventually
from tests.support.shards import Cluster, node_of, put, rows
from tests.unit.backend_store.core.replication.test_stranded import REPLICA, chunk

pytestmark = pytest.mark.anyio


async def test_confirmed_rows_are_on_all_disks_in_sync_and_a_new_leader_has_them(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        first, shard = await cluster.leader()
        await cluster.in_sync(3)
        wanted = {f"{number:03}": str(number) for number in range(50)}
        for key, value in wanted.items():
            await put(node_of(shard), key, value)
        for host in cluster.hosts.values():
            assert rows(host.shards[ShardNumber(0)]) == wanted
        await cluster.stop(first)
        second, shard = await cluster.leader()
        assert second != first
        assert rows(shard) == wanted
        await put(node_of(shard), "after", "1")
        await cluster.start(first)
        await cluster.in_sync(3)
        back = cluster.hosts[first].shards[ShardNumber(0)]
        await eventually(lambda: rows(back) == {**wanted, "after": "1"}, "the one that was away has all")


async def test_handover_carries_on_without_a_lost_row(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        first, shard = await cluster.leader()
        await cluster.in_sync(3)
        told: list[str] = []

        def on_lead(led: Shard, node: Node) -> None:
            told.append("lead")

        cluster.hosts[first].listen(on_lead=on_lead, on_lose=lambda led: told.append(f"lose {led.node}"))
        await put(node_of(shard), "before", "1")
        await cluster.hosts[first].drain()
        second, shard = await cluster.leader()
        assert second != first
        assert told == ["lead", "lose None"]
        await put(node_of(shard), "behind", "2")
        assert rows(shard) == {"before": "1", "behind": "2"}
        leaders = cluster.hosts[first].leaders
        await eventually(lambda: leaders[ShardNumber(0)].node == second, "the others know who serves")


async def test_when_all_stop_at_once_a_shard_is_not_handed_to_and_fro(tmp_path: Path) -> None:
    async with Cluster(tmp_path, shards=6) as cluster:
        for number in range(6):
            _, shard = await cluster.leader(number)
            await cluster.in_sync(3, number)
            await put(node_of(shard), "before", str(number))
        led: list[ShardNumber] = []
        for host in cluster.hosts.values():
            host.listen(on_lead=lambda shard, node: led.append(shard.number), on_lose=lambda shard: None)
        led.clear()
        await asyncio.gather(*(host.drain() for host in cluster.hosts.values()))
        for number in range(6):
            _, shard = await cluster.leader(number)
            assert rows(shard) == {"before": str(number)}
        assert len(led) <= 6 * 3, "each of them gave each shard away once at most"


async def test_with_too_few_in_sync_nothing_is_confirmed_until_one_is_back(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        first, shard = await cluster.leader()
        await cluster.in_sync(3)
        others = [name for name in cluster.hosts if name != first]
        for name in others:
            await cluster.stop(name)
        waiting = asyncio.ensure_future(put(node_of(shard), "alone", "1"))
        record = shard.replicated.replica
        await eventually(lambda: record.record is not None and len(record.record.isr) == 1, "the others are dropped")
        assert not waiting.done()
        await cluster.start(others[0])
        await asyncio.wait_for(waiting, 30)
        assert rows(cluster.hosts[others[0]].shards[ShardNumber(0)]) == {"alone": "1"}


async def test_a_leader_whose_disk_hangs_is_followed_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process and its connections are as well as before: only its own word can end its session."""
    async with Cluster(tmp_path) as cluster:
        first, shard = await cluster.leader()
        await cluster.in_sync(3)
        goes_on = threading.Event()
        engine = shard.replicated.store.engine
        commit = engine.commit

        def hang(batch: Batch, staged: Callable[[], None]) -> None:
            staged()
            goes_on.wait(60)
            commit(batch, lambda: None)

        monkeypatch.setattr(engine, "commit", hang)
        waiting = asyncio.ensure_future(put(node_of(shard), "hangs", "1"))
        try:
            await eventually(lambda: not cluster.hosts[first].is_well(), "a commit takes more than a second")
            others = [host.shards[ShardNumber(0)] for name, host in cluster.hosts.items() if name != first]
            await eventually(lambda: any(one.is_serving for one in others), "another leads")
        finally:
            goes_on.set()
        await asyncio.gather(waiting, return_exceptions=True)
        await eventually(lambda: cluster.hosts[first].is_well(), "its disk goes on")


async def test_replica_far_behind_takes_a_snapshot(tmp_path: Path) -> None:
    async with Cluster(tmp_path, settings=Settings(catchup_bytes_max=20_000)) as cluster:
        first, shard = await cluster.leader()
        await cluster.in_sync(3)
        away = next(name for name in cluster.hosts if name != first)
        await cluster.stop(away)
        wanted = {f"{number:03}": f"{number}" * 300 for number in range(200)}
        for key, value in wanted.items():
            await put(node_of(shard), key, value)
        await eventually(lambda: shard.replicated.replica.log.start > 100, "the log is trimmed")
        host = await cluster.start(away)
        await cluster.in_sync(3)
        back = host.shards[ShardNumber(0)]
        await eventually(lambda: rows(back) == wanted, "the snapshot is whole")
        assert (tmp_path / away / "shards" / "00000" / "current").read_text() == "2"
        await put(node_of(shard), "after", "1")
        await eventually(lambda: rows(back).get("after") == "1", "it follows again")


async def test_what_was_never_confirmed_is_undone_where_another_led(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        first, shard = await cluster.leader()
        await cluster.in_sync(3)
        await put(node_of(shard), "kept", "1")
        host = cluster.hosts[first]
        # Nobody hears it any more, and it hears nobody: what it writes now is on its disk alone.
        host.lines.send = lambda to, message: None  # type: ignore[method-assign]
        lost = asyncio.ensure_future(put(node_of(shard), "lost", "1"))
        await eventually(lambda: "lost" in rows(shard), "it is on the disk of the one that is cut off")
        await cluster.stop(first)
        with pytest.raises(PushqError):
            await lost
        second, shard = await cluster.leader()
        assert second != first
        await put(node_of(shard), "won", "1")
        await cluster.start(first)
        await cluster.in_sync(3)
        back = cluster.hosts[first].shards[ShardNumber(0)]
        await eventually(lambda: rows(back) == {"kept": "1", "won": "1"}, "what nobody confirmed is gone")


async def test_what_an_async_leader_confirmed_alone_is_undone_and_its_messages_kept(tmp_path: Path) -> None:
    async with Cluster(tmp_path, mode="async") as cluster:
        first, shard = await cluster.leader()
        await cluster.in_sync(3)
        await put(node_of(shard), "kept", "1")
        await eventually(lambda: all(has_row(host) for host in cluster.hosts.values()), "it is everywhere")
        cluster.hosts[first].lines.send = lambda to, message: None  # type: ignore[method-assign]
        await put(node_of(shard), "alone", "1")
        batch = Batch()
        batch.put(Table.LOG, log_key(REPLICA, 3), chunk(3, "a", "b"))
        await node_of(shard).committer.write(batch)
        await cluster.stop(first)
        _, shard = await cluster.leader()
        await put(node_of(shard), "won", "1")
        host = await cluster.start(first)
        await cluster.in_sync(3)
        back = host.shards[ShardNumber(0)]
        await eventually(lambda: rows(back) == {"kept": "1", "won": "1"}, "it follows the other log")
        [piece] = await host.recovery.pieces()
        assert (piece.messages, piece.in_doubt) == (2, 0) and back.replicated.quarantined.messages == 2
        [(place, kept)] = await host.recovery.some(0, piece.epoch, piece.uid, None, 1 << 20)
        assert kept.data == chunk(3, "a", "b") and kept.replica == REPLICA
        manager = next(host for host in cluster.hosts.values() if host.manager.is_manager)
        await eventually(
            lambda: "quarantined" in [one.kind for one in manager.view.events], "the cluster's events tell it"
        )
        await host.recovery.forget(0, [place])
        assert await host.recovery.pieces() == [] and back.replicated.quarantined.messages == 0


def has_row(host: BackendHost) -> bool:
    return rows(host.shards[ShardNumber(0)]) == {"kept": "1"}


async def test_replica_with_a_new_disk_gets_everything_again(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        first, shard = await cluster.leader()
        await cluster.in_sync(3)
        await put(node_of(shard), "one", "1")
        away = next(name for name in cluster.hosts if name != first)
        await cluster.stop(away)
        shutil.rmtree(tmp_path / away)
        await put(node_of(shard), "two", "2")
        host = await cluster.start(away)
        await eventually(lambda: ShardNumber(0) in host.shards, "it knows of the shard")
        await eventually(lambda: rows(host.shards[ShardNumber(0)]) == {"one": "1", "two": "2"}, "it has all again")
        await cluster.in_sync(3)


async def test_replica_whose_folder_was_put_back_from_a_copy_is_not_elected_with_it(tmp_path: Path) -> None:
    """It was in sync when it ended; what was confirmed since the copy was made is not in it any more."""
    async with Cluster(tmp_path) as cluster:
        first, shard = await cluster.leader()
        await cluster.in_sync(3)
        await put(node_of(shard), "one", "1")
        old = next(name for name in cluster.hosts if name != first)
        await cluster.stop(old)
        shutil.copytree(tmp_path / old, tmp_path / "copy")
        host = await cluster.start(old)
        await cluster.in_sync(3)
        name = host.shards[ShardNumber(0)].replicated.store.disk
        await put(node_of((await cluster.leader())[1]), "two", "2")
        others = [other for other in cluster.hosts if other != old]
        for other in (others[0], old, others[1]):
            await cluster.stop(other)
        shutil.rmtree(tmp_path / old)
        shutil.copytree(tmp_path / "copy", tmp_path / old)
        host = await cluster.start(old)
        await eventually(lambda: host.manager.is_manager, "it manages the cluster")
        records = host.view.records
        await eventually(lambda: old not in records[ShardNumber(0)].disks, "it is known to have nothing")
        assert host.shards[ShardNumber(0)].replicated.store.disk != name
        record = records[ShardNumber(0)]
        assert (record.leader, record.leader_inc) != (old, host.inc)
        for other in others:
            await cluster.start(other)
        await cluster.in_sync(3)
        assert all(rows(host.shards[ShardNumber(0)]).keys() >= {"one", "two"} for host in cluster.hosts.values())


async def test_node_is_not_opened_on_rows_that_nobody_confirmed(tmp_path: Path) -> None:
    """A leader for whom nobody vouches for a while gives its node up; what was under way is still not final."""
    async with Cluster(tmp_path) as cluster:
        first, shard = await cluster.leader()
        await cluster.in_sync(3)
        host = cluster.hosts[first]
        send = host.lines.send
        host.lines.send = lambda to, message: None  # type: ignore[method-assign]
        under_way = asyncio.ensure_future(put(node_of(shard), "open", "1"))
        await eventually(lambda: "open" in rows(shard), "it is on one disk")
        shard.give_up()
        with pytest.raises(PushqError):
            await under_way
        for _ in range(5):
            shard.look()
            assert shard.node is None
        host.lines.send = send  # type: ignore[method-assign]
        _, shard = await cluster.leader()
        assert not shard.replicated.replica.log.unsettled[0] or shard.replicated.is_all_confirmed


async def test_shards_are_spread_over_nodes(tmp_path: Path) -> None:
    async with Cluster(tmp_path, shards=3) as cluster:
        led = {(await cluster.leader(number))[0] for number in range(3)}
        assert led == {"a", "b", "c"}
