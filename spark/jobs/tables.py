"""Tables of Parquet that a job brings up to date: the days that changed are replaced, all of them or none.

New days are written aside and made durable. A journal that names them and the files they were made of is the moment
from which they count; then they move to their places. A run that died before it left nothing; one that died after it is
gone on with by the next. So a file is never counted twice, and never forgotten. The folder is one that every worker has
mounted.

Who writes holds one lock all the time. Days move under a second one, which readers share: readers see all of a run or
nothing of it, and may read while it works.

Several jobs may have tables in one folder. Each notes the files that it has read in a file of its own.
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
"""The files that a job has read, and of each the days it may ask for again."""
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

    def __init__(self, session: SparkSession, folder: Path, done: str = ROLLED_UP):
        self._session = session
        self.folder = folder
        self._done = done

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
                detail = "a job that writes there is at its end, or died at it; run this job again when one has ended"
                raise Busy(f"--from {self.folder}: {detail}") from None
        yield

    def files(self) -> dict[str, list[str]]:
        """The names of the files that are in the tables, with the days that were noted of each."""
        return self._noted(self._done)

    def days(self, table: str) -> set[str]:
        """Those that a table has rows of."""
        return {path.name.partition("=")[2] for path in (self.folder / table).glob("day=*")}

    def read(
        self, table: str, days: Iterable[str] | None = None, *, like: StructType | None = None
    ) -> DataFrame | None:
        """A table, or some days of it, which are all that is read; None while there is nothing. `like`: the columns it
        has now; in days of earlier versions some are null. Without it one of the files says which there are."""
        root = self.folder / table
        places = [root] if days is None else [root / f"day={day}" for day in days]
        paths = [place for place in places if next(place.rglob("*.parquet"), None)]
        if not paths:
            return None
        reader = self._session.read.option("basePath", str(root))
        if like is not None:
            reader = reader.schema(like)
        rows = reader.parquet(*[str(path) for path in paths])
        if "day" not in rows.columns:
            return rows
        tenant = F.coalesce("tenant", F.lit(""))  # the folder of an empty name reads as null
        return rows.withColumns({"day": F.col("day").cast("date"), "tenant": tenant})

    def parts(self, table: str) -> Iterator[pa.Table]:
        """Rows of a table without days, some at a time; none while there is nothing."""
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
        """Puts whole days in the place of what there was, and notes the files they have in them. Of `days`, a table has
        no others than the rows given; None stands for no rows. The tables in `whole` have no days and are replaced at
        once. Where it is called from, the frames may read the tables that they replace."""
        aside = self.folder / _ASIDE / uuid.uuid4().hex
        aside.mkdir(parents=True)
        for name, rows in tables.items():
            if rows is None:
                continue
            writer = rows.write.mode("overwrite").partitionBy(*PARTITIONED_BY)
            writer.option("compression", "zstd").parquet(str(aside / name))
        for name, all_rows in (whole or {}).items():
            all_rows.write.mode("overwrite").option("compression", "zstd").parquet(str(aside / name))
        places = [f"{name}/day={day}" for name in tables for day in days]
        noted = {
            "aside": str(aside.relative_to(self.folder)),
            "done": self._done,
            "files": {name: sorted(files[name]) for name in sorted(files)},
            "gone": [place for place in places if not (aside / place).exists()],
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
        """What is replaced goes aside: at no moment is there nothing of it on the disk."""
        days = {str(day.relative_to(aside)) for day in aside.glob("*/day=*")}
        changed = {*days, *whole, *gone}
        for name in sorted(changed):
            new, place, old = aside / name, self.folder / name, aside / _OLD / name
            if place.exists() and (new.exists() or name in gone):
                old.parent.mkdir(parents=True, exist_ok=True)
                place.rename(old)
            if new.exists():
                place.parent.mkdir(exist_ok=True)
                new.rename(place)
        for table in {name.partition("/")[0] for name in changed} | {table.name for table in aside.glob("*")}:
            if (place := self.folder / table).is_dir():
                sync(place)
        sync(self.folder)


def _by_name(files: Mapping[str, list[str]] | list[str]) -> dict[str, list[str]]:
    """Names alone were noted once."""
    return dict(files) if isinstance(files, Mapping) else {name: [] for name in files}


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
