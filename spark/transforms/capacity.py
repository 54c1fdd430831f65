"""Capacity: growth, peaks and skew of each queue, from its flows, and advice on partitions.

Days are sums of `flows`. Growth is the slope of a line fitted to a queue's daily bytes; skew is the share of its
fullest partition as a multiple of an even share.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

QUEUE: Final = ["tenant", "queue", "queue_uid"]
FULL_SHARE: Final = 0.8
SKEWED: Final = 2.0
"""From this multiple of an even share on, more partitions do not help: a single key causes the load."""
HOT_SHARE: Final = 0.2
"""A queue with this share of all messages is hot."""
_SECONDS_PER_DAY: Final = 86_400


def queues(flows: DataFrame) -> DataFrame:
    """One row per queue: messages and bytes per day, peak per second, growth, skew, and its share of everything."""
    first = F.datediff("day", F.lit("1970-01-01"))
    per_day = flows.groupBy(*QUEUE, first.alias("at_day")).agg(
        F.sum("published").alias("published"), F.sum("published_bytes").alias("bytes")
    )
    trend = per_day.groupBy(*QUEUE).agg(
        F.count(F.lit(1)).alias("days"),
        F.avg("published").alias("published_per_day"),
        F.avg("bytes").alias("bytes_per_day"),
        F.coalesce(_slope("bytes"), F.lit(0.0)).alias("bytes_growth_per_day"),
    )
    per_minute = flows.groupBy(*QUEUE, F.date_trunc("minute", "at").alias("minute")).agg(F.sum("published").alias("n"))
    peak = per_minute.groupBy(*QUEUE).agg((F.max("n") / 60).alias("peak_per_second"))
    logs = flows.groupBy(*QUEUE, "node", "partition").agg(F.sum("published").alias("n"), _last("held_bytes"))
    skew = logs.groupBy(*QUEUE).agg(
        F.countDistinct("partition").alias("partitions"),
        (F.max("n") * F.countDistinct("partition") / F.greatest(F.sum("n"), F.lit(1))).alias("skew"),
        F.sum("held_bytes").alias("held_bytes"),
    )
    whole = trend.agg(F.sum("published_per_day").alias("everything"))
    joined = trend.join(peak, QUEUE).join(skew, QUEUE).crossJoin(F.broadcast(whole))
    share = F.col("published_per_day") / F.greatest(F.col("everything"), F.lit(1.0))
    return joined.withColumn("share", share).drop("everything")


def with_days_left(queues: DataFrame, *, storage_bytes: int) -> DataFrame:
    """`days_left` until all stored data, at its growth, fills 80 % of the storage; null for never."""
    totals = queues.agg(F.sum("held_bytes").alias("all_held"), F.sum("held_growth_per_day").alias("all_growth"))
    room = F.lit(storage_bytes * FULL_SHARE) - F.col("all_held")
    days = F.when(room <= 0, 0.0).when(F.col("all_growth") > 0, room / F.col("all_growth"))
    return queues.crossJoin(F.broadcast(totals)).withColumn("days_left", days).drop("all_held", "all_growth")


def with_held_growth(queues: DataFrame, flows: DataFrame) -> DataFrame:
    """`held_growth_per_day`: the daily growth of a queue's stored bytes."""
    day = F.datediff("day", F.lit("1970-01-01"))
    ends = flows.groupBy(*QUEUE, "node", "partition", day.alias("at_day")).agg(_last("held_bytes"))
    slopes = ends.groupBy(*QUEUE, "node", "partition").agg(F.coalesce(_slope("held_bytes"), F.lit(0.0)).alias("slope"))
    grown = slopes.groupBy(*QUEUE).agg(F.sum("slope").alias("held_growth_per_day"))
    return queues.join(grown, QUEUE, "left").fillna(0.0, ["held_growth_per_day"])


def with_advice(queues: DataFrame, *, per_partition_per_second: float) -> DataFrame:
    """`partitions_wanted` for twice the peak, `is_hot`, `is_skewed`."""
    needed = F.ceil(F.col("peak_per_second") * 2 / F.lit(per_partition_per_second)).cast("long")
    return queues.withColumns(
        {
            "is_skewed": (F.col("skew") >= SKEWED) & (F.col("partitions") > 1),
            "is_hot": F.col("share") >= HOT_SHARE,
            "partitions_wanted": F.greatest(F.col("partitions"), needed),
        }
    )


def with_cost(queues: DataFrame, *, per_million_messages: float, per_gigabyte: float) -> DataFrame:
    """`cost_per_day` and `cost_per_million`, in the currency of the prices; a gigabyte is 10^9 bytes."""
    cost = F.col("published_per_day") / 1e6 * per_million_messages + F.col("bytes_per_day") / 1e9 * per_gigabyte
    each = F.when(F.col("published_per_day") > 0, F.col("cost_per_day") / F.col("published_per_day") * 1e6)
    return queues.withColumn("cost_per_day", cost).withColumn("cost_per_million", each)


def _slope(name: str) -> Column:
    """The slope of a line fitted to the daily values; null for a single day."""
    return F.regr_slope(F.col(name).cast("double"), F.col("at_day").cast("double"))


def _last(name: str) -> Column:
    return F.max_by(name, "to").alias(name)
