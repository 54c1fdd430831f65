"""A disk changes what was written: real folders, real sockets, and bytes that are flipped in a file in use."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from backend_store.core.replication.record import NodeId
from backend_store.model import PushqError
from backend_store.shard import host
from backend_store.shard.hosted import HostedShard
from backend_store.shard.interface import ShardNumber
from backend_store.shard.scrub import wrong_row
from backend_store.storage.engine import Batch, Table
from backend_store.storage.env import open_engine
from backend_store.storage.keys import log_key
from tests.support.patience import eventually
from tests.support.shards import Cluster, node_of, put, rows
from tests.unit.backend_store.core.replication.test_stranded import REPLICA, chunk

pytestmark = pytest.mark.anyio

BODY = b"a body that no other row has"
OTHER = b"a body that No other row has"


async def stored(shard: HostedShard) -> None:
    """A chunk with that body, on all disks."""
    batch = Batch()
    batch.put(Table.LOG, log_key(REPLICA, 0), chunk(0, [BODY]))
    await node_of(shard).committer.write(batch)


def row(shard: HostedShard) -> bytes | None:
    return shard.replicated.store.engine.get(Table.LOG, log_key(REPLICA, 0))


def flip(shard: HostedShard) -> int:
    """One byte of the body wherever it lies in the file; how often that was."""
    file = Path(shard.replicated.store.engine.path) / "data.mdb"
    data, found = file.read_bytes(), 0
    with file.open("r+b", buffering=0) as opened:
        at = data.find(BODY)
        while at >= 0:
            os.pwrite(opened.fileno(), OTHER, at)
            found, at = found + 1, data.find(BODY, at + 1)
    return found


@asynccontextmanager
async def writing(cluster: Cluster) -> AsyncIterator[dict[str, str]]:
    """Rows that are written all the while, and those that were confirmed."""
    confirmed: dict[str, str] = {}

    async def write() -> None:
        for number in itertools.count():
            serving = cluster.serving()
            if serving is not None and serving.node is not None:
                with contextlib.suppress(PushqError):
                    await put(serving.node, f"{number:06}", str(number))
                    confirmed[f"{number:06}"] = str(number)
            await asyncio.sleep(0.002)

    task = asyncio.ensure_future(write())
    try:
        await eventually(lambda: len(confirmed) > 20)
        yield confirmed
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_follower_whose_disk_flips_bits_is_taken_anew_while_the_others_go_on(tmp_path: Path) -> None:
    async with Cluster(tmp_path, scrub_every_s=0.2) as cluster:
        first, shard = await cluster.leader()
        await cluster.in_sync(3)
        await stored(shard)
        name = next(name for name in cluster.hosts if name != first)
        follower = cluster.hosts[name].shards[ShardNumber(0)]
        written = row(shard)
        await eventually(lambda: row(follower) == written, "it has the row")
        async with writing(cluster) as confirmed:
            # What is not settled yet could end the process instead: a log that is damaged is no log.
            await eventually(lambda: follower.replicated.replica.log.settled > 10)
            assert flip(follower) and row(follower) != written
            await eventually(lambda: follower.replicated.repairs == 1, "it is found, and the copy taken anew")
            assert row(follower) == written
            assert follower.replicated.damaged == 0
            before = len(confirmed)
            await cluster.in_sync(3)
            await eventually(lambda: len(confirmed) > before + 20, "writing goes on")
        await eventually(lambda: confirmed.items() <= rows(follower).items(), "it has all that was confirmed")
        assert (await cluster.leader())[0] == first
        manager = next(host for host in cluster.hosts.values() if host.manager.is_manager)
        await eventually(lambda: "repaired" in {event.kind for event in manager.view.events}, "it is told")


async def test_a_leader_whose_disk_flips_bits_hands_over_and_is_taken_anew(tmp_path: Path) -> None:
    async with Cluster(tmp_path, scrub_every_s=0.2) as cluster:
        first, shard = await cluster.leader()
        await cluster.in_sync(3)
        await stored(shard)
        written = row(shard)
        await eventually(lambda: shard.replicated.replica.log.settled >= shard.replicated.replica.log.end - 1)
        async with writing(cluster) as confirmed:
            await eventually(lambda: shard.replicated.replica.log.settled > 10)
            assert flip(shard)
            await eventually(lambda: shard.replicated.repairs == 1, "it is found, and the copy taken anew")
            assert row(shard) == written
            assert (await cluster.leader())[0] != first
            await cluster.in_sync(3)
        await eventually(lambda: confirmed.items() <= rows(shard).items(), "it has all that was confirmed")


async def test_a_damaged_copy_stays_while_it_is_one_of_the_fewest(tmp_path: Path) -> None:
    async with Cluster(tmp_path, scrub_every_s=0.2) as cluster:
        first, shard = await cluster.leader()
        await cluster.in_sync(3)
        await stored(shard)
        name, away = (name for name in cluster.hosts if name != first)
        follower = cluster.hosts[name].shards[ShardNumber(0)]
        written = row(shard)
        await eventually(lambda: row(follower) == written, "it has the row")
        await cluster.stop(away)
        record = shard.replicated.replica
        await eventually(lambda: record.record is not None and away not in record.record.isr, "two are left")
        async with writing(cluster):
            await eventually(lambda: follower.replicated.replica.log.settled > 10)
            assert flip(follower)
            await eventually(lambda: follower.replicated.damaged > 0, "it is found")
            await cluster.in_sync(2)
            assert follower.replicated.repairs == 0
            await cluster.start(away)
            await eventually(lambda: follower.replicated.repairs == 1, "now it may be taken anew")
            assert row(follower) == written


async def test_nothing_is_taken_from_a_copy_that_is_damaged_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two damaged copies led in turn, and each took the rows of the other for good."""
    monkeypatch.setattr(host, "REPORT_SECONDS", 0.1)
    async with Cluster(tmp_path, scrub_every_s=0.2) as cluster:
        first, shard = await cluster.leader()
        await cluster.in_sync(3)
        await stored(shard)
        name, away = (name for name in cluster.hosts if name != first)
        follower = cluster.hosts[name].shards[ShardNumber(0)]
        written = row(shard)
        await eventually(lambda: row(follower) == written, "it has the row")
        await cluster.stop(away)
        record = shard.replicated.replica
        await eventually(lambda: record.record is not None and away not in record.record.isr, "two are left")
        async with writing(cluster):
            await eventually(lambda: follower.replicated.replica.log.settled > 10)
            await eventually(lambda: shard.replicated.replica.log.settled > 10)
            assert flip(follower)
            reports = cluster.hosts[first].view.reports
            await eventually(lambda: reports[NodeId(name)].damaged, "its damage is known")
            assert flip(shard)
            await eventually(lambda: shard.replicated.damaged > 0, "it is found")
            passes, epoch = cluster.hosts[first].scrub.passes, shard.epoch
            await eventually(lambda: cluster.hosts[first].scrub.passes > passes + 3)
            assert shard.epoch == epoch and not follower.replicated.repairs
            await cluster.start(away)
            for one in (shard, follower):
                await eventually(lambda: row(one) == written and not one.replicated.damaged, "it is taken anew")  # noqa: B023
            assert (await cluster.leader())[0] == away


