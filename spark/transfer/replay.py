"""An archive back into a queue, each message once: its id goes with it, and the queue's `dedupe: id` stores an id once.

An id that a producer gave stays as it is. One that the server gave is a place, which a message of another queue has as
well, so it goes with the name and the uid of its queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark.source import register
from spark.source.rows import PLACE
from spark.transfer.archive import ROWS

REPLAY_ID = "replay_id"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which messages: `since` and `until` are days (2026-11-23), both included; `where` is SQL over the columns."""

    since: str | None = None
    until: str | None = None
    where: str | None = None


def replay(session: SparkSession, folder: str, options: Mapping[str, str], wanted: Wanted | None = None) -> int:
    """Publishes what is wanted into the queue of `options`, and returns how many messages that were.

    A sealed archive needs its key (`sealKeyFile`, `sealKey`). Start it again after a failure: what is there is not
    stored twice, for as long as the queue's `dedupe_window_ms` is.
    """
    register(session)
    rows = chosen(session, folder, wanted or Wanted())
    rows.write.format("pushq").options(**{**options, "idColumn": REPLAY_ID}).mode("append").save()
    return rows.count()


def chosen(session: SparkSession, folder: str, wanted: Wanted) -> DataFrame:
    """An archive's messages, by day pruned, with the id that each is published under."""
    rows = session.read.option("basePath", f"{folder.rstrip('/')}/{ROWS}").parquet(f"{folder.rstrip('/')}/{ROWS}")
    day = F.col("day").cast("string")
    if wanted.since is not None:
        rows = rows.where(day >= wanted.since)
    if wanted.until is not None:
        rows = rows.where(day <= wanted.until)
    if wanted.where is not None:
        rows = rows.where(wanted.where)
    return rows.drop("day").withColumn(REPLAY_ID, replay_id())


def replay_id() -> Column:
    """As `told_apart` says it of a row."""
    own = F.concat_ws(":", F.col("queue"), F.col("uid"), F.col("id"))
    return F.when(F.col("id").rlike(PLACE), own).otherwise(F.col("id"))
