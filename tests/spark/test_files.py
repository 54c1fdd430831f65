"""A real Spark reads the files of a real server, and would fail on any row that is not as its schema says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from gateway.usage.files import packed, write_durably
from spark.usage_schema import KEYS, SCHEMAS
from tests.support.server import PushqServer
from tests.support.usage import ledger_of, span

MESSAGES = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a server wrote until it was stopped."""
    with PushqServer(tmp_path_factory.mktemp("data") / "data") as server:
        with httpx2.Client(base_url=server.url, headers=server.headers, trust_env=False) as http:
            http.put("/v1/queues/orders", json={}).raise_for_status()
            body = {"messages": [{"body": n} for n in range(MESSAGES)]}
            http.post("/v1/queues/orders/messages", json=body).raise_for_status()
            got = http.post("/v1/queues/orders/receive", json={"max": 5}).json()["messages"]
            http.post("/v1/queues/orders/ack", json={"receipts": [m["receipt"] for m in got]}).raise_for_status()
        server.stop()
        return server.data / "usage"


def rows(session: SparkSession, folder: Path, kind: str) -> list[Any]:
    read = session.read.schema(SCHEMAS[kind]).option("mode", "FAILFAST")
    return read.json(str(folder / f"{kind}-*.ndjson.gz")).collect()


def test_spark_reads_every_kind_and_misses_nothing(session: SparkSession, folder: Path) -> None:
    ledger = rows(session, folder, "ledger")
    counted, held, report = ledger_of(folder, "orders")
    assert len(ledger) == report.rows
    told = {kind: sum(row["count"] for row in ledger if row["kind"] == kind) for kind in counted}
    assert told == counted == {"published": MESSAGES, "settled": 5} and held == MESSAGES - 5
    assert all(row[name] is not None for row in ledger for name in KEYS["ledger"])
    minutes = rows(session, folder, "minutes")
    assert {row["operation"] for row in minutes} >= {"start", "publish", "receive", "ack", "queues.put"}
    assert all(sum(row["latency_counts"]) == row["requests"] and row["minute"].year >= 2026 for row in minutes)
    (act,) = rows(session, folder, "audit")
    assert act["action"] == "queues.put" and any(change["field"] == "max_attempts" for change in act["changes"])


def test_rows_that_a_crash_repeated_count_once_by_their_key(
    session: SparkSession, folder: Path, tmp_path: Path
) -> None:
    written = span(0, MESSAGES, MESSAGES, published=MESSAGES)
    for number in (1, 2):
        write_durably(tmp_path / f"ledger-n-20231114T221400000Z-0000000{number}.ndjson.gz", packed(written))
    read = session.read.schema(SCHEMAS["ledger"]).option("mode", "FAILFAST").json(str(tmp_path))
    assert (read.count(), read.dropDuplicates(KEYS["ledger"]).count()) == (4, 2)


def test_a_row_that_is_not_as_the_schema_says_fails_the_job(session: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "ledger.ndjson").write_text('{"version": 1, "node": "n", "count": "three"}\n')
    with pytest.raises(Py4JJavaError, match="Cannot parse the field name 'count'"):
        session.read.schema(SCHEMAS["ledger"]).option("mode", "FAILFAST").json(str(tmp_path)).collect()
