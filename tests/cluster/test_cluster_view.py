"""`/v1/cluster` and `pushq cluster`: three backends seen from a gateway, drained, killed, and etcd gone."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.backends import ROLE, Backends
from tests.support.cli import Cli
from tests.support.patience import until
from tests.support.prerequisites import require
from tests.support.server import PushqServer


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Backends]:
    require("etcd")
    with Backends(tmp_path, ROLE) as backends:
        yield backends


def test_operators_see_and_drain_the_cluster(cluster: Backends, tmp_path: Path) -> None:
    env = {"PUSHQ_CLUSTER__COORDINATOR": cluster.coordinator}
    with PushqServer(tmp_path / "g", env=env) as server, httpx2.Client(base_url=server.url) as http:

        def state() -> dict[str, Any]:
            answer = http.get("/v1/cluster", headers=server.headers)
            return answer.json() if answer.status_code == 200 else {"nodes": [], "shards": []}

        def leader() -> str | None:
            shards = [shard for shard in state()["shards"] if shard["serving"]]
            return shards[0]["leader"] if shards else None

        def cli(*arguments: str) -> Any:
            return Cli(server)("cluster", *arguments, "--json").json()

        until(lambda: leader() is not None and len(state()["shards"][0]["in_sync"]) == 3, "all are in sync")
        found = cli("status")
        assert [(node["name"], node["zone"], node["alive"], node["draining"]) for node in found["nodes"]] == [
            (name, f"zone-{name}", True, False) for name in "abc"
        ]
        assert {node["address"] for node in found["nodes"]} == {one.service for one in cluster.all}
        assert found["manager"] in {"a", "b", "c"} and found["age_ms"] <= 5000
        [shard] = found["shards"]
        assert sorted(shard["wanted"]) == ["a", "b", "c"] and all(node["copies"] == 1 for node in found["nodes"])
        assert [event["kind"] for event in found["events"]].count("joined") == 3
        until(lambda: set(state()["shards"][0]["lag"]) == {"a", "b", "c"} - {shard["leader"]}, "lag is reported")
        until(lambda: all(node["disk_free_bytes"] for node in state()["nodes"]), "disks are reported")
        assert sorted(shard["replicas"]) == ["a", "b", "c"] and shard["min_in_sync"] == 2 and shard["mode"] == "sync"

        origin = {"origin": server.url}
        with httpx2.Client(base_url=server.url, headers=origin) as browser:
            assert browser.post("/console/login", data={"credential": server.key}).status_code == 303
            page = browser.get("/console/node")
            assert page.status_code == 200 and "<caption>Backends</caption>" in page.text
            assert "<caption>Shards</caption>" in page.text and ", ".join(shard["replicas"]) in page.text
            assert "<caption>Events</caption>" in page.text and "is elected leader of shard 0" in page.text

        led = shard["leader"]
        assert cli("drain", led, "--wait", "20")["draining"] is True
        until(lambda: leader() not in (None, led), "another leads")
        assert [node["name"] for node in state()["nodes"] if node["draining"]] == [led]
        until(
            lambda: {"draining", "lead-moved"} <= {event["kind"] for event in state().get("events", [])},
            "the manager has told it",
        )
        assert cli("drain", led, "--undo")["draining"] is False
        until(lambda: not any(node["draining"] for node in state()["nodes"]), "nobody drains")

        taken = http.put("/v1/cluster/nodes/a/removal", headers=server.headers).json()
        assert taken["removing"] is True and taken["copies"] == 1, "nobody can take its copy"
        assert http.delete("/v1/cluster/nodes/a/removal", headers=server.headers).json()["removing"] is False
        dry = http.post("/v1/cluster/rebalance", headers=server.headers, json={"dry_run": True})
        assert dry.json() == {"moves": [], "started": False}, "three copies on three backends"
        assert http.post("/v1/cluster/rebalance", headers=server.headers, json={}).json()["started"] is True

        unknown = http.put("/v1/cluster/nodes/nobody/drain", headers=server.headers)
        assert unknown.status_code == 404 and "nobody" in unknown.json()["detail"]
        made = http.post("/v1/keys", headers=server.headers, json={"name": "admin", "scopes": ["admin"]}).json()
        refused = http.get("/v1/cluster", headers={"Authorization": f"Bearer {made['key']}"})
        assert refused.status_code == 403 and refused.json()["code"] == "forbidden"

        cluster.all[0].end(signal.SIGKILL)
        until(lambda: [n["name"] for n in state()["nodes"] if not n["alive"]] == ["a"], "the dead one is shown")
        until(lambda: leader() in ("b", "c"), "another leads")

        cluster.stop_coordinator()
        until(lambda: http.get("/v1/cluster", headers=server.headers).status_code == 503, "it is said to be unknown")
        assert http.get("/readyz").status_code == 200
        with httpx2.Client(base_url=server.url, headers=origin) as browser:
            browser.post("/console/login", data={"credential": server.key})
            page = browser.get("/console/node")
            assert page.status_code == 200 and "coordinator is not responding" in page.text
