"""Publishes an archive back into a queue, each message once: the ids are kept, and the queue's `dedupe: id` stores an
id once.

An id that a producer gave stays unchanged. An id that the server assigned is an offset, which messages of other queues
have as well, so it is prefixed with the name and the uid of its queue.
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
    """The messages to replay: `since` and `until` are days (2026-11-23), both included; `where` is SQL over the
    columns."""

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
    """An archive's messages, with the id that each is published under. Days out of range are not read."""
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
    return F.when(F.col("id").rlike(PLACE), own).otherwise(F.col("id"))
