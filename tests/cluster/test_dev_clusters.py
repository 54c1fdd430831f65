"""Two clusters of `pushq dev-cluster`: one is overheated, grows by a backend and shrinks again, under load."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import anyio.to_thread
import httpx2
import pytest

from tests.cluster.test_manager import fill
from tests.support.dev_cluster import DevCluster
from tests.support.patience import until
from tests.support.prerequisites import require
from tests.support.storage import small_disk
from tests.support.stubborn_load import CONFIG, StubbornLoad

pytestmark = pytest.mark.anyio

DISK_MIB: Final = 384
HOT, IDLE = 0.82, 0.05
RESIZED_S_MAX = 180.0
"""Far above the seconds it takes: these machines are busy."""
MESSAGES = 40
NEW_QUEUES = 6
ROLES = ["etcd", *["backend"] * 6, "gateway", "gateway", "manager", "haproxy"]
SOON: Final = {"GROW_AFTER_S": "1", "SHRINK_AFTER_S": "1", "PAUSE_S": "1", "NODES_MAX": "4"}


class Clusters:
    """As a gateway shows them."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        self._http = httpx2.Client(base_url=url, headers=headers, timeout=20, trust_env=False)

    def of(self, name: str) -> dict[str, Any]:
        answer = self._http.get("/v1/cluster")
        clusters = answer.json()["clusters"] if answer.status_code == 200 else []
        return next((one for one in clusters if one["name"] == name), {"state": None, "backends": None, "queues": 0})

    def copies(self, cluster: str, node: str) -> int:
        answer = self._http.get("/v1/cluster", params={"cluster": cluster})
        nodes = answer.json()["nodes"] if answer.status_code == 200 else []
        return sum(one["copies"] for one in nodes if one["name"] == node)

    def events(self, cluster: str) -> list[str]:
        answer = self._http.get("/v1/cluster").raise_for_status().json()
        return [event["kind"] for event in answer["manager_events"] if event["cluster"] == cluster]

    def make(self, queue: str, config: dict[str, Any]) -> None:
        def is_made() -> bool:
            return self._http.put(f"/v1/queues/{queue}", json=config).status_code in (200, 201)

        until(is_made, f"{queue} is made")

    def close(self) -> None:
        self._http.close()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[DevCluster]:
    """Both run; the backends of the second one have a small disk, and their manager little patience."""
    require("etcd")
    require("haproxy")
    made = DevCluster(tmp_path / "cluster")
    made.folder.mkdir(mode=0o700)
    with small_disk(made.folder / "cluster2", DISK_MIB):
        try:
            await anyio.to_thread.run_sync(lambda: made("up", "--clusters", "2"))
            yield made
        finally:
            await anyio.to_thread.run_sync(lambda: made("down"))


async def test_an_overheated_cluster_gets_no_queue_grows_by_a_backend_and_shrinks_again_under_load(
    cluster: DevCluster,
) -> None:
    run = anyio.to_thread.run_sync
    started = await run(lambda: cluster("status"))
    assert [part["role"] for part in started["parts"]] == ROLES and all(part["alive"] for part in started["parts"])
    assert {(one["cluster"], one["shard"]) for one in started["leaders"]} == {
        (name, shard) for name in ("main", "cluster2") for shard in range(3)
    }
    await run(lambda: _hurried(cluster))
    headers = {"Authorization": f"Bearer {Path(started['key_file']).read_text().strip()}"}
    urls = [f"http://{part['address']}" for part in started["parts"] if part["role"] == "gateway"]
    clusters = Clusters(urls[0], headers)
    try:
        far = StubbornLoad(urls, headers, await run(lambda: _in_cluster2(clusters)))
        async with far.running():
            await far.more(MESSAGES)
            near = StubbornLoad(urls, headers, await _heated(cluster, clusters))
            async with near.running():
                loads = [far, near]
                await _grown(cluster, clusters, loads)
                await _cooled(cluster, clusters, loads)
        for load in loads:
            sent, acked = len(load.history.places), len(load.history.acked)
            print(f"{load.queue}: {sent} messages, {acked} acks answered well, {load.refused} requests made again")
            assert not (broken := await load.broken()), broken
        kinds = clusters.events("cluster2")
        assert kinds.count("resize") == kinds.count("provisioned") == 2 and "provision-failed" not in kinds, kinds
        assert "resize" not in clusters.events("main")
    finally:
        clusters.close()


def _hurried(cluster: DevCluster) -> None:
    """The manager is killed, and comes back with other settings."""
    os.kill(cluster.pid("manager"), signal.SIGKILL)
    until(lambda: not cluster.part("manager").is_alive, "the manager is gone")
    cluster.change("manager", lambda env: env.update({f"PUSHQ_MANAGER__{name}": value for name, value in SOON.items()}))
    assert cluster("up")["clusters"] == ["main", "cluster2"]


def _in_cluster2(clusters: Clusters) -> str:
    """A queue that lies there. It has most to spare: its disk is empty."""
    until(lambda: clusters.of("cluster2")["state"] == "ok", "it is heard of")
    for number in range(20):
        clusters.make(queue := f"q{number}", CONFIG)
        if clusters.of("cluster2")["queues"]:
            return queue
    raise AssertionError("no queue is put into cluster2")


async def _heated(cluster: DevCluster, clusters: Clusters) -> str:
    """Its disk is nearly full: it gets no queue. One of those that went elsewhere."""
    run = anyio.to_thread.run_sync
    had = clusters.of("cluster2")["queues"]
    await run(lambda: fill(cluster.folder / "cluster2", HOT))
    await _soon(lambda: clusters.of("cluster2")["state"] == "hot", "it is hot")
    for number in range(NEW_QUEUES):
        await run(lambda number=number: clusters.make(f"new{number}", CONFIG))  # type: ignore[misc]
    assert (clusters.of("cluster2")["queues"], clusters.of("main")["queues"] >= NEW_QUEUES) == (had, True)
    return "new0"


async def _grown(cluster: DevCluster, clusters: Clusters, loads: list[StubbornLoad]) -> None:
    """It is hot, so it gets another backend."""
    await _soon(lambda: clusters.of("cluster2")["backends"] == 4, "it has another backend")
    await _soon(lambda: clusters.copies("cluster2", "cluster2-backend4") >= 1, "which has a share")
    assert cluster.part("cluster2-backend4").is_alive and len(cluster.names("main")) == 3
    for load in loads:
        await load.more(MESSAGES)


async def _cooled(cluster: DevCluster, clusters: Clusters, loads: list[StubbornLoad]) -> None:
    """Its disk is nearly empty: the backend gives all away, and ends."""
    [part] = [part for part in cluster.state.parts if part.name == "cluster2-backend4"]
    await anyio.to_thread.run_sync(lambda: fill(cluster.folder / "cluster2", IDLE))
    await _soon(lambda: "cluster2-backend4" not in cluster.names("cluster2"), "it is taken out")
    assert not part.is_alive and not Path(part.env["PUSHQ_DATA"]).exists()
    await _soon(lambda: clusters.of("cluster2")["backends"] == 3, "there are three")
    await _soon(lambda: clusters.of("cluster2")["state"] == "ok", "and it takes queues")
    for load in loads:
        await load.more(MESSAGES)


async def _soon(is_so: Callable[[], bool], what: str) -> None:
    await anyio.to_thread.run_sync(lambda: until(is_so, what, within_s=RESIZED_S_MAX, look_s=0.2))
