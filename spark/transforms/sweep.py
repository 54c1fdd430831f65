"""Whether ranges follow each other: a sweep over the points where they begin and end.

Each range is two flat points, and points of one place are added up. Where a range ends and the next begins nothing is
left to look at, so only the few places that are odd are ever sorted.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

LOG: Final = ["tenant", "queue", "queue_uid", "node", "partition"]
"""Names one partition's log in one copy of the data."""
FINDING: Final = [*LOG, "fault", "from", "to", "messages"]
_PLACE: Final = [*LOG, "point"]


def findings(ranges: DataFrame) -> DataFrame:
    """`FINDING` rows of ranges with `LOG`, `from`, `to`, `before`, `held`, `at` (a number) and `epoch`.

    `missing`: no range is about these offsets. `doubled`: several are. `lost` and `appeared`: so many messages less,
    or more, than the range before left. `out_of_order`: a range was closed before the one that it follows.
    """
    points = _points(ranges)
    return _uneven(points).unionByName(_unbalanced(points)).unionByName(_disordered(points))


def _points(ranges: DataFrame) -> DataFrame:
    zero, none = F.lit(0).cast("long"), F.lit(None).cast("long")

    def side(point: str, *, begins: bool) -> DataFrame:
        one = F.lit(1).cast("long")
        return ranges.select(
            *LOG,
            F.col(point).alias("point"),
            (one if begins else zero).alias("starts"),
            (zero if begins else one).alias("ends"),
            (F.col("before") if begins else zero).alias("before"),
            (zero if begins else F.col("held")).alias("held"),
            (F.col("at") if begins else none).alias("at_after"),
            (none if begins else F.col("at")).alias("at_before"),
            (F.col("epoch") if begins else none).alias("epoch_after"),
            (none if begins else F.col("epoch")).alias("epoch_before"),
        )

    both = side("from", begins=True).unionByName(side("to", begins=False))
    sums = [F.sum(name).alias(name) for name in ("starts", "ends", "before", "held")]
    firsts = [F.min(name).alias(name) for name in ("at_after", "epoch_after")]
    lasts = [F.max(name).alias(name) for name in ("at_before", "epoch_before")]
    return both.groupBy(*_PLACE).agg(*sums, *firsts, *lasts)


def _uneven(points: DataFrame) -> DataFrame:
    """Offsets that no range is about, or several are: between points where not as many begin as end."""
    odd = points.where("starts <> ends or starts > 1")
    order = Window.partitionBy(*LOG).orderBy("point")
    depth = F.sum(F.col("starts") - F.col("ends")).over(order)
    between = odd.select(
        *LOG, F.col("point").alias("from"), F.lead("point").over(order).alias("to"), depth.alias("depth")
    )
    faults = F.when(F.col("depth") <= 0, F.lit("missing")).when(F.col("depth") > 1, F.lit("doubled"))
    found = between.where(F.col("to").isNotNull()).withColumn("fault", faults).where(F.col("fault").isNotNull())
    return found.withColumn("messages", F.lit(None).cast("long")).select(*FINDING)


def _unbalanced(points: DataFrame) -> DataFrame:
    """What a range supposes was there, against what the one before left; a log's first offset has nothing before."""
    meet = points.where("(starts = 1 and ends = 1 or point = 0 and starts = 1) and before <> held")
    fault = F.when(F.col("before") < F.col("held"), F.lit("lost")).otherwise(F.lit("appeared"))
    return _at_point(meet, fault.alias("fault"), F.abs(F.col("before") - F.col("held")))


def _disordered(points: DataFrame) -> DataFrame:
    back = points.where("at_after < at_before or epoch_after < epoch_before")
    return _at_point(back, F.lit("out_of_order").alias("fault"), F.lit(None).cast("long"))


def _at_point(points: DataFrame, fault: Column, messages: Column) -> DataFrame:
    where = [F.col("point").alias("from"), F.col("point").alias("to")]
    return points.select(*LOG, fault, *where, messages.alias("messages"))
