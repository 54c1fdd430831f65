"""A redrive while the leader of three backends, or one of three independent hosts, is killed: it goes on at the next
leader, or at who adopts the lane, and moves every message once."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.cluster.test_cluster import gateway, leader_of
from tests.cluster.test_independent_hosts import HOSTS
from tests.support.backends import ROLE, Backends
from tests.support.patience import until
from tests.support.prerequisites import require

WAIT_S = 120.0
MESSAGES = 300
RATE = 60


@pytest.fixture(autouse=True)
def _needs_etcd() -> None:
    require("etcd")


def _died(http: httpx2.Client, queue: str) -> None:
    messages = [{"body": n} for n in range(MESSAGES)]
    assert http.post(f"/v1/queues/{queue}/messages", json={"messages": messages}).status_code == 201
    left = MESSAGES
    while left:
        held = _received(http, queue)
        answer = http.post(f"/v1/queues/{queue}/nack", json={"receipts": [one["receipt"] for one in held]})
        left -= sum(row["ok"] for row in answer.raise_for_status().json()["results"])


def _received(http: httpx2.Client, queue: str) -> list[dict[str, Any]]:
    answer = http.post(f"/v1/queues/{queue}/receive", json={"max": 1000, "wait_ms": 20_000})
    found: list[dict[str, Any]] = answer.raise_for_status().json()["messages"]
    return found


@pytest.mark.parametrize("model", [{}, HOSTS], ids=["leaders", "hosts"])
def test_a_redrive_goes_on_at_the_next_leader_and_moves_every_message_once(
    tmp_path: Path, model: dict[str, str]
) -> None:
    with Backends(tmp_path, ROLE, env=model) as cluster:
        server = gateway(cluster, tmp_path / "g0")
        try:
            with httpx2.Client(base_url=server.url, headers=server.headers, timeout=WAIT_S) as http:
                assert http.put("/v1/queues/q", json={"max_attempts": 1}).status_code == 201
                _died(http, "q")
                cluster.all_in_sync()
                started = http.post("/v1/queues/q/redrives", json={"rate_per_s": RATE})
                assert started.status_code == 202, started.text
                path = started.headers["location"]

                def job() -> dict[str, Any]:
                    found: dict[str, Any] = http.get(path).json()
                    return found

                until(lambda: job()["done"] >= RATE, within_s=WAIT_S)
                leader_of(cluster, 0).end(signal.SIGKILL)
                until(lambda: job().get("state", "running") != "running", within_s=WAIT_S)
                found = job()
                assert (found["state"], found["done"], found["error"]) == ("done", MESSAGES, None)
                seen: list[int] = []
                while len(seen) < MESSAGES:
                    held = _received(http, "q")
                    assert held, f"{len(seen)} of {MESSAGES} came back"
                    seen += [one["body"] for one in held]
                    http.post("/v1/queues/q/ack", json={"receipts": [one["receipt"] for one in held]})
                assert sorted(seen) == list(range(MESSAGES))
        finally:
            server.kill()
