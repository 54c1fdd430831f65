"""Metering and billing: minutes become hours and days, ledger rows become one row per range, and ranges a bill.

Everything here can be merged: rows of `usage` add up, and rows of `flows` with the same range are the same row. So a
day can be updated with late rows, without the files it was made from.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark.usage_schema import LATENCY_SECONDS, LEDGER_FLOWS

USAGE_KEYS: Final = ["day", "tenant", "hour", "queue", "principal", "operation", "transport", "outcome"]
DAY_KEYS: Final = [name for name in USAGE_KEYS if name != "hour"]
SUMS: Final = ["requests", "messages", "bytes_in", "bytes_out", "seconds"]
HISTOGRAM: Final = [f"latency_{n}" for n in range(len(LATENCY_SECONDS) + 1)]
"""A histogram is one column per bucket, as sums of numbers need no objects; `with_percentiles` reads them."""

RANGE_KEYS: Final = ["day", "tenant", "queue", "queue_uid", "node", "partition", "from", "to"]
RANGE_FACTS: Final = ["epoch", "at", "published_bytes", "moved_in_bytes", "held_bytes", *LEDGER_FLOWS]
QUANTILES: Final = {"p50_seconds": 0.5, "p95_seconds": 0.95, "p99_seconds": 0.99}


def usage_of(minutes: DataFrame) -> DataFrame:
    """One row per hour of `USAGE_KEYS`, from rows of minutes. Leaves out rows that only mark a start."""
    hour = F.date_trunc("hour", F.col("minute"))
    flat = minutes.where("operation <> 'start'").select(
        F.to_date("minute").alias("day"),
        hour.alias("hour"),
        *[name for name in USAGE_KEYS if name not in ("day", "hour")],
        *SUMS,
        *[F.col("latency_counts")[n].alias(name) for n, name in enumerate(HISTOGRAM)],
    )
    return added(flat, USAGE_KEYS)


def added(usage: DataFrame, keys: list[str]) -> DataFrame:
    """Adds up rows with the same keys: parts of hours to hours, hours to days."""
    return usage.groupBy(*keys).agg(*[F.sum(name).alias(name) for name in [*SUMS, *HISTOGRAM]])


def with_percentiles(usage: DataFrame) -> DataFrame:
    """`p50_seconds`, `p95_seconds`, `p99_seconds`: upper bounds of their buckets. Requests slower than the last bound
    count as that bound."""
    return usage.withColumns({name: _quantile(share) for name, share in QUANTILES.items()})


def _quantile(share: float) -> Column:
    rank = F.col("requests") * F.lit(share)
    below = F.col(HISTOGRAM[0])
    found = F.when(F.col("requests") == 0, F.lit(None).cast("double")).when(below >= rank, F.lit(LATENCY_SECONDS[0]))
    for bound, name in zip(LATENCY_SECONDS[1:], HISTOGRAM[1:], strict=False):
        below = below + F.col(name)
        found = found.when(below >= rank, F.lit(bound))
    return found.otherwise(F.lit(LATENCY_SECONDS[-1]))


def flows_of(ledger: DataFrame) -> DataFrame:
    """One row per ledger range, with a column of message counts for each kind (0 if there were none). A row repeated in
    several files counts once."""
    sizes = {"published_bytes": "published", "moved_in_bytes": "moved_in", "held_bytes": "held"}
    wide = ledger.select(
        F.to_date("at").alias("day"),
        *[name for name in RANGE_KEYS if name != "day"],
        "epoch",
        "at",
        *[F.when(F.col("kind") == kind, F.col("bytes")).alias(name) for name, kind in sizes.items()],
        *[F.when(F.col("kind") == kind, F.col("count")).alias(kind) for kind in LEDGER_FLOWS],
    )
    return once(wide)


def once(flows: DataFrame) -> DataFrame:
    """Each range once: rows with the same range are equal, or parts of one row."""
    facts = [F.max(name) for name in RANGE_FACTS]
    filled = [
        fact.alias(name) if name in ("epoch", "at") else F.coalesce(fact, F.lit(0).cast("long")).alias(name)
        for fact, name in zip(facts, RANGE_FACTS, strict=True)
    ]
    return flows.groupBy(*RANGE_KEYS).agg(*filled)


def bill_of(flows: DataFrame) -> DataFrame:
    """What a tenant's queue is billed for on a day, exact to the message and the byte."""
    return flows.groupBy("day", "tenant", "queue", "queue_uid").agg(
        F.sum("published").alias("published"),
        F.sum("published_bytes").alias("published_bytes"),
        (F.sum("settled") + F.sum("read")).alias("delivered"),
        F.sum("expired").alias("expired"),
        F.sum("dead_lettered").alias("dead_lettered"),
        F.max("held").alias("held_max"),
    )
