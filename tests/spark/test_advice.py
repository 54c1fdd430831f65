"""What jobs advise is what a real gateway takes: plans of capacity, and rules of alerts for what was unusual."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from backend_store.core.outer import plans
from gateway.usage.schema import LedgerRow
from spark.jobs import anomalies, capacity_plan, usage_rollup
from tests.spark.calls import Gateway
from tests.spark.test_plans import HOUR, WEEK, day_of
from tests.support.cli import Cli
from tests.support.spark import BEGIN, died_while_days_moved, file, ran

CLUSTERS = ("--cluster", "eu", "--cluster", "us")


@pytest.fixture
def cli(gateway: Gateway) -> Cli:
    return Cli(gateway.server)


def test_a_plan_has_growth_peaks_costs_and_partitions_and_the_gateway_finds_it_good(
    session: SparkSession, gateway: Gateway, cli: Cli, tmp_path: Path
) -> None:
    rows: list[LedgerRow] = []
    for n in range(4):  # both grow by 600 messages a day; all of `busy` is there, in two partitions
        for partition in (0, 1):
            rows += day_of("busy", 1, partition, n, 6_000 + 300 * n, 1_000 * (n + 1), n * 24 * HOUR)
        rows += day_of("skew", 2, 0, n, 600, 0, n * 24 * HOUR) + day_of("skew", 2, 1, n, 0, 0, n * 24 * HOUR)
    file(tmp_path / "files", "ledger", 1, rows)
    ran(session, usage_rollup, tmp_path / "files", tmp_path / "tables")
    placed = [{"uid": 1, "partition": p, "cluster": "eu"} for p in (0, 1)]
    (tmp_path / "placements.json").write_text(json.dumps(placed))
    (tmp_path / "prices.json").write_text('{"per_million_messages": 10, "per_gigabyte": 1}')
    given = ["--prices", str(tmp_path / "prices.json"), "--placements", str(tmp_path / "placements.json")]
    given += ["--per-partition", "100", "--storage-bytes", "20000000"]
    given += ["--clusters", "us"]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "plan.json").write_text("the plan before")
    died_while_days_moved(tmp_path / "tables", "flows", "2026-11-21")  # what reads tables brings such a run to its end
    with (tmp_path / "out" / "plan.json").open() as before:
        done = ran(session, capacity_plan, tmp_path / "tables", tmp_path / "out", *given)
        assert before.read() == "the plan before", "who reads meanwhile has a whole plan"
    assert done == {"queues": 2, "hot": 1, "too_narrow": 1, "partitions": 1, "moves": 0}
    plan = plans.parse((tmp_path / "out" / "plan.json").read_bytes())
    # The peak is 13,800 messages a minute: 230 a second, and twice that needs five partitions of 100 a second.
    assert plan == plans.Plan(1, (), (plans.PlannedPartitions("busy", 5, ("eu", "us"), "default"),))
    gateway.http.put("/v1/queues/busy", json={"kind": "stream", "partitions": 2}).raise_for_status()
    checked = cli("cluster", "apply-plan", "--dry-run", str(tmp_path / "out" / "plan.json"), *CLUSTERS, "--json").json()
    assert [(one["queue"], one["what"], one["to"], one["is_checked"]) for one in checked["items"]] == [
        ("busy", "split, 5 partitions", ["eu", "us"], True)
    ]
    busy, skew = session.read.parquet(str(tmp_path / "out" / "capacity")).orderBy("queue").collect()
    assert (busy["published_per_day"], busy["skew"]) == (12_900, 1.0)
    assert busy["bytes_growth_per_day"] == pytest.approx(600_000)  # the last digits depend on the order of rows
    assert (skew["skew"], skew["is_skewed"], busy["is_skewed"]) == (2.0, True, False)
    assert busy["cost_per_day"] == pytest.approx(12_900 / 1e6 * 10 + 12_900_000 / 1e9)
    assert busy["cost_per_million"] == pytest.approx(10 + 1)  # messages of 1,000 bytes: a million is a gigabyte
    # 16 MB of 20 MB may be full; 8 MB are, and 2 MB come each day.
    assert busy["days_left"] == pytest.approx(4)


def test_an_hour_unlike_the_same_hour_of_other_weeks_is_found_and_the_gateway_takes_its_rule(
    session: SparkSession, gateway: Gateway, cli: Cli, tmp_path: Path
) -> None:
    rows: list[LedgerRow] = []
    for week in range(6):
        for hour, usual in ((0, 1_000), (1, 20)):
            n = week * 2 + hour
            unusual = {(4, 0): 9_000, (5, 1): 60}.get((week, hour), usual)  # the second is too few to matter
            rows += day_of("q", 1, 0, n, unusual, 0, week * WEEK + hour * HOUR)
    file(tmp_path / "files", "ledger", 1, rows)
    ran(session, usage_rollup, tmp_path / "files", tmp_path / "tables")
    since = (BEGIN + timedelta(weeks=4)).strftime("%Y-%m-%dT%H:%M:%SZ")
    done = ran(session, anomalies, tmp_path / "tables", tmp_path / "out", "--since", since)
    (one,) = session.read.parquet(str(tmp_path / "out" / "anomalies")).collect()
    assert (one["measure"], one["value"], one["median"], one["weeks"]) == ("published", 9_000, 1_000, 4)
    (suggested,) = done["suggestions"]
    assert (suggested["measure"], suggested["side"], suggested["high"]) == ("published", "above", 5_000)
    assert done["rules"] == 1
    given = cli("alert", "import", str(tmp_path / "out" / "alert_rules" / "default.json"), "--json").json()
    (rule,) = gateway.http.get("/v1/alert-rules").raise_for_status().json()["items"]
    assert [(one["result"], one["id"]) for one in given["items"]] == [("created", rule["id"])]
    # What is published beyond the usual waits: 4,000 messages an hour more than 1,000.
    assert (rule["kind"], rule["queue"], rule["limit"], rule["enabled"]) == ("growth", "q", 1.1111, True)
