"""A cluster is hot, and `pushq manager` has a queue move to the other one, or half of it: under a load that does not
give up."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio.to_thread
import httpx2
import pytest

from tests.cluster.test_cluster import patient
from tests.cluster.test_manager import ALONE, DISK_MIB, HOT, Clusters, fill
from tests.cluster.test_moves import World, opened
from tests.cluster.test_several_clusters import PAIR
from tests.cluster.test_split import KEYS, OPEN, lies_in
from tests.support.consumers import call
from tests.support.manager import Manager
from tests.support.patience import until
from tests.support.prerequisites import require
from tests.support.storage import small_disk
from tests.support.stubborn_load import StubbornLoad

pytestmark = pytest.mark.anyio

MORE = 40
MUCH = 600
ROOM_MIB = 1024
LITTLE_ROOM = 0.4
"""So full the other cluster is when it cannot take the queue whole: hot is 80 %, cool 70."""
HANDLING_S = 0.2
"""A disk is full of what queues hold, so that is what the manager looks at: this one always holds something."""
run = anyio.to_thread.run_sync


class Relief(NamedTuple):
    """Two clusters with a disk each, a manager that moves queues, and a load on a queue of the first one."""

    disk: Path
    room: Path
    world: World
    http: httpx2.AsyncClient
    queue: str
    load: StubbornLoad
    manager: Manager
    clusters: Clusters


@asynccontextmanager
async def managed(tmp_path: Path, **how: Any) -> AsyncIterator[Relief]:
    """`how` the load is."""
    require("etcd")
    # Whether the other one takes the queue whole must not hang on how full this machine is.
    with small_disk(tmp_path / "disk", DISK_MIB) as disk, small_disk(tmp_path / "room", ROOM_MIB) as room:
        full = {**ALONE, "PUSHQ_DATA": str(disk / "a")}
        async with opened(tmp_path, full, PAIR, names="a", room=room) as world:
            one, other = world.gateways
            async with patient(one) as http:
                queue = await world.queue_of(http, "us")
                load = StubbornLoad([one.url, other.url], one.headers, queue, handling_s=HANDLING_S, **how)
                with Manager("one", tmp_path, _env(world)) as manager:
                    yield Relief(disk, room, world, http, queue, load, manager, Clusters(one))


async def test_a_manager_has_a_queue_moved_out_of_a_hot_cluster_and_nothing_is_lost_doubled_or_reordered(
    tmp_path: Path,
) -> None:
    async with managed(tmp_path) as relief:
        load, clusters = relief.load, relief.clusters
        await run(until, lambda: clusters.of("eu")["state"] == "ok", "the other one has room")
        async with load.running():
            await load.more(MORE)
            await run(fill, relief.disk, HOT)
            await relief.world.drained(relief.http)
            await load.more(MORE)
        assert await load.broken() == []
        assert (await call(relief.http, "GET", relief.queue))["cluster"] == "eu"
        events = [event for event in clusters.state()["manager_events"] if event["kind"] == "moves"]
        assert [(event["cluster"], event["manager"]) for event in events] == [("us", "one")]
        assert f"queue '{relief.queue}' moves to 'eu'" in events[0]["text"]
        metrics = relief.manager.page("/metrics")
        assert "\npushq_manager_moves_total 1.0\n" in metrics
        assert "\npushq_manager_move_failures_total 0.0\n" in metrics


async def test_a_manager_has_a_queue_split_that_no_other_cluster_can_take_whole(tmp_path: Path) -> None:
    async with managed(tmp_path, keys=KEYS) as relief:
        load, clusters = relief.load, relief.clusters
        await run(fill, relief.room, LITTLE_ROOM)
        await run(
            until,
            lambda: (clusters.of("eu").get("utilisation") or 0) > LITTLE_ROOM - 0.05,
            "it is that full",
        )
        async with load.running():
            await load.more(MORE)
            await run(fill, relief.disk, HOT)
            await lies_in(relief.http, relief.queue, us=0.5, eu=0.5)
            places = load.history.places
            before = set(places)
            await load.more(MUCH)
        new = [seq for name, (_, seq) in places.items() if name not in before]
        share = sum(seq >= OPEN for seq in new) / len(new)
        assert 0.4 < share < 0.6, f"{share:.0%} of {len(new)} went to the second cluster"
        assert await load.broken() == []
        events = [event["text"] for event in clusters.state()["manager_events"] if event["kind"] == "moves"]
        assert len(events) == 1 and f"half of queue '{relief.queue}' moves to 'eu'" in events[0], events


def _env(world: World) -> dict[str, str]:
    """Of a manager of both clusters."""
    entry = {"name": "eu", "backends": [one.service for one in world.eu.all]}
    return {
        **world.us.gateway_env("managers"),
        "PUSHQ_STORE__CLUSTER": "us",
        "PUSHQ_STORE__CLUSTERS": json.dumps([entry]),
        "PUSHQ_MANAGER__RELIEF": "move",
    }
