"""Queues that say how they are copied, in a cluster of three `pushq backend` with a shard for each mode."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import anyio.to_thread
import httpx2
import pytest

from tests.cluster.test_cluster import gateway, leader_of, patient
from tests.support.backends import ROLE, Backends
from tests.support.consumers import call
from tests.support.patience import eventually
from tests.support.prerequisites import require

pytestmark = pytest.mark.anyio

SYNC, ASYNC = 0, 1
"""The shards."""


@pytest.fixture(autouse=True)
def _needs_etcd() -> None:
    require("etcd")


async def test_an_async_queue_goes_on_with_its_leader_alone_and_a_sync_one_waits_for_a_second_disk(
    tmp_path: Path,
) -> None:
    cluster = Backends(tmp_path, ROLE, env={"PUSHQ_CLUSTER__ASYNC_SHARDS": "1"})
    await anyio.to_thread.run_sync(cluster.__enter__)
    try:
        server = await anyio.to_thread.run_sync(lambda: gateway(cluster, tmp_path / "g0"))
        try:
            async with patient(server) as http:
                await _both_modes(cluster, http)
        finally:
            server.kill()
    finally:
        await anyio.to_thread.run_sync(lambda: cluster.__exit__(None, None, None))


async def _both_modes(cluster: Backends, http: httpx2.AsyncClient) -> None:
    async def made(name: str, config: dict[str, Any]) -> dict[str, Any]:
        answers: list[httpx2.Response] = []

        async def is_made() -> bool:
            answers.append(await http.put(f"/v1/queues/{name}", json=config))
            return answers[-1].status_code in (200, 201)

        await eventually(is_made, f"{name} is made once its shard is placed")
        shown: dict[str, Any] = answers[-1].json()["config"]["replication"]
        return shown

    copied = {"factor": 3, "min_in_sync": 2, "model": "leader_follower"}
    assert await made("safe", {}) == {**copied, "mode": "sync"}
    assert await made("fast", {"replication": {"mode": "async"}}) == {**copied, "mode": "async"}
    assert await made("fast", {"replication": {**copied, "mode": "async"}}) == {**copied, "mode": "async"}
    for asked in ({"factor": 5}, {"min_in_sync": 1}, {"model": "independent_hosts"}):
        refused = await http.put("/v1/queues/other", json={"replication": asked})
        assert refused.status_code == 400, refused.text
        assert [one["pointer"] for one in refused.json()["errors"]] == [f"/replication/{next(iter(asked))}"]
    known = {"if-match": (await http.get("/v1/queues/fast")).headers["etag"]}
    refused = await http.patch("/v1/queues/fast", json={"replication": {"mode": "sync"}}, headers=known)
    assert refused.status_code == 400, refused.text

    async def replicas(name: str) -> int:
        answer = await call(http, "POST", f"{name}/messages", {"messages": [{"body": 1}]})
        found: int = answer["durability"]["replicas"]
        return found

    async def are_all_in_sync() -> bool:
        return await replicas("safe") == 3

    await eventually(are_all_in_sync, "all have what is confirmed")
    assert await replicas("fast") == 1
    leader = await anyio.to_thread.run_sync(leader_of, cluster, ASYNC)
    others = [one for one in cluster.all if one is not leader]
    for one in others:
        one.send(signal.SIGSTOP)
    try:
        assert await replicas("fast") == 1
        refused = await http.post(
            "/v1/queues/safe/messages", json={"messages": [{"body": 1}]}, headers={"pushq-timeout-ms": "1500"}
        )
        assert refused.status_code in (503, 504), refused.text
    finally:
        for one in others:
            one.send(signal.SIGCONT)
    await eventually(are_all_in_sync, "it is confirmed again", within_s=60)
