"""Tables while they change: readers see whole days, and after a crash what the journal vouches for is there."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path

import msgspec
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from pyspark.sql import SparkSession

from spark.jobs import delivery_audit, usage_rollup
from spark.jobs.tables import Busy, Tables
from tests.spark.test_jobs import history, table, total
from tests.support.spark import file, minute, ran

WAIT_S_MAX = 60


def test_days_move_when_readers_have_left_and_no_new_ones_come_meanwhile(tmp_path: Path) -> None:
    is_in = threading.Event()

    class Noting(Tables):
        def _recover(self) -> None:
            is_in.set()  # it is alone now
            super()._recover()

    tables = Noting(session=None, folder=tmp_path)  # type: ignore[arg-type]
    for place, text in (("flows", "old"), ("_aside/x/flows", "new")):
        day = tmp_path / place / "day=2026-11-20"
        day.mkdir(parents=True)
        (day / "part").write_text(text)
    part = tmp_path / "flows" / "day=2026-11-20" / "part"
    moved = threading.Event()

    def move() -> None:
        with tables.alone():
            moved.set()

    with tables.still():
        (tmp_path / "_journal.json").write_text(json.dumps({"aside": "_aside/x", "files": ["f"]}))
        writer = threading.Thread(target=move)
        writer.start()
        assert is_in.wait(WAIT_S_MAX)
        with pytest.raises(Busy, match="run this job again"), tables.still():
            raise AssertionError("a reader came in before the days had moved")
        assert part.read_text() == "old" and not moved.is_set()
    assert moved.wait(WAIT_S_MAX)
    writer.join()
    assert part.read_text() == "new" and tables.files() == {"f": []} and not (tmp_path / "_aside").exists()


def test_a_journal_is_written_when_all_that_it_vouches_for_is_on_the_disk(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    file(tmp_path / "files", "minutes", 1, [minute(0), minute(200)])
    ran(session, usage_rollup, tmp_path / "files", tmp_path / "tables")
    before = synced[: synced.index(str(tmp_path / "tables" / "_journal.json.part"))]
    there = {Path(path).parts[-4:] for path in before}
    written = {path.parts[-4:] for path in (tmp_path / "tables").glob("usage_*/day=*/tenant=*/*.parquet")}
    assert len(written) >= 4 and written <= there
    assert {file[:-1] for file in written} <= {place[1:] for place in there}, "the folders are, too"
    after = synced[len(before) :]
    moved = after[: after.index(str(tmp_path / "tables" / "_files.json.part"))]
    assert {str(tmp_path / "tables" / name) for name in ("usage_hours", "usage_days")} <= set(moved)


def test_days_that_an_earlier_version_made_or_that_lost_a_tenant_are_brought_up_to_date(
    session: SparkSession, tmp_path: Path
) -> None:
    """A version that knows another kind of the ledger has a column more. Who has a tenant's rows removed removes its
    folders, and leaves that of a day where it was alone."""
    source, to = tmp_path / "files", tmp_path / "tables"
    ledger = history()  # from the evening of the 20th to the next morning
    file(source, "ledger", 1, ledger)
    for job in (usage_rollup, delivery_audit):
        ran(session, job, source, to)
    for name, gone in (("flows", ["late"]), ("audit_ranges", ["late", "least_late"])):
        for path in (to / name / "day=2026-11-20").rglob("*.parquet"):
            rows = pq.ParquetFile(path).read().drop_columns(gone)
            pq.write_table(rows.replace_schema_metadata(), path)
            path.with_name(f".{path.name}.crc").unlink()
    for folder in to.glob("*/day=2026-11-21/tenant=a"):
        shutil.rmtree(folder)
    others = [msgspec.structs.replace(row, tenant="b", queue_uid=row.queue_uid + 9) for row in ledger]
    for number, is_evening in ((2, False), (3, True)):
        file(source, "ledger", number, [row for row in others if (row.at < "2026-11-21") is is_evening])
        for job in (usage_rollup, delivery_audit):
            assert ran(session, job, source, to)["quarantined"] == 0
    evening = [row for row in ledger if row.at < "2026-11-21"]
    kinds = ("published", "settled", "expired")
    billed = table(session, to, "bill", "tenant", "published", "delivered", "expired")
    for tenant, counted in (("a", evening), ("b", others)):
        sums = tuple(sum(column) for column in zip(*(row[1:] for row in billed if row[0] == tenant), strict=True))
        assert sums == tuple(total(counted, kind) for kind in kinds), tenant
    audited = table(session, to, "audit_queues", "tenant", "published", "is_accounted")
    assert sum(row[1] for row in audited if row[0] == "a") == total(evening, "published")
    assert all(row[2] for row in audited)
