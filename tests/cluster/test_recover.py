"""What an async leader confirmed alone: it dies, another one leads, it comes back, and operators bring it back."""

from __future__ import annotations

import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import pytest

from backend_store.core.replication.limits import FETCH_WAIT_MS
from tests.cluster.test_cluster import gateway, leader_of
from tests.support.backends import ROLE, Backend, Backends
from tests.support.cli import Cli
from tests.support.patience import until
from tests.support.prerequisites import require
from tests.support.server import PushqServer

WAIT_S = 60.0
EARLY, ALONE, ACKED = 5, 30, 2
"""Messages that all have, that one confirms alone, and of those the ones that are acked there."""


@pytest.fixture(autouse=True)
def _needs_etcd() -> None:
    require("etcd")


def _published(http: httpx2.Client, queue: str, *bodies: str) -> list[str]:
    """Their ids, once they are confirmed."""
    messages = [{"body": body} for body in bodies]
    found: list[str] = []

    def is_confirmed() -> bool:
        answer = http.post(
            f"/v1/queues/{queue}/messages", json={"messages": messages}, headers={"idempotency-key": bodies[0]}
        )
        if answer.status_code == 201:
            found[:] = [one["id"] for one in answer.json()["messages"]]
        return answer.status_code == 201

    until(is_confirmed, f"{bodies} are confirmed")
    return found


def _taken(http: httpx2.Client, queue: str, most: int, *, wait_ms: int = 0) -> list[str]:
    """Bodies of messages that were received and acked."""
    answer = http.post(f"/v1/queues/{queue}/receive", json={"max": most, "wait_ms": wait_ms})
    if answer.status_code != 200:
        return []
    held = answer.json()["messages"]
    if held:
        http.post(f"/v1/queues/{queue}/ack", json={"receipts": [one["receipt"] for one in held]}).raise_for_status()
    return [one["body"] for one in held]


def _counted(seen: Counter[str], more: list[str]) -> Counter[str]:
    seen.update(more)
    return seen


def _all_copied(cluster: Backends, leader: Backend) -> None:
    def is_so() -> bool:
        shards = [one.health().get("shards", [{}])[0] for one in cluster.all]
        return len({shard.get("end") for shard in shards}) == 1 and shards[0].get("end", 0) > 0

    until(is_so, "all have all")


def _leads_another(cluster: Backends, before: Backend) -> None:
    until(lambda: leader_of(cluster, 0) is not before, "another one leads")


