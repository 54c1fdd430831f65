"""Two clusters of `pushq dev-cluster`: one is overheated, grows by a backend and shrinks again, under load.

And its provisioner is killed between any two of its steps.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio.to_thread
import httpx2
import psutil
import pytest

from backend_store.core.outer.managing import ProvisionCall
from backend_store.outer.manager import ProvisionFailed
from gateway.clusters.provisioner import Command
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


KILLED: Final = """
import os, signal, sys
from importlib import import_module
from gateway.cli import main

folder, module, name, count, when = sys.argv[1:]
module = import_module("gateway.dev_cluster." + module)
step, left = getattr(module, name), int(count)

def killed(*args, **options):
    global left
    left -= 1
    if not left and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        return step(*args, **options)
    finally:
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

setattr(module, name, killed)
sys.argv[:] = ["pushq", "dev-cluster", "provision", "--directory", folder]
main()
"""
"""`pushq dev-cluster provision`, which kills itself at one of its steps."""


class Step(NamedTuple):
    """When the provisioner is killed: before or after it calls the function of that module for this time."""

    module: str
    name: str
    count: int
    when: str


ADDING: Final = (
    Step("layout", "add_backend", 1, "after"),
    Step("resizing", "save", 1, "after"),
    Step("processes", "save", 1, "before"),
    Step("processes", "save", 1, "after"),
    Step("processes", "wait", 4, "before"),
)
"""It is known to nobody; written down; started and not written down; and that, but not told to go on; it runs."""
REMOVING: Final = (
    Step("resizing", "save", 1, "after"),
    Step("resizing", "_ask", 2, "after"),
    Step("resizing", "save", 2, "after"),
    Step("resizing", "end", 1, "after"),
    Step("resizing", "save", 3, "after"),
)
"""It is written down that it leaves; its cluster was asked; it is empty; it was ended; it is forgotten."""


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

    def nodes(self, cluster: str) -> list[str]:
        answer = self._http.get("/v1/cluster", params={"cluster": cluster})
        return sorted(one["name"] for one in answer.json()["nodes"]) if answer.status_code == 200 else []

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
        (name, shard) for name in ("main", "cluster2") for shard in range(3 + 1)
    }, "three, and one for queues that ask for mode async"
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


async def test_a_provisioner_that_is_killed_between_its_steps_is_gone_on_with_by_the_next_call(
    cluster: DevCluster,
) -> None:
    run = anyio.to_thread.run_sync
    started = await run(lambda: cluster("status"))
    headers = {"Authorization": f"Bearer {Path(started['key_file']).read_text().strip()}"}
    urls = [f"http://{part['address']}" for part in started["parts"] if part["role"] == "gateway"]
    clusters, calls = Clusters(urls[0], headers), itertools.count(1)

    async def resized(wanted: int, step: Step | None = None) -> None:
        """Asked as a manager asks."""
        argv = [sys.executable, "-m", "gateway", "dev-cluster", "provision", "--directory", str(cluster.folder)]
        if step is not None:
            argv = [sys.executable, "-c", KILLED, str(cluster.folder), *map(str, step)]
        call = ProvisionCall(next(calls), "cluster2", len(cluster.names("cluster2")), wanted, "a test", 0)
        if step is None:
            await Command(argv)(call)
            return
        with pytest.raises(ProvisionFailed, match="ended with -9"):
            await Command(argv)(call)

    async def has(count: int) -> None:
        names = cluster.names("cluster2")
        assert len(names) == count and all(cluster.part(name).is_alive for name in names), names
        assert await run(lambda: _running_backends(cluster)) == sorted(names), "none runs besides"
        assert sorted(one.name for one in (cluster.folder / "cluster2").glob("cluster2-*")) == sorted(names)
        await _soon(lambda: clusters.nodes("cluster2") == sorted(names), "the cluster knows these")

    try:
        load = StubbornLoad(urls, headers, await run(lambda: _in_cluster2(clusters)))
        os.kill(cluster.pid("manager"), signal.SIGKILL)  # whose part is ours from here on
        async with load.running():
            for adding, removing in zip(ADDING, REMOVING, strict=True):
                print(adding, removing)
                await resized(4, adding)
                await resized(4)
                await has(4)
                newest = cluster.names("cluster2")[-1]
                await _soon(lambda: clusters.copies("cluster2", newest) >= 1, "it has a share")  # noqa: B023
                await resized(3, removing)
                await resized(3)
                await has(3)
                await load.more(MESSAGES)
            for removing in REMOVING[1:4]:
                print("and back", removing)
                await resized(4)
                await resized(3, removing)
                await resized(4)
                await has(4)
                await resized(3)
                await has(3)
        assert not (broken := await load.broken()), broken
    finally:
        clusters.close()


def _running_backends(cluster: DevCluster) -> list[str]:
    """Of the second cluster, by the processes of this machine."""
    data = str(cluster.folder / "cluster2") + os.sep
    found = set()
    for process in psutil.process_iter():
        try:
            folder = process.environ().get("PUSHQ_DATA", "")
        except psutil.Error:
            continue
        if folder.startswith(data):
            found.add(folder.removeprefix(data))
    return sorted(found)


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
