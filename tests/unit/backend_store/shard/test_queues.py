"""Queues in a shard: what was published, and what was settled, goes with the leadership."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend_store.client.embedded import EmbeddedStore
from tests.support.queues import draft
from tests.support.shards import Cluster, node_of
from tests.support.stores import drained, made, published

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
