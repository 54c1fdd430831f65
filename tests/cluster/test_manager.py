"""`pushq manager` as people run it: a cluster is full, servers are asked for, a manager is killed."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2

from tests.cluster.test_cluster import gateway
from tests.support.backends import ROLE, Backends
from tests.support.cli import Cli
from tests.support.manager import Manager
from tests.support.patience import until
from tests.support.prerequisites import require
from tests.support.server import PushqServer
from tests.support.storage import small_disk

_ROOT = Path(__file__).resolve().parents[2]
PAGE = _ROOT / "docs" / "how-to" / "manage-clusters.md"
DISK_MIB = 64
HOT, COOL = 0.85, 0.5
ALONE = {"PUSHQ_CLUSTER__REPLICAS": "1", "PUSHQ_CLUSTER__MIN_IN_SYNC": "1"}
PROVISIONER = """#!/bin/sh
cat >> {folder}/calls
echo >> {folder}/calls
while test -e {folder}/calls && ! test -e {folder}/provided; do sleep 0.05; done
"""
"""Says that it was called, and takes as long as a test wants, or has its folder: nobody waits for it whose manager was
killed."""


def series(text: str, kind: str) -> set[str]:
    """Names that a page of metrics or of the documentation has."""
    return set(re.findall(rf"\bpushq_{kind}_\w+", text))


def fill(disk: Path, part: float) -> None:
    """Have so much of the file system in use."""
    (disk / "filler").unlink(missing_ok=True)
    found = os.statvfs(disk)
    used = (found.f_blocks - found.f_bfree) * found.f_frsize
    (disk / "filler").write_bytes(bytes(max(0, round(part * found.f_blocks * found.f_frsize) - used)))


class Clusters:
    """What a gateway says of the clusters."""

    def __init__(self, server: PushqServer) -> None:
        self.server = server

    def state(self) -> dict[str, Any]:
        answer = httpx2.get(f"{self.server.url}/v1/cluster", headers=self.server.headers, trust_env=False)
        assert answer.status_code in (200, 503), answer.text
        found: dict[str, Any] = answer.json()
        return found if answer.status_code == 200 else {"clusters": [], "managers": {"holder": None}}

    def of(self, name: str) -> dict[str, Any]:
        return next((one for one in self.state()["clusters"] if one["name"] == name), {"state": None})

    @property
    def holder(self) -> str | None:
        found: str | None = self.state()["managers"]["holder"]
        return found


def test_servers_for_a_full_cluster_are_asked_for_once_also_when_the_manager_that_asks_is_killed(
    tmp_path: Path,
) -> None:
    require("etcd")
    program = tmp_path / "provision"
    program.write_text(PROVISIONER.format(folder=tmp_path))
    program.chmod(0o700)
    with small_disk(tmp_path / "disk", DISK_MIB) as disk:
        env = {**ALONE, "PUSHQ_DATA": str(disk / "a")}
        with Backends(tmp_path, ROLE, names="a", env=env) as cluster:
            served = {"PUSHQ_CLUSTER__COORDINATOR": cluster.coordinator}
            ways = {**cluster.gateway_env("managers"), "PUSHQ_MANAGER__PROVISIONER": f"{program} --secret s3cret"}
            soon = {f"PUSHQ_MANAGER__{name}": "1" for name in ("NODES_MIN", "GROW_AFTER_S", "PAUSE_S")}
            server = gateway(cluster, tmp_path / "g", env=served)
            try:
                _managed(Clusters(server), tmp_path, disk, {**ways, **soon})
            finally:
                (tmp_path / "provided").touch()
                server.kill()


def _managed(clusters: Clusters, folder: Path, disk: Path, env: Mapping[str, str]) -> None:
    until(lambda: clusters.of("main")["state"] == "silent", "nobody has said anything of the cluster")
    assert clusters.holder is None
    with Manager("one", folder, env) as one, Manager("two", folder, env) as two:
        until(lambda: clusters.of("main")["state"] == "ok", "the cluster is heard of")
        main = clusters.of("main")
        assert (main["backends"], main["is_home"], main["model"]) == (1, True, "leader_follower")
        acting, other = (one, two) if clusters.holder == "one" else (two, one)
        assert json.loads(acting.page("/health"))["is_manager"] and not json.loads(other.page("/health"))["is_manager"]
        assert "\npushq_manager_active 1.0\n" in acting.page("/metrics")
        assert series(acting.page("/metrics"), "manager") == series(PAGE.read_text(), "manager")

        fill(disk, HOT)
        until(lambda: _calls(folder), "the provisioner is asked, and has read for what")
        acting.end(signal.SIGKILL)
        until(lambda: clusters.of("main")["state"] == "hot", "it is hot")
        main = clusters.of("main")
        assert main["fullest"] == "disk" and main["utilisation"] >= 0.8
        assert "a is fullest" in main["detail"] and "s3cret" not in acting.log
        until(lambda: clusters.holder == other.name, "the other one manages")
        heard = clusters.of("main")["reported_at"]
        until(lambda: clusters.of("main")["reported_at"] > heard, "and looks again, at a cluster that is hot")
        assert clusters.of("main")["state"] == "hot"
        assert [(call["cluster"], call["action"], call["nodes"], call["wanted"]) for call in _calls(folder)] == [
            ("main", "add", 1, 2)
        ], "the call that is under way is the only one"

        fill(disk, COOL)
        until(lambda: clusters.of("main")["state"] == "ok", "it is cool")
        _shown(clusters, by=other.name)
        assert other.end(signal.SIGTERM) == 0
        assert "gives the duty up" in other.log


def _calls(folder: Path) -> list[dict[str, Any]]:
    """What the provisioner was asked for."""
    file = folder / "calls"
    return [json.loads(line) for line in file.read_text().splitlines() if line] if file.exists() else []


def _shown(clusters: Clusters, *, by: str) -> None:
    """In events, by the command line and as metrics."""
    events = clusters.state()["manager_events"]
    assert [event["number"] for event in events] == list(range(1, len(events) + 1))
    assert [event["kind"] for event in events if event["kind"] in ("manager", "resize")] == [
        "manager",
        "resize",
        "manager",
    ]
    assert (events[-1]["kind"], events[-1]["manager"]) == ("cool", by)
    cli = Cli(clusters.server)
    shown = cli("cluster", "status", "--events", "--cluster", "main")
    assert "main" in shown.out and "cool" in shown.out
    assert json.loads(cli("cluster", "plan").out) == {"version": 1, "moves": [], "partitions": []}
    with httpx2.Client(base_url=clusters.server.url, headers=clusters.server.headers, trust_env=False) as http:
        assert "the clusters are main" in http.get("/v1/cluster?cluster=us").json()["detail"]
        metrics = http.get("/metrics").text
        http.headers["origin"] = clusters.server.url
        assert http.post("/console/login", data={"credential": clusters.server.key}).status_code == 303
        page = http.get("/console/node").text
    assert (
        "<caption>Clusters</caption>" in page and "<caption>Decisions</caption>" in page and "leader follower" in page
    )
    assert series(metrics, "cluster") == series(PAGE.read_text(), "cluster")
    assert '\npushq_cluster_takes_queues{cluster="main"} 1.0\n' in metrics
    assert '\npushq_cluster_utilisation_ratio{cluster="main"} 0.' in metrics
