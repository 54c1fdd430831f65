"""Tables of Parquet that a job brings up to date: the days that changed are replaced, all of them or none.

New days are written aside and made durable. A journal that names them and the files they were made of is the moment
from which they count; then they move to their places. A run that died before it left nothing; one that died after it is
gone on with by the next. So a file is never counted twice, and never forgotten. The folder is one that every worker has
mounted.

Who writes holds one lock all the time. Days move under a second one, which readers share: readers see all of a run or
nothing of it, and may read while it works.
"""

from __future__ import annotations

import errno
import fcntl
import json
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark.jobs.durable import sync, sync_below, write_whole

_DONE: Final = "_files.json"
_JOURNAL: Final = "_journal.json"
_LOCK: Final = "_lock"
_READERS: Final = "_readers"
_ASIDE: Final = "_aside"
_OLD: Final = "old"
_READ_ONLY: Final = (errno.EACCES, errno.EPERM, errno.EROFS)
PARTITIONED_BY: Final = ("day", "tenant")


class Busy(RuntimeError):
    """Somebody else is about to change the folder."""


class Tables:
    """The tables of one folder. `files` and `replace` are for who is `alone` in it."""

    def __init__(self, session: SparkSession, folder: Path):
        self._session = session
        self.folder = folder

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else writes meanwhile, and what an earlier run left is brought to its end. Raises `Busy`."""
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
        """All days stay in their places meanwhile. What a run that died left is brought to its end. Raises `Busy` where
        one waits for readers to leave."""
        while self.folder.is_dir():
            with _held(self.folder / _READERS, fcntl.LOCK_SH):
                if not (self.folder / _JOURNAL).exists():
                    yield
                    return
            try:
                with self.alone():
                    pass
            except (Busy, OSError):
                detail = "a run of usage_rollup is at its end, or died there; run this job again when one has ended"
                raise Busy(f"--from {self.folder}: {detail}") from None
        yield

    def files(self) -> set[str]:
        """The names of the files that are in the tables."""
        path = self.folder / _DONE
        return set(json.loads(path.read_text())) if path.exists() else set()

    def read(self, table: str, days: Iterable[str] | None = None) -> DataFrame | None:
        """A table, or some days of it, which are all that is read; None while there is nothing."""
        root = self.folder / table
        if days is None:
            paths = [root] if root.exists() else []
        else:
            paths = [path for day in days if (path := root / f"day={day}").exists()]
        if not paths:
            return None
        reader = self._session.read.option("basePath", str(root))
        rows = reader.parquet(*[str(path) for path in paths])
        tenant = F.coalesce("tenant", F.lit(""))  # the folder of an empty name reads as null
        return rows.withColumns({"day": F.col("day").cast("date"), "tenant": tenant})

    def replace(self, tables: Mapping[str, DataFrame], files: Iterable[str]) -> None:
        """Puts whole days in the place of what there was, and notes the files they have in them. Where it is called
        from, the frames may read the tables that they replace."""
        aside = self.folder / _ASIDE / uuid.uuid4().hex
        for name, rows in tables.items():
            writer = rows.write.mode("overwrite").partitionBy(*PARTITIONED_BY)
            writer.option("compression", "zstd").parquet(str(aside / name))
        sync_below(aside)
        sync(self.folder / _ASIDE)
        sync(self.folder)
        noted = {"aside": str(aside.relative_to(self.folder)), "files": sorted(files)}
        write_whole(self.folder / _JOURNAL, json.dumps(noted))
        self._recover()

    def _recover(self) -> None:
        journal = self.folder / _JOURNAL
        if journal.exists():
            noted = json.loads(journal.read_text())
            with _held(self.folder / _READERS, fcntl.LOCK_EX):
                self._move(self.folder / noted["aside"])
            write_whole(self.folder / _DONE, json.dumps(sorted(self.files() | set(noted["files"]))))
            journal.unlink()
        shutil.rmtree(self.folder / _ASIDE, ignore_errors=True)

    def _move(self, aside: Path) -> None:
        """A day that is replaced goes aside: at no moment is there nothing of it on the disk."""
        for day in sorted(aside.glob("*/day=*")):
            place, old = self.folder / day.parent.name / day.name, aside / _OLD / day.parent.name / day.name
            place.parent.mkdir(exist_ok=True)
            if place.exists():
                old.parent.mkdir(parents=True, exist_ok=True)
                place.rename(old)
            day.rename(place)
        for table in aside.glob("*"):
            if (place := self.folder / table.name).is_dir():
                sync(place)
        sync(self.folder)


@contextmanager
def _held(path: Path, how: int) -> Iterator[None]:
    """A lock on a file, for as long. Raises `BlockingIOError`. Who may only read the folder locks what is there."""
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
