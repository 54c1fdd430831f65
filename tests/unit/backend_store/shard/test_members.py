"""Backends that come, go for good and are taken out, in one process, with real disks and mutual TLS between them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from backend_store.cluster.core.values import Delete, Put
from backend_store.core.replication.limits import SNAPSHOT_BYTES_MAX
from backend_store.core.replication.record import NodeId
from backend_store.shard.interface import ShardNumber
from backend_store.shard.keys import REBALANCE, removal_key
from backend_store.shard.members import ASKED
from backend_store.shard.pace import Pace
from backend_store.shard.rounds import Patience
from tests.support.patience import eventually
from tests.support.shards import Cluster, node_of, put, rows

pytestmark = pytest.mark.anyio

SHARD = ShardNumber(0)


def replicas_of(cluster: Cluster) -> set[str]:
    view = next(iter(cluster.hosts.values())).view
    record = view.records.get(SHARD)
    return set() if record is None else set(record.replicas)


def in_sync(cluster: Cluster) -> set[str]:
    shard = cluster.serving()
    record = None if shard is None else shard.replicated.replica.record
    return set() if record is None else set(record.isr)


def kinds(cluster: Cluster) -> list[str]:
    return [event.kind for event in next(iter(cluster.hosts.values())).view.events]


async def spare(cluster: Cluster) -> str:
    """A fourth backend, which gets nothing as there is nothing to even out."""
    await cluster.leader()
    await cluster.in_sync(3)
    await cluster.start("d")
    await eventually(lambda: "d" in cluster.hosts["a"].view.members, "the fourth is a member")
    return "d"


async def fill(cluster: Cluster, count: int, size: int = 10) -> dict[str, str]:
    _, shard = await cluster.leader()
    wanted = {f"{number:03}": "x" * size for number in range(count)}
    for key, value in wanted.items():
        await put(node_of(shard), key, value)
    return wanted


async def test_copies_of_a_backend_that_is_gone_are_made_elsewhere(tmp_path: Path) -> None:
    async with Cluster(tmp_path, patience=Patience(replace_after_s=1, rebalance_after_s=0)) as cluster:
        await spare(cluster)
        wanted = await fill(cluster, 50)
        first, _ = await cluster.leader()
        await cluster.stop(first)
        await eventually(lambda: in_sync(cluster) == {"a", "b", "c", "d"} - {first}, "the fourth is in sync")
        assert rows(cluster.hosts["d"].shards[SHARD]) == wanted
        await eventually(lambda: replicas_of(cluster) == {"a", "b", "c", "d"} - {first}, "the dead one is no replica")
        await eventually(lambda: first not in cluster.hosts["d"].view.members, "it is forgotten")
        told = kinds(cluster)
        assert [kind for kind in told if kind in ("joined", "left", "copy-replaced", "copy-removed", "forgotten")] == [
            *["joined"] * 4,
            "left",
            "copy-replaced",
            "copy-removed",
            "forgotten",
        ]
        # It comes back, and finds that it is not counted on any more.
        await cluster.start(first)
        await eventually(lambda: not cluster.hosts[first].shards, "it has let go of its copy")
        folder = tmp_path / first / "shards"
        await eventually(lambda: not list(folder.iterdir()), "its folder is empty")
        assert in_sync(cluster) == {"a", "b", "c", "d"} - {first}


async def test_a_backend_that_is_to_be_removed_ends_empty_and_may_be_wanted_again(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await spare(cluster)
        wanted = await fill(cluster, 50)
        first, _ = await cluster.leader()
        await cluster.change(Put(removal_key(NodeId(first)), b""))
        await eventually(lambda: not cluster.hosts[first].shards, "it keeps nothing")
        await eventually(lambda: "emptied" in kinds(cluster), "that is told")
        folder = tmp_path / first / "shards"
        await eventually(lambda: not list(folder.iterdir()), "its folder is empty")
        assert in_sync(cluster) == {"a", "b", "c", "d"} - {first}
        _, shard = await cluster.leader()
        assert rows(shard) == wanted
        inc = cluster.hosts[first].inc
        second, _ = await cluster.leader()
        await cluster.change(Delete(removal_key(NodeId(first))), Put(removal_key(NodeId(second)), b""))
        await eventually(lambda: first in in_sync(cluster), "it has a copy again")
        assert cluster.hosts[first].inc > inc, "in another life"
        await eventually(lambda: not cluster.hosts[second].shards, "the other one keeps nothing")
        assert rows(cluster.hosts[first].shards[SHARD]) == wanted


async def test_a_backend_that_joined_gets_its_share_when_it_is_asked_for(tmp_path: Path) -> None:
    async with Cluster(tmp_path, shards=4, home_s=1) as cluster:
        for number in range(4):
            await cluster.leader(number)
            await cluster.in_sync(3, number)
        await cluster.start("d")
        await eventually(lambda: "d" in cluster.hosts["a"].view.members, "the fourth is a member")
        assert not cluster.hosts["d"].shards
        await cluster.change(Put(REBALANCE, ASKED))
        await eventually(lambda: len(cluster.hosts["d"].shards) == 3, "it has its share")
        view = cluster.hosts["d"].view
        await eventually(
            lambda: all(len(record.replicas) == 3 for record in view.records.values()), "three copies each"
        )
        await eventually(lambda: all(len(host.shards) == 3 for host in cluster.hosts.values()), "all have as much")
        assert not view.is_rebalance_asked


def homes(cluster: Cluster) -> list[str]:
    view = next(iter(cluster.hosts.values())).view
    return [view.plans[lane].replicas[0] for lane in sorted(view.plans)]


async def is_served_by(cluster: Cluster, lane: int, host: str, *, without: str) -> None:
    """It is led there, and all lanes have three copies without that host."""

    def is_so() -> bool:
        records = cluster.hosts[host].view.records
        whole = all(len(record.isr) == len(record.replicas) == 3 for record in records.values())
        left = any(without in record.replicas for record in records.values())
        return whole and not left and cluster.serving(lane) is cluster.hosts[host].shards.get(ShardNumber(lane))

    await eventually(is_so, f"{host} serves lane {lane}")


async def test_independent_hosts_that_go_for_good_are_followed_in_all_their_lanes(tmp_path: Path) -> None:
    patience = Patience(replace_after_s=1, rebalance_after_s=0)
    async with Cluster(tmp_path, lanes=3, home_s=0.1, patience=patience) as cluster:
        for lane in range(3):
            await cluster.leader(lane)
            await cluster.in_sync(3, lane)
        first, second, _ = homes(cluster)
        wanted = await fill(cluster, 50)
        await cluster.start("d")
        await cluster.stop(first)
        await is_served_by(cluster, 0, "d", without=first)
        assert homes(cluster)[0] == "d"
        assert rows(cluster.hosts["d"].shards[SHARD]) == wanted
        assert kinds(cluster).count("copy-replaced") == 3
        # It comes back with nothing to do, and takes the place of the next one, which serves until then.
        await cluster.start(first)
        await eventually(lambda: not cluster.hosts[first].shards, "it has let go of its copies")
        await cluster.change(Put(removal_key(NodeId(second)), b""))
        await is_served_by(cluster, 1, first, without=second)
        await eventually(lambda: "emptied" in kinds(cluster), "the second one may end")
        assert kinds(cluster).count("copy-moved") == 3
        assert rows(cluster.hosts[first].shards[SHARD]) == wanted


async def test_a_move_goes_on_under_the_next_manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_held = True
    # Of each leader the first page comes at once, and no other one while they are held.
    monkeypatch.setattr(Pace, "wait_s", lambda pace, now: 0.05 if is_held and pace.taken else 0.0)
    async with Cluster(tmp_path) as cluster:
        await spare(cluster)
        wanted = await fill(cluster, 15, size=SNAPSHOT_BYTES_MAX // 10)
        first, _ = await cluster.leader()
        target = next(name for name in "abc" if name != first)
        await cluster.change(Put(removal_key(NodeId(target)), b""))
        await eventually(lambda: any(host.pace.taken for host in cluster.hosts.values()), "the copy is begun")
        manager = next(name for name, host in cluster.hosts.items() if host.manager.is_manager)
        await cluster.stop(manager)
        assert replicas_of(cluster) == {*"abcd"}, "the fourth is admitted, and nobody gone"
        await cluster.start(manager)
        await cluster.leader()
        assert "d" not in in_sync(cluster), "half a copy is none"
        is_held = False
        await eventually(lambda: "d" in in_sync(cluster), "the copy is made")
        await eventually(lambda: target not in replicas_of(cluster), "the other one goes")
        await eventually(lambda: rows(cluster.hosts["d"].shards[SHARD]) == wanted, "nothing is missing")


async def test_copies_are_made_no_faster_than_is_allowed(tmp_path: Path) -> None:
    async with Cluster(tmp_path, move_bytes_per_s=1_000_000) as cluster:
        await spare(cluster)
        await fill(cluster, 30, size=100_000)
        began = asyncio.get_running_loop().time()
        first, _ = await cluster.leader()
        await cluster.change(Put(removal_key(NodeId(first)), b""))
        await eventually(lambda: "d" in in_sync(cluster), "the copy is made")
        # Three megabytes, of which the last page is not waited for.
        assert asyncio.get_running_loop().time() - began >= 1.8
        assert sum(host.pace.taken for host in cluster.hosts.values()) >= 3_000_000


async def test_the_events_are_numbered_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend_store.shard.keys.EVENTS_MAX", 4)
    async with Cluster(tmp_path) as cluster:
        await cluster.leader()
        view = cluster.hosts["a"].view
        await eventually(lambda: len(view.events) == 4 and view.events[-1].number >= 5, "five things have happened")
        assert [event.number for event in view.events] == sorted(event.number for event in view.events)
        assert all(event.text and event.manager in {"a", "b", "c"} for event in view.events)
