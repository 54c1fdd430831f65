"""Publishes an archive back into a queue, each message once: ids are kept, and the queue's `dedupe: id` stores each id
once.

Ids given by producers stay unchanged. Server-assigned ids are offsets, and unique only within a queue, so they are
prefixed with the queue's name and uid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark.source import register
from spark.source.rows import SERVER_ID
from spark.transfer.archive import ROWS

REPLAY_ID = "replay_id"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Selects the messages to replay: `since` and `until` are days (2026-11-23), both inclusive; `where` is SQL over
    the columns."""

    since: str | None = None
    until: str | None = None
    where: str | None = None


def replay(session: SparkSession, folder: str, options: Mapping[str, str], wanted: Wanted | None = None) -> int:
    """Publishes the selected messages to the queue of `options`, and returns how many there were.

    A sealed archive needs its key (`sealKeyFile`, `sealKey`). A failed replay can be started again: nothing is stored
    twice within the queue's `dedupe_window_ms`.
    """
    register(session)
    rows = chosen(session, folder, wanted or Wanted())
    rows.write.format("pushq").options(**{**options, "idColumn": REPLAY_ID}).mode("append").save()
    return rows.count()


def chosen(session: SparkSession, folder: str, wanted: Wanted) -> DataFrame:
    """An archive's selected messages, each with the id to publish it under. Days out of range are not read."""
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
    """The id to publish under, as `told_apart` computes it for a row."""
    own = F.concat_ws(":", F.col("queue"), F.col("uid"), F.col("id"))
    return F.when(F.col("id").rlike(SERVER_ID), own).otherwise(F.col("id"))
