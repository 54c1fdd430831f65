"""Silent queues, the live table, the report and plans of queries, over small tables whose right answers are known."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession

from gateway.usage.live import LiveUsage
from gateway.usage.schema import LedgerRow
from spark.jobs import anomalies, live_usage, report, usage_rollup
from spark.jobs.reading import Rows, usage_files
from spark.jobs.tables import Tables
from spark.transforms import audit, rollup, screen
from tests.support.spark import BEGIN, died_while_days_moved, file, minute, ran, stamp

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "usage_v1"
HOUR = 60
WEEK = 7 * 24 * HOUR


def day_of(queue: str, uid: int, partition: int, n: int, published: int, held: int, at: int) -> list[LedgerRow]:
    """A range: what was published in it, and what is there at its end, 1,000 bytes each."""
    place = ("node-1", "default", queue, uid, partition, 1)
    size = {"published": published * 1_000, "held": held * 1_000}
    counts = {"published": published, "held": held}
    return [LedgerRow(1, *place, k, n * 10, n * 10 + 10, v, size[k], stamp(at)) for k, v in counts.items()]


def test_a_queue_that_went_silent_is_found_and_one_that_was_deleted_is_not(
    session: SparkSession, tmp_path: Path
) -> None:
    rows: list[LedgerRow] = []
    for week in range(4):
        for queue, uid in (("silent", 1), ("deleted", 2)):
            rows += day_of(queue, uid, 0, week, 1_000, 7, week * WEEK)
    (gone,) = (row for row in rows if row.queue == "deleted" and row.from_ == 30 and row.kind == "published")
    rows.append(msgspec.structs.replace(gone, kind="deleted", count=7))
    for n in range(2):  # of the hour of silence, and of the next: so it is over
        rows += day_of("other", 3, 0, n, 1, 0, 4 * WEEK + n * HOUR)
    file(tmp_path / "files", "ledger", 1, rows)
    ran(session, usage_rollup, tmp_path / "files", tmp_path / "tables")
    since = (BEGIN + timedelta(weeks=4)).strftime("%Y-%m-%dT%H:%M:%SZ")
    done = ran(session, anomalies, tmp_path / "tables", tmp_path / "out", "--since", since)
    (one,) = session.read.parquet(str(tmp_path / "out" / "anomalies")).collect()
    assert (one["queue"], one["measure"], one["value"], one["median"]) == ("silent", "published", 0, 1_000)
    assert one["score"] < -4 and one["weeks"] == 4
    assert [row["side"] for row in done["suggestions"]] == ["below"]
    assert done["rules"] == 0 and not list((tmp_path / "out" / "alert_rules").iterdir())


def test_a_live_minute_is_written_once_when_no_late_row_is_awaited_and_shown_at_once(
    session: SparkSession, tmp_path: Path
) -> None:
    source, to = tmp_path / "files", tmp_path / "live"
    file(source, "minutes", 1, [minute(0), minute(1)])
    assert ran(session, live_usage, source, to, "--once", "--late", "2 minutes")["rows"] == 2
    file(source, "minutes", 2, [minute(0, messages=4), minute(30)])  # late for the first minute, and in time
    ran(session, live_usage, source, to, "--once", "--late", "2 minutes")
    assert shown(to) == [(stamp(0), 7), (stamp(1), 3), (stamp(30), 3)]
    file(source, "minutes", 3, [minute(1, messages=50), minute(60)])  # too late: the minute has been written
    ran(session, live_usage, source, to, "--once", "--late", "2 minutes")
    found = session.read.parquet(str(to / "live_usage")).orderBy("minute").collect()
    assert [(row["minute"].minute, row["messages"]) for row in found] == [(0, 7), (1, 3), (30, 3)]
    assert shown(to) == [(stamp(1), 3), (stamp(30), 3), (stamp(60), 3)]


def shown(folder: Path) -> list[tuple[str, int]]:
    """The minutes of a gateway's page."""
    live = asyncio.run(LiveUsage(folder).of("a", 0))
    return [(row.minute, row.messages) for row in live.minutes]


def test_reading_some_days_reads_no_others(session: SparkSession, tmp_path: Path) -> None:
    file(tmp_path / "files", "minutes", 1, [minute(0), minute(200), minute(1, tenant="b")])
    ran(session, usage_rollup, tmp_path / "files", tmp_path / "tables")
    hours = Tables(session, tmp_path / "tables").read("usage_hours", ["2026-11-20"])
    assert hours is not None and hours.select("tenant").distinct().count() == 2
    assert {Path(path).parts[-3] for path in hours.inputFiles()} == {"day=2026-11-20"}
    plan = session.read.parquet(str(tmp_path / "tables" / "usage_hours")).where("day = '2026-11-21' and tenant = 'a'")
    planned = plan._jdf.queryExecution().executedPlan().toString()  # type: ignore[operator]
    assert "PartitionFilters: [isnotnull(day" in planned and "isnotnull(tenant" in planned.split("PartitionFilters")[1]
    assert plan.count() == 1
    page = tmp_path / "report.html"
    page.write_text("the page before")
    died_while_days_moved(tmp_path / "tables", "usage_days", "2026-11-21")  # it brings such a run to its end
    with page.open() as before:
        assert ran(session, report, tmp_path / "tables", page)["sections"] == ["Usage"]
        assert before.read() == "the page before", "who reads meanwhile has a whole page"
    assert "publish" in page.read_text() and not (tmp_path / "tables" / "_journal.json").exists()
    assert (tmp_path / "tables" / "usage_days" / "day=2026-11-21").exists()


def test_a_log_that_has_most_of_the_rows_is_added_up_where_it_is_read(session: SparkSession) -> None:
    def good(kind: str, **how: bool) -> DataFrame:
        return Rows(session, usage_files(GOLDEN, kind), kind).good(**how)

    for made in (
        rollup.usage_of(good("minutes")),
        rollup.flows_of(good("ledger")),
        audit.parts_of(good("ledger")),
        screen.sums_of(good("ledger", times_as_text=True, with_files=True)),
    ):
        plan = made._jdf.queryExecution().executedPlan().toString().splitlines()  # type: ignore[operator]
        moved = [number for number, line in enumerate(plan) if "Exchange" in line]
        assert len(moved) == 1 and "partial_" in plan[moved[0] + 1], "\n".join(plan)


def test_hours_of_a_report_are_utc_wherever_it_is_made(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Summer began in Berlin at one o'clock UTC: of that night an hour is not there by its clocks."""
    row = "'a' tenant, 'q' queue, 'held' measure, 9L value, 1d median, 8d score, 4L weeks"
    hours = session.sql(f"select timestamp'2026-03-29T01:00:00Z' hour, {row}")
    hours.write.parquet(str(tmp_path / "tables" / "anomalies"))
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        ran(session, report, tmp_path / "tables", tmp_path / "page.html")
    finally:
        monkeypatch.undo()
        time.tzset()
    assert "2026-03-29 01:00" in (tmp_path / "page.html").read_text()
