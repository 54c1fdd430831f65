"""The state that an audit keeps of each day, and how new files change it. A file is read only once, unless the sums of
one of its days no longer verify that day.

A log's day is stored in one of two tables: `audit_hours` has the sums of its hours, as long as these verify the day;
`audit_ranges` has its ranges, if the sums do not, or if it was never screened. `audit_days` is the result of
`audit.day_of` for either. The result therefore depends only on the day's rows, not on the runs in which they arrived.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark.jobs.quick import sums_of
from spark.jobs.reading import BadFolder, Rows, check_whole
from spark.jobs.tables import PARTITIONED_BY, Tables
from spark.transforms import audit, screen
from spark.transforms.sweep import DAY_LOG
from spark.usage_schema import LEDGER
from spark.wording import counted

HOURS: Final = "audit_hours"
RANGES: Final = "audit_ranges"
DAYS: Final = "audit_days"
QUEUES: Final = "audit_queues"
FAULTS: Final = "audit_faults"
_NAMED_MAX: Final = 3


class Look(NamedTuple):
    """The result of reading new files: sums of hours, or ranges; neither if there are no files."""

    rows: Rows | None
    """The rows that Spark checked one by one."""
    quick: int
    """The number of rows that did not need this check."""
    sums: DataFrame | None
    parts: DataFrame | None
    days: set[str]
    files: Mapping[str, set[str]]
    """For each file, the days for which it may have to be read again."""

    def counted(self) -> tuple[int, int]:
        """(rows, bad rows)."""
        rows, bad = (0, 0) if self.rows is None else self.rows.counted()
        return self.quick + rows, bad


class Days:
    """The days in a folder of tables, whose lock the caller holds. `sources` are all usage files, old and new."""

    def __init__(self, session: SparkSession, tables: Tables, sources: Iterable[Path]):
        self._session = session
        self._tables = tables
        self._sources = {path.name: path for path in sources}
        self._known = tables.files()

    def new(self) -> list[Path]:
        return [path for name, path in self._sources.items() if name not in self._known]

    def look_at(self, new: Sequence[Path], *, screens: bool) -> Look:
        """Reads new files once. Raises `BadFolder` if one is empty."""
        check_whole(new)
        if not new:
            return Look(None, 0, None, None, set(), {})
        look = self._summed(new) if screens else None
        return look or self._ranged(new)

    def bring_up_to_date(self, look: Look, *, opens_all: bool) -> None:
        """Replaces the days that new files change, and the tables that cover all days. With `opens_all`, no day remains
        that only its sums verify. Raises `BadFolder` if a file is needed again but missing."""
        days = look.days | self._tables.days(HOURS) if opens_all else look.days
        hours, chunks, opened = self._hours(look, days, opens_all=opens_all)
        parts = self._parts(look, days, opened)
        pieces = [one.select(*audit.PIECE) for one in _some(chunks)]
        wrong = None
        if parts is not None:
            ranges = _keep(audit.ranges_of(parts))
            pieces.append(ranges.select(*audit.PIECE))
            wrong = audit.judged(ranges)
        made = _keep(audit.day_of(_together(pieces), wrong))
        others = self._tables.read(DAYS, self._tables.days(DAYS) - days)
        whole = made if others is None else made.unionByName(others, allowMissingColumns=True)
        self._tables.replace(
            {HOURS: _gathered(hours), RANGES: _gathered(parts), DAYS: made.coalesce(1)},
            look.files,
            days=days,
            whole={QUEUES: audit.queues_of(whole).coalesce(1), FAULTS: audit.faults_of(whole).coalesce(1)},
        )

    def _summed(self, new: Sequence[Path]) -> Look | None:
        """Returns None if a time is invalid: only a row-by-row check finds the row."""
        quick = sums_of(self._session, new)
        sums, rows = screen.with_day(quick.frame), None
        if quick.odd:
            rows = self._rows(quick.odd)
            sums = sums.unionByName(_keep(screen.sums_of(rows.good(times_as_text=True, with_files=True))))
        files: dict[str, set[str]] = {path.name: set() for path in new}
        for row in sums.select("file", "day").distinct().collect():
            if row["day"] is None:
                return None
            files[row["file"]].add(str(row["day"]))
        return Look(rows, quick.rows, sums, None, set().union(*files.values()), files)

    def _ranged(self, new: Sequence[Path]) -> Look:
        rows = self._rows(new)
        parts = _keep(audit.parts_of(rows.good()))
        days = {str(row["day"]) for row in parts.select("day").distinct().collect()}
        return Look(rows, 0, None, parts, days, {path.name: set() for path in new})

    def _hours(
        self, look: Look, days: set[str], *, opens_all: bool
    ) -> tuple[DataFrame | None, DataFrame | None, DataFrame | None]:
        """Returns the hours that their sums verify, their chunks, and the days of logs (`DAY_LOG`) to check range by
        range, which until now were verified by sums or were not stored in ranges."""
        stored = self._tables.read(HOURS, days)
        if look.sums is not None:
            apart = self._tables.read(RANGES, days)
            mine = look.sums if apart is None else look.sums.join(_logs(apart), DAY_LOG, "left_anti")
            hours = _keep(screen.merged(_together([mine.drop("file"), *_some(stored)])))
            chunks = _keep(screen.chunks_of(hours))
            opened = _keep(screen.suspects_of(chunks))
            return hours.join(opened, DAY_LOG, "left_anti"), chunks.join(opened, DAY_LOG, "left_anti"), opened
        if stored is None or opens_all:
            return None, None, None if stored is None else _logs(stored)
        assert look.parts is not None
        opened = _keep(_logs(stored).join(_logs(look.parts), DAY_LOG, "left_semi"))
        hours = _keep(stored.join(opened, DAY_LOG, "left_anti"))
        return hours, screen.chunks_of(hours), opened

    def _parts(self, look: Look, days: set[str], opened: DataFrame | None) -> DataFrame | None:
        """All ranges of the log days that are checked range by range."""
        stored = self._tables.read(RANGES, days, like=self._parts_now())
        found = [*_some(stored), *_some(look.parts)]
        again: list[DataFrame] = []
        wanted = _days_of(opened)
        if wanted:
            assert opened is not None
            again += self._again([name for name, about in self._known.items() if wanted & set(about)], opened)
        if look.sums is not None and (wanted or stored is not None):
            logs = _together([*_some(opened), *([] if stored is None else [_logs(stored)])])
            about = _days_of(look.sums.join(logs, DAY_LOG, "left_semi"))
            again += self._again([name for name, theirs in look.files.items() if about & theirs], logs)
        if again:
            found.append(audit.parts_of(_together(again)))
        if not found:
            return None
        return _keep(audit.merged(_together(found)) if len(found) > 1 else found[0])

    def _parts_now(self) -> StructType:
        return audit.parts_of(self._session.createDataFrame([], LEDGER)).schema

    def _again(self, names: Sequence[str], logs: DataFrame) -> list[DataFrame]:
        """The rows of the given log days, read from the files again."""
        if gone := [name for name in names if name not in self._sources]:
            shown = ", ".join(gone[:_NAMED_MAX]) + (", …" if len(gone) > _NAMED_MAX else "")
            what = counted(len(gone), "audited file is", "audited files are")
            raise BadFolder(
                f"--from: {what} needed again but missing ({shown}): put {'it' if len(gone) == 1 else 'them'} back, "
                "or start over with a new folder for --to"
            )
        if not names:
            return []
        rows = self._rows([self._sources[name] for name in names]).good()
        return [rows.withColumn("day", F.to_date("at")).join(logs, DAY_LOG, "left_semi").drop("day")]

    def _rows(self, files: Sequence[Path]) -> Rows:
        return Rows(self._session, files, "ledger", audit.COLUMNS)


def _keep(frame: DataFrame) -> DataFrame:
    """Materializes a frame that is used repeatedly, and cuts its lineage: otherwise Spark replans all inputs."""
    return frame.localCheckpoint(storageLevel=StorageLevel.MEMORY_AND_DISK)


def _logs(rows: DataFrame) -> DataFrame:
    return rows.select(*DAY_LOG).distinct()


def _days_of(rows: DataFrame | None) -> set[str]:
    return set() if rows is None else {str(row["day"]) for row in rows.select("day").distinct().collect()}


def _some(frame: DataFrame | None) -> list[DataFrame]:
    return [] if frame is None else [frame]


def _together(frames: Sequence[DataFrame]) -> DataFrame:
    first, *more = frames
    for one in more:
        first = first.unionByName(one)
    return first


def _gathered(frame: DataFrame | None) -> DataFrame | None:
    """Repartitions so that each tenant's day is written to one file, or to several if it is large."""
    return None if frame is None else frame.hint("rebalance", *[F.col(name) for name in PARTITIONED_BY])
