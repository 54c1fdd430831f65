"""Creates a small folder of this version's usage files with a real server: `python -m tests.support.usage_data DIR`.

Run it once per version of the rows. The folder stays in `tests/data` for good, and every later version must derive from
it the tables in its `expected.json`, which is also written here, to be reviewed before it is kept.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import httpx2
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark.jobs import delivery_audit, usage_rollup
from spark.session import spark_session
from tests.support.patience import until
from tests.support.server import PushqServer
from tests.support.spark import ran

EXPECTED: Final = "expected.json"
TABLES: Final = ("usage_hours", "usage_days", "flows", "bill", "audit_queues", "audit_faults")
DIGITS: Final = 6
"""Of fractions: the files have no more digits, and Spark adds them up in any order."""
WAIT_SECONDS: Final = 60


def tables_of(session: SparkSession, source: Path, to: Path) -> dict[str, list[dict[str, Any]]]:
    """What rollup and audit make of a folder: each table's rows, sorted."""
    ran(session, usage_rollup, source, to)
    ran(session, delivery_audit, source, to)
    return {name: rows_of(session, to / name) for name in TABLES}


def rows_of(session: SparkSession, table: Path) -> list[dict[str, Any]]:
    read = session.read.parquet(str(table))
    collected = read.select(
        F.to_json(F.struct("*")).alias("row")
    ).collect()  # times in UTC, whatever this machine's zone
    rows = [json.loads(one["row"]) for one in collected]
    return sorted(({name: _plain(value) for name, value in sorted(row.items())} for row in rows), key=json.dumps)


def _plain(value: Any) -> Any:
    return round(value, DIGITS) if isinstance(value, float) else value


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as aside:
        with PushqServer(Path(aside) / "data", env={"PUSHQ_USAGE__PERIOD_SECONDS": "1"}) as server:
            _use(server)
            server.stop()
            shutil.copytree(server.data / "usage", folder, ignore=shutil.ignore_patterns("running-*"))
        session = spark_session("usage data", "local[2]", "1g", shuffle_partitions=2, folder=Path(aside))
        try:
            expected = tables_of(session, folder, Path(aside) / "tables")
        finally:
            session.stop()
    (folder / EXPECTED).write_text(json.dumps(expected, indent=1) + "\n")


def _use(server: PushqServer) -> None:
    """Some of everything: two tenants, a work queue with dead and expired messages, a stream, a purge, refusals."""
    with httpx2.Client(base_url=server.url, headers=server.headers, trust_env=False) as http:
        http.put("/v1/queues/orders", json={"max_attempts": 1}).raise_for_status()
        _publish(http, "orders", 20)
        _acked(http, "orders", 7)
        got = _received(http, "orders", 3)
        http.post("/v1/queues/orders/nack", json={"receipts": got, "reason": "broken"}).raise_for_status()
        http.put("/v1/queues/short", json={"message_ttl_ms": 200}).raise_for_status()
        _publish(http, "short", 4)
        http.put("/v1/queues/old", json={}).raise_for_status()
        _publish(http, "old", 5)
        http.post("/v1/queues/old/purge", json={"confirm": "old"}).raise_for_status()
        http.put("/v1/queues/log", json={"kind": "stream", "partitions": 2}).raise_for_status()
        _publish(http, "log", 9)
        assert http.get("/v1/queues/none").status_code == 404
        http.put("/v1/tenants/acme", json={}).raise_for_status()
        made = http.post("/v1/keys", json={"name": "acme", "tenant": "acme", "scopes": ["admin"]}).raise_for_status()
        headers = {"Authorization": f"Bearer {made.json()['key']}"}
        until(lambda: _ready(http, "short") == 0, "the short ones expire", within_s=WAIT_SECONDS)
        time.sleep(1.5)  # lets the files of these ranges be written, so that the rest goes into others
        with httpx2.Client(base_url=server.url, headers=headers, trust_env=False) as theirs:
            theirs.put("/v1/queues/orders", json={}).raise_for_status()
            _publish(theirs, "orders", 3)
            _acked(theirs, "orders", 3)
        _publish(http, "orders", 2)


def _publish(http: httpx2.Client, queue: str, count: int) -> None:
    body = {"messages": [{"body": {"number": n}, "key": f"k{n}"} for n in range(count)]}
    http.post(f"/v1/queues/{queue}/messages", json=body).raise_for_status()


def _received(http: httpx2.Client, queue: str, count: int) -> list[str]:
    got = http.post(f"/v1/queues/{queue}/receive", json={"max": count}).raise_for_status().json()["messages"]
    assert len(got) == count
    return [message["receipt"] for message in got]


def _acked(http: httpx2.Client, queue: str, count: int) -> None:
    receipts = _received(http, queue, count)
    http.post(f"/v1/queues/{queue}/ack", json={"receipts": receipts}).raise_for_status()


def _ready(http: httpx2.Client, queue: str) -> int:
    found: int = http.get(f"/v1/queues/{queue}").raise_for_status().json()["stats"]["ready"]
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
