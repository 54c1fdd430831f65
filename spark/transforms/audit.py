"""The delivery audit: every published offset is settled, dead-lettered, expired or outstanding.

For each range of a log, the ledger has the number of messages that came and went. `parts_of` collects a range's rows,
and `ranges_of` adds them up. `day_of` computes what is kept of a day: the sums of each log, faults within the day, and
the points where its ranges do not meet others of that day. `queues_of` and `faults_of` combine days.

Everything before those can be merged: the result for a day does not depend on the files or the order of its rows.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark.transforms import sweep
from spark.transforms.sweep import DAY_LOG, FAULT, LOG, POINT
from spark.usage_schema import LEDGER_FLOWS

COLUMNS: Final = [*LOG, "epoch", "kind", "from", "to", "count", "at"]
"""The fields of the ledger that an audit reads."""
REPORTED: Final = ["published", "settled", "read", "dead_lettered", "expired", "lost", "unexplained"]
RANGE: Final = [*DAY_LOG, "from", "to"]
OTHER_IN: Final = [kind for kind, sign in LEDGER_FLOWS.items() if sign > 0 and kind not in REPORTED]
OTHER_OUT: Final = [kind for kind, sign in LEDGER_FLOWS.items() if sign < 0 and kind not in REPORTED]
FLOWS: Final = [*REPORTED, "other_in", "other_out"]
PIECE: Final = [*DAY_LOG, "from", "to", "epoch", "at", "before", "held", *FLOWS]
"""The columns of ranges, and of other segments of a log that are known to be complete."""


def parts_of(ledger: DataFrame) -> DataFrame:
    """One row per range and day. Rows repeated across files count once; `least_…` and `at_last` show differences."""
    count, kind, at = F.col("count"), F.col("kind"), F.unix_millis(F.col("at"))
    return ledger.groupBy(F.to_date("at").alias("day"), *LOG, "from", "to").agg(
        F.min("epoch").alias("epoch"),
        F.min(at).alias("at"),
        F.max(at).alias("at_last"),
        *[F.max(F.when(kind == name, count)).alias(name) for name in LEDGER_FLOWS],
        *[F.min(F.when(kind == name, count)).alias(f"least_{name}") for name in LEDGER_FLOWS],
    )


def merged(parts: DataFrame) -> DataFrame:
    """Merges the parts of each range."""
    return parts.groupBy(*RANGE).agg(
        *[F.min(name).alias(name) for name in ("epoch", "at")],
        *[F.max(name).alias(name) for name in ("at_last", *LEDGER_FLOWS)],
        *[F.min(f"least_{name}").alias(f"least_{name}") for name in LEDGER_FLOWS],
    )


def ranges_of(parts: DataFrame) -> DataFrame:
    """`PIECE` rows of ranges, each present once. `is_at_odds`: repeats of its rows differ; `is_incomplete`: a row that
    every range must have is missing."""
    differ = F.col("at_last") != F.col("at")
    for kind in LEDGER_FLOWS:
        differ = differ | F.coalesce(F.col(kind) != F.col(f"least_{kind}"), F.lit(False))
    flow = _sum([F.lit(sign) * _count(kind) for kind, sign in LEDGER_FLOWS.items() if sign])
    return parts.select(
        *RANGE,
        "epoch",
        "at",
        (_count("held") - flow).alias("before"),
        *[_count(kind).alias(kind) for kind in ("held", *REPORTED)],
        _sum([_count(kind) for kind in OTHER_IN]).alias("other_in"),
        _sum([_count(kind) for kind in OTHER_OUT]).alias("other_out"),
        differ.alias("is_at_odds"),
        (F.col("published").isNull() | F.col("held").isNull()).alias("is_incomplete"),
    )


def judged(ranges: DataFrame) -> DataFrame:
    """`DAY_LOG` and `FAULT` of individual ranges that are incomplete, at odds, or report losses."""
    none = F.lit(None).cast("long")
    checks = [
        (F.col("is_at_odds"), "at_odds", none),
        (F.col("is_incomplete"), "incomplete", none),
        (F.col("lost") > 0, "lost", F.col("lost")),
        (F.col("unexplained") != 0, "unexplained", F.col("unexplained")),
    ]
    faults = [F.when(is_so, F.struct(F.lit(name).alias("fault"), n.alias("messages"))) for is_so, name, n in checks]
    found = ranges.select(*RANGE, F.inline(F.array_compact(F.array(*faults))))
    return found.select(*DAY_LOG, *FAULT)


def day_of(pieces: DataFrame, wrong: DataFrame | None) -> DataFrame:
    """What is kept of days, computed from all their `PIECE` rows and the faults within these. `row` is `log`, `fault`,
    or `open`: a point that ranges of other days may meet."""
    points = sweep.points_of(pieces, DAY_LOG)
    faults = sweep.faults_at(points.where(f"not ({sweep.IS_OPEN})"), DAY_LOG)
    if wrong is not None:
        faults = faults.unionByName(wrong)
    ends = points.where(sweep.IS_OPEN)
    rows = _logs_of_days(pieces).withColumn("row", F.lit("log"))
    for name, more in (("fault", faults), ("open", ends)):
        rows = rows.unionByName(more.withColumn("row", F.lit(name)), allowMissingColumns=True)
    return rows


def faults_of(days: DataFrame) -> DataFrame:
    """`FINDING` rows of all days: faults within each day, and those where days meet."""
    inside = days.where("row = 'fault'").select(*LOG, *FAULT)
    ends = sweep.added(days.where("row = 'open'").select(*LOG, *POINT), LOG)
    return inside.unionByName(sweep.findings_of(ends, LOG))


def queues_of(days: DataFrame) -> DataFrame:
    """One row per queue, over all days. `is_accounted`: the initial and the incoming messages, minus the outgoing ones,
    equal the outstanding ones."""
    sums = [F.sum(name).alias(name) for name in FLOWS]
    logs = days.where("row = 'log'").groupBy(*LOG).agg(*sums, _first("before", "from"), _last("held", "to"))
    names = ["before", *FLOWS, "held"]
    total = logs.groupBy("tenant", "queue", "queue_uid").agg(*[F.sum(name).alias(name) for name in names])
    came = F.col("before") + F.col("published") + F.col("other_in")
    went = _sum([F.col(name) for name in ("settled", "expired", "lost", "other_out")])
    named = total.withColumnRenamed("held", "outstanding")
    return named.withColumn("is_accounted", came - went == F.col("outstanding"))


def _logs_of_days(pieces: DataFrame) -> DataFrame:
    """For each day and log: the messages in and out, where it begins and ends, and what was held there."""
    sums = [F.sum(name).alias(name) for name in FLOWS]
    ends = [F.min("from").alias("from"), F.max("to").alias("to")]
    return pieces.groupBy(*DAY_LOG).agg(*sums, _first("before", "from"), _last("held", "to"), *ends)


def _first(name: str, offset: str) -> Column:
    """The value at the smallest offset; the smallest value if there are several."""
    return F.min(F.struct(offset, name))[name].alias(name)


def _last(name: str, offset: str) -> Column:
    return F.max(F.struct(offset, name))[name].alias(name)


def _count(kind: str) -> Column:
    return F.coalesce(F.col(kind), F.lit(0).cast("long"))


def _sum(columns: list[Column]) -> Column:
    total = columns[0]
    for column in columns[1:]:
        total = total + column
    return total