async def test_a_copy_is_whole_again_when_its_damaged_rows_are_gone(tmp_path: Path) -> None:
    async with Cluster(tmp_path, scrub_every_s=0.2, min_in_sync=3) as cluster:
        first, shard = await cluster.leader()
        await cluster.in_sync(3)
        await stored(shard)
        follower = next(host for name, host in cluster.hosts.items() if name != first).shards[ShardNumber(0)]
        async with writing(cluster):
            await eventually(lambda: follower.replicated.replica.log.settled > 10)
            assert flip(follower)
            await eventually(lambda: follower.replicated.damaged > 0, "it is found")
            batch = Batch()
            batch.delete(Table.LOG, log_key(REPLICA, 0))
            await node_of(shard).committer.write(batch)
            await eventually(lambda: not follower.replicated.damaged, "it was acked, and nothing else is damaged")
            assert not follower.replicated.repairs


def test_rows_of_every_kind_that_an_older_version_wrote_are_no_damage(tmp_path: Path) -> None:
    folder = tmp_path / "copied"
    shutil.copytree(Path(__file__).parents[3] / "data" / "format_v2", folder)
    engine = open_engine(folder)
    try:
        found = {table: engine.scan(table, b"\x00", b"\xff" * 512, 100_000) for table in Table}
    finally:
        engine.close()
    broken = [(table, one[0]) for table, rows in found.items() for one in rows if wrong_row(table, one, 0)]
    # The folder has one entry that is damaged on purpose.
    assert len([table for table in found if found[table]]) > 12 and not broken, broken
