"""The live usage page that gateways show: one file per tenant with the last hour, rewritten when a minute changes.

`now.json` names the current folder. It is replaced once everything in that folder is durable, and its modification time
is updated while the job runs. A reader therefore gets one complete version of the page, and sees when the job has
stopped.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark.jobs.durable import sync_below, write_whole
from spark.transforms import live

PAGE_FOLDER: Final = "console"
"""The subfolder of the job's output that gateways read."""
VERSION: Final = 1
FOLDERS_KEPT: Final = 3
"""The current folder and the ones before it, so that a reader can finish the version it started with."""
_NOW: Final = "now.json"
_PREFIX: Final = "page-"
_ROWS: Final = "rows"
_TIME: Final = "yyyy-MM-dd'T'HH:mm:ss'Z'"


class LivePage:
    """The page versions in a folder, written by one job. Every step may be repeated."""

    def __init__(self, session: SparkSession, folder: Path):
        self._session = session
        self._folder = folder

    def begin(self) -> None:
        """Writes an empty page if there is none yet."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if not (self._folder / _NOW).exists():
            self._point(None, None)

    def turn(self, changed: DataFrame) -> None:
        """Replaces the rows of the minutes in `changed`, which has rows of `live.live`."""
        changed = changed.drop("day").persist()
        try:
            newest = changed.agg(F.date_format(F.max("minute"), _TIME).alias("last")).first()
            if newest is not None and newest["last"] is not None:
                self._make(changed, newest["last"])
        finally:
            changed.unpersist()

    def _make(self, changed: DataFrame, newest: str) -> None:
        current: dict[str, Any] = json.loads((self._folder / _NOW).read_text())
        last = max(newest, current["last_minute"] or "")
        name = f"{_PREFIX}{uuid.uuid4().hex}"
        folder = self._folder / name
        rows = live.brought_up_to_date(self._rows(current["folder"], like=changed), changed, last)
        rows.coalesce(1).write.parquet(str(folder / _ROWS))
        page = live.page_of(self._session.read.parquet(str(folder / _ROWS))).repartition(1)
        page.write.partitionBy("tenant").json(str(folder / "tenants"))
        sync_below(folder)
        self._point(name, last)
        self._clear()

    def is_alive(self) -> None:
        """Marks the job as running, even if there was nothing to count."""
        os.utime(self._folder / _NOW)

    def _point(self, name: str | None, until: str | None) -> None:
        write_whole(self._folder / _NOW, json.dumps({"version": VERSION, "folder": name, "last_minute": until}))

    def _rows(self, name: str | None, *, like: DataFrame) -> DataFrame:
        """The rows of the current page; none if the page was removed."""
        folder = self._folder / str(name) / _ROWS
        return self._session.read.parquet(str(folder)) if folder.is_dir() else like.limit(0)

    def _clear(self) -> None:
        """Removes old folders, each atomically to readers."""
        there = sorted(self._folder.glob(f"{_PREFIX}*"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in there[FOLDERS_KEPT:]:
            path.rename(path.with_name(f"_{path.name}"))
        for path in self._folder.glob(f"_{_PREFIX}*"):
            shutil.rmtree(path, ignore_errors=True)
