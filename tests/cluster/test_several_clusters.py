"""Two clusters behind one gateway, as their users have them: leader and followers, and independent hosts beside it.

They share an etcd, a namespace each. The further one is killed whole: its queues wait for it, the others go on.
"""

from __future__ import annotations

import itertools
import json
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import anyio.to_thread
import httpx2
import pytest

from tests.cluster.test_cluster import gateway, patient
from tests.support.backends import ROLE, Backends
from tests.support.cli import Cli
from tests.support.consumers import Socket, call
from tests.support.patience import eventually
from tests.support.prerequisites import require

pytestmark = pytest.mark.anyio

PAIR = {"PUSHQ_CLUSTER__REPLICAS": "2", "PUSHQ_CLUSTER__MIN_IN_SYNC": "2"}
HOSTS = {
    **PAIR,
    "PUSHQ_CLUSTER__MODEL": "independent_hosts",
    "PUSHQ_CLUSTER__LANES": "2",
    "PUSHQ_STORAGE__BALLAST_BYTES": "1048576",
}
MESSAGES = 10


@pytest.fixture(autouse=True)
def _needs_etcd() -> None:
    require("etcd")


async def publish(http: httpx2.AsyncClient, queue: str, bodies: Iterable[str]) -> httpx2.Response:
    body = {"messages": [{"body": body} for body in bodies]}
    return await http.post(f"/v1/queues/{queue}/messages", json=body)


async def receive(http: httpx2.AsyncClient, queue: str, count: int) -> list[str]:
    """So many, each acked."""
    found: list[str] = []
    while len(found) < count:
        came = (await call(http, "POST", f"{queue}/receive", {"max": count, "wait_ms": 5_000}))["messages"]
        if receipts := [one["receipt"] for one in came]:
            await call(http, "POST", f"{queue}/ack", {"receipts": receipts})
        found += [one["body"] for one in came]
    return sorted(found)


async def listed(http: httpx2.AsyncClient) -> dict[str, dict[str, Any]]:
    answer = await http.get("/v1/queues", params={"limit": 1_000})
    assert answer.status_code == 200, answer.text
    return {item["name"]: item for item in answer.json()["items"]}


async def with_lanes(http: httpx2.AsyncClient) -> list[str]:
    """Those that lie in the further cluster."""
    return [name for name, item in (await listed(http)).items() if "partitions" in item]


async def is_shown(http: httpx2.AsyncClient, cluster: str, nodes: str) -> bool:
    """With these backends, and in the table of all clusters."""
    answer = await http.get("/v1/cluster", params={"cluster": cluster})
    state = answer.json()
    return (
        answer.status_code == 200
        and {node["name"] for node in state["nodes"]} == set(nodes)
        and cluster in {one["name"] for one in state["clusters"]}
    )


async def far_and_near(http: httpx2.AsyncClient) -> tuple[str, str, str, str]:
    """Three queues of the further cluster, where they have lanes, and one of the home cluster, which got the first."""
    names = (f"q{number:03}" for number in itertools.count())

    async def both_are_there() -> bool:
        await call(http, "PUT", next(names), {})
        return len(await with_lanes(http)) > 2

    await eventually(both_are_there, "queues are put into both clusters", look_s=0.1)
    far, gone, more, *_ = await with_lanes(http)
    assert far != "q000"
    return far, gone, more, "q000"


