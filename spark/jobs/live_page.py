"""What a gateway shows of live usage: a file for each tenant about the last hour, made anew whenever a minute changes.

`now.json` names the folder that counts. It is replaced when all that the folder has is durable, and its time is set
while the job lives. So who reads has one whole page or the next, and sees when nobody writes any more.
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

PLACE: Final = "console"
"""Of the job's folder, what gateways read."""
VERSION: Final = 1
FOLDERS_KEPT: Final = 3
"""The one that counts and those before it: whoever began to read one comes to its end."""
_NOW: Final = "now.json"
_PREFIX: Final = "page-"
_ROWS: Final = "rows"
_TIME: Final = "yyyy-MM-dd'T'HH:mm:ss'Z'"


class LivePage:
    """The pages in a folder, as one job writes them. Everything here may be done twice."""

    def __init__(self, session: SparkSession, folder: Path):
        self._session = session
        self._folder = folder

    def begin(self) -> None:
        """Where there is nothing yet, says so."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if not (self._folder / _NOW).exists():
            self._point(None, None)

    def turn(self, changed: DataFrame) -> None:
        """Puts rows of `live.live` in the place of what was there of the same minutes."""
        changed = changed.drop("day").persist()
        try:
            newest = changed.agg(F.date_format(F.max("minute"), _TIME).alias("last")).first()
            if newest is not None and newest["last"] is not None:
                self._make(changed, newest["last"])
        finally:
            changed.unpersist()

    def _make(self, changed: DataFrame, newest: str) -> None:
        told: dict[str, Any] = json.loads((self._folder / _NOW).read_text())
        last = max(newest, told["last_minute"] or "")
        name = f"{_PREFIX}{uuid.uuid4().hex}"
        place = self._folder / name
        rows = live.brought_up_to_date(self._rows(told["folder"], like=changed), changed, last)
        rows.coalesce(1).write.parquet(str(place / _ROWS))
        page = live.page_of(self._session.read.parquet(str(place / _ROWS))).repartition(1)
        page.write.partitionBy("tenant").json(str(place / "tenants"))
        sync_below(place)
        self._point(name, last)
        self._clear()

    def is_alive(self) -> None:
        """Says that the job is at work, whether or not there was anything to count."""
        os.utime(self._folder / _NOW)

    def _point(self, name: str | None, until: str | None) -> None:
        write_whole(self._folder / _NOW, json.dumps({"version": VERSION, "folder": name, "last_minute": until}))

    def _rows(self, name: str | None, *, like: DataFrame) -> DataFrame:
        """Those of the page that counts; none where somebody has removed it."""
        place = self._folder / str(name) / _ROWS
        return self._session.read.parquet(str(place)) if place.is_dir() else like.limit(0)

    def _clear(self) -> None:
        """Removes what counts no more, a whole folder at once to who looks."""
        there = sorted(self._folder.glob(f"{_PREFIX}*"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in there[FOLDERS_KEPT:]:
            path.rename(path.with_name(f"_{path.name}"))
        for path in self._folder.glob(f"_{_PREFIX}*"):
            shutil.rmtree(path, ignore_errors=True)
