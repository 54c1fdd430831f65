"""A server is killed under load: from its files alone jobs say that nothing is lost, and bill what clients counted."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx2
import pytest
from pyspark.sql import SparkSession

from gateway.usage.collect import collect
from spark.jobs import delivery_audit, usage_rollup
from tests.support.patience import until
from tests.support.planted import Planted, plant
from tests.support.server import PushqServer
from tests.support.spark import ran

CLIENTS, CALLS, MESSAGES, KILLS, ACKED = 3, 30, 5, 2, 150
PATIENCE_SECONDS = 120
KILLED_LEADER = Path(__file__).resolve().parents[1] / "data" / "usage_killed_leader"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PushqServer]:
    made = PushqServer(tmp_path / "data", env={"PUSHQ_USAGE__PERIOD_SECONDS": "1"})
    yield made.start(ready_s_max=PATIENCE_SECONDS)
    made.kill()


def publish(server: PushqServer, client: int, answered: list[int]) -> int:
    """Sends each call, under a key of its own, until it is `answered`; how many messages were stored."""
    stored = 0
    with httpx2.Client(base_url=server.url, headers=server.headers, timeout=5, trust_env=False) as http:
        for number in range(CALLS):
            headers = {"Idempotency-Key": str(uuid.uuid5(uuid.NAMESPACE_OID, f"{client} {number}"))}
            body = {"messages": [{"body": n} for n in range(MESSAGES)]}
            deadline = time.monotonic() + PATIENCE_SECONDS
            while True:
                assert time.monotonic() < deadline, f"call {number} was not answered"
                try:
                    answer = http.post("/v1/queues/orders/messages", json=body, headers=headers)
                except httpx2.HTTPError:
                    time.sleep(0.05)
                    continue
                if answer.status_code == 201:
                    stored += len(answer.json()["messages"])
                    answered.append(number)
                    break
                assert answer.status_code in (409, 503), answer.text
                time.sleep(0.02)
    return stored


def has(answered: list[int], wanted: int) -> bool:
    return len(answered) >= wanted


def acked(server: PushqServer, wanted: int) -> int:
    done = 0
    with httpx2.Client(base_url=server.url, headers=server.headers, timeout=20, trust_env=False) as http:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while done < wanted:
            assert time.monotonic() < deadline, f"{done} of {wanted} were acked"
            got = http.post("/v1/queues/orders/receive", json={"max": wanted - done}).raise_for_status().json()
            receipts = [message["receipt"] for message in got["messages"]]
            answer = http.post("/v1/queues/orders/ack", json={"receipts": receipts}).raise_for_status().json()
            done += sum(result["ok"] for result in answer["results"])
    return done


def test_nothing_is_lost_and_the_bill_is_what_clients_counted(
    session: SparkSession, server: PushqServer, tmp_path: Path
) -> None:
    httpx2.put(f"{server.url}/v1/queues/orders", json={}, headers=server.headers).raise_for_status()
    answered: list[int] = []
    with ThreadPoolExecutor(CLIENTS) as pool:
        counts = [pool.submit(publish, server, client, answered) for client in range(CLIENTS)]
        for number in range(1, KILLS + 1):
            wanted = number * CLIENTS * CALLS // (KILLS + 1)
            until(
                partial(has, answered, wanted),
                lambda: f"{len(answered)} calls were answered",
                within_s=PATIENCE_SECONDS,
            )
            server.kill()
            server.start(ready_s_max=PATIENCE_SECONDS)
        published = sum(count.result(timeout=2 * PATIENCE_SECONDS) for count in counts)
    settled = acked(server, ACKED)
    server.stop()
    source, tables = tmp_path / "files", tmp_path / "tables"
    collect(source, [server.data / "usage"])
    faults_are_found(session, source, "orders", tables)
    assert queues_of(session, tables)["orders"] == [published, settled, published - settled]
    assert ran(session, usage_rollup, source, tables)["quarantined"] == 0
    rows = session.read.parquet(str(tables / "bill")).where("queue = 'orders'").collect()
    assert (sum(row["published"] for row in rows), sum(row["delivered"] for row in rows)) == (published, settled)
    assert published == CLIENTS * CALLS * MESSAGES


def faults_are_found(session: SparkSession, source: Path, queue: str, tables: Path) -> None:
    """Of the files, and of copies of a queue's that get faults beside them, an audit finds these faults, by queue and
    range, and no others: so nothing is lost of what there was."""
    expected = plant(source, queue, source)
    done = ran(session, delivery_audit, source, tables)
    found: dict[str, list[Planted]] = {name: [] for name in expected}
    for fault in done["first_faults"]:
        found[fault["queue"]].append(Planted(fault["fault"], fault["from"], fault["to"], fault["messages"]))
    assert found == expected
    assert (done["faults"], done["quarantined"]) == (sum(map(len, expected.values())), 0), done
    assert done["lost"] == sum(fault.messages or 0 for fault in expected[f"{queue}-unsettled"])


def queues_of(session: SparkSession, tables: Path) -> dict[str, list[int]]:
    """What an audit counted of each queue: published, settled, outstanding."""
    rows = session.read.parquet(str(tables / "audit_queues")).collect()
    return {row["queue"]: [row["published"], row["settled"], row["outstanding"]] for row in rows}


def test_of_a_cluster_whose_leader_was_killed_nothing_is_lost(session: SparkSession, tmp_path: Path) -> None:
    """The files are those of a run of `tests/cluster/test_usage.py`, which counts them without Spark."""
    done = ran(session, delivery_audit, KILLED_LEADER, tmp_path / "tables", "--screen", "always")
    assert (done["faults"], done["lost"], done["quarantined"]) == (0, 0, 0), done
    assert queues_of(session, tmp_path / "tables") == json.loads((KILLED_LEADER / "expected.json").read_text())
