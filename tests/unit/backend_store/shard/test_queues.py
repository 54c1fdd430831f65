"""Queues in a shard: what was published, and what was settled, goes with the leadership."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from backend_store.client.embedded import EmbeddedStore
from backend_store.shard.interface import ShardNumber
from tests.support.patience import eventually
from tests.support.queues import draft
from tests.support.shards import Cluster, node_of
from tests.support.stores import asked, drained, made, published, receipts
from tests.support.world import Consumer

pytestmark = pytest.mark.anyio


async def test_messages_and_acks_of_a_queue_are_with_the_next_leader(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        first, shard = await cluster.leader()
        await cluster.in_sync(3)
        store = EmbeddedStore(node_of(shard))
        work, rest = await made(store, "work"), await made(store, "rest")
        for number in range(30):
            await published(work, draft(f"w{number}"))
            await published(rest, draft(f"r{number}"))
        assert await drained(work) == [f"w{number}" for number in range(30)]
        await published(work, draft("last"))

        await cluster.stop(first)
        second, shard = await cluster.leader()
        assert second != first
        next_store = EmbeddedStore(node_of(shard))
        assert await drained(next_store.queue("default", "rest")) == [f"r{number}" for number in range(30)]
        assert await drained(next_store.queue("default", "work")) == ["last"]


async def test_a_receipt_of_what_an_async_leader_had_alone_acks_no_message_of_the_next_one(tmp_path: Path) -> None:
    """Both stand at the same place of the queue's log. The consumer only has its old receipt."""
    async with Cluster(tmp_path, mode="async") as cluster:
        first, shard = await cluster.leader()
        await cluster.in_sync(3)
        work = await made(EmbeddedStore(node_of(shard)), "work")
        await published(work, draft("everywhere"))
        await eventually(lambda: len(ends(cluster)) == 1, "all have it")
        cluster.hosts[first].lines.send = lambda to, message: None  # type: ignore[method-assign]
        await published(work, draft("alone"))
        [known, alone] = [receipts(lease)[0] for _ in range(2) if (lease := work.take(1, Consumer(), 30_000))]

        await cluster.stop(first)
        _, shard = await cluster.leader()
        work = EmbeddedStore(node_of(shard)).queue("default", "work")
        await published(work, draft("in its place"))
        verdicts = await asked(partial(work.settle, [known, alone]))
        assert [verdict.ok for verdict in verdicts] == [True, False]
        assert await drained(work) == ["in its place"]


def ends(cluster: Cluster) -> set[int]:
    return {host.shards[ShardNumber(0)].replicated.replica.log.end for host in cluster.hosts.values()}
