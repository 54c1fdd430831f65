"""Backends of a cluster come and go for good, under load: of four one is killed, one joins, one is removed, and at last
none of those is left that were there at first."""

from __future__ import annotations

import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio.to_thread
import httpx2
import pytest

from tests.cluster.test_cluster import VISIBILITY_MS, Load, gateway, more, patient
from tests.support.backends import ROLE, Backends
from tests.support.cli import Cli
from tests.support.consumers import call
from tests.support.patience import until
from tests.support.prerequisites import require
from tests.support.server import PushqServer

pytestmark = pytest.mark.anyio

SHARDS = 2
LOADS = 2
MESSAGES = 10
"""Of each load between one event and the next."""
MOVED_S_MAX = 120.0
LOOK_S = 0.3
ENV = {
    "PUSHQ_CLUSTER__REPLACE_AFTER_S": "2",
    "PUSHQ_CLUSTER__REBALANCE_AFTER_S": "3",
    "PUSHQ_CLUSTER__MOVE_BYTES_PER_S": "4000000",
}


@pytest.fixture(autouse=True)
def _needs_etcd() -> None:
    require("etcd")


class Watched:
    """The cluster as a gateway shows it."""

    def __init__(self, server: PushqServer, http: httpx2.Client) -> None:
        self._server = server
        self._http = http

    def state(self) -> dict[str, Any]:
        answer = self._http.get("/v1/cluster", headers=self._server.headers)
        return answer.json() if answer.status_code == 200 else {"nodes": [], "shards": [], "events": []}

    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.state()["events"]]

    def node(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = next((node for node in self.state()["nodes"] if node["name"] == name), {"copies": 0})
        return found

    def is_whole(self, *, without: str = "") -> bool:
        """Every shard is served, has three copies in sync where they are wanted, and none on those nodes."""
        shards = self.state()["shards"]
        return len(shards) == SHARDS and all(
            shard["serving"]
            and len(shard["in_sync"]) == 3
            and set(shard["in_sync"]) == set(shard["replicas"]) == set(shard["wanted"])
            and not set(shard["replicas"]) & set(without)
            for shard in shards
        )

    def has_lag(self) -> bool:
        return all(len(shard["lag"]) == 2 and None not in shard["lag"].values() for shard in self.state()["shards"])

    def has_disks(self) -> bool:
        """A backend tells of its disk a few seconds after it has come."""
        nodes = self.state()["nodes"]
        return bool(nodes) and all(node["disk_free_bytes"] for node in nodes if node["alive"])

    async def whole(self, *, without: str = "") -> None:
        await anyio.to_thread.run_sync(
            lambda: until(
                lambda: self.is_whole(without=without), f"whole, without {without}", within_s=MOVED_S_MAX, look_s=LOOK_S
            )
        )


async def test_backends_come_and_go_for_good_and_nothing_is_lost(tmp_path: Path) -> None:
    cluster = Backends(tmp_path, ROLE, shards=SHARDS, names="abcd", env=ENV)
    gateways: list[PushqServer] = []
    await anyio.to_thread.run_sync(cluster.__enter__)
    try:
        coordinator = {"PUSHQ_CLUSTER__COORDINATOR": cluster.coordinator}
        gateways.append(await anyio.to_thread.run_sync(lambda: gateway(cluster, tmp_path / "g0", env=coordinator)))
        gateways.append(await anyio.to_thread.run_sync(lambda: gateway(cluster, tmp_path / "g1", like=gateways[0])))
        with httpx2.Client(base_url=gateways[0].url) as client:
            loads = [Load(gateways, f"load{number}") for number in range(LOADS)]
            async with patient(gateways[0]) as http:
                for load in loads:  # each in another shard
                    await call(http, "PUT", load.queue, {"visibility_timeout_ms": VISIBILITY_MS})
            async with AsyncExitStack() as running:
                for load in loads:
                    await running.enter_async_context(load.running())
                await _through_it_all(cluster, Watched(gateways[0], client), Cli(gateways[0]), loads)
        assert not (broken := "\n".join(filter(None, (load.broken() for load in loads)))), broken
    finally:
        for one in gateways:
            one.kill()
        await anyio.to_thread.run_sync(lambda: cluster.__exit__(None, None, None))


async def _through_it_all(cluster: Backends, watched: Watched, cli: Cli, loads: list[Load]) -> None:
    await more(loads, MESSAGES)
    await watched.whole()

    # One of four is gone for good: its copies are made on the others.
    first = watched.state()["shards"][0]["leader"]
    await anyio.to_thread.run_sync(lambda: cluster[first].end(signal.SIGKILL))
    await more(loads, MESSAGES)
    await watched.whole(without=first)
    events = watched.state()["events"]
    kinds = {event["kind"] for event in events}
    assert {"joined", "placed", "left", "elected", "copy-replaced", "copy-removed"} <= kinds, kinds
    numbers = [event["number"] for event in events]
    assert numbers == sorted(set(numbers)), numbers  # an act that was refused leaves its number out

    # A fifth joins, and gets its share of copies.
    await anyio.to_thread.run_sync(lambda: cluster.join("e"))
    await anyio.to_thread.run_sync(
        lambda: until(
            lambda: watched.node("e")["copies"] >= 1, "the fifth has a share", within_s=MOVED_S_MAX, look_s=LOOK_S
        )
    )
    await watched.whole(without=first)
    await more(loads, MESSAGES)

    # One of those that are left is taken out: it ends empty.
    second = next(one.name for one in cluster.all if one.name not in (first, "e"))
    removed = await anyio.to_thread.run_sync(lambda: cli("cluster", "remove", second, "--wait", "120", "--json").json())
    assert removed["removing"] is True
    await watched.whole(without=first + second)
    folder = cluster[second].data / "shards"
    await anyio.to_thread.run_sync(lambda: until(lambda: not list(folder.iterdir()), f"{folder} is empty"))
    assert cluster[second].health()["shards"] == []
    await more(loads, MESSAGES)
    await anyio.to_thread.run_sync(lambda: until(lambda: "emptied" in watched.kinds(), "it is told"))
    assert "copy-moved" in watched.kinds()

    shown = await anyio.to_thread.run_sync(lambda: cli("cluster", "status", "--events").out)
    assert "copy-replaced" in shown and "DISK FREE" in shown and second in shown
    dry = await anyio.to_thread.run_sync(lambda: cli("cluster", "rebalance", "--dry-run", "--json").json())
    assert dry["started"] is False
    await anyio.to_thread.run_sync(lambda: until(watched.has_lag, "the leaders have said how far the others are"))
    await anyio.to_thread.run_sync(lambda: until(watched.has_disks, "all have said how much room they have"))

    # Nobody is left of those that the gateways were told of, and they go on.
    old = [one for one in cluster.all if one.name not in (first, "e")]
    for new in "fg":
        await anyio.to_thread.run_sync(cluster.join, new)
    for one in old:
        if one.name != second:
            command = "cluster", "remove", one.name, "--wait", "120"
            await anyio.to_thread.run_sync(lambda command=command: cli(*command))
    for one in old:
        await anyio.to_thread.run_sync(one.end, signal.SIGTERM)
    await watched.whole(without="abcd")
    await more(loads, MESSAGES)
    last = watched.state()["shards"][0]["leader"]
    await anyio.to_thread.run_sync(lambda: cluster[last].end(signal.SIGKILL))
    await more(loads, MESSAGES)
