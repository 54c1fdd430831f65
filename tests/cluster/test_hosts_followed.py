"""Independent hosts that go for good, under load: one is killed and stays away, another one is removed by hand.

A host that had nothing takes each one's place in all of its lanes, and is at home there.
"""

from __future__ import annotations

import signal
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
import httpx2
import pytest

from tests.cluster.test_cluster import gateway, leader_of, patient
from tests.cluster.test_independent_hosts import HOSTS, KILLED, LANES, ORDERED, UNORDERED, VISIBILITY_MS, Load
from tests.support.backends import ROLE, Backend, Backends
from tests.support.cli import Cli
from tests.support.consumers import call
from tests.support.patience import eventually, until
from tests.support.prerequisites import require
from tests.support.server import PushqServer

pytestmark = pytest.mark.anyio

ENV = {**HOSTS, "PUSHQ_CLUSTER__REPLACE_AFTER_S": "2"}
FOLLOWED_S_MAX = 120.0
ONE = {"messages": [{"body": "anew"}]}


@pytest.fixture(autouse=True)
def _needs_etcd() -> None:
    require("etcd")


class Watched:
    """The cluster as a gateway shows it."""

    def __init__(self, server: PushqServer) -> None:
        self._server = server

    def state(self) -> dict[str, Any]:
        answer = httpx2.get(f"{self._server.url}/v1/cluster", headers=self._server.headers)
        return answer.json() if answer.status_code == 200 else {"shards": [], "events": []}

    def texts(self, kind: str) -> list[str]:
        return [event["text"] for event in self.state()["events"] if event["kind"] == kind]

    def is_whole_with(self, home: str, lane: int, *, without: str) -> bool:
        """All lanes have three copies, none on that host, and the lane is at home and led there."""
        lanes = self.state()["shards"]
        return (
            len(lanes) == LANES
            and all(len(one["in_sync"]) == 3 and set(one["in_sync"]) == set(one["replicas"]) for one in lanes)
            and not any(without in one["replicas"] for one in lanes)
            and lanes[lane]["leader"] == home
        )

    async def whole_with(self, home: str, lane: int, *, without: str) -> None:
        is_so = partial(self.is_whole_with, home, lane, without=without)
        what = f"{home} has lane {lane}, and {without} nothing"
        await anyio.to_thread.run_sync(partial(until, is_so, what, within_s=FOLLOWED_S_MAX, look_s=0.3))


async def test_hosts_that_go_for_good_are_followed_and_nothing_is_lost(tmp_path: Path) -> None:
    cluster = Backends(tmp_path, ROLE, names="abcd", env=ENV)
    gateways: list[PushqServer] = []
    await anyio.to_thread.run_sync(cluster.__enter__)
    try:
        owners = [await anyio.to_thread.run_sync(leader_of, cluster, lane) for lane in range(LANES)]
        [idle] = [one for one in cluster.all if one not in owners]
        watches = {"PUSHQ_CLUSTER__COORDINATOR": cluster.coordinator}
        gateways.append(await anyio.to_thread.run_sync(lambda: gateway(cluster, tmp_path / "g0", env=watches)))
        gateways.append(await anyio.to_thread.run_sync(lambda: gateway(cluster, tmp_path / "g1", like=gateways[0])))
        async with patient(gateways[0]) as http:
            config = {"visibility_timeout_ms": VISIBILITY_MS}
            await call(http, "PUT", ORDERED, {**config, "ordering": "strict", "dedupe": "id"})
            await call(http, "PUT", UNORDERED, config)
        load = Load(gateways)
        async with AsyncExitStack() as running:
            await running.enter_async_context(load.running())
            await _through_it_all(cluster, gateways[0], load, owners, idle, tmp_path)
        assert not (broken := load.broken()), "\n".join(broken[:20])
    finally:
        for one in gateways:
            one.kill()
        await anyio.to_thread.run_sync(lambda: cluster.__exit__(None, None, None))


async def _through_it_all(
    cluster: Backends, server: PushqServer, load: Load, owners: list[Backend], idle: Backend, tmp_path: Path
) -> None:
    watched, cli = Watched(server), Cli(server)
    await load.goes_to(*range(LANES))

    # The host with the definitions is killed and stays away.
    gone, leaving = owners[KILLED], owners[KILLED + 1]
    await anyio.to_thread.run_sync(gone.end, signal.SIGKILL)
    await load.more()
    await watched.whole_with(idle.name, KILLED, without=gone.name)
    await load.goes_to(*range(LANES))
    assert len(watched.texts("copy-replaced")) == LANES

    # One of the others is to be removed: not before there is one that can take its place.
    refused = await anyio.to_thread.run_sync(lambda: cli.any("cluster", "remove", leaving.name))
    assert refused.code != 0 and "start another host first" in refused.err, refused
    heir = await anyio.to_thread.run_sync(cluster.join, "e")
    await anyio.to_thread.run_sync(partial(until, lambda: "e" in watched.texts("joined")[-1], "e has joined"))
    removed = await anyio.to_thread.run_sync(
        lambda: cli("cluster", "remove", leaving.name, "--wait", "120", "--json").json()
    )
    assert removed["removing"] is True
    await watched.whole_with(heir.name, KILLED + 1, without=leaving.name)
    folder = leaving.data / "shards"
    await anyio.to_thread.run_sync(lambda: until(lambda: not list(folder.iterdir()), f"{folder} is empty"))
    await load.more()

    # It may end now. Both heirs have doors, also the one that no gateway was told of: nobody else would bring what has
    # no key into its lane.
    await anyio.to_thread.run_sync(leaving.end, signal.SIGTERM)
    await load.more()
    await load.goes_to(*range(LANES))

    # The same at a gateway that starts now, with one address left of those that it is told.
    told = {"PUSHQ_STORE__BACKENDS": f"{gone.service},{leaving.service},{idle.service}"}
    anew = await anyio.to_thread.run_sync(lambda: gateway(cluster, tmp_path / "g2", like=server, over=told))
    try:
        async with patient(anew) as http:

            async def reaches_all() -> bool:
                placed = [await call(http, "POST", f"{UNORDERED}/messages", ONE) for _ in range(2 * LANES)]
                return {one["partition"] for answer in placed for one in answer["messages"]} == {*range(LANES)}

            await eventually(reaches_all, "it has a door to each host", within_s=FOLLOWED_S_MAX)
    finally:
        anew.kill()

    # The first one comes back: it has nothing, and is there for the next.
    await anyio.to_thread.run_sync(gone.start)
    folder = gone.data / "shards"
    await anyio.to_thread.run_sync(lambda: until(lambda: not list(folder.iterdir()), f"{folder} is empty"))
    await load.more()
