"""Alerts of a cluster: two gateways, one of which tells. A follower stops, then the one that tells.

Of independent hosts the one with the definitions is killed, so that the duty is another host's to give, and the gateway
that tells stands still for longer than it may.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.cluster.test_cluster import gateway, leader_of
from tests.cluster.test_independent_hosts import HOSTS, LANES
from tests.support.backends import ROLE, Backends
from tests.support.cli import Cli
from tests.support.patience import until
from tests.support.prerequisites import require
from tests.support.receiver import Receiver
from tests.support.server import PushqServer

LOOKS_S = 5.0
"""Two looks of each gateway: time enough to tell again."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Backends]:
    require("etcd")
    with Backends(tmp_path, ROLE) as backends:
        yield backends


class Asked:
    """A gateway, asked over HTTP."""

    def __init__(self, server: PushqServer) -> None:
        self.server = server

    def _answer(self, method: str, path: str, body: Any = None) -> httpx2.Response:
        with httpx2.Client(base_url=self.server.url, headers=self.server.headers, trust_env=False, timeout=30) as http:
            answer = http.request(method, path, json=body)
        assert answer.is_success, answer.text
        return answer

    def call(self, method: str, path: str, **body: Any) -> Any:
        return self._answer(method, path, body or None).json()

    def text(self, path: str) -> str:
        return self._answer("GET", path).text

    def tells(self) -> bool:
        return "\npushq_alert_teller 1.0\n" in self.text("/metrics")

    def alerts(self, rule: str) -> list[tuple[str, str, str]]:
        items = self.call("GET", f"/v1/alerts?rule={rule}")["items"]
        return [(one["id"], one["subject"], one["state"]) for one in items]

    def history(self) -> list[str]:
        return [one["state"] for one in self.call("GET", "/v1/alerts/history")["items"]]


def test_one_gateway_tells_and_another_goes_on_when_it_is_killed(cluster: Backends, tmp_path: Path) -> None:
    env = {"PUSHQ_CLUSTER__COORDINATOR": cluster.coordinator, "PUSHQ_ALERTS__WEBHOOK_NETWORKS": "127.0.0.0/8"}
    gateways: list[PushqServer] = []
    cluster.all_in_sync()
    with Receiver(tmp_path / "receiver") as receiver:
        try:
            gateways.append(gateway(cluster, tmp_path / "g0", env=env))
            gateways.append(gateway(cluster, tmp_path / "g1", env=env, like=gateways[0]))
            one, two = (Asked(each) for each in gateways)
            hook = one.call("POST", "/v1/alert-receivers", name="ops", url=receiver.url)
            receiver.knows(hook["secret"])
            rule = one.call(
                "POST", "/v1/alert-rules", name="copies", kind="out_of_sync", limit=0, receivers=[hook["id"]]
            )["id"]
            node = one.call("POST", "/v1/alert-rules", name="memory", kind="memory_used_percent", limit=0.000001)["id"]
            until(lambda: [one.tells(), two.tells()].count(True) == 1, "one of them tells")
            teller, other = (one, two) if one.tells() else (two, one)
            # What only a gateway itself knows is asked by the one that tells, and there is an alert for each.
            until(lambda: len(other.alerts(node)) == 2, "both processes are seen")
            assert len({subject for _, subject, _ in teller.alerts(node)}) == 2

            follower = next(each for each in cluster.all if each is not leader_of(cluster, 0))
            follower.end(signal.SIGKILL)
            until(lambda: len(receiver.told) == 1, "the receiver is told")
            until(lambda: teller.alerts(rule) == other.alerts(rule) != [], "both show the same alert")
            ((alert, subject, state),) = other.alerts(rule)
            assert (subject, state) == ("shard-0", "firing")
            time.sleep(LOOKS_S)
            (told,) = receiver.told
            assert told["genuine"] and told["body"]["type"] == "alert.firing" and told["body"]["data"]["id"] == alert
            assert other.history().count("firing") == teller.history().count("firing") == 3
            assert "shard-0" in Cli(other.server)("alert", "list").out
            # What the exported rule looks at is what the leader says.
            assert "pushq_shard_wanted_replicas - pushq_shard_in_sync" in other.text("/v1/alert-rules/prometheus")
            said = httpx2.get(f"{leader_of(cluster, 0).http}/metrics", trust_env=False).text
            for series in ('wanted_replicas{shard="0"} 3', 'in_sync{shard="0"} 2', 'lag_entries{shard="0"}'):
                assert f"\npushq_shard_{series}" in said

            teller.server.kill()
            until(other.tells, "the other one tells", within_s=30)
            assert [(a, s) for a, _, s in other.alerts(rule)] == [(alert, "firing")], "it is the same alert"
            follower.start()
            until(lambda: len({one["id"] for one in receiver.told}) == 2, "its end is told")
            time.sleep(LOOKS_S)
            ended = [one for one in receiver.told if one["body"]["type"] == "alert.resolved"]
            assert len(ended) == 1 and ended[0]["genuine"] and ended[0]["body"]["data"]["id"] == alert
            assert len({one["id"] for one in receiver.told}) == 2, "a repeat would have the same id"
            assert "resolved" in other.history()
        finally:
            for each in gateways:
                each.kill()


