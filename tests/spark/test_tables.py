"""Tables while they change: readers see whole days, and after a crash what the journal vouches for is there."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark.jobs import capacity_plan, report, usage_rollup
from spark.jobs.tables import Busy, Tables
from tests.spark.test_plans import day_of
from tests.support.spark import file, minute, ran

WAIT_S_MAX = 60


def died_while_days_moved(to: Path, table: str, day: str) -> None:
    """Puts a folder back to the moment when a day of the journal was not yet in its place."""
    aside = to / "_aside" / "x" / table
    aside.mkdir(parents=True)
    (to / table / f"day={day}").rename(aside / f"day={day}")
    (to / "_journal.json").write_text(json.dumps({"aside": "_aside/x", "files": []}))


def test_jobs_that_read_tables_first_bring_a_run_that_died_to_its_end(session: SparkSession, tmp_path: Path) -> None:
    to, out = tmp_path / "tables", tmp_path / "out"
    rows = [*day_of("q", 1, 0, 0, 100, 0, 0), *day_of("q", 1, 0, 1, 300, 0, 24 * 60)]
    file(tmp_path / "files", "ledger", 1, rows)
    ran(session, usage_rollup, tmp_path / "files", to)
    died_while_days_moved(to, "flows", "2026-11-21")
    ran(session, capacity_plan, to, out)
    (queue,) = session.read.parquet(str(out / "capacity")).collect()
    assert (queue["days"], queue["published_per_day"]) == (2, 200)
    died_while_days_moved(to, "bill", "2026-11-21")
    ran(session, report, to, out / "report.html")
    assert "2026-11-21: 300" in (out / "report.html").read_text()
    assert not (to / "_journal.json").exists()


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
