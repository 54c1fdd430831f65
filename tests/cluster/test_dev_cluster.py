"""`pushq dev-cluster`: up, used, its leader killed, mended and ended, all with real processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from gateway.dev_cluster.state import load
from tests.support.dev_cluster import DevCluster
from tests.support.patience import until
from tests.support.prerequisites import require

FIRST_QUEUE = 1
"""The shard with the definitions comes last of those that have as many queues."""
SERVICE_S_MAX = 60.0
"""Far above the seconds that are promised: these machines are busy."""


def leader(cluster: DevCluster) -> str | None:
    """Of the shard where the first queue lies."""
    return next((one["leader"] for one in cluster.leaders() if one["shard"] == FIRST_QUEUE), None)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DevCluster]:
    require("etcd")
    require("haproxy")
    made = DevCluster(tmp_path / "cluster")
    yield made
    if made.folder.exists():
        made("down")


def test_a_dev_cluster_survives_its_leader_and_ends_whole(cluster: DevCluster) -> None:
    started = cluster("up")
    roles = [part["role"] for part in started["parts"]]
    assert roles == ["etcd", "backend", "backend", "backend", "gateway", "gateway", "haproxy"]
    assert all(part["alive"] for part in started["parts"])
    url, key = started["url"], Path(started["key_file"]).read_text().strip()
    headers = {"Authorization": f"Bearer {key}"}
    with httpx2.Client(base_url=url, headers=headers, timeout=20) as http:

        def publish(body: str) -> bool:
            answer = http.post("/v1/queues/orders/messages", json={"messages": [{"id": body, "body": body}]})
            return answer.status_code == 201

        def receive() -> str | None:
            answer = http.post("/v1/queues/orders/receive", json={"max": 1, "wait_ms": 500})
            if answer.status_code != 200 or not answer.json()["messages"]:
                return None
            [message] = answer.json()["messages"]
            acked = http.post("/v1/queues/orders/ack", json={"receipts": [message["receipt"]]})
            return str(message["body"]) if acked.status_code == 200 else None

        until(lambda: http.put("/v1/queues/orders").status_code in (200, 201), "a queue is made")
        until(lambda: publish("before"), "a message is confirmed")
        until(lambda: receive() == "before", "it is consumed")
        signed_in = http.post("/console/login", data={"credential": key, "next": "/console"}, headers={"Origin": url})
        assert signed_in.status_code == 303, signed_in.text
        looks = [http.get("/console/queues").status_code for _ in range(4)]
        assert looks == [200] * 4, "the balancer sends a browser where it signed in"
        for gateway in (part for part in started["parts"] if part["role"] == "gateway"):
            state = httpx2.get(f"http://{gateway['address']}/v1/cluster", headers=headers)
            assert [node["name"] for node in state.json()["nodes"]] == ["backend1", "backend2", "backend3"]

        until(lambda: all(len(one["in_sync"]) == 3 for one in cluster.leaders()), "all are in sync")
        led = leader(cluster)
        assert led is not None
        os.kill(cluster.pid(led), signal.SIGKILL)
        took = until(lambda: publish("after"), "a message is confirmed again", within_s=SERVICE_S_MAX)
        print(f"confirmed again after {took:.1f} s")
        until(lambda: receive() == "after", "it is consumed")
        until(lambda: leader(cluster) not in (None, led), "another one is shown as leader")
        assert [part["name"] for part in cluster("status")["parts"] if not part["alive"]] == [led]

        mended = cluster("up")
        pids = {part["name"]: part["pid"] for part in mended["parts"]}
        assert all(part["alive"] for part in mended["parts"])
        changed = [part["name"] for part in started["parts"] if part["pid"] != pids[part["name"]]]
        assert changed == [led]

    written = load(cluster.folder)
    assert written is not None
    assert cluster("down") == {"ended": 7}
    assert not [part.name for part in written.parts if part.is_alive]
    assert not any(part["alive"] for part in cluster("status")["parts"])
    assert cluster("down") == {"ended": 0}
