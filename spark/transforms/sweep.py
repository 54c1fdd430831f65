"""Checks that ranges follow each other, by a sweep over the points where they begin and end.

Each range becomes two points, and points at the same offset are added up. Where one range ends and the next begins
nothing remains, so only the few remaining points are ever sorted. Points also add up across days: of a day it is enough
to keep its open ends.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

LOG: Final = ["tenant", "queue", "queue_uid", "node", "partition"]
"""Identifies one partition's log in one copy of the data."""
DAY_LOG: Final = ["day", *LOG]
FAULT: Final = ["fault", "from", "to", "messages"]
FINDING: Final = [*LOG, *FAULT]
SUMS: Final = ["starts", "ends", "before", "held"]
FIRSTS: Final = ["at_after", "epoch_after"]
LASTS: Final = ["at_before", "epoch_before"]
POINT: Final = ["point", *SUMS, *FIRSTS, *LASTS]
FLOOR_STEP: Final = 1 << 32
"""In each cluster that a queue moves to, it assigns offsets from a floor on, a multiple of this."""
IS_OPEN: Final = "starts <> 1 or ends <> 1"
"""A point where anything other than one range ends and one begins."""


def points_of(ranges: DataFrame, log: list[str]) -> DataFrame:
    """`POINT` rows of ranges with `log`, `from`, `to`, `before`, `held`, `at` (a number), `epoch`: one per offset."""
    zero, none, one = F.lit(0).cast("long"), F.lit(None).cast("long"), F.lit(1).cast("long")
    begin = [F.col("from"), one, zero, F.col("before"), zero, F.col("at"), F.col("epoch"), none, none]
    end = [F.col("to"), zero, one, zero, F.col("held"), none, none, F.col("at"), F.col("epoch")]
    sides = [F.struct(*[value.alias(name) for name, value in zip(POINT, side, strict=True)]) for side in (begin, end)]
    return added(ranges.select(*log, F.inline(F.array(*sides))), log)


def added(points: DataFrame, log: list[str]) -> DataFrame:
    """Adds up points at the same offset."""
    return points.groupBy(*log, "point").agg(
        *[F.sum(name).alias(name) for name in SUMS],
        *[F.min(name).alias(name) for name in FIRSTS],
        *[F.max(name).alias(name) for name in LASTS],
    )


def findings_of(points: DataFrame, log: list[str]) -> DataFrame:
    """`log` and `FAULT` of points.

    `missing`: no range covers these offsets. `doubled`: several do. `lost` and `appeared`: this many messages fewer, or
    more, than the previous range left. `out_of_order`: a range was closed before the one that it follows.
    """
    return _uneven(points, log).unionByName(faults_at(points, log))


def faults_at(points: DataFrame, log: list[str]) -> DataFrame:
    """The findings at single offsets: what a range expects to be held, compared with what the previous one left, and
    when each was closed. Nothing precedes a log's first offset."""
    meet = F.expr("starts = 1 and (ends = 1 or point = 0)")
    off = F.col("before") - F.col("held")
    back = F.expr("at_after < at_before or epoch_after < epoch_before")
    faults = F.array(
        F.when(meet & (off < 0), _fault("lost", -off)),
        F.when(meet & (off > 0), _fault("appeared", off)),
        F.when(back, _fault("out_of_order", F.lit(None).cast("long"))),
    )
    point = F.col("point")
    found = points.select(*log, point.alias("from"), point.alias("to"), F.inline(F.array_compact(faults)))
    return found.select(*log, *FAULT)


def _fault(name: str, messages: Column) -> Column:
    return F.struct(F.lit(name).alias("fault"), messages.alias("messages"))


def _uneven(points: DataFrame, log: list[str]) -> DataFrame:
    """Offsets covered by no range, or by several: between points where the numbers of ranges that begin and end differ.
    A queue that left a cluster empty, and came back, continues there at a floor."""
    odd = points.where("starts <> ends or starts > 1")
    order = Window.partitionBy(*log).orderBy("point")
    depth = F.sum(F.col("starts") - F.col("ends")).over(order)
    to = F.lead("point").over(order)
    is_new = (
        (to % FLOOR_STEP == 0) & (F.lead("before").over(order) == 0) & (F.col("held") == 0) & (F.col("starts") == 0)
    )
    between = odd.select(
        *log, F.col("point").alias("from"), to.alias("to"), depth.alias("depth"), is_new.alias("is_new")
    )
    faults = F.when((F.col("depth") <= 0) & ~F.col("is_new"), F.lit("missing"))
    faults = faults.when(F.col("depth") > 1, F.lit("doubled"))
    found = between.where(F.col("to").isNotNull()).withColumn("fault", faults).where(F.col("fault").isNotNull())
    return found.withColumn("messages", F.lit(None).cast("long")).select(*log, *FAULT)