def test_what_a_dead_leader_confirmed_alone_is_shown_and_published_again_once(tmp_path: Path) -> None:
    with Backends(tmp_path, ROLE, env={"PUSHQ_CLUSTER__REPLICATION": "async"}) as cluster:
        env = {"PUSHQ_CLUSTER__COORDINATOR": cluster.coordinator}
        server = gateway(cluster, tmp_path / "g0", env=env)
        second: PushqServer | None = None
        try:
            with httpx2.Client(base_url=server.url, headers=server.headers, timeout=WAIT_S) as http:
                until(lambda: http.put("/v1/queues/q", json={"encrypted": True}).status_code in (200, 201), "q is made")
                assert http.put("/v1/queues/unwanted").status_code in (200, 201)
                early = [f"early-{n}" for n in range(EARLY)]
                _published(http, "q", *early)
                assert sorted(_taken(http, "q", EARLY, wait_ms=20_000)) == sorted(early)
                cluster.all_in_sync()
                leader = leader_of(cluster, 0)
                _all_copied(cluster, leader)
                others = [one for one in cluster.all if one is not leader]
                for one in others:
                    one.send(signal.SIGSTOP)
                # What they had asked for is answered without a message, so that the leader alone has them.
                time.sleep(2 * FETCH_WAIT_MS / 1000)
                alone = {f"alone-{n}": _published(http, "q", f"alone-{n}")[0] for n in range(ALONE)}
                acked = _taken(http, "q", ACKED, wait_ms=20_000)
                _published(http, "unwanted", "nobody needs this")
                leader.end(signal.SIGKILL)
                for one in others:
                    one.send(signal.SIGCONT)
                _leads_another(cluster, leader)
                _published(http, "q", "after")
                there: Counter[str] = Counter()
                until(lambda: "after" in _counted(there, _taken(http, "q", 1000)), "the next leader serves")

                cli = Cli(server)
                nothing = cli("recover", "list", "--json").json()
                assert nothing == {"pieces": [], "unreachable": [leader.name]}
                leader.start()
                until(lambda: len(_pieces(http)) == 2, "its tail is in quarantine")
                found = cli("recover", "list", "--json").json()
                piece, unwanted = sorted(found["pieces"], key=lambda one: str(one["queue"]))
                lacked = {body for body in alone if body not in there and body not in acked}
                assert piece["messages"] == len(lacked) > 0 and piece["in_doubt"] == 0
                assert (piece["queue"], piece["backends"], found["unreachable"]) == ("q", [leader.name], [])
                shown = cli("recover", "show", piece["name"], "--json").json()
                assert {one["id"] for one in shown["items"]} == {alone[body] for body in lacked}
                listed = cli("recover", "list").out
                assert piece["name"] in listed and "default/q" in listed and str(len(lacked)) in listed
                until(lambda: _told(http, leader.name), "the cluster's events tell of it")

                dry = cli("recover", "publish", piece["name"], "--dry-run", "--json").json()
                assert (dry["published"], dry["left"]) == (len(lacked), len(lacked))
                wrong = http.post(f"/v1/cluster/recovery/{piece['name']}/drop", json={"messages": 1 + len(lacked)})
                assert wrong.status_code == 409

                assert "would drop 1 confirmed" in cli("recover", "drop", unwanted["name"], "--dry-run").err
                assert cli.any("recover", "drop", unwanted["name"]).code != 0, "nobody has confirmed it"
                cli("recover", "drop", unwanted["name"], "--yes")
                assert [one["queue"] for one in cli("recover", "list", "--json").json()["pieces"]] == ["q"]

                # A gateway that is killed while it publishes: the next run doubles nothing.
                with cli.running("recover", "publish", piece["name"]) as running:
                    _wait_for_first(http, "q")
                    server.kill()
                    running.wait()
                second = gateway(cluster, tmp_path / "g1", like=server, env=env)
            with httpx2.Client(base_url=second.url, headers=second.headers, timeout=WAIT_S) as http:
                again = Cli(second)
                until(lambda: http.get("/v1/cluster").status_code == 200, "it sees the cluster")
                if again("recover", "list", "--json").json()["pieces"]:
                    rest = again("recover", "publish", piece["name"], "--json").json()
                    print(f"killed after {rest['already_there']} of {len(lacked)}")
                    assert rest["published"] + rest["already_there"] == len(lacked)
                assert again("recover", "list").err.strip() == "quarantine is empty"
                assert again.any("recover", "publish", piece["name"]).code != 0
                back: Counter[str] = Counter()
                until(lambda: lacked <= _counted(back, _taken(http, "q", 1000)).keys(), "all come back")
                assert _counted(back, _taken(http, "q", 1000, wait_ms=1000)) == Counter(lacked)
        finally:
            server.kill()
            if second is not None:
                second.kill()


def _wait_for_first(http: httpx2.Client, queue: str) -> None:
    """Returns as soon as something is in the queue: the others are still being published."""
    deadline = time.monotonic() + WAIT_S
    while http.get(f"/v1/queues/{queue}").json()["stats"]["ready"] == 0:
        assert time.monotonic() < deadline, "nothing was published"


def _pieces(http: httpx2.Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = http.get("/v1/cluster/recovery").raise_for_status().json()["pieces"]
    return found


def _told(http: httpx2.Client, node: str) -> bool:
    events: list[dict[str, Any]] = http.get("/v1/cluster").json()["events"]
    return any(one["kind"] == "quarantined" and one["node"] == node for one in events)
