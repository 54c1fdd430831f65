"""Parquet tables that a job updates: the changed days are replaced, all or none.

New days are written aside and made durable. They take effect when a journal names them and the files they were made
from; then they are moved into place. A run that dies before the journal is written leaves nothing behind; the work of
one that dies later is completed by the next run. So no file is ever counted twice or lost. The folder must be mounted
on every worker.

A writer holds one lock throughout. It moves days under a second lock, which readers share: readers see all of a run or
nothing of it, and may read while the writer works.

Several jobs may keep tables in one folder. Each records the files that it has read in a file of its own.
"""

from __future__ import annotations

import errno
import fcntl
import json
import shutil
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow.dataset import dataset  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark.jobs.durable import sync, sync_below, write_whole

ROLLED_UP: Final = "_files.json"
AUDITED: Final = "_audited.json"
"""The files that a job has read, each with the days for which it may have to be read again."""
_JOURNAL: Final = "_journal.json"
_LOCK: Final = "_lock"
_READERS: Final = "_readers"
_ASIDE: Final = "_aside"
_OLD: Final = "old"
_READ_ONLY: Final = (errno.EACCES, errno.EPERM, errno.EROFS)
PARTITIONED_BY: Final = ("day", "tenant")


class Busy(RuntimeError):
    """Another job is changing the folder."""


