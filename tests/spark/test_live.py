"""From a server's files through `live_usage` to the page that the server shows: numbers that clients counted."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2
import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession

from gateway.limits import USAGE_LIVE_STALE_MS
from gateway.usage.live import Live, LiveUsage
from spark.jobs import live_usage
from spark.jobs.live_page import FOLDERS_KEPT, LivePage
from spark.jobs.reading import BadFolder
from spark.transforms.live import SHOWN_MINUTES, SHOWN_QUEUES_MAX, SUMS, of_tenants, page_of
from tests.support.patience import PATIENCE_S, until
from tests.support.server import PushqServer
from tests.support.spark import BEGIN, file, minute, ran, stamp

PUBLISHED = 12


def shown(folder: Path, tenant: str = "a") -> Live:
    at_ms = (folder / "console" / "now.json").stat().st_mtime_ns // 1_000_000
    return asyncio.run(LiveUsage(folder).of(tenant, at_ms))


def by_minute(live: Live) -> list[tuple[str, int]]:
    return [(row.minute, row.messages) for row in live.minutes]


def changed(session: SparkSession, *rows: tuple[int, str, str, str, int]) -> DataFrame:
    """Rows as the query gives them: minute, tenant, queue, operation, messages."""
    columns = "day date, minute timestamp, tenant string, queue string, operation string, outcome string, " + ", ".join(
        f"{name} {'double' if name == 'seconds' else 'long'}" for name in SUMS
    )
    told = [
        (None, BEGIN + timedelta(minutes=at), tenant, queue, operation, "ok", 2, messages, 10, 20, 0.5)
        for at, tenant, queue, operation, messages in rows
    ]
    return session.createDataFrame(told, columns)


def test_a_page_has_the_last_hour_of_each_tenant_and_rows_that_come_again_change_nothing(
    session: SparkSession, tmp_path: Path
) -> None:
    page = LivePage(session, tmp_path / "console")
    page.begin()
    assert shown(tmp_path) == replace(shown(tmp_path), state="live", last_minute=None, minutes=[], queues=[])
    first = changed(session, (0, "a", "q", "publish", 3), (1, "a", "q", "ack", 3), (1, "b", "q", "publish", 9))
    page.turn(first)
    assert by_minute(shown(tmp_path)) == [(stamp(0), 3), (stamp(1), 3)]
    assert by_minute(shown(tmp_path, "b")) == [(stamp(1), 9)]
    # A minute that has changed has its new sums, and one that is over an hour ago goes.
    later = changed(session, (1, "a", "q", "ack", 5), (SHOWN_MINUTES, "a", "q", "publish", 4))
    for _ in range(2):  # a crash behind the page, and before Spark has noted the batch, brings the batch again
        page.turn(later)
        live = shown(tmp_path)
        assert by_minute(live) == [(stamp(1), 5), (stamp(SHOWN_MINUTES), 4)]
        told = [(row.queue, row.operation, row.messages, row.rows) for row in live.queues]
        assert told == [("q", "ack", 5, 2), ("q", "publish", 4, 2)]
    assert by_minute(shown(tmp_path, "b")) == [(stamp(1), 9)]
    assert len(list((tmp_path / "console").glob("*page-*"))) == FOLDERS_KEPT


def test_a_page_has_the_busiest_rows_alone_and_says_how_many_there_are(session: SparkSession) -> None:
    rows = [(0, "a", f"q{n:03}", "publish", n) for n in range(SHOWN_QUEUES_MAX + 5)]
    page = page_of(changed(session, *rows, (1, "a", "q204", "publish", 1)).drop("day"))
    found = page.where("row = 'queue'").orderBy("requests", "queue", ascending=[False, True]).collect()
    assert [row["queue"] for row in found] == ["q204", *(f"q{n:03}" for n in range(SHOWN_QUEUES_MAX - 1))]
    assert {row["rows"] for row in found} == {SHOWN_QUEUES_MAX + 5}


def test_what_several_tenants_rows_were_put_together_in_is_of_none(session: SparkSession) -> None:
    names = [("a", "key"), ("other", "key"), ("other", "other")]
    rows = session.createDataFrame(names, "tenant string, principal string")
    assert sorted(tuple(row) for row in of_tenants(rows).collect()) == names[:2]


def test_the_usage_page_shows_what_clients_did_and_says_when_the_job_has_stopped(
    session: SparkSession, tmp_path: Path
) -> None:
    live = tmp_path / "live"
    now = live / "console" / "now.json"
    with PushqServer(tmp_path / "data", env={"PUSHQ_USAGE__LIVE_DIR": str(live)}) as server:
        with httpx2.Client(base_url=server.url, headers=server.headers, trust_env=False) as http:
            http.put("/v1/queues/orders", json={}).raise_for_status()
            body = {"messages": [{"body": n} for n in range(PUBLISHED)]}
            http.post("/v1/queues/orders/messages", json=body).raise_for_status()
            assert http.get("/v1/usage/live").json()["state"] == "absent"
        assert 'data-usage="absent"' in usage_page(server)
        server.stop()  # the minute that has begun is in the files then
        ran(session, live_usage, server.data / "usage", live, "--once")
        server.start()
        os.utime(now)
        with httpx2.Client(base_url=server.url, headers=server.headers, trust_env=False) as http:
            found = http.get("/v1/usage/live").raise_for_status().json()
        assert found["state"] == "live"
        told = {(row["queue"], row["operation"]): row["messages"] for row in found["queues"]}
        assert told["orders", "publish"] == PUBLISHED == sum(one["messages"] for one in found["minutes"])
        page = usage_page(server)
        assert "Last hour, by queue and operation" in page and 'data-series="' in page
        assert "data-usage=" not in page
        old_s = now.stat().st_mtime - USAGE_LIVE_STALE_MS / 1000 - 1
        os.utime(now, (old_s, old_s))
        assert 'data-usage="stale"' in usage_page(server)


def test_rows_of_a_clock_that_is_ahead_hold_up_no_others(session: SparkSession, tmp_path: Path) -> None:
    """Its minute would be the last one that counts, for the table and for the page, until that time has come."""
    source, live = tmp_path / "files", tmp_path / "live"
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    told = [now - timedelta(minutes=20), now + timedelta(days=3_650), now - timedelta(minutes=10), now]
    for number, at in enumerate(told):
        text = at.strftime("%Y-%m-%dT%H:%M:%S.000Z")
        file(source, "minutes", number, [msgspec.structs.replace(minute(0), minute=text)])
        ran(session, live_usage, source, live, "--once", "--late", "1 minute")
    found = session.read.parquet(str(live / "live_usage")).selectExpr("date_format(minute, 'HH:mm')").collect()
    assert sorted(row[0] for row in found) == sorted(f"{told[n]:%H:%M}" for n in (0, 2))
    assert [one for one, _ in by_minute(shown(live))] == [f"{told[n]:%Y-%m-%dT%H:%M}:00.000Z" for n in (0, 2, 3)]


def test_a_minute_of_a_tenant_is_one_file_of_the_table(session: SparkSession, tmp_path: Path) -> None:
    """However many tasks have added it up: there are as many minutes as that, and who reads opens each file."""
    source, live = tmp_path / "files", tmp_path / "live"
    operations = ("publish", "ack", "receive", "peek", "queues.get", "redrive")
    for number, at in enumerate((0, 30)):
        file(source, "minutes", number, [minute(at, one, tenant) for one in operations for tenant in "ab"])
    ran(session, live_usage, source, live, "--once")
    assert session.read.parquet(str(live / "live_usage")).count() == 2 * len(operations)
    assert len([*(live / "live_usage").rglob("*.parquet")]) == 2


def test_a_table_that_would_lie_among_the_files_is_refused(session: SparkSession, tmp_path: Path) -> None:
    """Spark looks for files in all that is below, and a second start would find the page there."""
    file(tmp_path / "files", "minutes", 1, [minute(0)])
    with pytest.raises(BadFolder, match="name a folder outside of --from"):
        ran(session, live_usage, tmp_path / "files", tmp_path / "files" / "live", "--once")


def test_a_table_whose_checkpoint_is_gone_is_refused(session: SparkSession, tmp_path: Path) -> None:
    """Spark would take its first batches for those that the table has, and leave them out."""
    source, live = tmp_path / "files", tmp_path / "live"
    file(source, "minutes", 1, [minute(0)])
    (live / "live_usage" / "_spark_metadata").mkdir(parents=True)
    with pytest.raises(BadFolder, match="the checkpoint of its table is missing"):
        ran(session, live_usage, source, live, "--once")


def test_who_is_asked_to_stop_says_what_was_done_and_goes_on_with_it_later(
    session: SparkSession, tmp_path: Path
) -> None:
    source, live = tmp_path / "files", tmp_path / "live"
    file(source, "minutes", 1, [minute(0)])

    def ask() -> None:
        until(
            lambda: '"page-' in (live / "console" / "now.json").read_text(),
            "the page is not there",
            within_s=PATIENCE_S,
        )
        os.kill(os.getpid(), signal.SIGTERM)

    (live / "console").mkdir(parents=True)
    (live / "console" / "now.json").write_text('{"version": 1, "folder": null, "last_minute": null}')
    handler = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # whoever runs these tests lives on
    asking = threading.Thread(target=ask)
    asking.start()
    try:
        assert ran(session, live_usage, source, live).keys() == {"rows", "batches"}
    finally:
        asking.join()
        assert signal.signal(signal.SIGTERM, handler) is signal.SIG_IGN
    ran(session, live_usage, source, live, "--once")
    assert by_minute(shown(live)) == [(stamp(0), 3)]


def usage_page(server: PushqServer) -> str:
    with httpx2.Client(base_url=server.url, headers={"Origin": server.url}, trust_env=False) as client:
        assert client.post("/console/login", data={"credential": server.key}).status_code == 303
        return client.get("/console/usage").text
