"""Anomalies: each queue's hours compared with the same hour of earlier weeks, and the alerts they suggest."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

QUEUE: Final = ["tenant", "queue", "queue_uid"]
SCALE: Final = 1.4826
"""The median absolute deviation times this is the standard deviation of a normal distribution."""
SILENT_HOURS_MAX: Final = 8 * 24
"""A queue that is silent for longer is no longer in use."""
MEASURES: Final = ("published", "settled", "held")


def hours_of(flows: DataFrame, until: int) -> DataFrame:
    """One row per hour of a queue: published, settled, and the maximum held; `slot` is the hour of the week.

    The ledger has no rows for hours in which nothing happened to a queue. These are filled in with nothing published or
    settled, and with what the previous hour left held: from a queue's first hour up to the hour `until`, in seconds
    since 1970, which may not be over yet, and at most `SILENT_HOURS_MAX` after its last hour.
    """
    hour = F.date_trunc("hour", "at")
    partitions = flows.groupBy(*QUEUE, "node", "partition", hour.alias("hour")).agg(
        F.sum("published").alias("published"),
        F.sum("settled").alias("settled"),
        F.max("held").alias("held"),
        F.max_by("held", "to").alias("left"),
        F.max("deleted").alias("deleted"),
    )
    hours = partitions.groupBy(*QUEUE, "hour").agg(
        F.sum("published").alias("published"),
        F.sum("settled").alias("settled"),
        F.max("held").alias("held"),
        F.max("left").alias("left"),
        (F.max("deleted") > 0).alias("is_deleted"),
    )
    return _filled(hours, until).withColumn("slot", F.dayofweek("hour") * 24 + F.hour("hour"))


def _filled(hours: DataFrame, until: int) -> DataFrame:
    """Each hour, followed by the empty hours before the queue's next one."""
    an_hour = F.expr("interval 1 hour")
    longest = F.col("hour") + F.expr(f"interval {SILENT_HOURS_MAX + 1} hours")
    silent_until = F.least(longest, F.timestamp_seconds(F.lit(until)))
    end = F.when(F.col("is_deleted"), F.col("hour") + an_hour).otherwise(silent_until)
    queue = Window.partitionBy(*QUEUE).orderBy("hour")
    bounded = hours.withColumn("following", F.coalesce(F.lead("hour").over(queue), end))
    last = F.greatest(F.col("hour"), F.col("following") - an_hour)
    spread = bounded.withColumn("filled", F.explode(F.sequence("hour", last, an_hour)))
    is_told, zero = F.col("filled") == F.col("hour"), F.lit(0).cast("long")
    return spread.select(
        *QUEUE,
        F.col("filled").alias("hour"),
        F.when(is_told, F.col("published")).otherwise(zero).alias("published"),
        F.when(is_told, F.col("settled")).otherwise(zero).alias("settled"),
        F.when(is_told, F.col("held")).otherwise(F.col("left")).alias("held"),
    )


def anomalies(hours: DataFrame, *, since: str, weeks_min: int, sigmas: float, messages_min: int) -> DataFrame:
    """Hours from `since` (RFC 3339) on that differ from the median of their slot in earlier weeks by more than `sigmas`
    deviations and more than `messages_min` messages. Slots with fewer than `weeks_min` weeks are not judged."""
    long = hours.select(
        *QUEUE,
        "hour",
        "slot",
        F.explode(F.create_map(*[part for name in MEASURES for part in (F.lit(name), F.col(name))])).alias(
            "measure", "value"
        ),
    )
    start = F.to_timestamp(F.lit(since))
    before = long.where(F.col("hour") < start)
    key = [*QUEUE, "slot", "measure"]
    middle = before.groupBy(*key).agg(F.median("value").alias("median"), F.count(F.lit(1)).alias("weeks"))
    off = (
        before.join(middle, key).groupBy(*key).agg(F.median(F.abs(F.col("value") - F.col("median"))).alias("deviation"))
    )
    judged = long.where(F.col("hour") >= start).join(middle, key).join(off, key)
    # A queue that never varies has no deviation: a tenth of its median is used instead.
    scale = F.greatest(F.col("deviation") * SCALE, F.col("median") * 0.1, F.lit(1.0))
    away = F.col("value") - F.col("median")
    found = judged.withColumn("score", away / scale).where(
        (F.col("weeks") >= weeks_min) & (F.abs("score") > sigmas) & (F.abs(away) >= messages_min)
    )
    return found.select(*QUEUE, "hour", "measure", "value", "median", "score", "weeks")


def suggestions(found: DataFrame) -> DataFrame:
    """One row per queue and measure: a threshold that the baseline stays under or over, and how often it is crossed."""
    up = F.col("score") > 0
    return found.groupBy(*QUEUE, "measure", F.when(up, "above").otherwise("below").alias("side")).agg(
        F.count(F.lit(1)).alias("hours"),
        F.min("median").alias("usual_least"),
        F.max("median").alias("usual_most"),
        F.ceil(F.max("median") + F.max(F.abs(F.col("value") - F.col("median"))) / 2).alias("high"),
        F.floor(F.min("median") / 2).alias("low"),
        F.max(F.abs("score")).alias("score_max"),
    )
