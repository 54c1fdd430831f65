"""The audit of deliveries: every offset that was published is settled, dead-lettered, expired or outstanding.

The ledger says of each range of a log what came and what went. `ranges_of` puts a range's rows together, `judged` finds
what is wrong inside a range, `sweep.findings` what is wrong between them, and `totals_of` adds up each queue.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark.transforms.sweep import FINDING, LOG, findings
from spark.usage_schema import LEDGER_FLOWS

COLUMNS: Final = [*LOG, "epoch", "kind", "from", "to", "count", "at"]
"""What an audit reads of the ledger."""
TOLD: Final = ["published", "settled", "read", "dead_lettered", "expired", "lost", "unexplained"]
RANGE: Final = [*LOG, "from", "to"]
OTHER_IN: Final = [kind for kind, sign in LEDGER_FLOWS.items() if sign > 0 and kind not in TOLD]
OTHER_OUT: Final = [kind for kind, sign in LEDGER_FLOWS.items() if sign < 0 and kind not in TOLD]


def ranges_of(ledger: DataFrame) -> DataFrame:
    """One row a range; rows that files repeat count once, and `is_at_odds` says that they were not equal."""
    kinds = list(LEDGER_FLOWS)
    most = [F.max(F.when(F.col("kind") == kind, F.col("count"))).alias(kind) for kind in kinds]
    least = [F.min(F.when(F.col("kind") == kind, F.col("count"))).alias(f"least_{kind}") for kind in kinds]
    seconds = F.unix_millis(F.col("at"))
    wide = ledger.groupBy(*RANGE).agg(
        F.min("epoch").alias("epoch"),
        F.min(seconds).alias("at"),
        (F.max(seconds) != F.min(seconds)).alias("times_differ"),
        *most,
        *least,
    )
    differ = F.col("times_differ")
    for kind in kinds:
        differ = differ | F.coalesce(F.col(kind) != F.col(f"least_{kind}"), F.lit(False))
    flow = _sum([F.lit(sign) * _count(kind) for kind, sign in LEDGER_FLOWS.items() if sign])
    return wide.select(
        *RANGE,
        "epoch",
        "at",
        *[_count(kind).alias(kind) for kind in kinds],
        differ.alias("is_at_odds"),
        (F.col("published").isNull() | F.col("held").isNull()).alias("is_incomplete"),
        (_count("held") - flow).alias("before"),
        _sum([_count(kind) for kind in OTHER_OUT]).alias("other_out"),
        _sum([_count(kind) for kind in OTHER_IN]).alias("other_in"),
    )


def judged(ranges: DataFrame) -> DataFrame:
    """`FINDING` rows of single ranges: what they say is not enough, is told in two ways, or is bad news itself."""
    none = F.lit(None).cast("long")
    parts = [
        ("is_at_odds", "at_odds", none),
        ("is_incomplete", "incomplete", none),
        ("lost > 0", "lost", F.col("lost")),
        ("unexplained <> 0", "unexplained", F.col("unexplained")),
    ]
    found = None
    for condition, fault, messages in parts:
        one = ranges.where(condition).select(*RANGE, F.lit(fault).alias("fault"), messages.alias("messages"))
        found = one if found is None else found.unionByName(one)
    assert found is not None
    return found.select(*FINDING)


def faults_of(ranges: DataFrame) -> DataFrame:
    """All that is wrong in ranges and between them."""
    return judged(ranges).unionByName(findings(ranges))


def logs_of(ranges: DataFrame) -> DataFrame:
    """One row a log: what came, what went, and what is there at its end."""
    sums = [F.sum(name).alias(name) for name in [*TOLD, "other_in", "other_out"]]
    return ranges.groupBy(*LOG).agg(
        *sums, F.max_by("held", "to").alias("outstanding"), F.min_by("before", "from").alias("before")
    )


def totals_of(logs: DataFrame) -> DataFrame:
    """One row a queue. `is_accounted`: what was there and came, less what went, is what is outstanding."""
    names = ["before", *TOLD, "other_in", "other_out", "outstanding"]
    total = logs.groupBy("tenant", "queue", "queue_uid").agg(*[F.sum(name).alias(name) for name in names])
    came = F.col("before") + F.col("published") + F.col("other_in")
    went = _sum([F.col(name) for name in ("settled", "expired", "lost", "other_out")])
    return total.withColumn("is_accounted", came - went == F.col("outstanding"))


def _count(kind: str) -> Column:
    return F.coalesce(F.col(kind), F.lit(0).cast("long"))


def _sum(columns: list[Column]) -> Column:
    total = columns[0]
    for column in columns[1:]:
        total = total + column
    return total