class Tables:
    """The tables of one folder. Call `files` and `replace` only within `alone`."""

    def __init__(self, session: SparkSession, folder: Path, done: str = ROLLED_UP):
        self._session = session
        self.folder = folder
        self._done = done

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Excludes other writers, and completes what an earlier run left unfinished. Raises `Busy`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as held:
            try:
                held.enter_context(_held(self.folder / _LOCK, fcntl.LOCK_EX | fcntl.LOCK_NB))
            except BlockingIOError:
                raise Busy(f"--to {self.folder}: another job writes there; run this one when it has ended") from None
            self._recover()
            yield

    @contextmanager
    def still(self) -> Iterator[None]:
        """Keeps all days in place meanwhile, after completing the work of a run that died. Raises `Busy` if a writer is
        waiting for readers to finish."""
        while self.folder.is_dir():
            with _held(self.folder / _READERS, fcntl.LOCK_SH):
                if not (self.folder / _JOURNAL).exists():
                    yield
                    return
            try:
                with self.alone():
                    pass
            except (Busy, OSError):
                detail = "a job is replacing days there, or died doing so; run this job again when it has ended"
                raise Busy(f"--from {self.folder}: {detail}") from None
        yield

    def files(self) -> dict[str, list[str]]:
        """The names of the files in the tables, with the days recorded for each."""
        return self._noted(self._done)

    def days(self, table: str) -> set[str]:
        """The days for which a table has rows."""
        return {path.name.partition("=")[2] for path in (self.folder / table).glob("day=*")}

    def read(
        self, table: str, days: Iterable[str] | None = None, *, like: StructType | None = None
    ) -> DataFrame | None:
        """A table, or only some days of it; None if it is empty. `like`: the table's current columns; those that
        earlier versions did not write are null in their days. Without it, the columns are those of one of the files."""
        root = self.folder / table
        folders = [root] if days is None else [root / f"day={day}" for day in days]
        paths = [path for path in folders if next(path.rglob("*.parquet"), None)]
        if not paths:
            return None
        reader = self._session.read.option("basePath", str(root))
        if like is not None:
            reader = reader.schema(like)
        rows = reader.parquet(*[str(path) for path in paths])
        if "day" not in rows.columns:
            return rows
        tenant = F.coalesce("tenant", F.lit(""))  # the partition folder of an empty name reads as null
        return rows.withColumns({"day": F.col("day").cast("date"), "tenant": tenant})

    def parts(self, table: str) -> Iterator[pa.Table]:
        """Rows of a table without days, in parts; none if it is empty."""
        root = self.folder / table
        if root.exists():
            for batch in dataset(root, format="parquet").to_batches():
                if batch.num_rows:
                    yield pa.Table.from_batches([batch])

    def replace(
        self,
        tables: Mapping[str, DataFrame | None],
        files: Mapping[str, Collection[str]],
        *,
        days: Iterable[str] = (),
        whole: Mapping[str, DataFrame] | None = None,
    ) -> None:
        """Replaces whole days, and records the files that they contain. For each of `days`, a table then has only the
        given rows; None means no rows. The tables in `whole` have no days, and are replaced entirely. The frames may
        read the tables that they replace."""
        aside = self.folder / _ASIDE / uuid.uuid4().hex
        aside.mkdir(parents=True)
        for name, rows in tables.items():
            if rows is None:
                continue
            writer = rows.write.mode("overwrite").partitionBy(*PARTITIONED_BY)
            writer.option("compression", "zstd").parquet(str(aside / name))
        for name, all_rows in (whole or {}).items():
            all_rows.write.mode("overwrite").option("compression", "zstd").parquet(str(aside / name))
        day_folders = [f"{name}/day={day}" for name in tables for day in days]
        noted = {
            "aside": str(aside.relative_to(self.folder)),
            "done": self._done,
            "files": {name: sorted(files[name]) for name in sorted(files)},
            "gone": [path for path in day_folders if not (aside / path).exists()],
            "whole": sorted(whole or {}),
        }
        sync_below(aside)
        sync(self.folder / _ASIDE)
        sync(self.folder)
        write_whole(self.folder / _JOURNAL, json.dumps(noted))
        self._recover()

    def _noted(self, done: str) -> dict[str, list[str]]:
        path = self.folder / done
        noted = json.loads(path.read_text()) if path.exists() else {}
        return _by_name(noted)

    def _recover(self) -> None:
        journal = self.folder / _JOURNAL
        if journal.exists():
            noted = json.loads(journal.read_text())
            aside, done = self.folder / noted["aside"], noted.get("done", ROLLED_UP)
            with _held(self.folder / _READERS, fcntl.LOCK_EX):
                self._move(aside, noted.get("whole", ()), noted.get("gone", ()))
            write_whole(self.folder / done, json.dumps(self._noted(done) | _by_name(noted["files"]), sort_keys=True))
            journal.unlink()
        shutil.rmtree(self.folder / _ASIDE, ignore_errors=True)

    def _move(self, aside: Path, whole: Iterable[str], gone: Iterable[str]) -> None:
        """Moves replaced data aside before new data into place: no day is ever missing from the disk."""
        days = {str(day.relative_to(aside)) for day in aside.glob("*/day=*")}
        changed = {*days, *whole, *gone}
        for name in sorted(changed):
            new, current, old = aside / name, self.folder / name, aside / _OLD / name
            if current.exists() and (new.exists() or name in gone):
                old.parent.mkdir(parents=True, exist_ok=True)
                current.rename(old)
            if new.exists():
                current.parent.mkdir(exist_ok=True)
                new.rename(current)
        for table in {name.partition("/")[0] for name in changed} | {table.name for table in aside.glob("*")}:
            if (path := self.folder / table).is_dir():
                sync(path)
        sync(self.folder)


def _by_name(files: Mapping[str, list[str]] | list[str]) -> dict[str, list[str]]:
    """Converts the records of older versions, which contain only names."""
    return dict(files) if isinstance(files, Mapping) else {name: [] for name in files}


@contextmanager
def _held(path: Path, how: int) -> Iterator[None]:
    """Holds a lock on a file. Raises `BlockingIOError`. A reader without write permission locks an existing file, or
    else nothing."""
    try:
        file = path.open("a")
    except OSError as error:
        if error.errno not in _READ_ONLY:
            raise
        if not path.exists():
            yield
            return
        file = path.open()
    with file:
        fcntl.flock(file, how)
        yield
