"""Usage of a cluster whose leader is killed in the middle: the files of all backends together have every message once,
and `/v1/usage` says the same.
"""

from __future__ import annotations

import signal
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gateway.usage.collect import collect
from gateway.usage.files import found, read
from tests.cluster.test_cluster import gateway, leader_of
from tests.support.backends import ROLE, Backends
from tests.support.patience import until
from tests.support.prerequisites import require
from tests.support.usage import ledger_of

SHARDS = 2
LANES = 3
QUEUES = ("q0", "q1")
"""One comes to each shard; where hosts are independent, each lies in all lanes."""
PERIOD = {"PUSHQ_USAGE__PERIOD_SECONDS": "1"}
HOSTS = {"PUSHQ_CLUSTER__MODEL": "independent_hosts", "PUSHQ_CLUSTER__LANES": str(LANES)}
BATCH = 20
BATCHES = 4
LEFT = 7
"""Messages that stay."""
WAIT_S = 60.0


@pytest.fixture(autouse=True)
def _needs_etcd() -> None:
    require("etcd")


def published(http: httpx2.Client, queue: str, first: int, count: int) -> None:
    """Tried until it is confirmed; the ids see to it that each is stored once."""
    messages = [{"body": n, "id": f"m{n}"} for n in range(first, first + count)]

    def are_taken() -> bool:
        answer = http.post(f"/v1/queues/{queue}/messages", json={"messages": messages})
        return answer.status_code == 201 and all(one.get("error") is None for one in answer.json()["messages"])

    until(are_taken, f"{queue} takes {first} and the next ones", within_s=WAIT_S)


def emptied(http: httpx2.Client, queue: str) -> None:
    """What a leader that died had leased comes again."""

    def is_empty() -> bool:
        answer = http.post(f"/v1/queues/{queue}/receive", json={"max": 1000, "wait_ms": 200})
        if answer.status_code == 200 and (held := answer.json()["messages"]):
            http.post(f"/v1/queues/{queue}/ack", json={"receipts": [one["receipt"] for one in held]})
        stats = http.get(f"/v1/queues/{queue}")
        if stats.status_code != 200:
            return False
        return not any(stats.json()["stats"][kind] for kind in ("ready", "in_flight", "delayed"))

    until(is_empty, f"{queue} is empty", within_s=WAIT_S)


def usage_of(http: httpx2.Client, first: date, last: date) -> dict[str, tuple[int, int]]:
    """Of each queue, what was published and delivered."""
    answer = http.get("/v1/usage", params={"from": first.isoformat(), "to": last.isoformat()}).raise_for_status()
    items: list[dict[str, Any]] = answer.json()["items"]
    return {one["queue"]: (one["published"], one["delivered"]) for one in items if one["published"]}


def today() -> date:
    return datetime.fromtimestamp(time.time(), UTC).date()


@pytest.mark.parametrize(("shards", "settings", "logs"), [(SHARDS, {}, 2), (LANES, HOSTS, 2 * LANES)])
def test_the_files_of_all_backends_have_every_message_once(
    tmp_path: Path, shards: int, settings: dict[str, str], logs: int
) -> None:
    counted = counts_of_a_killed_leader(tmp_path, shards, settings)
    for queue, (came, went) in counted.items():
        counts, held, report = ledger_of(tmp_path / "all", queue)
        assert not report.broken, report.broken
        assert (counts["published"], counts["settled"], held) == (came, went, LEFT)
        assert counts.keys() == {"published", "settled"}
    assert {name for _, name in keys(tmp_path / "all")} == set(QUEUES)
    assert len(keys(tmp_path / "all")) == logs, "all leaders call a log the same"


def counts_of_a_killed_leader(tmp_path: Path, shards: int, settings: dict[str, str]) -> dict[str, tuple[int, int]]:
    """Publishes and acks while a leader is killed; the files are in `all` then. Of each queue, what clients counted as
    published and acked."""
    began = today()
    with Backends(tmp_path, ROLE, shards=shards, env={**settings, **PERIOD}) as cluster:
        server = gateway(cluster, tmp_path / "g0", env=PERIOD)
        try:
            with httpx2.Client(base_url=server.url, headers=server.headers, timeout=WAIT_S) as http:
                for queue in QUEUES:
                    config = {"dedupe": "id", "visibility_timeout_ms": 2000}
                    assert http.put(f"/v1/queues/{queue}", json=config).status_code == 201
                killed = leader_of(cluster, 0)
                for batch in range(BATCHES):
                    for queue in QUEUES:
                        published(http, queue, batch * BATCH, BATCH)
                    if batch == BATCHES // 2:
                        until(lambda: ledgers(killed.data), "the leader has written a file", within_s=WAIT_S)
                        cluster.all_in_sync()
                        published(http, QUEUES[0], BATCHES * BATCH, LEFT)
                        killed.end(signal.SIGKILL)
                for queue in QUEUES:
                    emptied(http, queue)
                    published(http, queue, (BATCHES + 1) * BATCH, LEFT)
                total = BATCHES * BATCH
                counted = {"q0": (total + 2 * LEFT, total + LEFT), "q1": (total + LEFT, total)}
                assert usage_of(http, began, today()) == counted
                assert not usage_of(http, began - timedelta(days=2), began - timedelta(days=1))
                in_files(cluster, tmp_path / "all", {queue: numbers[0] for queue, numbers in counted.items()})
                assert usage_of(http, began, today()) == counted  # now by day, and no more by partition
        finally:
            server.kill()
    return counted


def ledgers(data: Path) -> list[Path]:
    return list((data / "usage").glob("ledger-*.gz"))


def in_files(cluster: Backends, to: Path, published: dict[str, int]) -> None:
    """Files are written once a second: brings them together until all is there."""
    folders = [one.data / "usage" for one in cluster.all]

    def are_there() -> bool:
        collect(to, [folder for folder in folders if folder.exists()])
        return all(ledger_of(to, queue)[0]["published"] >= count for queue, count in published.items())

    until(are_there, "all is in files", within_s=WAIT_S)


def keys(folder: Path) -> set[tuple[str, str]]:
    return {(row.node, row.queue) for file in found(folder) if file.kind == "ledger" for row in read(file)}