def test_at_independent_hosts_nothing_is_told_twice_when_the_host_dies_and_the_teller_stands_still(
    tmp_path: Path,
) -> None:
    require("etcd")
    gateways: list[PushqServer] = []
    with Backends(tmp_path, ROLE, names="abcd", env=HOSTS) as cluster, Receiver(tmp_path / "receiver") as receiver:
        owners = [leader_of(cluster, lane) for lane in range(LANES)]
        env = {"PUSHQ_CLUSTER__COORDINATOR": cluster.coordinator, "PUSHQ_ALERTS__WEBHOOK_NETWORKS": "127.0.0.0/8"}
        try:
            gateways.append(gateway(cluster, tmp_path / "g0", env=env))
            gateways.append(gateway(cluster, tmp_path / "g1", env=env, like=gateways[0]))
            one, two = (Asked(each) for each in gateways)
            hook = one.call("POST", "/v1/alert-receivers", name="ops", url=receiver.url)
            receiver.knows(hook["secret"])
            rule = one.call(
                "POST", "/v1/alert-rules", name="copies", kind="out_of_sync", limit=0, receivers=[hook["id"]]
            )["id"]
            until(lambda: [one.tells(), two.tells()].count(True) == 1, "one of them tells")
            teller, other = (one, two) if one.tells() else (two, one)

            owners[0].end(signal.SIGKILL)
            until(lambda: "shard-0" in {subject for _, subject, _ in teller.alerts(rule)}, "the lane lacks a copy")
            leader_of(cluster, 0)
            time.sleep(LOOKS_S)
            until(lambda: teller.alerts(rule) == other.alerts(rule) != [], "both show the same alerts")
            assert [teller.tells(), other.tells()] == [True, False], "whoever gives the duty, it stays"
            fired = {alert for alert, _, _ in teller.alerts(rule)}

            os.kill(teller.server.pid, signal.SIGSTOP)
            try:
                until(other.tells, "the other one tells", within_s=60)
                owners[0].start()
                until(
                    lambda: {state for _, _, state in other.alerts(rule)} == {"resolved"}, "they are over", within_s=60
                )
            finally:
                os.kill(teller.server.pid, signal.SIGCONT)
            until(lambda: not teller.tells(), "the first one knows")
            time.sleep(LOOKS_S)
            assert other.tells() and sorted(teller.alerts(rule)) == sorted(other.alerts(rule))
            told = Counter((each["body"]["data"]["id"], each["body"]["type"]) for each in receiver.told)
            assert set(told.values()) == {1} and {alert for alert, _ in told} >= fired
            assert Counter(type_ for _, type_ in told) == {
                "alert.firing": len(told) // 2,
                "alert.resolved": len(told) // 2,
            }
            assert teller.history() == other.history()
        finally:
            for each in gateways:
                each.kill()