async def test_a_cluster_that_is_killed_whole_stops_its_own_queues_and_loses_nothing(tmp_path: Path) -> None:
    run = anyio.to_thread.run_sync
    home = Backends(tmp_path, ROLE, names="ab", env=PAIR)
    await run(home.__enter__)
    hosts = Backends(tmp_path, ROLE, names="cd", env=HOSTS, beside=home)
    try:
        await run(hosts.__enter__)
        entry = {"name": "hosts", "backends": [one.service for one in hosts.all], "coordinator": hosts.coordinator}
        named = {"PUSHQ_STORE__CLUSTERS": json.dumps([entry]), "PUSHQ_QUEUES__ALLOW_DELETE_OVER_HTTP": "true"}
        server = await run(lambda: gateway(home, tmp_path / "g", env=named))
        try:
            async with patient(server) as http, Socket.open(server) as socket:
                far, gone, more, near = await far_and_near(http)
                await eventually(lambda: is_shown(http, "hosts", "cd"), "its backends are shown")
                bodies = [f"{number:03}" for number in range(MESSAGES)]
                for queue in (near, far):
                    assert (await publish(http, queue, bodies)).status_code == 201
                    assert await receive(http, queue, MESSAGES) == bodies
                assert (await publish(http, far, bodies)).status_code == 201

                for one in hosts.all:
                    await run(one.end, signal.SIGKILL)

                async def is_refused() -> bool:
                    answer = await publish(http, far, ["unsure"])
                    # One that was sent before the line was seen to be dead may have been stored.
                    assert answer.json()["code"] in ("unavailable", "outcome-unknown"), answer.text
                    return answer.status_code == 503 and "'hosts'" in answer.json()["detail"]

                await eventually(is_refused, "its queues are refused")
                refused = await http.get(f"/v1/queues/{far}")
                assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1, refused.text

                async def is_receive_refused() -> bool:
                    answer = await http.post(f"/v1/queues/{far}/receive", json={})
                    return answer.status_code == 503 and int(answer.headers["retry-after"]) >= 1

                # An answer without messages would say that there are none, once no lane is there.
                await eventually(is_receive_refused, "receives are refused")
                assert (await publish(http, near, bodies)).status_code == 201
                assert await receive(http, near, MESSAGES) == bodies
                changed = await http.patch(f"/v1/queues/{gone}", json={"max_attempts": 3}, headers={"if-match": "*"})
                assert changed.status_code == 503, changed.text
                late = await run(lambda: gateway(home, tmp_path / "late", like=server, env=named))
                try:  # one that never met the cluster
                    cli = Cli(late)
                    told = await run(cli, "queue", "delete", gone, "--discard", "--yes", *cli.data)
                    assert f'deleted queue "{gone}" and its messages' in told.err
                    async with patient(late) as other:
                        deleted = await other.delete(f"/v1/queues/{more}?discard=true&confirm={more}")
                        assert (deleted.status_code, deleted.json()["discarded"]) == (200, None), deleted.text
                finally:
                    late.kill()
                assert not {gone, more} & set(await listed(http))
                await call(http, "PUT", "new", {})
                found = await listed(http)
                assert "stats" not in found[far] and found[near]["stats"]["acked_total"] == 2 * MESSAGES
                lines = (await run(Cli(server), "queue", "list")).out.splitlines()
                assert [line.split()[1:3] for line in lines if line.split()[:1] == [far]] == [["work", "away"]]
                assert (await http.get("/metrics", headers=server.headers)).status_code == 200
                subscribed = await socket.ask(type="subscribe", queue=far, credit=2 * MESSAGES)
                assert subscribed["type"] == "ok", subscribed

                for one in hosts.all:
                    one.begin()
                for one in hosts.all:
                    await run(one.wait_ready)
                came: set[str] = set()
                while not came >= set(bodies):
                    message = (await socket.frame("message"))["message"]
                    came.add(message["body"])
                    await socket.ask(type="ack", queue=far, receipts=[message["receipt"]])
                assert came <= {*bodies, "unsure"}

            await run(server.kill)
            await run(server.start)
            async with patient(server) as http:

                async def all_are_found() -> bool:
                    found = await listed(http)
                    return {far, near, "new"} <= set(found) and all("stats" in one for one in found.values())

                await eventually(all_are_found, "the queues of both")
                lanes = await with_lanes(http)
                assert far in lanes and not {gone, more, near, "new"} & set(lanes)
                assert (await publish(http, far, bodies)).status_code == 201
                assert set(await receive(http, far, MESSAGES)) <= {*bodies, "unsure"}
        finally:
            server.kill()
    finally:
        await run(lambda: hosts.__exit__(None, None, None))
        await run(lambda: home.__exit__(None, None, None))
